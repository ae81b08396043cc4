"""A failed save does not end the work: saving is retried, and at the end the result is printed."""

from __future__ import annotations

import errno
import json
import math
import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file

from mechrl.agents.planner import fit as fitting
from mechrl.agents.planner.collect import Walk
from mechrl.circuit import Circuit
from mechrl.cli import app as cli
from mechrl.cli import planner as planner_command
from mechrl.cli import search as searching
from mechrl.experiments import collect as planner_jobs
from mechrl.experiments.cells import Cell, Workspace
from mechrl.experiments.worker import CellRunner
from mechrl.files import CannotWrite, saving
from mechrl.search.problem import State
from tests.agents.paper.small import shrink, write_policy
from tests.experiments import work_jobs
from tests.fuzz.planner import some_network, some_record
from tests.test_bad_input import room_for

SMALL = ["--envs", "2", "--device", "cpu", "--force", "--out", "out"]
TRAIN = ["train", "--behaviours", "ioi", "--k", "20", *SMALL, "--iterations", "4", "--save-every", "1"]
ADAPT = ["adapt", "ioi", "--policy", "policy", *SMALL, "--iterations", "4", "--save-every", "1"]
SEARCH = [
    "search",
    "acdc",
    "ioi",
    "--pairs",
    "2",
    "--k",
    "30",
    "--threshold",
    "0.01",
    "--device",
    "cpu",
    "--out",
    "out",
]
DISCOVER = ["discover", "ioi", "--agent", "paper", "--policy", "policy", "--device", "cpu", "--out", "out"]
FULL = "No space left on device); make room"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MECHRL_CACHE", str(tmp_path / "cache"))
    shrink(monkeypatch)
    write_policy(Path("policy"))


class Disk:
    """A disk that is full for certain file names, in some of the attempts to write them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str, times: float = math.inf) -> None:
        self.names, self.full, self.refused = names, True, 0
        sync = os.fsync

        def fsync(descriptor: int) -> None:
            if (
                self.full
                and self.refused < times
                and any(f".{name}." in os.readlink(f"/proc/self/fd/{descriptor}") for name in self.names)
            ):
                self.refused += 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)


def printed_circuit(out: str) -> Circuit:
    """Writes the last output line to a file."""
    Path("copied.json").write_text(out.splitlines()[-1])
    return Circuit.load("copied.json")


@pytest.mark.parametrize(("command", "as_json"), [(SEARCH, False), (SEARCH, True), (DISCOVER, True)])
def test_a_circuit_that_cannot_be_saved_is_printed(
    command: list[str], as_json: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, "circuit.json")
    assert cli.run([*command, *["--json"] * as_json]) == 1
    said = capsys.readouterr()
    if as_json:
        answer = json.loads(said.out)
        assert answer["circuit"] is None
        Path("copied.json").write_text(json.dumps(answer["unsaved"]))
        found = Circuit.load("copied.json")
    else:
        found = printed_circuit(said.out)
    assert len(found) and found.behaviour == "ioi"
    assert (
        said.err.splitlines()[-1].startswith("mechrl: out/circuit.json: cannot be written")
        and FULL in said.err
    )
    disk.full = False
    assert cli.run(command) == 0
    assert Circuit.load("out/circuit.json").to_json() | {"seconds": 0} == found.to_json() | {"seconds": 0}


def test_a_file_size_limit_is_no_different(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(DISCOVER) == 0
    whole = Circuit.load("out/circuit.json")
    Path("out/circuit.json").write_text("what was there before")
    capsys.readouterr()
    with room_for(1000):
        assert cli.run(DISCOVER) == 1
    said = capsys.readouterr()
    assert printed_circuit(said.out).to_json() | {"seconds": 0} == whole.to_json() | {"seconds": 0}
    assert "File too large); raise the limit on the size of files" in said.err.splitlines()[-1]
    assert Path("out/circuit.json").read_text() == "what was there before"
    assert [path.name for path in Path("out").iterdir()] == ["circuit.json"]


def test_a_search_goes_on_while_its_state_cannot_be_saved(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.run(SEARCH) == 0
    straight = Circuit.load("out/circuit.json")
    monkeypatch.setattr(searching, "_SAVE_EVERY", 0.0)
    disk = Disk(monkeypatch, "state.safetensors")
    capsys.readouterr()
    assert cli.run(SEARCH) == 0
    said = capsys.readouterr().err
    assert disk.refused > 2 and said.count("state.safetensors: cannot be written") == 1  # reported once
    assert "saving will be retried" in said
    assert Circuit.load("out/circuit.json").to_json() | {"seconds": 0} == straight.to_json() | {"seconds": 0}


def test_a_search_is_saved_once_there_is_room_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(searching, "_SAVE_EVERY", 0.0)
    disk, seen = Disk(monkeypatch, "state.safetensors"), []
    to_bytes = State.to_bytes

    def later(self: State, **about: object) -> bytes:
        disk.full = disk.refused < 3
        if Path("out/state.safetensors").exists():
            seen.append(State.read(Path("out/state.safetensors")))
        return to_bytes(self, **about)

    monkeypatch.setattr(State, "to_bytes", later)
    assert cli.run(SEARCH) == 0
    assert disk.refused == 3 and seen
    assert "saving works again" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["model.safetensors", "checkpoint.safetensors"])
def test_training_goes_on_while_it_cannot_be_saved(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The saved file equals that of an undisturbed run, once it can be written."""
    disk = Disk(monkeypatch, name)
    sync = os.fsync

    def soon(descriptor: int) -> None:
        disk.full = disk.refused < 2
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", soon)
    assert cli.run(TRAIN) == 0
    said = capsys.readouterr().err
    assert (
        disk.refused == 2 and said.count(f"{name}: cannot be written") == 1 and "saving works again" in said
    )
    assert cli.run(["straight" if part == "out" else part for part in TRAIN]) == 0
    mine, other = (load_file(f"{folder}/checkpoint.safetensors") for folder in ("out", "straight"))
    assert all((mine[key] == other[key]).all() for key in mine | other)


