"""Damages files: changed bytes, truncation, and replaced fields, all determined by one seed."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from safetensors.numpy import load, save

DEEP = "@deep@"  # stands for deeply nested lists, which `json.dumps` cannot write
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 10**6, 2**31, 2**63, 2**70, 10**400, 0.5, -0.0, 1e-320, 1e308),
    *(float("nan"), float("inf"), "", "x", "\x00", "\ud800", "é", "a" * 3000, "../../x", "toy", "nan", "1"),
    *([], {}, [1], ["a"], [None], [[]], [1] * 2000, {"a": 1}, {"": {}}, DEEP),
)
EXTREMES = (0, 1, 0x7F, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)


def damaged(content: bytes, kind: str, rng: Random) -> bytes:
    """One damaged variant of a file of a kind: `json`, `jsonl`, `csv`, `safetensors` or any other."""
    inside: dict[str, list[Callable[[bytes, Random], bytes]]] = {
        "json": [_json],
        "jsonl": [_jsonl],
        "csv": [_csv],
        "safetensors": [_header, _arrays, _texts],
    }
    if kind in inside and rng.random() < 0.6:
        return rng.choice(inside[kind])(content, rng)
    return rng.choice(_BYTES)(content, rng)


# ---- bytes ----------------------------------------------------------------------------------------------------------


def _flips(content: bytes, rng: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _early_flips(content: bytes, rng: Random) -> bytes:
    """Positions of headers and lengths."""
    head = min(len(content), rng.choice((16, 64, 512, 4096)))
    return _flips(content[:head], rng) + content[head:]


def _cut(content: bytes, rng: Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _number(content: bytes, rng: Random) -> bytes:
    """A wrong length."""
    size = rng.choice((1, 2, 4, 8))
    at = rng.randrange(max(1, min(len(content), rng.choice((64, 4096, 10**9)))))
    value = rng.choice(EXTREMES) & (2 ** (8 * size) - 1)
    return content[:at] + value.to_bytes(size, "little") + content[at + size :]


def _put_in(content: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(content) + 1)
    return (
        content[:at]
        + rng.choice((b"\x00", b"\xff\xfe", b"[" * 5000, rng.randbytes(40), content[:50]))
        + content[at:]
    )


def _blank(content: bytes, rng: Random) -> bytes:
    at, size = rng.randrange(len(content) + 1), rng.choice((1, 16, 4096))
    return (
        content[:at] + rng.choice((b"\0", b"\xff"))[:1] * len(content[at : at + size]) + content[at + size :]
    )


def _other(content: bytes, rng: Random) -> bytes:
    return rng.choice(
        (
            b"",
            b"\0",
            b"{}",
            b"[]",
            b"null",
            b"1",
            b"[" * 10**5,
            b'{"a":' * 10**5,
            content * 2,
            gzip.compress(content),
        )
    )


def _zipped_badly(content: bytes, rng: Random) -> bytes:
    return _flips(gzip.compress(content), rng)


_BYTES = (_flips, _early_flips, _early_flips, _cut, _number, _number, _put_in, _blank, _other, _zipped_badly)


# ---- JSON -----------------------------------------------------------------------------------------------------------


def _json(content: bytes, rng: Random) -> bytes:
    return _dump(_other_field(json.loads(content), rng))


def _dump(value: Any) -> bytes:
    return json.dumps(value).replace(json.dumps(DEEP), "[" * 50_000 + "]" * 50_000).encode()


def _other_field(whole: Any, rng: Random) -> Any:
    """With one to three of its fields removed or replaced."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        whole = _change(whole, rng, depth=rng.choice((0, 1, 1, 1, 2, 2, 3, 5)))
    return whole


def _change(value: Any, rng: Random, depth: int) -> Any:
    if depth and isinstance(value, dict) and value:
        key = rng.choice(list(value))
        rest = {k: v for k, v in value.items() if k != key}
        how = rng.random()
        if depth == 1 and how < 0.25:
            return rest
        if depth == 1 and how < 0.35:
            return rest | {rng.choice(("", "x", key + "s", key.upper())): value[key]}
        return {k: (_change(v, rng, depth - 1) if k == key else v) for k, v in value.items()}
    if depth and isinstance(value, list) and value:
        at = rng.randrange(len(value))
        if depth == 1 and rng.random() < 0.3:
            return value[:at] if rng.random() < 0.5 else value + value[at:]
        return [*value[:at], _change(value[at], rng, depth - 1), *value[at + 1 :]]
    if type(value) is float and rng.random() < 0.3:
        return value * rng.choice((-1, 2, 0.5, 10**6)) + rng.choice((0, 1))
    if type(value) is int and rng.random() < 0.3:
        return value * rng.choice((-1, 2, 10**6)) + rng.choice((0, 1))
    return rng.choice(VALUES)


def _jsonl(content: bytes, rng: Random) -> bytes:
    lines = content.splitlines()
    at = rng.randrange(len(lines))
    lines[at] = rng.choice((_json, _flips, _cut))(lines[at], rng)
    return b"\n".join(lines)


def _csv(content: bytes, rng: Random) -> bytes:
    lines = content.split(b"\n")
    at = rng.randrange(len(lines))
    parts = lines[at].split(b",")
    parts[rng.randrange(len(parts))] = rng.choice(
        (b"", b'"', b'""', b"\0", b"|", b"x,y", b"a" * 200_000, b"\xff", b'"a\nb"')
    )
    lines[at] = b",".join(parts)
    return b"\n".join(lines)


# ---- safetensors ----------------------------------------------------------------------------------------------------


def _split(content: bytes) -> tuple[dict[str, Any], bytes]:
    size = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def _header(content: bytes, rng: Random) -> bytes:
    known, rest = _split(content)
    header = _dump(_other_field(known, rng))
    return struct.pack("<Q", len(header)) + header + rest


def _arrays(content: bytes, rng: Random) -> bytes:
    """One array with another shape, dtype or size, as if it had been written so; without the checksum."""
    arrays, texts = load(content), _split(content)[0].get("__metadata__", {})
    arrays.pop("sha256", None)
    name = rng.choice(list(arrays))
    array = arrays.pop(name)
    how = rng.randrange(6)
    if how == 0:
        arrays[name] = array.reshape(-1)[: max(0, array.size - 1)]
    elif how == 1:
        with np.errstate(invalid="ignore"):  # values that do not fit the dtype become arbitrary
            arrays[name] = array.astype(rng.choice((np.float32, np.float64, np.int64, np.uint8, bool)))
    elif how == 2:
        arrays[name] = np.full_like(array, rng.choice((-1, 1, 2**31 - 1)) if array.dtype.kind == "i" else 1)
    elif how == 3 and array.dtype.kind == "f":
        arrays[name] = np.full_like(array, rng.choice((np.nan, np.inf, np.finfo(array.dtype).min)))
    elif how == 4:
        arrays[name] = np.zeros((0, *array.shape), array.dtype)
    return save(arrays, texts or None)


def _texts(content: bytes, rng: Random) -> bytes:
    """Changes a field of the JSON text stored with the arrays; without the checksum."""
    arrays, texts = load(content), _split(content)[0].get("__metadata__", {})
    arrays.pop("sha256", None)
    if texts:
        name = rng.choice(list(texts))
        try:
            texts[name] = _dump(_other_field(json.loads(texts[name]), rng)).decode()
        except ValueError:
            texts[name] = rng.choice(("", "x", "nan", "-1", "inf"))
    return save(arrays, texts or None)
