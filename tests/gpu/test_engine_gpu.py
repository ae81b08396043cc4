"""The fused kernels against their slow twins and against float64 on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mechrl.engine import Engine, ManyEngines, kernels
from tests.tiny import KINDS, tiny, tiny_pairs

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("length", [6, 20, 31])
def test_fused_kernels_equal_the_plain_path_and_the_cpu(kind, ragged, length, monkeypatch):
    pairs = tiny_pairs(5, length, 1, ragged, prefix=2)
    exact, model = tiny(kind), tiny(kind, dtype=torch.float32).to("cuda")
    rng = np.random.default_rng(0)
    masks = rng.random((24, model.graph.n_edges)) < rng.random((24, 1)) ** 2
    masks[3] = False
    expected = Engine(exact, pairs).logits(masks)
    fused = Engine(model, pairs, tf32=False).logits(masks)
    assert (fused.cpu() - expected).abs().max() < 1e-4
    rough = Engine(model, pairs, tf32=True).logits(masks)
    monkeypatch.setattr(kernels, "available", lambda *_: False)
    plain = Engine(model, pairs, tf32=False).logits(masks)
    assert (plain.cpu() - expected).abs().max() < 1e-4
    # TF32 truncates to 10 bits; how far that carries through a random model is the model's affair: cuBLAS is the measure
    plain_rough = Engine(model, pairs, tf32=True).logits(masks)
    assert (rough.cpu() - expected).norm() < 3 * (plain_rough.cpu() - expected).norm()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_and_prefixes_on_the_device(kind):
    pairs, exact = tiny_pairs(4, 8, 2, ragged=True), tiny(kind)
    model = tiny(kind, dtype=torch.float32).to("cuda")
    engine, reference, graph = Engine(model, pairs, tf32=False), Engine(exact, pairs), exact.graph
    weights = np.random.default_rng(0).random((3, graph.n_edges))
    ours, expected = engine.gradient(weights).gradient.cpu(), reference.gradient(weights).gradient
    assert (ours - expected).norm() / expected.norm() < 1e-4
    upper = np.flatnonzero(graph.edge_stage >= 3)
    masks = np.random.default_rng(1).random((6, len(upper))) < 0.5
    prefix = engine.prefix(np.ones(graph.n_edges, bool))
    expected = reference.kl(masks, upper, reference.prefix(np.ones(graph.n_edges, bool)), 3)
    assert (engine.kl(masks, upper, prefix, 3).cpu() - expected).abs().max() < 1e-4


def test_a_chunk_that_does_not_fit_is_split(monkeypatch):
    pairs, model = tiny_pairs(), tiny("gpt2", dtype=torch.float32).to("cuda")
    masks = np.random.default_rng(0).random((16, model.graph.n_edges)) < 0.5
    engine = Engine(model, pairs)
    expected = engine.kl(masks)
    run = engine._outputs

    def short_of_memory(plan, reduce, given):
        if plan.n_circuits > 4:
            raise torch.cuda.OutOfMemoryError
        return run(plan, reduce, given)

    monkeypatch.setattr(engine, "_outputs", short_of_memory)
    assert torch.allclose(engine.kl(masks), expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_circuits_of_many_behaviours_in_one_call(kind):
    """Batches of different lengths, sizes and raggedness; candidate sets of different sizes; several chunks."""
    exact, model, rng = tiny(kind), tiny(kind, dtype=torch.float32).to("cuda"), np.random.default_rng(0)
    batches = [tiny_pairs(4, 6, 1, prefix=1), tiny_pairs(3, 31, 2, ragged=True, prefix=3), tiny_pairs(5, 4, 3)]
    E = model.graph.n_edges
    edges = [np.sort(rng.choice(E, n, replace=False)) for n in (E // 2, E // 3, E)]
    which, masks = rng.integers(0, 3, 150), rng.random((150, E)) < rng.random((150, 1))
    masks[3] = False
    many = ManyEngines([Engine(model, pairs) for pairs in batches], edges)
    expected = ManyEngines([Engine(exact, pairs) for pairs in batches], edges)
    assert many.fused and not expected.fused
    assert np.abs(many.faithfulness(which, masks) - expected.faithfulness(which, masks)).max() < 1e-4
    assert [e.passes for e in many.engines] == [e.passes for e in expected.engines]


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_stays_close(kind):
    """Ten bits of mantissa everywhere: on these random models f moves by less than a hundredth."""
    exact, model, rng = tiny(kind), tiny(kind, dtype=torch.float32).to("cuda"), np.random.default_rng(0)
    batches = [tiny_pairs(4, 6, 1, prefix=1), tiny_pairs(3, 31, 2, ragged=True, prefix=3)]
    E = model.graph.n_edges
    which, masks = rng.integers(0, 2, 40), rng.random((40, E)) < rng.random((40, 1))
    edges = [np.arange(E)] * 2
    half = ManyEngines([Engine(model, pairs, tf32=True, half=True) for pairs in batches], edges).faithfulness(which, masks)
    expected = ManyEngines([Engine(exact, pairs) for pairs in batches], edges).faithfulness(which, masks)
    assert 0 < np.abs(half - expected).max() < 1e-2
