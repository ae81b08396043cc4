"""Every table of the paper for one model, and those that the paper leaves out."""

from __future__ import annotations

from dataclasses import replace

from mechrl.experiments import compare
from mechrl.experiments.compare_tables import comparison_table
from mechrl.experiments.paper_tables.ablations import acdc_sweep, agreement, beyond, warm_scratch
from mechrl.experiments.paper_tables.captions import candidates_note
from mechrl.experiments.paper_tables.matched import beside_searches, summary, validity
from mechrl.experiments.paper_tables.transfer import behaviours, features, per_behaviour, transfer
from mechrl.experiments.reproduce import View
from mechrl.report.tables import Table


def all_tables(view: View) -> list[Table]:
    tables = [features(view), behaviours(view), transfer(view), per_behaviour(view)]
    tables += [beyond(view), warm_scratch(view), acdc_sweep(view)]
    for number, target in ((8, "discovery"), (9, "test")):
        cells = [cell for key, cell in view.cells.matched.items() if key[0] == target]
        table = comparison_table(
            compare.rows(cells, view.workspace),
            target,
            view.scope.budget,
            view.command,
            (candidates_note(view),),
        )
        tables.append(
            replace(table, name=f"table-{number}-matched-{target}", title=f"Table {number} · {table.title}")
        )
    tables += [summary(view), validity(view), beside_searches(view)]
    if view.is_paper_model:
        tables.append(agreement(view))
    return tables
