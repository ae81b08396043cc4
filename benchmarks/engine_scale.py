"""How the engine's time and memory grow with edges, layers and pairs, and what larger models need.

    python benchmarks/engine_scale.py growth OUT_DIR        # growth.json, with the fitted exponents
    python benchmarks/engine_scale.py shapes OUT_DIR qwen2.5-0.5b llama-3.2-1b …    # or a .gguf file, or a name as in `mechrl models`
    python benchmarks/engine_scale.py tables OUT_DIR        # prints the tables from stored results. make.py draws growth.svg

Each case runs in its own process, so that peak memory can be measured per case. Weights are random unless a model is loaded. Circuits
keep the edges of highest |EAP|. Times are the fastest of three calls; on a CPU they are CPU seconds of one thread, which other processes
hardly affect. Shapes run on 5 pairs on a CPU, on 20 on a GPU.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mechrl.behaviours import get_behaviour
from mechrl.bench.engine import random_pairs
from mechrl.bench.search import best
from mechrl.engine import Engine
from mechrl.engine.estimate import estimate
from mechrl.models import load_model
from mechrl.models.random import SHAPES, random_model
from mechrl.report.figures import draw

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLOCK = time.perf_counter if DEVICE == "cuda" else time.process_time
PAIRS = 20 if DEVICE == "cuda" else 5  # of a shape
TINY = replace(SHAPES["smollm2-135m"], n_layers=4, d_model=128, d_mlp=256, n_heads=4, n_kv_heads=2, d_head=32, vocab_size=1000)  # fmt: skip
BASE = replace(SHAPES["smollm2-135m"], n_layers=8, vocab_size=8000)


def case(name: str, layers: int = 0, pairs: int = 20, edges: tuple[int, ...] = (500,)) -> dict[str, Any]:
    """One model and batch: circuits of so many edges, attribution's step on the whole graph, peak memory."""
    shapes = {"tiny": TINY, "base": BASE, **SHAPES}
    if DEVICE == "cpu":
        torch.set_num_threads(1)
    begin = CLOCK()
    if name in shapes:
        spec = shapes[name] if not layers else replace(shapes[name], n_layers=layers)
        model = random_model(spec, name, device=DEVICE)
        batch: Any = random_pairs(spec.vocab_size, pairs, 16)
    else:
        model = load_model(name, device=DEVICE)
        batch = get_behaviour("ioi").pairs(model.tokenizer, pairs)
    loading = CLOCK() - begin
    engine, graph = Engine(model, batch, tf32=True), model.graph
    after_loading = peak()
    whole = np.ones((1, graph.n_edges))
    begin = CLOCK()
    scores = engine.gradient(whole, None, lambda logits: logits[..., 0] - logits[..., 1]).gradient[0]
    attribution = CLOCK() - begin
    after_attribution = peak()
    order = np.argsort(-scores.abs().cpu().numpy())
    rows = []
    for n in (*(n for n in edges if n < graph.n_edges), graph.n_edges):
        chosen = np.sort(order[:n])
        circuit = partial(engine.kl, np.ones((1, n), dtype=bool), chosen)
        seconds = best(circuit, model.device, clock=CLOCK)
        rows.append(dict(edges=n, ms=1000 * seconds))
    expected = asdict(estimate(engine))
    del expected["seconds_per_pass"]  # wall time; the CPU seconds above are better
    return dict(
        model=Path(name).stem if name.endswith(".gguf") else name,
        device=torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu",
        threads=torch.get_num_threads(),
        layers=graph.n_layers,
        graph_edges=graph.n_edges,
        pairs=len(batch.clean),
        active_tokens=engine.cache.n_tokens,
        loading_seconds=loading,
        attribution_seconds=attribution,
        rows=rows,
        peak_gb=dict(loaded=after_loading, attribution=after_attribution, end=peak()),
        estimate=expected,
    )


