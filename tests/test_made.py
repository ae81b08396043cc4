"""What the documents show is what the rows say, and the figure counts the same cells for all methods."""

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


def test_the_plane_shows_the_cells_that_all_methods_reached(script) -> None:
    plane = script("plane")
    a, b, c = ("x", 0), ("x", 1), ("y", 0)
    methods = {
        "greedy": {a: (10.0, 100.0), b: (20.0, 300.0), c: (1.0, 1.0)},
        "acdc": {a: (30.0, 50.0), b: (50.0, 70.0), c: None},
        "planner": {a: (5.0, 5.0)},
    }
    data = plane.numbers({"discovery": methods})["discovery"]
    assert data["cells"] == ["x 0", "x 1"]
    assert set(data["methods"]) == {"greedy", "acdc"} and "planner" in data["left out"]
    greedy = data["methods"]["greedy"]
    assert greedy["passes"] == [12.5, 15, 17.5] and greedy["edges"] == [150, 200, 250]
    assert (data["methods"]["acdc"]["reached"], data["methods"]["acdc"]["run"]) == (2, 3)
    assert plane.numbers({"discovery": {}})["discovery"]["methods"] == {}


def test_stability_of_rows_is_that_of_their_circuits(script) -> None:
    tools = script("yardsticks")
    rows = [{"graph": 10, "kept": kept} for kept in ([0, 1], [1, 2], [0, 1])]
    found = np.mean([1 / 3, 1, 1 / 3])
    assert tools.alike(rows).startswith(f"{found:.2f} ±") and tools.alike(rows[:1]) == "–"
