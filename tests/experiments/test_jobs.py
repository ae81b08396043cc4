"""Cells that are asked to stop in the middle go on from there, and end as if they had never been asked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mechrl.behaviours import get_behaviour
from mechrl.circuit import Circuit
from mechrl.experiments import jobs, worker
from mechrl.experiments.cells import Cell, Workspace
from mechrl.experiments.compare import Agent, Budget, circuit_cell, read_agent
from mechrl.experiments.worker import Stopped
from mechrl.rl.env import RewardSettings
from mechrl.rl.policy import Policy, PolicyConfig
from mechrl.rl.rollout import trained_with
from mechrl.rl.tasks import task_of
from mechrl.validity.setting import Setting
from tests.stopping import stop_at

BUDGET = Budget(pairs=3, k=60, thresholds=(0.01,), rollouts=1, adapt_iterations=4, transitions=16, envs=4)
MODEL = {"model": "toy", "checksum": "0"}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    Policy(PolicyConfig(width=8)).save(folder)
    return folder


def resources(folder: Path, policy: Path) -> jobs.Resources:
    return jobs.Resources(
        Workspace(folder, jobs.do, jobs.Resources, {"model": "toy", "device": "cpu", "policy": str(policy)})
    )


def without_time(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "seconds"}


@pytest.mark.parametrize("method", ["acdc", "policy", "policy-adapted"])
def test_stopped_and_continued_equals_straight(
    method: str, tmp_path: Path, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent("0", 60, "metric", {"max_steps": 5})
    assert RewardSettings(**agent.reward).max_steps == 5
    cell = circuit_cell(MODEL, "acronyms", method, "discovery", 0, BUDGET, agent)
    straight = jobs.do(resources(tmp_path / "straight", policy), cell)
    mine = resources(tmp_path / "stopped", policy)
    for n in (1, 2):
        monkeypatch.setattr(jobs, "stopping", stop_at(n))
        with pytest.raises(Stopped):
            jobs.do(mine, cell)
        assert (
            list((tmp_path / "stopped" / "work").iterdir())
            and not (tmp_path / "stopped" / "circuits").exists()
        )
    monkeypatch.setattr(jobs, "stopping", lambda: False)
    assert without_time(jobs.do(mine, cell)) == without_time(straight)
    left = (
        [mine.workspace.scratch(cell)] if method == "policy-adapted" else []
    )  # a training that others may share
    assert list((tmp_path / "stopped" / "work").iterdir()) == left


def test_a_damaged_state_costs_time_only(tmp_path: Path, policy: Path) -> None:
    cell = circuit_cell(MODEL, "acronyms", "greedy", "discovery", 0, BUDGET)
    mine = resources(tmp_path, policy)
    mine.workspace.scratch(cell).mkdir(parents=True)
    (mine.workspace.scratch(cell) / "state.safetensors").write_bytes(b"half of a st")
    assert jobs.do(mine, cell)["reached"] and not mine.workspace.scratch(cell).exists()


def test_both_targets_share_one_training(tmp_path: Path, policy: Path) -> None:
    agent = Agent("0", 60, "metric", {"max_steps": 5})
    mine = resources(tmp_path, policy)
    one, other = (
        circuit_cell(MODEL, "acronyms", "policy-adapted", t, 0, BUDGET, agent) for t in ("discovery", "test")
    )
    first = jobs.do(mine, one)
    metrics = (mine.workspace.scratch(one) / "metrics.jsonl").read_bytes()
    second = jobs.do(mine, other)
    assert (mine.workspace.scratch(other) / "metrics.jsonl").read_bytes() == metrics
    assert second["learning"] == first["learning"] and second["passes_training"] == first["passes_training"]
    assert (
        second["passes"] >= first["passes"]
    )  # the training is charged to both; judging on validation pairs comes on top


def test_what_a_job_tells_reaches_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    monkeypatch.setattr(worker, "_tell", heard.append)
    monkeypatch.setattr(worker, "_last_told", 0.0)
    worker.tell("one")
    worker.tell("too soon")
    assert heard == ["one"]
    monkeypatch.setattr(worker, "_asked_to_stop", True)
    with pytest.raises(Stopped):
        worker.check_stop()


def test_the_gate_gives_facts_and_examples(tmp_path: Path, policy: Path) -> None:
    result = jobs.do(resources(tmp_path, policy), Cell("gate", {"model": "toy", "names": ["acronyms"]}))
    assert result["verdicts"][0]["exhibited"] and result["graph"]["edges"] == 1519
    assert result["examples"]["acronyms"]["prompt"].startswith("The ") and result["device"] == "CPU"


def test_a_policy_is_trained_where_none_is_given(tmp_path: Path, policy: Path) -> None:
    known = {"names": ["acronyms"], "task": {"pairs": 3, "k": 40}, "reward": {"max_steps": 5}, "width": 8}
    ppo = {"iterations": 1, "transitions": 16, "envs": 4}
    cell = Cell("train", MODEL | known | {"ppo": ppo}, mutex="policy")
    mine = resources(tmp_path, policy)
    result = jobs.do(mine, cell)
    agent = read_agent(mine.workspace.scratch(cell))
    assert (agent.k, agent.prefilter, agent.reward["max_steps"]) == (40, "metric", 5) and result[
        "passes"
    ] > 16 * 3 / 20
    found = circuit_cell(MODEL, "acronyms", "policy", "paper", 0, BUDGET, agent)
    assert jobs.do(resources(tmp_path, mine.workspace.scratch(cell)), found)["f"] > 0.5


def test_more_training_has_the_discount_of_the_policy(tmp_path: Path, policy: Path) -> None:
    known = {"names": ["acronyms"], "task": {"pairs": 3, "k": 40}, "reward": {"max_steps": 5}, "width": 8}
    ppo = {"iterations": 1, "transitions": 16, "envs": 4, "gamma": 1.0}
    training = Cell("train", MODEL | known | {"ppo": ppo}, mutex="policy")
    folder = resources(tmp_path, policy).workspace.scratch(training)
    jobs.do(resources(tmp_path, policy), training)
    agent, mine = read_agent(folder), resources(tmp_path, folder)
    assert agent.ppo == {"gamma": 1.0} and read_agent(policy).ppo == {}
    budget = replace(BUDGET, adapt_iterations=1, scratch_iterations=1)
    for method in ("policy-adapted", "policy-from-scratch"):
        cell = circuit_cell(MODEL, "acronyms", method, "discovery", 0, budget, agent)
        jobs.do(mine, cell)
        assert json.loads((mine.workspace.scratch(cell) / "run.json").read_text())["ppo"]["gamma"] == 1.0


def test_cells_have_the_candidates_and_the_target_of_training(tmp_path: Path, policy: Path) -> None:
    reward = {"max_steps": 5, "best_so_far": True, "look_again": 0.8, "margin": 0.1}
    known = {
        "names": ["acronyms"],
        "task": {"pairs": 3, "k": 200, "spare": 0.05},
        "reward": reward,
        "width": 8,
    }
    training = Cell(
        "train", MODEL | known | {"ppo": {"iterations": 1, "transitions": 16, "envs": 4}}, mutex="policy"
    )
    folder = resources(tmp_path, policy).workspace.scratch(training)
    jobs.do(resources(tmp_path, policy), training)
    agent, mine = read_agent(folder), resources(tmp_path, folder)
    assert agent.spare == 0.05 and agent.best_so_far and agent.reward == reward
    row = jobs.do(
        mine, circuit_cell(MODEL, "acronyms", "policy-greedy", "paper", 0, BUDGET, agent, assess=True)
    )
    circuit = Circuit.load(tmp_path / row["circuit"])
    setting = Setting.of(mine.model, get_behaviour("acronyms"), circuit)
    assert circuit.settings["candidates"] == len(setting.candidates) == row["beyond"]["candidates"] < 200
    settings, rewards = trained_with(folder)
    task = task_of(
        mine.model, get_behaviour("acronyms"), settings, rewards
    )  # seed 0 picks the pairs of training
    assert (task.candidates == setting.candidates).all()
    assert circuit.tau == task.tau == pytest.approx(task.ceiling - 0.1) and circuit.settings["rollouts"] == 0
    curves = jobs.do(mine, Cell("curves", MODEL | {"behaviour": "acronyms", "seed": 0} | agent.setting(3)))
    assert curves["candidates"] == task.K and curves["ceiling"] == pytest.approx(task.ceiling, abs=1e-6)
