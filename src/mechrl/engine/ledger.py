"""What a method has spent, in forward passes: the unit that methods are compared in.

A pass is one forward of one circuit on the paper's batch of 20 pairs; a backward costs two. Engines that serve one search share its
ledger. Nothing else counts passes, and nothing but a ledger changes a count.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

PAIRS_PER_PASS = 20
BACKWARD_PASSES = 2


@dataclass
class Bill:
    """What the block of a `Ledger.free` would have cost. Known when the block has ended."""

    passes: float = 0.0


class Ledger:
    """An account of passes."""

    def __init__(self) -> None:
        self._passes = 0.0

    @property
    def passes(self) -> float:
        """The count so far."""
        return self._passes

    def charge(self, passes: float) -> None:
        """Adds to the count."""
        self._passes += passes

    def restore(self, passes: float) -> None:
        """Sets the count to one that was taken before: by the process that this one continues, or before a run that is repeated."""
        self._passes = passes

    @contextmanager
    def free(self) -> Iterator[Bill]:
        """What is measured in this block is not charged; the bill says what it would have cost."""
        before, bill = self._passes, Bill()
        try:
            yield bill
        finally:
            bill.passes = self._passes - before
            self._passes = before
