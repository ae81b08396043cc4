"""Tables 8 to 12: all methods at matched f, what fresh pairs cost, and whether the circuits are real."""

from __future__ import annotations

from statistics import geometric_mean, median
from typing import Any

from mechrl.experiments import compare
from mechrl.experiments.compare_tables import NAMES
from mechrl.experiments.paper_tables.captions import PAIRS
from mechrl.experiments.reproduce import View, spread
from mechrl.report.tables import Column, Table, Value, columns
from mechrl.stats import Spread

Case = tuple[str, int]  # a behaviour and a seed
Results = list[dict[str, Any]]


def cases_compared(view: View, target: str) -> tuple[set[Case], str]:
    """Where every method is done that was asked for, and in words where not. An adapted policy may be missing: it is costly."""
    undone = {
        (name, seed)
        for (of, name, method, seed), cell in view.cells.matched.items()
        if of == target and method != "paper-adapted" and view.result(cell) is None
    }
    words = []
    for name in view.chosen.all:
        seeds = [str(seed) for seed in view.scope.seeds if (name, seed) in undone]
        if seeds:
            words.append(name if len(seeds) == len(view.scope.seeds) else f"{name} (seed {', '.join(seeds)})")
    everywhere = {(name, seed) for name in view.chosen.all for seed in view.scope.seeds}
    return everywhere - undone, ", ".join(words)


def by_case(
    view: View, target: str, method: str, cases: set[Case] | None = None
) -> dict[Case, dict[str, Any]]:
    """What a method has found, at all cases that it is done with or at some of these."""
    found = {
        (name, seed): view.result(cell)
        for (of, name, by, seed), cell in view.cells.matched.items()
        if (of, by) == (target, method) and (cases is None or (name, seed) in cases)
    }
    return {case: result for case, result in found.items() if result is not None}


def summary(view: View) -> Table:
    """Does the policy overfit its pairs less than a search does? Over the behaviours and seeds that all methods are done with."""
    rows: list[tuple[Value, ...]] = []
    notes = []
    for target in ("discovery", "test"):
        cases, missing = cases_compared(view, target)
        if missing:
            notes.append(
                f"Matched on {PAIRS[target]}, left out until every method is done with them: {missing}."
            )
        found = {method: by_case(view, target, method, cases) for method in view.scope.methods}
        for method, mine in found.items():
            results = list(mine.values())
            if not results:
                continue
            smallest = sum(_is_smallest(found, method, case) for case in mine)
            rows.append(
                (
                    PAIRS[target],
                    NAMES[method],
                    median([r["edges_pruned"] for r in results]),
                    median([r["passes"] for r in results]),
                    Spread.of(r["f"] for r in results),
                    Spread.of(r["f_test"] for r in results),
                    Spread.of(r["f"] - r["f_test"] for r in results),
                    f"{sum(r['reached'] for r in results)} of {len(results)}",
                    len({name for name, _ in mine}),
                    f"{smallest} of {len(results)}",
                )
            )
    return Table(
        "table-10-summary",
        "Table 10 · What fresh pairs cost each method",
        "Over the behaviours and seeds that all methods are done with: medians of size and passes; mean ± sd of f. “Smallest on”: with "
        "how many of these the method's circuit is the smallest of all that reach τ.",
        (
            *columns({"matched on": None, "method": None}),
            *columns({"edges": 0, "passes": 0}, "median"),
            *columns({"f discovery": 3, "f test": 3, "f lost on test pairs": 3, "reached τ": None}),
            *columns({"behaviours": 0, "smallest on": None}),
        ),
        tuple(rows),
        view.command,
        (
            "Over the costly seeds only: adapted policies, on held-out behaviours. Table 12 compares like with like.",
            *notes,
        ),
    )


def _is_smallest(found: dict[str, dict[Case, dict[str, Any]]], method: str, case: Case) -> bool:
    sizes = {m: by[case]["edges_pruned"] for m, by in found.items() if case in by and by[case]["reached"]}
    return method in sizes and sizes[method] == min(sizes.values())


def beside_searches(view: View) -> Table:
    """Does the policy win, on either axis or on both? Each search beside it, where both are done."""
    rows: list[tuple[Value, ...]] = []
    policies = [method for method in view.scope.methods if method in compare.PAPERS]
    for policy in policies:
        own = by_case(view, "discovery", policy)
        for method in view.scope.methods:
            theirs = by_case(view, "discovery", method) if method in compare.SEARCHES else {}
            cases = [case for case in own if case in theirs]
            if cases:
                head = (NAMES[policy], NAMES[method], len(cases))
                rows.append((*head, *_contest([(own[case], theirs[case]) for case in cases])))
    won = {"smaller": 0, "as small": 0, "cheaper": 0, "both": 0, "neither": 0}
    return Table(
        "table-12-beside",
        "Table 12 · The paper's agent beside each search",
        "Circuits of table 8, behaviour by behaviour and seed by seed, where both methods are done. Both: smaller, and for fewer "
        "passes; neither: at least as large, for at least as many. The ratios are geometric means where both reach τ.",
        (
            *columns({"policy": None, "beside": None, "both done": 0}),
            *columns({"both": 0, "only policy": 0, "only search": 0}, "reach τ"),
            *columns(won, "the policy is, where both reach τ"),
            *columns({"edges": 2, "passes": 2}, "policy / search"),
        ),
        tuple(rows),
        view.command,
        ("Attribution and a policy's adaptation are charged for, its training is not.",),
    )


