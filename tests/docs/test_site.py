"""What docs/hooks.py adds to the site; the walk through the code; and a docstring for everything in the API reference."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
WALK = ROOT / "docs" / "walk.md"


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("mkdocs")
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return import_module("hooks")


# ---- links -----------------------------------------------------------------------------------------------------------


def test_links_lead_to_the_sites_own_pages(hooks: ModuleType) -> None:
    site = {"results.md", "reference/api.md", "benchmarks/search/README.md", "images/plane.svg"}

    def at(uri: str, link: str) -> str:
        return hooks.linked(link, uri, site)

    assert at("results.md", "[a](../benchmarks/search/README.md#b)") == "[a](benchmarks/search/README.md#b)"
    assert at("results.md", "[a](../benchmarks/search)") == "[a](benchmarks/search/README.md)"
    assert at("reference/api.md", "[a](../results.md)") == "[a](../results.md)"
    assert (
        at("benchmarks/search/README.md", "![a](../../docs/images/plane.svg)")
        == "![a](../../images/plane.svg)"
    )
    assert at("results.md", "see [`a`](../src/mechrl/graph.py).") == "see `a`."
    assert at("walk.md", "see [graph.py](../src/mechrl/graph.py).") == "see `graph.py`."
    for unchanged in ("[a](https://example.org/b)", "[a](#here)", "[a](no-such.md)", "[a](../no/such.md)"):
        assert at("results.md", unchanged) == unchanged


def test_parameters_in_a_docstring_are_a_list(hooks: ModuleType) -> None:
    text = "Does it.\n\na: one\n    more\nb, c_d: two\n\nNote: not one; nor: this.\n\n    x: code\n"
    assert hooks.listed(text) == (
        "Does it.\n\n- `a`: one\n    more\n\n- `b, c_d`: two\n\nNote: not one; nor: this.\n\n    x: code\n"
    )


# ---- commands --------------------------------------------------------------------------------------------------------


def test_the_reference_has_every_command_and_option(hooks: ModuleType) -> None:
    from typer.main import get_command

    from mechrl.cli.app import app

    text = hooks.command_reference()
    sections = dict(part.split("\n", 1) for part in text.removeprefix("## ").split("\n## "))
    found = hooks.commands(get_command(app), ["mechrl"])
    assert set(sections) == {" ".join(path) for path, _ in found} and len(found) > 10
    for path, command in found:
        for parameter in command.params:
            for option in parameter.opts if parameter.param_type_name == "option" else ["| Arguments |"]:
                assert option in sections[" ".join(path)], (path, option)


# ---- the walk --------------------------------------------------------------------------------------------------------


def stops(text: str) -> list[str]:
    return re.findall(r"\]\(\.\./src/(mechrl/[\w/]+\.py)\)", text)


def imported(source: str) -> set[str]:
    """The files that a file may import from, at its top level."""
    found = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mechrl"):
            names = [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
            found |= {f"{str(name).replace('.', '/')}.py" for name in names}
    return found


def wrong(walk: str, read: Any) -> list[str]:
    """Errors in the order of a walk: a file that imports from a later one, a module that is visited twice."""
    path = stops(walk)
    rooms = [stop.split("/")[1] for stop in path]
    entered = [room for i, room in enumerate(rooms) if i == 0 or rooms[i - 1] != room]
    found = [f"{room} twice" for room in set(entered) if entered.count(room) > 1]
    for i, stop in enumerate(path):
        found += [f"{stop} imports {later}" for later in imported(read(stop)) & set(path[i + 1 :])]
    return found


def test_the_walk_follows_the_imports() -> None:
    text = WALK.read_text()
    assert len(stops(text)) == len(set(stops(text))) > 15
    assert wrong(text, lambda stop: (ROOT / "src" / stop).read_text()) == []


def test_a_detour_is_noticed() -> None:
    source = {
        "mechrl/a/x.py": "from mechrl.b.y import z\n",
        "mechrl/b/y.py": "",
        "mechrl/a/w.py": "from mechrl.a import x\n",
    }
    walk = "[](../src/{})".format
    forwards = walk("mechrl/b/y.py") + walk("mechrl/a/x.py") + walk("mechrl/a/w.py")
    assert wrong(forwards, source.get) == []
    assert wrong(walk("mechrl/a/x.py") + walk("mechrl/b/y.py"), source.get) == [
        "mechrl/a/x.py imports mechrl/b/y.py"
    ]
    assert wrong(walk("mechrl/a/w.py") + walk("mechrl/a/x.py"), source.get) == [
        "mechrl/a/w.py imports mechrl/a/x.py"
    ]
    assert "a twice" in wrong(forwards.replace("a/w", "b/w") + walk("mechrl/a/w.py"), lambda stop: "")


# ---- the API reference -----------------------------------------------------------------------------------------------


def referred() -> list[str]:
    return re.findall(r"^::: (\S+)$", (ROOT / "docs" / "reference" / "api.md").read_text(), re.MULTILINE)


def undocumented(name: str) -> list[str]:
    """An object and its public functions and properties, as far as they have no docstring of their own."""
    module, _, last = name.rpartition(".")
    thing = getattr(import_module(module), last)
    found = [] if (thing.__doc__ or "").strip() and not thing.__doc__.startswith(f"{last}(") else [name]
    if inspect.isclass(thing):
        for member, value in vars(thing).items():
            value = getattr(value, "__func__", value)
            if member.startswith("_") or not (
                inspect.isfunction(value) or isinstance(value, property | cached_property)
            ):
                continue
            if not value.__doc__:
                found.append(f"{name}.{member}")
    return found


def test_what_users_import_is_in_the_reference() -> None:
    import mechrl

    assert {f"mechrl.{name}" for name in mechrl.__all__} <= set(referred())


@pytest.mark.parametrize("name", referred())
def test_everything_in_the_reference_has_a_docstring(name: str) -> None:
    assert undocumented(name) == []


def test_a_missing_docstring_is_noticed() -> None:
    assert undocumented("tests.docs.test_site.Bare") == [
        "tests.docs.test_site.Bare",
        "tests.docs.test_site.Bare.method",
    ]


class Bare:
    def method(self) -> None: ...


# ---- the site --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("planted", ["", "[gone](no-such-page.md)"])
def test_the_site_builds_and_refuses_a_dead_link(planted: str, tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    clone = tmp_path / "clone"
    clone.mkdir()
    for name in ("docs", "src", "benchmarks"):
        (clone / name).symlink_to(ROOT / name)
    (clone / "mkdocs.yml").write_text((ROOT / "mkdocs.yml").read_text())
    if planted:
        (clone / "docs").unlink()
        (clone / "docs").mkdir()
        for path in (ROOT / "docs").iterdir():
            (clone / "docs" / path.name).symlink_to(path)
        (clone / "docs" / "limits.md").unlink()
        (clone / "docs" / "limits.md").write_text(planted)
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=clone,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode == 0) == (not planted), done.stderr
    if not planted:
        html = (clone / "site" / "reference" / "api" / "index.html").read_text()
        assert all(f'id="{name}"' in html for name in referred())
