"""The same environment through Gymnasium's interface, one behaviour at a time, for those who bring their own agent."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from mechrl.rl.env import MAX_PICKS, PAPERS_TYPES, STOP, Actions, RewardSettings, Task, VectorEnv
from mechrl.rl.features import N_EDGE, N_GLOBAL, N_NODE, after_look


class CircuitEnv(gymnasium.Env[dict[str, Any], dict[str, Any]]):
    """Prune one candidate set. An action is {type, edges, node}; of `edges` the first 1, 3, 10 or 30 count, by type.

    Running out of steps truncates an episode, stopping terminates it.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (Gymnasium's own declaration)

    def __init__(self, task: Task, settings: RewardSettings = RewardSettings()) -> None:  # noqa: B008 (frozen)
        self.task, self.settings = task, settings
        box = spaces.Box
        observation: dict[str, spaces.Space] = {
            "edges": box(-1, 1, (task.K, N_EDGE)),
            "nodes": box(-1, 1, (task.M, N_NODE)),
            "mask": spaces.MultiBinary(task.K),
            "globals": box(-np.inf, np.inf, (N_GLOBAL,)),
        }
        action: dict[str, spaces.Space] = {
            "type": spaces.Discrete(PAPERS_TYPES),
            "edges": spaces.MultiDiscrete([task.K] * MAX_PICKS),
            "node": spaces.Discrete(task.M),
        }
        self.observation_space, self.action_space = spaces.Dict(observation), spaces.Dict(action)
        self._inner = VectorEnv([task], 1, settings, np.random.default_rng(0))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict]:
        super().reset(seed=seed)
        self._inner.reset(0, 0)
        return self._observation(), self._info()

    def step(self, action: dict[str, Any]) -> tuple[dict[str, Any], float, bool, bool, dict]:
        kind = int(action["type"])
        actions = Actions(
            np.array([kind]), np.asarray(action["edges"])[None], np.array([int(action["node"])])
        )
        steps = self._inner.step(actions, restart=False)
        stopped = kind == STOP
        return (
            self._observation(),
            float(steps.reward[0]),
            stopped,
            bool(steps.done[0]) and not stopped,
            self._info(),
        )

    def _observation(self) -> dict[str, Any]:
        features = self.task.features
        if self.settings.look_again:
            features = after_look(features, self._inner.scores[0])
        mask = self._inner.mask[0].astype(np.int8)
        return {
            "edges": features.edges.copy(),
            "nodes": features.nodes.copy(),
            "mask": mask,
            "globals": self._inner.globals()[0],
        }

    def _info(self) -> dict:
        return {"faithfulness": float(self._inner.f[0]), "edges": int(self._inner.mask[0].sum())}
