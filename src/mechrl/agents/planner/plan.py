"""An episode: look, plan, try, take.

A circuit M of n edges has f ≥ the aim. A look and the network give every edge a cost, every edge outside a gain, and every edit (cuts,
additions) a prediction T(Δ) ~ Normal(μ, σ). Planned are edits that add the a best edges and cut the r cheapest. Their worth is

    J = log(n / n') − Δ / (κ · slack),      slack = f − aim

for what is left of f buys later cuts: it is spent where it buys most. A few edits are tried, one pass each: the one of highest expected J
and, since the network may be wrong, bolder and safer ones. The best that reaches the aim is taken, and the agent looks again.

Every trial teaches: `bias` is how far trials fell short of what was predicted, in units of σ, and shifts what is expected next. Where all
trials fail, bolder edits are off the table, down to single edges. When these fail as well, the costs of the cheapest edges and the gains
of the best are measured one by one, and the last edits go by those. The episode ends when nothing is left to believe in.

On fresh pairs the aim is τ plus the network's predicted gap between f on the discovery pairs and f on others (holdout.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from mechrl.agents.planner.features import Seen, see
from mechrl.agents.planner.network import Edges, Effect
from mechrl.agents.planner.start import Start
from mechrl.graph import Graph

ADDITIONS = (0, 1, 2, 3, 5, 8, 13, 21)
GRID = 28  # numbers of cuts that are thought about
TRIALS = 4  # at once
OUTSIDE = 1000  # edges that may be added
KAPPA = 0.7
LAST = 0.05  # of log n: when planned edits promise less, what is left of f is spent
MEASURED = 10  # cuts, when plans have failed
MEASURED_GAINS = 4


class Model(Protocol):
    """What the agent plans with: the network, or its untrained control."""

    def edges(self, seen: Seen, graph: Graph) -> Edges: ...

    def effect(self, edges: Edges, cut: torch.Tensor, add: torch.Tensor) -> Effect: ...


@dataclass
class Episode:
    """Where the agent stands. Masks are over the start's candidates."""

    mask: np.ndarray
    f: float
    gap: float = 0.0  # predicted f − f on fresh pairs
    bias: float = 0.0
    path: list[np.ndarray] = field(default_factory=list)  # circuits it has come through
    rounds: int = 0
    done: bool = False
    note: str = ""


@dataclass(frozen=True)
class Thought:
    """A look, and what the network makes of it."""

    alive: np.ndarray
    outside: np.ndarray
    edges: Edges
    cost: np.ndarray  # [n]
    gain: np.ndarray  # [m]


@dataclass(frozen=True)
class Edits:
    """Planned edits and what is expected of them, [T] each."""

    masks: np.ndarray
    size: np.ndarray
    mu: np.ndarray
    sigma: np.ndarray
    gap: np.ndarray

    def take(self, index: np.ndarray) -> Edits:
        return Edits(self.masks[index], self.size[index], self.mu[index], self.sigma[index], self.gap[index])


