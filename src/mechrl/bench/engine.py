"""How fast the engine is, next to a plain `transformers` forward of the same prompts in the same run."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from mechrl.behaviours import get_behaviour
from mechrl.engine import Engine
from mechrl.engine.engine import HasTokens
from mechrl.models.base import Model, Spec

CANDIDATES = 3000  # the paper's candidate set, K


@dataclass(frozen=True)
class RandomPairs:
    """Pairs for a model without a tokenizer: random tokens that differ in three places, as IOI's names do."""

    clean: list[list[int]]
    corrupt: list[list[int]]


def random_pairs(vocab_size: int, n: int, length: int) -> RandomPairs:
    rng = np.random.default_rng(0)
    clean = rng.integers(0, vocab_size, (n, length))
    corrupt = clean.copy()
    places = [2, 4, max(length - 6, 5)]  # position 0 is the opening token, position 1 the first word
    corrupt[:, places] = (clean[:, places] + rng.integers(1, vocab_size, (n, 3))) % vocab_size
    return RandomPairs(clean.tolist(), corrupt.tolist())


def prompts(model: Model) -> HasTokens:
    """20 IOI pairs, or random ones of 16 tokens for a model without a tokenizer."""
    if model.tokenizer is None:
        length = min(16, model.spec.n_ctx)
        return random_pairs(model.spec.vocab_size, 20, length)
    return get_behaviour("ioi").pairs(model.tokenizer, 20)


def sample_masks(
    scores: np.ndarray, n: int, keep: int, by_score: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """`n` circuits of `keep` edges out of a candidate set, the 3000 (or twice `keep`) edges of highest |score|: masks and edges.

    Uniform draws are what an agent meets that has learnt nothing yet; many of their edges lie on no path. With `by_score` a circuit is
    made of the highest scores, blurred by Gumbel noise: what a search ends up with, nearly all of it alive.
    """
    rng = np.random.default_rng(0)
    size = CANDIDATES if keep < CANDIDATES else 2 * keep
    edges = np.sort(np.argsort(-np.abs(scores))[:size])
    priority = rng.gumbel(size=(n, len(edges)))
    if by_score:
        priority += np.log(np.abs(scores[edges]) + 1e-30)
    masks = np.zeros((n, len(edges)), dtype=bool)
    np.put_along_axis(masks, np.argsort(-priority, axis=1)[:, :keep], True, axis=1)
    return masks, edges


def random_gpt2_small() -> Model:
    """GPT-2 small's shape with random weights: speed can be measured without its weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from mechrl.models import gpt2

    torch.manual_seed(0)
    module = GPT2LMHeadModel(GPT2Config())
    return gpt2.from_checkpoint(
        "gpt2-random", module.config, {k: v.detach() for k, v in module.state_dict().items()}
    )


def yardstick(spec: Spec, device: torch.device) -> torch.nn.Module:
    """`transformers`' own model of this shape, with random weights: time does not depend on their values."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    module: torch.nn.Module
    if spec.architecture == "gpt2":
        gpt2 = GPT2Config(
            n_layer=spec.n_layers,
            n_head=spec.n_heads,
            n_embd=spec.d_model,
            n_inner=spec.d_mlp,
            vocab_size=spec.vocab_size,
            n_positions=spec.n_ctx,
            bos_token_id=0,
            eos_token_id=0,
        )
        module = GPT2LMHeadModel(gpt2)
    else:
        llama = LlamaConfig(
            num_hidden_layers=spec.n_layers,
            num_attention_heads=spec.n_heads,
            num_key_value_heads=spec.n_kv_heads,
            hidden_size=spec.d_model,
            intermediate_size=spec.d_mlp,
            head_dim=spec.d_head,
            vocab_size=spec.vocab_size,
            tie_word_embeddings=True,
        )
        module = LlamaForCausalLM(llama)
    return torch.nn.Module.eval(torch.nn.Module.to(module, device))


def bench_engine(
    model: Model,
    pairs: HasTokens,
    batches: tuple[int, ...],
    repeats: int,
    tf32: bool = True,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Milliseconds a circuit for all edges, 3000 and 500 edges at several batch sizes; medians of `repeats` runs.

    `rows` has circuits drawn uniformly from the candidate set, `rows_by_score` those that follow the scores (`sample_masks`).
    """
    device = model.device
    engine = Engine(model, pairs, tf32=tf32)
    report("attribution: the candidate set is the highest |EAP| scores of these prompts")
    scores = engine.gradient(np.ones((1, model.graph.n_edges))).gradient[0].cpu().numpy()
    plain = _plain_forward(engine, pairs)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    yard = [_seconds(plain, device, repeats)]

    def measure(edges: int, n: int, by_score: bool) -> dict[str, Any]:
        row = _row(engine, scores, edges, n, by_score, repeats)
        yard.append(_seconds(plain, device, 1))
        kind = "by score" if by_score else "uniform"
        speed = f"{row['ms_per_circuit']:.3f} ms, {row['circuits_per_second']:.1f} circuits/s"
        report(f"{edges:>6} edges, {kind}, {n:>4} circuits a call: {speed}")
        return row

    whole = model.graph.n_edges
    sizes = [whole, *(size for size in (CANDIDATES, 500) if 2 * size <= whole)]
    few = [min(n, 128) for n in batches]
    rows = [measure(size, n, False) for size in sizes for n in (sorted({*few}) if size == whole else batches)]
    rows_by_score = [measure(size, n, True) for size in sizes[1:] for n in batches]
    yard_ms = 1000 * statistics.median(yard)
    for row in rows + rows_by_score:
        row["of_yardstick"] = round(row["ms_per_circuit"] / yard_ms, 4)
    return dict(
        model=model.name,
        device=torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        tf32=bool(tf32 and device.type == "cuda"),
        pairs=len(pairs.clean),
        longest_prompt=max(len(c) for c in pairs.clean),
        active_tokens=engine.cache.n_tokens,
        yardstick_ms=round(yard_ms, 4),
        peak_memory_mb=round(_peak_memory_mb(device), 1),
        rows=rows,
        rows_by_score=rows_by_score,
    )


def _plain_forward(engine: Engine, pairs: HasTokens) -> Callable[[], None]:
    """One forward of the clean prompts by `transformers`' own model of this shape."""
    model = engine.model
    longest = max(len(c) for c in pairs.clean)
    ids = torch.tensor([[*c, *[0] * (longest - len(c))] for c in pairs.clean], device=model.device)
    reference = yardstick(model.spec, model.device)

    def plain() -> None:
        with torch.no_grad(), engine._precision():
            reference(ids, use_cache=False, logits_to_keep=1)

    return plain


def _row(
    engine: Engine, scores: np.ndarray, edges: int, n: int, by_score: bool, repeats: int
) -> dict[str, Any]:
    masks, universe = sample_masks(scores, n, edges, by_score)
    if len(universe) == masks[0].sum():
        # identical circuits would be computed once: each lacks another low edge
        masks[np.arange(n), np.arange(n)] = False
    call = partial(engine.faithfulness, masks, universe)
    per_circuit = 1000 * _seconds(call, engine.model.device, repeats) / n
    return dict(
        edges=edges,
        live_edges=round(float(engine.graph.prune(masks[:8], universe).sum(1).mean()), 1),
        circuits=n,
        ms_per_circuit=round(per_circuit, 4),
        circuits_per_second=round(1000 / per_circuit, 2),
    )


def _peak_memory_mb(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median wall time of one call after a warm-up; every call ends with the device idle."""

    def once() -> float:
        begin = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    once()
    return statistics.median(once() for _ in range(repeats))
