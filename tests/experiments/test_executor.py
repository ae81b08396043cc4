"""Worker processes that die, fail, stop and share a GPU: no finished cell is lost, none is done twice, none is dropped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from mechrl.errors import MechRLError
from mechrl.experiments import executor, worker
from mechrl.experiments.cells import Cell, Workspace
from mechrl.experiments.executor import CellProgress
from tests.experiments import work_jobs


def cell(method: str, seed: int = 0, mutex: str = "") -> Cell:
    return Cell("test", {"behaviour": "x/../y <b>", "method": method, "seed": seed}, mutex)


def attempts(workspace: Workspace, cell: Cell) -> int:
    return len((workspace.scratch(cell) / "attempt").read_text())


def test_cells_that_die_fail_and_share(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, work_jobs.do, work_jobs.resources, {"command": "test"}, jobs=2)
    good, once, dies, refuses, breaks = map(cell, ("works", "dies once", "dies", "refuses", "breaks"))
    sharing = [cell("shares", seed, mutex="together") for seed in range(3)]
    cells = [good, once, dies, refuses, breaks, *sharing]
    seen: list[CellProgress] = []
    assert executor.run(cells, workspace, report=seen.append)
    assert [workspace.done(c) for c in cells] == [True, True, False, False, False, True, True, True]
    reasons = [workspace.record(c)["reason"] for c in (dies, refuses, breaks)]
    assert reasons == [
        "its process was killed by SIGKILL, 3 times",
        "that cannot be done",
        "ZeroDivisionError: by zero",
    ]
    assert (attempts(workspace, once), attempts(workspace, dies), attempts(workspace, good)) == (
        2,
        executor.ATTEMPTS,
        1,
    )
    assert (seen[-1].done, seen[-1].failed, seen[-1].left) == (5, 3, 0) and seen[0].left == 8
    assert sorted(p.name for p in (tmp_path / "cells").iterdir()) == sorted(f"{c.name}.json" for c in cells)

    # finished cells are not repeated; failed ones are retried
    before = {c.name: workspace.path(c).read_bytes() for c in (good, once)}
    assert executor.run([good, once, refuses], workspace)
    assert {c.name: workspace.path(c).read_bytes() for c in (good, once)} == before
    assert (attempts(workspace, good), attempts(workspace, refuses)) == (1, 2)


def test_what_does_not_fit_beside_others_has_the_gpu_for_itself_at_the_end(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, work_jobs.do, work_jobs.resources, jobs=2)
    large, too_large = (
        [cell("needs much", seed, mutex="one at a time") for seed in range(2)],
        cell("needs too much"),
    )
    cells = [*large, too_large, *(cell("works", seed) for seed in range(3))]
    ended: list[Cell] = []
    assert executor.run(
        cells, workspace, report=lambda now: ended.append(now.finished) if now.finished else None
    )
    assert [workspace.done(c) for c in cells] == [True, True, False, True, True, True]
    assert workspace.record(too_large)["reason"] == "it does not fit" and attempts(workspace, too_large) == 2
    assert {c.name for c in ended[:3]} == {c.name for c in cells[3:]} and len(ended) == 6
    assert (
        executor.run([too_large], replace(workspace, jobs=1)) and attempts(workspace, too_large) == 3
    )  # nothing to wait for


@pytest.mark.parametrize(
    ("device", "jobs", "share"),
    [("cuda", 4, 0.2375), ("cuda:1", 5, 0.19), ("cuda", 1, None), ("cpu", 4, None)],
)
def test_workers_share_out_the_memory_of_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device, jobs, share
) -> None:
    """Tested with a stand-in; what the engine does with the share is tested where there is a GPU."""
    asked = []
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda part, index: asked.append((part, index))
    )
    worker.share_machine(Workspace(tmp_path, work_jobs.do, work_jobs.resources, {"device": device}, jobs))
    assert asked == ([] if share is None else [(pytest.approx(share), 1 if device == "cuda:1" else None)])


def test_out_of_time_and_two_at_once(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, work_jobs.do, work_jobs.resources)
    good, waits = cell("works"), cell("waits")
    began = time.monotonic()
    assert not executor.run([good, waits], workspace, seconds=6.0)
    assert time.monotonic() - began < 30
    assert workspace.record(waits) is None  # stopped, not failed
    assert not executor.run([cell("works", 1)], workspace, stopped=[signal.SIGTERM])
    with FileLock(tmp_path / ".lock"), pytest.raises(MechRLError, match="another command is writing"):
        executor.run([good], workspace)
    workspace.path(good).write_text('{"format": 1, "sta')  # cut short
    assert workspace.record(good) is None and not workspace.done(good)


def test_names_are_files_and_tell_cells_apart() -> None:
    names = {cell(m, s).name for m in ("a", "b") for s in (0, 1)} | {
        Cell("test", {"method": "a", "more": 1}).name
    }
    assert len(names) == 5 and all(set(n) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for n in names)
    assert cell("a").name == cell("a", mutex="z").name  # how a cell is run is not part of its name


def workers_of(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            stat, command = (path / "stat").read_text(), (path / "cmdline").read_bytes()
        except OSError:
            continue
        if int(stat.rpartition(")")[2].split()[1]) == pid and b"spawn_main" in command:
            found.append(int(path.name))
    return found


def until(condition, seconds: float = 60.0):
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return value


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def begin(options: str, out: Path) -> tuple[list[str], dict[str, str], Callable[[], dict], subprocess.Popen]:
    """A command whose first cell is there: its words and environment, its finished cells at any time, its process."""
    command = [sys.executable, "-m", "mechrl.cli", *options.split(), "--out", str(out), "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MECHRL_CACHE": str(out / "cache")}

    def finished() -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in out.glob("cells/circuit-*.json")}

    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    until(finished)
    return command, environment, finished, first


@pytest.mark.slow
def test_kill_9_of_a_worker_and_of_the_whole_comparison(tmp_path: Path) -> None:
    options = "compare --behaviours acronyms --methods greedy,top-n --targets discovery --seeds 0,1,2,3,4,5,6,7 --pairs 4 --device cpu"
    command, environment, finished, first = begin(options, tmp_path)
    (worker,) = workers_of(first.pid)
    os.kill(worker, signal.SIGKILL)
    until(lambda: len(finished()) > 2 and worker not in workers_of(first.pid))
    survivors = workers_of(first.pid)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate(timeout=30)
    until(lambda: not any(map(alive, survivors)))  # no worker keeps running
    kept = finished()
    assert 2 < len(kept) < 16

    second = subprocess.run(command, capture_output=True, env=environment, timeout=120, text=True)
    assert second.returncode == 0, second.stderr
    assert kept.items() <= finished().items() and len(finished()) == 16
    printed = json.loads(second.stdout)
    assert printed["finished"]
    for row in printed["tables"][0]["rows"]:
        assert row["seeds"] == 8 and row["remarks"] == "" and row["edges"]["n"] == 8
    # each of them, repeated, gives the other run's result
    assert sum(line.startswith("[") for line in second.stderr.splitlines()) == 16 - len(kept)


def test_a_cell_whose_checksum_is_wrong_or_gone_is_done_again(tmp_path: Path) -> None:
    workspace, one = Workspace(tmp_path, lambda hands, cell: {}, lambda place: None), cell("greedy")
    workspace.write(one, "done", result={"f": 0.9})
    assert workspace.done(one)
    path = workspace.path(one)
    whole = path.read_text()
    for damaged in (whole.replace("0.9", "0.8"), whole.replace('"sha256"', '""'), whole[:-9]):
        assert damaged != whole
        path.write_text(damaged)
        assert not workspace.done(one)
