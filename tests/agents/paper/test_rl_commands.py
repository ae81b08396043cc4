"""`mechrl train`, `deploy` and `adapt` as their users meet them: real processes, real signals, one line for every mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from mechrl import attribution, demo
from mechrl.behaviours import DISCOVERY_SEED, get_behaviour
from mechrl.candidates import candidates_of
from mechrl.circuit import Circuit
from mechrl.engine import Engine
from mechrl.errors import MechRLError
from mechrl.models import load_model
from mechrl.rl.command import adapt_command, deploy_command, train_command
from mechrl.rl.rollout import load_policy
from tests.search.model import write_model

TIMES = ("seconds", "steps_per_second")
SMALL = dict(k=40, pairs=4, transitions=16, envs=4, force=True, device="cpu")
SMALL_OPTIONS = (
    "--behaviours ioi,acronyms --k 40 --pairs 4 --transitions 16 --envs 4 --width 16 --force --device cpu"
)
KEYS = [
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
    "circuit",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MECHRL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="module")
def policy(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of another width than the default, trained for an instant."""
    folder = tmp_path_factory.mktemp("policy")
    train_command(model, "ioi", folder, iterations=1, width=16, **SMALL)
    return folder


def start(*arguments: object, launcher: tuple[str, ...] = ()) -> subprocess.Popen:
    command = [sys.executable, *launcher, "-m", "mechrl.cli", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def metrics(folder: Path) -> list[dict]:
    """Without what depends on the clock."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in TIMES and not k.startswith("time/")} for row in rows]


@pytest.mark.slow
def test_stopped_and_resumed_equals_straight(model: str, tmp_path: Path) -> None:
    common = ["train", "--model", model, *SMALL_OPTIONS.split(), "--iterations", 10, "--save-every", 4]
    left = tmp_path / "left"
    process = start(*common, "--out", left)
    assert process.stderr is not None
    while "iteration" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM and "--resume" in stderr.splitlines()[-1]
    done = len(metrics(left))
    assert 1 <= done < 10
    with open(left / "metrics.jsonl", "a") as file:  # as if it had been killed later, in the middle of a line
        file.write(json.dumps({"iteration": done + 1, "passes": 1, "seconds": 1}) + '\n{"iteration": ')

    resumed = start(*common, "--out", left, "--resume")
    assert resumed.communicate(timeout=100)[0] == "" and resumed.returncode == 0
    train_command(
        model, "ioi,acronyms", tmp_path / "straight", iterations=10, width=16, save_every=4, **SMALL
    )
    assert metrics(left) == metrics(tmp_path / "straight")
    assert len(metrics(left)) == 10
    for name in ("model.safetensors", "checkpoint.safetensors"):
        a, b = load_file(left / name), load_file(tmp_path / "straight" / name)
        assert a.keys() == b.keys() and all((a[key] == b[key]).all() for key in a)
    seconds = [json.loads(line)["seconds"] for line in (left / "metrics.jsonl").read_text().splitlines()]
    assert seconds == sorted(seconds)


@pytest.mark.slow
def test_two_processes_make_the_same_run(model: str, tmp_path: Path) -> None:
    """Steps are measured in batches of another size, so f agrees up to rounding, and everything else with it."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    both = start(
        "train",
        "--model",
        model,
        *SMALL_OPTIONS.split(),
        "--iterations",
        2,
        "--out",
        tmp_path / "both",
        launcher=torchrun,
    )
    printed, said = both.communicate(timeout=200)
    assert (printed, both.returncode) == ("", 0), said
    train_command(model, "ioi,acronyms", tmp_path / "one", iterations=2, width=16, **SMALL)
    for two, one in zip(metrics(tmp_path / "both"), metrics(tmp_path / "one"), strict=True):
        assert two.keys() == one.keys()
        for key, value in one.items():
            assert two[key] == (value if value is None else pytest.approx(value, rel=1e-3, abs=1e-5)), key
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in ("both", "one"))
    assert all((a[key] - b[key]).abs().max() < 1e-4 for key in a)


