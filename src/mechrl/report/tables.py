"""A table of numbers with their spread, its caption and the command that made it. To CSV, JSON, Markdown and text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mechrl.files import write_atomically
from mechrl.stats import Spread, number

Value = str | int | float | bool | Spread | None


@dataclass(frozen=True)
class Column:
    """digits: after the decimal point. text: aligned left. group: adjacent columns under one heading."""

    name: str
    digits: int = 3
    group: str = ""
    text: bool = False


def columns(digits: Mapping[str, int | None], group: str = "") -> tuple[Column, ...]:
    """Columns under one heading: their names and digits, None for text."""
    return tuple(Column(name, 3 if n is None else n, group, n is None) for name, n in digits.items())


@dataclass(frozen=True)
class Table:
    name: str  # of its files
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    command: str
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"table {self.name}: a row has not as many values as there are columns")

    def texts(self) -> list[list[str]]:
        return [
            [show(value, column.digits) for value, column in zip(row, self.columns, strict=True)]
            for row in self.rows
        ]

    @property
    def headings(self) -> list[str]:
        return [f"{c.group}: {c.name}" if c.group else c.name for c in self.columns]

    def groups(self) -> list[tuple[str, int]]:
        """The upper headings, and how many columns each spans."""
        spans: list[tuple[str, int]] = []
        for column in self.columns:
            if spans and spans[-1][0] == column.group:
                spans[-1] = (column.group, spans[-1][1] + 1)
            else:
                spans.append((column.group, 1))
        return spans

    def to_csv(self) -> str:
        """In full precision; a spread takes three columns."""
        spread = [any(isinstance(row[i], Spread) for row in self.rows) for i in range(len(self.columns))]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        header = zip(self.headings, spread, strict=True)
        writer.writerow(
            [
                part
                for name, wide in header
                for part in ([name, f"{name} sd", f"{name} n"] if wide else [name])
            ]
        )
        for row in self.rows:
            writer.writerow(
                [part for value, wide in zip(row, spread, strict=True) for part in _parts(value, wide)]
            )
        return out.getvalue()

    def to_json(self) -> dict[str, Any]:
        rows = [
            {
                name: asdict(v) if isinstance(v, Spread) else v
                for name, v in zip(self.headings, row, strict=True)
            }
            for row in self.rows
        ]
        known = {"name": self.name, "title": self.title, "caption": self.caption, "command": self.command}
        return known | {"rows": rows, "notes": list(self.notes)}

    def write(self, folder: Path) -> None:
        """As CSV, JSON and Markdown."""
        for suffix, text in (("csv", self.to_csv()), ("json", dumps(self)), ("md", self.to_markdown())):
            write_atomically(folder / f"{self.name}.{suffix}", text.encode())

    def to_markdown(self) -> str:
        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"

        rule = line(["---" if c.text else "---:" for c in self.columns])
        table = "\n".join([line(self.headings), rule, *map(line, self.texts())])
        notes = "".join(f"\n\n{note}" for note in self.notes)
        return f"### {self.title}\n\n{self.caption}\n\n{table}{notes}\n\n`{self.command}`\n"


def show(value: Value, digits: int = 3) -> str:
    if value is None:
        return "–"
    if isinstance(value, Spread):
        return value.text(digits)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, str) else number(value, digits)


def _parts(value: Value, wide: bool) -> list[Any]:
    if isinstance(value, Spread):
        return [value.mean, "" if value.sd is None else value.sd, value.n]
    first = "" if value is None else value
    return [first, "", ""] if wide else [first]


def dumps(table: Table) -> str:
    return json.dumps(table.to_json(), indent=1, ensure_ascii=False) + "\n"
