"""What training achieves, what it writes, and which packages it needs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mechrl.agents.paper.deploy import Rollouts
from mechrl.agents.paper.env import EnvConfig, Task
from mechrl.agents.paper.policy import Policy
from mechrl.agents.paper.ppo import PPOConfig, Trainer
from mechrl.agents.paper.tasks import TaskSettings, task_of
from mechrl.agents.paper.train import Run, describe
from mechrl.behaviours import get_behaviour
from mechrl.models import load_model

# Every cut is rewarded at once, so a short horizon learns which edges matter from far fewer transitions.
QUICK = dict(transitions=512, envs=64, learning_rate=3e-3, entropy=0.003, gamma=0.7)


def returns(policy: Policy, task: Task, env: EnvConfig) -> tuple[float, np.ndarray]:
    """Mean return of sampled episodes, and their last masks."""
    episodes = Rollouts(policy, task, env, 16, seed=1).run()[:16]
    masks, f = np.stack([e.mask for e in episodes]), np.array([e.f[-1] for e in episodes])
    return float(gain(task, masks, f, env).mean()), masks


def gain(task: Task, masks: np.ndarray, f: np.ndarray, env: EnvConfig) -> np.ndarray:
    end, start = ((masks.sum(1), f), (np.array(task.K), np.array(task.ceiling)))
    a, b = (env.potential(f, k, task.K, task.tau) for k, f in (end, start))
    return a - b


@pytest.mark.slow
def test_a_short_training_on_toy_beats_the_untrained_policy_and_random_cutting():
    """By at least 1 in return; losing a behaviour costs up to 4.9, and the best circuits gain less than 1."""
    model, env = load_model("toy"), EnvConfig(max_steps=40)
    settings = TaskSettings(pairs=4, k=80)
    tasks = [task_of(model, get_behaviour(name), settings, env) for name in ("ioi", "gendered-pronoun")]
    torch.manual_seed(0)
    run = Trainer(tasks, PPOConfig(iterations=16, **QUICK), env, Policy(32))
    before = [returns(run.policy, task, env)[0] for task in tasks]
    for _ in run.run():
        pass
    rng = np.random.default_rng(0)
    for task, untrained in zip(tasks, before, strict=True):
        trained, masks = returns(run.policy, task, env)
        random = rng.permuted(masks, axis=1)  # random circuits of the same size
        f = task.engine.faithfulness(random, task.candidates).double().numpy()
        assert trained > untrained + 1
        assert trained > gain(task, random, f, env).mean() + 1


def test_every_logged_number_is_explained(tmp_path: Path):
    model, env = load_model("toy"), EnvConfig(max_steps=2)
    settings = TaskSettings(pairs=2, k=20)
    task = task_of(model, get_behaviour("ioi"), settings, env)
    run = Trainer([task], PPOConfig(iterations=1, transitions=8, envs=2, minibatches=2), env, Policy(8))
    list(Run(tmp_path, run, describe(model, run, settings)))
    (row,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert row["episodes"] > 0
    text = (Path(__file__).parents[3] / "docs" / "training.md").read_text()
    first_cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
    explained = set(re.findall(r"`([^`]+)`", "\n".join(first_cells)))
    assert {key.replace("behaviour/ioi/", "behaviour/NAME/") for key in row} <= explained
    files = {path.name + "/" * path.is_dir() for path in tmp_path.iterdir()}
    needed = {"run.json", "metrics.jsonl", "config.json", "model.safetensors", "checkpoint.safetensors"}
    assert needed <= files <= explained


@pytest.mark.parametrize(
    "module", ["mechrl.agents.paper.train", "mechrl.agents.paper.deploy", "mechrl.cli.train"]
)
def test_training_needs_no_optional_package(module: str):
    code = "import sys\nfor name in ('gguf', 'tyro', 'tensorboard', 'torchjd', 'matplotlib'): sys.modules[name] = None\n"
    subprocess.run(
        [sys.executable, "-c", code + f"import {module}"],
        check=True,
        timeout=100,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
