"""ESLint for the viewer's script: its files are one function, so they are linted as one, and what is found is told by file and line.

    python tools/lint_page.py            ESLint is installed once from tools/eslint/package-lock.json

Without npm, or without a network to install from, it says so and leaves the script unread.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from mechrl.viewer.page import SCRIPTS

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tools" / "eslint"
PAGE = ROOT / "src" / "mechrl" / "viewer" / "page"


def joined(files: dict[str, str]) -> tuple[str, list[tuple[str, int]]]:
    """The script as the page has it, and for each of its lines the file and the line there."""
    lines, places = ['"use strict";', "(() => {"], [("", 0), ("", 0)]
    for name, text in files.items():
        for number, line in enumerate(text.splitlines(), 1):
            lines.append(line)
            places.append((name, number))
    return "\n".join([*lines, "})();", ""]), [*places, ("", 0)]


def lint(files: dict[str, str]) -> list[str]:
    """What ESLint finds, a line each."""
    script, places = joined(files)
    done = subprocess.run(
        [
            FOLDER / "node_modules" / ".bin" / "eslint",
            "--stdin",
            "--stdin-filename",
            "page.js",
            "--format",
            "json",
        ],
        cwd=FOLDER,
        input=script,
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout.startswith("["):
        raise RuntimeError(done.stderr)
    found = []
    for message in json.loads(done.stdout)[0]["messages"]:
        name, line = places[min(message["line"], len(places)) - 1]
        found.append(f"{name}:{line}: {message['message']} ({message['ruleId']})")
    return found


def install() -> str:
    """Installs ESLint, if it is not there; says why not, if it cannot be."""
    if (FOLDER / "node_modules" / ".bin" / "eslint").exists():
        return ""
    npm = shutil.which("npm")
    if npm is None:
        return "npm is not installed"
    done = subprocess.run(
        [npm, "ci", "--no-audit", "--no-fund", "--silent"], cwd=FOLDER, capture_output=True, check=False
    )
    return "" if done.returncode == 0 else "npm could not install ESLint"


def main() -> None:
    if missing := install():
        print(f"the page's JavaScript is not linted: {missing}")
        return
    paths = [PAGE / f"{name}.js" for name in SCRIPTS.split()]
    found = lint({str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths})
    print("\n".join(found) if found else "the page's JavaScript: nothing found by ESLint")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
