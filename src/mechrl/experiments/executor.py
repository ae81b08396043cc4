"""Many cells, none of them done twice.

Cells with a file are done. Worker processes take one cell at a time. A worker that dies costs the cell it was at: the cell goes to
another worker, up to ATTEMPTS times, and then counts as failed. A failed cell has a file as well, which says why; the next run tries it
again. A cell that does not fit into a worker's share of a GPU's memory waits until all others are through, and then has the GPU for
itself.

Workers do not outlive their parent. They are processes of this machine or, with ray_cluster.py, of many.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from mechrl.experiments.cells import Cell, Workspace
from mechrl.experiments.worker import work
from mechrl.files import CannotWrite
from mechrl.files.lock import only_writer

ATTEMPTS = 3  # workers that one cell may cost
GRACE = 60.0  # seconds to leave a state behind


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
        return _Run(cells, workspace, executor or ProcessExecutor(workspace), report).all(seconds, stopped)


class _Run:
    """The queue of cells, the workers, and what has become of both."""

    def __init__(
        self,
        cells: Sequence[Cell],
        workspace: Workspace,
        executor: Executor,
        report: Callable[[CellProgress], None],
    ) -> None:
        self.workspace, self.executor, self.report = workspace, executor, report
        unique = {cell.name: cell for cell in cells}
        self.total, self.began = len(unique), time.monotonic()
        self.queue = deque(cell for cell in unique.values() if not workspace.done(cell))
        self.large: deque[Cell] = deque()  # to be done alone
        self.done, self.failed, self.deaths = self.total - len(self.queue), 0, Counter[str]()
        self.workers: list[Worker] = []

    def all(self, seconds: float | None, stopped: Sequence[int]) -> bool:
        def late() -> bool:
            return bool(stopped) or (seconds is not None and time.monotonic() - self.began > seconds)

        self.show()
        try:
            while (self.queue or self.workers or self.large) and not late():
                self.start()
                news = self.executor.news(self.workers)
                for worker, what, line in news:
                    self.hear(worker, what, line, late)
                if not news:
                    self.show()
        finally:
            self.executor.stop(self.workers)
            for worker in self.workers:
                if self.workspace.done(worker.cell):  # it ended as we asked
                    self.count(worker.cell)
        return self.done + self.failed == self.total

    def start(self) -> None:
        """As many workers as there may be; for large cells one, when nothing else is left."""
        while len(self.workers) < self.workspace.jobs and (cell := self.next_cell()) is not None:
            self.workers.append(self.executor.start(cell))
        if not self.workers:
            self.workers.append(self.executor.start(self.large.popleft(), alone=True))

    def hear(self, worker: Worker, what: str, line: str, late: Callable[[], bool]) -> None:
        cell = worker.cell
        if what == "at":
            worker.at = line
            self.show()
            return
        self.workers.remove(worker)
        if what == "died":
            self.deaths[cell.name] += 1
            if self.deaths[cell.name] < ATTEMPTS:
                self.queue.appendleft(cell)
                return
            with suppress(CannotWrite):  # it counts as failed without a file, too
                self.workspace.write(cell, "failed", reason=f"its process {line}, {ATTEMPTS} times")
        else:
            following = None if late() else self.next_cell()
            self.executor.give(worker, following)
            if following is not None:
                worker.cell, worker.at = following, ""
                self.workers.append(worker)
        if what == "crowded":
            self.large.append(cell)
            self.show()
        else:
            self.count(cell)

    def next_cell(self) -> Cell | None:
        taken = {w.cell.mutex for w in self.workers} - {""}
        cell = next((cell for cell in self.queue if cell.mutex not in taken), None)
        if cell is not None:
            self.queue.remove(cell)
        return cell

    def count(self, cell: Cell) -> None:
        if self.workspace.done(cell):
            self.done += 1
        else:
            self.failed += 1
        self.show(cell)

    def show(self, finished: Cell | None = None) -> None:
        running = tuple(f"{w.cell.label}{w.at and f' ({w.at})'}" for w in self.workers)
        seconds = time.monotonic() - self.began
        self.report(CellProgress(self.done, self.failed, self.total, running, seconds, finished))


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
        process = context.Process(target=work, args=(workspace, theirs), daemon=True)
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
