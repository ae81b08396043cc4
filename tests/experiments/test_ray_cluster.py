"""A real Ray cluster, on this machine only: the results are those of processes, whichever workers die meanwhile."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mechrl.errors import MechRLError
from mechrl.experiments import executor as executors
from mechrl.experiments import ray_cluster as cluster
from mechrl.experiments.cells import Workspace
from mechrl.experiments.executor import CellProgress
from mechrl.experiments.ray_cluster import RayExecutor
from tests.experiments import work_jobs
from tests.experiments.test_executor import alive, attempts, begin, cell, until

pytest.importorskip("ray", reason="needs Ray: pip install -e '.[cluster]'")


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    ray = cluster.connect("local")
    yield ray
    ray.shutdown()


def test_cells_that_die_fail_share_and_do_not_fit(ray: Any, tmp_path: Path) -> None:
    workspace = Workspace(
        tmp_path, work_jobs.do, work_jobs.resources, {"command": "test", "device": "cpu"}, jobs=2
    )
    executor = RayExecutor(workspace, ray)
    good, once, dies, refuses, breaks = map(cell, ("works", "dies once", "dies", "refuses", "breaks"))
    sharing = [cell("shares", seed, mutex="together") for seed in range(2)]
    cells = [good, once, dies, refuses, breaks, *sharing]
    executor.workspace = replace(executor.workspace, jobs=2)  # as if two workers shared a GPU
    cells.append(cell("needs much"))  # and finally gets it alone
    seen: list[CellProgress] = []
    assert executors.run(cells, workspace, report=seen.append, executor=executor)
    assert [workspace.done(c) for c in cells] == [True, True, False, False, False, True, True, True]
    reasons = [workspace.record(c)["reason"] for c in (dies, refuses, breaks)]
    assert reasons[0].startswith("its process was lost to the cluster (ActorDiedError") and reasons[
        0
    ].endswith(", 3 times")
    assert reasons[1:] == ["that cannot be done", "ZeroDivisionError: by zero"]
    assert (attempts(workspace, once), attempts(workspace, dies), attempts(workspace, good)) == (
        2,
        executors.ATTEMPTS,
        1,
    )
    assert (seen[-1].done, seen[-1].failed, seen[-1].left) == (5, 3, 0)


def test_out_of_time_the_workers_leave_a_state(ray: Any, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, work_jobs.do, work_jobs.resources, jobs=2)
    good, waits = cell("works"), cell("waits")
    assert not executors.run([good, waits], workspace, seconds=8.0, executor=RayExecutor(workspace, ray))
    assert (
        workspace.done(good) and workspace.record(waits) is None and attempts(workspace, waits) == 1
    )  # stopped, not failed


class Stand:
    """A cluster's description of itself."""

    def __init__(self, gpus: int, *cores: int) -> None:
        self.gpus, self.cores = gpus, cores

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(sum(self.cores)), "GPU": float(self.gpus)}

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": float(n)}} for n in self.cores]


@pytest.mark.parametrize(
    ("gpus", "cores", "device", "jobs", "share", "cpus", "on_one"),
    [
        (4, (32, 32), "cuda", 8, 0.5, 8, 2),  # two per GPU
        (4, (32, 32), "cuda", 3, 1.0, 21, 1),
        (4, (32, 32), "cpu", 4, 0, 16, 1),
        (0, (4, 64), "cpu", 1, 0, 64, 1),  # no single machine has all the cores
        (0, (2,), "cpu", 8, 0, 1, 1),
    ],
)
def test_actors_share_out_gpus_and_cores(
    tmp_path: Path, gpus, cores, device, jobs, share, cpus, on_one
) -> None:
    workspace = Workspace(tmp_path, work_jobs.do, work_jobs.resources, {"device": device}, jobs)
    executor = RayExecutor(workspace, Stand(gpus, *cores))
    assert executor._needs == {"num_cpus": cpus, "num_gpus": share} and executor.workspace.jobs == on_one
    assert cluster.gpus(Stand(gpus, *cores)) == gpus


