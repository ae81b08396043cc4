"""Lines on stderr. No heavy imports."""

from __future__ import annotations

import sys


def plain(text: object) -> str:
    """One line that cannot steer a terminal: names come from files, and whatever does not print is shown escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def say(line: object) -> None:
    """A line on stderr."""
    print(plain(line), file=sys.stderr, flush=True)
