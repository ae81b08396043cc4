"""`mechrl` on a small scale, for processes of their own: `python -m tests.agents.paper.small train …`. The paper's agent has no options
for its sizes, so they are set here."""

from __future__ import annotations

from functools import partial

from mechrl.agents.paper import adapt, deploy, policy, ppo, tasks
from mechrl.cli import app

SIZES = dict(transitions=16)
WIDTH, PAIRS = 16, 4


def make_small() -> None:
    ppo.PPOConfig = adapt.PPOConfig = partial(ppo.PPOConfig, **SIZES)  # type: ignore[assignment, misc]
    ppo.Policy = partial(policy.Policy, WIDTH)  # type: ignore[assignment, misc]
    tasks.TaskSettings = partial(tasks.TaskSettings, PAIRS)  # type: ignore[assignment, misc]
    deploy._SAVE_EVERY = 0.0


if __name__ == "__main__":
    make_small()
    app.main()
