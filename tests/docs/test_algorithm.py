"""The table that links the paper to the code: every linked line says what the table quotes."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(
    r"^\| (.+?) \| (.+?) \| \[([\w.]+):(\d+)\]\(\.\./(src/[\w/.]+)#L(\d+)\) \| `(.+)` \|$", re.MULTILINE
)


def rows() -> list[tuple[str, ...]]:
    text = (ROOT / "docs" / "algorithm.md").read_text()
    section = text[text.index("## From the paper to the code") : text.index("## In short")]
    found = ROW.findall(section)
    assert len(found) == section.count("\n| ") - 2  # a heading and a rule are no rows
    return found


def wrong(row: tuple[str, ...]) -> str:
    """An empty string, or the line's new number."""
    what, _, name, number, path, anchor, said = row
    lines = (ROOT / path).read_text().splitlines()
    if name == Path(path).name and number == anchor and said in lines[int(number) - 1]:
        return ""
    now = [i for i, line in enumerate(lines, 1) if said in line]
    return f"{what}: {path} says `{said}` in line {now or 'none'}, docs/algorithm.md has {number}"


def test_every_line_says_what_the_table_claims() -> None:
    assert [mistake for row in rows() if (mistake := wrong(row))] == []


def test_every_equation_the_reward_the_features_and_the_deployment_are_there() -> None:
    known = " ".join(row[0] for row in rows())
    for what in (*(f"equation {n}" for n in range(1, 7)), "τ_i", "X^e", "X^n", "g_t", "deployment"):
        assert what in known


def test_a_line_that_moved_is_noticed() -> None:
    row = rows()[0]
    assert wrong((*row[:3], str(int(row[3]) + 1), row[4], str(int(row[3]) + 1), row[6]))
    assert wrong((*row[:6], "what nobody wrote"))
