"""Training: closed forms, PPO's gradient without conflicts, exact resume, and a problem that must be solved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from mechrl.errors import MechRLError
from mechrl.rl import policy
from mechrl.rl.env import Actions, RewardSettings
from mechrl.rl.policy import Policy, PolicyConfig
from mechrl.rl.ppo import PPOConfig, Rollout, Trainer, gae, whiten
from tests.rl import slow_policy
from tests.rl.tasks import small_task

REWARD = RewardSettings(max_steps=8, tau_low=0.0)
LOOKS_AGAIN = replace(REWARD, look_again=0.9, best_so_far=True)
SMALL = PPOConfig(iterations=4, transitions=32, envs=8, epochs=2, minibatches=2)


def trainer(
    config: PPOConfig = SMALL,
    seed: int = 0,
    group: dist.ProcessGroup | None = None,
    reward: RewardSettings = REWARD,
) -> Trainer:
    tasks = [small_task("gpt2", 40, settings=reward), small_task("llama-gqa", 33, 1, reward)]
    torch.manual_seed(seed)
    return Trainer(tasks, config, reward, Policy(PolicyConfig(width=16)), group=group)


def test_gae_in_closed_form():
    rng = np.random.default_rng(0)
    reward, value, last = rng.normal(size=(5, 1)), rng.normal(size=(5, 1)), rng.normal(size=1)
    done = np.zeros((5, 1))
    g, lam = 0.9, 0.8
    values = np.append(value[:, 0], last)
    delta = reward[:, 0] + g * values[1:] - values[:-1]
    expected = [sum((g * lam) ** (k - t) * delta[k] for k in range(t, 5)) for t in range(5)]
    assert gae(reward, value, done, last, g, lam)[:, 0] == pytest.approx(expected)
    assert gae(reward, value, done, last, g, 1.0)[0, 0] == pytest.approx(
        sum(g**k * reward[k, 0] for k in range(5)) + g**5 * last[0] - value[0, 0]
    )
    done[2] = 1  # nothing flows back over an episode's end
    cut = gae(reward, value, done, last, g, lam)[:, 0]
    assert cut[2] == pytest.approx(reward[2, 0] - value[2, 0]) and cut[3:] == pytest.approx(expected[3:])


def test_whitening_is_per_behaviour():
    task = np.array([[0, 1], [0, 1], [0, 2]])
    white = whiten(np.array([[1.0, 10], [2, 30], [6, 5]]), task)
    assert white[task == 0].mean() == pytest.approx(0) and white[task == 0].std() == pytest.approx(1)
    assert white[task == 1] == pytest.approx([-1, 1]) and white[task == 2] == pytest.approx([0])


def in_double(run: Trainer) -> Rollout:
    """A rollout, and from then on everything in float64."""
    with torch.no_grad():
        run.policy.type_head.second.bias.zero_()  # all types occur
    rollout = run._collect({})
    assert rollout is not None
    run.policy.double()
    with torch.no_grad():
        for p in run.policy.parameters():
            p.add_(
                0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
            )  # so that ratios differ
    t = run.tables
    run.tables = replace(t, edges=t.edges.double(), nodes=t.nodes.double(), degree=t.degree.double())
    states = rollout.record.states
    states = replace(
        states, globals=states.globals.double(), looks=None if states.looks is None else states.looks.double()
    )
    numbers = {name: getattr(rollout, name).double() for name in ("log_prob", "advantage", "target")}
    return replace(rollout, record=replace(rollout.record, states=states), **numbers)


def naive_gradient(run: Trainer, rollout: Rollout, rows: np.ndarray) -> tuple[torch.Tensor, list[float]]:
    """[P] PPO's loss on these samples as it is written in the papers, and its backward pass."""
    config, record = run.config, rollout.record
    states, actions = (
        record.states[torch.from_numpy(rows)],
        (record.kind[rows], record.edges[rows], record.node[rows]),
    )
    if states.looks is None:
        now = run.policy.evaluate(run.tables, states, *actions)
    else:  # one sample at a time
        now = slow_policy.evaluate(run.policy, run.tables, states, Actions(*(x.numpy() for x in actions)))
    ratio = (now.log_prob - rollout.log_prob[rows]).exp()
    A = rollout.advantage[rows]
    policy = -torch.minimum(ratio * A, ratio.clamp(1 - config.clip, 1 + config.clip) * A).mean()
    value = 0.5 * (now.value - rollout.target[rows]).square().mean()
    loss = policy + config.value * value - config.entropy * now.entropy.mean()
    parts = torch.autograd.grad(loss, run.parameters, allow_unused=True)
    flat = [
        torch.zeros_like(p).flatten() if g is None else g.flatten()
        for p, g in zip(run.parameters, parts, strict=True)
    ]
    kl, clipped = (ratio - 1 - ratio.log()).mean(), ((ratio - 1).abs() > config.clip).double().mean()
    return torch.cat(flat), [x.item() for x in (policy, value, now.entropy.mean(), kl, clipped)]


