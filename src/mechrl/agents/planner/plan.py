"""An episode: look, plan, try, take.

A circuit M of n edges has f ≥ the aim. A look and the network give every edge a cost, every edge outside a gain, and every edit (cuts,
additions) a prediction T(Δ) ~ Normal(μ, σ). Planned are edits that add the a best edges and cut the r cheapest. Their worth is

    J = log(n / n') − Δ / (1 − τ)

for what is left of f buys later cuts, and in the end all of 1 − τ buys a circuit about e times smaller: an edge goes where it costs less
than that, and stays where it costs more. A few edits are tried, one pass each: the one of highest expected J and, since the network may
be wrong, safer ones; bolder ones follow while the boldest holds. The best that reaches the aim is taken, and the agent looks again.

Every trial teaches: `bias` is how far trials fell short of what was predicted, in units of σ, and shifts what is expected next. Where all
trials fail, bolder edits are off the table, down to single edges. When plans promise little, or fail, the costs of the cheapest edges and
the gains of the best are measured one by one, and the next edits go by those. What was measured is remembered as long as the circuit is
much the same, and takes the place of what the network says. The episode ends when nothing is left to believe in.

On fresh pairs the aim is τ plus the network's predicted gap between f on the discovery pairs and f on others (session.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch

from mechrl.agents.planner.features import Seen, see
from mechrl.agents.planner.network import Edges, Effect
from mechrl.agents.planner.start import Start

ADDITIONS = (0, 1, 2, 3, 5, 8, 13, 21)
GRID = 28  # numbers of cuts that are thought about
TRIALS = 4  # at once
OUTSIDE = 1000  # edges that may be added
BOLDEST = 0.8  # of the circuit goes at most at once
LAST = 0.05  # of log n: when planned edits promise less, what is left of f is spent
BOLDER = (1.5, 2.2)  # times as many edges
BIAS = (-1.0, 6.0)  # its range, in σ
ROOM = 0.02  # of f above the aim; with more a round is never the last, however little it has won
SMALL = 150  # edges: when plans fail in so small a circuit, measuring comes next
SAME = 0.7  # a circuit of this part of the edges is much the same
MOST_TRADES = 8
PASSES_PER_EDGE = 12  # what a round may cost for every edge that goes
MEASURED = 10  # cuts, when plans have failed
MEASURED_GAINS = 4


class Model(Protocol):
    """What the agent plans with: the network, or its untrained control."""

    def edges(self, seen: Seen) -> Edges: ...

    def effect(self, edges: Edges, cut: torch.Tensor, add: torch.Tensor) -> Effect: ...


@dataclass
class Episode:
    """Where the agent stands. Masks are over the start's candidates."""

    mask: np.ndarray
    f: float
    gap: float = 0.0  # predicted f − f on fresh pairs
    bias: float = 0.0
    measured: np.ndarray = field(
        default_factory=lambda: np.zeros(0)
    )  # [n] f with an edge − f without it, NaN if unknown
    measured_at: int = 0  # edges of the circuit at which measuring began
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
    added: np.ndarray
    mu: np.ndarray
    sigma: np.ndarray
    gap: np.ndarray

    def and_(self, other: Edits) -> Edits:
        return Edits(
            *(np.concatenate([getattr(self, x), getattr(other, x)]) for x in self.__dataclass_fields__)
        )

    def take(self, index: np.ndarray) -> Edits:
        return Edits(*(x[index] for x in (self.masks, self.size, self.added, self.mu, self.sigma, self.gap)))


