"""The other figures of docs/results.md: f on fresh pairs against the number of discovery pairs, and f of the best edges by each ranking.

    python benchmarks/figures.py      docs/images/pairs.svg and rankings.svg, with their numbers as JSON

It runs no model, but reads benchmarks/search/rows.jsonl and benchmarks/yardsticks/rows.jsonl.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

from rows import read
from yardsticks import FIRST, FRACTIONS

from mechrl.files import write_atomically
from mechrl.report.figures import draw, style_of

HERE = Path(__file__).parent
OUT = HERE.parent / "docs" / "images"
COMMAND = "python benchmarks/figures.py"
SEARCHES = {
    "EAP-IG top-n": "EAP-IG top-n",
    "ACDC, 0.003": "ACDC, threshold 0.003",
    "blockwise": "Blockwise search",
}


def of_pairs() -> dict[str, Any]:
    """By behaviour and search: discovery pairs → f on fresh pairs, of the circuit with f ≥ 0.9 on the former."""
    data: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in read(HERE / "search" / "rows.jsonl"):
        if row["table"] == "pairs" and row["label"] in SEARCHES and row["f"] >= 0.9:
            data[row["behaviour"]][SEARCHES[row["label"]]][row["pairs"]] = row["f_test"]
    return {
        behaviour: {method: dict(sorted(points.items())) for method, points in sorted(methods.items())}
        for behaviour, methods in sorted(data.items())
    }


def paint_pairs(canvas: Any, data: dict[str, Any]) -> None:
    shown = [behaviour for behaviour in data if len(data[behaviour]) == len(SEARCHES)]
    for i, behaviour in enumerate(shown):
        axes = canvas.add_subplot(1, len(shown), i + 1, sharey=canvas.axes[0] if i else None)
        for j, (method, points) in enumerate(data[behaviour].items()):
            colour, marker = style_of(j)
            axes.plot(list(points), list(points.values()), marker=marker, color=colour, label=method)
        axes.axhline(0.9, color="#6E6E6E", linewidth=1, linestyle="--")
        axes.set(
            xscale="log", xlabel="discovery pairs", ylabel="" if i else "f on fresh pairs", title=behaviour
        )
        axes.set_xticks((10, 20, 50, 100, 200), ("10", "20", "50", "100", "200"))
        axes.minorticks_off()
    canvas.legend(*canvas.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)


def of_rankings() -> dict[str, Any]:
    """By model and ranking: share of all edges → f of the best, the mean over behaviours of means over draws."""
    found: dict[str, dict[str, dict[str, list[list[float]]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for row in read(HERE / "yardsticks" / "rows.jsonl"):
        if row["kind"] == "ranking":
            found[row["model"]][row["method"]][row["behaviour"]].append(row["f_of_best"])
    data = {}
    for model, methods in found.items():
        common = set.intersection(*(set(of) for of in methods.values()))
        curves = {
            method: [mean(mean(draw[i] for draw in of[b]) for b in sorted(common)) for i in range(FIRST)]
            for method, of in methods.items()
        }
        data[model] = {"behaviours": sorted(common), "shares": list(FRACTIONS[:FIRST]), "f": curves}
    return data


def paint_rankings(canvas: Any, data: dict[str, Any]) -> None:
    methods = sorted({method for known in data.values() for method in known["f"]})
    handles: dict[str, Any] = {}
    for i, (model, known) in enumerate(sorted(data.items())):
        axes = canvas.add_subplot(1, len(data), i + 1)
        for method, curve in known["f"].items():
            colour, marker = style_of(methods.index(method))
            shares = [100 * share for share in known["shares"]]
            handles[method] = axes.plot(shares, curve, marker=marker, color=colour)[0]
        title = f"{model}, {len(known['behaviours'])} behaviours"
        axes.set(
            xscale="log", xlabel="% of all edges", ylabel="" if i else "f of the best edges", title=title
        )
        axes.xaxis.set_major_formatter("{x:g}")
    canvas.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=6)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    out = parser.parse_args().out
    for name, data, paint, alt in (
        ("pairs", of_pairs(), paint_pairs, "f on fresh pairs rises with the number of discovery pairs."),
        (
            "rankings",
            of_rankings(),
            paint_rankings,
            "f of the best edges by each ranking against their share.",
        ),
    ):
        figure = draw(name, name, "", alt, data, COMMAND, (9, 3.4), lambda c, p=paint, d=data: p(c, d))
        write_atomically(out / f"{name}.svg", figure.svg)
        write_atomically(out / f"{name}.json", (json.dumps(data, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
