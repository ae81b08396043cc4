"""Exchanges: a few edges come back, and more than these go.

One gradient at the circuit itself estimates what every edge in it costs to cut and what every edge outside would gain. It cannot be
trusted alone: where the circuit overshoots, its most important edges seem harmful. So f is measured without the edges that seem
cheapest, one pass for each, or in a large circuit for a few at a time. To first order costs and gains add up: the a best additions are
traded for the r cheapest removals, r > a, with r at or below the predicted limit. Trades are tried from the one that leaves the
smallest circuit on, a few at once, until some have f ≥ τ.

The best gains are those most overestimated. Before a *thorough* exchange fails, the gains of a few are measured as well, one pass for each,
and cuts are taken by their cost for each edge that goes, for edges that die with a cut cost nothing more.

Dead edges are pruned from every circuit tried: they cost nothing to cut.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np

GROUPS = (
    0.25,
    12,
    24,
)  # groups whose cost is measured, as a part of the circuit's edges, but at least and at most so many
GROUP = 1 / 80  # size of a group, as a part of the circuit; at least one edge
ADDITIONS = (0, 2, 5)
NEAR_LIMIT = (1.0, 0.75, 0.5, 0.25)  # the first only for single edges: costs of groups add up worse
AT_ONCE = 4  # trades
MEASURED = 6  # additions, in a thorough exchange
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


Judging = Generator[
    np.ndarray, np.ndarray, Trade | None
]  # yields circuits [C, n] bool and is sent their f [C]


def exchange(
    mask: np.ndarray,
    f: float,
    tau: float,
    gain: np.ndarray,
    prune: Callable[[np.ndarray], np.ndarray],
    size: int,
    thorough: bool = False,
) -> Judging:
    """Tries to make a circuit `mask` [n] of faithfulness f ≥ τ smaller; None if no trade does.

    gain: [n] −∂(KL / KL_cut)/∂M at the circuit, of edges inside and outside. prune: circuits [C, n] without their dead edges.
    size: of groups. thorough: measures gains too before it fails, where edges are traded one by one.
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
    """The smaller ones of circuits `trials` [C, n], the smallest first, a few at once, until some have f ≥ τ."""
    sizes = trials.sum(1)
    trials = trials[np.argsort(sizes, kind="stable")][: (sizes < mask.sum()).sum()]
    for first in range(0, len(trials), AT_ONCE):
        some = trials[first : first + AT_ONCE]
        judged = yield some
        if (judged >= tau).any():
            # what f has above tau is worth edges too: as many as it could pay for at the mean cost
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
