"""Deployments that are stopped anywhere, again and again, end as if they had never been."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mechrl.behaviours import get_behaviour
from mechrl.circuit import Circuit
from mechrl.models import load_model
from mechrl.rl.env import RewardSettings
from mechrl.rl.journal import Journal
from mechrl.rl.policy import Policy, PolicyConfig
from mechrl.rl.rollout import Deployment, deploy, deploy_together, rollouts
from mechrl.rl.tasks import TaskSettings, task_of
from mechrl.search.problem import Interrupted
from tests.rl.tasks import small_task
from tests.search.model import write_model
from tests.stopping import stop_at

TAU = 0.9
REWARD = RewardSettings(take_back=True, look_again=0.75, tau_high=TAU, max_steps=5, margin=0.01)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_model(write_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MECHRL_CACHE", str(tmp_path / "cache"))


def agent() -> Policy:
    torch.manual_seed(0)
    return Policy(PolicyConfig(16, parts=True, trades=True, prior=5.0))


def without_time(circuit: Circuit) -> dict:
    return circuit.to_json() | {"seconds": 0}


@pytest.mark.parametrize("steps", [3, 11])
def test_stopped_after_every_so_many_steps_equals_straight(model, tmp_path, steps):
    """Edges go and come back, steps are renewed, and the first aim does not suffice: all of it is gone on from."""
    behaviour, settings = get_behaviour("ioi"), TaskSettings(pairs=8, k=60)
    deployments = [Deployment(TAU, rollouts=1, seed=seed, judge="validation") for seed in (0, 3)]
    policy = agent()
    task = task_of(model, behaviour, settings, REWARD)
    prepared, lines = task.engine.passes, []
    report = lambda step, line: lines.append(step)  # noqa: E731
    straight = deploy_together(model, behaviour, task, policy, deployments, settings, REWARD, report=report)
    assert lines.count(1) >= 3, "no higher aim was needed"
    assert max(lines) > REWARD.max_steps

    stops, folder, again = 0, tmp_path / "rollouts", []
    while not again:
        task.engine.ledger.restore(prepared + 5)  # whatever another process has on its account by now
        journal = Journal(folder, task.engine, stop_at(steps))
        try:
            more = {"passes_before": -5.0, "journal": journal}
            again = deploy_together(model, behaviour, task, policy, deployments, settings, REWARD, **more)
        except Interrupted:
            stops += 1
    assert stops == len(lines) // steps
    assert [without_time(circuit) for circuit in again] == [without_time(circuit) for circuit in straight]
    assert len(list(folder.iterdir())) == lines.count(1)
    journal.remove()
    assert not folder.exists()


def test_edges_that_came_back_are_remembered(tmp_path):
    task, policy = small_task("gpt2", 150, 0, REWARD), agent()
    reward = replace(REWARD, trades=True)
    straight = rollouts(policy, task, reward, 3, seed=0)
    assert any(
        (after & ~before).any()
        for e in straight
        for before, after in zip(e.masks[:-1], e.masks[1:], strict=True)
    )
    rollouts(policy, task, reward, 3, seed=0, journal=Journal(tmp_path, task.engine))
    spent = task.engine.passes
    read = rollouts(
        policy, task, reward, 3, seed=0, journal=Journal(tmp_path, task.engine)
    )  # ended: nothing is run
    for ours, theirs in zip(read, straight, strict=True):
        assert np.array_equal(ours.masks, theirs.masks) and np.array_equal(ours.f, theirs.f)
        assert ours.cuts == theirs.cuts and ours.passes == theirs.passes
    assert task.engine.passes - spent == pytest.approx(
        sum(e.passes for e in read) + 6 * task.engine.n_pairs / 20
    )


def test_seconds_add_up(model, tmp_path, monkeypatch):
    """Those before the stop, once, and those after it; what is repeated is not counted twice."""
    behaviour, settings = get_behaviour("ioi"), TaskSettings(pairs=4, k=60)
    task, now = task_of(model, behaviour, settings, REWARD), [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def report(step: int, line: str) -> None:
        now[0] += 10

    def find(journal: Journal | None) -> Circuit:
        more = {"began": 90.0, "report": report, "journal": journal}
        return deploy(model, behaviour, task, agent(), Deployment(rollouts=0), settings, REWARD, **more)

    now[0] = 100.0
    straight = find(None)
    now[0] = 100.0
    with pytest.raises(Interrupted):
        find(Journal(tmp_path, task.engine, stop_at(2)))
    now[0] = 100.0
    assert find(Journal(tmp_path, task.engine)).seconds == straight.seconds


@pytest.mark.parametrize("what", ["damaged", "another target", "other candidates"])
def test_what_does_not_fit_is_not_gone_on_from(tmp_path, what):
    task, policy = small_task("gpt2", 60, 0, REWARD), agent()
    with pytest.raises(Interrupted):
        rollouts(policy, task, REWARD, 1, seed=0, journal=Journal(tmp_path, task.engine, stop_at(3)))
    (path,) = tmp_path.iterdir()
    if what == "damaged":
        path.write_bytes(path.read_bytes()[:-9])
    elif what == "another target":
        task = replace(task, tau=0.5)
    else:
        task = small_task("gpt2", 50, 0, REWARD)
    straight = rollouts(policy, task, REWARD, 1, seed=0)
    found = rollouts(policy, task, REWARD, 1, seed=0, journal=Journal(tmp_path, task.engine))
    assert all(np.array_equal(a.masks, b.masks) for a, b in zip(straight, found, strict=True))
