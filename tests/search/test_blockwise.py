"""Blockwise search: planted circuits, guarantees about its result, resuming."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from mechrl.search.blockwise import ROOM, blockwise
from mechrl.search.problem import State
from tests.planted import planted_chain, planted_parallel, planted_qkv
from tests.search.problems import names, planted_problem, tiny_problem


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
@pytest.mark.parametrize("plant", [planted_chain, planted_qkv, planted_parallel])
def test_planted_circuits_are_found(plant, architecture):
    planted = plant(architecture)
    problem = planted_problem(planted)
    state = blockwise(problem)
    found = names(problem, state.mask)
    assert found == planted.edges
    assert state.faithfulness > 0.99


@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa"])
def test_every_state_is_a_pruned_faithful_circuit_and_its_order_tells_how_it_came_about(kind):
    states: list[State] = []
    problem = tiny_problem(kind, tau=0.8, checkpoint=states.append)
    end = blockwise(problem)
    everything = set(problem.candidates.tolist())
    assert states[-1] is end and end.done and len(states) > 3
    sizes = [int(state.mask.sum()) for state in states]
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] < len(everything) / 2
    for state in states:
        f = problem.engine.faithfulness(state.mask[None], problem.candidates)[0]
        assert state.faithfulness == pytest.approx(float(f)) and state.faithfulness >= 0.8
        assert (problem.model.graph.prune(state.mask) == state.mask).all()
        assert len(state.order) == len(set(state.order))
        assert set(state.order) == everything - set(problem.candidates[state.mask].tolist())


def test_resuming_anywhere_equals_going_straight_and_both_are_deterministic():
    states: list[State] = []
    problem = tiny_problem("gpt2", tau=0.8, checkpoint=states.append)
    end = blockwise(problem)
    for at in (0, len(states) // 2, len(states) - 2):
        resumed = blockwise(tiny_problem("gpt2", tau=0.8), states[at])
        assert resumed.to_bytes() == end.to_bytes()
    again = tiny_problem("gpt2", tau=0.8)
    assert blockwise(again).to_bytes() == end.to_bytes()
    assert again.passes == problem.passes


def test_it_does_not_end_with_f_to_spend_while_trades_are_found(monkeypatch):
    """Even with the smallest gain: here no swap is ever worth its passes."""
    monkeypatch.setattr("mechrl.search.blockwise.PASSES_PER_EDGE", 0)
    spent = 0
    for kind, tau in (("gpt2", 0.6), ("llama-gqa", 0.5)):
        states: list[State] = []
        end = blockwise(tiny_problem(kind, tau=tau, checkpoint=states.append))
        assert "no exchange" in end.note or end.faithfulness - tau <= ROOM
        exchanged = [state for before, state in pairwise(states) if not before.extra["block"]]
        assert all(state.faithfulness - tau > ROOM for state in exchanged[:-1])
        spent += len(exchanged) - 1
    assert spent > 0


def test_a_candidate_set_that_is_not_faithful_enough_is_said_so():
    problem = tiny_problem("gpt2", candidates=np.arange(0, 262, 7))
    state = blockwise(problem)
    assert state.done and state.faithfulness < problem.tau and "candidate set" in state.note


def test_it_keeps_to_the_candidates():
    problem = tiny_problem("gpt2", tau=0.5)
    rng = np.random.default_rng(0)
    problem.candidates = np.flatnonzero(rng.random(problem.model.graph.n_edges) < 0.9)
    problem.tau = 0.9 * float(problem.judge(np.ones((1, len(problem.candidates)), dtype=bool))[0])
    state = blockwise(problem)
    assert len(state.mask) == len(problem.candidates) and state.faithfulness >= problem.tau
    assert set(state.order) == set(problem.candidates[~state.mask].tolist())


def test_blocks_come_again_where_exchanges_have_raised_f_or_failed(monkeypatch):
    """Blocks resume when f is back at, or above, its value when blocks failed. After a failure groups are halved, down to single edges.
    Not in small circuits, whose edges can all be measured."""
    came_again = 0
    for kind, tau in (("gpt2", 0.8), ("llama-gqa", 0.3)):
        small: list[State] = []
        blockwise(tiny_problem(kind, tau=tau, checkpoint=small.append))
        blocks = [state.extra.get("block", 0.0) > 0 for state in small]
        assert blocks == sorted(blocks, reverse=True)
        with monkeypatch.context() as patch:
            patch.setattr(
                "mechrl.search.blockwise.size_of_groups", lambda edges, finer=0: 2 >> finer
            )  # as if the circuit were large
            states: list[State] = []
            end = blockwise(tiny_problem(kind, tau=tau, checkpoint=states.append))
            failed_at = None  # f after the last block
            for before, after in pairwise(states):
                if before.extra["block"] and not after.extra["block"]:
                    failed_at = after.faithfulness
                if not before.extra["block"] and after.extra["block"]:
                    came_again += 1
                    finer = after.extra["finer"] - before.extra["finer"]
                    assert finer or (
                        after.faithfulness >= failed_at and after.faithfulness > before.faithfulness
                    )
                    resumed = blockwise(tiny_problem(kind, tau=tau), after)
                    assert resumed.to_bytes() == end.to_bytes()
            assert end.extra["finer"] == 1
    assert came_again
