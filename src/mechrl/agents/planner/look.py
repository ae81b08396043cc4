"""A look at a circuit: gradients of f with respect to its mask, by groups of the discovery pairs.

At a circuit M with n edges, for α in `ALPHAS` and every group q of the pairs,

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
from mechrl.models.base import Model

ALPHAS = (0.21, 0.79, 1.0)  # the first two are the Gauss points of the path from the empty circuit to M
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
    """Takes looks at circuits of one batch of pairs. All of them choose among the same edges, `candidates`."""

    def __init__(self, model: Model, pairs: Pairs, kl_cut: float) -> None:
        self.kl_cut = kl_cut
        groups = np.array_split(np.arange(len(pairs)), min(GROUPS, len(pairs)))
        self.engines = [Engine(model, pairs.take(group.tolist())) for group in groups]
        for engine in self.engines:
            engine.passes = 0.0
        self.choose(np.arange(model.graph.n_edges))

    @property
    def passes(self) -> float:
        return sum(engine.passes for engine in self.engines)

    def choose(self, candidates: np.ndarray) -> None:
        self.candidates = candidates
        self._many = ManyEngines(self.engines, [candidates] * len(self.engines))

    def look(self, mask: np.ndarray, outside: np.ndarray, f: float) -> Look:
        """Gradients at the circuit `mask` [n], and at α = 1 also for `outside`, places among the candidates.

        The whole graph is not looked at with α = 1: KL is at its minimum there, and every gradient is zero.
        """
        alive, q = np.flatnonzero(mask), len(self.engines)
        whole = len(alive) == self.engines[0].graph.n_edges
        alphas = ALPHAS[:-1] if whole else ALPHAS
        wanted = np.repeat(mask[None], len(alphas), axis=0)
        wanted[len(ALPHAS) - 1 :, outside] = True
        weights = np.array(alphas)[:, None] * mask
        found = self._many.gradients(np.tile(np.arange(q), len(alphas)), np.repeat(weights, q, axis=0), np.repeat(wanted, q, axis=0))
        found = found.reshape(len(alphas), q, -1) * (np.array([engine.kl_cut for engine in self.engines])[:, None] / self.kl_cut)
        found = found[:, np.arange(GROUPS) % q].astype(np.float32)  # with fewer pairs than groups, groups are repeated
        gains = np.zeros((len(ALPHAS), GROUPS, len(alive)), dtype=np.float32)
        gains[: len(alphas)] = found[:, :, alive]
        outside_gains = np.zeros((GROUPS, len(outside)), dtype=np.float32) if whole else found[-1][:, outside]
        return Look(self.candidates[alive], gains, self.candidates[outside], outside_gains, f)


def mean_and_rms(gains: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Over the groups, which are the last axis but one."""
    return gains.mean(-2), np.sqrt(np.square(gains).mean(-2))


def strength(gains: Sequence[np.ndarray] | np.ndarray, negative: float = 0.3) -> np.ndarray:
    """[n] what edges are worth by their integrated gradients [A, Q, n]: the order to go by without a network."""
    integrated = np.asarray(gains)[: len(ALPHAS) - 1].mean((0, 1))
    return integrated.clip(min=0) - negative * integrated.clip(max=0)
