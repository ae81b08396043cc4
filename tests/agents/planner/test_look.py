"""Looks: gradients by groups of pairs, against one engine per group; their sums and their cost."""

from __future__ import annotations

import numpy as np
import pytest

from mechrl.agents.planner.look import ALPHAS, FIRST_ALPHAS, GROUPS, Looker
from mechrl.engine import Engine
from mechrl.engine.many import ManyEngines
from tests.agents.planner.tasks import some_circuit, start_of
from tests.search.problems import tiny_problem
from tests.tiny import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_a_look_is_that_of_an_engine_for_every_group(kind: str) -> None:
    problem = tiny_problem(kind, n_pairs=8)
    engine, mask = problem.engine, some_circuit(start_of(problem))
    outside = np.flatnonzero(~mask)[::2]
    looker = Looker(engine, problem.pairs)
    look = looker.look(mask, outside, 0.5)
    alive = np.flatnonzero(mask)
    for q, part in enumerate(np.array_split(np.arange(8), GROUPS)):
        alone = Engine(problem.model, problem.pairs.take(part.tolist()))
        for a, alpha in enumerate(ALPHAS):
            gradient = alone.gradient(alpha * mask[None].astype(np.float64)).gradient[0].numpy()
            expected = -gradient / engine.kl_cut
            assert np.allclose(look.gains[a, q], expected[alive], atol=1e-6)
            if alpha == 1:
                assert np.allclose(look.outside_gains[q], expected[outside], atol=1e-6)
    # as on a GPU, all groups in one call
    looker.by_group = [
        Engine(problem.model, problem.pairs.take(p.tolist())) for p in np.array_split(np.arange(8), GROUPS)
    ]
    looker._many = ManyEngines(looker.by_group, [looker.candidates] * GROUPS)
    again = looker.look(mask, outside, 0.5)
    assert np.allclose(again.gains, look.gains, atol=1e-6) and np.allclose(
        again.outside_gains, look.outside_gains, atol=1e-6
    )


def test_groups_add_up_to_the_whole_gradient_also_with_pairs_that_occur_twice() -> None:
    problem = tiny_problem("llama-gqa", n_pairs=5)
    pairs = problem.pairs.take([0, 1, 1, 2, 3, 4, 4, 4])
    engine = Engine(problem.model, pairs)
    weights = np.random.default_rng(0).random((2, engine.graph.n_edges))
    whole, parts = engine.gradient(weights), engine.gradient(weights, groups=3)
    assert parts.gradient.shape == (2, 3, engine.graph.n_edges)
    assert np.allclose(parts.gradient.sum(1).numpy(), whole.gradient.numpy(), atol=1e-12)
    assert np.allclose(parts.value.numpy(), whole.value.numpy())


def test_a_look_costs_three_passes_for_each_alpha() -> None:
    problem = tiny_problem("gpt2", n_pairs=8)
    start = start_of(problem)
    a_pass = 8 / 20
    assert start.passes == pytest.approx(3 * len(FIRST_ALPHAS) * a_pass)
    start.looker.look(some_circuit(start), np.zeros(0, dtype=int), 0.5)
    assert start.passes == pytest.approx(3 * (len(FIRST_ALPHAS) + len(ALPHAS)) * a_pass)
    full = problem.engine.gradient(np.ones((1, problem.model.graph.n_edges))).gradient
    assert np.abs(full.numpy()).max() < 1e-9  # edges outside the look have zero gradient
