"""Swaps: bring a few edges back and cut more.

One gradient at the circuit estimates the cost of cutting each of its edges and the gain of adding each edge outside. These estimates are
not reliable enough: where a circuit overshoots, its most important edges seem harmful. So the edges that seem cheapest are measured, one
pass each, or in groups if the circuit is large. To first order costs and gains add up, so the a best additions are swapped for the r
cheapest removals, with r > a and r up to the predicted limit. Swaps are tried in order of the size they lead to, smallest first, a few at
once, until one has f ≥ τ.

The highest gains are the most overestimated. Before a *thorough* swap fails, a few gains are measured as well, one pass each, and cuts are
ranked by cost per removed edge, since edges that become dead are removed for free.

Dead edges are pruned from every circuit; cutting them costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np

GROUPS = (0.25, 12, 24)  # number of groups to measure: share of the circuit's edges; at least; at most
GROUP = 1 / 80  # size of a group, as a share of the circuit; at least one edge
ADDITIONS = (0, 2, 5)
NEAR_LIMIT = (1.0, 0.75, 0.5, 0.25)  # 1.0 only for single edges: the costs of groups add up less well
AT_ONCE = 4  # swaps tried in one call
MEASURED = 6  # additions measured in a thorough swap
PASSES_PER_EDGE = 20  # what a swap may cost per removed edge; beyond this it is the last


@dataclass(frozen=True)
class Trade:
    """The circuit after a swap."""

    mask: np.ndarray  # [n]
    f: float
    cheap: np.ndarray  # the edges that were measured, by rising cost
    won: float  # removed edges, plus those that a rise in f could pay for at the mean cost


def size_of_groups(edges: int, finer: int = 0) -> int:
    """How many edges are measured together in a circuit of `edges`, after groups were halved `finer` times."""
    return max(1, round(edges * GROUP) >> finer)


# yields circuits [C, n] bool and is sent their f [C]
Judging = Generator[np.ndarray, np.ndarray, Trade | None]


def exchange(
    mask: np.ndarray,
    f: float,
    tau: float,
    gain: np.ndarray,
    prune: Callable[[np.ndarray], np.ndarray],
    size: int,
    thorough: bool = False,
) -> Judging:
    """Makes a circuit `mask` [n] with f ≥ τ smaller; None if no swap does.

    gain: [n] −∂(KL / KL_cut)/∂M at the circuit, for edges inside and outside. prune: removes dead edges from circuits [C, n]. size: of
    groups. thorough: before it fails, also measure gains, if edges are swapped one by one.
    """
    alive, outside = np.flatnonzero(mask), np.flatnonzero(~mask)
    if not len(alive):
        return None
    best = outside[np.argsort(-gain[outside], kind="stable")]
    part, at_least, at_most = GROUPS
    cheap = alive[np.argsort(gain[alive], kind="stable")][
        : size * int(np.clip(part * len(alive), at_least, at_most))
    ]
    groups = [cheap[i : i + size] for i in range(0, len(cheap), size)]
    without = prune(np.stack([changed(mask, group) for group in groups]))
    measured = f - (yield without)
    order = np.argsort(measured, kind="stable")
    cheap, cost = np.concatenate([groups[i] for i in order]), np.maximum(measured[order], 0.0)
    per_edge = max(cost.mean() / size, 1e-9)

    trades = []
    for a in ADDITIONS:
        limit = int(np.searchsorted(np.cumsum(cost), f - tau + gain[best[:a]].sum(), side="right"))
        removals = {a + 1, *(round(near * limit) * size for near in NEAR_LIMIT[size > 1 :])}
        trades += [changed(mask, cheap[:r], best[:a]) for r in sorted(removals) if a < r <= len(cheap)]
    found = yield from _try(mask, f, tau, prune(np.stack([mask, *trades])), cheap, per_edge)
    if found is not None or size > 1 or not thorough:
        return found

    few = best[:MEASURED]
    if not len(few):
        return None
    rise = (yield prune(np.stack([changed(mask, [], [edge]) for edge in few]))) - f
    rank = np.argsort(-rise, kind="stable")
    few, rise = few[rank], np.maximum(rise[rank], 0.0)
    worthwhile = np.argsort(measured / (mask.sum() - without.sum(1)), kind="stable")
    trades = []
    for a in range(len(few)):
        room, left = f - tau + rise[:a].sum(), mask
        cut: list[int] = []
        for i in worthwhile:
            if left[groups[i][0]] and measured[i] <= room:
                room, left, cut = room - max(measured[i], 0.0), left & without[i], [*cut, int(groups[i][0])]
        trades.append(changed(mask, cut, few[:a]))
    return (yield from _try(mask, f, tau, prune(np.stack([mask, *trades])), cheap, per_edge))


def _try(
    mask: np.ndarray, f: float, tau: float, trials: np.ndarray, cheap: np.ndarray, per_edge: float
) -> Judging:
    """Tries circuits `trials` [C, n] that are smaller than `mask`, smallest first, a few at once, until one has f ≥ τ."""
    sizes = trials.sum(1)
    trials = trials[np.argsort(sizes, kind="stable")][: (sizes < mask.sum()).sum()]
    for first in range(0, len(trials), AT_ONCE):
        some = trials[first : first + AT_ONCE]
        judged = yield some
        if (judged >= tau).any():
            # f − τ is worth as many edges as it could pay for at the mean cost
            worth = (judged - tau) / per_edge
            i = int(np.where(judged >= tau, some.sum(1) - worth, np.inf).argmin())
            won = mask.sum() - some[i].sum() + max(0.0, (judged[i] - f) / per_edge)
            return Trade(some[i], float(judged[i]), cheap, float(won))
    return None


def changed(
    mask: np.ndarray, cut: np.ndarray | list[int], add: np.ndarray | Sequence[int] = ()
) -> np.ndarray:
    mask = mask.copy()
    mask[cut] = False
    mask[np.asarray(add, dtype=int)] = True
    return mask
