"""The documents are correct: the commands they show run, the links they have lead somewhere.

Fenced blocks marked `bash` or `python` are run as written, one after another, in an empty folder with `docs/examples` as in a fresh
clone. `console` blocks are for commands that take long, need a network or never end: these must exist, with the options shown.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer

import mechrl
from mechrl.circuit import Circuit
from tests.test_circuit import circuit

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
NOTEBOOK = ROOT / "docs" / "tour.ipynb"
LANGUAGES = {"bash", "console", "python", "json"}
FENCE = re.compile(r"^```(.*)\n((?:.*\n)*?)```$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def blocks(page: Path, language: str) -> list[str]:
    return [text for name, text in FENCE.findall(page.read_text()) if name == language]


def pages_with(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reader's working directory: the root of a clone with only the examples, and an empty cache."""
    folder = tmp_path / "clone"
    (folder / "docs").mkdir(parents=True)
    (folder / "docs" / "examples").symlink_to(ROOT / "docs" / "examples")
    monkeypatch.setenv("MECHRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(folder)
    return folder


# ---- what is run ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with("bash"), ids=name)
def test_commands_run(page: Path, clone: Path) -> None:
    for block in blocks(page, "bash"):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
    for path in re.findall(r"--(?:out|html) (\S+)", "".join(blocks(page, "bash"))):
        assert (clone / path).exists(), path


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with("python"), ids=name)
def test_python_runs(page: Path, clone: Path) -> None:
    known: dict = {}
    for block in blocks(page, "python"):
        exec(compile(block, name(page), "exec"), known)


def cells() -> list[dict]:
    return json.loads(NOTEBOOK.read_text())["cells"]


@pytest.mark.slow
def test_the_notebook_runs(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "docs")
    monkeypatch.setenv("TMPDIR", str(clone))
    known: dict = {}
    for cell in cells():
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "tour.ipynb", "exec"), known)
    stored = next(
        o
        for cell in cells()
        for o in cell.get("outputs", ())
        if "<Circuit" in str(o.get("data", {}).get("text/plain"))
    )
    found = known["small"]
    said = "".join(stored["data"]["text/plain"])
    assert found.behaviour in said and f"f = {found.faithfulness:.2f}" in said, "run docs/make_tour.py again"


# ---- what is checked ------------------------------------------------------------------------------------------------


def commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for language in ("bash", "console"):
            for line in "".join(blocks(page, language)).replace("\\\n", " ").splitlines():
                found.append((name(page), line.partition("  #")[0].strip()))
    return [(page, line) for page, line in found if line]


def parse(arguments: list[str]) -> None:
    """Parses arguments as `mechrl ARGUMENTS` does before it starts to work."""
    from mechrl.cli.app import app

    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command, arguments = command.commands[arguments[0]], arguments[1:]
    command.make_context(command.name, list(arguments))


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_exist(page: str, line: str) -> None:
    words = shlex.split(line)
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words = words[1:]
    if words[0] == "torchrun":
        at = words.index("-m")
        assert words[at + 1] == "mechrl.cli"
        words = ["mechrl", *words[at + 2 :]]
    if words[0] == "mechrl":
        parse(words[1:])
    elif words[0] == "make":
        assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text()
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file()
    else:
        assert words[0] in ("export", "pip"), f"{page}: what is {line!r}?"


def test_a_command_that_does_not_exist_is_noticed() -> None:
    usage_error = typer.BadParameter.__base__  # typer raises this for all of these, but does not export it
    assert usage_error is not None
    for wrong in (
        ["discover", "ioi", "--no-such-option"],
        ["serach", "ioi"],
        ["validate"],
        ["adapt", "ioi", "--policy", "runs/toy", "--envs", "many"],
    ):
        with pytest.raises((usage_error, KeyError)):
            parse(wrong)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_says_what_it_is(page: Path) -> None:
    text = page.read_text()
    assert {language for language, _ in FENCE.findall(text)} <= LANGUAGES
    assert text.count("```") == 2 * len(FENCE.findall(text))
    for block in blocks(page, "json"):
        json.loads(block)