@pytest.mark.parametrize("command", [TRAIN, ADAPT], ids=["train", "adapt"])
def test_a_run_that_never_can_be_saved_says_what_it_came_to(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit that the metrics fit in but the policy does not: the run ends, its result is printed, and the last line says what to do."""
    with room_for(6000):
        assert cli.run(command) == 1
    said = capsys.readouterr()
    last = said.err.splitlines()[-1]
    if command is TRAIN:
        assert "trained to the end" in said.out
    else:
        assert Circuit.load("out/circuit.json").method == "paper-adapted"  # it is small enough to be written
    assert last.startswith(
        "mechrl: out/model.safetensors: cannot be written (File too large); raise the limit"
    )
    assert len(Path("out/metrics.jsonl").read_text().splitlines()) == 4
    assert not Path("out/checkpoint.safetensors").exists()


def test_metrics_wait_until_there_is_room(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line is lost or truncated: lines that did not fit are written before the next one."""
    from mechrl.agents.paper import log

    class Small:
        """A file that accepts a few bytes of the third line, then none for two lines."""

        times = 0

        def __init__(self, *arguments: object, **options: object) -> None:
            self.file = open(*arguments, **options)  # noqa: SIM115

        def write(self, content: bytes) -> int:
            Small.times += 1
            if Small.times == 3:
                return self.file.write(content[:10])
            if Small.times == 4:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return self.file.write(content)

        def __enter__(self):
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def __getattr__(self, name: str):
            return getattr(self.file, name)

    monkeypatch.setattr(log, "open", Small, raising=False)
    assert cli.run(TRAIN) == 0
    assert [json.loads(line)["iteration"] for line in Path("out/metrics.jsonl").read_text().splitlines()] == [
        1,
        2,
        3,
        4,
    ]
    assert "metrics.jsonl: cannot be written (No space left on device); make room" in capsys.readouterr().err


def test_a_cells_result_is_kept_until_it_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "RETRY", 0.0)
    workspace, cell = (
        Workspace(tmp_path, work_jobs.do, work_jobs.resources),
        Cell("test", {"method": "works", "seed": 0}),
    )
    done, tries = [], []
    write, job = Workspace.write, workspace.job

    def full_twice(self: Workspace, *arguments: object, **what: object) -> None:
        tries.append(arguments)
        if len(tries) < 3:
            raise CannotWrite("no room")
        write(self, *arguments, **what)  # type: ignore[arg-type]

    monkeypatch.setattr(Workspace, "write", full_twice)
    counted = Workspace(
        tmp_path, lambda resources, cell: done.append(1) or job(resources, cell), workspace.resources
    )  # type: ignore[func-returns-value]
    assert CellRunner(counted).do(cell) == "finished" and workspace.done(cell)
    assert len(done) == 1 and len(tries) == 3
    monkeypatch.setattr(saving, "PATIENCE", -1.0)
    tries.clear()
    other = Cell("test", {"method": "works", "seed": 1})
    assert CellRunner(counted).do(other) == "finished" and workspace.record(other) is None


def test_a_walk_and_a_fitted_network_are_kept_until_they_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retries until asked to stop; then the error says what could not be written."""
    monkeypatch.setattr(saving, "RETRY", 0.0)
    cell = Cell("collect", {"behaviour": "ioi", "seed": 0})
    workspace, model = (
        Workspace(tmp_path, planner_jobs.collect, lambda workspace: None),
        SimpleNamespace(name="m", checksum="c"),
    )
    monkeypatch.setattr(planner_jobs, "walk", lambda *_: Walk([some_record(8, 3)], passes=1.0, seconds=2.0))
    monkeypatch.setattr(fitting, "fit", lambda *_: some_network())

    def collect() -> None:
        planner_jobs.collect(model, workspace, cell, "ioi", 0, None, {})  # type: ignore[arg-type]

    def fit() -> None:
        planner_command.fit([tmp_path], tmp_path / "planner", None, fitting.FitSettings(), "cpu")

    for job, name, path in (
        (collect, f"{cell.name}.safetensors", planner_jobs.records_of(workspace, cell)),
        (fit, "model.safetensors", tmp_path / "planner" / "model.safetensors"),
    ):
        disk = Disk(monkeypatch, name, times=2)
        job()
        assert disk.refused == 2 and path.exists()
    Disk(monkeypatch, "model.safetensors")
    monkeypatch.setattr(planner_command, "stop_signals", lambda: nullcontext([2]))
    with pytest.raises(CannotWrite, match="make room"):
        fit()
