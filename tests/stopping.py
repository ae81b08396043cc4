"""A stand-in for whoever asks work to stop."""

from __future__ import annotations

from collections.abc import Callable


def stop_at(n: int) -> Callable[[], bool]:
    """Asked to stop from the n-th look on."""
    looks = 0

    def stopping() -> bool:
        nonlocal looks
        looks += 1
        return looks >= n

    return stopping
