"""The field's yardsticks: rankings by CMD, CPR and f of their best edges; searches by size, passes, fresh f and stability.

    python benchmarks/yardsticks.py rank OUT [--model smollm2] [--behaviours …] [--draws 0,1,2] [--methods …]
    python benchmarks/yardsticks.py search OUT [the same]      circuits of f ≥ 0.9 on 20 discovery pairs
    python benchmarks/yardsticks.py tables OUT                 OUT/tables.md from OUT/rows.jsonl; nothing is run

A row a cell in OUT/rows.jsonl; what is there is not run again. A model from a file is called what `--name` says. CMD and CPR are of 20
fresh pairs; `--cpu-threads` is what every process is given.
"""

from __future__ import annotations

import argparse
import time
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
from mechrl.evaluate.benchmark_metrics import FRACTIONS, benchmark_metrics
from mechrl.evaluate.rankings import RANKINGS, ranking
from mechrl.models import load_model
from mechrl.models.base import Model
from mechrl.search.run import Settings, search

PAIRS = 20
TAU = 0.9
FIRST = 6  # fractions, up to 5 % of the edges, at which f of the best edges is shown
OF_RANKINGS = tuple(name for name in RANKINGS if name != "eap-ig-activations")  # which takes 610 passes
SEARCHES = ("greedy", "edge-pruning", "acdc", "matryoshka-500", "matryoshka-5000", "blockwise", "planner")


def of_ranking(model: Model, behaviour: Behaviour, draw: int, method: str, fresh: int) -> Row:
    engine, pairs = drawn(model, behaviour, draw)
    began = time.perf_counter()
    scores, passes = ranking(method, engine, pairs, behaviour.metric)  # type: ignore[arg-type]  # checked there
    seconds = time.perf_counter() - began
    order = np.argsort(-np.abs(scores), kind="stable")
    masks = np.zeros((FIRST, len(scores)), dtype=bool)
    for mask, fraction in zip(masks, FRACTIONS, strict=False):
        mask[order[: int(fraction * len(scores))]] = True
    f = engine.faithfulness(masks).tolist()
    return {"passes": passes, "seconds": seconds, "f_of_best": f} | yardsticks(
        model, behaviour, scores, fresh
    )


def of_search(model: Model, behaviour: Behaviour, draw: int, method: str, fresh: int) -> Row:
    name, _, steps = method.partition("-5")
    if method == "planner":
        network = load_planner(shipped("toy" if model.name == "toy" else "smollm2"))
        settings = DiscoverSettings(TAU, PAIRS, HoldsOn.DISCOVERY, seed=draw)
        circuit = discover(model, behaviour, network, settings)
    else:
        more: dict[str, Any] = {"steps": int("5" + steps)} if steps else {}
        circuit = search(model, behaviour, Settings(name, TAU, PAIRS, seed=draw, **more))  # type: ignore[arg-type]
    known = {key: getattr(circuit, key) for key in ("passes", "seconds", "faithfulness", "faithfulness_test")}
    kept = {"edges": circuit.size, "kept": np.flatnonzero(circuit.live).tolist()}
    return known | kept | yardsticks(model, behaviour, circuit, fresh)


def drawn(model: Model, behaviour: Behaviour, draw: int) -> tuple[Engine, Pairs]:
    """The discovery pairs."""
    assert model.tokenizer is not None
    pairs = behaviour.pairs(model.tokenizer, PAIRS, draw, part="discovery", n_ctx=model.spec.n_ctx)
    return Engine(model, pairs), pairs


def yardsticks(model: Model, behaviour: Behaviour, ranked: np.ndarray | Circuit, fresh: int) -> Row:
    """CMD and CPR on so many fresh pairs; nothing on none."""
    if not fresh:
        return {}
    assert model.tokenizer is not None
    pairs = behaviour.pairs(model.tokenizer, fresh, TEST_SEED, n_ctx=model.spec.n_ctx)
    found = benchmark_metrics(Engine(model, pairs), pairs, ranked)
    return {"fresh": fresh, "cmd": found.cmd, "cpr": found.cpr, "f_absolute": found.faithfulness_absolute}


# ---- cells ----------------------------------------------------------------------------------------------------------


def run(given: argparse.Namespace) -> None:
    """The cells that are not there yet, draw by draw."""
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
                done = read(path) if path.exists() else []
                if cell in [{key: row[key] for key in cell} for row in done]:
                    continue
                row = cell | about | measure(model, behaviour, draw, method, given.fresh)
                append(path, [row])
                print(*cell.values(), f"{row['passes']:.0f} passes, {row['seconds']:.0f} s", flush=True)


# ---- tables ---------------------------------------------------------------------------------------------------------


def tables(rows: list[Row]) -> str:
    return ""


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
        "--fresh", type=int, default=20, help="pairs that CMD and CPR are measured on; 0: leave them out"
    )
    given = parser.parse_args()
    if given.what == "tables":
        (given.out / "tables.md").write_text(tables(read(given.out / "rows.jsonl")))
    else:
        run(given)


if __name__ == "__main__":
    main()
