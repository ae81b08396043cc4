"""Exchanges: a few edges come back, and more than these go.

One gradient at the circuit itself estimates what every edge in it costs to cut and what every edge outside would gain. It cannot be
trusted alone: where the circuit overshoots, its most important edges seem harmful. So f is measured without the edges that seem
cheapest, one pass for each, or in a large circuit for a few at a time. To first order costs and gains add up: the a best additions are
traded for the r cheapest removals, r > a, with r at or below the predicted limit. Trades are tried from the one that leaves the
smallest circuit on, a few at once, until some have f ≥ τ.

Dead edges are pruned from every circuit tried: they cost nothing to cut.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np

GROUPS = (0.25, 12, 24)  # groups whose cost is measured, as a part of the circuit's edges, but at least and at most so many
GROUP = 1 / 80  # size of a group, as a part of the circuit; at least one edge
ADDITIONS = (0, 2, 5)
NEAR_LIMIT = (1.0, 0.75, 0.5, 0.25)  # the first only for single edges: costs of groups add up worse
AT_ONCE = 4  # trades
PASSES_PER_EDGE = 20  # what may be spent for every edge that goes, if more is to be spent


@dataclass(frozen=True)
class Trade:
    """The circuit after an exchange."""

    mask: np.ndarray  # [n]
    f: float
    cheap: np.ndarray  # the edges that were measured, cheapest first
    won: float  # edges fewer, and as many as f could pay for that rose, at the mean cost


def size_of_groups(edges: int, finer: int = 0) -> int:
    """Of edges measured together, in a circuit of so many, after groups were halved `finer` times."""
    return max(1, round(edges * GROUP) >> finer)


Judging = Generator[np.ndarray, np.ndarray, Trade | None]  # yields circuits [C, n] bool and is sent their f [C]


def exchange(
    mask: np.ndarray, f: float, tau: float, gain: np.ndarray, prune: Callable[[np.ndarray], np.ndarray], size: int
) -> Judging:
    """Tries to make a circuit `mask` [n] of faithfulness f ≥ τ smaller; None if no trade does.

    gain: [n] −∂(KL / KL_cut)/∂M at the circuit, of edges inside and outside. prune: circuits [C, n] without their dead edges.
    size: of groups.
    """
    alive, outside = np.flatnonzero(mask), np.flatnonzero(~mask)
    if not len(alive):
        return None
    best = outside[np.argsort(-gain[outside], kind="stable")]
    part, at_least, at_most = GROUPS
    cheap = alive[np.argsort(gain[alive], kind="stable")][: size * int(np.clip(part * len(alive), at_least, at_most))]
    groups = [cheap[i : i + size] for i in range(0, len(cheap), size)]
    cost = f - (yield prune(np.stack([changed(mask, group) for group in groups])))
    order = np.argsort(cost, kind="stable")
    cheap, cost = np.concatenate([groups[i] for i in order]), np.maximum(cost[order], 0.0)

    trades = []
    for a in ADDITIONS:
        limit = int(np.searchsorted(np.cumsum(cost), f - tau + gain[best[:a]].sum(), side="right"))
        removals = {a + 1, *(round(near * limit) * size for near in NEAR_LIMIT[size > 1 :])}
        trades += [changed(mask, cheap[:r], best[:a]) for r in sorted(removals) if a < r <= len(cheap)]
    trials = prune(np.stack([mask, *trades]))
    sizes = trials.sum(1)
    trials = trials[np.argsort(sizes, kind="stable")][: (sizes < mask.sum()).sum()]
    for first in range(0, len(trials), AT_ONCE):
        some = trials[first : first + AT_ONCE]
        judged = yield some
        if (judged >= tau).any():
            # what f has above tau is worth edges too: as many as it could pay for at the mean cost
            per_edge = max(cost.mean() / size, 1e-9)
            worth = (judged - tau) / per_edge
            i = int(np.where(judged >= tau, some.sum(1) - worth, np.inf).argmin())
            won = mask.sum() - some[i].sum() + max(0.0, (judged[i] - f) / per_edge)
            return Trade(some[i], float(judged[i]), cheap, float(won))
    return None


def changed(mask: np.ndarray, cut: np.ndarray | list[int], add: np.ndarray | Sequence[int] = ()) -> np.ndarray:
    mask = mask.copy()
    mask[cut] = False
    mask[np.asarray(add, dtype=int)] = True
    return mask
