"""A save that fails is not the end: it is said, the work goes on, and saving is tried again. No heavy imports."""

from __future__ import annotations

import time
from collections.abc import Callable

from mechrl.files import REPEAT, CannotWrite
from mechrl.messages import say

# seconds for which something that cannot be saved is kept, and between two attempts
PATIENCE, RETRY = 600.0, 2.0


class Saving:
    """Of something that is saved again and again. `failed`: why the last attempt did, or None."""

    def __init__(self) -> None:
        self.failed: CannotWrite | None = None

    def attempt(self, save: Callable[[], None]) -> bool:
        """Whether it could be saved. A reason is said once, not at every attempt."""
        before, self.failed = self.failed, not_saved(save)
        if self.failed is not None and str(self.failed) != str(before):
            say(f"{str(self.failed).removesuffix(REPEAT)}. The work goes on, and saving is tried again")
        if self.failed is None and before is not None:
            say("saving works again")
        return self.failed is None


def not_saved(save: Callable[[], None]) -> CannotWrite | None:
    """Tries once; why it could not be done."""
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
    """What took hours is not lost to a disk that is full for minutes: tried for ten of them, or until somebody asks to stop."""
    saving, until = Saving(), time.monotonic() + PATIENCE
    while not saving.attempt(save):
        assert saving.failed is not None
        if stopping() or time.monotonic() > until:
            raise saving.failed
        waiting(saving.failed)
        time.sleep(RETRY)
