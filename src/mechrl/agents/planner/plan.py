"""The agent: look, predict, try, take.

A circuit M of n edges has f ≥ the aim. A look and the network give every edge a cost, every edge outside a gain, and every edit (cuts,
additions) a prediction T(Δ) ~ Normal(μ, σ). Edits cut the r edges of least risk, cost + doubt, and add the a most promising. An edit
that leaves n' edges is worth

    J = log(n / n') − PRICE · Δ

because f that is left over pays for later cuts. The edit of highest expected J is tried, one pass, and three safer ones beside it; bolder
ones follow while the boldest holds. The best that reaches the aim is taken, and the agent looks again.

Every trial teaches. `bias` is how far trials fell short of their predictions, in σ, and shifts the next. If all trials of a round fail, the
next are smaller, down to single edges. Where plans win little, single edges are measured and swapped (swap.py). The episode
ends when a round costs more passes than the edges it removed are worth.

On fresh pairs the aim is τ plus the predicted gap between f on the discovery pairs and f on others (fresh.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from mechrl.agents.planner import swap
from mechrl.agents.planner.episode import Episode
from mechrl.agents.planner.features import Seen, see
from mechrl.agents.planner.fresh import SHRUNK, Fresh
from mechrl.agents.planner.network import Edges, Effect
from mechrl.agents.planner.start import Start

ADDITIONS = (0, 1, 2, 3, 5, 8, 13, 21)
ADDED_SHARES = (0.02, 0.04, 0.08, 0.16)  # of a large circuit
GRID = 28  # numbers of cuts considered
OUTSIDE = 1000  # edges considered for addition
PRICE = 6.0  # of f, in log n
LARGEST_CUT = 0.8  # share of the circuit
LAST = 0.05  # of log n: when edits promise less, what is left of f is spent
BOLDER = (1.6, 2.5)  # times as many edges
BIAS = (-1.0, 6.0)  # its range, in σ
HIGHEST_AIM = 0.7  # on the way from tau to 1
ROOM = 0.02  # of f above the aim; with more left a round is never the last
SMALL = 150  # edges: when plans fail in so small a circuit, measuring comes next
PASSES_PER_EDGE = 12  # what a round may cost for every edge that goes


class Predictor(Protocol):
    """What the agent plans with: the network, or its untrained control."""

    def edges(self, seen: Seen) -> Edges: ...

    def effect(self, edges: Edges, cut: torch.Tensor, add: torch.Tensor) -> Effect: ...


@dataclass(frozen=True)
class Prediction:
    """What the network makes of a look. Places are among the candidates."""

    alive: np.ndarray  # [n]
    outside: np.ndarray  # [m]
    edges: Edges
    cost: np.ndarray  # [n]
    gain: np.ndarray  # [m]
    safest: np.ndarray  # [n] the circuit's edges by risk
    promising: np.ndarray  # [m] the others by gain


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
    model: Predictor
    tau: float
    fresh: Fresh | None = None  # aim at f on fresh pairs
    watch: Callable[[], None] = lambda: None  # called within rounds, which can be long; may raise

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
            episode.end(f"{episode.size} edges have f = {episode.f:.3f}, below tau")
            return
        passes, n = self.start.passes, episode.size
        seen = self._predict(episode)
        if self.fresh:
            nothing = seen.alive[:0]
            episode.gap = float(self._effects(seen, [(nothing, nothing)]).gap[0])
            self.fresh.anchor(episode)
        found = self._by_planning(episode, seen)
        if (found and not self._poor(episode, n, passes)) or self._judged(episode):
            return
        swapped, judged = self._by_measuring(episode, seen)
        found = found or swapped
        if judged or (found and not self._poor(episode, n, passes)) or self._judged(episode):
            return
        episode.end(
            f"{episode.size} edges; edits hardly make it smaller"
            if found
            else f"{n} edges; no edit makes it smaller"
        )

    def finish(self, episode: Episode, why: str) -> None:
        """Ends an episode that could go on."""
        if not episode.done:
            self._judged(episode)
        if not episode.done:
            episode.end(f"{episode.size} edges; {why}")

    def _judged(self, episode: Episode, shrunk: float = 1.0) -> bool:
        """Lets validation pairs judge a circuit that is new to them. Whether that moved the aim or the circuit, or ended the episode."""
        if episode.done or self.fresh is None or not self.fresh.due(episode, shrunk):
            return episode.done
        goes_on = self.fresh.judge(episode)
        if np.isnan(episode.f):
            episode.f = float(self.start.f_of(episode.mask)[0])
        return goes_on or episode.done

    def _by_planning(self, episode: Episode, seen: Prediction) -> bool:
        """Tries plans, smaller ones after each failure."""
        n, reach = episode.size, 1.0  # the share of the circuit that a plan may cut
        while reach * n >= 1:
            edits = self._plan(episode, seen, reach)
            if edits is not None and self._try(episode, seen, edits):
                return True
            if n <= SMALL:
                return False
            smallest = n / 3 if edits is None else (n - edits.size.max()) / 2
            reach = min(reach / 3, smallest / n)
        return False

    def _poor(self, episode: Episode, n: int, passes: float) -> bool:
        """Whether what was spent since the circuit had n edges was not worth it."""
        won, spent = n - episode.size, self.start.passes - passes
        return spent > PASSES_PER_EDGE * won and bool(episode.f - self._aim(episode.gap) < ROOM)

    # ---- planning ---------------------------------------------------------------------------------------------------

    def _predict(self, episode: Episode) -> Prediction:
        """Looks at the circuit. What was measured takes the place of what the network says."""
        episode.forget()
        start, mask, path = self.start, episode.mask, episode.known_path()
        alive, outside = np.flatnonzero(mask), start.best_outside(mask, OUTSIDE)
        look = start.looker.look(mask, outside, episode.f, path)
        episode.remember_path(look.gains[0], anew=path is None)
        first = start.first.at(np.concatenate([look.alive, look.outside]))
        with torch.no_grad():
            edges = self.model.edges(see(start.graph, look, first))
        cost = (edges.cost_fresh if self.fresh else edges.cost).cpu().numpy().astype(np.float64)
        doubt = edges.doubt.cpu().numpy().astype(np.float64)
        measured = episode.measured[np.concatenate([alive, outside])]
        known = np.isfinite(measured)
        cost[known], doubt[known] = measured[known], 0
        both = torch.where(torch.from_numpy(known), torch.from_numpy(measured), edges.cost).float()
        n = len(alive)
        return Prediction(
            alive,
            outside,
            replace(edges, cost=both),
            cost[:n],
            cost[n:],
            np.argsort(cost[:n] + doubt[:n], kind="stable"),
            np.argsort(-cost[n:], kind="stable"),
        )

    def _plan(self, episode: Episode, seen: Prediction, reach: float) -> Edits | None:
        """The edits to try, the best first."""
        n = len(seen.alive)
        cheap, promising = seen.safest, seen.promising
        most = max(1, int(min(reach, LARGEST_CUT) * n))
        cuts = (
            np.unique(np.geomspace(1, min(most, n - 1), GRID).round().astype(int))
            if n > 1
            else np.ones(0, dtype=int)
        )
        edits = [(cheap[:r], promising[:a]) for a in additions(n) for r in cuts if r > a]
        if not edits:
            return None
        planned = self._effects(seen, edits)
        shifted = planned.mu + episode.bias * planned.sigma
        succeeds = _normal_cdf((_t(episode.f - self._aim(planned.gap)) - shifted) / planned.sigma)
        shrinks = np.log(n / np.maximum(planned.size, 1))
        worth = succeeds * (shrinks - PRICE * _t_inverse(shifted))
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

    def _effects(self, seen: Prediction, edits: list[tuple[np.ndarray, np.ndarray]]) -> Edits:
        alive, outside = seen.alive, seen.outside
        cut = np.zeros((len(edits), len(alive)), dtype=np.float32)
        add = np.zeros((len(edits), len(outside)), dtype=np.float32)
        masks = np.zeros((len(edits), len(self.start.candidates)), dtype=bool)
        masks[:, alive] = True
        for i, (out, into) in enumerate(edits):
            cut[i, out], add[i, into] = 1, 1
            masks[i, alive[out]], masks[i, outside[into]] = False, True
        device = seen.edges.cost.device
        with torch.no_grad():
            effect = self.model.effect(
                seen.edges, torch.from_numpy(cut).to(device), torch.from_numpy(add).to(device)
            )
        masks = self.start.prune(masks)
        mu, sigma = effect.mu.cpu().numpy(), effect.log_sigma.clamp(-3.5, 2).exp().cpu().numpy()
        gap = np.zeros(len(edits)) if self.fresh is None else effect.gap.cpu().numpy() + self.fresh.offset
        return Edits(masks, masks.sum(1), add.sum(1), mu.astype(np.float64), sigma.astype(np.float64), gap)

    def _aim(self, gap: np.ndarray | float) -> np.ndarray | float:
        """The f on the discovery pairs that is enough: at least τ, and never out of reach, whatever gap is expected."""
        return self.tau + np.clip(gap, 0, HIGHEST_AIM * (1 - self.tau))

    # ---- trying -----------------------------------------------------------------------------------------------------

    def _try(self, episode: Episode, seen: Prediction, edits: Edits) -> bool:
        """Measures edits, learns from them, and takes the best if any is good enough. While the boldest is, still bolder ones are tried."""
        self.watch()
        f = self._measure(episode, edits)
        while (bolder := self._bolder(episode, seen, edits, f)) is not None:
            f = np.concatenate([f, self._measure(episode, bolder)])
            edits = edits.and_(bolder)
        return self._take(episode, edits.masks, edits.size, f, edits.gap)

    def _measure(self, episode: Episode, edits: Edits) -> np.ndarray:
        f = self.start.f_of(edits.masks)
        z = (_t(episode.f - f) - edits.mu) / edits.sigma
        episode.bias = float(np.clip(0.5 * episode.bias + 0.5 * z.mean(), *BIAS))
        return f

    def _bolder(self, episode: Episode, seen: Prediction, edits: Edits, f: np.ndarray) -> Edits | None:
        """Half as many edges again as the boldest, if that is what would be taken."""
        n = episode.size
        boldest = int(edits.size.argmin())
        if self._best(episode, edits.size, f, edits.gap) != boldest:
            return None
        goes = [round(factor * (n - int(edits.size[boldest]))) for factor in BOLDER]
        cheap, promising = seen.safest, seen.promising
        added = int(edits.added[boldest])
        some = [(cheap[: k + added], promising[:added]) for k in goes if k + added < n]
        if not some:
            return None
        planned = self._effects(seen, some)
        return planned if planned.size.min() < edits.size[boldest] else None

    def _take(
        self, episode: Episode, masks: np.ndarray, size: np.ndarray, f: np.ndarray, gap: np.ndarray
    ) -> bool:
        i = self._best(episode, size, f, gap)
        if i is None:
            return False
        episode.move(masks[i], float(f[i]), float(gap[i]))
        return True

    def _best(self, episode: Episode, size: np.ndarray, f: np.ndarray, gap: np.ndarray) -> int | None:
        """Which of the measured edits is worth most; None if none is good enough."""
        n = episode.size
        good = (f >= self._aim(gap)) & (size < n)
        if not good.any():
            return None
        shrinks = np.log(n / np.maximum(size, 1))
        worth = shrinks + PRICE * (f - episode.f)
        if worth[good].max() < LAST:  # the end is near
            worth = shrinks + 1e-3 * (f - episode.f)
        return int(np.where(good, worth, -np.inf).argmax())

    def _by_measuring(self, episode: Episode, seen: Prediction) -> tuple[bool, bool]:
        """Measures a few edges and swaps among all that were measured, as long as that succeeds. Whether it did; see `_judged`."""
        predicted = np.full(len(episode.mask), np.nan)
        predicted[seen.alive], predicted[seen.outside] = seen.cost, seen.gain
        found = False
        while True:
            self.watch()
            self._measure_singles(episode, swap.worth_measuring(episode, predicted))
            if not self._swap(episode):
                return found, False
            found = True
            if self._judged(episode, SHRUNK):
                return True, True

    def _measure_singles(self, episode: Episode, edges: np.ndarray) -> None:
        """What cutting, or adding, each edge alone does."""
        if not len(edges):
            return
        masks = np.repeat(episode.mask[None], len(edges), axis=0)
        masks[np.arange(len(edges)), edges] ^= True
        f = self.start.f_of(self.start.prune(masks))
        episode.measured[edges] = np.where(episode.mask[edges], episode.f - f, f - episode.f)

    def _swap(self, episode: Episode) -> bool:
        """Two attempts: the first teaches the second how costs add up."""
        for _ in range(2):
            tried = swap.swaps(episode, episode.f - float(self._aim(episode.gap)))
            if tried is None:
                return False
            masks = self.start.prune(tried.masks)
            f = self.start.f_of(masks)
            swap.learn_excess(episode, tried, f)
            if self._take(episode, masks, masks.sum(1), f, np.full(len(f), episode.gap)):
                return True
        return False


def additions(n: int) -> list[int]:
    """Numbers of edges that plans add to a circuit of n."""
    few = {a for a in ADDITIONS if a <= n / 4}
    return sorted(few | {round(part * n) for part in ADDED_SHARES if part * n > ADDITIONS[-1]})


def _t(x: np.ndarray | float) -> np.ndarray:
    t: np.ndarray = np.arcsinh(np.asarray(x) / 0.01)
    return t


def _t_inverse(x: np.ndarray) -> np.ndarray:
    lost: np.ndarray = 0.01 * np.sinh(np.clip(x, -8, 8))
    return lost


def _normal_cdf(x: np.ndarray) -> np.ndarray:
    p: np.ndarray = torch.special.ndtr(torch.from_numpy(np.asarray(x, dtype=np.float64))).numpy()
    return p