def anchor(heading: str) -> str:
    """A heading's anchor as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def links() -> list[tuple[Path, str]]:
    texts = [(page, page.read_text()) for page in PAGES]
    texts.append((NOTEBOOK, "\n".join("".join(c["source"]) for c in cells() if c["cell_type"] == "markdown")))
    return [(page, link) for page, text in texts for link in LINK.findall(text)]


@pytest.mark.parametrize(("page", "link"), links(), ids=lambda x: name(x) if isinstance(x, Path) else x)
def test_links_lead_somewhere(page: Path, link: str) -> None:
    if link.startswith(("http://", "https://")):
        return
    path, _, part = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    assert target.exists() and target.is_relative_to(ROOT)
    if part and target.suffix == ".py":
        assert int(part.removeprefix("L")) <= len(target.read_text().splitlines())
    elif part:
        headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
        assert part in [anchor(heading) for heading in headings]


def test_every_page_is_in_the_index() -> None:
    listed = set(LINK.findall((ROOT / "docs" / "index.md").read_text()))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"} <= listed


def test_every_command_is_in_the_index() -> None:
    from mechrl.cli.app import app

    group: Any = typer.main.get_command(app)
    listed = set(re.findall(r"`mechrl (\w+)`", (ROOT / "docs" / "index.md").read_text()))
    assert listed == set(group.commands)


_PLACES = re.compile(
    r"(?<![\w.~$])/(?:work|tmp|root|opt|home|mnt|Users|srv|var)/|\bpip\.conf|index-url|\b10\.\d+\.\d+\.\d+\b|\w\.internal\b"
)


@pytest.mark.parametrize(
    "page",
    [*PAGES, NOTEBOOK, ROOT / "CITATION.cff", *sorted((ROOT / "docs" / "examples").iterdir())],
    ids=name,
)
def test_no_machine_is_named(page: Path) -> None:
    assert not _PLACES.findall(page.read_text())


def test_pictures_and_the_notebook_are_small() -> None:
    assert NOTEBOOK.stat().st_size < 1_000_000
    assert all(path.stat().st_size < 300_000 for path in (ROOT / "docs" / "images").iterdir())


def test_the_notebook_was_run_and_holds_no_error() -> None:
    code = [cell for cell in cells() if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    kinds = {(o["output_type"], o.get("name")) for cell in code for o in cell["outputs"]}
    # a bar in a notebook is `display_data`
    assert kinds <= {("stream", "stdout"), ("execute_result", None), ("display_data", None)}


# ---- what the pages say ---------------------------------------------------------------------------------------------


def test_file_formats_has_every_field_of_a_circuit() -> None:
    text = (ROOT / "docs" / "file-formats.md").read_text()
    known = circuit().to_json()
    for field in [*known, *known["graph"]]:
        assert f"`{field}`" in text, field
    assert {f.name for f in fields(Circuit)} - {"graph", "d_model", "mask"} <= set(known)


def unfounded(section: str, page: Path) -> list[str]:
    """The numbers of a section that are in none of the benchmarks it links. `make.py` makes the tables; single digits are not checked."""
    prose = re.sub(r"<!-- made.*?<!-- end -->", "", section, flags=re.DOTALL)
    links = {(page.parent / link.partition("#")[0]).resolve() for link in LINK.findall(prose)}
    text = "".join(path.read_text() for path in links if path.is_file() and "benchmarks" in path.parts)
    numbers = re.findall(r"(?<![\w.,-])\d[\d.,]*\d", LINK.sub("", prose))
    return [n for n in numbers if not re.search(rf"(?<![\d.,]){re.escape(n)}(?!\d)", text)]


def test_numbers_of_the_results_stand_in_the_benchmarks_beside_them() -> None:
    page = ROOT / "docs" / "results.md"
    sections = re.split(r"^## .*$", page.read_text(), flags=re.MULTILINE)[1:]
    assert [number for section in sections for number in unfounded(section, page)] == []
    assert sum(len(re.findall(r"\d\.\d", section)) for section in sections) > 10
    planted = sections[-2].replace("0.69", "0.68")
    assert planted != sections[-2] and unfounded(planted, page) == ["0.68"]


def test_the_version_is_the_same_everywhere() -> None:
    assert f"\nversion: {mechrl.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {mechrl.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"] == "MIT"
    assert (ROOT / "LICENSE").read_text().startswith("MIT License")
