"""Circuits of several behaviours in one call, as far as no CUDA device is needed; tests/gpu tests the fused path."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mechrl.attribution import integrated_mask_gradients
from mechrl.engine import Engine, ManyEngines
from mechrl.engine.pairs_cache import cache_pairs, join
from mechrl.engine.plan import make_plan
from mechrl.graph import EdgeSet
from tests.many import gains_of, mask_gradients
from tests.tiny import KINDS, tiny, tiny_pairs


def _batches():
    return [tiny_pairs(4, 6, 1, prefix=1), tiny_pairs(3, 11, 2, ragged=True, prefix=3), tiny_pairs(5, 4, 3)]


@pytest.mark.parametrize("kind", KINDS)
def test_many_engines_equal_each_engine_alone(kind):
    model, rng = tiny(kind), np.random.default_rng(0)
    E = model.graph.n_edges
    edges = [np.sort(rng.choice(E, n, replace=False)) for n in (E // 2, E // 3, E)]
    which, masks = rng.integers(0, 3, 11), rng.random((11, E)) < rng.random((11, 1))
    many = ManyEngines([Engine(model, pairs) for pairs in _batches()], edges)
    f = many.faithfulness(which, masks)
    alone = [Engine(model, pairs) for pairs in _batches()]
    for i, g in enumerate(which):
        assert f[i] == pytest.approx(
            float(alone[g].faithfulness(masks[i, : len(edges[g])], edges[g])[0]), abs=1e-12
        )
    assert [e.passes for e in many.engines] == pytest.approx([e.passes for e in alone])


@pytest.mark.parametrize("kind", KINDS)
def test_mask_gradients_are_those_of_attribution_and_add_up_to_f(kind):
    model, rng = tiny(kind), np.random.default_rng(0)
    E = model.graph.n_edges
    edges = [np.sort(rng.choice(E, n, replace=False)) for n in (E // 2, E // 3, E)]
    which, masks = np.array([2, 0, 1, 1, 2]), rng.random((5, E)) < 0.5
    masks[3] = False
    many = ManyEngines([Engine(model, pairs) for pairs in _batches()], edges)
    scores = mask_gradients(many, which, masks, (np.arange(3) + 0.5) / 3)
    assert [e.passes for e in many.engines] == pytest.approx(
        [9 * (which == g).sum() * e.n_pairs / 20 for g, e in enumerate(many.engines)]
    )
    assert scores.shape == masks.shape and not scores[3].any()
    for i, g in enumerate(which):
        n, engine = len(edges[g]), many.engines[g]
        expected = integrated_mask_gradients(engine, edges[g], masks[i, :n], steps=3) / engine.kl_cut
        assert np.allclose(scores[i, :n], expected, atol=1e-12) and not scores[i, n:].any()
    fine = mask_gradients(many, which, masks, (np.arange(40) + 0.5) / 40)
    for i, g in enumerate(which):
        f = many.engines[g].faithfulness(masks[i, : len(edges[g])], edges[g])
        assert fine[i].sum() == pytest.approx(float(f[0]), abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_gains_are_what_f_changes_by_to_first_order(kind):
    """By finite differences of f in single edges, inside and outside the circuit."""
    model, rng = tiny(kind), np.random.default_rng(0)
    E = model.graph.n_edges
    edges = [np.sort(rng.choice(E, n, replace=False)) for n in (E // 2, E // 3, E)]
    which, masks = np.array([2, 0, 1]), rng.random((3, E)) < 0.5
    many = ManyEngines([Engine(model, pairs) for pairs in _batches()], edges)
    gains = gains_of(many, which, masks)
    assert [e.passes for e in many.engines] == pytest.approx([3 * e.n_pairs / 20 for e in many.engines])
    for i, g in enumerate(which):
        n, engine = len(edges[g]), many.engines[g]
        assert not gains[i, n:].any()
        for j in rng.choice(n, 6, replace=False):
            weights = np.repeat(masks[i : i + 1, :n].astype(np.float64), 2, axis=0)
            weights[:, j] += (-1e-5, 1e-5)
            kl = engine.gradient(weights, edges[g]).value.double().mean(1).numpy()
            assert gains[i, j] == pytest.approx(-(kl[1] - kl[0]) / 2e-5 / engine.kl_cut, rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_a_joined_cache_is_that_of_all_pairs_together(kind):
    """Joining equals caching the concatenated batch, except at positions after a prompt's end, which are never read."""
    model, batches = tiny(kind), _batches()
    engines = [Engine(model, pairs) for pairs in batches]
    joined = join([engine.cache for engine in engines])
    clean, corrupt = ([p for pairs in batches for p in getattr(pairs, side)] for side in ("clean", "corrupt"))
    whole = cache_pairs(model, clean, corrupt)
    places, tensors = (
        ("inverse", "token_place", "layout", "last_token", "last_position"),
        ("input_difference", "resid_final", "clean_logits"),
    )
    for name in places + tensors:
        assert torch.allclose(getattr(joined, name), getattr(whole, name)), name
    real = torch.arange(whole.n_positions) < whole.layout[:, 1:2]
    for ours, theirs in zip(joined.layers, whole.layers, strict=True):
        for name in ("q", "k", "v"):
            assert torch.allclose(getattr(ours, name)[:, real], getattr(theirs, name)[:, real])
        for name in ("resid_attention", "resid_mlp", "z", "mlp"):
            assert torch.allclose(getattr(ours, name), getattr(theirs, name))
        assert torch.allclose(ours.last.mlp, theirs.last.mlp)


def test_groups_share_nothing_and_each_is_planned_as_if_alone():
    graph = tiny("gpt2").graph
    rng = np.random.default_rng(1)
    masks = rng.random((12, graph.n_edges)) < 0.3
    group = np.arange(12) % 3
    masks[3:6] = masks[:3]  # the same circuit twice in every group
    masks[6:9] = masks[0]  # and once in all of them
    edges = EdgeSet(graph, np.arange(graph.n_edges))
    plan = make_plan(edges, masks, group=group)
    owners = [set(plan.row_of[group == g].flatten()) - {-1} for g in range(3)]
    assert not owners[0] & owners[1] and not owners[0] & owners[2] and not owners[1] & owners[2]
    alone = [make_plan(edges, masks[group == g]) for g in range(3)]
    assert len(plan.full_group) == sum(p.n_full_slots for p in alone)
    assert len(plan.last_group) == sum(p.n_last_slots for p in alone)
    assert plan.n_outputs == sum(p.n_outputs for p in alone)
    for g in range(3):
        assert (plan.full_group == g).sum() == alone[g].n_full_slots
        assert plan.output[g] == plan.output[g + 3]