@dataclass
class Planner:
    """The agent on one start. `step` is one round; `run` goes on to the end."""

    start: Start
    model: Model
    tau: float
    fresh: bool = False  # aim at f on fresh pairs
    offset: float = 0.0  # added to the predicted gap; what validation pairs have taught
    trials: int = TRIALS

    def begin(self) -> Episode:
        return Episode(self.start.mask, self.start.f)

    def run(self, episode: Episode, checkpoint: Callable[[Episode], None] = lambda episode: None) -> Episode:
        while not episode.done:
            self.step(episode)
            checkpoint(episode)
        return episode

    def step(self, episode: Episode) -> None:
        """One look and what follows from it."""
        episode.rounds += 1
        if episode.f < self.tau:
            episode.done, episode.note = True, f"the first circuit has f = {episode.f:.3f}, below tau"
            return
        thought = self._think(episode)
        if self.fresh:
            episode.gap = float(self._effects(thought, [(thought.alive[:0], thought.alive[:0])]).gap[0]) + self.offset
        reach = 1.0  # how many cuts are thinkable, as a part of the circuit
        while reach * len(thought.alive) >= 1:
            edits = self._plan(episode, thought, reach)
            tried = self._try(episode, edits)
            if tried is not None:
                return
            reach = min(reach / 3, 1 / 3 if edits is None else float((len(thought.alive) - edits.size.min()) / len(thought.alive)) / 2)
        if not self._by_measuring(episode, thought):
            episode.done, episode.note = True, f"{len(thought.alive)} edges; no edit makes it smaller"

    # ---- planning ---------------------------------------------------------------------------------------------------

    def _think(self, episode: Episode) -> Thought:
        start, mask = self.start, episode.mask
        alive, outside = np.flatnonzero(mask), start.best_outside(mask, OUTSIDE)
        look = start.looker.look(mask, outside, episode.f)
        first = start.first.at(np.concatenate([look.alive, look.outside]))
        with torch.no_grad():
            edges = self.model.edges(see(start.model.graph, look, first), start.model.graph)
        cost = (edges.cost_fresh if self.fresh else edges.cost).cpu().numpy().astype(np.float64)
        return Thought(alive, outside, edges, cost[: len(alive)], cost[len(alive) :])

    def _plan(self, episode: Episode, thought: Thought, reach: float) -> Edits | None:
        """The edits to try, the best first."""
        n = len(thought.alive)
        cheap, promising = np.argsort(thought.cost, kind="stable"), np.argsort(-thought.gain, kind="stable")
        most = max(1, int(reach * n))
        cuts = np.unique(np.geomspace(1, min(most, n - 1), GRID).round().astype(int)) if n > 1 else np.ones(0, dtype=int)
        edits = [(cheap[:r], promising[:a]) for a in ADDITIONS if a <= n / 4 for r in cuts if r > a]
        if not edits:
            return None
        planned = self._effects(thought, edits)
        slack = max(episode.f - self._aim(episode.gap), 2e-3)
        level = episode.f - self._aim(planned.gap)  # what an edit may lose
        shifted = planned.mu + episode.bias * planned.sigma
        succeeds = _normal_cdf((_t(level) - shifted) / planned.sigma)
        loses = _t_inverse(shifted)
        gains = np.log(n / np.maximum(planned.size, 1))
        worth = succeeds * (gains - loses / (KAPPA * slack))
        smaller = planned.size < n
        if worth[smaller].max(initial=0) < LAST:
            worth = succeeds * gains
        chosen: list[int] = []
        for wanted in (worth, np.where(succeeds > 0.2, worth_of_bold(gains), -1), succeeds * (gains > 0.5 * gains[worth.argmax()]), worth):
            value = np.where(smaller, wanted, -np.inf)
            for i in chosen:  # something else
                value[np.abs(planned.size - planned.size[i]) <= 0.08 * (n - planned.size[i])] = -np.inf
            if np.isfinite(value).any() and len(chosen) < self.trials:
                chosen.append(int(value.argmax()))
        return planned.take(np.array(chosen)) if chosen else None

    def _effects(self, thought: Thought, edits: list[tuple[np.ndarray, np.ndarray]]) -> Edits:
        alive, outside = thought.alive, thought.outside
        cut = np.zeros((len(edits), len(alive)), dtype=np.float32)
        add = np.zeros((len(edits), len(outside)), dtype=np.float32)
        masks = np.zeros((len(edits), len(self.start.candidates)), dtype=bool)
        masks[:, alive] = True
        for i, (out, into) in enumerate(edits):
            cut[i, out], add[i, into] = 1, 1
            masks[i, alive[out]], masks[i, outside[into]] = False, True
        device = thought.edges.cost.device
        with torch.no_grad():
            effect = self.model.effect(thought.edges, torch.from_numpy(cut).to(device), torch.from_numpy(add).to(device))
        masks = self.start.prune(masks)
        mu, sigma = effect.mu.cpu().numpy(), effect.log_sigma.clamp(-3.5, 2).exp().cpu().numpy()
        gap = effect.gap.cpu().numpy() + self.offset if self.fresh else np.zeros(len(edits))
        return Edits(masks, masks.sum(1), mu.astype(np.float64), sigma.astype(np.float64), gap)

    def _aim(self, gap: np.ndarray | float) -> np.ndarray | float:
        """The f on the discovery pairs that is enough."""
        return self.tau + gap

    # ---- trying -----------------------------------------------------------------------------------------------------

    def _try(self, episode: Episode, edits: Edits | None) -> Episode | None:
        """Measures edits, learns from them, and takes the best if any is good enough."""
        if edits is None:
            return None
        f = self.start.f_of(edits.masks)
        z = (_t(episode.f - f) - edits.mu) / edits.sigma
        episode.bias = float(np.clip(0.6 * episode.bias + 0.4 * z.mean(), -2, 3))
        return self._take(episode, edits.masks, edits.size, f, edits.gap)

    def _take(self, episode: Episode, masks: np.ndarray, size: np.ndarray, f: np.ndarray, gap: np.ndarray) -> Episode | None:
        n = int(episode.mask.sum())
        slack = max(episode.f - self._aim(episode.gap), 2e-3)
        good = (f >= self._aim(gap)) & (size < n)
        if not good.any():
            return None
        worth = np.log(n / np.maximum(size, 1)) + (f - episode.f) / (KAPPA * slack)
        if worth[good].max() < LAST:  # the end is near
            worth = np.log(n / np.maximum(size, 1)) + 1e-3 * (f - episode.f)
        i = int(np.where(good, worth, -np.inf).argmax())
        episode.path.append(episode.mask)
        episode.mask, episode.f, episode.gap = masks[i], float(f[i]), float(gap[i])
        episode.note = f"{int(size[i])} edges"
        return episode

    def _by_measuring(self, episode: Episode, thought: Thought) -> bool:
        """Costs and gains of a few edges, one pass each, and trades among them."""
        cheap = np.argsort(thought.cost, kind="stable")[:MEASURED]
        promising = np.argsort(-thought.gain, kind="stable")[:MEASURED_GAINS]
        none = cheap[:0]
        singles = [(cheap[i : i + 1], none) for i in range(len(cheap))] + [(none, promising[i : i + 1]) for i in range(len(promising))]
        edits = self._effects(thought, singles)
        f = self.start.f_of(edits.masks)
        cost, gain = episode.f - f[: len(cheap)], f[len(cheap) :] - episode.f
        cheap, promising = cheap[np.argsort(cost, kind="stable")], promising[np.argsort(-gain, kind="stable")]
        cost, gain = np.sort(cost), -np.sort(-gain)
        slack, trades = episode.f - float(self._aim(episode.gap)), []
        for a in range(len(promising) + 1):
            room = slack + gain[:a].sum()
            r = int(np.searchsorted(np.cumsum(np.maximum(cost, 0)), room, side="right"))
            trades += [(cheap[:k], promising[:a]) for k in sorted({r, r - 1, a + 1}, reverse=True) if a < k <= len(cheap)]
        if not trades:
            return False
        planned = self._effects(thought, trades)
        for first in range(0, len(trades), self.trials):
            order = np.argsort(planned.size, kind="stable")[first : first + self.trials]
            some = planned.take(order)
            if self._take(episode, some.masks, some.size, self.start.f_of(some.masks), some.gap) is not None:
                return True
        return False


def worth_of_bold(gains: np.ndarray) -> np.ndarray:
    """Smaller is better."""
    return gains


def _t(x: np.ndarray | float) -> np.ndarray:
    return np.arcsinh(np.asarray(x) / 0.01)


def _t_inverse(x: np.ndarray) -> np.ndarray:
    return 0.01 * np.sinh(np.clip(x, -8, 8))


def _normal_cdf(x: np.ndarray) -> np.ndarray:
    return torch.special.ndtr(torch.from_numpy(np.asarray(x, dtype=np.float64))).numpy()
