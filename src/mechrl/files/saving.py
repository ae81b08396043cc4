"""A failed save does not end the work: it is reported once, the work goes on, and saving is retried. No heavy imports."""

from __future__ import annotations

import time
from collections.abc import Callable

from mechrl.files import REPEAT, CannotWrite
from mechrl.messages import say

# seconds for which something that cannot be saved is kept, and between two attempts
PATIENCE, RETRY = 600.0, 2.0


class Saving:
    """For something that is saved repeatedly. `failed`: why the last attempt failed, or None."""

    def __init__(self) -> None:
        self.failed: CannotWrite | None = None

    def attempt(self, save: Callable[[], None]) -> bool:
        """Whether saving succeeded. A failure is reported once, not at every attempt."""
        before, self.failed = self.failed, not_saved(save)
        if self.failed is not None and str(self.failed) != str(before):
            say(f"{str(self.failed).removesuffix(REPEAT)}. The work continues, and saving will be retried")
        if self.failed is None and before is not None:
            say("saving works again")
        return self.failed is None


def not_saved(save: Callable[[], None]) -> CannotWrite | None:
    """Tries once; returns why it failed, or None."""
    try:
        save()
    except CannotWrite as exc:
        return exc
    return None


def patiently(
    save: Callable[[], None],
    stopping: Callable[[], bool] = lambda: False,
    waiting: Callable[[CannotWrite], None] = lambda failed: None,
) -> None:
    """Retries for ten minutes, or until asked to stop: hours of work should not be lost because a disk is full for minutes."""
    saving, until = Saving(), time.monotonic() + PATIENCE
    while not saving.attempt(save):
        assert saving.failed is not None
        if stopping() or time.monotonic() > until:
            raise saving.failed
        waiting(saving.failed)
        time.sleep(RETRY)
