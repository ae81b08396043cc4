"""Compares rankings by CMD, CPR and f of their best edges, and searches by size, passes, fresh f and stability.

    python benchmarks/yardsticks.py rank OUT [--model smollm2] [--behaviours …] [--draws 0,1,2] [--methods …]
    python benchmarks/yardsticks.py search OUT [the same]      circuits of f ≥ 0.9 on 20 discovery pairs
    python benchmarks/yardsticks.py tables OUT                 prints the tables from OUT/rows.jsonl; no model is run

OUT/rows.jsonl has a row per cell; cells with a row are skipped. `--name` names a model that is loaded from a file. CMD and CPR are measured
on 20 fresh pairs, or as many as `--fresh` says.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rows import Row, append, read

from mechrl.agents.planner.session import DiscoverSettings, HoldsOn, discover
from mechrl.agents.planner.shipped import load_planner, shipped
from mechrl.behaviours import get_behaviour
from mechrl.behaviours.base import TEST_SEED, Behaviour, Pairs
from mechrl.circuit import Circuit
from mechrl.engine import Engine
from mechrl.models import load_model
from mechrl.models.base import Model
from mechrl.search.session import SearchSettings, search
from mechrl.stats import Spread
from mechrl.validity.benchmark_metrics import FRACTIONS, benchmark_metrics
from mechrl.validity.rankings import RANKINGS, ranking
from mechrl.validity.stability import FEWEST, chance_of, jaccard

PAIRS = 20
TAU = 0.9
FIRST = 6  # fractions, up to 5 % of the edges, at which f of the best edges is shown
OF_RANKINGS = tuple(name for name in RANKINGS if name != "eap-ig-activations")  # which takes 610 passes
SEARCHES = ("greedy", "edge-pruning", "acdc", "matryoshka-500", "matryoshka-5000", "blockwise", "planner")


def of_ranking(model: Model, behaviour: Behaviour, draw: int, method: str, given: argparse.Namespace) -> Row:
    engine, pairs = drawn(model, behaviour, draw)
    began = time.perf_counter()
    scores, passes = ranking(method, engine, pairs, behaviour.metric)  # type: ignore[arg-type]  # checked there
    seconds = time.perf_counter() - began
    order = np.argsort(-np.abs(scores), kind="stable")
    masks = np.zeros((FIRST, len(scores)), dtype=bool)
    for mask, fraction in zip(masks, FRACTIONS, strict=False):
        mask[order[: int(fraction * len(scores))]] = True
    f = engine.faithfulness(masks).tolist()
    known = {"passes": passes, "seconds": seconds, "f_of_best": f}
    return known | yardsticks(model, behaviour, scores, given.fresh)


def of_search(model: Model, behaviour: Behaviour, draw: int, method: str, given: argparse.Namespace) -> Row:
    name, _, steps = method.partition("-5")
    if method == "planner":
        network = load_planner(shipped("toy" if model.name == "toy" else "smollm2"))
        settings = DiscoverSettings(TAU, PAIRS, HoldsOn.DISCOVERY, seed=draw)
        circuit = discover(model, behaviour, network, settings)
    else:
        more: dict[str, Any] = {"steps": int("5" + steps)} if steps else {}
        circuit = search(model, behaviour, SearchSettings(name, TAU, PAIRS, given.k, seed=draw, **more))  # type: ignore[arg-type]
    known = {key: getattr(circuit, key) for key in ("passes", "seconds", "faithfulness", "faithfulness_test")}
    kept = {"edges": circuit.size, "kept": np.flatnonzero(circuit.live).tolist()}
    known["k"] = circuit.settings.get("k_used", given.k)
    return known | kept | yardsticks(model, behaviour, circuit, given.fresh)


def drawn(model: Model, behaviour: Behaviour, draw: int) -> tuple[Engine, Pairs]:
    """The discovery pairs."""
    assert model.tokenizer is not None
    pairs = behaviour.pairs(model.tokenizer, PAIRS, draw, part="discovery", n_ctx=model.spec.n_ctx)
    return Engine(model, pairs), pairs


def yardsticks(model: Model, behaviour: Behaviour, ranked: np.ndarray | Circuit, fresh: int) -> Row:
    """CMD and CPR on `fresh` fresh pairs; nothing for none."""
    if not fresh:
        return {}
    assert model.tokenizer is not None
    pairs = behaviour.pairs(model.tokenizer, fresh, TEST_SEED, n_ctx=model.spec.n_ctx)
    found = benchmark_metrics(Engine(model, pairs), pairs, ranked)
    return {"fresh": fresh, "cmd": found.cmd, "cpr": found.cpr, "f_absolute": found.faithfulness_absolute}


# ---- cells ----------------------------------------------------------------------------------------------------------


def run(given: argparse.Namespace) -> None:
    """Runs the cells without a row, draw by draw."""
    given.out.mkdir(parents=True, exist_ok=True)
    path, ranks = given.out / "rows.jsonl", given.what == "rank"
    methods = given.methods.split(",") if given.methods else list(OF_RANKINGS if ranks else SEARCHES)
    measure = of_ranking if ranks else of_search
    model = load_model(given.model)
    about = {"graph": model.graph.n_edges, "device": str(model.device), "threads": torch.get_num_threads()}
    for draw in map(int, given.draws.split(",")):
        for behaviour in map(get_behaviour, given.behaviours.split(",")):
            for method in methods:
                cell = {"kind": "ranking" if ranks else "search", "model": given.name or given.model}
                cell |= {"behaviour": behaviour.name, "draw": draw, "method": method}
                done = read(path)
                if cell in [{key: row[key] for key in cell} for row in done]:
                    continue
                row = cell | about | measure(model, behaviour, draw, method, given)
                append(path, [row])
                print(*cell.values(), f"{row['passes']:.0f} passes, {row['seconds']:.0f} s", flush=True)


# ---- tables ---------------------------------------------------------------------------------------------------------


def tables(rows: list[Row]) -> str:
    parts = " | ".join(f"{fraction:.1%}" for fraction in FRACTIONS[:FIRST])
    text = ["# The field's yardsticks", "", "Printed by `python benchmarks/yardsticks.py tables`.", ""]
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == model]
        ranked, found = (grouped(mine, kind) for kind in ("ranking", "search"))
        if ranked:
            text += [
                f"## Rankings of all edges: {model}",
                "",
                "f is that of the best edges by |score|, so many of all edges, on the discovery pairs they were ranked on. "
                "CMD: 0 is best. CPR rewards circuits that overshoot the model: it is no order of merit.",
                "",
                f"| behaviour | ranking | CMD | CPR | passes | draws | f: {parts} |",
                "| --- " * (6 + FIRST) + "|",
                *(_of_rankings(*key, group) for key, group in ranked.items()),
                "",
            ]
        if found:
            text += [
                f"## Circuits of f ≥ {TAU} on {PAIRS} discovery pairs: {model}",
                "",
                "Stability is the mean Jaccard overlap of the draws' circuits; by chance: of as many edges of the whole graph.",
                "",
                "| behaviour | method | edges | f, discovery | f, fresh | stability (by chance) | CMD | CPR | passes | draws |",
                "| --- " * 10 + "|",
                *(_of_searches(*key, group) for key, group in found.items()),
                "",
            ]
    return "\n".join(text)


def grouped(rows: list[Row], kind: str) -> dict[tuple[str, str], list[Row]]:
    """By behaviour and method, each in the order of their names."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in sorted(
        rows, key=lambda row: (row["behaviour"], (*RANKINGS, *SEARCHES).index(row["method"]), row["draw"])
    ):
        if row["kind"] == kind:
            groups[row["behaviour"], row["method"]].append(row)
    return groups


