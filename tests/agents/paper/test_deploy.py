"""Deployment: the paper's choice, resumable rollouts, and policies on disk."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from mechrl.agents.paper.checkpoint import load_policy, save_policy, trained_with
from mechrl.agents.paper.deploy import Deployment, Rollouts, Watch, deploy, discover
from mechrl.agents.paper.env import EnvConfig
from mechrl.agents.paper.policy import Policy
from mechrl.agents.paper.tasks import TaskSettings, task_of
from mechrl.behaviours import TEST_SEED, get_behaviour
from mechrl.circuit import Circuit
from mechrl.engine import Engine
from mechrl.errors import MechRLError
from mechrl.models import load_model
from mechrl.search.problem import Interrupted
from tests.agents.paper.tasks import small_task
from tests.search.model import write_model
from tests.stopping import stop_at

ENV = EnvConfig(max_steps=6)
SETTINGS = TaskSettings(pairs=4, k=60)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_model(write_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MECHRL_CACHE", str(tmp_path / "cache"))


def agent(seed: int = 0) -> Policy:
    """A policy that tries everything."""
    torch.manual_seed(seed)
    policy = Policy(16)
    with torch.no_grad():
        policy.type_head.second.bias[:] = torch.tensor([-0.5, 1, 1, 1, -1, 0])
    return policy


def test_episodes_are_what_their_cuts_say():
    task = small_task(K=60)
    episodes = Rollouts(agent(), task, ENV, 5, seed=3).run()
    assert len(episodes) == 6 and len({len(e.cuts) for e in episodes}) > 1
    for e in episodes:
        mask = np.ones(task.K, dtype=bool)
        assert len(e.f) == len(e.size) == len(e.cuts) + 1 <= ENV.max_steps + 1
        for cut, size, f in zip(e.cuts, e.size[1:], e.f[1:], strict=True):
            assert mask[list(cut)].all()
            mask[list(cut)] = False
            assert size == mask.sum()
            assert f == pytest.approx(float(task.engine.faithfulness(mask, task.candidates)[0]), abs=1e-9)
        assert np.array_equal(e.mask, mask)
        assert (e.f[0], e.size[0]) == (pytest.approx(task.ceiling), task.K)


def test_rollouts_are_seeded_and_the_greedy_one_is_not_drawn():
    task = small_task(K=60)
    a, b, c = (Rollouts(agent(), task, ENV, 3, seed).run() for seed in (1, 1, 2))
    assert [e.cuts for e in a] == [e.cuts for e in b] != [e.cuts for e in c]
    alone = Rollouts(agent(), task, ENV, 0, seed=9).run()
    assert len(alone) == 1 and alone[0].cuts == a[-1].cuts == c[-1].cuts


def test_the_most_faithful_last_mask_is_the_answer_whatever_its_size(model):
    behaviour, policy = get_behaviour("ioi"), agent()
    task = task_of(model, behaviour, SETTINGS, ENV)
    before = task.engine.passes
    episodes = Rollouts(policy, task, ENV, 8, seed=5).run()
    spent = task.engine.passes - before
    task.engine.ledger.restore(before)
    found = deploy(model, behaviour, task, policy, SETTINGS, ENV, Deployment(rollouts=8, seed=5))
    best = max(episodes, key=lambda e: e.f[-1])
    assert set(np.flatnonzero(found.mask)) == set(task.candidates[best.mask])
    assert found.faithfulness == best.f[-1] and found.method == "paper"
    assert found.passes == pytest.approx(before + spent) and len(found) == best.size[-1]
    assert sorted([*found.order, *np.flatnonzero(found.mask)]) == task.candidates.tolist()
    assert found.settings["agent_tau"] == found.settings["ceiling"] == task.ceiling
    test = Engine(model, behaviour.pairs(model.tokenizer, 100, TEST_SEED))
    assert found.faithfulness_test == pytest.approx(float(test.faithfulness(found.mask)[0]))


def without_time(circuit: Circuit) -> dict:
    return circuit.to_json() | {"seconds": 0}


@pytest.mark.parametrize("steps", [1, 4])
def test_stopped_after_every_so_many_steps_equals_straight(model, tmp_path, steps):
    behaviour, policy = get_behaviour("ioi"), agent()
    find = dict(
        model=model,
        behaviour=behaviour,
        policy=policy,
        settings=SETTINGS,
        env=ENV,
        deployment=Deployment(rollouts=3),
    )
    straight, path, stops, again = discover(**find), tmp_path / "rollouts.safetensors", 0, None
    while again is None:
        try:
            again = discover(**find, watch=Watch(path=path, stopping=stop_at(steps + 1)))
        except Interrupted:
            stops += 1
    assert stops >= 1 and without_time(again) == without_time(straight)


def test_rollouts_of_another_task_or_damaged_ones_are_not_gone_on_with(model, tmp_path):
    behaviour, policy, path = get_behaviour("ioi"), agent(), tmp_path / "rollouts.safetensors"
    find = dict(model=model, behaviour=behaviour, policy=policy, env=ENV, deployment=Deployment(rollouts=3))
    with pytest.raises(Interrupted):
        discover(**find, settings=SETTINGS, watch=Watch(path=path, stopping=stop_at(3)))
    other = TaskSettings(pairs=4, k=50)
    assert without_time(discover(**find, settings=other, watch=Watch(path=path))) == without_time(
        discover(**find, settings=other)
    )
    path.write_bytes(path.read_bytes()[:500])
    expected = without_time(discover(**find, settings=SETTINGS))
    assert without_time(discover(**find, settings=SETTINGS, watch=Watch(path=path))) == expected


# ---- policies on disk -----------------------------------------------------------------------------------------------


def one_line(folder: Path, message: str) -> None:
    with pytest.raises(MechRLError, match=message) as caught:
        load_policy(folder)
    assert "\n" not in str(caught.value)


def test_policies_on_disk(tmp_path):
    folder, policy = tmp_path / "policy", agent()
    one_line(folder, "is missing")
    save_policy(policy, folder)
    again = load_policy(folder)
    assert again.width == 16 and trained_with(folder) == (TaskSettings(), EnvConfig())
    for x, y in zip(policy.parameters(), again.parameters(), strict=True):
        assert torch.equal(x, y)
    (folder / "run.json").write_text(json.dumps({"task": SETTINGS.to_json(), "env": {"max_steps": 6}}))
    assert trained_with(folder) == (SETTINGS, ENV)
    whole = (folder / "model.safetensors").read_bytes()
    for damage in (whole[: len(whole) // 2], b""):
        (folder / "model.safetensors").write_bytes(damage)
        one_line(folder, "cut short")
    (folder / "model.safetensors").write_bytes(whole)
    (folder / "config.json").write_text('{"agent": "paper", "width": 32}')
    one_line(folder, "does not fit")
    for text in ('{"width": 16', '{"agent": "paper", "width": 0}', '{"agent": "other", "width": 16}', "[]"):
        (folder / "config.json").write_text(text)
        one_line(folder, "damaged")
    (folder / "run.json").write_text("{}")
    with pytest.raises(MechRLError, match="damaged; remove"):
        trained_with(folder)


def test_a_policy_of_a_retired_kind_is_refused_with_what_to_use(tmp_path):
    save_policy(agent(), tmp_path)
    old = {"width": 128, "stop_bias": -5.0, "cut_1_bias": 0.0, "prior": 20.0, "parts": True, "trades": False}
    (tmp_path / "config.json").write_text(json.dumps(old))
    one_line(tmp_path, "retired kind; use `mechrl discover`, or train a new one with `mechrl train`")
