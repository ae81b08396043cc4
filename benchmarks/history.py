"""The results of the retired agents: the tables of docs/history.md.

    python benchmarks/history.py > benchmarks/policy/tables.md

It runs no model, but reads rows that were measured with code that is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean, geometric_mean

from rows import Row, read

HERE = Path(__file__).parent / "policy"
TAU = 0.9
Group = Callable[[Row], bool]


def first_run() -> None:
    """The paper's settings on SmolLM2, 577 of 1200 iterations: means over windows of iterations."""
    rows = read(HERE / "first-run.jsonl")
    print("| iterations | episodes | return | f | edges | entropy |\n| --- | --- | --- | --- | --- | --- |")
    for first, last in ((1, 18), (19, 25), (26, 40), (41, 128), (129, 300), (301, 450), (451, 577)):
        mine = rows[first - 1 : last]
        ended = [row for row in mine if row["episodes"]]
        cells = [f"{sum(row['episodes'] for row in mine):,}"]
        for key, digits in (("return", 3), ("f", 3), ("edges", 0)):
            weights = [row["episodes"] for row in ended]
            values = [row[f"episode/{key}"] for row in ended]
            mean = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights) if ended else None
            cells.append("–" if mean is None else f"{mean:,.{digits}f}")
        print(
            f"| {first}–{last} |", " | ".join(cells), "|", f"{fmean(r['loss/entropy'] for r in mine):.2f} |"
        )


def kind(name: str, trades: bool, rollouts: int) -> Group:
    return lambda row: (row["kind"], bool(row.get("trades")), row.get("rollouts")) == (name, trades, rollouts)


def beside(rows: list[Row], one: Group, other: Group) -> tuple[int, float, float, int]:
    """Behaviours on which both reach τ with every seed; edges and passes, one over the other; on how many the one is smaller."""
    by: list[dict[str, list[Row]]] = []
    for group in (one, other):
        found: dict[str, list[Row]] = {}
        for row in filter(group, rows):
            found.setdefault(row["behaviour"], []).append(row)
        by.append({name: some for name, some in found.items() if all(row["f"] >= TAU for row in some)})
    both = sorted(set(by[0]) & set(by[1]))
    ratios = {
        key: [fmean(r[key] for r in by[0][name]) / fmean(r[key] for r in by[1][name]) for name in both]
        for key in ("edges", "passes")
    }
    smaller = sum(ratio < 1 for ratio in ratios["edges"])
    return len(both), geometric_mean(ratios["edges"]), geometric_mean(ratios["passes"]), smaller


def main() -> None:
    rows = [row for row in read(HERE / "rows.jsonl") if row["model"] == "smollm2"]
    print("## The paper's settings on SmolLM2, 577 of 1200 iterations\n")
    first_run()
    print(f"\n## One kind of deployment over another, on SmolLM2, at f ≥ {TAU} on 20 discovery pairs\n")
    print("| | rollouts | behaviours | edges | passes | smaller on |\n| --- | --- | --- | --- | --- | --- |")
    for text, (one, trades), (other, without) in (
        ("with exchanges over without", ("zero-shot", True), ("zero-shot", False)),
        ("trained over untrained, both with exchanges", ("zero-shot", True), ("untrained", True)),
        ("trained over untrained, both without", ("zero-shot", False), ("untrained", False)),
        ("after a warm start over frozen, with exchanges", ("adapted", True), ("zero-shot", True)),
        ("from scratch over frozen, with exchanges", ("scratch", True), ("zero-shot", True)),
    ):
        for rollouts, label in ((0, "greedy"), (16, "16 + 1")):
            n, edges, passes, smaller = beside(
                rows, kind(one, trades, rollouts), kind(other, without, rollouts)
            )
            print(f"| {text} | {label} | {n} | {edges:.2f} | {passes:.2f} | {smaller} |")
    print("\nGeometric means over the behaviours on which both reach it with every seed.")


if __name__ == "__main__":
    main()
