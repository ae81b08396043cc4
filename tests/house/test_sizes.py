"""Files and functions are small: under 400 lines, under 60 lines, at most eight parameters.

Kernels are exempt: a kernel is one function, and its parameters are tensors, their strides and sizes. So are commands: each of their
parameters is an option. Their bodies still count towards the file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"
FILE, FUNCTION, PARAMETERS = 400, 60, 8


def is_command(function: ast.FunctionDef) -> bool:
    decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
    return function.name.endswith("_command") or any(".command(" in text for text in decorators)


def n_parameters(function: ast.FunctionDef) -> int:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    if named and named[0].arg in ("self", "cls"):
        named = named[1:]
    return len(named) + (arguments.vararg is not None) + (arguments.kwarg is not None)


def too_large(name: str, source: str) -> Iterator[str]:
    if "kernels" in name:
        return
    if len(source.splitlines()) > FILE:
        yield name
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef) or (name.startswith("mechrl/cli/") and is_command(node)):
            continue
        assert node.end_lineno is not None
        if node.end_lineno - node.lineno + 1 > FUNCTION or n_parameters(node) > PARAMETERS:
            yield f"{name}: {node.name}"


def test_files_and_functions_are_small() -> None:
    files = sorted((SRC / "mechrl").rglob("*.py"))
    found = {
        large
        for path in files
        for large in too_large(path.relative_to(SRC).as_posix(), path.read_text(encoding="utf-8"))
    }
    assert not found, "too large"


def test_planted_giants_are_noticed() -> None:
    assert list(too_large("mechrl/a.py", "x = 1\n" * 401)) == ["mechrl/a.py"]
    assert list(too_large("mechrl/a.py", "def f():\n" + "    x = 1\n" * 60)) == ["mechrl/a.py: f"]
    nine = ", ".join("abcdefghi")
    assert list(too_large("mechrl/a.py", f"def f({nine}): ...")) == ["mechrl/a.py: f"]
    assert list(too_large("mechrl/a.py", f"class A:\n    def f(self, {nine[3:]}, *z): ...")) == [
        "mechrl/a.py: f"
    ]
    assert not list(too_large("mechrl/a.py", f"class A:\n    def f(self, {nine[3:]}): ..."))
    command = f'@app.command("x")\ndef x({nine}): ...'
    assert not list(too_large("mechrl/cli/a.py", command)) and list(too_large("mechrl/search/a.py", command))
