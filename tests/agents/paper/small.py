"""The paper's agent on a small scale. It has no options for its sizes, so tests set them here. `python -m tests.agents.paper.small train …`
is `mechrl train …` in its own process, with these sizes and with states saved at every step."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from mechrl.agents.paper import adapt, deploy, policy, ppo, tasks
from mechrl.agents.paper.checkpoint import save_policy
from mechrl.cli import app, discover, search

WIDTH, PAIRS = 16, 4
SMALL: tuple[tuple[Any, str, Any], ...] = (
    (ppo, "PPOConfig", partial(ppo.PPOConfig, transitions=16)),
    (adapt, "PPOConfig", partial(ppo.PPOConfig, transitions=16)),
    (ppo, "Policy", partial(policy.Policy, WIDTH)),
    (tasks, "TaskSettings", partial(tasks.TaskSettings, PAIRS)),
)


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the sizes in this process, for one test."""
    for module, name, value in SMALL:
        monkeypatch.setattr(module, name, value)


def write_policy(folder: Path, k: int = 20, pairs: int = PAIRS, max_steps: int = 3) -> Path:
    """An untrained policy, written as `mechrl train` would."""
    torch.manual_seed(0)
    save_policy(policy.Policy(WIDTH), folder)
    known = {"task": {"pairs": pairs, "k": k, "prefilter": "metric"}, "env": {"max_steps": max_steps}}
    (folder / "run.json").write_text(json.dumps(known))
    return folder


def main() -> None:
    for module, name, value in SMALL:
        setattr(module, name, value)
    search._SAVE_EVERY = discover._SAVE_EVERY = deploy._SAVE_EVERY = 0.0
    app.main()


if __name__ == "__main__":
    main()
