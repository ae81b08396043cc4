"""Circuit size against cost: edges against passes, for every method.

    python benchmarks/plane.py unseen     docs/images/unseen.svg, with its numbers as JSON; prints the table of README.md
    python benchmarks/plane.py paper      docs/images/plane.svg, likewise; prints a table of docs/results.md

It runs no model. A cell is a behaviour that no agent was trained on and a draw of 20 pairs. `unseen` uses the cells of benchmarks/planner:
relations from families that nothing was fitted or tuned on. `paper` uses those of benchmarks/reproduce, without the planner, which was
fitted to some of them. All methods are shown on the same cells: those in which each of them reached f ≥ 0.9. A method that was run on less
than a third of the cells is omitted, and the JSON names it. Markers are medians, bars the first and third quartiles, dots cells.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from planner import UNSEEN
from rows import Row, done_cells, holds_on, read

from mechrl.behaviours import get_behaviour
from mechrl.files import write_atomically
from mechrl.report.figures import BLACK, COLOURS, MARKERS, draw, plain_log

HERE = Path(__file__).parent
IMAGES = HERE.parent / "docs" / "images"
FILES = {"unseen": "unseen.svg", "paper": "plane.svg"}
METHODS = {
    "greedy": "EAP-IG greedy",
    "acdc": "ACDC",
    "edge-pruning": "Edge Pruning",
    "blockwise": "Blockwise search",
    "policy-greedy": "Earlier policy",  # docs/history.md
    "absolute": "Untrained planner",
    "planner": "Planner",
}
FEWEST = 5  # cells that make a panel
TARGETS = {"discovery": "f ≥ 0.9 on 20 discovery pairs", "fresh": "f ≥ 0.9 on fresh pairs"}
Cell = tuple[str, int]  # a behaviour and a draw of pairs
Point = tuple[float, float, float]  # passes, edges, f on test pairs
Measured = dict[
    str, dict[str, dict[Cell, Point | None]]
]  # by target and method every cell; None: τ was not reached


def paper(folder: Path) -> Measured:
    found: Measured = {target: {} for target in TARGETS}
    for known in done_cells(folder):
        a, r = known["arguments"], known["result"]
        target = holds_on(a)
        if target in TARGETS and a["method"] in METHODS and get_behaviour(a["behaviour"]).split != "train":
            point = (r["passes"], r["edges_pruned"], r["f_test"]) if r["reached"] else None
            found[target].setdefault(a["method"], {})[a["behaviour"], a["seed"]] = point
    return found


def unseen(rows: Iterable[Row]) -> Measured:
    found: Measured = {target: {} for target in TARGETS}
    for row in rows:
        if row["method"] in METHODS and row["model"] == "smollm2" and row["behaviour"] in UNSEEN:
            judged = row["f_validation"] if row["holds_on"] == "fresh" else row["f"]
            reached = judged is not None and judged >= 0.9
            point = (row["passes"], row["edges"], row["f_test"]) if reached else None
            found[row["holds_on"]].setdefault(row["method"], {})[row["behaviour"], row["draw"]] = point
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


def numbers(found: Measured) -> dict[str, Any]:
    """All that the figure shows. Targets of fewer than `FEWEST` cells are left out."""
    data: dict[str, Any] = {}
    for target, methods in found.items():
        cells, without = common(methods)
        if methods and len(cells) < FEWEST:
            continue
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
    for i, target in enumerate(data):
        axes = canvas.add_subplot(1, len(data), i + 1)
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
        for which in ("x", "y"):
            plain_log(axes, which)
        axes.set_title(f"{TARGETS[target]} ({len(data[target]['cells'])} cells)")
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cells", choices=FILES)
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder")
    given = parser.parse_args()
    out = given.out / FILES[given.cells]
    if given.cells == "paper":
        data = numbers(paper(HERE / "reproduce" / "smollm2"))
    else:
        data = numbers(unseen(read(HERE / "planner" / "rows.jsonl")))
    text = json.dumps(data, indent=1) + "\n"
    alt = "Edges against passes, both axes logarithmic: one marker a method, with its quartiles."
    command = f"python benchmarks/plane.py {given.cells}"
    figure = draw(
        "plane",
        "Cost and minimality",
        "",
        alt,
        data,
        command,
        (4.5 * len(data), 4.4),
        lambda c: paint(c, data),
    )
    write_atomically(out, figure.svg)
    write_atomically(out.with_suffix(".json"), text.encode())
    print(table(data))


if __name__ == "__main__":
    main()
