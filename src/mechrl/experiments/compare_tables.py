"""The tables of a comparison."""

from __future__ import annotations

from collections.abc import Sequence

from mechrl.experiments.compare import Budget, ResultRow
from mechrl.experiments.experiment import GateResult
from mechrl.report.tables import Table, Value, columns

NAMES = {
    "top-n": "EAP-IG top-n",
    "top-n-kl": "EAP-IG top-n (KL)",
    "greedy": "EAP-IG greedy",
    "greedy-kl": "EAP-IG greedy (KL)",
    "acdc": "ACDC",
    "edge-pruning": "Edge Pruning",
    "matryoshka": "Matryoshka attribution",
    "blockwise": "Blockwise search",
    "paper": "The paper's agent",
    "paper-adapted": "The paper's agent, adapted",
    "paper-from-scratch": "The paper's agent, from scratch",
}
_TITLES = {
    "discovery": "Matched f on discovery pairs",
    "test": "Matched f on fresh pairs",
    "paper": "ACDC over the whole graph",
}


def comparison_tables(
    rows: Sequence[ResultRow], budget: Budget, command: str, gated: GateResult
) -> list[Table]:
    """One table for every target."""
    tables = []
    for target in dict.fromkeys(row.target for row in rows):
        mine = [row for row in rows if row.target == target]
        tables.append(comparison_table(mine, target, budget, command, gated.notes))
    return tables


def comparison_table(
    rows: Sequence[ResultRow], target: str, budget: Budget, command: str, notes: tuple[str, ...] = ()
) -> Table:
    where = {
        "discovery": f"The smallest circuits with f ≥ {budget.tau:g} on {budget.pairs} discovery pairs",
        "test": f"The smallest circuits with f ≥ {budget.tau:g} on validation pairs, found on {budget.pairs} discovery pairs",
        "paper": f"Circuits of one threshold on {budget.pairs} discovery pairs, whatever their f",
    }[target]
    seeds = max((row.seeds for row in rows), default=0)
    overlaps = any(row.stability is not None for row in rows)
    values: list[tuple[Value, ...]] = []
    for row in rows:
        sizes: tuple[Value, ...] = (row.edges_pruned, row.edges, row.f, row.f_test)
        again = row.stability
        alike: tuple[Value, ...] = (None, None) if again is None else (again.jaccard, again.chance)
        cost: tuple[Value, ...] = (row.passes, row.seconds, row.done, row.status)
        values.append((row.behaviour, NAMES[row.method], *sizes, *(alike if overlaps else ()), *cost))
    return Table(
        name=f"comparison-{target}",
        title=_TITLES[target],
        caption=f"{where}; mean ± sd over {seeds} seed{'s' if seeds != 1 else ''}. Edges are those left after pruning. "
        "A pass is one forward of one circuit on 20 pairs; a backward counts two. "
        + (
            "Stability is the mean Jaccard overlap of the seeds' circuits, each found on other pairs. "
            if overlaps
            else ""
        )
        + "Seconds are wall time, on a device that "
        "the worker processes share.",
        columns=(
            *columns({"behaviour": None, "method": None, "edges": 0, "before pruning": 0}),
            *columns({"f discovery": 3, "f test": 3}),
            *(columns({"stability": 2, "by chance": 2}) if overlaps else ()),
            *columns({"passes": 0, "seconds": 1, "seeds": 0, "remarks": None}),
        ),
        rows=tuple(values),
        command=command,
        notes=notes,
    )