def peak() -> float:
    """Peak GB of the device, or of the process if there is none."""
    if DEVICE == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def alone(**of: Any) -> dict[str, Any]:
    """`case` in a process of its own."""
    command = [sys.executable, __file__, "case", json.dumps(of)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    times = ", ".join(f"{row['edges']:,} edges {row['ms']:.0f} ms" for row in found["rows"])
    print(
        f"{found['model']}, {found['layers']} layers, {found['pairs']} pairs: {times};"
        f" attribution's step {found['attribution_seconds']:.2f} s, peak {found['peak_gb']['end']:.1f} GB",
        flush=True,
    )
    return found


def growth(out: Path, shape: str = "base") -> None:
    """Time against edges, layers and pairs, one at a time; exponents by least squares on logarithms."""
    by_edges = alone(name=shape, layers=8, edges=(60, 250, 500, 1000, 4000))
    by_layers = [alone(name=shape, layers=n, edges=()) if n != 8 else by_edges for n in (2, 4, 8, 16)]
    by_pairs = [alone(name=shape, pairs=n) if n != 20 else by_edges for n in (5, 10, 20, 40)]
    lines = {
        "edges of one circuit": [(row["edges"], row["ms"]) for row in by_edges["rows"]],
        "layers, whole graph": [(one["layers"], one["rows"][-1]["ms"]) for one in by_layers],
        "layers, attribution's step": [
            (one["layers"], 1000 * one["attribution_seconds"]) for one in by_layers
        ],
        "pairs, 500 edges": [
            (one["pairs"], row["ms"]) for one in by_pairs for row in one["rows"] if row["edges"] == 500
        ],
        "pairs, whole graph": [(one["pairs"], one["rows"][-1]["ms"]) for one in by_pairs],
    }
    fitted = {name: float(np.polyfit(*np.log(np.array(points).T), 1)[0]) for name, points in lines.items()}
    for name, exponent in fitted.items():
        print(f"time ~ ({name})^{exponent:.2f}")
    cases = [*by_layers, *(one for one in by_pairs if one is not by_edges)]
    (out / "growth.json").write_text(
        json.dumps(dict(exponents=fitted, points=lines, cases=cases), indent=1) + "\n"
    )


def drawing(growth: dict[str, Any]) -> str:
    """growth.json as an SVG."""
    alt = "Milliseconds against edges, layers and pairs, both axes logarithmic, with fitted exponents."
    about = ("growth", "Time as the graph grows", "", alt, growth["points"])
    command = "python benchmarks/engine_scale.py growth benchmarks/engine"
    return draw(*about, command, (9.0, 3.2), lambda canvas: paint(canvas, growth)).svg.decode()


def paint(canvas: Any, growth: dict[str, Any]) -> None:
    axes = canvas.subplots(1, 3, sharey=True)
    for axis, what in zip(axes, ("edges", "layers", "pairs"), strict=True):
        for name, points in growth["points"].items():
            if name.startswith(what):
                of = name.partition(", ")[2] or "of one circuit"
                axis.loglog(*zip(*points, strict=True), "o-", label=f"{of}: {growth['exponents'][name]:.2f}")
        axis.set_xlabel(what)
        axis.legend(title="exponent")
    axes[0].set_ylabel("milliseconds")


def tables(out: Path) -> str:
    """Of growth.json and the shapes."""
    text = [
        "# Time and memory as models grow",
        "",
        "Printed by `python benchmarks/engine_scale.py tables`.",
        "",
    ]
    if (out / "growth.json").exists():
        growth = json.loads((out / "growth.json").read_text())
        device = growth["cases"][0]["device"]
        text += [f"SmolLM2's width, random weights, {device}: time ~ sizeᵃ ([plot](growth.svg)).", ""]
        text += row("size", "from", "to", "a"), row(*["---"] * 4)
        for name, points in growth["points"].items():
            ends = (f"{x:,}: {ms:,.0f} ms" for x, ms in (points[0], points[-1]))
            text.append(row(name, *ends, f"{growth['exponents'][name]:.2f}"))
        text.append("")
    heads = (
        "model",
        "device",
        "pairs",
        "edges",
        "weights, GB",
        "one circuit, ms",
        "attribution's step, s",
        "peak, GB",
    )
    shapes = [json.loads(path.read_text()) for path in sorted(out.glob("shape-*.json"))]
    text += [row(*heads), row(*["---"] * len(heads)), *map(_of_shape, shapes), ""] if shapes else []
    return "\n".join(text)


def _of_shape(found: dict[str, Any]) -> str:
    times = ", ".join(f"{one['ms']:,.0f} of {one['edges']:,} edges" for one in found["rows"])
    weights, seconds, most = (
        found["estimate"]["model_bytes"] / 2**30,
        found["attribution_seconds"],
        found["peak_gb"]["end"],
    )
    about = found["model"], found["device"], str(found["pairs"]), f"{found['graph_edges']:,}"
    return row(*about, f"{weights:.1f}", times, f"{seconds:.1f}", f"{most:.1f}")


def row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    what, rest = sys.argv[1], sys.argv[2:]
    if what == "case":
        print(json.dumps(case(**json.loads(rest[0]))))
        return
    out = Path(rest[0])
    out.mkdir(parents=True, exist_ok=True)
    if what == "tables":
        print(tables(out), end="")
    if what == "growth":
        growth(out, *rest[1:])
    for name in rest[1:] if what == "shapes" else []:
        found = alone(name=name, pairs=PAIRS, edges=(60, 500, 3000))
        (out / f"shape-{Path(name).name.removesuffix('.gguf')}-{DEVICE}.json").write_text(
            json.dumps(found, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
