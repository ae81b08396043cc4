"""Every reader gets hundreds of damaged files, and must read each or refuse it in one line. `MECHRL_FUZZ` scales the number."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fuzz.readers import READERS, Reader
from tests.fuzz.run import Fuzz

VARIANTS = int(os.environ.get("MECHRL_FUZZ", "300"))


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_damaged_file_is_read_or_refused_in_one_line(reader: Reader, tmp_path: Path) -> None:
    fuzz = Fuzz(reader, tmp_path)
    for _ in range(VARIANTS):
        fuzz.one()
    assert not fuzz.found, f"{len(fuzz.found)} of {VARIANTS}, the first:\n{fuzz.found[0]}"
    assert fuzz.counts["refused"] > VARIANTS / 10  # the damage was substantial
