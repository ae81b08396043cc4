"""Every table and figure that is made from the rows in this folder, in one command. Nothing is run on a model.

    python benchmarks/make.py            writes them
    python benchmarks/make.py --check    says which of them differ from what is there, and writes nothing

docs/results.md must hold the lines that results.py prints. The tables of benchmarks/reproduce are `mechrl reproduce --report-only`'s.
"""

from __future__ import annotations

import argparse
import io
import runpy
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent


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
    yield HERE / "policy/smollm2/tables.md", printed("policy_smollm2.py", HERE / "policy/smollm2", "--table")
    yield HERE / "yardsticks/tables.md", printed("yardsticks.py", "tables", HERE / "yardsticks")
    yield HERE / "yardsticks/stability.md", printed("stability.py")
    if (HERE / "planner/rows.jsonl").exists():
        import planner

        yield HERE / "planner/tables.md", planner.tables(HERE / "planner")
    with tempfile.TemporaryDirectory() as folder:
        printed("plane.py", "--out", Path(folder) / "plane.svg")
        for name in ("plane.json", "plane.svg"):
            yield ROOT / "docs/images" / name, (Path(folder) / name).read_text()


def differs(path: Path, text: str) -> bool:
    """A drawing is as its data: its strokes change with the version of matplotlib."""
    return not path.exists() or (path.suffix != ".svg" and path.read_text() != text)


def unsaid() -> list[str]:
    """Lines of results.py that docs/results.md does not have."""
    there = set((ROOT / "docs/results.md").read_text().splitlines())
    return [line for line in printed("results.py").splitlines() if line and line not in there]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    sys.path.insert(0, str(HERE))
    wrong = [f"docs/results.md: lacks {line}" for line in unsaid()]
    for path, text in made():
        if not check:
            path.write_text(text)
        elif differs(path, text):
            wrong.append(f"{path.relative_to(ROOT)}: not what its rows say; run python benchmarks/make.py")
    print("\n".join(wrong) or "all as the rows say")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
