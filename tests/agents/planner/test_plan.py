"""Episodes: planted circuits, guarantees about the result, passes charged, and what trials teach the agent."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mechrl.agents.planner.episode import Episode
from mechrl.agents.planner.fresh import Fresh
from mechrl.agents.planner.network import Edges, Effect
from mechrl.agents.planner.plan import Planner, Predictor
from mechrl.agents.planner.shipped import load_planner, shipped
from mechrl.agents.planner.untrained import Gradients
from tests.agents.planner.tasks import planted_start, tiny_start
from tests.planted import planted_chain, planted_parallel, planted_qkv


def model_of(name: str) -> Predictor:
    return load_planner(shipped(name)) if name in ("toy", "smollm2") else Gradients(name)


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
@pytest.mark.parametrize("plant", [planted_chain, planted_qkv, planted_parallel])
@pytest.mark.parametrize("model", ["toy", "smollm2", "absolute"])
def test_planted_circuits_are_found(plant, architecture: str, model: str) -> None:
    start, edges = planted_start(plant, architecture)
    episode = Planner(start, model_of(model), 0.9).run(Episode(start.mask, start.f))
    assert {
        start.graph.edge_name(int(e)) for e in start.candidates[episode.mask]
    } == edges and episode.f > 0.99


@pytest.mark.parametrize("model", ["toy", "path"])
@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa"])
def test_every_circuit_on_the_way_is_faithful_pruned_and_smaller_than_the_last(kind: str, model: str) -> None:
    start = tiny_start(kind)
    planner, met = Planner(start, model_of(model), 0.8), []
    episode = planner.run(planner.begin(), lambda e: met.append((e.mask.copy(), e.f)))
    assert episode.done and len(met) > 2 and episode.mask.sum() < len(start.candidates) / 2
    for mask, f in met:
        assert (
            f >= 0.8
            and f == pytest.approx(float(start.f_of(mask)[0]))
            and (start.prune(mask[None])[0] == mask).all()
        )
    sizes = [int(mask.sum()) for mask in episode.path] + [int(episode.mask.sum())]
    assert sizes == sorted(set(sizes), reverse=True)


def test_an_episode_is_the_same_twice_and_charges_every_look_and_trial() -> None:
    runs = []
    for _ in range(2):
        start = tiny_start()
        engine, asked = start.engine, []
        f_of, gradient = engine.faithfulness, engine.gradient
        engine.faithfulness = lambda masks, edges=None, f=f_of, a=asked: (
            a.append(len(masks)),
            f(masks, edges),
        )[1]
        engine.gradient = lambda w, *x, f=gradient, a=asked, **k: (a.append(3 * len(w)), f(w, *x, **k))[1]
        before = start.passes
        episode = Planner(start, Gradients(), 0.8).run(Episode(start.mask, start.f))
        assert start.passes - before == pytest.approx(sum(asked) * engine.n_pairs / 20)
        runs.append((episode.mask, start.passes))
    assert (runs[0][0] == runs[1][0]).all() and runs[0][1] == runs[1][1]


class Optimist:
    """Predicts that no edit has a cost."""

    def edges(self, seen) -> Edges:
        nothing = torch.zeros(len(seen.edges))
        none = torch.zeros(len(seen.edges), 0)
        return Edges(
            nothing, nothing, nothing, none, none, seen.gains, seen.n, seen.f, torch.zeros(len(seen.edges))
        )

    def effect(self, edges, cut, add) -> Effect:
        zero = torch.zeros(len(cut))
        return Effect(zero, zero, zero, zero - 3.5)


def test_whoever_is_always_wrong_becomes_careful_and_still_ends_with_a_faithful_circuit() -> None:
    start = tiny_start()
    planner, biases = Planner(start, Optimist(), 0.8), []
    episode = planner.run(planner.begin(), lambda e: biases.append(e.bias))
    assert episode.f >= 0.8 and episode.mask.sum() < len(start.candidates) and max(biases) > 0.5


def test_a_start_below_tau_is_the_end() -> None:
    start = tiny_start()
    planner = Planner(start, Gradients(), 0.8)
    episode = planner.run(Episode(start.mask, 0.7))
    assert episode.done and "below tau" in episode.note and (episode.mask == start.mask).all()


def test_aiming_at_fresh_pairs_leaves_room_for_the_predicted_gap() -> None:
    """With a gap of .1, f on the discovery pairs never falls below τ + .1."""

    class Gap(Gradients):
        def effect(self, edges, cut, add) -> Effect:
            found = super().effect(edges, cut, add)
            return Effect(found.mu, found.log_sigma, found.gap + 0.1, found.log_sigma_gap)

    start = tiny_start()
    planner = Planner(start, Gap(), 0.8, Fresh(0.8, None))
    met: list[float] = []
    planner.run(planner.begin(), lambda e: met.append(e.f))
    assert min(met) >= 0.9 - 1e-6 and np.isclose(planner.begin().gap, 0)
