"""Counts what a method has spent in forward passes, the unit in which methods are compared.

A pass is one forward of one circuit on 20 pairs, the paper's batch; a backward costs two. Engines of one search share a ledger. Nothing
else counts passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

PAIRS_PER_PASS = 20
BACKWARD_PASSES = 2


@dataclass
class Bill:
    """The cost that a `Ledger.free` block would have had; known when the block ends."""

    passes: float = 0.0


class Ledger:
    """A counter of passes."""

    def __init__(self) -> None:
        self._passes = 0.0

    @property
    def passes(self) -> float:
        """Passes charged so far."""
        return self._passes

    def charge(self, passes: float) -> None:
        """Adds to the count."""
        self._passes += passes

    def restore(self, passes: float) -> None:
        """Sets the count to a saved one: to continue another process, or to repeat a run."""
        self._passes = passes

    @contextmanager
    def free(self) -> Iterator[Bill]:
        """Charges nothing in this block. The bill says what it would have cost."""
        before, bill = self._passes, Bill()
        try:
            yield bill
        finally:
            bill.passes = self._passes - before
            self._passes = before
