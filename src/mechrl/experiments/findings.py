"""What a reproduction found, in at most five sentences, each computed from its rows. What the page opens with."""

from __future__ import annotations

from statistics import median
from typing import Any

from mechrl.experiments.compare_tables import NAMES
from mechrl.experiments.paper_tables.matched import by_case
from mechrl.experiments.reproduce import View, agreements

HEADLINE = "figure-5-matched"  # the figure that stands beside the sentences
_ON = {"discovery": "the pairs they were found on", "test": "fresh pairs"}


def findings(view: View) -> list[str]:
    found = [
        _exhibited(view),
        *(_matched(view, target) for target in ("discovery", "test")),
        _overfit(view),
        _paper(view),
    ]
    return [sentence for sentence in found if sentence]


def _exhibited(view: View) -> str:
    verdicts = list(view.gated.verdicts.values())
    no = [v["name"] for v in verdicts if not v["exhibited"]]
    without = f"; not {', '.join(no)}" if no else ""
    return f"{view.gated.model['model']} exhibits {len(verdicts) - len(no)} of {len(verdicts)} behaviours{without}."


def _matched(view: View, target: str) -> str:
    """Sizes and passes of the methods where all of them are done and reach tau: like with like."""
    methods = [m for m in view.scope.methods if m != "paper-adapted" and by_case(view, target, m)]
    by = {
        method: {c: r for c, r in by_case(view, target, method).items() if r["reached"]} for method in methods
    }
    by = {method: found for method, found in by.items() if found}
    cases = set.intersection(*(set(found) for found in by.values())) if by else set()
    if len(by) < 2 or not cases:
        return ""
    size = {method: median(found[case]["edges_pruned"] for case in cases) for method, found in by.items()}
    passes = {method: median(found[case]["passes"] for case in cases) for method, found in by.items()}
    told = ", ".join(
        f"{NAMES[m]} {size[m]:,.0f} ({passes[m]:,.0f} passes)" for m in sorted(by, key=lambda m: size[m])
    )
    n = f"{len(cases)} case{'s' * (len(cases) > 1)}"
    return (
        f"Circuits with f ≥ {view.scope.budget.tau:g} on {_ON[target]} have, in the median over the {n} that all of these reach, "
        f"so many edges: {told}."
    )


def _overfit(view: View) -> str:
    """What the circuits that were to hold on their own pairs are worth on fresh ones."""
    lost: dict[str, float] = {}
    for method in view.scope.methods:
        pairs: list[dict[str, Any]] = list(by_case(view, "discovery", method).values())
        if pairs:
            lost[method] = median(r["f"] - r["f_test"] for r in pairs)
    if not lost:
        return ""
    most, least = (pick(lost, key=lambda m: lost[m]) for pick in (max, min))
    if most == least:
        return f"On fresh pairs the circuits of {NAMES[most]} have {lost[most]:.3f} less f than on their own, in the median."
    return (
        f"On fresh pairs circuits have less f than on their own: {lost[most]:.3f} less by {NAMES[most]}, "
        f"{lost[least]:.3f} by {NAMES[least]}, in the median."
    )


def _paper(view: View) -> str:
    if view.is_paper_model:
        rows = agreements(view)
        if rows:
            return f"{sum(row.agrees for row in rows)} of {len(rows)} deterministic rows of the paper agree within tolerance."
    done, failed, total = view.count()
    left = total - done - failed
    about = f"{done} of {total} cells are done{f', {failed} failed' if failed else ''}"
    return (
        f"{about}: what is missing is listed where it is missing."
        if left or failed
        else f"All {total} cells are done."
    )
