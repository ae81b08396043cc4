"""Cells that are stopped midway resume from there, with the result of an uninterrupted run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mechrl.agents.paper.checkpoint import save_policy, trained_with
from mechrl.agents.paper.policy import Policy
from mechrl.agents.paper.tasks import task_of
from mechrl.behaviours import get_behaviour
from mechrl.circuit import Circuit
from mechrl.experiments import jobs, worker
from mechrl.experiments.cells import Cell, Workspace
from mechrl.experiments.compare import Agent, Budget, circuit_cell, read_agent
from mechrl.experiments.worker import Stopped
from mechrl.validity.setting import Setting
from tests.stopping import stop_at

BUDGET = Budget(pairs=3, k=60, thresholds=(0.01,), rollouts=1, adapt_iterations=4, transitions=16, envs=4)
MODEL = {"model": "toy", "checksum": "0"}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    torch.manual_seed(0)
    save_policy(Policy(8), folder)
    return folder


def resources(folder: Path, policy: Path) -> jobs.Resources:
    return jobs.Resources(
        Workspace(folder, jobs.do, jobs.Resources, {"model": "toy", "device": "cpu", "policy": str(policy)})
    )


def without_time(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "seconds"}


@pytest.mark.parametrize("method", ["acdc", "paper", "paper-adapted"])
def test_stopped_and_continued_equals_straight(
    method: str, tmp_path: Path, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent("0", 60, "metric", {"max_steps": 5})
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
    left = [mine.workspace.scratch(cell)] if method == "paper-adapted" else []  # the policy
    assert list((tmp_path / "stopped" / "work").iterdir()) == left


def test_a_damaged_state_costs_time_only(tmp_path: Path, policy: Path) -> None:
    cell = circuit_cell(MODEL, "acronyms", "greedy", "discovery", 0, BUDGET)
    mine = resources(tmp_path, policy)
    mine.workspace.scratch(cell).mkdir(parents=True)
    (mine.workspace.scratch(cell) / "state.safetensors").write_bytes(b"half of a st")
    assert jobs.do(mine, cell)["reached"] and not mine.workspace.scratch(cell).exists()


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


KNOWN = {"names": ["acronyms"], "task": {"pairs": 3}, "env": {"max_steps": 5}, "width": 8}
PPO = {"iterations": 1, "transitions": 16, "envs": 4}


def test_a_policy_is_trained_where_none_is_given(tmp_path: Path, policy: Path) -> None:
    cell = Cell("train", MODEL | KNOWN | {"k": 40, "ppo": PPO}, mutex="policy")
    mine = resources(tmp_path, policy)
    result = jobs.do(mine, cell)
    folder = mine.workspace.scratch(cell)
    agent = read_agent(folder)
    assert (agent.k, agent.prefilter, agent.env) == (40, "metric", {"max_steps": 5})
    assert result["passes"] > 16 * 3 / 20
    found = circuit_cell(MODEL, "acronyms", "paper", "discovery", 0, BUDGET, agent, assess=True)
    row = jobs.do(resources(tmp_path, folder), found)
    circuit = Circuit.load(tmp_path / row["circuit"])
    setting = Setting.of(mine.model, get_behaviour("acronyms"), circuit)
    settings, env = trained_with(folder)
    # seed 0 determines the training pairs
    task = task_of(mine.model, get_behaviour("acronyms"), settings, env)
    assert (task.candidates == setting.candidates).all() and row["edges"] == len(circuit)
    assert row["beyond"]["candidates"] == 40 and row["validity"]["metric"] == "logit-difference"


def test_k_goes_by_the_rule_where_none_is_asked_for(tmp_path: Path, policy: Path) -> None:
    cell = Cell("train", MODEL | KNOWN | {"k": None, "ppo": PPO}, mutex="policy")
    mine = resources(tmp_path, policy)
    jobs.do(mine, cell)
    known = json.loads((mine.workspace.scratch(cell) / "run.json").read_text())
    assert known["task"]["k"] == 127 and known["tasks"][0]["ceiling"] >= 0.9
