"""`mechrl search` as users run it: real processes, real signals, one line for every mistake."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mechrl.behaviours import get_behaviour
from mechrl.circuit import Circuit
from mechrl.cli.search import search_command
from mechrl.errors import MechRLError
from mechrl.models import load_model
from mechrl.search.problem import State
from mechrl.search.session import SearchSettings, search
from tests.search.model import write_model

_RUN = "from mechrl.cli import main; main()"
ACDC = ["search", "acdc", "ioi", "--whole-graph", "--pairs", "4", "--force", "--device", "cpu"]
ACDC += ["--holds-on", "discovery"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MECHRL_CACHE", str(tmp_path / "cache"))


def start(*arguments: object) -> subprocess.Popen:
    command = [sys.executable, "-c", _RUN, *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def interrupt(process: subprocess.Popen, number: int) -> str:
    """Waits for the first line of progress, sends a signal, returns the output after that."""
    assert any(re.search(r"f \d\.\d+, .* passes", line) for line in process.stderr)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert stdout == ""
    return stderr


@pytest.mark.slow
def test_stopped_and_resumed_equals_straight(model: Path, tmp_path: Path) -> None:
    process = start(*ACDC, "--model", model, "--out", tmp_path / "stopped")
    assert "--resume" in interrupt(process, signal.SIGTERM).splitlines()[-1]
    assert process.returncode == 128 + signal.SIGTERM
    partial = Circuit.load(tmp_path / "stopped" / "circuit.json")
    assert not partial.complete and len(partial) > 0 and partial.faithfulness_test is not None
    state, about = State.read(tmp_path / "stopped" / "state.safetensors")
    assert not state.done and about["behaviour"] == "ioi"

    stopped = start(*ACDC, "--model", model, "--out", tmp_path / "stopped", "--json", "--resume")
    assert "--resume" in interrupt(stopped, signal.SIGINT).splitlines()[-1]
    assert stopped.returncode == 128 + signal.SIGINT

    resumed = start(*ACDC, "--model", model, "--out", tmp_path / "stopped", "--json", "--resume")
    printed = json.loads(resumed.communicate(timeout=100)[0])
    assert resumed.returncode == 0
    keys = [
        "behaviour",
        "model",
        "method",
        "tau",
        "faithfulness",
        "faithfulness_test",
        "edges",
        "edges_pruned",
        "passes",
        "seconds",
    ]
    assert list(printed) == [*keys, "circuit"]
    found, loaded = Circuit.load(printed["circuit"]), load_model(model)
    found.check_model(loaded)
    straight = search(loaded, get_behaviour("ioi"), SearchSettings("acdc", pairs=4, whole_graph=True))
    assert found.to_json() | {"seconds": 0} == straight.to_json() | {"seconds": 0}
    assert (
        found.complete
        and found.seconds > partial.seconds
        and not (tmp_path / "stopped" / "state.safetensors").exists()
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "guess"}, "unknown method"),
        ({"behaviour": "iio"}, "did you mean ioi"),
        ({"tau": 1.5}, "tau must lie between"),
        ({"holds_on": "moon"}, "unknown holds-on"),
        ({"minibatch": 20}, "smaller than the 20 pairs"),
        ({"model": "no/such/model-at-all"}, "no/such/model-at-all"),
        ({"resume": True}, "nothing to resume"),
        ({"force": False}, "does not exhibit"),
    ],
)
def test_mistakes_are_one_line(model: Path, tmp_path: Path, monkeypatch, changes: dict, message: str) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    arguments = dict(
        method="top-n", behaviour="ioi", model=str(model), out=tmp_path, force=True, device="cpu"
    )
    with pytest.raises(MechRLError, match=message) as caught:
        search_command(**arguments | changes)
    assert "\n" not in str(caught.value)


def test_resuming_another_search_is_refused(model: Path, tmp_path: Path) -> None:
    settings = SearchSettings("acdc", pairs=4)
    about = {
        "model": str(model),
        "checksum": load_model(model).checksum,
        "behaviour": "ioi",
        "settings": settings.to_json(),
    }
    state = State(np.ones(3, dtype=bool), [], 0.5)
    (tmp_path / "state.safetensors").write_bytes(state.to_bytes(**about))
    with pytest.raises(MechRLError, match="method 'acdc', pairs 4"):
        search_command("top-n", "ioi", model=str(model), out=tmp_path, resume=True, device="cpu")
    (tmp_path / "state.safetensors").write_bytes(b"what is this")
    with pytest.raises(MechRLError, match="damaged"):
        search_command("top-n", "ioi", model=str(model), out=tmp_path, resume=True, device="cpu")


def test_what_is_printed(model: Path, tmp_path: Path, capsys) -> None:
    search_command(
        "greedy", "ioi", model=str(model), out=tmp_path, force=True, device="cpu", pairs=5, as_json=True
    )
    printed = json.loads(capsys.readouterr().out)
    circuit = Circuit.load(printed["circuit"])
    assert printed["edges"] == len(circuit) and printed["faithfulness"] == circuit.faithfulness >= 0.9
    assert circuit.pairs == 5 and circuit.scores is not None
    search_command(
        "top-n", "ioi", model=str(model), out=tmp_path, force=True, device="cpu", pairs=5, as_json=False
    )
    assert "before pruning" in capsys.readouterr().out


def test_the_target_test_is_met_on_validation_pairs(model: Path) -> None:
    loaded = load_model(model)
    on_discovery = search(loaded, get_behaviour("ioi"), SearchSettings("top-n", pairs=4))
    on_fresh = search(loaded, get_behaviour("ioi"), SearchSettings("top-n", pairs=4, holds_on="fresh"))
    assert on_discovery.faithfulness_validation is None
    assert on_fresh.faithfulness_validation >= 0.9 and len(on_fresh) >= len(on_discovery)
    assert on_fresh.passes > on_discovery.passes
