"""Edge Pruning: the gate and its gradient, planted circuits, determinism, resuming."""

from __future__ import annotations

import numpy as np
import pytest

from mechrl.search.edge_pruning import edge_pruning, gate, open_probability
from mechrl.search.problem import State
from tests.planted import planted_chain, planted_parallel, planted_qkv
from tests.search.problems import names, planted_problem, tiny_problem


def test_the_gradient_of_the_gate_is_right():
    rng = np.random.default_rng(0)
    log_alpha, u = rng.normal(0, 2, 1000), rng.random(1000)
    z, dz = gate(log_alpha, u)
    assert z.min() == 0 and z.max() == 1 and 0.2 < ((z > 0) & (z < 1)).mean() < 0.8
    inside = (z > 1e-4) & (z < 1 - 1e-4)
    numeric = (gate(log_alpha + 1e-6, u)[0] - gate(log_alpha - 1e-6, u)[0]) / 2e-6
    np.testing.assert_allclose(dz[inside], numeric[inside], atol=1e-7)
    assert (dz[(z == 0) | (z == 1)] == 0).all()


@pytest.mark.parametrize("log_alpha", [-3.0, -0.5, 0.0, 2.0])
def test_a_gate_is_open_as_often_as_its_probability_says(log_alpha):
    u = (np.arange(100_000) + 0.5) / 100_000
    z, _ = gate(np.full(len(u), log_alpha), u)
    assert open_probability(np.array([log_alpha]))[0] == pytest.approx((z > 0).mean(), abs=1e-4)


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
@pytest.mark.parametrize("plant", [planted_chain, planted_qkv, planted_parallel])
def test_planted_circuits_are_found(plant, architecture):
    planted = plant(architecture)
    problem = planted_problem(planted)
    state = edge_pruning(problem, steps=100, target_sparsity=0.95)
    found = names(problem, state.mask)
    assert found == planted.edges
    assert state.done and state.faithfulness > 0.99
    assert len(state.order) == problem.model.graph.n_edges - len(found)
    assert not set(state.order) & set(problem.candidates[state.mask].tolist())


def test_resuming_anywhere_equals_going_straight_and_both_are_deterministic():
    states: list[State] = []
    problem = tiny_problem("gpt2", tau=0.6, checkpoint=states.append)
    end = edge_pruning(problem, steps=12)
    assert states[-1] is end and len(states) == 13
    for at in (0, 5, 11):
        again = tiny_problem("gpt2", tau=0.6)
        resumed = edge_pruning(again, states[at], steps=12)
        assert resumed.to_bytes() == end.to_bytes()
        assert resumed.order == end.order and resumed.faithfulness == end.faithfulness
    assert edge_pruning(tiny_problem("gpt2", tau=0.6), steps=12).order == end.order
    assert (
        edge_pruning(tiny_problem("gpt2", tau=0.6, seed=3), steps=12).extra["log_alpha"].tolist()
        != end.extra["log_alpha"].tolist()
    )


def test_the_circuit_is_the_smallest_of_its_order():
    problem = tiny_problem("llama-gqa", tau=0.7)
    state = edge_pruning(problem, steps=20)
    f = problem.engine.faithfulness(state.mask[None], problem.candidates)[0]
    assert state.faithfulness == pytest.approx(float(f)) and state.faithfulness >= 0.7
    assert (problem.model.graph.prune(state.mask) == state.mask).all()


def test_a_candidate_set_that_is_not_faithful_enough_is_said_so():
    problem = tiny_problem("gpt2", candidates=np.arange(0, 262, 7))
    state = edge_pruning(problem, steps=2)
    assert state.done and state.faithfulness < problem.tau and "candidate set" in state.note
