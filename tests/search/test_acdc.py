"""Speculative ACDC equals the plain loop, edge by edge; planted circuits are found exactly; interruption changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from mechrl.search import acdc as module
from mechrl.search.acdc import acdc, acdc_sweep
from mechrl.search.problem import Interrupted, Problem, State
from mechrl.search.select import receivers_of
from tests.planted import planted_chain, planted_parallel, planted_qkv
from tests.search.problems import names, planted_problem, tiny_problem
from tests.tiny import KINDS


def slow_acdc(problem: Problem, threshold: float) -> tuple[set[int], list[int], list[float], int]:
    """One edge at a time, by names: (kept edges, removal order, KL of every test, passes)."""
    graph, engine = problem.model.graph, problem.engine
    candidates = set(problem.candidates.tolist())
    kept, order, trace = set(candidates), [], []

    def kl(edges: set[int]) -> float:
        mask = np.zeros((1, graph.n_edges), dtype=bool)
        mask[0, list(edges)] = True
        return float(engine.kl(mask).double().mean())

    receivers = ["logits"]
    for layer in reversed(range(graph.n_layers)):
        kv = "h" if graph.n_heads == graph.n_kv_heads else "kv"
        receivers.append(f"m{layer}")
        receivers += [f"a{layer}.{kv}{g}<{x}>" for x in "vk" for g in reversed(range(graph.n_kv_heads))]
        receivers += [f"a{layer}.h{h}<q>" for h in reversed(range(graph.n_heads))]
    current = kl(kept)
    for name in receivers:
        receiver = graph.receiver_names.index(name)
        nodes = [s for s in range(graph.n_sources) if receiver in receivers_of(graph, s)]
        into = [
            e
            for e in reversed(range(graph.n_edges))
            if graph.edge_receiver[e] == receiver and e in candidates
        ]
        if name != "logits" and not any(graph.edge_source[e] in nodes for e in kept):
            kept -= set(into)
            order += into
            continue
        for e in into:
            new = kl(kept - {e})
            trace.append(new)
            if new - current < threshold:
                kept.remove(e)
                order.append(e)
                current = new
    return kept, order, trace, 1 + len(trace)


@pytest.mark.parametrize(("kind", "threshold"), [*((kind, 0.3) for kind in KINDS), ("llama-gqa", 0.003)])
def test_speculation_changes_nothing(kind: str, threshold: float) -> None:
    problem = tiny_problem(kind, n_pairs=2)
    kept, order, trace, passes = slow_acdc(problem, threshold)
    assert 0 < len(kept) < 200
    told = np.isin(np.arange(problem.model.graph.n_edges), list(kept)).astype(float)
    evaluated = []
    for scores in (
        None,
        np.random.default_rng(0).random(len(told)),
        told,
    ):  # no guess, a wild guess, a perfect guess
        problem.scores = scores
        problem.engine.ledger.restore(0.0)
        state = acdc(problem, threshold=threshold)
        assert set(problem.candidates[state.mask].tolist()) == kept
        assert state.order == order
        np.testing.assert_allclose(state.extra["trace"], trace, rtol=0, atol=1e-12)
        assert state.extra["tested"] == len(trace)
        assert threshold < 0.3 or len(trace) < problem.model.graph.n_edges  # some receivers were cut for free
        assert problem.passes == pytest.approx(passes * 2 / 20)
        assert state.extra["evaluated"] >= len(trace)
        evaluated.append(state.extra["evaluated"])
    assert evaluated[2] <= evaluated[0]
    f = problem.engine.faithfulness(state.mask[None], problem.candidates)[0]
    assert state.faithfulness == pytest.approx(float(f), abs=1e-12)


@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa"])
def test_on_a_candidate_set_with_dead_edges_in_it(kind: str) -> None:
    problem = tiny_problem(kind, n_pairs=2)
    rng = np.random.default_rng(0)
    problem.candidates = np.sort(rng.choice(problem.model.graph.n_edges, 60, replace=False))
    assert problem.model.graph.prune(np.ones(60, dtype=bool), problem.candidates).sum() < 60
    kept, order, trace, _ = slow_acdc(problem, 0.001)
    state = acdc(problem, threshold=0.001)
    assert set(problem.candidates[state.mask].tolist()) == kept and state.order == order
    np.testing.assert_allclose(state.extra["trace"], trace, rtol=0, atol=1e-12)


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
@pytest.mark.parametrize("plant", [planted_chain, planted_qkv, planted_parallel])
def test_planted_circuits_are_found(plant, architecture: str) -> None:
    planted = plant(architecture)
    problem = planted_problem(planted)
    state = acdc_sweep(problem)
    mask = problem.model.graph.prune(state.mask)
    assert names(problem, mask) == planted.edges and state.faithfulness > 0.99


def test_a_sweep_takes_the_smallest_faithful_circuit_and_keeps_all() -> None:
    problem = tiny_problem("gpt2", n_pairs=2)
    thresholds = (0.01, 0.1, 0.5)
    alone = {t: acdc(problem, threshold=t) for t in thresholds}
    problem.tau = (alone[0.1].faithfulness + max(alone[0.5].faithfulness, 0)) / 2
    state = acdc_sweep(problem, thresholds=thresholds)
    for t in thresholds:
        assert (state.extra[f"mask.{t}"] == alone[t].mask).all() and state.extra[
            f"order.{t}"
        ].tolist() == alone[t].order
    assert (state.mask == alone[0.1].mask).all() and state.note == "threshold 0.1"
    passes = problem.passes
    problem.tau = 1.5
    again = acdc_sweep(problem, state, thresholds=thresholds)
    assert problem.passes == passes and "no threshold reached tau" in again.note
    assert again.faithfulness == max(s.faithfulness for s in alone.values())


@pytest.mark.parametrize("minibatch", [None, 3])
def test_resuming_anywhere_equals_going_straight(minibatch: int | None, monkeypatch) -> None:
    monkeypatch.setattr(module, "_MOST", 64)
    monkeypatch.setattr(module, "_TESTS_PER_MINIBATCH", 50)
    straight: list[State] = []
    problem = tiny_problem("llama-gqa", n_pairs=6, minibatch=minibatch, checkpoint=straight.append)
    end = acdc_sweep(problem, thresholds=(0.1, 0.5))
    passes = problem.passes
    for stop in range(0, len(straight), max(1, len(straight) // 3)):

        def interrupt(state: State, at: int = stop, seen: list = []) -> None:  # noqa: B006 (counts calls of this one)
            seen.append(state)
            if len(seen) == at + 1:
                raise Interrupted

        first = tiny_problem("llama-gqa", n_pairs=6, minibatch=minibatch, checkpoint=interrupt)
        with pytest.raises(Interrupted):
            acdc_sweep(first, thresholds=(0.1, 0.5))
        interrupt.__defaults__[1].clear()
        second = tiny_problem("llama-gqa", n_pairs=6, minibatch=minibatch)
        second.engine.ledger.restore(first.passes)
        resumed = acdc_sweep(second, straight[stop], thresholds=(0.1, 0.5))
        assert (
            (resumed.mask == end.mask).all()
            and resumed.order == end.order
            and resumed.faithfulness == end.faithfulness
        )
        assert second.passes == pytest.approx(passes)
