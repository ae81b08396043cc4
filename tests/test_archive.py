"""The archive of a reproduction loses nothing, and any changed number is detected."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from mechrl.circuit import Circuit

ROOT = Path(__file__).parents[1]
ARCHIVES = sorted(path.parent for path in ROOT.glob("benchmarks/reproduce/*/cells.jsonl.xz"))


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("archive")


def test_rows_circuits_and_tables_agree(archive: ModuleType) -> None:
    assert ARCHIVES
    for folder in ARCHIVES:
        assert archive.check(folder) == []


def test_packing_what_was_unpacked_changes_nothing(archive: ModuleType, tmp_path: Path) -> None:
    small = [row for row in archive.read(ARCHIVES[0]) if row.circuit is None or row.circuit["n_edges"] < 200]
    rows = small[::8]
    assert {row.circuit is None for row in rows} == {True, False}
    run = tmp_path / "run"
    for row in rows:
        (run / "cells").mkdir(parents=True, exist_ok=True)
        (run / "cells" / f"{row.name}.json").write_text(json.dumps(row.cell))
        if row.circuit is not None:
            (run / "circuits").mkdir(exist_ok=True)
            path = run / row.cell["result"]["circuit"]
            path.write_bytes(archive.gzip.compress(json.dumps(row.circuit).encode()))
            assert len(Circuit.load(path)) == row.cell["result"]["edges"]
    assert archive.pack(run, tmp_path / "one") == len(rows)
    assert archive.unpack(tmp_path / "one", tmp_path / "again") == len(rows)
    assert archive.pack(tmp_path / "again", tmp_path / "two") == len(rows)
    assert list(archive.read(tmp_path / "one")) == list(archive.read(tmp_path / "two"))
    assert list(archive.read(tmp_path / "one")) == sorted(rows, key=lambda row: row.name)


def test_a_changed_row_is_found(archive: ModuleType) -> None:
    row = next(row for row in archive.read(ARCHIVES[0]) if row.circuit is not None)
    assert not list(archive.mistakes_of(row))
    result = row.cell["result"]
    planted = {
        "changed since": replace(row, cell=row.cell | {"result": result | {"seconds": 0.5}}),
        "another cell's": replace(row, name=row.name[:-1] + "z"),
        "passes is": replace(row, circuit=row.circuit | {"passes": 1.0}),
        "as many edges": replace(row, circuit=row.circuit | {"edges": row.circuit["edges"][1:]}),
        "without its circuit": replace(row, circuit=None),
    }
    for words, changed in planted.items():
        assert any(words in mistake for mistake in archive.mistakes_of(changed)), words


def test_a_changed_table_is_found(archive: ModuleType, tmp_path: Path) -> None:
    rows = list(archive.read(ARCHIVES[0]))
    path = ARCHIVES[0] / "tables" / "table-8-matched-discovery.csv"
    table = archive.read_table(path)
    several = next(i for i, line in enumerate(table) if line["edges n"] == "3")
    for column in ("edges", "edges sd", "edges n", "f test", "passes"):
        changed = [dict(line) for line in table]
        changed[several][column] = str(float(changed[several][column]) * 1.001 + 0.001)
        mistakes = list(archive.mistakes_of_numbers(changed, "discovery", rows))
        assert len(mistakes) == 1 and column.split(" sd")[0].split(" n")[0] in mistakes[0]
    without = [line for i, line in enumerate(table) if i != several]
    (mistake,) = archive.mistakes_of_numbers(without, "discovery", rows)
    assert mistake.endswith("3 rows, but no line")

    text = path.with_suffix(".md").read_text()
    (tmp_path / "table.md").write_text(text.replace("| 14,841 ", "| 14,842 ", 1).replace("0.908", "0.918", 1))
    assert len(list(archive.mistakes_of_text(table, tmp_path / "table.md"))) == 2
    assert list(archive.mistakes_of_text(table, tmp_path / "none.md")) == ["no Markdown beside it"]


@pytest.mark.parametrize(
    ("text", "value", "right"),
    [
        ("1,312", 1312.4, True),
        ("1,312", 1312.6, False),
        ("0.071", 0.0714, True),
        ("0.071", 0.0716, False),
        ("-0.04", -0.036, True),
        ("3e-05", 3.2e-5, True),
        ("3e-05", 3.6e-5, False),
        ("none", 3.0, False),
    ],
)
def test_rounding(archive: ModuleType, text: str, value: float, right: bool) -> None:
    assert archive.rounded(text, value) == right


def test_figures_are_packed_without_loss(archive: ModuleType, tmp_path: Path) -> None:
    image = Image.effect_noise((30, 20), 50).convert("RGB")
    for folder in ("cells", "figures"):
        (tmp_path / "run" / folder).mkdir(parents=True)
    image.save(tmp_path / "run" / "figures" / "figure-1.png")
    assert archive.pack(tmp_path / "run", tmp_path / "packed") == 0
    packed = Image.open(tmp_path / "packed" / "figures" / "figure-1.webp")
    assert packed.convert("RGB").tobytes() == image.tobytes()
    assert archive.unpack(tmp_path / "packed", tmp_path / "again") == 0
    (tmp_path / "again" / "cells").mkdir()
    assert archive.pack(tmp_path / "again", tmp_path / "two") == 0
    assert (tmp_path / "two" / "figures" / "figure-1.webp").is_file()
