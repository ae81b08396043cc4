"""Sealed files: contents round-trip, equal content gives equal files, and any change is detected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mechrl.files.sealed import read_sealed, sealed

ARRAYS = {"mask": np.array([True, False]), "f": np.float64(0.5), "empty": np.zeros((0, 3), np.float32)}
TEXTS = {name: f"Größe {name}" for name in "badcfe"}


def test_what_is_sealed_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(sealed(ARRAYS, TEXTS))
    arrays, texts = read_sealed(tmp_path / "a")
    assert texts == TEXTS and arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype and np.array_equal(arrays[name], array)
    (tmp_path / "b").write_bytes(sealed(ARRAYS, {}))
    assert read_sealed(tmp_path / "b")[1] == {}


def test_the_same_content_is_the_same_file() -> None:
    backwards = dict(reversed(TEXTS.items()))
    assert len({sealed(ARRAYS, texts) for texts in (TEXTS, backwards) for _ in range(10)}) == 1


@pytest.mark.parametrize("place", ["a text", "an array"])
def test_a_change_is_noticed(tmp_path: Path, place: str) -> None:
    whole = sealed(ARRAYS, TEXTS)
    changed = whole.replace(b"Gr", b"gr", 1) if place == "a text" else whole[:-1] + bytes([whole[-1] ^ 1])
    assert changed != whole
    (tmp_path / "a").write_bytes(changed)
    with pytest.raises(ValueError, match="has changed"):
        read_sealed(tmp_path / "a")