def test_out_of_time_is_not_an_error(model: str, policy: Path, tmp_path: Path, capsys) -> None:
    arguments = (
        dict(
            model=model,
            behaviour="acronyms",
            policy=policy,
            out=tmp_path,
            iterations=3,
            rollouts=2,
            as_json=True,
        )
        | SMALL
    )
    with pytest.raises(BaseException) as left:
        adapt_command(**arguments, seconds=0)
    assert (
        left.value.exit_code == 0 and len(metrics(tmp_path)) == 1 and not (tmp_path / "circuit.json").exists()
    )
    assert "out of time" in capsys.readouterr().err
    adapt_command(**arguments, resume=True)
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == KEYS and printed["method"] == "policy-adapted"
    circuit, rows = Circuit.load(printed["circuit"]), metrics(tmp_path)
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    assert circuit.passes > rows[-1]["passes"] and circuit.settings["iterations"] == 3
    assert load_policy(tmp_path).config.width == 16
    straight = tmp_path / "straight"
    adapt_command(**arguments | {"out": straight, "as_json": False})
    assert Circuit.load(straight / "circuit.json").to_json() | {"seconds": 0} == circuit.to_json() | {
        "seconds": 0
    }


def test_from_scratch_takes_all_of_a_policy_but_its_weights(
    model: str, policy: Path, tmp_path: Path, capsys
) -> None:
    arguments = dict(model=model, behaviour="ioi", policy=policy, iterations=1, rollouts=1, **SMALL)
    for name, scratch in (("warm", False), ("scratch", True)):
        adapt_command(**arguments, out=tmp_path / name, from_scratch=scratch)
    warm, scratch = (json.loads((tmp_path / name / "run.json").read_text()) for name in ("warm", "scratch"))
    assert warm["policy"] == scratch["policy"] and scratch["policy"]["width"] == 16
    assert warm["task"] == scratch["task"] and warm["reward"] == scratch["reward"]
    assert warm["init_from"] and scratch["init_from"] is None
    assert warm["ppo"] == scratch["ppo"] and warm["ppo"]["gamma"] == 0.99  # the policy's, and the paper's
    assert not warm["ppo"]["deconflict"] and warm["command"].startswith("mechrl")
    assert Circuit.load(tmp_path / "scratch" / "circuit.json").method == "policy-from-scratch"


def candidates(circuit: Circuit) -> set[int]:
    """What a policy started from: what it kept, and what it cut or died with that."""
    return {*np.flatnonzero(circuit.mask).tolist(), *circuit.order}


def candidates_by(model: str, k: int, spare: float) -> set[int]:
    """The same from the scores."""
    loaded, ioi = load_model(model, device="cpu"), get_behaviour("ioi")
    pairs = ioi.pairs(loaded.tokenizer, 4, DISCOVERY_SEED, part="discovery", n_ctx=loaded.spec.n_ctx)
    engine = Engine(loaded, pairs)
    return set(candidates_of(engine, [attribution.cached(engine, pairs, ioi.metric)], k, spare).tolist())


