"""Training: closed forms, PPO's gradient without conflicts, exact resume, and what is logged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mechrl.agents.paper.env import EnvConfig
from mechrl.agents.paper.policy import Policy
from mechrl.agents.paper.policy_replay import Layout
from mechrl.agents.paper.ppo import PPOConfig, Rollout, Trainer, gae, whiten
from mechrl.errors import MechRLError
from mechrl.files import write_atomically
from tests.agents.paper.tasks import small_task
from tests.agents.paper.test_policy import slowly

ENV = EnvConfig(max_steps=8)
SMALL = PPOConfig(iterations=4, transitions=32, envs=8, epochs=2, minibatches=2)


def trainer(config: PPOConfig = SMALL, seed: int = 0) -> Trainer:
    tasks = [small_task("gpt2", 40, config=ENV), small_task("llama-gqa", 33, 1, ENV)]
    torch.manual_seed(seed)
    return Trainer(tasks, config, ENV, Policy(16))


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
    done[2] = 1  # nothing propagates back across an episode's end
    cut = gae(reward, value, done, last, g, lam)[:, 0]
    assert cut[2] == pytest.approx(reward[2, 0] - value[2, 0]) and cut[3:] == pytest.approx(expected[3:])


def test_whitening_is_per_behaviour():
    task = np.array([[0, 1], [0, 1], [0, 2]])
    white = whiten(np.array([[1.0, 10], [2, 30], [6, 5]]), task)
    assert white[task == 0].mean() == pytest.approx(0) and white[task == 0].std() == pytest.approx(1)
    assert white[task == 1] == pytest.approx([-1, 1]) and white[task == 2] == pytest.approx([0])


def in_double(run: Trainer) -> Rollout:
    """A rollout, after which everything is float64."""
    with torch.no_grad():
        run.policy.type_head.second.bias.zero_()  # all action types occur
    rollout, _ = run.collect()
    run.policy.double()
    with torch.no_grad():
        g = torch.Generator().manual_seed(1)
        for p in run.policy.parameters():
            # so that ratios differ from 1
            p.add_(0.3 * torch.randn(p.shape, generator=g, dtype=torch.float64))
    t = run.tables
    run.tables = replace(t, edges=t.edges.double(), nodes=t.nodes.double(), degree=t.degree.double())
    states = replace(rollout.transitions.states, globals=rollout.transitions.states.globals.double())
    numbers = {name: getattr(rollout, name).double() for name in ("log_prob", "advantage", "target")}
    return replace(rollout, transitions=replace(rollout.transitions, states=states), **numbers)


def slow_gradient(run: Trainer, rollout: Rollout, rows: np.ndarray) -> tuple[torch.Tensor, list[float]]:
    """[P] PPO's loss on these samples as written in the papers, computed by the readable policy, and its gradient."""
    from mechrl.agents.paper.env import Actions

    config, record = run.config, rollout.transitions
    actions = Actions(*(x[rows].numpy() for x in (record.kind, record.edges, record.node)))
    now = slowly(run.policy, run.tables, record.states[torch.from_numpy(rows)], actions)
    ratio = (now.log_prob - rollout.log_prob[rows]).exp()
    A = rollout.advantage[rows]
    policy = -torch.minimum(ratio * A, ratio.clamp(1 - config.clip, 1 + config.clip) * A).mean()
    value = 0.5 * (now.value - rollout.target[rows]).square().mean()
    entropies = now.type_entropy.mean(), now.pick_entropy.mean()
    loss = policy + config.value * value - config.entropy * sum(entropies)
    parts = torch.autograd.grad(loss, run.parameters, allow_unused=True)
    flat = [
        torch.zeros_like(p).flatten() if g is None else g.flatten()
        for p, g in zip(run.parameters, parts, strict=True)
    ]
    kl, clipped = (ratio - 1 - ratio.log()).mean(), ((ratio - 1).abs() > config.clip).double().mean()
    return torch.cat(flat), [x.item() for x in (policy, value, *entropies, kl, clipped)]


