"""The cost–minimality plane: what a method pays, in passes, and what it gets, in edges.

    python benchmarks/plane.py      docs/images/plane.svg, its numbers beside it as JSON; prints the table of README.md

Nothing is run: it reads the cells of benchmarks/reproduce/smollm2 and, once they are there, the planner's rows
(benchmarks/planner/rows.jsonl). A cell is a behaviour that no agent was trained on and a draw of 20 pairs. All methods are shown on the
same cells: those in which each of them reached f ≥ 0.9. A method that was run on less than a third of the cells is left out, and named.
Markers are medians, bars the first and third quartiles, dots cells.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from rows import done_cells, read

from mechrl.behaviours import get_behaviour
from mechrl.files import write_atomically
from mechrl.report.figures import BLACK, COLOURS, MARKERS, draw

HERE = Path(__file__).parent
OUT = HERE.parent / "docs" / "images" / "plane.svg"
COMMAND = "python benchmarks/plane.py"
METHODS = {
    "greedy": "EAP-IG greedy",
    "acdc": "ACDC",
    "edge-pruning": "Edge Pruning",
    "blockwise": "Blockwise search",
    "policy-greedy": "Earlier policy",  # docs/history.md
    "planner": "Planner",
}
TARGETS = {"discovery": "f ≥ 0.9 on 20 discovery pairs", "test": "f ≥ 0.9 on fresh pairs"}
Cell = tuple[str, int]  # a behaviour and a draw of pairs
Point = tuple[float, float, float]  # passes, edges, f on test pairs


def measured(reproduced: Path, planner: Path) -> dict[str, dict[str, dict[Cell, Point | None]]]:
    """By target and method every cell; None where τ was not reached."""
    found: dict[str, dict[str, dict[Cell, Point | None]]] = {target: {} for target in TARGETS}
    for known in done_cells(reproduced):
        a, r = known["arguments"], known["result"]
        if (
            a["target"] in TARGETS
            and a["method"] in METHODS
            and get_behaviour(a["behaviour"]).split != "train"
        ):
            point = (r["passes"], r["edges_pruned"], r["f_test"]) if r["reached"] else None
            found[a["target"]].setdefault(a["method"], {})[a["behaviour"], a["seed"]] = point
    for row in read(planner):
        if row["method"] != "planner" or row["model"] != "smollm2" or "edges" not in row:
            continue
        fresh = row["holds_on"] == "fresh"
        judged = row.get("f_validation") if fresh else row["f"]
        reached = judged is not None and judged >= 0.9
        target = "test" if fresh else "discovery"
        point = (row["passes"], row["edges"], row["f_test"]) if reached else None
        cell = row["behaviour"], row["draw"]
        if any(cell in cells for cells in found[target].values()):
            found[target].setdefault("planner", {})[cell] = point
    return found


def common(methods: dict[str, dict[Cell, Point | None]]) -> tuple[list[Cell], list[str]]:
    """The cells that all methods reached τ in, and the methods left out: those that were run on less than a third of them."""
    most = max((len(cells) for cells in methods.values()), default=0)
    kept = [m for m in METHODS if m in methods and 3 * len(methods[m]) >= most]
    cells = (
        set.intersection(*({c for c, p in methods[m].items() if p is not None} for m in kept))
        if kept
        else set()
    )
    return sorted(cells), [m for m in METHODS if m not in kept]


def quartiles(values: Iterable[float]) -> list[float]:
    return [float(q) for q in np.quantile(list(values), [0.25, 0.5, 0.75])]


def numbers(found: dict[str, dict[str, dict[Cell, Point | None]]]) -> dict[str, Any]:
    """All that the figure shows."""
    data: dict[str, Any] = {}
    for target, methods in found.items():
        cells, without = common(methods)
        shown = {}
        for method in (m for m in METHODS if m in methods and m not in without and cells):
            points = [p for c in cells if (p := methods[method][c]) is not None]
            passes, edges, f_test = zip(*points, strict=True)
            run = len(methods[method])
            reached = sum(p is not None for p in methods[method].values())
            summary = {"passes": quartiles(passes), "edges": quartiles(edges), "f_test": quartiles(f_test)}
            shown[method] = {**summary, "reached": reached, "run": run, "points": points}
        named = [f"{behaviour} {draw}" for behaviour, draw in cells]
        data[target] = {"cells": named, "methods": shown, "left out": without}
    return data


def paint(canvas: Any, data: dict[str, Any]) -> None:
    for i, (target, title) in enumerate(TARGETS.items()):
        axes = canvas.add_subplot(1, 2, i + 1)
        for method, shown in data[target]["methods"].items():
            at = list(METHODS).index(method)
            colour, marker = (BLACK, "*") if method == "planner" else (COLOURS[at], MARKERS[at])
            (x0, x, x1), (y0, y, y1) = shown["passes"], shown["edges"]
            axes.plot(
                *zip(*(p[:2] for p in shown["points"]), strict=True),
                ".",
                color=colour,
                alpha=0.25,
                markersize=4,
            )
            bars = {"xerr": [[x - x0], [x1 - x]], "yerr": [[y - y0], [y1 - y]]}
            axes.errorbar(
                x, y, **bars, fmt=marker, color=colour, capsize=2, markersize=8, label=METHODS[method]
            )
        axes.set(xscale="log", yscale="log", xlabel="passes", ylabel="edges" if not i else "")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:,.0f}")
        axes.set_title(f"{title} ({len(data[target]['cells'])} cells)")
    handles, labels = canvas.axes[0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=len(METHODS), frameon=False)


def table(data: dict[str, Any]) -> str:
    """Medians over the cells of the figure."""
    lines = [
        "| f ≥ 0.9 on | method | edges | passes | f on fresh pairs | reached in |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for target, known in data.items():
        for method, shown in known["methods"].items():
            where = "20 discovery pairs" if target == "discovery" else "fresh pairs"
            edges, passes, f = (shown[key][1] for key in ("edges", "passes", "f_test"))
            reached = f"{shown['reached']} of {shown['run']}"
            lines.append(
                f"| {where} | {METHODS[method]} | {edges:,.0f} | {passes:,.0f} | {f:.3f} | {reached} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    out = parser.parse_args().out
    data = numbers(measured(HERE / "reproduce" / "smollm2", HERE / "planner" / "rows.jsonl"))
    text = json.dumps(data, indent=1) + "\n"
    alt = "Edges against passes, both axes logarithmic: one marker a method, with its quartiles."
    figure = draw("plane", "Cost and minimality", "", alt, data, COMMAND, (9, 4.4), lambda c: paint(c, data))
    write_atomically(out, figure.svg)
    write_atomically(out.with_suffix(".json"), text.encode())
    print(table(data))


if __name__ == "__main__":
    main()
