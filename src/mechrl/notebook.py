"""How far something has come, under a notebook's cell. Elsewhere nothing is shown: a program that calls us has its own way to tell."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

_EVERY = 0.2  # seconds between pictures


class Show(Protocol):
    def __call__(self, line: str, done: float = 0.0, total: float | None = None) -> None: ...


@contextmanager
def progress(name: str, report: Callable[[str], None] | None) -> Iterator[Show]:
    """Lines go to `report`; without one, to a bar under the cell, which stays with the last line."""
    if report is None and in_notebook():
        bar = _Bar(name)
        try:
            yield bar.show
            bar.full()
        finally:
            bar.draw()
        return

    def show(line: str, done: float = 0.0, total: float | None = None) -> None:
        if report is not None:
            report(line)

    yield show


def in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class _Bar:
    def __init__(self, name: str) -> None:
        from IPython.display import display

        self._name, self._began, self._next = name, time.monotonic(), 0.0
        self._line, self._done = "", 0.0
        self._total: float | None = None
        self._handle: Any = display(self, display_id=True)

    def show(self, line: str, done: float = 0.0, total: float | None = None) -> None:
        self._line, self._done, self._total = line, done, total
        if time.monotonic() >= self._next:
            self.draw()

    def full(self) -> None:
        self._done = self._total = 1.0

    def draw(self) -> None:
        self._next = time.monotonic() + _EVERY
        self._handle.update(self)

    def __repr__(self) -> str:
        return f"{self._name}: {self._line}, {time.monotonic() - self._began:.0f} s"

    def _repr_html_(self) -> str:
        how_far = f' value="{self._done:g}" max="{self._total:g}"' if self._total else ""
        return f"<progress{how_far}></progress> {html.escape(repr(self))}"
