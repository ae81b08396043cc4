"""`mechrl planner`, as a shell sees it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from mechrl.cli.app import run
from mechrl.experiments.experiment import Experiment, GateResult

KNOWN = GateResult({"model": "toy", "checksum": ""}, {}, ["ioi"], {}, {})


@pytest.mark.parametrize("command", ["collect", "train"])
@pytest.mark.parametrize(
    ("number", "code", "said"), [(signal.SIGINT, 130, "interrupted"), (None, 0, "out of time")]
)
def test_who_ends_a_collection_is_said(
    command: str,
    number: int | None,
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def end(self: Experiment, cells: list) -> bool:
        if number is not None:
            os.kill(os.getpid(), number)
        return False

    monkeypatch.setattr(Experiment, "gate", lambda self, names: KNOWN)
    monkeypatch.setattr(Experiment, "run", end)
    assert run(["planner", command, "--out", str(tmp_path / "out")]) == code
    assert capsys.readouterr().err.startswith(f"{said}; {tmp_path / 'out'}")
