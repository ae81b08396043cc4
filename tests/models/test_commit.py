"""A hub id may mean other weights tomorrow: a circuit records the commit, and is validated with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mechrl.circuit import Circuit
from mechrl.errors import MechRLError
from tests.search.model import write_model
from tests.viewer.circuits import SMALL, random_circuit

THEN, NOW = "0123456789abcdef0123456789abcdef01234567", "f" * 40


@pytest.mark.slow
def test_the_commit_is_recorded_and_used_again(tmp_path: Path) -> None:
    repository = tmp_path / "hf" / "hub" / "models--somebody--small"
    write_model(repository / "snapshots" / THEN, layers=2)
    write_model(repository / "snapshots" / NOW, layers=3)
    (repository / "refs").mkdir()
    main = repository / "refs" / "main"
    main.write_text(THEN)
    environment = os.environ | {
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "1",
        "MECHRL_CACHE": str(tmp_path / "cache"),
    }
    environment.pop("HF_HUB_CACHE", None)

    def mechrl(*arguments: str) -> str:
        command = [sys.executable, "-m", "mechrl.cli", *arguments, "--device", "cpu"]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=200, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    path = tmp_path / "out" / "circuit.json"
    mechrl(
        "search",
        "top-n",
        "ioi",
        "--model",
        "somebody/small",
        "--pairs",
        "2",
        "--force",
        "--out",
        str(path.parent),
    )
    assert Circuit.load(path).commit == json.loads(path.read_text())["commit"] == THEN
    main.write_text(NOW)  # the branch has moved on
    mechrl("export", str(path), "--html", str(tmp_path / "page.html"))
    assert "is not on this machine" not in (tmp_path / "page.html").read_text()
    assert "necessity" in mechrl("validate", str(path))


def test_files_without_a_commit_are_read_and_others_must_have_one(tmp_path: Path) -> None:
    known = random_circuit(SMALL, 20).to_json()
    path = tmp_path / "circuit.json"
    path.write_text(json.dumps({key: value for key, value in known.items() if key != "commit"}))
    assert Circuit.load(path).commit is None
    for commit in ("main", "", 3, [], "g" * 40, "../" * 10):
        path.write_text(json.dumps(known | {"commit": commit}))
        with pytest.raises(MechRLError, match="commit must be one of the hub"):
            Circuit.load(path)
