"""Training: closed forms, PPO's gradient without conflicts, exact resume, and a problem that must be solved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mechrl.engine import Engine
from mechrl.errors import MechRLError
from mechrl.rl.env import RewardSettings, make_task
from mechrl.rl.policy import Policy, PolicyConfig
from mechrl.rl.ppo import PPOConfig, Trainer, gae, whiten
from tests.planted import planted_chain
from tests.rl.tasks import small_task
from tests.tiny import TinyPairs

REWARD = RewardSettings(max_steps=8, tau_low=0.0)
SMALL = PPOConfig(iterations=4, transitions=32, envs=8, epochs=2, minibatches=2)


def trainer(config: PPOConfig = SMALL, seed: int = 0) -> Trainer:
    tasks = [small_task("gpt2", 40, settings=REWARD), small_task("llama-gqa", 33, 1, REWARD)]
    torch.manual_seed(seed)
    return Trainer(tasks, config, REWARD, Policy(PolicyConfig(width=16)))


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


def test_without_conflicts_the_gradient_is_ppos(monkeypatch):
    run = trainer()
    rollout, _ = run._collect()
    rows = torch.arange(32)
    whole, _ = Trainer._gradient(_with(run, deconflict=False), rollout, rows)
    monkeypatch.setattr("mechrl.rl.ppo.pcgrad", lambda gradients, rng: gradients.sum(0))
    parts, _ = run._gradient(rollout, rows)
    assert torch.allclose(whole, parts, atol=1e-6)


def _with(run: Trainer, **changes) -> Trainer:
    other = object.__new__(Trainer)
    other.__dict__ = run.__dict__ | {"config": replace(run.config, **changes)}
    return other


def test_resume_equals_a_straight_run(tmp_path):
    straight = trainer()
    rows = list(straight.run())
    first = trainer()
    part = first.run()
    before = [next(part), next(part)]
    first.save(tmp_path / "run.safetensors")
    second = trainer(seed=5)  # other weights, to be overwritten
    second.load(tmp_path / "run.safetensors")
    after = list(second.run())
    assert before + after == rows
    for a, b in zip(straight.parameters, second.parameters, strict=True):
        assert torch.equal(a, b)
    with pytest.raises(MechRLError, match="other settings"):
        trainer(replace(SMALL, gamma=0.5)).load(tmp_path / "run.safetensors")


def test_odd_sizes_are_refused():
    with pytest.raises(MechRLError, match="do not divide"):
        PPOConfig(transitions=100, envs=32)


def test_a_short_training_improves_the_return():
    """262 edges, of which four matter: the untrained agent cuts these as readily as the others."""
    planted = planted_chain()
    graph = planted.model.graph
    engine = Engine(planted.model, TinyPairs(planted.clean.tolist()[:4], planted.corrupt.tolist()[:4]))
    everything = np.arange(graph.n_edges)
    scores = -engine.gradient(np.ones((1, graph.n_edges))).gradient[0].double().numpy()
    reward = RewardSettings(max_steps=15)
    task = make_task("chain", engine, everything, scores, reward)
    torch.manual_seed(0)
    config = PPOConfig(iterations=10, transitions=256, envs=32, learning_rate=3e-3, entropy=0.003)
    run = Trainer([task], config, reward, Policy(PolicyConfig(width=32)))
    rows = list(run.run())
    early = np.mean([r["episode/return"] for r in rows[:3] if r["episode/return"] is not None])
    late = np.mean([r["episode/return"] for r in rows[-3:] if r["episode/return"] is not None])
    assert late > early + 1, (early, late)
