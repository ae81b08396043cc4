"""Fresh pairs: what the agent aims at to hold on pairs it has not seen, and the validation pairs that judge it.

The network predicts the gap between f on the discovery pairs and f on others, so the agent aims at τ + gap. Validation pairs correct
that prediction where it decides: when plans run out, and while swaps, which overfit, make the circuit smaller. If a circuit falls short
of τ on them, the episode reverts to its last circuit that holds. It continues from there once, if that circuit is much larger; otherwise
it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mechrl.agents.planner.episode import Episode
from mechrl.search.fresh_pairs import step_back

ROOM = 0.01  # of f on validation pairs above tau: with more left, the aim comes down and planning goes on
SHRUNK = 0.9  # swaps are judged whenever the circuit has shrunk to this share


@dataclass
class Fresh:
    """The aim on fresh pairs, and what validation pairs have said."""

    tau: float
    # f of a circuit on validation pairs; None: the prediction is all there is
    measure: Callable[[np.ndarray], float] | None
    offset: float = 0.0  # added to the predicted gap
    judged: int = 0  # edges of the circuit that was judged last
    again: bool = False  # the episode has continued after it reverted
    # the smallest circuit that holds, with its f; if none does at the end, the most faithful
    best: tuple[np.ndarray, float] | None = None

    def due(self, episode: Episode, shrunk: float = 1.0) -> bool:
        """Whether there is something new to judge: a circuit of at most `shrunk` times the edges of the last."""
        smaller = not self.judged or episode.size < self.judged
        return self.measure is not None and smaller and episode.size <= shrunk * (self.judged or np.inf)

    def anchor(self, episode: Episode) -> None:
        """After a look: the gap of a circuit that validation pairs have measured is what they say, not the network's prediction.

        Not once a circuit has fallen short: what was learned there is worth more for circuits as small.
        """
        if self.best is not None and not self.again and np.array_equal(self.best[0], episode.mask):
            measured = episode.f - self.best[1]
            self.offset += measured - episode.gap
            episode.gap = measured

    def judge(self, episode: Episode) -> bool:
        """Measures the circuit on validation pairs and corrects the aim; reverts if f < τ. Whether there is room to plan on."""
        assert self.measure is not None
        f = self.measure(episode.mask)
        self.offset += episode.f - f - episode.gap
        episode.gap = episode.f - f
        self.judged = episode.size
        if f < self.tau:
            return self._revert(episode, f)
        self.best = episode.mask, f
        return f >= self.tau + ROOM

    def _revert(self, episode: Episode, f: float) -> bool:
        """Finds the last circuit on the path that holds. Whether the episode continues from it."""
        measure = self.measure
        assert measure is not None
        known = np.inf if self.best is None else self.best[0].sum()
        path = [mask for mask in episode.path if mask.sum() < known]
        steps, found = step_back(
            np.array([len(path)]),
            np.array([f]),
            self.tau,
            lambda _, steps: np.array([measure(path[step]) for step in steps]),
        )
        if self.best is None or found[0] >= self.tau:
            self.best = [*path, episode.mask][steps[0]], float(found[0])
        mask, f = self.best
        if f < self.tau:
            episode.end(f"{mask.sum()} edges; no circuit on the way holds on validation pairs")
        elif self.again or self.judged > SHRUNK * mask.sum():
            episode.end(f"{mask.sum()} edges; smaller circuits fall short on validation pairs")
        else:
            self.again, self.judged = True, int(mask.sum())
            episode.go_back(mask)
        return not episode.done