def _contest(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> tuple[Value, ...]:
    """Counts and ratios of (policy's, search's) results."""
    both = [(p, s) for p, s in pairs if p["reached"] and s["reached"]]
    reached = (
        len(both),
        *(sum(pair[i]["reached"] and not pair[1 - i]["reached"] for pair in pairs) for i in (0, 1)),
    )
    smaller = [p["edges_pruned"] < s["edges_pruned"] for p, s in both]
    as_small = sum(p["edges_pruned"] == s["edges_pruned"] for p, s in both)
    cheaper = [p["passes"] < s["passes"] for p, s in both]
    won = sum(map(all, zip(smaller, cheaper, strict=True)))
    lost = sum(not any(pair) for pair in zip(smaller, cheaper, strict=True))
    ratios = [[p[key] / s[key] for p, s in both if p[key] and s[key]] for key in ("edges_pruned", "passes")]
    means = [geometric_mean(some) if some else None for some in ratios]
    return (*reached, sum(smaller), as_small, sum(cheaper), won, lost, *means)


def validity(view: View) -> Table:
    rows: list[tuple[Value, ...]] = []
    for name in view.chosen.all:
        for method in view.scope.methods:
            results = [
                r for r in view.results(view.cells.matched, "discovery", name, method) if "validity" in r
            ]
            if not results:
                continue
            others = [v["f"] for r in results for v in r["validity"]["variants"] if v["f"] is not None]
            row: list[Value] = [name, NAMES[method]]
            row += [spread(results, key) for key in ("edges_pruned", "f", "f_test")]
            row += [Spread.of(others) if others else None, spread(results, "validity", "necessity")]
            row += [spread(results, "validity", "necessity_random", "mean")]
            row.append(spread(results, "validity", "necessity_metric"))
            row += [control(results, d, m) for d in ("candidates", "graph") for m in ("raw", "pruned")]
            row.append(control(results, "candidates", "raw", "metric"))
            rows.append((*row, recovered_components(results)[0], spread(results, "passes"), len(results)))
    random = {
        f"{among}{size}": 3 for among in ("candidates", "whole graph") for size in ("", ", pruned size")
    }
    return Table(
        "table-11-validity",
        "Table 11 · Are the circuits real?",
        f"The circuits of table 8, f ≥ {view.scope.budget.tau:g} on discovery pairs. Random controls are means of 20 draws, from "
        "each method's own candidates or from the whole graph. Other variants: mean ± sd over the family's others. Circuits of seed 0, and "
        "of all seeds for the paper's agent. The metric is the behaviour's own: 0 for the empty circuit, 1 for the whole model.",
        (
            *columns({"behaviour": None, "method": None, "edges": 0, "f": 3}),
            *columns({"test": 3, "other variants": 3}, "f on fresh pairs"),
            *columns({"circuit": 3, "random edges": 3}, "necessity: f without"),
            Column("circuit", 3, "the metric without"),
            *columns(random, "specificity: f of random circuits"),
            Column("candidates", 3, "the metric of random circuits"),
            *columns({"components": None, "passes": 0, "seeds": 0}),
        ),
        tuple(rows),
        view.command,
        ("Components found by hand have been published for GPT-2 small only.",)
        if not view.is_paper_model
        else (),
    )


def control(results: Results, drawn_from: str, matched: str, by: str = "f") -> Spread | None:
    """f of random circuits, or the behaviour's own metric: the mean over seeds of each seed's mean."""
    values = [
        kind[by]["mean"]
        for r in results
        if "validity" in r
        for kind in r["validity"]["specificity"]
        if (kind["drawn_from"], kind["matched"]) == (drawn_from, matched) and kind[by] is not None
    ]
    return Spread.of(values) if values else None


def recovered_components(results: Results) -> tuple[Value, Value, Value]:
    """Recovered of known, expected by chance, precision."""
    found = [r["validity"]["recovery"] for r in results if r["validity"]["recovery"] is not None]
    if not found:
        return None, None, None
    mean = sum(r["recovered"] for r in found) / len(found)
    expected, precision = (
        Spread.of(r["expected"] for r in found),
        [r["precision"] for r in found if r["precision"] is not None],
    )
    return f"{mean:g}/{len(found[0]['known'])}", expected, Spread.of(precision) if precision else None
