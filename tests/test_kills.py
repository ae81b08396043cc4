"""Killed with -9 at any moment and resumed: the result is that of an uninterrupted run, byte for byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from mechrl.circuit import Circuit
from mechrl.files.sealed import read_sealed
from tests.agents.paper.small import write_policy
from tests.fuzz.planner import make_network
from tests.fuzz.readers import make_gguf
from tests.search.model import write_model

# States are normally first saved after ten seconds, longer than these runs take; here after every step.
RUN = """
from tests.agents.paper.small import main
main()
"""
PATHS = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
MODEL = ["--model", "model", "--device", "cpu", "--force"]
SMALL = ["--envs", "4", "--save-every", "1"]
COMMANDS = {
    "blockwise": ["search", "blockwise", "ioi", "--pairs", "4", *MODEL],
    "edge-pruning": ["search", "edge-pruning", "ioi", "--pairs", "4", "--k", "60", *MODEL],
    "discover": ["discover", "ioi", "--planner", "planner", "--pairs", "4", "--budget", "150", *MODEL],
    "discover-paper": ["discover", "ioi", "--agent", "paper", "--policy", "policy", "--pairs", "4", *MODEL],
    "adapt": ["adapt", "ioi", "--policy", "policy", "--iterations", "4", *SMALL, *MODEL],
    "train": ["train", "--behaviours", "ioi,acronyms", "--k", "40", "--iterations", "6", *SMALL, *MODEL],
}
SAVED = ("state.safetensors", "planner.safetensors", "rollouts.safetensors", "checkpoint.safetensors")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MECHRL_CACHE", str(tmp_path / "cache"))
    write_model(tmp_path / "model", layers=2)
    (tmp_path / "planner").mkdir()
    make_network(tmp_path / "planner")
    write_policy(tmp_path / "policy", k=40, max_steps=30)


def start(command: list[str], out: str, threads: int = 1, code: str = RUN) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", code, *command, "--out", out],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": PATHS},
    )


def finish(process: subprocess.Popen) -> None:
    said = process.communicate()[1]
    assert process.returncode == 0, said


def kill_soon_after_a_save(command: list[str], threads: int) -> bool:
    """Kills the process as soon as it has saved something new; returns whether it was still running."""
    paths = [Path("killed", name) for name in SAVED]
    before = [path.stat().st_mtime_ns if path.exists() else 0 for path in paths]
    process = start(command, "killed", threads)
    while process.poll() is None:
        if [path.stat().st_mtime_ns if path.exists() else 0 for path in paths] != before:
            break
        time.sleep(0.001)
    process.kill()
    process.communicate()
    return process.returncode == -9


def saved() -> bool:
    return any(Path("killed", name).exists() for name in SAVED)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("name", "threads"),
    [
        ("blockwise", 1),
        ("edge-pruning", 1),
        ("discover", 1),
        ("discover-paper", 1),
        ("adapt", 1),
        ("train", 1),
        ("train", 2),
        ("train", 3),
    ],
)
def test_killed_and_resumed_equals_straight(name: str, threads: int) -> None:
    command = COMMANDS[name]
    straight = start(command, "straight", threads)
    kills = 0
    for _ in range(2):
        kills += kill_soon_after_a_save([*command, *["--resume"] * saved()], threads)
    finish(straight)
    if saved():
        finish(start([*command, "--resume"], "killed", threads))
    assert kills
    if name != "train":
        found, expected = (
            Circuit.load(Path(folder, "circuit.json")).to_json() for folder in ("killed", "straight")
        )
        assert found | {"seconds": 0} == expected | {"seconds": 0}
    if name in ("train", "adapt"):
        for file in ("model.safetensors", "checkpoint.safetensors"):
            mine, other = (load_file(Path(folder, file)) for folder in ("killed", "straight"))
            assert all((mine[key] == other[key]).all() for key in mine | other)
        rows = [
            json.loads(line)["iteration"] for line in Path("killed/metrics.jsonl").read_text().splitlines()
        ]
        assert rows == list(range(1, len(rows) + 1))
    assert not left_behind()


def left_behind() -> list[str]:
    return [p.name for p in Path("killed").rglob("*") if p.name.endswith(".tmp") or p.name == ".lock"]


# Small episodes of `collect` in a random model, which no gate would accept, in one process; tests of executors kill workers.
PLANNER_RUN = """
from functools import partial
from mechrl.cli import app as cli
from mechrl.agents.planner import collect
from mechrl.experiments.experiment import GateResult, Experiment
from mechrl.experiments.worker import CellRunner
from mechrl.files.lock import only_writer
few = dict(pairs=4, fresh=4, singles=8, additions=4, sets=6, mixed=4, outside=40)
collect.CollectSettings = partial(collect.CollectSettings, **few)
Experiment.gate = lambda self, names: GateResult({"model": self.model, "checksum": ""}, {}, names.split(","), {}, {})
def run(self, cells):
    runner = CellRunner(self.workspace)
    with only_writer(self.workspace.folder):
        for cell in cells:
            self.workspace.done(cell) or runner.do(cell)
    return all(map(self.workspace.done, cells))
