"""`mechrl train`, `adapt`, `curves` and `discover --agent paper` as users run them: real processes, real signals, one line for every
mistake."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from mechrl.agents.paper.checkpoint import load_policy
from mechrl.agents.paper.train import METRICS
from mechrl.circuit import Circuit
from mechrl.cli.discover import discover_command
from mechrl.cli.train import adapt_command, curves_command, train_command
from mechrl.errors import MechRLError
from tests.agents.paper.small import shrink
from tests.search.model import write_model

TIMES = ("seconds", "steps_per_second")
SMALL = dict(k=40, envs=4, force=True, device="cpu")
SMALL_OPTIONS = "--behaviours ioi,acronyms --k 40 --envs 4 --force --device cpu"
KEYS = ["behaviour", "model", "method", "tau", "faithfulness", "faithfulness_test", "edges", "edges_pruned"]
KEYS += ["passes", "seconds", "circuit"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(autouse=True)
def sizes(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MECHRL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    shrink(monkeypatch)


@pytest.fixture
def trained(model: str, tmp_path: Path) -> Path:
    """A policy after minimal training."""
    train_command(model, "ioi", tmp_path / "policy", iterations=1, **SMALL)
    return tmp_path / "policy"


def start(*arguments: object) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.agents.paper.small", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[3],
    )


def metrics(folder: Path) -> list[dict]:
    """Without the fields that depend on the clock."""
    rows = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in TIMES and not k.startswith("time/")} for row in rows]


@pytest.mark.slow
def test_stopped_and_resumed_equals_straight(model: str, tmp_path: Path) -> None:
    common = ["train", "--model", model, *SMALL_OPTIONS.split(), "--iterations", 10, "--save-every", 4]
    left = tmp_path / "left"
    process = start(*common, "--out", left)
    assert process.stderr is not None
    while not re.search(r"iteration \d", process.stderr.readline()):
        pass
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM and "--resume" in stderr.splitlines()[-1]
    done = len(metrics(left))
    assert 1 <= done < 10
    with open(left / METRICS, "a") as file:  # as if it had been killed later, while writing a line
        file.write(json.dumps({"iteration": done + 1, "passes": 1, "seconds": 1}) + '\n{"iteration": ')
    resumed = start(*common, "--out", left, "--resume")
    assert resumed.communicate(timeout=100)[0] == "" and resumed.returncode == 0
    train_command(model, "ioi,acronyms", tmp_path / "straight", iterations=10, save_every=4, **SMALL)
    assert metrics(left) == metrics(tmp_path / "straight")
    assert len(metrics(left)) == 10
    for name in ("model.safetensors", "checkpoint.safetensors"):
        a, b = load_file(left / name), load_file(tmp_path / "straight" / name)
        assert a.keys() == b.keys() and all((a[key] == b[key]).all() for key in a)
    seconds = [json.loads(line)["seconds"] for line in (left / METRICS).read_text().splitlines()]
    assert seconds == sorted(seconds)


def test_what_it_will_cost_is_said_beforehand(model: str, tmp_path: Path, capsys) -> None:
    train_command(model, "ioi", tmp_path, iterations=3, **SMALL)
    said = capsys.readouterr().err
    (passes,) = re.findall(r"3 iterations: about ([\d,]+) passes and, at the pace of the first", said)
    spent = metrics(tmp_path)[-1]["passes"]
    assert 0 < float(passes.replace(",", "")) <= 3 * 16 and spent > 0


def test_out_of_time_is_not_an_error(model: str, trained: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "adapted"
    arguments = dict(
        behaviour="acronyms", policy=trained, model=model, out=out, iterations=3, envs=4, force=True
    )
    capsys.readouterr()
    with pytest.raises(BaseException) as left:
        adapt_command(**arguments, device="cpu", as_json=True, seconds=0)
    assert left.value.exit_code == 0 and len(metrics(out)) == 1 and not (out / "circuit.json").exists()
    assert "out of time" in capsys.readouterr().err
    adapt_command(**arguments, device="cpu", as_json=True, resume=True)
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == KEYS and printed["method"] == "paper-adapted"
    circuit, rows = Circuit.load(printed["circuit"]), metrics(out)
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    assert circuit.passes > rows[-1]["passes"] and circuit.settings["iterations"] == 3
    assert load_policy(out).width == 16
    adapt_command(**arguments | {"out": tmp_path / "straight"}, device="cpu")
    straight = Circuit.load(tmp_path / "straight" / "circuit.json")
    assert straight.to_json() | {"seconds": 0} == circuit.to_json() | {"seconds": 0}


def test_from_scratch_takes_all_of_a_policy_but_its_weights(
    model: str, trained: Path, tmp_path: Path
) -> None:
    arguments = dict(behaviour="ioi", policy=trained, model=model, iterations=1, envs=4, force=True)
    for name, scratch in (("warm", False), ("scratch", True)):
        adapt_command(**arguments, device="cpu", out=tmp_path / name, from_scratch=scratch)
    warm, scratch = (json.loads((tmp_path / name / "run.json").read_text()) for name in ("warm", "scratch"))
    assert all(warm[key] == scratch[key] for key in ("width", "task", "env", "ppo"))
    assert warm["init_from"] and scratch["init_from"] is None and warm["task"]["k"] == 40
    assert Circuit.load(tmp_path / "scratch" / "circuit.json").method == "paper-from-scratch"


def test_discover_by_the_papers_agent(model: str, trained: Path, tmp_path: Path, capsys) -> None:
    arguments = dict(behaviour="ioi", model=model, agent="paper", policy=trained, out=tmp_path / "found")
    capsys.readouterr()
    discover_command(**arguments, pairs=4, force=True, device="cpu", as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == KEYS and printed["method"] == "paper"
    circuit = Circuit.load(printed["circuit"])
    assert circuit.settings["candidates"] == 40 and circuit.settings["rollouts"] == 16
    assert [p.name for p in (tmp_path / "found").iterdir()] == ["circuit.json"]
    discover_command(**arguments, pairs=4, force=True, device="cpu")
    assert "the most faithful of 17" in capsys.readouterr().out


def test_a_run_is_drawn(model: str, trained: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    curves_command(trained)
    assert (trained / "curves.svg").read_bytes().startswith(b"<?xml")
    curves_command(trained, tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    mistakes(curves_command, dict(run=trained, out=tmp_path / "run.pdf"), {}, "ends in .svg or .png")
    mistakes(curves_command, dict(run=tmp_path), {}, "metrics.jsonl is missing")
    (trained / METRICS).write_text("{}\n")
    mistakes(curves_command, dict(run=trained), {}, "damaged")


def mistakes(command, arguments: dict, changes: dict, message: str) -> None:
    with pytest.raises(MechRLError, match=message) as caught:
        command(**arguments | changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"behaviours": "iio"}, "did you mean ioi"),
        ({"behaviours": " , "}, "no behaviours"),
        ({"behaviours": "ioi,ioi"}, "more than once"),
        ({"behaviours": "ioi", "force": False}, "does not exhibit"),
        ({"behaviours": "held-out", "force": False}, "exhibits none"),
        ({"envs": 5}, "do not divide evenly"),
        ({"resume": True}, "start without --resume"),
    ],
)
def test_mistakes_in_training(model: str, tmp_path: Path, changes: dict, message: str) -> None:
    arguments = dict(model=model, behaviours="ioi", out=tmp_path / "new", **SMALL)
    mistakes(train_command, arguments, changes, message)
    assert not (tmp_path / "new").exists()


def test_mistakes_in_resuming(model: str, tmp_path: Path) -> None:
    arguments = dict(model=model, behaviours="ioi", out=tmp_path, iterations=1, **SMALL)
    train_command(**arguments)
    mistakes(train_command, arguments, {}, "--resume")
    mistakes(train_command, arguments, {"resume": True, "iterations": 2}, "had iterations 1")
    mistakes(train_command, arguments, {"resume": True, "k": 30}, "had k 40")
    mistakes(train_command, arguments, {"resume": True, "behaviours": "acronyms"}, "had behaviours")
    train_command(**arguments, resume=True)  # nothing left to do
    known = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({k: v for k, v in known.items() if k != "agent"}))
    mistakes(train_command, arguments, {"resume": True}, "a retired agent")
    (tmp_path / "run.json").write_text(json.dumps(known))
    whole = (tmp_path / "checkpoint.safetensors").read_bytes()
    (tmp_path / "checkpoint.safetensors").write_bytes(whole[:1000])
    mistakes(train_command, arguments, {"resume": True}, "damaged")
    (tmp_path / "run.json").write_text("{")
    mistakes(train_command, arguments, {"resume": True}, "run.json")


def test_mistakes_in_deployment(model: str, trained: Path, tmp_path: Path) -> None:
    arguments = dict(
        behaviour="ioi", model=model, policy=trained, out=tmp_path / "new", device="cpu", force=True
    )
    for command, more in ((adapt_command, {}), (discover_command, {"agent": "paper"})):
        given = arguments | more
        mistakes(command, given, {"behaviour": "iio"}, "did you mean ioi")
        mistakes(command, given, {"policy": tmp_path}, "config.json is missing")
        mistakes(command, given, {"force": False}, "does not exhibit")
    mistakes(discover_command, arguments, {"agent": "paper", "policy": None}, "needs a policy")
    mistakes(discover_command, arguments, {"agent": "paper", "holds_on": "fresh"}, "the planner's")
    mistakes(discover_command, arguments, {"agent": "paper", "resume": True}, "no rollouts to resume")
    mistakes(discover_command, arguments, {}, "give --agent paper")
    assert not (tmp_path / "new").exists()
