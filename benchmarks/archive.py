"""Packs a reproduction: every cell and its circuit in one file, beside the tables and figures made from them.

    python benchmarks/archive.py pack runs/smollm2 benchmarks/reproduce/smollm2     packs a run, finished or not
    python benchmarks/archive.py unpack benchmarks/reproduce/smollm2 runs/smollm2   unpacks it, to continue or to write report.html again
    python benchmarks/archive.py check benchmarks/reproduce/smollm2                 compares rows, circuits and tables with each other

The archive `cells.jsonl.xz` has one line per cell: its name, its file, and its circuit's file or null. `check` does not use the code that
wrote the tables: it groups the rows as each table's lines do, computes means and deviations, and compares. A table's Markdown must
equal its CSV, rounded.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import lzma
import math
import re
import shutil
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from mechrl.errors import MechRLError
from mechrl.experiments import compare_tables
from mechrl.experiments.cells import Cell, checksum
from mechrl.files import write_atomically

CELLS = "cells.jsonl.xz"
NAMES = compare_tables.NAMES | {  # with those of the retired agent, docs/history.md
    "policy": "Policy",
    "policy-greedy": "Policy, one greedy rollout",
    "policy-adapted": "Policy, adapted",
    "policy-from-scratch": "Policy, from scratch",
}
# a column of the tables, and the rows' field for it
COLUMNS = {
    "edges": "edges_pruned",
    "before pruning": "edges",
    "f": "f",
    "f discovery": "f",
    "f test": "f_test",
    "passes": "passes",
    "seconds": "seconds",
}


@dataclass(frozen=True)
class ArchivedCell:
    """A cell as it was written, and its circuit, if it found one."""

    name: str
    cell: dict[str, Any]
    circuit: dict[str, Any] | None


# ---- to and from one file -------------------------------------------------------------------------------------------


def read(archive: Path) -> Iterator[ArchivedCell]:
    with lzma.open(archive / CELLS, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield ArchivedCell(**json.loads(line))


def pack(run: Path, archive: Path) -> int:
    """What `mechrl reproduce --out RUN` has done, with tables as CSV and Markdown and figures as lossless WebP; the number of cells."""
    if not (run / "cells").is_dir():
        raise MechRLError(f"{run}: no cells; give the folder that `mechrl reproduce --out` filled")
    rows = []
    for path in sorted((run / "cells").glob("*.json")):
        cell = json.loads(path.read_text(encoding="utf-8"))
        cell.setdefault("sha256", checksum(cell))  # the oldest cells have no checksum
        found = cell.get("result", {}).get("circuit")
        circuit = None if found is None else json.loads(gzip.decompress((run / found).read_bytes()))
        rows.append(json.dumps({"name": path.stem, "cell": cell, "circuit": circuit}, ensure_ascii=False))
    write_atomically(
        archive / CELLS,
        lzma.compress("".join(f"{row}\n" for row in rows).encode(), preset=9 | lzma.PRESET_EXTREME),
    )
    for path in (*sorted((run / "tables").glob("*.*")), *sorted((run / "figures").glob("*.webp"))):
        if path.suffix != ".json":
            write_atomically(archive / path.parent.name / path.name, path.read_bytes())
    for path in sorted((run / "figures").glob("*.png")):
        picture = io.BytesIO()
        Image.open(path).convert("RGB").save(picture, "WEBP", lossless=True, quality=100, method=6)
        write_atomically(archive / "figures" / f"{path.stem}.webp", picture.getvalue())
    return len(rows)


def unpack(archive: Path, run: Path) -> int:
    """The folder that `mechrl reproduce --out RUN` goes on with, and that `--report-only` makes a report of."""
    count = 0
    for row in read(archive):
        write_atomically(run / "cells" / f"{row.name}.json", (json.dumps(row.cell, indent=1) + "\n").encode())
        if row.circuit is not None:
            text = json.dumps(row.circuit, ensure_ascii=False).encode()
            write_atomically(run / row.cell["result"]["circuit"], gzip.compress(text, mtime=0))
        count += 1
    for kind in ("tables", "figures"):
        if (archive / kind).is_dir():
            shutil.copytree(archive / kind, run / kind, dirs_exist_ok=True)
    return count


# ---- against each other ---------------------------------------------------------------------------------------------


def check(archive: Path) -> list[str]:
    """Everything that does not agree, in words; nothing, if all does."""
    rows = list(read(archive))
    wrong = [mistake for row in rows for mistake in mistakes_of(row)]
    wrong += [f"{name}: twice" for name in repeated([row.name for row in rows])]
    tables = sorted((archive / "tables").glob("*.csv"))
    for path in tables:
        table = read_table(path)
        wrong += [f"{path.name}: {m}" for m in mistakes_of_text(table, path.with_suffix(".md"))]
        if group := group_of(path.stem):
            wrong += [f"{path.name}: {m}" for m in mistakes_of_numbers(table, group, rows)]
    if not any(group_of(path.stem) for path in tables):
        wrong.append("no table has numbers that the rows can be compared with")
    return wrong


def read_table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def repeated(names: list[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def mistakes_of(row: ArchivedCell) -> Iterator[str]:
    """A cell against its seal and its name, and against its circuit."""
    cell = row.cell
    if cell.get("sha256") != checksum(cell):
        yield f"{row.name}: changed since it was written"
    if Cell(cell["kind"], cell["arguments"]).name != row.name:
        yield f"{row.name}: its arguments are another cell's"
    if row.circuit is None:
        if cell["kind"] == "circuit" and cell["status"] == "done":
            yield f"{row.name}: without its circuit"
        return
    for ours, theirs in (
        ("f", "faithfulness"),
        ("f_test", "faithfulness_test"),
        ("f_validation", "faithfulness_validation"),
        ("edges_pruned", "n_edges_pruned"),
        ("passes", "passes"),
    ):
        if cell["result"][ours] != row.circuit[theirs]:
            yield f"{row.name}: {ours} is {cell['result'][ours]}, its circuit's {row.circuit[theirs]}"
    if len(row.circuit["edges"]) != row.circuit["n_edges"]:
        yield f"{row.name}: its circuit does not have as many edges as it says"


def group_of(table: str) -> str:
    """What a table's lines are over, if they are means of rows: the target of matched circuits, or ACDC's thresholds."""
    if table.startswith("table-7-"):
        return "acdc"
    matched = re.fullmatch(r"table-\d+-matched-(\w+)", table)
    return matched[1] if matched else ""


def mistakes_of_numbers(table: list[dict[str, str]], group: str, rows: list[ArchivedCell]) -> Iterator[str]:
    """Every line's numbers against mean and deviation of the rows it is made of."""
    by_line: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        asked = row.cell["arguments"]
        if row.circuit is None:
            continue
        sweep = asked.get("search", {}).get("whole_graph", False)
        if group == "acdc" and sweep:
            (threshold,) = asked["search"]["thresholds"]
            by_line[asked["behaviour"], str(threshold)].append(row.cell["result"])
        elif asked["target"] == group and not sweep:
            by_line[asked["behaviour"], NAMES[asked["method"]]].append(row.cell["result"])
    for line in table:
        what = line["behaviour"], line["threshold" if group == "acdc" else "method"]
        results = by_line.pop(what, [])
        for column, key in COLUMNS.items():
            if column in line and not same(line, column, [result[key] for result in results]):
                yield f"{' '.join(what)}: {column} is {line[column] or 'nothing'}, not what {len(results)} rows have"
    for what, results in by_line.items():
        yield f"{' '.join(what)}: {len(results)} rows, but no line"


