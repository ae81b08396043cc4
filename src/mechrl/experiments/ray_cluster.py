"""The same work on a Ray cluster: workers are actors, on whichever of its machines have room.

Cells read and write the same folders as on one machine, so all machines must see them under the same path, as they do where home folders
are shared; MechRL must be installed on all of them. An actor whose process or machine dies is a worker that died. Actors end with the
command that started them.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from typing import Any

from mechrl.errors import MechRLError
from mechrl.experiments.cells import Cell, Workspace
from mechrl.experiments.executor import GRACE, Worker
from mechrl.experiments.worker import CellRunner, ask_to_stop, tell_to


def connect(address: str) -> Any:
    """Ray, at work on the cluster of an address: `auto` for the one that this machine belongs to, `local` for one of its own."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # what is done here is nobody else's business
    # of a cluster that is started here: workers are what it is for
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        import ray
    except ImportError as exc:
        raise MechRLError("a cluster needs Ray: pip install 'mechrl[cluster]'") from exc
    if not ray.is_initialized():
        try:
            _knock(address)
            ray.init(
                address=address, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False
            )
        except (OSError, RuntimeError, ValueError) as exc:
            raise MechRLError(
                f"no Ray cluster at {address!r}: start one with `ray start --head`, or use --ray local"
            ) from exc
    return ray


def _knock(address: str) -> None:
    """Is anybody there? Ray itself would go on asking for many minutes."""
    if address not in ("auto", "local"):
        host, _, port = address.removeprefix("ray://").rpartition(":")
        socket.create_connection((host, int(port)), timeout=10).close()


def gpus(ray: Any) -> float:
    """Of all machines together."""
    return float(ray.cluster_resources().get("GPU", 0.0))


class _Remote:
    """A worker's side: a runner in another process. Ray calls its methods from threads of their own."""

    def __init__(self, workspace: Workspace, folder: str) -> None:
        os.chdir(folder)  # so that relative paths mean what they meant to the command
        self._line = ""
        tell_to(self._listen)
        self._runner = CellRunner(workspace)

    def _listen(self, line: str) -> None:
        self._line = line

    def do(self, cell: Cell) -> str:
        self._line = ""
        return self._runner.do(cell)

    def at(self) -> str:
        return self._line

    def stop(self) -> None:
        ask_to_stop()


@dataclass(eq=False)
class _Actor(Worker):
    actor: Any = field(kw_only=True)
    doing: Any = field(kw_only=True)  # the call of `do`
    asked: Any = None  # the call of `at`, if one is under way


class RayExecutor:
    """`workspace.jobs` actors at most. Where there are GPUs they share them evenly, and otherwise the cores."""

    def __init__(self, workspace: Workspace, ray: Any) -> None:
        self.ray = ray
        shared = gpus(ray) if str(workspace.context.get("device")).startswith("cuda") else 0
        # actors that share a GPU, and its memory
        on_one = math.ceil(workspace.jobs / shared) if shared else 1
        self.workspace = replace(workspace, jobs=on_one)
        cores = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
        each = max(1, min(max(cores), sum(cores) // workspace.jobs))
        self._needs = {"num_cpus": each, "num_gpus": 1 / on_one if shared else 0}

    def __enter__(self) -> RayExecutor:
        # Ray prints what becomes of its machines; our answers are for programs to read
        self._quiet = redirect_stdout(sys.stderr)
        self._quiet.__enter__()
        return self

    def __exit__(self, *how: object) -> None:
        self.ray.shutdown()
        self._quiet.__exit__(None, None, None)

    def start(self, cell: Cell, alone: bool = False) -> _Actor:
        workspace = replace(self.workspace, jobs=1) if alone else self.workspace
        needs = self._needs | ({"num_gpus": 1} if alone and self._needs["num_gpus"] else {})
        actor = (
            self.ray.remote(_Remote)
            .options(max_concurrency=3, max_restarts=0, **needs)
            .remote(workspace, os.getcwd())
        )
        return _Actor(cell, actor=actor, doing=actor.do.remote(cell))

    def news(self, workers: list[_Actor]) -> list[tuple[_Actor, str, str]]:
        calls = [w.doing for w in workers]
        self.ray.wait(calls, timeout=0.5)  # for one of them; others may be through as well
        ready = set(self.ray.wait(calls, num_returns=len(calls), timeout=0)[0])
        found = [(worker, *self._outcome(worker)) for worker in workers if worker.doing in ready]
        for worker in [w for w in workers if w.doing not in ready]:
            worker.asked = worker.asked or worker.actor.at.remote()
            if self.ray.wait([worker.asked], timeout=0)[0]:
                try:
                    line = self.ray.get(worker.asked)
                except self.ray.exceptions.RayError:  # it died: its work will say so
                    continue
                worker.asked = None
                found += [(worker, "at", line)] if line != worker.at else []
        return found

    def _outcome(self, worker: _Actor) -> tuple[str, str]:
        try:
            return self.ray.get(worker.doing), ""
        except self.ray.exceptions.RayError as exc:  # its process, its machine, or what it needs to begin
            return (
                "died",
                f"was lost to the cluster ({type(exc).__name__}: {str(exc).strip().splitlines()[-1]})",
            )

    def give(self, worker: _Actor, cell: Cell | None) -> None:
        if cell is None:
            self.ray.kill(worker.actor)
        else:
            worker.doing, worker.asked = worker.actor.do.remote(cell), None

    def stop(self, workers: list[_Actor]) -> None:
        for worker in workers:
            worker.actor.stop.remote()
        if workers:
            self.ray.wait([w.doing for w in workers], num_returns=len(workers), timeout=GRACE)
        for worker in workers:
            self.ray.kill(worker.actor)
