"""A look at a circuit: gradients of f with respect to its mask, by groups of the discovery pairs.

At a circuit M, for α in `ALPHAS` and every group q of the pairs,

    g[α, q, e] = −∂(KL_q / KL_cut)/∂M_e   at αM,

which to first order is what f loses when e is cut (e in M) or gains when e is added (e outside; there only α = 1 is asked for).
Groups matter because KL is quadratic near its minimum: the gradients of an important edge may cancel over pairs, their spread does not.
All groups together are as many pairs as the batch, so a look costs three passes for each α.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mechrl.behaviours.base import Pairs
from mechrl.engine import Engine
from mechrl.engine.many import ManyEngines

FIRST_ALPHAS = (
    0.21,
    0.79,
)  # Gauss points of the path from the empty circuit to the whole graph, where KL is at its minimum
ALPHAS = (
    0.79,
    1.0,
)  # at other circuits: the path again, where the second point says as much as both, and the circuit itself
GROUPS = 4


@dataclass(frozen=True)
class Look:
    """What was seen at a circuit. Edges are the graph's; `f` was measured before."""

    alive: np.ndarray  # [n] the circuit's edges, ascending
    gains: np.ndarray  # [A, Q, n] float32
    outside: np.ndarray  # [m] edges that could be added
    outside_gains: np.ndarray  # [Q, m] float32, at α = 1
    f: float


class Looker:
    """Takes looks at circuits of one engine. All of them choose among the same edges, `candidates`."""

    def __init__(self, engine: Engine, pairs: Pairs) -> None:
        self.engine = engine
        self.by_group: list[Engine] = []
        if engine.fused:  # all groups are one call there
            parts = np.array_split(np.arange(len(pairs)), min(GROUPS, len(pairs)))
            self.by_group = [
                Engine(engine.model, pairs.take(part.tolist()), tf32=engine.tf32, ledger=engine.ledger)
                for part in parts
            ]
        self.choose(np.arange(engine.graph.n_edges))

    def choose(self, candidates: np.ndarray) -> None:
        self.candidates = candidates
        self._many = ManyEngines(self.by_group, [candidates] * len(self.by_group)) if self.by_group else None

    def first(self) -> np.ndarray:
        """[A, GROUPS, E] g on the way to the whole graph, `FIRST_ALPHAS`."""
        edges = np.arange(self.engine.graph.n_edges)
        return self._gradients(edges, np.array(FIRST_ALPHAS)[:, None].repeat(len(edges), axis=1))

    def look(self, mask: np.ndarray, outside: np.ndarray, f: float, path: np.ndarray | None = None) -> Look:
        """Gradients at the circuit `mask` [n], and at α = 1 also for `outside`, places among the candidates.

        The whole graph is not looked at with α = 1: KL is at its minimum there, and every gradient is zero.

        path: [Q, n] gradients at α < 1 known from a circuit much like this one. Edges it did not have are NaN; theirs at α = 1 serve.
        """
        alive = np.flatnonzero(mask)
        gains = np.zeros((len(ALPHAS), GROUPS, len(alive)), dtype=np.float32)
        outside_gains = np.zeros((GROUPS, len(outside)), dtype=np.float32)
        if path is None:
            gains[:-1] = self._gradients(alive, np.array(ALPHAS[:-1])[:, None].repeat(len(alive), axis=1))
        if len(alive) < self.engine.graph.n_edges:
            both = np.concatenate([alive, outside])
            found = self._gradients(both, (np.arange(len(both)) < len(alive))[None].astype(np.float64))[0]
            gains[-1], outside_gains = found[:, : len(alive)], found[:, len(alive) :]
        if path is not None:
            gains[:-1] = np.where(np.isnan(path), gains[-1], path)
        return Look(self.candidates[alive], gains, self.candidates[outside], outside_gains, f)

    def _gradients(self, places: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """[C, GROUPS, n] g at masks `weights` [C, n] over some of the candidates. Its mean over groups is that of all pairs."""
        if self._many is None:
            gradient = self.engine.gradient(weights, self.candidates[places], groups=GROUPS).gradient
            return -GROUPS * gradient.double().cpu().numpy() / self.engine.kl_cut
        q = len(self.by_group)
        wide = np.zeros((len(weights) * q, len(self.candidates)))
        wide[:, places] = np.repeat(weights, q, axis=0)
        wanted = np.zeros(wide.shape, dtype=bool)
        wanted[:, places] = True
        found = self._many.gradients(np.tile(np.arange(q), len(weights)), wide, wanted)[:, places].reshape(
            len(weights), q, -1
        )
        found *= np.array([engine.kl_cut for engine in self.by_group])[:, None] / self.engine.kl_cut
        return found[:, np.arange(GROUPS) % q]  # of fewer pairs than groups some stand twice


def mean_and_rms(gains: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Over the groups, which are the last axis but one."""
    return gains.mean(-2), np.sqrt(np.square(gains).mean(-2))


def strength(gains: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """[n] what edges are worth by gradients along the path to the circuit [A, Q, n]: the order to go by without a network.

    An edge whose gradients cancel over the groups of pairs still matters to each, so their spread counts beside their mean. An edge
    that works against the behaviour holds others in check: it counts 0.3 times.
    """
    mean, rms = mean_and_rms(np.asarray(gains).mean(0))
    return mean.clip(min=0) - 0.3 * mean.clip(max=0) + 0.5 * rms