@pytest.mark.parametrize("size", [1, 5, 32])
def test_one_backward_pass_gives_every_behaviours_gradient(size):
    run = trainer()
    rollout = in_double(run)
    rows = np.random.default_rng(0).permutation(32)[:size]
    layout = Layout.of(rollout.task, rollout.kind, rows, "cpu")
    gradients, scalars = run.gradients(rollout, layout)
    assert layout.groups.tolist() == sorted(set(rollout.task[rows]))
    for t, gradient in zip(layout.groups.tolist(), gradients, strict=True):
        mine = rows[rollout.task[rows] == t]
        expected = slow_gradient(run, rollout, mine)[0] * len(mine) / size
        assert torch.allclose(gradient, expected, rtol=0, atol=1e-12)
    whole, means = slow_gradient(run, rollout, rows)
    assert torch.allclose(gradients.sum(0), whole, rtol=0, atol=1e-12)  # without conflicts it is PPO's
    assert scalars.tolist() == pytest.approx(means, abs=1e-12)
    if size == 32:
        assert len(set(rollout.kind)) == 6 and 0 < means[5] < 1


def timeless(row: dict) -> dict:
    """Without the fields that depend on the clock."""
    return {key: value for key, value in row.items() if not key.startswith("time/")}


def test_ended_episodes_are_reported_by_behaviour():
    run = trainer(replace(SMALL, iterations=6))
    rows = list(run.run())
    for row in rows:
        names = [task.name for task in run.tasks if f"behaviour/{task.name}/f" in row]
        assert bool(names) == bool(row["episodes"])
        for key in ("return", "f", "edges", "length"):
            parts = [row[f"behaviour/{name}/{key}"] for name in names]
            assert not parts or min(parts) - 1e-9 <= row[f"episode/{key}"] <= max(parts) + 1e-9
        assert 0 <= row["rollout/stop_share"] <= 1
    assert any(row["episodes"] for row in rows)


def test_lengths_and_stops_are_counted():
    """An agent that always stops ends every episode at once; one that never stops ends it after the last step."""
    for bias, length, share in ((50.0, 0, 1.0), (-50.0, ENV.max_steps, 0.0)):
        run = trainer()
        with torch.no_grad():
            run.policy.type_head.second.bias[0] = bias
            run.policy.type_head.second.bias[1] = 20.0  # one edge at a time: there are always enough
        rows = [run.collect()[1] for _ in range(3)]
        assert {row["rollout/stop_share"] for row in rows} == {share}
        assert {row["episode/length"] for row in rows} - {None} == {length}


def save(run: Trainer, path: Path) -> None:
    write_atomically(path, run.to_bytes())


def test_resume_equals_a_straight_run(tmp_path):
    straight = trainer()
    rows = list(straight.run())
    first = trainer()
    part = first.run()
    before = [next(part), next(part)]
    assert (first.env.step_count > 0).any()  # in the middle of an episode
    save(first, tmp_path / "run.safetensors")
    second = trainer(seed=5)  # different weights, to be overwritten
    second.load(tmp_path / "run.safetensors")
    after = list(second.run())
    assert [timeless(r) for r in before + after] == [timeless(r) for r in rows]
    assert all(r[f"time/{part}"] > 0 for r in rows for part in ("act", "engine", "update"))
    for a, b in zip(straight.parameters, second.parameters, strict=True):
        assert torch.equal(a, b)
    with pytest.raises(MechRLError, match="other settings"):
        trainer(replace(SMALL, gamma=0.5)).load(tmp_path / "run.safetensors")


def test_a_checkpoint_of_another_shape_is_refused(tmp_path, monkeypatch):
    run = trainer()
    next(run.run())
    run.env.mask = run.env.mask[:, :-1]
    save(run, tmp_path / "run.safetensors")
    with pytest.raises(ValueError, match=r"env\.mask"):
        trainer().load(tmp_path / "run.safetensors")


def test_the_learning_rate_falls_to_zero_linearly():
    assert [row["learning_rate"] for row in trainer().run()] == pytest.approx(
        [2.5e-4 * (1 - i / 4) for i in range(4)]
    )


def test_odd_sizes_are_refused():
    with pytest.raises(MechRLError, match="do not divide"):
        PPOConfig(transitions=100, envs=32)