@pytest.mark.parametrize("edges", [2**18, 50, 1], ids=["all at once", "in parts", "one by one"])
@pytest.mark.parametrize("reward", [REWARD, LOOKS_AGAIN], ids=["papers", "looks again"])
@pytest.mark.parametrize("size", [1, 5, 32])
def test_one_backward_pass_gives_every_behaviours_gradient(size, reward, edges, monkeypatch):
    monkeypatch.setattr(policy, "_EDGES_AT_ONCE", edges)
    run = trainer(reward=reward)
    rollout = in_double(run)
    rows = np.random.default_rng(0).permutation(32)[:size]
    gradients, scalars = run._gradients(rollout, run._layouts(rollout, rows))
    for t in range(2):
        mine = rows[rollout.task[rows] == t]
        expected = (
            naive_gradient(run, rollout, mine)[0] * len(mine) / size
            if len(mine)
            else torch.zeros_like(gradients[t])
        )
        assert torch.allclose(gradients[t], expected, rtol=0, atol=1e-12)
    whole, means = naive_gradient(run, rollout, rows)
    assert torch.allclose(gradients.sum(0), whole, rtol=0, atol=1e-12)  # without conflicts it is PPO's
    assert scalars.tolist() == pytest.approx(means, abs=1e-12)
    if size == 32:
        assert len(set(rollout.kind)) == 6 and 0 < means[4] < 1


def timeless(row: dict) -> dict:
    """Without what depends on the clock, and what there is nothing to say about."""
    return {key: value for key, value in row.items() if not key.startswith("time/") and value is not None}


def test_ended_episodes_are_reported_by_behaviour():
    run = trainer(replace(SMALL, iterations=6))
    rows = list(run.run())
    for row in rows:
        names = [task.name for task in run.tasks if f"behaviour/{task.name}/f" in row]
        assert bool(names) == bool(row["episodes"])
        for key in ("return", "f", "edges"):
            parts = [row[f"behaviour/{name}/{key}"] for name in names]
            assert not parts or min(parts) - 1e-9 <= row[f"episode/{key}"] <= max(parts) + 1e-9
    assert any(row["episodes"] for row in rows)


@pytest.mark.parametrize("reward", [REWARD, LOOKS_AGAIN], ids=["papers", "looks again"])
def test_resume_equals_a_straight_run(tmp_path, reward):
    straight = trainer(reward=reward)
    rows = list(straight.run())
    env = straight.env
    assert (
        reward is REWARD or (env.looked < [straight.tasks[t].K for t in env.task]).any()
    )  # in the middle of an episode
    first = trainer(reward=reward)
    part = first.run()
    before = [next(part), next(part)]
    first.save(tmp_path / "run.safetensors")
    second = trainer(seed=5, reward=reward)  # other weights, to be overwritten
    second.load(tmp_path / "run.safetensors")
    after = list(second.run())
    assert [timeless(r) for r in before + after] == [timeless(r) for r in rows]
    assert all(r[f"time/{part}"] > 0 for r in rows for part in ("act", "engine", "update"))
    for a, b in zip(straight.parameters, second.parameters, strict=True):
        assert torch.equal(a, b)
    with pytest.raises(MechRLError, match="other settings"):
        trainer(replace(SMALL, gamma=0.5), reward=reward).load(tmp_path / "run.safetensors")


def test_a_checkpoint_without_all_of_the_environment_is_refused(tmp_path, monkeypatch):
    """As an older version wrote it."""
    monkeypatch.setattr("mechrl.rl.ppo.STATE", ("task", "mask"))
    trainer().save(tmp_path / "run.safetensors")
    monkeypatch.undo()
    with pytest.raises(MechRLError, match="older version"):
        trainer().load(tmp_path / "run.safetensors")


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path):
    """From a checkpoint that one process wrote to one that two wrote, which one can read."""
    alone = trainer(reward=LOOKS_AGAIN)
    steps = alone.run()
    next(steps)
    alone.save(tmp_path / "start.safetensors")
    expected = [timeless(row) for row in steps]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "tests.rl.two_ranks",
    ]
    where = {"cwd": Path(__file__).parents[2], "env": os.environ | {"OMP_NUM_THREADS": "1"}}
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, timeout=100, **where)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        rows, n, world = json.loads((tmp_path / f"rows{rank}.json").read_text())
        assert (n, world) == (4, 2)
        for row, wanted in zip(rows, expected, strict=True):  # the first decides and reports
            assert row == (
                pytest.approx(wanted, rel=1e-9, abs=1e-12)
                if rank == 0
                else {"iteration": wanted["iteration"]}
            )
    together = trainer(reward=LOOKS_AGAIN)
    together.load(tmp_path / "end.safetensors")
    for a, b in zip(alone.parameters, together.parameters, strict=True):
        assert torch.equal(a, b)
    for name in ("task", "mask", "f", "step_count", "episode", "scores", "looked"):
        assert np.allclose(getattr(alone.env, name), getattr(together.env, name), atol=1e-12)


def test_odd_sizes_are_refused():
    with pytest.raises(MechRLError, match="do not divide"):
        PPOConfig(transitions=100, envs=32)
