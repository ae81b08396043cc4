"""The fused kernels against slow implementations and against float64 on the CPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mechrl.engine import Engine, ManyEngines, kernels, run_gpu
from mechrl.engine import many as module_of_many
from mechrl.engine.memory import budget
from tests.many import gains_of, mask_gradients
from tests.tiny import KINDS, TinyPairs, tiny, tiny_pairs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def planned(monkeypatch):
    """Runs even a few circuits through plans, unless a test says otherwise."""
    monkeypatch.setattr(run_gpu, "MOST", 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 4, 13, 16])
def test_few_circuits_without_a_plan_equal_the_cpu(kind, n, monkeypatch):
    """Captured once, replayed with other masks; boolean and real ones; subsets of edges."""
    monkeypatch.setattr(run_gpu, "MOST", 16)
    pairs, exact, rng = tiny_pairs(5, 9, 2, ragged=True), tiny(kind), np.random.default_rng(n)
    engine, reference = Engine(tiny(kind, dtype=torch.float32).to("cuda"), pairs), Engine(exact, pairs)
    for size in (60, 60, exact.graph.n_edges):
        edges = np.sort(rng.choice(exact.graph.n_edges, size, replace=False))
        weights = rng.random((n, size))
        assert (engine.kl(weights < 0.5, edges).cpu() - reference.kl(weights < 0.5, edges)).abs().max() < 1e-4
        found, expected = engine.gradient(weights, edges), reference.gradient(weights, edges)
        assert (found.value.cpu() - expected.value).abs().max() < 1e-4
        assert _off(found.gradient, expected.gradient) < 1e-4
    assert engine.gpu.few._runs


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
    # TF32 truncates to 10 bits; how far the error propagates depends on the random model, so cuBLAS is the reference
    plain_rough = Engine(model, pairs, tf32=True).logits(masks)
    assert (rough.cpu() - expected).norm() < 3 * (plain_rough.cpu() - expected).norm()


def test_an_engine_keeps_to_the_share_of_the_memory_that_its_process_may_have():
    model, pairs = tiny("llama", dtype=torch.float32).to("cuda"), tiny_pairs(5, 6, 1)
    engine = Engine(model, pairs)
    _, total = torch.cuda.mem_get_info()
    try:
        torch.cuda.set_per_process_memory_fraction(0.02)
        assert 0 < budget(engine.model.device) <= 0.4 * 0.02 * total
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def _off(ours: torch.Tensor | np.ndarray, expected: torch.Tensor | np.ndarray) -> float:
    """Relative error."""
    difference = torch.as_tensor(ours).double().cpu() - torch.as_tensor(expected)
    return float(difference.norm() / torch.as_tensor(expected).norm())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("length", [6, 20])
def test_gradients_equal_those_of_the_cpu(kind, ragged, length, monkeypatch):
    """Real-valued weights including zeros, for few and for all edges; several chunks; any objective; bit-identical when repeated."""
    pairs, exact, rng = tiny_pairs(5, length, 2, ragged, prefix=2), tiny(kind), np.random.default_rng(0)
    model, E = tiny(kind, dtype=torch.float32).to("cuda"), exact.graph.n_edges
    engine, reference = Engine(model, pairs, tf32=False), Engine(exact, pairs)
    assert engine.fused
    for n in (8, E // 4, E):
        edges = rng.permutation(E)[:n]
        weights = 1.5 * rng.random((4, n))
        weights[:, : n // 5] = 0
        ours, expected = engine.gradient(weights, edges), reference.gradient(weights, edges)
        assert (ours.value.cpu() - expected.value).abs().max() < 1e-4
        error = (ours.gradient.cpu() - expected.gradient).norm()
        assert error < 1e-4 * expected.gradient.norm() + 1e-6  # with few edges, all gradients may be zero
        assert torch.equal(engine.gradient(weights, edges).gradient, ours.gradient)
        alone = Engine(model, pairs, tf32=False, memory_bytes=1).gradient(weights, edges)
        assert torch.allclose(alone.gradient, ours.gradient, atol=1e-5)
    whole = rng.random((2, E))

    def difference(logits):
        return logits[..., 3] - logits[..., 7]

    for against_full in (False, True):
        expected = reference.gradient(whole, None, difference, against_full).gradient
        assert _off(engine.gradient(whole, None, difference, against_full).gradient, expected) < 1e-4
    expected = reference.gradient(whole).gradient
    rough = _off(Engine(model, pairs, tf32=True).gradient(whole).gradient, expected)
    # TF32 loses up to 2^-10 of each number, in Triton always towards zero, so errors add up: three layers forward and backward are some
    # thirty products in sequence
    assert rough < 30 * 2**-10
    monkeypatch.setattr(kernels, "available", lambda *_: False)
    assert _off(Engine(model, pairs, tf32=False).gradient(whole).gradient, expected) < 1e-4


@pytest.mark.parametrize("length", [33, 70, 128])
def test_gradients_of_long_prompts(length, monkeypatch):
    """The keys and values of a whole prompt are one tile; queries come in several."""
    exact = tiny("llama-gqa")
    exact = replace(exact, spec=replace(exact.spec, n_ctx=length))
    pairs = tiny_pairs(3, length, 2, ragged=True, prefix=2)
    weights = np.random.default_rng(0).random((2, exact.graph.n_edges))
    expected = Engine(exact, pairs).gradient(weights).gradient
    model = exact.to("cuda", torch.float32)
    assert Engine(model, pairs).fused
    assert _off(Engine(model, pairs, tf32=False).gradient(weights).gradient, expected) < 1e-4
    rough = _off(Engine(model, pairs, tf32=True).gradient(weights).gradient, expected)
    monkeypatch.setattr(kernels, "available", lambda *_: False)
    # cuBLAS rounds where Triton truncates: at most half the error per product, and of either sign
    assert rough < 5 * _off(Engine(model, pairs, tf32=True).gradient(weights).gradient, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_prefixes_on_the_device(kind):
    pairs, exact = tiny_pairs(4, 8, 2, ragged=True), tiny(kind)
    model = tiny(kind, dtype=torch.float32).to("cuda")
    engine, reference, graph = Engine(model, pairs, tf32=False), Engine(exact, pairs), exact.graph
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
    run = engine.gpu.outputs

    def short_of_memory(plan, reduce, given):
        if plan.n_circuits > 4:
            raise torch.cuda.OutOfMemoryError
        return run(plan, reduce, given)

    monkeypatch.setattr(engine.gpu, "outputs", short_of_memory)
    assert torch.allclose(engine.kl(masks), expected, atol=1e-5)


def test_a_chunk_of_gradients_that_does_not_fit_is_split(monkeypatch):
    pairs, model = tiny_pairs(), tiny("gpt2", dtype=torch.float32).to("cuda")
    weights = np.random.default_rng(0).random((16, model.graph.n_edges))
    engine = Engine(model, pairs)
    expected = engine.gradient(weights)
    make = engine.gpu.gradient_run

    def short_of_memory(edge_set, n_circuits):
        if n_circuits > 3:
            raise torch.cuda.OutOfMemoryError
        return make(edge_set, n_circuits)

    monkeypatch.setattr(engine.gpu, "gradient_run", short_of_memory)
    found = engine.gradient(weights)
    assert torch.allclose(found.gradient, expected.gradient, atol=1e-5) and torch.allclose(
        found.value, expected.value, atol=1e-5
    )


@pytest.mark.parametrize("kind", KINDS)
def test_circuits_of_many_behaviours_in_one_call(kind):
    """Batches of different lengths, sizes and raggedness; candidate sets of different sizes; several chunks."""
    exact, model, rng = tiny(kind), tiny(kind, dtype=torch.float32).to("cuda"), np.random.default_rng(0)
    batches = [
        tiny_pairs(4, 6, 1, prefix=1),
        tiny_pairs(3, 31, 2, ragged=True, prefix=3),
        tiny_pairs(5, 4, 3),
    ]
    E = model.graph.n_edges
    edges = [np.sort(rng.choice(E, n, replace=False)) for n in (E // 2, E // 3, E)]
    which, masks = rng.integers(0, 3, 150), rng.random((150, E)) < rng.random((150, 1))
    masks[3] = False
    many = ManyEngines([Engine(model, pairs) for pairs in batches], edges)
    expected = ManyEngines([Engine(exact, pairs) for pairs in batches], edges)
    assert many.fused and not expected.fused
    assert np.abs(many.faithfulness(which, masks) - expected.faithfulness(which, masks)).max() < 1e-4
    assert [e.passes for e in many.engines] == [e.passes for e in expected.engines]


def test_a_chunk_of_many_behaviours_that_does_not_fit_is_split(monkeypatch):
    model, rng = tiny("gpt2", dtype=torch.float32).to("cuda"), np.random.default_rng(0)
    batches, E = [tiny_pairs(4, 6, 1, prefix=1), tiny_pairs(5, 4, 3)], model.graph.n_edges
    many = ManyEngines([Engine(model, pairs, tf32=False) for pairs in batches], [np.arange(E)] * 2)
    which, masks = rng.integers(0, 2, 20), rng.random((20, E)) < 0.5
    f, gains = many.faithfulness(which, masks), gains_of(many, which, masks)
    for name in ("_chunk", "_gradient_chunk"):
        run = getattr(many, name)

        def short_of_memory(which, *more, run=run):
            if len(which) > 3:
                raise torch.cuda.OutOfMemoryError
            return run(which, *more)

        monkeypatch.setattr(many, name, short_of_memory)
    assert np.allclose(many.faithfulness(which, masks), f, atol=1e-5)
    assert np.allclose(gains_of(many, which, masks), gains, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_mask_gradients_of_many_behaviours_in_one_call(kind, monkeypatch):
    """As above; pairs that occur twice count twice; half-precision engines have MLPs of 11 bits, through three layers and back."""
    exact, model, rng = tiny(kind), tiny(kind, dtype=torch.float32).to("cuda"), np.random.default_rng(0)
    some = tiny_pairs(3, 31, 2, ragged=True, prefix=3)
    twice = TinyPairs([*some.clean, some.clean[0]], [*some.corrupt, some.corrupt[0]])
    batches = [tiny_pairs(4, 6, 1, prefix=1), twice, tiny_pairs(5, 4, 3)]
    E = model.graph.n_edges
    edges = [np.sort(rng.choice(E, n, replace=False)) for n in (E // 2, 2 * E // 3, E)]
    which, masks = rng.integers(0, 3, 40), rng.random((40, E)) < rng.random((40, 1))
    masks[3] = False
    many = ManyEngines([Engine(model, pairs) for pairs in batches], edges)
    expected = ManyEngines([Engine(exact, pairs) for pairs in batches], edges)
    assert many.fused and not expected.fused
    scores = mask_gradients(expected, which, masks, [0.3, 0.9])
    ours = mask_gradients(many, which, masks, [0.3, 0.9])
    assert ours.shape == masks.shape and _off(ours, scores) < 1e-4
    gains = gains_of(expected, which, masks)
    assert _off(gains_of(many, which, masks), gains) < 1e-4
    assert [e.passes for e in many.engines] == pytest.approx([e.passes for e in expected.engines])
    monkeypatch.setattr(module_of_many, "_GRADIENT_MEMORY", 1)  # every circuit by itself
    assert _off(mask_gradients(many, which[:6], masks[:6], [0.3, 0.9]), scores[:6]) < 1e-4
    assert _off(gains_of(many, which[:6], masks[:6]), gains[:6]) < 1e-4
    again = [9 * e.n_pairs / 20 * (which[:6] == g).sum() for g, e in enumerate(many.engines)]  # by themselves
    assert [e.passes for e in many.engines] == pytest.approx(
        [e.passes + a for e, a in zip(expected.engines, again, strict=True)]
    )
    half = ManyEngines([Engine(model, pairs, half=True) for pairs in batches], edges)
    half.faithfulness(which, masks)
    assert _off(mask_gradients(half, which[:6], masks[:6], [0.3, 0.9]), scores[:6]) < 12 * 2**-11
    masks[:3] = False  # of circuits without an edge no MLP has a gradient
    assert _off(gains_of(half, which[:6], masks[:6]), gains_of(expected, which[:6], masks[:6])) < 12 * 2**-11


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_stays_close(kind):
    """Ten bits of mantissa everywhere: on these random models f changes by less than a hundredth."""
    exact, model, rng = tiny(kind), tiny(kind, dtype=torch.float32).to("cuda"), np.random.default_rng(0)
    batches = [tiny_pairs(4, 6, 1, prefix=1), tiny_pairs(3, 31, 2, ragged=True, prefix=3)]
    E = model.graph.n_edges
    which, masks = rng.integers(0, 2, 40), rng.random((40, E)) < rng.random((40, 1))
    edges = [np.arange(E)] * 2
    half = ManyEngines([Engine(model, pairs, tf32=True, half=True) for pairs in batches], edges).faithfulness(
        which, masks
    )
    expected = ManyEngines([Engine(exact, pairs) for pairs in batches], edges).faithfulness(which, masks)
    assert 0 < np.abs(half - expected).max() < 1e-2
