"""What training achieves: planted circuits are found exactly, the embedded model's are kept where random cutting destroys them."""

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

from mechrl import attribution
from mechrl.behaviours import get_behaviour
from mechrl.candidates import candidate_set
from mechrl.engine import Engine
from mechrl.models import load_model
from mechrl.rl.env import RewardSettings, Task, make_task
from mechrl.rl.policy import Policy, PolicyConfig
from mechrl.rl.ppo import PPOConfig, Trainer
from mechrl.rl.rollout import best_step, choose, rollouts
from mechrl.rl.tasks import TaskSettings, task_of
from mechrl.rl.train import Run, describe
from tests.planted import Planted, planted_chain, planted_parallel
from tests.tiny import TinyPairs

# Rewards come with every cut, so looking only a few steps ahead learns which edges matter from far fewer transitions.
QUICK = dict(transitions=512, envs=64, learning_rate=3e-3, entropy=0.003, gamma=0.7)
REWARD = RewardSettings(max_steps=20)
TAU = 0.9


def planted_task(planted: Planted) -> Task:
    engine = Engine(planted.model, TinyPairs(planted.clean.tolist()[:8], planted.corrupt.tolist()[:8]))
    scores = attribution.eap_ig_inputs(engine, engine.kl_objective)
    return make_task("planted", engine, candidate_set([scores], 40), [scores], REWARD)


def found(policy: Policy, planted: Planted, task: Task) -> set[str]:
    """Deployed as by `--best-along-episode`."""
    graph, episodes = planted.model.graph, rollouts(policy, task, REWARD, 16, seed=0)
    steps = [best_step(episode, TAU, "smallest") for episode in episodes]
    masks = graph.prune(np.stack([e.masks[t] for e, t in zip(episodes, steps, strict=True)]), task.candidates)
    f = np.array([e.f[t] for e, t in zip(episodes, steps, strict=True)])
    return {graph.edge_name(int(e)) for e in task.candidates[masks[choose(f, masks.sum(1), TAU, "smallest")]]}


@pytest.mark.slow
def test_planted_circuits_are_found_exactly_in_other_models_too():
    """Trained on two circuits planted in a GPT-2, it finds them, and their kin in a Llama that it has never seen."""
    plants = [plant(kind) for kind in ("gpt2", "llama") for plant in (planted_chain, planted_parallel)]
    tasks = [planted_task(planted) for planted in plants]
    torch.manual_seed(0)
    run = Trainer(tasks[:2], PPOConfig(iterations=24, **QUICK), REWARD, Policy(PolicyConfig(32)))
    untrained = [found(run.policy, planted, task) for planted, task in zip(plants, tasks, strict=True)]
    assert all(len(edges) > len(planted.edges) for edges, planted in zip(untrained, plants, strict=True))
    for _ in run.run():
        pass
    for planted, task in zip(plants, tasks, strict=True):
        assert found(run.policy, planted, task) == planted.edges


def potential(task: Task, masks: np.ndarray, f: np.ndarray, reward: RewardSettings) -> np.ndarray:
    return reward.potential(f, masks.sum(1), task.K, task.tau) - reward.potential(
        np.array(task.ceiling), np.array(task.K), task.K, task.tau
    )


@pytest.mark.slow
def test_a_short_training_on_toy_beats_the_untrained_policy_and_random_cutting():
    """By 1 in return, where losing a behaviour costs up to 4.9 and the best circuits gain less than 1."""
    model, reward = load_model("toy"), RewardSettings(max_steps=40)
    tasks = [
        task_of(model, get_behaviour(name), TaskSettings(pairs=4, k=80), reward)
        for name in ("ioi", "gendered-pronoun")
    ]
    torch.manual_seed(0)
    run = Trainer(tasks, PPOConfig(iterations=10, **QUICK), reward, Policy(PolicyConfig(32)))

    def returns(task: Task) -> tuple[float, np.ndarray]:
        """Mean return of sampled episodes, and their last masks."""
        episodes = rollouts(run.policy, task, reward, 16, seed=1)[:16]
        masks, f = np.stack([e.masks[-1] for e in episodes]), np.array([e.f[-1] for e in episodes])
        return float(potential(task, masks, f, reward).mean()), masks

    before = [returns(task)[0] for task in tasks]
    for _ in run.run():
        pass
    rng = np.random.default_rng(0)
    for task, untrained in zip(tasks, before, strict=True):
        trained, masks = returns(task)
        random = rng.permuted(masks, axis=1)  # as many edges, any of them
        f = task.engine.faithfulness(random, task.candidates).double().numpy()
        assert trained > untrained + 1
        assert trained > potential(task, random, f, reward).mean() + 1


def test_every_logged_number_is_explained(tmp_path: Path):
    model, reward = load_model("toy"), RewardSettings(max_steps=2)
    settings = TaskSettings(pairs=2, k=20)
    task = task_of(model, get_behaviour("ioi"), settings, reward)
    run = Trainer(
        [task], PPOConfig(iterations=1, transitions=8, envs=2, minibatches=2), reward, Policy(PolicyConfig(8))
    )
    list(Run(tmp_path, run, describe(model, run, settings)))
    (row,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert row["episodes"] > 0
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    first_cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
    explained = set(re.findall(r"`([^`]+)`", "\n".join(first_cells)))
    assert {key.replace("behaviour/ioi/", "behaviour/NAME/") for key in row} <= explained
    files = {path.name + "/" * path.is_dir() for path in tmp_path.iterdir()}
    assert (
        {"run.json", "metrics.jsonl", "config.json", "model.safetensors", "checkpoint.safetensors"}
        <= files
        <= explained
    )


@pytest.mark.parametrize("module", ["mechrl.rl.train", "mechrl.rl.rollout", "mechrl.rl.command"])
def test_training_needs_no_optional_package(module: str):
    code = "import sys\nfor name in ('gymnasium', 'gguf', 'tyro', 'tensorboard', 'torchjd', 'matplotlib'): sys.modules[name] = None\n"
    subprocess.run(
        [sys.executable, "-c", code + f"import {module}"],
        check=True,
        timeout=100,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
