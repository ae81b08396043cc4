"""Swaps: single edges are measured, one pass each, and the cheapest go for the best that come back.

Where plans fail or win little, predictions are too coarse. So the costs of the edges that seem cheapest are measured, and the gains of
the most promising outside. An edit that cuts R and adds A is expected to cost

    x Σ_R cost − Σ_A gain

where the excess x ≥ 1 is what cutting several edges has cost so far, in sums of their single costs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mechrl.agents.planner.episode import Episode

CUTS = 10  # measured at a time
GAINS = 4
SHARES = (1, 0.67, 0.34, 0)  # of the most edges that could go; one trial each
LARGEST_EXCESS = 4.0


@dataclass(frozen=True)
class Swaps:
    """Edits to try, [T] each."""

    masks: np.ndarray
    lost: np.ndarray  # sums of the costs of what goes
    won: np.ndarray  # sums of the gains of what comes back


def worth_measuring(episode: Episode, predicted: np.ndarray) -> np.ndarray:
    """The cheapest edges and the best additions by what is known, else `predicted`, that were not measured yet."""
    mask, known = episode.mask, episode.measured
    guess = np.where(np.isfinite(known), known, predicted)
    inside, outside = np.flatnonzero(mask), np.flatnonzero(~mask & np.isfinite(guess))
    cheap = inside[np.argsort(guess[inside], kind="stable")][:CUTS]
    promising = outside[np.argsort(-guess[outside], kind="stable")][:GAINS]
    chosen = np.concatenate([cheap, promising])
    unknown: np.ndarray = chosen[~np.isfinite(known[chosen])]
    return unknown


def swaps(episode: Episode, slack: float) -> Swaps | None:
    """The edit that removes the most edges for `slack` of f, and some that remove fewer."""
    mask, known = episode.mask, episode.measured
    inside, outside = (np.flatnonzero(np.isfinite(known) & side) for side in (mask, ~mask))
    cheap = inside[np.argsort(known[inside], kind="stable")]
    promising = outside[np.argsort(-known[outside], kind="stable")]
    promising = promising[known[promising] > 0]
    lost = np.cumsum(known[cheap].clip(min=0))
    won = np.concatenate([[0], np.cumsum(known[promising])])
    a, r = np.meshgrid(np.arange(len(won)), np.arange(1, len(cheap) + 1), indexing="ij")
    left = slack + won[a] - episode.excess * lost[r - 1]  # of the slack
    removed = r - a
    possible = (removed > 0) & (left >= 0)
    if not possible.any():
        single = removed == 1
        if not single.any():
            return None
        possible = single & (left >= left[single].max())
    most = removed[possible].max()
    chosen: list[tuple[int, int]] = []
    for share in SHARES:
        enough = possible & (removed <= max(1, round(share * most)))
        value = np.where(enough, removed + 10 * left, -np.inf)
        place = np.unravel_index(int(value.argmax()), value.shape)
        best = int(place[0]), int(place[1])
        if np.isfinite(value[best]) and best not in chosen:
            chosen.append(best)
    masks = np.repeat(mask[None], len(chosen), axis=0)
    for row, best in zip(masks, chosen, strict=True):
        row[cheap[: r[best]]], row[promising[: a[best]]] = False, True
    return Swaps(masks, np.array([lost[r[x] - 1] for x in chosen]), np.array([won[a[x]] for x in chosen]))


def learn_excess(episode: Episode, tried: Swaps, f: np.ndarray) -> None:
    """What the trials cost, in sums of single costs, shifts what the next are expected to."""
    seen = float(np.median((episode.f - f + tried.won) / np.maximum(tried.lost, 1e-4)))
    episode.excess = float(np.clip(0.5 * (episode.excess + seen), 1.0, LARGEST_EXCESS))
