"""The linter of the viewer's script reports a planted mistake with file and line."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("lint_page")


def test_every_line_knows_its_place(tool: ModuleType) -> None:
    files = {"a.js": "one;\ntwo;\n", "b.js": "three;\n"}
    script, places = tool.joined(files)
    assert len(places) == script.count("\n")
    for line, (name, number) in zip(script.splitlines(), places, strict=True):
        assert not name or files[name].splitlines()[number - 1] == line


def test_a_name_that_hides_another_is_found(tool: ModuleType) -> None:
    if not (tool.FOLDER / "node_modules").is_dir():
        pytest.skip("ESLint is not installed: `make lint` installs it, if npm is there")
    fine = {"a.js": "const at = (i) => i;\n", "b.js": "at(at(1));\n"}
    assert tool.lint(fine) == []
    found = tool.lint(fine | {"c.js": "// a comment\n[1].map((at) => at);\n"})
    assert (
        len(found) == 1
        and found[0].startswith("c.js:2: 'at' is already declared")
        and "no-shadow" in found[0]
    )
