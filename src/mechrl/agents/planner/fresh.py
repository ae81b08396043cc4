"""Fresh pairs: what the agent aims at to hold on pairs it has not seen, and the validation pairs that judge it.

The network predicts the gap between f on the discovery pairs and f on others, so the agent aims at τ + gap. Validation pairs correct
that prediction where it decides: when plans run out, and while swaps, which overfit, make the circuit smaller. If a circuit falls short
of τ on them, the episode is read back to its last circuit that holds. It goes on from there once, if that is much larger; else it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mechrl.agents.planner.episode import Episode

ROOM = 0.01  # of f on validation pairs above tau: with more left, the aim comes down and planning goes on
SHRUNK = 0.9  # swaps are judged whenever the circuit has shrunk to this share


@dataclass
class Fresh:
    """The aim on fresh pairs, and what validation pairs have said."""

    tau: float
    measure: (
        Callable[[np.ndarray], float] | None
    )  # f of a circuit on validation pairs; None: the network's word is all
    offset: float = 0.0  # added to the predicted gap
    judged: int = 0  # edges of the circuit that was judged last
    again: bool = False  # the episode has gone on after it was read back
    best: tuple[np.ndarray, float] | None = (
        None  # the smallest circuit that holds, else the most faithful; f on them
    )

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
        """Measures the circuit on validation pairs and corrects the aim. Whether there is room to plan on; if f < τ, reads back."""
        f = self._ask(episode.mask)
        self.offset += episode.f - f - episode.gap
        episode.gap = episode.f - f
        self.judged = episode.size
        return f >= self.tau + ROOM if f >= self.tau else self._read_back(episode)

    def _ask(self, mask: np.ndarray) -> float:
        assert self.measure is not None
        f = self.measure(mask)
        if self.best is None or (f >= self.tau or f > self.best[1]):
            self.best = mask, f
        return f

    def _read_back(self, episode: Episode) -> bool:
        """Finds the last circuit on the path that holds, by bisection as if f fell all along. Whether the episode goes on from it."""
        assert self.best is not None
        known = self.best[0].sum() if self.best[1] >= self.tau else np.inf
        path = [mask for mask in episode.path if mask.sum() < known]
        low, high = -1, len(path)  # holds at low, falls short at high
        while high - low > 1:
            middle = (low + high) // 2
            if self._ask(path[middle]) >= self.tau:
                low = middle
            else:
                high = middle
        mask, f = self.best
        if f < self.tau:
            episode.end(f"{mask.sum()} edges; no circuit on the way holds on validation pairs")
        elif self.again or self.judged > SHRUNK * mask.sum():
            episode.end(f"{mask.sum()} edges; smaller circuits fall short on validation pairs")
        else:
            self.again, self.judged = True, int(mask.sum())
            episode.go_back(mask)
        return not episode.done
