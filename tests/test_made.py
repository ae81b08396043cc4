"""The docs show what the rows say, and the figure uses the same cells for all methods."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch):
    def load(name: str) -> ModuleType:
        monkeypatch.syspath_prepend(str(BENCHMARKS))
        return import_module(name)

    return load


def test_every_table_and_figure_is_what_its_rows_say() -> None:
    command = [sys.executable, str(BENCHMARKS / "make.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_changed_table_is_noticed(script, tmp_path: Path) -> None:
    make = script("make")
    (tmp_path / "tables.md").write_text("1")
    assert make.differs(tmp_path / "tables.md", "2") and not make.differs(tmp_path / "tables.md", "1")
    assert make.differs(tmp_path / "missing.svg", "") and make.differs(tmp_path / "missing.md", "")


def test_the_plane_shows_the_cells_that_all_methods_reached(script, monkeypatch: pytest.MonkeyPatch) -> None:
    plane = script("plane")
    monkeypatch.setattr(plane, "FEWEST", 2)
    a, b, c, d = ("x", 0), ("x", 1), ("y", 0), ("y", 1)
    methods = {
        "greedy": {a: (10.0, 100.0, 0.9), b: (20.0, 300.0, 0.7), c: (1.0, 1.0, 1.0), d: None},
        "acdc": {a: (30.0, 50.0, 0.8), b: (50.0, 70.0, 0.8), c: None},
        "planner": {a: (5.0, 5.0, 0.5)},
    }
    data = plane.numbers({"discovery": methods})
    assert data["discovery"]["cells"] == ["x 0", "x 1"]
    shown = data["discovery"]["methods"]
    assert set(shown) == {"greedy", "acdc"} and "planner" in data["discovery"]["left out"]
    assert shown["greedy"]["passes"] == [12.5, 15, 17.5] and shown["greedy"]["edges"] == [150, 200, 250]
    assert (shown["acdc"]["reached"], shown["acdc"]["run"]) == (2, 3)
    assert (
        "| 20 discovery pairs | EAP-IG greedy | 200 | 15 | 0.800 | 3 of 4 |" in plane.table(data).splitlines()
    )
    assert plane.numbers({"discovery": {}})["discovery"]["methods"] == {}
    monkeypatch.setattr(plane, "FEWEST", 3)
    assert plane.numbers({"discovery": methods}) == {}


def test_a_row_is_a_cell_of_an_unseen_family_judged_on_the_pairs_it_had_to_hold_on(script) -> None:
    plane, unseen = script("plane"), script("planner").UNSEEN
    row = {
        "model": "smollm2",
        "method": "planner",
        "behaviour": unseen[0],
        "draw": 0,
        "edges": 40,
        "passes": 99,
    }
    row |= {"f": 0.95, "f_test": 0.8, "f_validation": None, "holds_on": "discovery"}
    rows = [
        row,
        row | {"draw": 1, "f": 0.89},  # fell short
        row | {"holds_on": "fresh", "f_validation": 0.89},
        row | {"holds_on": "fresh", "f_validation": 0.9, "draw": 1},
        row | {"model": "other"},
        row | {"method": "toy"},
        row | {"behaviour": "acronyms"},
    ]
    point = (99, 40, 0.8)
    assert plane.unseen(rows) == {
        "discovery": {"planner": {(unseen[0], 0): point, (unseen[0], 1): None}},
        "fresh": {"planner": {(unseen[0], 0): None, (unseen[0], 1): point}},
    }


def test_rows_are_read_as_they_were_packed(script, tmp_path: Path) -> None:
    rows, path = script("rows"), tmp_path / "rows.jsonl"
    assert rows.read(path) == []
    some = [{"cell": i, "f": 0.1 * i} for i in range(5)]
    rows.append(path, some[:3])
    rows.pack(path)
    assert not path.exists() and rows.read(path) == some[:3]
    rows.append(path, some[3:])  # a run goes on beside what was packed
    assert rows.read(path) == some
    rows.pack(path)
    assert rows.read(path) == some


def test_pages_are_filled_with_tables(script) -> None:
    make = script("make")
    page = "a\n<!-- made: plane -->\nold\n<!-- end -->\nb\n<!-- made: planner -->\n<!-- end -->\n"
    once = make.filled(page, {"plane": "| new |\n", "planner": "none"})
    assert once == (
        "a\n<!-- made: plane -->\n\n| new |\n\n<!-- end -->\nb\n<!-- made: planner -->\n\nnone\n\n<!-- end -->\n"
    )
    assert make.filled(once, {"plane": "| new |\n", "planner": "none"}) == once


def test_the_planners_tables_in_short(script) -> None:
    make, planner = script("make"), script("planner")
    row = {
        "model": "smollm2",
        "behaviour": "plural",
        "draw": 0,
        "holds_on": "fresh",
        "edges": 9,
        "f_test": 0.91,
        "passes": 50.0,
        "cpu": 3.0,
    }
    text = "# Head\n\n" + "\n".join(
        planner.found([row | {"method": m} for m in planner.METHODS], "smollm2: f")
    )
    short = make.in_short(text)
    assert (
        short.startswith("**smollm2: f**")
        and "| planner (designed on) | 1 | 1 | 1.00 (sd of log 0.00) |" in short
    )
    assert "plural" not in short and "| 9 (9) | 50 (50) | 0.910 (0.910) |" in short


def test_stability_of_rows_is_that_of_their_circuits(script) -> None:
    tools = script("yardsticks")
    rows = [{"graph": 10, "kept": kept} for kept in ([0, 1], [1, 2], [0, 1])]
    found = np.mean([1 / 3, 1, 1 / 3])
    assert tools.alike(rows).startswith(f"{found:.2f} ±") and tools.alike(rows[:1]) == "–"
