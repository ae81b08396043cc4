"""What the site has beyond docs/: the command reference, the benchmarks' pages, and links that work there as they do on GitHub.

MkDocs calls `on_files` and `on_page_markdown`, mkdocstrings uses `Parameters` (mkdocs.yml names this file).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from posixpath import dirname, normpath, relpath
from typing import Any

import griffe
from mkdocs.structure.files import File, Files
from typer.main import get_command

from mechrl.cli.app import app

ROOT = Path(__file__).parents[1]
MARK = "<!-- commands -->"
GROUPS = ("Arguments", "Basics", "Budget", "Reproducibility", "Expert")  # the headings of `--help`
PUBLISHED = {".md", ".svg", ".webp"}  # of benchmarks/; tables and figures, not their rows
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


# ---- files and links -------------------------------------------------------------------------------------------------


def on_files(files: Files, config: Any) -> Files:
    for path in sorted((ROOT / "benchmarks").rglob("*")):
        if path.suffix in PUBLISHED:
            uri = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    uri = page.file.src_uri
    if uri == "reference/commands.md":
        markdown = markdown.replace(MARK, command_reference())
    return linked(markdown, uri, {file.src_uri for file in files})


def linked(markdown: str, uri: str, on_site: set[str]) -> str:
    """Links out of docs/ lead to the site's copy of a benchmark's page; those to other files of the repository become plain text."""
    home = uri if uri.startswith("benchmarks/") else f"docs/{uri}"

    def rewrite(match: re.Match[str]) -> str:
        image, text, link = match.groups()
        path, hash_mark, anchor = link.partition("#")
        if not path or re.match(r"[a-z]+:", link):
            return match[0]
        target = normpath(f"{dirname(home)}/{path}")
        there = (f"{target}/README.md" if (ROOT / target).is_dir() else target).removeprefix("docs/")
        if there in on_site:
            return f"{image}[{text}]({relpath(there, dirname(uri) or '.')}{hash_mark}{anchor})"
        if target.startswith("docs/") or not (ROOT / target).exists():
            return match[0]  # for MkDocs to refuse
        return text if "`" in text or " " in text else f"`{text}`"

    return _LINK.sub(rewrite, markdown)


# ---- docstrings ------------------------------------------------------------------------------------------------------


class Parameters(griffe.Extension):  # type: ignore[misc]
    """Our docstrings explain parameters in lines `name: what it is`. The reference shows them as a list."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = listed(obj.docstring.value)


def listed(docstring: str) -> str:
    text = re.sub(r"^([a-z_]\w*(?:, [a-z_]\w*)*): (?=\S)", r"- `\1`: ", docstring, flags=re.MULTILINE)
    return re.sub(r"(?<=[^\n])\n(?=- `)", "\n\n", text)


# ---- commands --------------------------------------------------------------------------------------------------------


def command_reference() -> str:
    """Every command as `--help` describes it."""
    os.environ["COLUMNS"] = "120"
    return "\n".join(_command(path, command) for path, command in commands(get_command(app), ["mechrl"]))


def commands(command: Any, path: list[str]) -> list[tuple[list[str], Any]]:
    """All that can be run, groups opened: (words, command)."""
    if not hasattr(command, "commands"):
        return [(path, command)]
    return [
        found
        for name, sub in command.commands.items()
        if not sub.hidden
        for found in commands(sub, [*path, name])
    ]


def _command(path: list[str], command: Any) -> str:
    context = command.make_context(path[-1], [], resilient_parsing=True)
    pieces = command.collect_usage_pieces(context)
    usage = re.sub(r"\{([^}]*)\}(?:\.\.\.)?", r"\1", " ".join([*path, *pieces]))
    lines = [f"## {' '.join(path)}", "", f"`{usage}`", "", command.help or "", ""]
    groups: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.params:
        if row := _row(parameter, context):
            default = GROUPS[0] if parameter.param_type_name == "argument" else GROUPS[1]
            groups.setdefault(getattr(parameter, "rich_help_panel", None) or default, []).append(row)
    for group in sorted(groups, key=GROUPS.index):
        lines += [f"| {group} | |", "| --- | --- |"]
        lines += [f"| {_cell(left)} | {_cell(right)} |" for left, right in groups[group]] + [""]
    return "\n".join(lines)


def _row(parameter: Any, context: Any) -> tuple[str, str] | None:
    if (record := parameter.get_help_record(context)) is None:
        return None
    name, text = record
    return f"`{name.replace(' range>', '>')}`", _facts(text)


def _facts(text: str) -> str:
    """`… [default: 20; 1<=x<=9]`, in words, and in brackets that are no link."""
    text = re.sub(r"([\d.-]+)<=x<=([\d.-]+)", r"\1 to \2", text)
    text = re.sub(r"x>=([\d.-]+)", r"at least \1", text)
    return re.sub(r"\[((?:default:|required|at least|[\d.-]+ to)[^\]]*)\]", r"(\1)", text)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")
