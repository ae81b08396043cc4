"""A *cell* is one piece of work. Its result is one JSON file in `cells/`, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import mechrl
from mechrl.errors import MechRLError
from mechrl.files import write_atomically
from mechrl.files.reading import read_json

FORMAT = 1


_LABEL = ("kind", "behaviour", "method", "target", "seed")


@dataclass(frozen=True)
class Cell:
    """kind: which of the jobs does it. arguments: JSON; all that determines the result."""

    kind: str
    arguments: dict[str, Any]
    mutex: str = ""  # cells with the same one share a folder, and never run at the same time

    @property
    def label(self) -> str:
        known = {"kind": self.kind} | self.arguments
        return " ".join(str(known[key]) for key in _LABEL if known.get(key) not in (None, ""))

    @cached_property
    def name(self) -> str:
        """Of its files: readable, and its own."""
        what = json.dumps([self.kind, self.arguments], sort_keys=True)
        return f"{re.sub(r'[^A-Za-z0-9]+', '-', self.label)[:80]}-{hashlib.sha256(what.encode()).hexdigest()[:10]}"


@dataclass(frozen=True)
class Workspace:
    """Where the work is done, and with what: everything that a worker needs besides its cells."""

    folder: Path
    job: Callable[[Any, Cell], dict[str, Any]]  # (resources, cell) -> result
    resources: Callable[[Workspace], Any]  # made once in every worker: the loaded model and the like
    context: dict[str, Any] = field(default_factory=dict)  # JSON; recorded with every result
    jobs: int = 1

    def path(self, cell: Cell) -> Path:
        return self.folder / "cells" / f"{cell.name}.json"

    def scratch(self, cell: Cell) -> Path:
        """A folder for what a cell needs to go on later."""
        return self.folder / "work" / (cell.mutex or cell.name)

    def record(self, cell: Cell) -> dict[str, Any] | None:
        """What is known of a cell; None if nothing, or if the file is damaged."""
        try:
            known = read_json(self.path(cell))
            if known["format"] != FORMAT or known["sha256"] != checksum(known):
                return None
            right = {"done": ("result", dict), "failed": ("reason", str)}[known["status"]]
            return known if isinstance(known[right[0]], right[1]) else None
        except (OSError, MechRLError, ValueError, KeyError, TypeError):
            return None

    def done(self, cell: Cell) -> bool:
        known = self.record(cell)
        return known is not None and known["status"] == "done"

    def write(self, cell: Cell, status: str, **what: Any) -> None:
        known = {"format": FORMAT, "kind": cell.kind, "arguments": cell.arguments, "status": status}
        content = known | what | {"version": mechrl.__version__, "context": self.context}
        seal = {"sha256": checksum(json.loads(json.dumps(content)))}  # as it will be read
        write_atomically(self.path(cell), (json.dumps(content | seal, indent=1) + "\n").encode())


def checksum(known: dict[str, Any]) -> str:
    """Of what a cell came to. A number that has changed on the disk is one that nobody computed."""
    what = {
        key: value
        for key, value in known.items()
        if key in ("kind", "arguments", "status", "result", "reason")
    }
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
