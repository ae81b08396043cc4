"""What a method has spent, in forward passes, the unit in which methods are compared.

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
    """What a `Ledger.free` block would have cost; known when it ends."""

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
        """Sets the count to an earlier one: that of the process this one continues, or from before a run that is repeated."""
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
