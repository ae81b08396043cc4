"""What a worker process does: one cell after the other, until it is told to stop.

A job calls `tell` to say what it is at, and `check_stop` or `stopping` now and then: whoever asked it to stop (SIGINT, SIGTERM, or out
of time) waits a while for a state to be saved, from which the cell goes on next time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from mechrl.errors import MechRLError, OutOfMemory
from mechrl.experiments.cells import Cell, Workspace
from mechrl.files import CannotWrite
from mechrl.files.saving import patiently


class Stopped(Exception):
    """Raised within a cell that was asked to stop; what it had reached is saved by then, if it can be."""


_asked_to_stop = False


_tell: Callable[[str], None] = lambda line: None  # noqa: E731


_last_told = 0.0


def check_stop() -> None:
    """For jobs to call now and then, when all is saved."""
    if _asked_to_stop:
        raise Stopped


def stopping() -> bool:
    """For jobs that must save first."""
    return _asked_to_stop


def tell(line: str) -> None:
    """What a job is at, for people; a line a second at most."""
    global _last_told
    if time.monotonic() - _last_told > 1:
        _last_told = time.monotonic()
        _tell(line)


def ask_to_stop() -> None:
    global _asked_to_stop
    _asked_to_stop = True


def tell_to(listener: Callable[[str], None]) -> None:
    global _tell
    _tell = listener


class CellRunner:
    """Where a worker does one cell after the other. Its resources are made with the first."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace, self._resources = workspace, None
        share_machine(workspace)

    def do(self, cell: Cell) -> str:
        """finished: done or failed, its file says which; crowded: it did not fit beside others; stopped."""
        workspace = self.workspace
        try:
            if self._resources is None:
                self._resources = workspace.resources(workspace)
            self._insist(cell, "done", result=workspace.job(self._resources, cell))
        except Stopped:
            return "stopped"
        except MechRLError as exc:
            if isinstance(exc, OutOfMemory) and workspace.jobs > 1:
                return "crowded"
            self._insist(cell, "failed", reason=str(exc))
        except Exception as exc:
            reason = f"{type(exc).__name__}: {exc}".splitlines()[0]
            self._insist(cell, "failed", reason=reason, traceback=traceback.format_exc())
        return "finished"

    def _insist(self, cell: Cell, status: str, **what: Any) -> None:
        with suppress(CannotWrite):  # it has no file, so it is done again next time
            patiently(
                lambda: self.workspace.write(cell, status, **what),
                stopping,
                lambda failed: tell(f"waiting to save its result: {failed}"),
            )


def work(workspace: Workspace, connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to everybody; the parent decides
    signal.signal(signal.SIGTERM, lambda number, frame: ask_to_stop())
    threading.Thread(target=_die_with_parent, daemon=True).start()
    tell_to(lambda line: connection.send(("at", line)))
    runner = CellRunner(workspace)
    while not stopping():
        try:
            cell: Cell | None = connection.recv()
        except EOFError:
            return
        if cell is None or (ended := runner.do(cell)) == "stopped":
            return
        connection.send((ended, ""))


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def share_machine(workspace: Workspace) -> None:
    """As many cores, and as much of the GPU's memory, as are left to each of the workers."""
    if "OMP_NUM_THREADS" not in os.environ:
        import torch

        torch.set_num_threads(max(1, (os.cpu_count() or 1) // workspace.jobs))
    if workspace.jobs > 1 and str(workspace.context.get("device")).startswith("cuda"):
        import torch

        from mechrl.engine.memory import share_memory

        share_memory(torch.device(workspace.context["device"]), workspace.jobs)
