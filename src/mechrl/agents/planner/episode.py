"""Where an episode stands: the circuit, what was measured at it, and what trials have taught."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

SAME = 0.7  # a circuit that kept this share of its edges is much the same


@dataclass
class Episode:
    """Masks are over the start's candidates."""

    mask: np.ndarray
    f: float
    gap: float = 0.0  # predicted f − f on fresh pairs
    bias: float = 0.0  # by how many σ trials fell short of their prediction
    excess: float = 1.0  # what cutting several edges cost, in sums of their single costs
    measured: np.ndarray = field(
        default_factory=lambda: np.zeros(0)
    )  # [n] measured costs and gains, else NaN
    measured_at: int = 0  # edges of the circuit when measuring began
    path_mask: np.ndarray | None = None  # [n] the circuit whose path was last looked at ...
    path_gains: np.ndarray | None = None  # [Q, n] ... and the gradients seen there, else NaN
    path: list[np.ndarray] = field(default_factory=list)  # the circuits so far
    rounds: int = 0
    done: bool = False
    note: str = ""

    @property
    def size(self) -> int:
        return int(self.mask.sum())

    def forget(self) -> None:
        """Drops what was measured at a circuit that has become another."""
        if not len(self.measured) or self.size < SAME * self.measured_at:
            self.measured, self.measured_at = np.full(len(self.mask), np.nan), self.size

    def known_path(self) -> np.ndarray | None:
        """[Q, edges] gradients on the path to a circuit much like this one; None if there was no such circuit."""
        if self.path_mask is None or self.path_gains is None:
            return None
        shared = (self.path_mask & self.mask).sum()
        if shared < SAME * max(self.path_mask.sum(), self.size):
            return None
        return self.path_gains[:, self.mask]

    def remember_path(self, gains: np.ndarray, anew: bool) -> None:
        """`gains` [Q, edges] were used for this circuit; `anew`: they were taken at it."""
        if anew or self.path_gains is None:
            self.path_mask = self.mask.copy()
            self.path_gains = np.full((len(gains), len(self.mask)), np.nan, dtype=np.float32)
        self.path_gains[:, self.mask] = gains

    def move(self, mask: np.ndarray, f: float, gap: float) -> None:
        self.path.append(self.mask)
        self.mask, self.f, self.gap = mask, f, gap
        self.note = f"{self.size} edges"

    def go_back(self, mask: np.ndarray) -> None:
        """To a circuit that it has left. f there has to be measured again."""
        self.path = [earlier for earlier in self.path if earlier.sum() > mask.sum()]
        self.mask, self.f, self.measured = mask, np.nan, np.zeros(0)

    def end(self, note: str) -> None:
        self.done, self.note = True, note
