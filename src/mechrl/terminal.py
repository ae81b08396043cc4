"""What commands say and how they hear: results on stdout, everything else on stderr, progress, signals. No heavy imports."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from mechrl.errors import MechRLError
from mechrl.files import check_replaceable

if TYPE_CHECKING:
    from rich.progress import Progress

_LINE_EVERY = 5.0  # seconds between two plain lines
_NO_LIMIT = 10_000  # columns: a pipe does not wrap


# ---- text -----------------------------------------------------------------------------------------------------------


def plain(text: object) -> str:
    """One line that cannot steer a terminal: names come from files, and whatever does not print is shown escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def say(line: object) -> None:
    """A line on stderr."""
    if _speaks():
        print(plain(line), file=sys.stderr, flush=True)


def answer(line: object) -> None:
    """A line of the result, for people."""
    if _speaks():
        print(plain(line))


def answer_json(value: object) -> None:
    """The result, for machines: all that stdout gets."""
    try:
        text = json.dumps(value, indent=1, allow_nan=False)
    except ValueError as exc:
        raise MechRLError(
            "the result has numbers that are NaN or infinite; check the model and its pairs"
        ) from exc
    if _speaks():
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
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and _speaks()


def _speaks() -> bool:
    """Of the processes that `torchrun` starts, the first one."""
    return os.environ.get("RANK", "0") == "0"


# ---- signals --------------------------------------------------------------------------------------------------------


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM instead of dying at once; a second one is not collected but obeyed."""
    stopped: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        stopped.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, note)
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---- where results go -----------------------------------------------------------------------------------------------


def check_folder(folder: Path) -> None:
    """Refuses a folder that cannot be written to before the work is done, not after it."""
    _check_place(folder, folder)


def check_file(file: Path) -> None:
    """The same for a file."""
    if file.is_dir():
        raise MechRLError(f"{file}: is a folder; give the name of a file in it")
    check_replaceable(file)
    _check_place(file, file.parent)


def _check_place(what: Path, folder: Path) -> None:
    there = next(path for path in (folder, *folder.parents, Path()) if path.exists())
    if not there.is_dir():
        raise MechRLError(f"{what}: cannot be written ({there} is not a folder); choose another place")
    if not os.access(there, os.W_OK | os.X_OK):
        raise MechRLError(f"{what}: cannot be written ({there} is read-only); choose another place")
