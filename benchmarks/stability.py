"""Size, cost, fresh f and stability of every method, side by side.

    python benchmarks/stability.py      prints the table in benchmarks/yardsticks/stability.md

It runs no model, but reads the archive benchmarks/reproduce/smollm2. Behaviours count if all methods reached f ≥ 0.9 on at least two
draws of 20 discovery pairs; a method that was run on less than half of them is omitted. Stability is the mean Jaccard overlap of a
behaviour's circuits from different draws; chance is the overlap of as many random candidates. Numbers are medians over behaviours, with
quartiles.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from pathlib import Path
from typing import Any

import archive
import numpy as np
from plane import METHODS, TARGETS, quartiles
from rows import Row, holds_on

from mechrl.validity.stability import chance_of

HERE = Path(__file__).parent
Found = dict[str, dict[str, list[Row]]]  # by method and behaviour, a row a draw


def found(folder: Path, target: str) -> Found:
    """What every method found that reached f ≥ 0.9, on at least two draws."""
    circuits: Found = defaultdict(lambda: defaultdict(list))
    for row in archive.read(folder):
        a, cell = row.cell["arguments"], row.cell
        if row.circuit is None or cell["kind"] != "circuit" or cell["status"] != "done":
            continue
        if holds_on(a) == target and a["method"] in METHODS and cell["result"]["reached"]:
            kept = set(row.circuit["edges"])
            circuits[a["method"]][a["behaviour"]].append(cell["result"] | {"kept": kept})
    return {m: {b: rows for b, rows in of.items() if len(rows) > 1} for m, of in circuits.items()}


def alike(rows: list[Row]) -> tuple[float, float]:
    """Mean Jaccard of the draws' circuits, and by chance."""
    pairs = list(combinations(rows, 2))
    mine = [len(a["kept"] & b["kept"]) / len(a["kept"] | b["kept"]) for a, b in pairs]
    sizes = [(len(a["kept"]), len(b["kept"]), min(a["candidates"], b["candidates"])) for a, b in pairs]
    chance = [chance_of(a, b, max(a, b, pool)) for a, b, pool in sizes]
    return float(np.mean(mine)), float(np.mean(chance))


def table(circuits: Found, title: str) -> list[str]:
    kept = [
        method for method in METHODS if 2 * len(circuits.get(method, {})) >= max(map(len, circuits.values()))
    ]
    common = sorted(set.intersection(*(set(circuits[method]) for method in kept)))
    lines = [
        f"## {title}: {', '.join(common)}",
        "",
        "| method | edges | f, fresh pairs | stability | by chance | passes |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for method in kept:
        of = [circuits[method][behaviour] for behaviour in common]
        stability, chance = zip(*map(alike, of), strict=True)
        means: dict[str, Any] = {
            key: [float(np.mean([row[key] for row in rows])) for rows in of]
            for key in ("edges_pruned", "f_test", "passes")
        }
        columns = [
            (means["edges_pruned"], 0),
            (means["f_test"], 3),
            (stability, 2),
            (chance, 3),
            (means["passes"], 0),
        ]
        lines.append(
            f"| {METHODS[method]} | " + " | ".join(_text(values, digits) for values, digits in columns) + " |"
        )
    return [*lines, ""]


def _text(values: list[float], digits: int) -> str:
    low, middle, high = (f"{q:,.{digits}f}" for q in quartiles(values))
    return f"{middle} ({low}–{high})"


def main() -> None:
    lines = ["# Size, cost, fresh f and stability", "", "Printed by `python benchmarks/stability.py`.", ""]
    for target, title in TARGETS.items():
        lines += table(found(HERE / "reproduce" / "smollm2", target), title)
    print("\n".join(lines), end="")


if __name__ == "__main__":
    main()