@dataclass
class Planner:
    """The agent on one start. `step` is one round; `run` goes on to the end."""

    start: Start
    model: Model
    tau: float
    fresh: bool = False  # aim at f on fresh pairs
    offset: float = 0.0  # added to the predicted gap; what validation pairs have taught

    def begin(self) -> Episode:
        return Episode(self.start.mask, self.start.f)

    def _forget(self, episode: Episode) -> None:
        """What was measured says little about a circuit that has become another."""
        n = int(episode.mask.sum())
        if not len(episode.measured) or n < SAME * episode.measured_at:
            episode.measured, episode.measured_at = np.full(len(episode.mask), np.nan), n

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
        passes, n = self.start.passes, int(episode.mask.sum())
        thought = self._think(episode)
        if self.fresh:
            episode.gap = float(self._effects(thought, [(thought.alive[:0], thought.alive[:0])]).gap[0])
        reach, found = 1.0, False  # how many cuts are thinkable, as a part of the circuit
        while not found and reach * n >= 1:
            edits = self._plan(episode, thought, reach)
            found = edits is not None and self._try(episode, thought, edits)
            if not found and n <= SMALL:
                break
            smallest = n / 3 if edits is None else (n - edits.size.max()) / 2
            reach = min(reach / 3, smallest / n)
        if not found:
            found = self._by_measuring(episode, thought)
        if not found:
            episode.done, episode.note = True, f"{n} edges; no edit makes it smaller"
            return
        won, spent = n - int(episode.mask.sum()), self.start.passes - passes
        if spent > PASSES_PER_EDGE * won and episode.f - self._aim(episode.gap) < ROOM:
            episode.done, episode.note = True, f"{n - won} edges; edits hardly make it smaller"

    # ---- planning ---------------------------------------------------------------------------------------------------

    def _think(self, episode: Episode) -> Thought:
        self._forget(episode)
        start, mask = self.start, episode.mask
        alive, outside = np.flatnonzero(mask), start.best_outside(mask, OUTSIDE)
        look = start.looker.look(mask, outside, episode.f)
        first = start.first.at(np.concatenate([look.alive, look.outside]))
        with torch.no_grad():
            edges = self.model.edges(see(start.graph, look, first))
        cost = (edges.cost_fresh if self.fresh else edges.cost).cpu().numpy().astype(np.float64)
        measured = episode.measured[np.concatenate([alive, outside])]
        known = np.isfinite(measured)
        cost[known] = measured[known]
        edges = replace(
            edges, cost=torch.where(torch.from_numpy(known), torch.from_numpy(measured), edges.cost).float()
        )
        return Thought(alive, outside, edges, cost[: len(alive)], cost[len(alive) :])

    def _plan(self, episode: Episode, thought: Thought, reach: float) -> Edits | None:
        """The edits to try, the best first."""
        n = len(thought.alive)
        cheap, promising = np.argsort(thought.cost, kind="stable"), np.argsort(-thought.gain, kind="stable")
        most = max(1, int(min(reach, BOLDEST) * n))
        cuts = (
            np.unique(np.geomspace(1, min(most, n - 1), GRID).round().astype(int))
            if n > 1
            else np.ones(0, dtype=int)
        )
        edits = [(cheap[:r], promising[:a]) for a in ADDITIONS if a <= n / 4 for r in cuts if r > a]
        if not edits:
            return None
        planned = self._effects(thought, edits)
        shifted = planned.mu + episode.bias * planned.sigma
        succeeds = _normal_cdf((_t(episode.f - self._aim(planned.gap)) - shifted) / planned.sigma)
        shrinks = np.log(n / np.maximum(planned.size, 1))
        worth = succeeds * (shrinks - _t_inverse(shifted) / (1 - self.tau))
        smaller = planned.size < n
        if worth[smaller].max(initial=0) < LAST:
            worth = succeeds * shrinks
        if not smaller.any():
            return None
        best = int(np.where(smaller, worth, -np.inf).argmax())
        goes = n - planned.size  # edges
        chosen = [best]
        # the best plan is the one most overestimated: half as many edges, a quarter, and fewer with other additions
        for wanted in (
            -np.abs(np.log(np.maximum(goes, 1) / (goes[best] / 2))),
            -np.abs(np.log(np.maximum(goes, 1) / (goes[best] / 4))),
            np.where((planned.added != planned.added[best]) & (goes <= 0.75 * goes[best]), worth, -np.inf),
        ):
            value = np.where(smaller, wanted + 1e-3 * succeeds, -np.inf)
            value[chosen] = -np.inf
            if np.isfinite(value).any():
                chosen.append(int(value.argmax()))
        return planned.take(np.array(chosen))

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
            effect = self.model.effect(
                thought.edges, torch.from_numpy(cut).to(device), torch.from_numpy(add).to(device)
            )
        masks = self.start.prune(masks)
        mu, sigma = effect.mu.cpu().numpy(), effect.log_sigma.clamp(-3.5, 2).exp().cpu().numpy()
        gap = effect.gap.cpu().numpy() + self.offset if self.fresh else np.zeros(len(edits))
        return Edits(masks, masks.sum(1), add.sum(1), mu.astype(np.float64), sigma.astype(np.float64), gap)

    def _aim(self, gap: np.ndarray | float) -> np.ndarray | float:
        """The f on the discovery pairs that is enough."""
        return self.tau + gap

    # ---- trying -----------------------------------------------------------------------------------------------------

    def _try(self, episode: Episode, thought: Thought, edits: Edits) -> bool:
        """Measures edits, learns from them, and takes the best if any is good enough. While the boldest is, still bolder ones are tried."""
        f = self._measure(episode, edits)
        while (bolder := self._bolder(episode, thought, edits, f)) is not None:
            f = np.concatenate([f, self._measure(episode, bolder)])
            edits = edits.and_(bolder)
        return self._take(episode, edits.masks, edits.size, f, edits.gap)

    def _measure(self, episode: Episode, edits: Edits) -> np.ndarray:
        f = self.start.f_of(edits.masks)
        z = (_t(episode.f - f) - edits.mu) / edits.sigma
        episode.bias = float(np.clip(0.5 * episode.bias + 0.5 * z.mean(), *BIAS))
        return f

    def _bolder(self, episode: Episode, thought: Thought, edits: Edits, f: np.ndarray) -> Edits | None:
        """Half as many edges again as the boldest, if that is what would be taken."""
        n = int(episode.mask.sum())
        boldest = int(edits.size.argmin())
        if self._best(episode, edits.size, f, edits.gap) != boldest:
            return None
        goes = [round(factor * (n - int(edits.size[boldest]))) for factor in BOLDER]
        cheap, promising = np.argsort(thought.cost, kind="stable"), np.argsort(-thought.gain, kind="stable")
        added = int(edits.added[boldest])
        some = [(cheap[: k + added], promising[:added]) for k in goes if k + added < n]
        if not some:
            return None
        planned = self._effects(thought, some)
        return planned if planned.size.min() < edits.size[boldest] else None

    def _take(
        self, episode: Episode, masks: np.ndarray, size: np.ndarray, f: np.ndarray, gap: np.ndarray
    ) -> bool:
        i = self._best(episode, size, f, gap)
        if i is None:
            return False
        episode.path.append(episode.mask)
        episode.mask, episode.f, episode.gap = masks[i], float(f[i]), float(gap[i])
        episode.note = f"{int(size[i])} edges"
        return True

    def _best(self, episode: Episode, size: np.ndarray, f: np.ndarray, gap: np.ndarray) -> int | None:
        """Which of the measured edits is worth most; None if none is good enough."""
        n = int(episode.mask.sum())
        good = (f >= self._aim(gap)) & (size < n)
        if not good.any():
            return None
        shrinks = np.log(n / np.maximum(size, 1))
        worth = shrinks + (f - episode.f) / (1 - self.tau)
        if worth[good].max() < LAST:  # the end is near
            worth = shrinks + 1e-3 * (f - episode.f)
        return int(np.where(good, worth, -np.inf).argmax())

    def _by_measuring(self, episode: Episode, thought: Thought) -> bool:
        """Measures costs and gains of a few edges, one pass each, and trades among all that were measured, as long as trades succeed."""
        value = np.full(len(episode.mask), np.nan)
        value[thought.alive], value[thought.outside] = thought.cost, thought.gain
        found = False
        while True:
            self._measure_some(episode, value)
            if not self._trade(episode):
                return found
            found = True

    def _measure_some(self, episode: Episode, value: np.ndarray) -> None:
        """The cheapest edges of the circuit, and the best outside of it, by what is known or else predicted (`value`)."""
        mask, known = episode.mask, episode.measured
        guess = np.where(np.isfinite(known), known, value)
        alive, outside = np.flatnonzero(mask), np.flatnonzero(~mask & np.isfinite(guess))
        cheap = alive[np.argsort(guess[alive], kind="stable")][:MEASURED]
        promising = outside[np.argsort(-guess[outside], kind="stable")][:MEASURED_GAINS]
        new = [e for e in (*cheap, *promising) if not np.isfinite(known[e])]
        if new:
            masks = np.repeat(mask[None], len(new), axis=0)
            masks[np.arange(len(new)), new] ^= True
            f = self.start.f_of(self.start.prune(masks))
            known[new] = np.where(mask[new], episode.f - f, f - episode.f)

    def _trade(self, episode: Episode) -> bool:
        """The best of a few edits, by the sums of measured costs and gains; the smallest circuits are tried first."""
        mask, known = episode.mask, episode.measured
        inside, outside = (np.flatnonzero(np.isfinite(known) & side) for side in (mask, ~mask))
        cheap = inside[np.argsort(known[inside], kind="stable")]
        promising = outside[np.argsort(-known[outside], kind="stable")][:MEASURED_GAINS]
        costs, slack = np.maximum(np.cumsum(known[cheap]), 0), episode.f - float(self._aim(episode.gap))
        trades = []
        for a in range(len(promising) + 1):
            if a and known[promising[a - 1]] <= 0:
                break
            r = int(np.searchsorted(costs, slack + known[promising[:a]].sum(), side="right"))
            for k in sorted({r, r - 1, (r + a) // 2}):
                if a < k <= len(cheap):
                    changed = mask.copy()
                    changed[cheap[:k]], changed[promising[:a]] = False, True
                    trades.append(changed)
        if not trades:
            return False
        masks = self.start.prune(np.unique(np.array(trades), axis=0))
        order = np.argsort(masks.sum(1), kind="stable")[:MOST_TRADES]
        for some in np.split(order, range(TRIALS, len(order), TRIALS)):
            gap = np.full(len(some), episode.gap)
            if self._take(episode, masks[some], masks[some].sum(1), self.start.f_of(masks[some]), gap):
                return True
        return False


def _t(x: np.ndarray | float) -> np.ndarray:
    return np.arcsinh(np.asarray(x) / 0.01)


def _t_inverse(x: np.ndarray) -> np.ndarray:
    return 0.01 * np.sinh(np.clip(x, -8, 8))


def _normal_cdf(x: np.ndarray) -> np.ndarray:
    return torch.special.ndtr(torch.from_numpy(np.asarray(x, dtype=np.float64))).numpy()
