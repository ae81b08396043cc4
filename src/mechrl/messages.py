"""Lines on stderr. No heavy imports."""

from __future__ import annotations

import sys


def plain(text: object) -> str:
    """One line without control characters: names come from files, so anything unprintable is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def say(line: object) -> None:
    """Prints a line on stderr."""
    print(plain(line), file=sys.stderr, flush=True)
