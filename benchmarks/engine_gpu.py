"""The engine on a CUDA device: parity, speed, and where the time goes.

    python benchmarks/engine_gpu.py OUT_DIR [gpt2-random smollm2]

Parity compares the device with float64 on the CPU. Speed is that of `mechrl bench engine`, and of gradients. The profile lists kernels for
one call of 128 circuits of 500 edges, and for their gradients. Writes OUT_DIR/engine-MODEL.json and prints the rest.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from mechrl.behaviours import get_behaviour
from mechrl.bench.engine import bench_engine, random_gpt2_small, random_pairs, sample_masks
from mechrl.engine import Engine, ManyEngines
from mechrl.engine.plan import make_plan
from mechrl.graph import EdgeSet
from mechrl.models import load_model


def parity(model, pairs) -> None:
    """f and mask gradients on the device against the CPU, with and without TF32."""
    graph = model.graph
    rng = np.random.default_rng(0)
    edges = np.sort(rng.choice(graph.n_edges, 3000, replace=False))
    masks = rng.random((3, 3000)) < np.array([0.2, 0.7, 1.0])[:, None]
    exact = Engine(model.to("cpu", torch.float64), pairs)
    f = exact.faithfulness(masks, edges)
    whole = np.ones((2, graph.n_edges), dtype=bool)
    whole[1, rng.choice(graph.n_edges, graph.n_edges // 3, replace=False)] = False
    f_whole = exact.faithfulness(whole)
    for tf32 in (False, True):
        engine = Engine(model, pairs, tf32=tf32)
        error = (engine.faithfulness(masks, edges).cpu() - f).abs().max().item()
        error_whole = (engine.faithfulness(whole).cpu() - f_whole).abs().max().item()
        logits = (engine.clean_logits.cpu() - exact.clean_logits).abs().max().item()
        where = f"{error:.2e} (candidate masks) {error_whole:.2e} (whole graph)"
        print(f"parity {model.name} tf32={tf32}: max|f - f64| {where}; clean logits {logits:.2e}")
    weights = rng.random((2, 3000))
    a = Engine(model, pairs, tf32=False).gradient(weights, edges).gradient.cpu()
    b = exact.gradient(weights, edges).gradient
    print(f"parity {model.name} gradient: relative error {((a - b).norm() / b.norm()).item():.2e}")


def where_the_time_goes(model, pairs, n: int = 128) -> None:
    engine = Engine(model, pairs, tf32=True)
    scores = engine.gradient(np.ones((1, model.graph.n_edges))).gradient[0].cpu().numpy()
    masks, edges = sample_masks(scores, n, 500, by_score=True)
    engine.faithfulness(masks, edges)
    edge_set = EdgeSet(model.graph, edges)
    begin = time.perf_counter()
    plan = make_plan(edge_set, masks)
    print(f"plan: {1000 * (time.perf_counter() - begin):.1f} ms for {n} circuits")
    N, B, d = engine.cache.n_tokens, engine.cache.n_pairs, model.spec.d_model
    full_edges = sum(len(s.full.slot) for s in plan.stages)
    full_jobs = sum(len(s.full) for s in plan.stages)
    mlps = sum(len(s.full) for s in plan.stages if s.kind == "mlp")
    mlps_last = sum(len(s.last) for s in plan.stages if s.kind == "mlp")
    heads = sum(len(s.heads_full) for s in plan.stages)
    width = (3 if model.mlp[0].W_gate is not None else 2) * d * model.spec.d_mlp
    flops = 2 * (N * mlps + B * mlps_last) * width + 2 * N * d * model.spec.d_head * (
        full_jobs - mlps + heads
    )
    flops += 2 * n * B * d * model.spec.vocab_size
    bytes_ = 4 * N * d * (full_edges + 2 * full_jobs + plan.n_full_slots)
    print(
        f"per circuit: {full_edges / n:.0f} edges read at {N} tokens, {full_jobs / n:.0f} streams, {mlps / n:.1f} MLPs at all"
        f" positions and {mlps_last / n:.1f} at the last; {flops / n / 1e9:.1f} GFLOP, {bytes_ / n / 1e6:.0f} MB of rows and streams"
    )
    from torch.profiler import ProfilerActivity, profile

    many, which = ManyEngines([engine], [edges]), np.zeros(n, dtype=np.int64)
    for call in (
        lambda: engine.faithfulness(masks, edges).cpu(),
        lambda: many.mask_gradients(which, masks, [0.5]),
    ):
        call()
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as p:
            call()
        print(p.key_averages().table(sort_by="self_cuda_time_total", row_limit=16, max_name_column_width=60))


def gradients(model, pairs) -> None:
    """Mask gradients beside a forward of the same circuits; one gradient of many edges; a step of attribution on the whole graph."""
    engine = Engine(model, pairs, tf32=True)
    scores = engine.gradient(np.ones((1, model.graph.n_edges))).gradient[0].cpu().numpy()
    for n in (1, 16, 128):
        masks, edges = sample_masks(scores, n, 500, by_score=True)
        many, which = ManyEngines([engine], [edges]), np.zeros(n, dtype=np.int64)
        forward = seconds(many.faithfulness, which, masks)
        both = seconds(many.mask_gradients, which, masks, [0.5])
        print(
            f"gradients {model.name}: {n} of 500 edges: {n / both:.0f} circuits/s, {both / forward:.1f} times the forward"
        )
    weights = np.random.default_rng(0).random((1, len(edges)))
    one = seconds(engine.gradient, weights, edges)
    whole = seconds(engine.gradient, np.ones((5, model.graph.n_edges)), None, None, True) / 5
    print(
        f"gradients {model.name}: one of {len(edges)} edges {1e3 * one:.1f} ms, of the whole graph {1e3 * whole:.1f} ms"
    )


def seconds(f: Callable, *args) -> float:
    """The mean time of a call after warming up."""
    f(*args)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(10):
        f(*args)
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / 10


def ceilings() -> None:
    a = torch.randn(8192, 8192, device="cuda")
    b = torch.empty_like(a)
    big = torch.randn(2**30, device="cuda")
    out = torch.empty_like(big)
    torch.backends.cuda.matmul.allow_tf32 = True
    copy, mm = seconds(out.copy_, big), seconds(lambda: torch.mm(a, a, out=b))
    print(
        f"ceilings: copy {2 * big.nbytes / copy / 1e12:.2f} TB/s, TF32 product {2 * 8192**3 / mm / 1e12:.0f} TFLOP/s"
    )


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or ["gpt2-random", "smollm2"]:
        if name == "gpt2-random":
            model = random_gpt2_small().to("cuda")
            pairs = random_pairs(model.spec.vocab_size, 20, 16)
        else:
            model = load_model(name, device="cuda")
            assert model.tokenizer is not None
            pairs = get_behaviour("ioi").pairs(model.tokenizer, 20)
        parity(model, pairs)
        result = bench_engine(model, pairs, (1, 16, 128, 2048), 3, report=print)
        (out / f"engine-{name}.json").write_text(json.dumps(result, indent=1) + "\n")
        print({k: v for k, v in result.items() if k != "rows"})
        gradients(model, pairs)
        where_the_time_goes(model, pairs)
    ceilings()


if __name__ == "__main__":
    main()