Experiment.run = run
cli.main()
"""
TRAIN_PLANNER = ["planner", "train", "--behaviours", "ioi,acronyms", "--draws", "0", "--states", "1"]
TRAIN_PLANNER += ["--rounds", "2", "--epochs", "2", "--model", "model", "--device", "cpu"]


def planner_s_files(folder: str) -> dict[str, tuple]:
    """What was collected and fitted, without the times in cells. The texts of a file are written in any order."""
    found = {}
    for path in sorted(Path(folder).rglob("*.safetensors")):
        arrays, texts = read_sealed(path)
        found[str(path.relative_to(folder))] = (
            texts,
            {name: array.tobytes() for name, array in arrays.items()},
        )
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_planner_that_is_killed_while_it_collects_and_fits_is_the_same() -> None:
    """Killed whenever there is a new file: after episodes of `collect`, and between a fit and the next step."""
    finish(start(TRAIN_PLANNER, "straight", code=PLANNER_RUN))
    kills, expected = 0, planner_s_files("straight")
    assert {Path(name).parts[0] for name in expected} == {
        "round-1",
        "round-2",
        "after-1",
        "model.safetensors",
    }
    while True:
        before, process = planner_s_files("killed"), start(TRAIN_PLANNER, "killed", code=PLANNER_RUN)
        while process.poll() is None and planner_s_files("killed") == before:
            time.sleep(0.01)
        process.kill()
        said = process.communicate()[1]
        if process.returncode != -9:
            break
        kills += 1
    assert process.returncode == 0, said
    assert kills >= 4  # two rounds of episodes with a fit between them
    assert planner_s_files("killed") == expected and not left_behind()


FETCH = """
import hashlib, sys, time
from mechrl.models import smollm2
smollm2.GGUF_SHA256 = sys.argv[1]
convert = smollm2._convert
def slowly(source, target):
    convert(source, target)
    print("converted", flush=True)
    time.sleep(float(sys.argv[2]))
smollm2._convert = slowly
print(smollm2.directory(), flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_concurrent_fetches_of_smollm2_convert_it_once(tmp_path: Path) -> None:
    """One process is killed before it has moved its work into place; the others are not affected by what it leaves behind."""
    import hashlib

    make_gguf(tmp_path)
    checksum = hashlib.sha256((tmp_path / "model.gguf").read_bytes()).hexdigest()
    environment = os.environ | {"MECHRL_SMOLLM2_GGUF": str(tmp_path / "model.gguf"), "OMP_NUM_THREADS": "1"}

    def fetch(seconds: float) -> subprocess.Popen:
        command = [sys.executable, "-c", FETCH, checksum, str(seconds)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    first = fetch(1000)
    assert first.stdout is not None and first.stdout.readline() == "converted\n"
    others = [fetch(0.2) for _ in range(3)]
    time.sleep(0.5)
    first.kill()
    first.communicate()
    said = [process.communicate()[0] for process in others]
    assert [process.returncode for process in others] == [0, 0, 0]
    assert sum(text.count("converted") for text in said) == 1
    folder = tmp_path / "cache" / f"smollm2-{checksum[:8]}"
    assert all(text.splitlines()[-1] == str(folder) for text in said)
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [folder.name, "smollm2.lock"]
