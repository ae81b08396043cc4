"""Many pieces of work, none of them done twice.

A *cell* is one piece of work; its result is one JSON file in `cells/`, written whole or not at all by the process that did the work.
Cells with a file are done. Worker processes take one cell at a time. A worker that dies, whatever it died of, costs the cell it was
at: the cell goes to another worker, a bounded number of times, and then counts as failed. A failed cell has a file as well, which
says why; it is tried again when the work is taken up again. A cell that does not fit into a worker's share of a GPU's memory is put
aside until all others are through, and then has the GPU for itself.

Whoever is asked to stop (SIGINT, SIGTERM, or out of time) asks the workers: a cell that can leave a state behind does so, and goes on
from there next time. Workers do not outlive their parent. They are processes of this machine or, with cluster.py, of many.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import signal
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

import mechrl
from mechrl.errors import MechRLError, OutOfMemory
from mechrl.files import CannotWrite, write_atomically
from mechrl.files.lock import only_writer
from mechrl.files.reading import read_json
from mechrl.files.saving import patiently

FORMAT = 1
ATTEMPTS = 3  # workers that one cell may cost
GRACE = 60.0  # seconds to leave a state behind
_LABEL = ("kind", "behaviour", "method", "target", "seed")


class Stopped(Exception):
    """Raised within a cell that was asked to stop; what it had reached is saved by then, if it can be."""


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
            if known["format"] != FORMAT or known.get("sha256", checksum(known)) != checksum(known):
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


# ---- the worker's side ----------------------------------------------------------------------------------------------

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


def _work(workspace: Workspace, connection: Connection) -> None:
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


# ---- the parent's side ----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Worker:
    cell: Cell
    at: str = ""


class Executor(Protocol):
    """Whoever does the work."""

    def start(self, cell: Cell, alone: bool = False) -> Any:
        """A new worker, with its first cell; `alone`: it has the GPU for itself."""

    def news(self, workers: list[Any]) -> list[tuple[Any, str, str]]:
        """What workers say, after half a second at most: (worker, what, line). `at`: what it is at; `finished` and `crowded` as
        `CellRunner.do` has them; `died`: how."""

    def give(self, worker: Any, cell: Cell | None) -> None:
        """The next cell to one that has finished; None: there is none, it may leave."""

    def stop(self, workers: list[Any]) -> None:
        """Asks all to leave a state behind, waits, and ends those that do not."""


@dataclass(frozen=True)
class CellProgress:
    """How far the work is. `finished` is the cell that ended just now, if one did."""

    done: int
    failed: int
    total: int
    running: tuple[str, ...]
    seconds: float
    finished: Cell | None = None

    @property
    def left(self) -> int:
        return self.total - self.done - self.failed


def run(
    cells: Sequence[Cell],
    workspace: Workspace,
    seconds: float | None = None,
    stopped: Sequence[int] = (),
    report: Callable[[CellProgress], None] = lambda progress: None,
    executor: Executor | None = None,
) -> bool:
    """Does what is not done. True: every cell is done or failed; False: it was asked to stop, or out of time.

    stopped: becomes true when somebody asks to stop. seconds: for all of it; a running cell is asked to stop then. executor: processes of
    this machine by default.
    """
    with only_writer(workspace.folder):
        return _run(cells, workspace, executor or ProcessExecutor(workspace), seconds, stopped, report)


def _run(
    cells: Sequence[Cell],
    workspace: Workspace,
    executor: Executor,
    seconds: float | None,
    stopped: Sequence[int],
    report: Callable[[CellProgress], None],
) -> bool:
    began = time.monotonic()
    unique = {cell.name: cell for cell in cells}
    queue = deque(cell for cell in unique.values() if not workspace.done(cell))
    done, failed, deaths = len(unique) - len(queue), 0, Counter[str]()
    workers: list[Worker] = []
    large: deque[Cell] = deque()  # to be done alone

    def show(finished: Cell | None = None) -> None:
        running = tuple(f"{w.cell.label}{w.at and f' ({w.at})'}" for w in workers)
        report(CellProgress(done, failed, len(unique), running, time.monotonic() - began, finished))

    def late() -> bool:
        return bool(stopped) or (seconds is not None and time.monotonic() - began > seconds)

    def next_cell() -> Cell | None:
        taken = {w.cell.mutex for w in workers} - {""}
        cell = next((cell for cell in queue if cell.mutex not in taken), None)
        if cell is not None:
            queue.remove(cell)
        return cell

    def count(cell: Cell) -> None:
        nonlocal done, failed
        done, failed = (done + 1, failed) if workspace.done(cell) else (done, failed + 1)

    show()
    try:
        while (queue or workers or large) and not late():
            while len(workers) < workspace.jobs and (cell := next_cell()) is not None:
                workers.append(executor.start(cell))
            if not workers:  # nothing else is left
                workers.append(executor.start(large.popleft(), alone=True))
            news = executor.news(workers)
            for worker, what, line in news:
                cell = worker.cell
                if what == "at":
                    worker.at = line
                    show()
                    continue
                workers.remove(worker)
                if what == "died":
                    deaths[cell.name] += 1
                    if deaths[cell.name] < ATTEMPTS:
                        queue.appendleft(cell)
                        continue
                    with suppress(CannotWrite):  # it counts as failed without a file, too
                        workspace.write(cell, "failed", reason=f"its process {line}, {ATTEMPTS} times")
                else:
                    following = None if late() else next_cell()
                    executor.give(worker, following)
                    if following is not None:
                        worker.cell, worker.at = following, ""
                        workers.append(worker)
                if what == "crowded":
                    large.append(cell)
                    show()
                else:
                    count(cell)
                    show(cell)
            if not news:
                show()
    finally:
        executor.stop(workers)
        for worker in workers:
            if workspace.done(worker.cell):  # it ended as we asked
                count(worker.cell)
                show(worker.cell)
    return done + failed == len(unique)


# ---- processes of this machine --------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Process(Worker):
    process: BaseProcess = field(kw_only=True)
    connection: Connection = field(kw_only=True)


class ProcessExecutor:
    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    def start(self, cell: Cell, alone: bool = False) -> _Process:
        context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
        ours, theirs = context.Pipe()
        workspace = replace(self.workspace, jobs=1) if alone else self.workspace
        process = context.Process(target=_work, args=(workspace, theirs), daemon=True)
        process.start()
        theirs.close()
        worker = _Process(cell, process=process, connection=ours)
        self.give(worker, cell)
        return worker

    def news(self, workers: list[_Process]) -> list[tuple[_Process, str, str]]:
        ready = set(wait([w.connection for w in workers], timeout=0.5))
        found = []
        for worker in [w for w in workers if w.connection in ready]:
            try:
                found.append((worker, *worker.connection.recv()))
            except (EOFError, ConnectionError):
                found.append((worker, "died", _bury(worker)))
        return found

    def give(self, worker: _Process, cell: Cell | None) -> None:
        with suppress(ConnectionError):  # it died meanwhile: the next look at its connection finds out
            worker.connection.send(cell)

    def stop(self, workers: list[_Process]) -> None:
        for worker in workers:
            worker.process.terminate()
            self.give(worker, None)
        until = time.monotonic() + GRACE
        for worker in workers:
            worker.process.join(max(0.0, until - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.connection.close()


def _bury(worker: _Process) -> str:
    worker.process.join(5)
    code = worker.process.exitcode
    worker.connection.close()
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with status {code}"
