"""Selection from scores: against straightforward definitions, and on planted circuits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechrl.attribution import eap_ig_inputs, loss
from mechrl.graph import Graph
from mechrl.search.problem import Interrupted, Problem, State
from mechrl.search.select import greedy, greedy_search, receivers_of, top_n, top_n_search
from tests.planted import planted_chain, planted_parallel, planted_qkv
from tests.search.problems import names, planted_problem, tiny_problem

graphs = st.sampled_from([Graph(1, 1, 1), Graph(2, 3, 3), Graph(3, 4, 2), Graph(2, 6, 1)])


def slow_greedy(graph: Graph, scores: np.ndarray, n: int) -> set[int]:
    """Scans all edges for each one that is added."""
    kept: set[int] = set()
    nodes = {"logits"}

    def child(edge: int) -> set[str]:
        receiver = int(graph.edge_receiver[edge])
        if receiver == graph.logits:
            return {"logits"}
        return {graph.source_names[s] for s in range(graph.n_sources) if receiver in receivers_of(graph, s)}

    while len(kept) < n:
        available = [e for e in range(graph.n_edges) if e not in kept and child(e) & nodes]
        if not available:
            break
        best = min(available, key=lambda e: (-abs(scores[e]), e))
        kept.add(best)
        nodes.add(graph.source_names[int(graph.edge_source[best])])
    return kept


@given(graphs, st.integers(0, 1000), st.integers(0, 60))
@settings(max_examples=40, deadline=None)
def test_greedy_is_its_definition(graph: Graph, seed: int, n: int) -> None:
    scores = np.random.default_rng(seed).integers(-9, 10, graph.n_edges).astype(float)  # with ties
    mask = greedy(graph, scores, n)
    assert set(np.flatnonzero(mask).tolist()) == slow_greedy(graph, scores, n)


@given(graphs, st.integers(0, 1000), st.integers(0, 200))
@settings(max_examples=40, deadline=None)
def test_top_n_are_the_best(graph: Graph, seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    a = rng.normal(size=graph.n_edges)
    mask = top_n(a, n)
    assert mask.sum() == min(n, graph.n_edges)
    assert not mask.any() or mask.all() or np.abs(a[mask]).min() >= np.abs(a[~mask]).max()


def test_receivers_of_every_node_are_all_receivers() -> None:
    graph = Graph(2, 6, 2)
    found = {r for s in range(graph.n_sources) for r in receivers_of(graph, s)} | {graph.logits}
    assert found == set(range(graph.n_receivers))
    assert {graph.receiver_names[r] for r in receivers_of(graph, graph.head(1, 4))} == {
        "a1.h4<q>",
        "a1.kv1<k>",
        "a1.kv1<v>",
    }


def scored(problem: Problem) -> Problem:
    problem.scores = eap_ig_inputs(problem.engine, loss("kl", problem.pairs, problem.engine))
    return problem


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
@pytest.mark.parametrize("plant", [planted_chain, planted_qkv, planted_parallel])
@pytest.mark.parametrize("search", [top_n_search, greedy_search])
def test_planted_circuits_are_found(search, plant, architecture: str) -> None:
    planted = plant(architecture)
    problem = scored(planted_problem(planted))
    problem.engine.ledger.restore(0)
    state = search(problem)
    assert state.done and state.faithfulness > 0.99
    assert names(problem, problem.model.graph.prune(state.mask)) == planted.edges
    assert 0 < problem.passes <= 6 * 16 / 20
    removed = np.zeros(problem.model.graph.n_edges, dtype=bool)
    removed[state.order] = True
    assert not (removed & state.mask).any()


@pytest.mark.parametrize("search", [top_n_search, greedy_search])
def test_stopped_anywhere_and_resumed_equals_straight(search) -> None:
    states: list[State] = []
    problem = scored(tiny_problem("gpt2", checkpoint=states.append))
    end = search(problem)
    assert end.faithfulness >= 0.9 and len(states) > 5
    fresh = scored(tiny_problem("gpt2"))
    for state in states[::3]:
        again = search(fresh, state)
        assert (
            (again.mask == end.mask).all()
            and again.order == end.order
            and again.faithfulness == end.faithfulness
        )


def test_what_cannot_be_reached_is_said() -> None:
    problem = scored(tiny_problem("gpt2", tau=1.1))
    state = top_n_search(problem)
    assert state.done and state.mask.all() and "only" in state.note


def test_a_state_survives_the_disk(tmp_path) -> None:
    seen: list[State] = []

    def stop(state: State) -> None:
        seen.append(state)
        raise Interrupted

    with pytest.raises(Interrupted):
        top_n_search(scored(tiny_problem("gpt2", checkpoint=stop)))
    seen[0].extra |= {"array": np.arange(5.0), "text": "x", "number": 0.1}
    (tmp_path / "state").write_bytes(seen[0].to_bytes(passes=3.5))
    state, about = State.read(tmp_path / "state")
    assert about == {"passes": 3.5}
    assert (state.mask == seen[0].mask).all() and state.order == seen[0].order and state.note == seen[0].note
    assert (
        (state.extra["array"] == np.arange(5.0)).all()
        and state.extra["number"] == 0.1
        and state.extra["low"] == 8
    )