def same(line: dict[str, str], column: str, values: list[float]) -> bool:
    said = [line[name] for name in (column, f"{column} sd", f"{column} n") if line.get(name)]
    found = (
        [statistics.fmean(values), *([statistics.stdev(values)] if len(values) > 1 else [])] if values else []
    )
    expected = [*found, len(values)] if values else []
    return len(said) == len(expected) and all(
        math.isclose(float(a), b, rel_tol=1e-9, abs_tol=1e-12) for a, b in zip(said, expected, strict=True)
    )


def mistakes_of_text(table: list[dict[str, str]], markdown: Path) -> Iterator[str]:
    """The Markdown against the CSV: as many lines, and in each the same numbers, rounded."""
    if not markdown.is_file():
        yield "no Markdown beside it"
        return
    lines = [line for line in markdown.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    headings, *body = [re.split(r"(?<!\\) \| ", line[2:-2]) for line in lines if not line.startswith("| ---")]
    if len(body) != len(table):
        yield f"{len(table)} lines, {len(body)} in Markdown"
    for line, cells in zip(table, body, strict=False):
        for heading, text in zip(headings, cells, strict=True):
            value = line[heading.replace("\\|", "|")]
            if not reads_as(text.replace("\\|", "|"), value, line.get(f"{heading} sd", "")):
                yield f"{heading} is {value or 'nothing'}, {text} in Markdown"


def reads_as(text: str, value: str, sd: str) -> bool:
    """Whether a text is a value of the CSV as tables show it."""
    try:
        exact = float(value)
    except ValueError:
        shown = {"": "–", "True": "yes", "False": "no"}
        return text in (shown.get(value, " ".join(value.split())), value)
    mean, _, deviation = text.replace("−", "-").partition(" ± ")
    return rounded(mean, exact) and (not sd or rounded(deviation, float(sd)))


def rounded(text: str, value: float) -> bool:
    """Whether a number is the value to as many digits as it has."""
    digits = text.replace(",", "")
    if not re.fullmatch(r"-?\d+(\.\d+)?(e[-+]?\d+)?", digits):
        return False
    mantissa, _, exponent = digits.partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return abs(float(digits) - value) <= 0.5000001 * unit


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, folders in (
        ("pack", ("run", "archive")),
        ("unpack", ("archive", "run")),
        ("check", ("archive",)),
    ):
        command = commands.add_parser(name)
        for folder in folders:
            command.add_argument(folder, type=Path)
    arguments = parser.parse_args()
    try:
        if arguments.command == "pack":
            print(f"{pack(arguments.run, arguments.archive)} cells in {arguments.archive / CELLS}")
        elif arguments.command == "unpack":
            print(f"{unpack(arguments.archive, arguments.run)} cells in {arguments.run}")
        else:
            wrong = check(arguments.archive)
            print("\n".join(wrong) if wrong else f"{arguments.archive}: rows, circuits and tables agree")
            sys.exit(bool(wrong))
    except (MechRLError, FileNotFoundError) as exc:
        sys.exit(f"error: {exc}")


if __name__ == "__main__":
    main()
