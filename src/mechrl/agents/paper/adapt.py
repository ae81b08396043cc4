"""Warm start (the paper's section 5.1): train a policy for eighty more iterations on one held-out behaviour, with a new optimiser.

The control trains from random weights on the same task for two hundred. Initialisation is the only other difference.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from mechrl.agents.paper.checkpoint import WEIGHTS
from mechrl.agents.paper.env import EnvConfig, Task
from mechrl.agents.paper.policy import Policy
from mechrl.agents.paper.ppo import PPOConfig, Trainer
from mechrl.agents.paper.tasks import TaskSettings
from mechrl.agents.paper.train import describe
from mechrl.files.reading import file_checksum
from mechrl.models.base import Model

WARM, SCRATCH = 80, 200  # iterations


def adaptation(from_scratch: bool, iterations: int | None = None, envs: int = 4, seed: int = 0) -> PPOConfig:
    return PPOConfig(iterations=iterations or (SCRATCH if from_scratch else WARM), envs=envs, seed=seed)


def method_of(from_scratch: bool) -> str:
    """The method's name in circuits and tables."""
    return "paper-from-scratch" if from_scratch else "paper-adapted"


def trainer_of(
    model: Model,
    task: Task,
    config: PPOConfig,
    settings: TaskSettings,
    env: EnvConfig,
    policy: Policy,
    folder: Path,
    from_scratch: bool,
) -> tuple[Trainer, dict[str, Any]]:
    """A trainer for one task, starting from the policy in a folder or from random weights of the same width; and the description of its
    run."""
    if from_scratch:
        torch.manual_seed(config.seed)
        policy = Policy(policy.width)
    trainer = Trainer([task], config, env, policy, model.device)
    checksum = None if from_scratch else file_checksum(folder / WEIGHTS)
    return trainer, describe(model, trainer, settings, checksum)