def spread(rows: list[Row], key: str, digits: int) -> str:
    values = [row[key] for row in rows if key in row]
    return Spread.of(values).text(digits) if values else "–"


def _of_rankings(behaviour: str, method: str, rows: list[Row]) -> str:
    f = [Spread.of(row["f_of_best"][i] for row in rows).text(2) for i in range(FIRST)]
    about = [spread(rows, "cmd", 3), spread(rows, "cpr", 2), spread(rows, "passes", 0), str(len(rows))]
    return "| " + " | ".join([behaviour, method, *about, *f]) + " |"


def _of_searches(behaviour: str, method: str, rows: list[Row]) -> str:
    again = alike(rows)
    numbers = [("edges", 0), ("faithfulness", 3), ("faithfulness_test", 3)]
    quality = [spread(rows, key, digits) for key, digits in numbers]
    rest = [spread(rows, "cmd", 3), spread(rows, "cpr", 2), spread(rows, "passes", 0), str(len(rows))]
    return "| " + " | ".join([behaviour, method, *quality, again, *rest]) + " |"


def alike(rows: list[Row]) -> str:
    """Mean Jaccard overlap of the draws' circuits."""
    if len(rows) < FEWEST:
        return "–"
    n = rows[0]["graph"]
    masks = [np.isin(np.arange(n), row["kept"]) for row in rows]
    found = Spread.of(jaccard(a, b) for a, b in combinations(masks, 2))
    chance = Spread.of(chance_of(int(a.sum()), int(b.sum()), n) for a, b in combinations(masks, 2))
    return f"{found.text(2)} ({chance.mean:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("rank", "search", "tables"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--name", help="of the model in the rows")
    parser.add_argument("--behaviours", default="country-capital,comparative,acronyms,greater-than")
    parser.add_argument("--draws", default="0,1,2")
    parser.add_argument("--methods")
    parser.add_argument(
        "--k", type=int, default=3000, help="candidates of a search by each score, to begin with"
    )
    parser.add_argument(
        "--fresh", type=int, default=20, help="pairs that CMD and CPR are measured on; 0: leave them out"
    )
    given = parser.parse_args()
    if given.what == "tables":
        print(tables(read(given.out / "rows.jsonl")), end="")
    else:
        run(given)


if __name__ == "__main__":
    main()
