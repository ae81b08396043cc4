"""Dense runs of a few circuits against the slow implementation and the engine's own gradients; and when the engine uses them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mechrl.engine import Engine
from mechrl.engine.dense import BUCKETS, FewCircuits, bucket_of
from mechrl.engine.run_gpu import GpuBackend
from tests.slow import slow_logits
from tests.tiny import KINDS, tiny, tiny_pairs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ragged", [False, True])
def test_boolean_and_real_masks_equal_the_slow_twin(kind, ragged):
    model, pairs, rng = tiny(kind), tiny_pairs(3, 6, 5, ragged), np.random.default_rng(0)
    engine, E = Engine(model, pairs), model.graph.n_edges
    few, every = FewCircuits(model, engine.cache), np.arange(E)
    for masks in (rng.random((2, E)) < [[0.1], [0.7]], rng.random((2, E))):
        with torch.no_grad():
            logits = model.unembed(few.final(masks, every))[:, engine.cache.inverse]
        for mask, ours in zip(masks, logits, strict=True):
            assert (ours - slow_logits(model, pairs, mask)).abs().max() < 1e-9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 3, 9, 17])
def test_every_bucket_has_the_engines_values_and_gradients(kind, n):
    """Buckets that are not full; reusing a run with other masks; subsets of edges; a gradient for an edge of weight 0."""
    model, pairs, rng = tiny(kind), tiny_pairs(3, 6, 3, ragged=True), np.random.default_rng(n)
    engine = Engine(model, pairs)
    few = FewCircuits(model, engine.cache)
    for size in (60, model.graph.n_edges):
        edges = np.sort(rng.choice(model.graph.n_edges, size, replace=False))
        weights = rng.random((n, size))
        weights[:, :5] = 0
        expected = engine.gradient(weights, edges)
        value, gradient = few.gradient(
            weights, edges, lambda final: engine.readout.objective(final, engine.kl_objective)
        )
        assert (value[1:] - expected.value).abs().max() < 1e-12
        assert (gradient - expected.gradient).abs().max() < 1e-12


def test_the_engine_gives_the_same_through_dense_runs():
    """As on a CUDA device, where a few circuits are run this way by default."""
    model, pairs, rng = tiny("llama-gqa"), tiny_pairs(4, 7, 1, ragged=True), np.random.default_rng(0)
    engine = Engine(model, pairs)
    gpu = GpuBackend(model, engine.cache, engine.readout, None, tf32=False, half=False)
    edges = np.sort(rng.choice(model.graph.n_edges, 80, replace=False))
    edge_set, _ = engine._edge_set(edges)
    masks = rng.random((3, 80)) < 0.6
    masks[1] = False
    with torch.no_grad():
        found = gpu.outputs_of_few(edge_set, masks, engine.readout.kl)
    assert torch.allclose(found, engine.kl(masks, edges), atol=1e-12)
    expected = engine.gradient(masks.astype(float), edges)
    ((value, gradient),), *_ = gpu.gradients(edge_set, masks.astype(float), [engine.kl_objective], False)
    assert torch.allclose(value, expected.value, atol=1e-12)
    assert torch.allclose(gradient, expected.gradient, atol=1e-12)


def test_buckets_and_what_is_left_to_plans():
    assert [bucket_of(n) for n in (1, 2, 4, 5, 64)] == [1, 4, 4, 16, 64]
    model, pairs = tiny("gpt2"), tiny_pairs(3)
    engine = Engine(model, pairs)

    def few(memory: int | None, half: bool = False) -> list[bool]:
        gpu = GpuBackend(model, engine.cache, engine.readout, memory, tf32=False, half=half)
        return [gpu.are_few(n, gradient=False) for n in (0, 1, BUCKETS[-1] + 1)]

    assert few(None) == [False, True, False]
    assert few(1) == [False, False, False]  # too large for the memory
    assert few(None, half=True) == [False, False, False]
