"""A stand-in for a request to stop."""

from __future__ import annotations

from collections.abc import Callable


def stop_at(n: int) -> Callable[[], bool]:
    """Requests a stop from the n-th call on."""
    looks = 0

    def stopping() -> bool:
        nonlocal looks
        looks += 1
        return looks >= n

    return stopping
