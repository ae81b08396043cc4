"""Makes every table and figure from the rows in this folder. No model is run.

    python benchmarks/make.py            writes them
    python benchmarks/make.py --check    names those that differ from the files, and writes nothing

It writes the tables between `<!-- made: NAME -->` and `<!-- end -->` in README.md and docs/results.md. The tables of benchmarks/reproduce
come from `mechrl reproduce --report-only`.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import runpy
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "results.md")
PLACE = re.compile(r"(<!-- made: (\w+) -->)\n.*?(<!-- end -->)", re.DOTALL)


def printed(script: str, *arguments: object) -> str:
    """What a script of this folder prints."""
    before, out = sys.argv, io.StringIO()
    sys.argv = [script, *map(str, arguments)]
    try:
        with redirect_stdout(out):
            runpy.run_path(str(HERE / script), run_name="__main__")
    finally:
        sys.argv = before
    return out.getvalue()


def made() -> Iterator[tuple[Path, str]]:
    """Every file and what it should hold. Rows that are not there yet make nothing."""
    yield HERE / "search/tables.md", printed("search_smollm2.py", HERE / "search", "--table")
    yield HERE / "policy/tables.md", printed("history.py")
    yield HERE / "search/beside-policy.md", printed("results.py")
    yield HERE / "yardsticks/tables.md", printed("yardsticks.py", "tables", HERE / "yardsticks")
    yield HERE / "yardsticks/stability.md", printed("stability.py")
    yield HERE / "engine/scale.md", printed("engine_scale.py", "tables", HERE / "engine")
    if (HERE / "engine/growth.json").exists():
        import engine_scale

        growth = json.loads((HERE / "engine/growth.json").read_text())
        yield HERE / "engine/growth.svg", engine_scale.drawing(growth)
    tables = {"planner": "*Not run yet.*"}
    if (HERE / "planner/rows.jsonl").exists():
        import planner

        text = planner.tables(HERE / "planner")
        tables["planner"] = in_short(text)
        yield HERE / "planner/tables.md", text
        import planner_prediction

        text = planner_prediction.tables(HERE / "planner")
        tables["prediction"] = text[text.index("| fitted to") :]
        yield HERE / "planner/prediction.md", text
    with tempfile.TemporaryDirectory() as folder:
        for name in ("paper", "unseen"):
            tables[name] = printed("plane.py", name, "--out", folder)
        printed("figures.py", "--out", folder)
        for path in sorted(Path(folder).iterdir()):
            yield ROOT / "docs/images" / path.name, path.read_text()
    for page in PAGES:
        yield page, filled(page.read_text(), tables)


def filled(page: str, tables: dict[str, str]) -> str:
    """A page with today's tables in its places for them."""

    def table(match: re.Match[str]) -> str:
        return f"{match[1]}\n\n{tables[match[2]].strip()}\n\n{match[3]}"

    return PLACE.sub(table, page)


def in_short(tables: str) -> str:
    """Of the planner's tables what sums up all behaviours."""
    sections = re.split(r"^(?=## )", tables, flags=re.MULTILINE)[1:]
    kept = []
    for section in sections:
        head, *blocks = section.strip().split("\n\n")
        some = [b for b in blocks if b.startswith("|") and not b.startswith("| behaviour, draw")]
        kept += [f"**{head.removeprefix('## ')}**", *some]
    return "\n\n".join(kept)


def differs(path: Path, text: str) -> bool:
    """A drawing is as its data: its strokes change with the version of matplotlib."""
    return not path.exists() or (path.suffix != ".svg" and path.read_text() != text)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    sys.path.insert(0, str(HERE))
    wrong = []
    for path, text in made():
        if not check:
            path.write_text(text)
        elif differs(path, text):
            wrong.append(f"{path.relative_to(ROOT)}: not what its rows say; run python benchmarks/make.py")
    print("\n".join(wrong) or "all as the rows say")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
