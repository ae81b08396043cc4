"""Damaged files: other bytes at the beginning, where the facts are, and every third one cut short."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np


def damaged(path: Path, times: int, beginning: int) -> Iterator[None]:
    """Writes the file so many times, each time damaged in another way."""
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for i in range(times):
        content = bytearray(whole)
        for place in rng.integers(0, min(len(whole), beginning), 3):
            content[place] = rng.integers(256)
        path.write_bytes(bytes(content[: rng.integers(len(whole))]) if i % 3 == 0 else bytes(content))
        yield