def test_no_cluster_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray as library

    def refuse(**options: Any) -> None:
        raise ConnectionError("Could not find any running Ray instance.\nMore.")

    monkeypatch.setattr(library, "is_initialized", lambda: False)
    monkeypatch.setattr(library, "init", refuse)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        closed = f"127.0.0.1:{nobody.getsockname()[1]}"
    for address in ("auto", "nonsense", "127.0.0.1:x", closed, f"ray://{closed}"):
        with pytest.raises(
            MechRLError, match=f"no Ray cluster at '{address}': start one with `ray start --head`"
        ):
            cluster.connect(address)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MechRLError, match=r"pip install 'mechrl\[cluster\]'"):
        cluster.connect("auto")


def actors() -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if b"_Remote" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_kill_9_of_an_actor_and_of_the_whole_comparison(tmp_path: Path) -> None:
    options = "compare --behaviours acronyms --methods greedy,top-n --targets discovery --seeds 0,1,2,3,4,5 --pairs 4 --ray local"
    others = set(actors())
    command, environment, finished, first = begin(options, tmp_path)
    (mine,) = set(actors()) - others
    os.kill(mine, signal.SIGKILL)
    n = len(finished())
    until(lambda: len(finished()) > n + 1)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate(timeout=30)
    until(lambda: not any(map(alive, set(actors()) - others)))  # no worker keeps running
    kept = finished()
    assert 2 < len(kept) < 12

    second = subprocess.run(command, capture_output=True, env=environment, timeout=120, text=True)
    assert second.returncode == 0, second.stderr
    assert kept.items() <= finished().items() and len(finished()) == 12
    for row in json.loads(second.stdout)["tables"][0]["rows"]:
        assert row["seeds"] == 6 and row["remarks"] == ""
    by_processes = tmp_path / "processes"
    plain = [word for word in command if word not in ("--ray", "local")] + [
        "--out",
        str(by_processes),
        "--seeds",
        "0",
    ]
    assert subprocess.run(plain, capture_output=True, env=environment, timeout=120).returncode == 0
    for path in by_processes.glob("circuits/*"):  # a cluster gives the same results as processes
        assert path.stat().st_size and (tmp_path / "circuits" / path.name).exists()
        ours, theirs = (
            json.loads((p / "cells" / f"{path.name.split('.')[0]}.json").read_text())
            for p in (tmp_path, by_processes)
        )
        assert ours["result"] | {"seconds": 0} == theirs["result"] | {"seconds": 0}


@pytest.mark.slow
def test_a_machine_that_is_lost_costs_no_cell_and_says_nothing_on_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines, as far as Ray can tell: one raylet each, of which one is killed midway."""
    from ray.cluster_utils import Cluster as Machines

    monkeypatch.setenv("RAY_worker_niceness", "0")
    machines = Machines()
    try:
        machines.add_node(num_cpus=1, include_dashboard=False)
        second = machines.add_node(num_cpus=1)
        options = "compare --behaviours ioi --methods blockwise --targets discovery --seeds 0,1,2,3,4,5 --pairs 8 --jobs 2 --json"
        command = [
            sys.executable,
            "-m",
            "mechrl.cli",
            *options.split(),
            "--ray",
            machines.address,
            "--out",
            str(tmp_path),
        ]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MECHRL_CACHE": str(tmp_path / "cache")}
        with open(tmp_path / "log", "w") as log:
            run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment)
            until(lambda: list(tmp_path.glob("cells/circuit-*.json")))
            machines.remove_node(second, allow_graceful=False)
            printed, _ = run.communicate(timeout=120)
        assert run.returncode == 0, (tmp_path / "log").read_text()
    finally:
        machines.shutdown()
    (row,) = json.loads(printed)["tables"][0]["rows"]
    assert row["seeds"] == 6 and row["remarks"] == ""
