"""An environment with a planted rule and a known smallest circuit: learning the rule saves edges, and nothing else does.

Effects are additive: f = 1 − Σ effects of the missing edges. But gradients mislead: an edge into an MLP costs ten times its gradient's
estimate, one into v a tenth. The best circuit cuts the cheapest edges that fit into 1 − τ.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mechrl.agents.planner import plan
from mechrl.agents.planner.episode import Episode
from mechrl.agents.planner.features import First, Seen, kinds
from mechrl.agents.planner.fit import FitSettings, fit
from mechrl.agents.planner.look import ALPHAS, GROUPS, Look
from mechrl.agents.planner.network import Edges, Effect, squash
from mechrl.agents.planner.plan import Planner, Predictor
from mechrl.agents.planner.records import Record
from mechrl.agents.planner.untrained import Gradients
from mechrl.graph import Graph

GRAPH, N, TAU = Graph(4, 6, 2), 250, 0.9


class Planted:
    """Stands in for a `Start` and its looker: a look costs six passes and a trial one."""

    graph = GRAPH

    def __init__(self, seed: int) -> None:
        self.rng, self.passes, self.looker = np.random.default_rng(seed), 0.0, self
        self.batches: list[int] = []  # number of circuits in every call
        self.seen = np.zeros(0, dtype=int)  # candidates of the last look
        self.candidates = np.sort(self.rng.choice(GRAPH.n_edges, N, replace=False))
        factor = np.array([1, 1, 0.1, 10, 1])[kinds(GRAPH)[1][GRAPH.edge_receiver[self.candidates]]]
        effect = factor * np.exp(self.rng.normal(size=N))
        self.effect = effect / effect.sum()
        self.gains = self.effect / factor * self.rng.normal(1, 0.1, (GROUPS, N))
        mean = np.zeros(GRAPH.n_edges)
        mean[self.candidates] = self.gains.mean(0)
        self.first = First(mean, mean)
        self.mask, self.f = np.ones(N, dtype=bool), 1.0

    @property
    def smallest(self) -> int:
        """Edges of the best circuit."""
        return N - int((np.sort(self.effect).cumsum() <= 1 - TAU).sum())

    def f_of(self, masks: np.ndarray) -> np.ndarray:
        masks = np.atleast_2d(masks)
        self.passes += len(masks)
        self.batches.append(len(masks))
        return 1 - ~masks @ self.effect

    def prune(self, masks: np.ndarray) -> np.ndarray:
        return masks

    def best_outside(self, mask: np.ndarray, most: int) -> np.ndarray:
        return np.flatnonzero(~mask)[:most]

    def look(self, mask: np.ndarray, outside: np.ndarray, f: float, path: np.ndarray | None = None) -> Look:
        self.passes += 3 * (len(ALPHAS) - (path is not None))
        alive, gains = np.flatnonzero(mask), self.gains.astype(np.float32)
        self.seen = np.concatenate([alive, outside])
        seen = np.repeat(gains[None, :, alive], len(ALPHAS), axis=0)
        return Look(self.candidates[alive], seen, self.candidates[outside], gains[:, outside], f)

    def record(self) -> Record:
        """Edits of a random circuit with their effects: single cuts and additions, and sets of both."""
        rng, mask = self.rng, self.rng.random(N) < self.rng.uniform(0.2, 1)
        outside, alive = np.flatnonzero(~mask)[:20], np.flatnonzero(mask)
        n, m = len(alive), len(outside)
        cut, add = np.zeros((90, n), dtype=bool), np.zeros((90, m), dtype=bool)
        cut[np.arange(1, 41), rng.choice(n, 40)] = True
        add[41 : 41 + m][np.arange(m), np.arange(m)] = True
        for i in range(41 + m, 90):
            cut[i, rng.choice(n, int(rng.integers(2, n // 2)), replace=False)] = True
            add[i] = rng.random(m) < rng.choice([0, 0.2])
        masks = np.repeat(mask[None], 90, axis=0)
        masks[:, alive], masks[:, outside] = ~cut, add
        f = self.f_of(masks)
        look = self.look(mask, outside, float(f[0]))
        first = self.first.at(np.concatenate([look.alive, look.outside]))
        return Record("planted", "planted", 0, GRAPH, look, first, cut, add, f, f)


class Oracle:
    """Knows every effect exactly."""

    def __init__(self, start: Planted) -> None:
        self.start = start

    def edges(self, seen: Seen) -> Edges:
        cost = torch.from_numpy(self.start.effect[self.start.seen]).float()
        none = torch.zeros(len(cost), 0)
        return Edges(cost, cost, cost, none, none, seen.gains, seen.n, seen.f, torch.zeros(len(seen.edges)))

    def effect(self, edges: Edges, cut: torch.Tensor, add: torch.Tensor) -> Effect:
        lost = cut @ edges.cost[: edges.n] - add @ edges.cost[edges.n :]
        zero = torch.zeros_like(lost)
        return Effect(squash(lost), zero - 3.5, zero, zero - 3.5)


def test_who_knows_all_effects_finds_the_smallest_circuit() -> None:
    for seed in range(4):
        start = Planted(seed)
        episode = Planner(start, Oracle(start), TAU).run(Episode(start.mask, start.f))  # type: ignore[arg-type]
        assert start.smallest <= episode.mask.sum() <= start.smallest + 1


@pytest.mark.parametrize("kind", ["oracle", "local", "absolute"])
def test_a_round_tries_four_edits_first_and_goes_on_only_where_that_is_worth_it(kind: str) -> None:
    start = Planted(3)
    planner = Planner(start, Oracle(start) if kind == "oracle" else Gradients(kind), TAU)  # type: ignore[arg-type]
    episode = Episode(start.mask, start.f)
    while not episode.done:
        n, passes, start.batches = int(episode.mask.sum()), start.passes, []
        planner.step(episode)
        assert start.batches[0] <= 4
        won, spent = n - int(episode.mask.sum()), start.passes - passes
        assert spent - sum(start.batches) in (3, 6)  # a look, with or without the gradients at 0.79 M
        if spent > plan.PASSES_PER_EDGE * won and episode.f - TAU < plan.ROOM:
            assert episode.done
    assert episode.rounds > 2


def edges_and_passes(model: Predictor) -> np.ndarray:
    """For episodes in six environments that nothing was fitted to: edges relative to the smallest circuit, and passes."""
    found = []
    for seed in range(100, 106):
        start = Planted(seed)
        episode = Planner(start, model, TAU).run(Episode(start.mask, start.f))  # type: ignore[arg-type]
        assert episode.f >= TAU and episode.f == pytest.approx(float(start.f_of(episode.mask)[0]))
        found.append((episode.mask.sum() / start.smallest, start.passes))
    return np.mean(found, axis=0)


@pytest.mark.slow
def test_what_is_learned_is_worth_edges_and_from_shuffled_effects_nothing_is() -> None:
    """The same network fitted to other edits' effects finds no smaller circuits than plain gradients do."""
    records = [Planted(seed).record() for seed in range(48)]
    rng, settings = np.random.default_rng(0), FitSettings(epochs=20, hidden=48, circuits=4)
    shuffled = [replace(r, f=np.concatenate([r.f[:1], rng.permutation(r.f[1:])])) for r in records]
    (learned, passes), (control, _) = (edges_and_passes(fit(some, settings)) for some in (records, shuffled))
    gradients, their_passes = edges_and_passes(Gradients("local"))
    assert learned < 1.1 and passes < 1.25 * their_passes
    assert 1.25 < gradients < control
