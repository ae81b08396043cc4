"""Behaviours from a file: JSONL (one object a line) or CSV (with a header) with `clean`, `corrupt`, `answer`, `foil`.

Answers and foils are tokens as the model would write them, so most begin with a space (" Mary"). Several are a list in
JSONL and separated by `|` in CSV. Optional: `metric` (the same in every row) and `part` (in every row or in none).
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import TypeVar

from mechrl.behaviours.base import METRICS, PARTS, Behaviour, Metric, Part, Row
from mechrl.behaviours.together import together
from mechrl.errors import MechRLError
from mechrl.files.reading import read_bytes

T = TypeVar("T")

SUFFIXES = (".jsonl", ".csv")
FIELDS = ("clean", "corrupt", "answer", "foil")
# Half of the rows are for discovery. A file of four rows has some of each part, a file of two a test pair.
_DEAL: tuple[Part, ...] = ("discovery", "test", "discovery", "validation")
# half of the share that each part should have
_AT_LEAST: dict[Part, float] = {"discovery": 0.25, "test": 0.125, "validation": 0.125}


def load_behaviour(path: str | Path) -> Behaviour:
    """The behaviour in a JSONL or CSV file, named after the file."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise MechRLError(f"{path}: a behaviour's file ends in {' or '.join(SUFFIXES)}")
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except FileNotFoundError:
        raise MechRLError(f"{path}: no such file") from None
    except OSError as exc:
        raise MechRLError(f"{path}: cannot be read: {exc.strerror}") from None
    except UnicodeDecodeError as exc:
        line = exc.object[: exc.start].count(b"\n") + 1
        raise MechRLError(f"{path}, line {line}: not UTF-8 text") from None
    except ValueError as exc:  # compressed, under another name
        raise MechRLError(f"{path}: {exc}") from None
    rows = (_from_csv if path.suffix.lower() == ".csv" else _from_jsonl)(path, text)
    source, metric = read_rows(rows, str(path), "logit-difference")
    return Behaviour(path.stem, "custom", "extra", metric, f"from {path.name}", source, file=str(path))


