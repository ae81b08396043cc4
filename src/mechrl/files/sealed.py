"""Arrays and a few texts in one safetensors file with a checksum of both, so that any change is detected on reading."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from mechrl.files.reading import MOST, check_regular

_SEAL = "sha256"  # stored as one of the arrays


def sealed(arrays: Mapping[str, np.ndarray], texts: Mapping[str, str]) -> bytes:
    """The file's bytes."""
    # it makes a number an array
    whole = {name: np.ascontiguousarray(array).reshape(np.shape(array)) for name, array in arrays.items()}
    return _in_order(save(whole | {_SEAL: _checksum(whole, texts)}, dict(texts)))


def _in_order(file: bytes) -> bytes:
    """The same file with its texts sorted: safetensors writes them in any order, but equal content must give equal files."""
    start = 8 + int.from_bytes(file[:8], "little")
    header = json.loads(file[8:start])
    header["__metadata__"] = dict(sorted(header.get("__metadata__", {}).items()))
    ordered = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    ordered += b" " * (-len(ordered) % 8)
    return len(ordered).to_bytes(8, "little") + ordered + file[start:]


def read_sealed(path: Path, needed: bool = True) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays and texts; a ValueError if the file is damaged. With `needed=False` a file without a checksum is accepted."""
    check_regular(path)
    if os.stat(path).st_size > MOST:
        raise ValueError(f"larger than {MOST / 2**20:,.0f} MB")
    try:
        with safe_open(path, framework="np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            texts = dict(file.metadata() or {})
    except (
        SafetensorError,
        TypeError,
        AttributeError,
    ) as exc:  # no such file, or a dtype that numpy does not have
        raise ValueError(f"not a safetensors file, or damaged ({exc})") from exc
    seal = arrays.pop(_SEAL, None)
    if seal is None and not needed:
        return arrays, texts
    if seal is None or not np.array_equal(seal, _checksum(arrays, texts)):
        raise ValueError("the file has changed since it was written")
    return arrays, texts


def _checksum(arrays: Mapping[str, np.ndarray], texts: Mapping[str, str]) -> np.ndarray:
    digest = hashlib.sha256(json.dumps(dict(texts), sort_keys=True).encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return np.frombuffer(digest.digest(), np.uint8)