def test_deploy_prints_what_search_prints(model: str, policy: Path, tmp_path: Path, capsys) -> None:
    arguments = dict(
        behaviour="ioi",
        model=model,
        policy=policy,
        out=tmp_path,
        rollouts=2,
        pairs=4,
        force=True,
        device="cpu",
    )
    deploy_command(**arguments, as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == KEYS
    circuit = Circuit.load(printed["circuit"])
    assert (
        candidates(circuit) == candidates_by(model, 40, 0.0) and circuit.settings["candidates"] == 40
    )  # as trained
    assert printed["edges"] == len(circuit) and circuit.method == "policy"
    deploy_command(**arguments, best_along_episode=True, tau=0.99, as_json=False)
    said = capsys.readouterr().out
    assert "last masks" in said and str(tmp_path) in said


def test_a_policy_that_looks_again_is_deployed_and_adapted_as_it_was_trained(
    model: str, tmp_path: Path, capsys
) -> None:
    """But f chooses its candidates among the paper's 3000 best, where training had fewer to choose from."""
    ours = dict(spare=0.1, look_again=0.8, best_so_far=True, give_up=0.5, prior=5.0, max_steps=6, gamma=0.8)
    train_command(model, "ioi", tmp_path / "policy", iterations=1, width=16, **SMALL, **ours)
    trained = json.loads((tmp_path / "policy" / "run.json").read_text())
    assert (trained["task"]["spare"], trained["reward"]["look_again"], trained["policy"]["prior"]) == (
        0.1,
        0.8,
        5.0,
    )
    common = dict(
        behaviour="ioi",
        model=model,
        policy=tmp_path / "policy",
        rollouts=1,
        pairs=4,
        force=True,
        device="cpu",
    )
    deploy_command(**common, out=tmp_path / "found")
    deploy_command(**common, out=tmp_path / "last", best_along_episode=False)
    found, last = (Circuit.load(tmp_path / name / "circuit.json") for name in ("found", "last"))
    assert (
        found.settings["best_along_episode"]
        and not last.settings["best_along_episode"]
        and found.settings["spare"] == 0.1
    )
    wide = candidates_by(model, 3000, 0.1)
    assert candidates(found) == candidates(last) == wide and len(wide) > 40 >= trained["tasks"][0]["K"]
    for name, scratch in (("warm", False), ("scratch", True)):
        adapt_command(
            **common, iterations=1, transitions=16, envs=4, from_scratch=scratch, out=tmp_path / name
        )
        adapted = json.loads((tmp_path / name / "run.json").read_text())
        assert (
            adapted["task"] == trained["task"] | {"k": 3000}
            and adapted["ppo"]["gamma"] == trained["ppo"]["gamma"] == 0.8
        )
        assert all(adapted[key] == trained[key] for key in ("reward", "policy"))
        assert candidates(Circuit.load(tmp_path / name / "circuit.json")) == wide


def test_the_policy_that_comes_with_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    deploy_command("acronyms", out=tmp_path, rollouts=1, device="cpu", as_json=True)
    assert json.loads(capsys.readouterr().out)["model"] == "toy"
    monkeypatch.setattr("mechrl.rl.rollout.SHIPPED", tmp_path)
    mistakes(deploy_command, dict(behaviour="acronyms", device="cpu"), {}, "mechrl train")


def test_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    demo.main()
    said = capsys.readouterr().out
    circuit = Circuit.load(demo.OUT / "circuit.json")
    assert (
        f"{len(circuit)} edges" in said
        and circuit.faithfulness >= 0.9
        and (demo.OUT / "eap-ig.json").exists()
    )


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
        ({"transitions": 30}, "do not divide evenly"),
        ({"prefilter": "best"}, "unknown prefilter"),
        ({"spare": 1.5}, "spare must lie"),
        ({"look_again": 1.0}, "below 1"),
        ({"take_back": True}, "needs --parts"),
        ({"trades": True, "parts": True}, "needs --take-back"),
        ({"init_from": Path("no-such-folder")}, "config.json is missing"),
        ({"resume": True}, "start without --resume"),
    ],
)
def test_mistakes_in_training(model: str, tmp_path: Path, changes: dict, message: str) -> None:
    mistakes(
        train_command, dict(model=model, behaviours="ioi", out=tmp_path / "new", **SMALL), changes, message
    )
    assert not (tmp_path / "new").exists()


def test_mistakes_in_resuming(model: str, tmp_path: Path) -> None:
    arguments = dict(model=model, behaviours="ioi", out=tmp_path, iterations=1, width=16, **SMALL)
    train_command(**arguments)
    mistakes(train_command, arguments, {}, "--resume")
    mistakes(train_command, arguments, {"resume": True, "iterations": 2}, "had iterations 1")
    mistakes(train_command, arguments, {"resume": True, "k": 30}, "had k 40")
    mistakes(train_command, arguments, {"resume": True, "behaviours": "acronyms"}, "had behaviours")
    mistakes(train_command, arguments, {"resume": True, "width": 8}, "had width 16")
    train_command(**arguments, resume=True)  # nothing left to do
    whole = (tmp_path / "checkpoint.safetensors").read_bytes()
    (tmp_path / "checkpoint.safetensors").write_bytes(whole[:1000])
    mistakes(train_command, arguments, {"resume": True}, "damaged")
    (tmp_path / "run.json").write_text("{")
    mistakes(train_command, arguments, {"resume": True}, "run.json")


@pytest.mark.parametrize("command", [deploy_command, adapt_command])
def test_mistakes_in_deployment(command, model: str, policy: Path, tmp_path: Path) -> None:
    arguments = dict(
        behaviour="ioi", model=model, policy=policy, out=tmp_path / "new", device="cpu", force=True
    )
    mistakes(command, arguments, {"behaviour": "iio"}, "did you mean ioi")
    mistakes(command, arguments, {"policy": tmp_path}, "config.json is missing")
    mistakes(command, arguments, {"tau": 2.0}, "tau must lie between")
    mistakes(command, arguments, {"rule": "any"}, "unknown rule")
    mistakes(command, arguments, {"prefilter": "none"}, "unknown prefilter")
    mistakes(command, arguments, {"force": False}, "does not exhibit")
    assert not (tmp_path / "new").exists()