def _from_jsonl(path: Path, text: str) -> list[tuple[str, Mapping[str, object]]]:
    rows: list[tuple[str, Mapping[str, object]]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as exc:  # bad syntax, a number too long, lists nested too deeply
            raise MechRLError(f"{where}: not JSON: {getattr(exc, 'msg', exc)}") from None
        if not isinstance(row, dict):
            raise MechRLError(f"{where}: not a JSON object; it needs {', '.join(FIELDS)}")
        rows.append((where, row))
    return rows


def _from_csv(path: Path, text: str) -> list[tuple[str, Mapping[str, object]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    rows: list[tuple[str, Mapping[str, object]]] = []
    try:
        for record in reader:
            where = f"{path}, line {reader.line_num}"
            if None in record:
                raise MechRLError(
                    f"{where}: more values than fields in the header; quote a text that has a comma"
                )
            row: dict[str, object] = {field: value for field, value in record.items() if value}
            for field in ("answer", "foil"):
                if field in row:
                    row[field] = str(row[field]).split("|")
            rows.append((where, row))
    except csv.Error as exc:
        raise MechRLError(f"{path}, line {reader.reader.line_num}: not CSV: {exc}") from None
    return rows


def read_rows(
    rows: Sequence[tuple[str, Mapping[str, object]]], name: str, metric: Metric
) -> tuple[tuple[Row, ...], Metric]:
    """Checks what needs no tokenizer; `Behaviour.pairs` checks the rest."""
    if not rows:
        raise MechRLError(f"{name}: no rows; each needs {', '.join(FIELDS)}")
    read: list[Row] = []
    metrics: list[Metric] = []
    seen: dict[tuple[str, str], str] = {}
    for where, fields in rows:
        row = _read_row(where, fields)
        if (first := seen.setdefault((row.clean, row.corrupt), where)) != where:
            raise MechRLError(f"{where}: the same pair of prompts as in {first}")
        read.append(row)
        if (row.part is None) != (read[0].part is None):
            raise MechRLError(f"{where}: give every row a 'part', or none")
        metrics.append(_one_of(METRICS, where, "metric", fields.get("metric") or metric))
        if metrics[-1] != metrics[0]:
            raise MechRLError(
                f"{where}: another metric ({metrics[-1]}) than in {read[0].where} ({metrics[0]})"
            )
    return (tuple(read) if read[0].part else _deal(read)), metrics[0]


def _read_row(where: str, fields: Mapping[str, object]) -> Row:
    missing = [field for field in FIELDS if fields.get(field) in (None, "", [])]
    if missing:
        raise MechRLError(f"{where}: {missing[0]!r} is missing")
    clean, corrupt = (_texts(where, field, fields[field]) for field in ("clean", "corrupt"))
    answers, foils = (_texts(where, field, fields[field]) for field in ("answer", "foil"))
    if len(clean) > 1 or len(corrupt) > 1:
        raise MechRLError(f"{where}: 'clean' and 'corrupt' take one text each")
    if clean == corrupt:
        raise MechRLError(f"{where}: the clean and the corrupted prompt are identical")
    both = set(answers) & set(foils)
    if both:
        raise MechRLError(f"{where}: {min(both)!r} is both an answer and a foil")
    part = _one_of(PARTS, where, "part", fields["part"]) if fields.get("part") else None
    return Row(clean[0], corrupt[0], answers, foils, where=where, part=part)


def _one_of(choices: tuple[T, ...], where: str, field: str, value: object) -> T:
    for choice in choices:
        if choice == value:
            return choice
    raise MechRLError(f"{where}: unknown {field} {value!r}; there are {', '.join(map(str, choices))}")


def _texts(where: str, field: str, value: object) -> tuple[str, ...]:
    texts: list[str] = []
    for text in value if isinstance(value, list | tuple) else [value]:
        if not isinstance(text, str) or not text:
            raise MechRLError(f"{where}: {field!r} must be text, not {json.dumps(value, default=str)}")
        if any("\ud800" <= character <= "\udfff" for character in text):  # JSON can escape half a character
            raise MechRLError(f"{where}: {field!r} has half of a surrogate pair, which is not text")
        texts.append(text)
    return tuple(texts)


def _deal(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Gives every row a part.

    Rows that share a prompt form a group. If there are enough groups, each goes to one part, so that no prompt is in two parts. In a file
    whose corrupted prompts are other rows' clean ones there is a single group; then only clean prompts are kept apart, and corrupted
    prompts may recur (`recurring` counts them).
    """
    strict = _deal_groups(rows)
    if all(sum(row.part == part for row in strict) >= len(rows) * share for part, share in _AT_LEAST.items()):
        return strict
    return _deal_groups([replace(row, corrupt=row.clean) for row in rows], rows)


def recurring(rows: Sequence[Row]) -> int:
    """How many test rows share a prompt with a discovery or validation row."""
    others = {prompt for row in rows if row.part != "test" for prompt in (row.clean, row.corrupt)}
    return sum(row.part == "test" and not others.isdisjoint((row.clean, row.corrupt)) for row in rows)


def _deal_groups(rows: Sequence[Row], original: Sequence[Row] | None = None) -> tuple[Row, ...]:
    """Deals groups of rows that share a prompt. `original`: the rows to return in their place."""
    group = together((row.clean, row.corrupt) for row in rows)
    groups = sorted(
        {group[row.clean] for row in rows}, key=lambda text: hashlib.sha256(text.encode()).digest()
    )
    parts = dict(zip(groups, cycle(_DEAL), strict=False))
    return tuple(
        replace(kept, part=parts[group[row.clean]]) for row, kept in zip(rows, original or rows, strict=True)
    )
