"""Matryoshka attribution: the soft top k and its gradient, nested planted circuits, determinism, resuming."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mechrl.attribution import integrated_mask_gradients
from mechrl.search.matryoshka import matryoshka, ranking_scores, soft_top, through
from mechrl.search.problem import State
from tests.planted import planted_chain, planted_parallel, planted_qkv
from tests.search.problems import names, planted_problem, tiny_problem


@given(st.integers(1, 60), st.floats(0.01, 0.99), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_the_soft_best_k_add_up_to_k_and_keep_the_order(n: int, part: float, seed: int) -> None:
    scores = np.random.default_rng(seed).normal(0, 3, n)
    mask = soft_top(scores, part * n)
    assert mask.sum() == pytest.approx(part * n, abs=1e-6)
    assert (np.diff(mask[np.argsort(scores)]) >= 0).all()
    np.testing.assert_allclose(soft_top(scores + 7, part * n), mask, atol=1e-7)  # only differences matter
    np.testing.assert_allclose(soft_top(np.zeros(n), part * n), part)
    assert (soft_top(scores, n) == 1).all()
    order = np.argsort(-scores)
    k = max(1, n // 2)
    hard = soft_top(1e4 * scores, k)  # with scores far apart, it is the hard top k
    assert set(np.flatnonzero(hard > 0.5)) == set(order[:k])


def test_the_gradient_passes_through_the_threshold() -> None:
    rng = np.random.default_rng(0)
    scores, slope = rng.normal(size=(2, 12))
    ours = through(soft_top(scores, 3.7), slope)
    step = 1e-5 * np.eye(12)
    numeric = [(soft_top(scores + h, 3.7) - soft_top(scores - h, 3.7)) @ slope / 2e-5 for h in step]
    np.testing.assert_allclose(ours, numeric, atol=1e-5)
    assert ours.sum() == pytest.approx(0)
    assert not through(np.ones(4), np.ones(4)).any()


@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa"])
def test_the_first_gradients_are_integrated_mask_gradients(kind: str) -> None:
    """All scores equal: averaged over evenly spaced sizes k, ∂KL/∂m is minus the integrated mask gradient."""
    engine = tiny_problem(kind).engine
    n, steps = engine.graph.n_edges, 5
    masks = np.stack([soft_top(np.zeros(n), n * (i + 0.5) / steps) for i in range(steps)])
    mean = engine.gradient(torch.from_numpy(masks)).gradient.mean(0)
    np.testing.assert_allclose(-mean, integrated_mask_gradients(engine, steps=steps), atol=1e-9)


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
@pytest.mark.parametrize("plant", [planted_chain, planted_qkv, planted_parallel])
def test_planted_circuits_are_found_and_rank_first(plant, architecture) -> None:
    planted = plant(architecture)
    problem = planted_problem(planted)
    state = matryoshka(problem, steps=150)
    assert state.done and state.faithfulness > 0.99
    assert names(problem, problem.model.graph.prune(state.mask)) == planted.edges
    best = np.argsort(-ranking_scores(state.extra["scores"]), kind="stable")[: len(planted.edges)]
    assert {problem.model.graph.edge_name(int(e)) for e in best} == planted.edges


def test_resuming_anywhere_equals_going_straight_and_both_are_deterministic() -> None:
    states: list[State] = []
    problem = tiny_problem("gpt2", tau=0.6, checkpoint=states.append)
    end = matryoshka(problem, steps=12)
    assert states[-1] is end and len(states) > 14
    for at in (0, 5, 11, 13, len(states) - 2):
        resumed = matryoshka(tiny_problem("gpt2", tau=0.6), states[at], steps=12)
        assert resumed.to_bytes() == end.to_bytes()
    other = matryoshka(tiny_problem("gpt2", tau=0.6, seed=3), steps=12)
    assert (other.extra["scores"] != end.extra["scores"]).any()


def test_a_finished_run_only_chooses_again() -> None:
    problem = tiny_problem("llama-gqa", tau=0.5)
    first = matryoshka(problem, steps=15)
    spent, problem.tau = problem.engine.passes, 0.8
    again = matryoshka(problem, first, steps=15)
    assert again.faithfulness >= 0.8 and again.mask.sum() >= first.mask.sum()
    assert (again.extra["scores"] == first.extra["scores"]).all()
    assert problem.engine.passes - spent < 15 * 3 * 4 / 20


def test_what_is_no_candidate_ranks_last() -> None:
    assert (ranking_scores(np.array([-3.0, 5.0, 0.0])) > 0).all()
