"""Tables 5 to 7 and 13: beyond the ranking, warm start and scratch, ACDC's sweep, agreement with the paper."""

from __future__ import annotations

from mechrl.experiments import paper_numbers as paper
from mechrl.experiments.compare_tables import NAMES
from mechrl.experiments.paper_tables.captions import n_seeds, over_seeds, policy_rule
from mechrl.experiments.reproduce import View, agreements, spread
from mechrl.report.tables import Column, Table, Value, columns
from mechrl.stats import Spread

_GAIN = ("edges", "f", "f_top", "gain", "gain_pruned", "gain_test")
_DISCORDANT = ("discordant_share", "discordant_chance", "cost", "cost_test")


def beyond(view: View) -> Table:
    rows: list[tuple[Value, ...]] = []
    for name in view.chosen.all:
        for label, group in (("paper", view.cells.policy), ("paper-adapted", view.cells.adapted)):
            results = view.results(group, name)
            if not results:
                continue
            values = [spread(results, "beyond", key) for key in (*_GAIN, *_DISCORDANT)]
            random = spread(results, "beyond", "cost_random", "mean")
            rows.append((name, NAMES[label], *values, random, spread(results, "passes"), len(results)))
    return Table(
        "table-5-beyond",
        "Table 5 · Beyond the prefilter",
        "Gain: f of the circuit C less f of the |C| best edges by attribution. Discordant: edges of C outside those; a random |C| of the "
        "candidates would hold the share “by chance”. Cost: f lost when they are deleted, beside that of deleting as many random "
        f"edges of C. {over_seeds(view)}",
        (
            *columns({"behaviour": None, "method": None, "edges": 0, "f": 3, "f of top-|C|": 3}),
            *columns({"discovery": 3, "equal pruned size": 3, "test pairs": 3}, "gain over the ranking"),
            *columns({"share": 2, "by chance": 2, "cost": 3, "cost on test pairs": 3}, "discordant edges"),
            Column("cost of random edges", 3, "discordant edges"),
            *columns({"passes": 0, "seeds": 0}),
        ),
        tuple(rows),
        view.command,
        (policy_rule(view),),
    )


def warm_scratch(view: View) -> Table:
    rows: list[tuple[Value, ...]] = []
    for name in view.chosen.held_out:
        warm, scratch = view.results(view.cells.adapted, name), view.results(view.cells.scratch, name)
        row: list[Value] = [name]
        for results in (warm, scratch):
            row += [spread(results, key) for key in ("edges", "f", "f_test", "passes")]
        both = [
            b["edges"] / a["edges"]
            for seed in view.scope.costly_seeds
            if (a := view.result(view.cells.adapted.get((name, seed))))
            and (b := view.result(view.cells.scratch.get((name, seed))))
            if a["edges"]
        ]
        rows.append((*row, Spread.of(both) if both else None, len(both)))
    budget, each = view.scope.budget, {"edges": 0, "f": 3, "f test": 3, "passes": 0}
    return Table(
        "table-6-warm-scratch",
        "Table 6 · Warm start and training from scratch",
        "The same reward, candidates, target and hyperparameters; only the first weights and the number of iterations differ. "
        f"Mean ± sd over {n_seeds(len(view.scope.costly_seeds))}.",
        (
            *columns({"behaviour": None}),
            *columns(each, f"warm start, {budget.adapt_iterations} iterations"),
            *columns(each, f"from scratch, {budget.scratch_iterations} iterations"),
            *columns({"scratch / warm": 2, "seeds": 0}),
        ),
        tuple(rows),
        view.command,
        (policy_rule(view),),
    )


def acdc_sweep(view: View) -> Table:
    rows: list[tuple[Value, ...]] = []
    for name in view.chosen.all:
        for t in view.scope.budget.thresholds:
            results = view.results(view.cells.acdc, name, t)
            row: list[Value] = [name, f"{t:g}"]
            row += [
                spread(results, key) for key in ("edges_pruned", "edges", "f", "f_test", "passes", "seconds")
            ]
            row.append(len(results))
            if view.is_paper_model:
                known = dict(zip(paper.ACDC_THRESHOLDS, paper.ACDC.get(name, ()), strict=False)).get(t)
                row += [None] * 3 if known is None else list(known)
            rows.append(tuple(row))
    return Table(
        "table-7-acdc",
        "Table 7 · ACDC over the whole graph",
        f"{view.gated.graph['edges']:,} edges, {view.scope.budget.pairs} discovery pairs. Mean ± sd over "
        f"{n_seeds(len(view.scope.costly_seeds))}.",
        (
            *columns({"behaviour": None, "threshold": None, "edges": 0, "before pruning": 0}),
            *columns({"f": 3, "f test": 3, "passes": 0, "seconds": 1, "seeds": 0}),
            *(columns({"edges": 0, "f": 3, "passes": 0}, "the paper") if view.is_paper_model else ()),
        ),
        tuple(rows),
        view.command,
    )


def agreement(view: View) -> Table:
    found = agreements(view)
    rows = tuple(
        (
            a.row,
            a.behaviour,
            a.paper_size,
            a.size,
            a.paper_f,
            a.f,
            a.f - a.paper_f,
            None if a.size is None or a.paper_size is None else f"{100 * (a.size / a.paper_size - 1):+.0f} %",
            a.agrees,
        )
        for a in found
    )
    return Table(
        "table-13-agreement",
        "Table 13 · Deterministic rows of the paper beside ours",
        f"{sum(a.agrees for a in found)} of {len(found)} rows agree: |Δf| ≤ {paper.TOLERANCE_F:g} and, where a row has a size, within "
        f"{paper.TOLERANCE_SIZE:.0%} of it. Prompts differ, so none can be exact. Ours are means over the seeds that are done.",
        (
            *columns({"row": None, "behaviour": None}),
            *columns({"paper": 0, "ours": 0}, "edges"),
            *columns({"paper": 3, "ours": 3}, "f"),
            *columns({"Δf": 3, "Δ edges": None, "agrees": None}),
        ),
        rows,
        view.command,
    )
