"""Cells that misbehave on demand, for the tests of worker processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from mechrl.errors import MechRLError, OutOfMemory
from mechrl.experiments.cells import Cell, Workspace
from mechrl.experiments.worker import check_stop


def resources(workspace: Workspace) -> Workspace:
    return workspace


def do(workspace: Workspace, cell: Cell) -> dict[str, Any]:
    what, scratch = cell.arguments["method"], workspace.scratch(cell)
    attempts = note(scratch, "attempt")
    if what == "dies" or (what == "dies once" and attempts == 1):
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "refuses":
        raise MechRLError("that cannot be done")
    if what == "breaks":
        raise ZeroDivisionError("by zero\nand more")
    if (what == "needs much" and workspace.jobs > 1) or what == "needs too much":
        raise OutOfMemory("it does not fit")
    if what == "waits":
        while True:
            time.sleep(0.02)
            check_stop()
    if what in ("shares", "needs much"):
        assert note(scratch, "inside") == 1, "somebody else is here"
        time.sleep(0.2)
        (scratch / "inside").unlink()
    return {"attempts": attempts}


def note(folder: Path, name: str) -> int:
    """Adds a mark to a file and returns how many there are."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / name, "a") as file:
        file.write("x")
    return len((folder / name).read_text())
