"""One writer per folder: a second command is told which process holds it, and changes nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mechrl.cli import app as cli
from mechrl.files.lock import only_writer

SMALL = ["--k", "20", "--envs", "2", "--device", "cpu", "--force"]
LONG = ["--pairs", "4", "--device", "cpu", "--whole-graph", "--force"]
HOLDERS = {
    "train": ["train", "--behaviours", "ioi", *SMALL, "--iterations", "100000", "--out", "out"],
    "search": ["search", "acdc", "ioi", *LONG, "--out", "out"],
}
HOLDER_S = ("state.safetensors", "checkpoint.safetensors", "model.safetensors", "config.json")
COMMANDS = {
    "train": ["train", "--behaviours", "ioi", *SMALL, "--iterations", "1", "--out", "out"],
    "search": ["search", "top-n", "ioi", "--pairs", "2", "--device", "cpu", "--out", "out"],
    "adapt": ["adapt", "ioi", "--policy", "none", "--iterations", "1", "--device", "cpu", "--out", "out"],
    "discover": ["discover", "ioi", "--device", "cpu", "--out", "out"],
    "planner collect": ["planner", "collect", "--device", "cpu", "--out", "out"],
    "planner fit": ["planner", "fit", "records", "--device", "cpu", "--out", "out"],
    "planner train": ["planner", "train", "--device", "cpu", "--out", "out"],
    "compare": ["compare", "--behaviours", "ioi", "--methods", "greedy", "--device", "cpu", "--out", "out"],
    "reproduce": ["reproduce", "--quick", "--device", "cpu", "--out", "out"],
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MECHRL_CACHE", str(tmp_path / "cache"))


def start(command: list[str], sign: str) -> subprocess.Popen:
    """A running command that has already printed `sign`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mechrl.cli", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.stderr is not None
    while sign not in (line := process.stderr.readline()):
        assert line, "it ended"
    return process


@pytest.mark.parametrize("holder", HOLDERS)
def test_the_second_one_is_told_who_is_there(holder: str, capsys: pytest.CaptureFixture[str]) -> None:
    process = start(HOLDERS[holder], f"{'iteration' if holder == 'train' else 'passes'}")
    before = {path.name for path in Path("out").iterdir()}
    try:
        for command in COMMANDS.values():
            assert cli.run(command) == 1
            said = capsys.readouterr().err
            assert said.count("\n") == 1 and "out: another command is writing there" in said
            assert (
                f"process {process.pid} on " in said
                and f"{holder} " in said
                and "choose another folder" in said
            )
        new = {path.name for path in Path("out").iterdir()} - before
        # the lock's holder keeps writing meanwhile
        assert all(name.endswith(".tmp") or name in HOLDER_S for name in new)
    finally:
        process.kill()
        process.communicate()
    # the system released the lock, however the process died
    assert cli.run([*COMMANDS["discover"], "--pairs", "4", "--budget", "1", "--force"]) == 0
    assert not Path("out/.lock").exists()


def test_what_a_killed_writer_left_half_written_is_removed() -> None:
    folder = Path("out")
    ours = [folder / place / ".circuit.json.4242.0123abcd.tmp" for place in ("", "cells", "records")]
    theirs = [folder / ".notes.tmp", folder / "another" / ours[0].name]
    for path in ours + theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    with only_writer(folder):
        assert not any(path.exists() for path in ours) and all(path.exists() for path in theirs)


def test_a_command_that_fails_leaves_no_lock_and_no_folder() -> None:
    assert cli.run(["train", "--model", "no/such/model", "--out", "deep/er/out"]) == 1
    assert not Path("deep").exists()


def test_of_many_that_start_at_once_one_works(tmp_path: Path) -> None:
    """Each process appends to a file for a moment while it holds the lock; their outputs never interleave."""
    code = """
import sys, time
from pathlib import Path
from mechrl.errors import MechRLError
from mechrl.files.lock import only_writer
while True:
    try:
        with only_writer(Path("busy")):
            for part in "abc":
                with open("log", "a") as file:
                    file.write(part)
                time.sleep(0.001)
        break
    except MechRLError:
        time.sleep(0.001)
"""
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(8)]
    assert [process.wait(timeout=60) for process in processes] == [0] * 8
    assert Path("log").read_text() == "abc" * 8
    assert not Path("busy/.lock").exists()  # each process removed the lock while it held it


def test_a_signal_gives_the_folder_back() -> None:
    process = start(HOLDERS["train"], "iteration")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert (
        process.returncode == 143
        and Path("out/checkpoint.safetensors").exists()
        and not Path("out/.lock").exists()
    )
