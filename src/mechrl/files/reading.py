"""Reads files with limits: no file that never ends or fills the memory; anything wrong with the content is a ValueError.

Operating-system errors (no such file, no permission) stay OSErrors, which callers report in their own words.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import zlib
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

from mechrl.errors import MechRLError

MOST = 2**30  # bytes of a file that is read at once
_GZIP = b"\x1f\x8b"  # what a compressed file begins with
# a compressed file may become so many bytes, or so many times larger: text does not
_MOST_ONCE, _MOST_RATIO = 2**26, 20
_AT_ONCE = 2**24  # bytes of it
_LARGEST = 10**9  # of a whole number in the settings of something
T = TypeVar("T")


def check_regular(path: Path | str) -> None:
    """Refuses a path that exists and is neither a file nor a folder: a FIFO blocks its reader, a device may never end."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return  # missing or inaccessible: opening it will report that
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise MechRLError(f"{path}: not a regular file; give the path of one")


def read_bytes(path: Path, most: int = MOST) -> bytes:
    """All of a regular file of at most `most` bytes, decompressed if it is compressed."""
    check_regular(path)
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # it may have been replaced just now
        content = file.read(most + 1)
    if len(content) > most:
        raise MechRLError(
            f"{path}: larger than {most / 2**20:,.0f} MB, the most that MechRL reads; check the path"
        )
    return unzip(content, path) if content.startswith(_GZIP) else content


def file_checksum(path: Path) -> str:
    return hashlib.sha256(read_bytes(path)).hexdigest()


def unzip(content: bytes, path: Path) -> bytes:
    """Decompresses text. Refuses input that would become far larger than text does."""
    most = max(_MOST_ONCE, _MOST_RATIO * len(content))
    whole, rest = bytearray(), content
    try:
        while rest:  # a file may contain several compressed streams
            machine = zlib.decompressobj(wbits=31)
            while not machine.eof:
                if not rest:
                    raise ValueError("the compressed file is cut short")
                whole += machine.decompress(rest, _AT_ONCE)
                rest = machine.unconsumed_tail
                if len(whole) > most:
                    raise MechRLError(
                        f"{path}: more than {most / 2**20:,.0f} MB once decompressed; check where it comes from"
                    )
            rest = machine.unused_data.lstrip(b"\0")
    except zlib.error as exc:
        raise ValueError(f"the compressed file is damaged ({exc})") from exc
    return bytes(whole)


def parse_json(content: bytes | str) -> Any:
    """Parses JSON, but refuses extreme nesting."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("lists or objects are nested too deeply") from None


def read_json(path: Path) -> Any:
    return parse_json(read_bytes(path))


def count(value: Any) -> int:
    """A whole number from 0 on; True is refused."""
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise ValueError(f"{str(value)[:40]!r} is not a count")
    return value


def number(value: Any) -> float:
    """A finite number; True is refused."""
    if type(value) not in (int, float) or not abs(value) <= _LARGEST:
        raise ValueError(f"{str(value)[:40]!r} is not a number, or far too large")
    return float(value)


def made_of(cls: type[T], known: Any) -> T:
    """Builds a dataclass from a JSON object. Each field must have the type of its default: numbers finite, counts from 1 on.

    A field without a default is a required count.
    """
    if not isinstance(known, dict):
        raise ValueError(f"{cls.__name__}: expected a JSON object")
    kinds = {field.name: 1 if field.default is MISSING else field.default for field in fields(cls)}  # type: ignore[arg-type]
    for name, value in known.items():
        if name not in kinds:
            raise ValueError(f"{name!r} is unknown")
        default = kinds[name]
        if isinstance(default, bool) or isinstance(value, bool):
            right = isinstance(default, bool) and isinstance(value, bool)
        elif isinstance(default, int):
            right = isinstance(value, int) and 1 <= value <= _LARGEST
        elif isinstance(default, str):
            right = isinstance(value, str)
        else:  # a number, or None where that is allowed
            right = isinstance(value, int | float) and abs(value) <= _LARGEST and math.isfinite(value)
            right = right or (default is None and value is None)
        if not right:
            raise ValueError(f"{name} cannot be {str(value)[:40]!r}")
    return cls(**known)
