"""What commands print: results on stdout, progress on stderr. No heavy imports."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mechrl.errors import MechRLError
from mechrl.messages import plain, say

if TYPE_CHECKING:
    from rich.progress import Progress

_LINE_EVERY = 5.0  # seconds between two plain lines
_NO_LIMIT = 10_000  # columns: a pipe does not wrap


# ---- text -----------------------------------------------------------------------------------------------------------


def answer(line: object) -> None:
    """A line of the result, for people."""
    print(plain(line))


def answer_json(value: object) -> None:
    """The result, for machines: all that stdout gets."""
    try:
        text = json.dumps(value, indent=1, allow_nan=False)
    except ValueError as exc:
        raise MechRLError(
            "the result has numbers that are NaN or infinite; check the model and its pairs"
        ) from exc
    print(text)


def answer_table(header: list[str], rows: list[list[str]]) -> None:
    """A table that fits the terminal, or that a pipe can cut."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for title in header:
        table.add_column(Text(plain(title)))
    for row in rows:
        table.add_row(*[Text(plain(cell)) for cell in row])
    Console(width=None if sys.stdout.isatty() else _NO_LIMIT).print(table)


# ---- progress -------------------------------------------------------------------------------------------------------


class Live:
    """How far something has come, on stderr: a bar on a terminal, elsewhere a line every so many seconds, the first after `quiet`."""

    def __init__(self, name: str, quiet: float = _LINE_EVERY, every: float = _LINE_EVERY) -> None:
        self.name, self._every, self._next_line, self._spoke = (
            plain(name),
            every,
            time.monotonic() + quiet,
            False,
        )
        self._bar: Progress | None = None

    def __enter__(self) -> Live:
        if _terminal():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            text = TextColumn("{task.description}", markup=False)
            self._bar = Progress(
                TextColumn(self.name, markup=False),
                BarColumn(bar_width=24),
                text,
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("", total=None)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, line: str, done: float = 0.0, total: float | None = None) -> None:
        """Without a total the bar does not say how much is left. Once a line was printed, the last one is too."""
        if self._bar is not None:
            self._bar.update(self._task, description=plain(line), completed=done, total=total)
        elif time.monotonic() >= self._next_line or (self._spoke and done == total):
            say(f"{self.name}: {line}")
            self._next_line, self._spoke = time.monotonic() + self._every, True


@contextmanager
def working(what: str) -> Iterator[None]:
    """Says what takes so long: a spinner on a terminal, a line elsewhere once it has taken a while."""
    if _terminal():
        from rich.console import Console
        from rich.text import Text

        with Console(stderr=True).status(Text(plain(what))):
            yield
        return
    timer = threading.Timer(_LINE_EVERY, say, [f"{what} …"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
