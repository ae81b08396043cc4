"""Small tasks for the agent's tests: an engine on a tiny model, a candidate set, features."""

from __future__ import annotations

import numpy as np

from mechrl.agents.paper.env import EnvConfig, Task, make_task
from mechrl.engine import Engine
from tests.tiny import tiny, tiny_pairs


def small_task(
    kind: str = "gpt2",
    K: int = 40,
    seed: int = 0,
    config: EnvConfig = EnvConfig(),  # noqa: B008 (frozen)
) -> Task:
    model = tiny(kind, seed)
    engine = Engine(model, tiny_pairs(seed=seed))
    scores = -engine.gradient(np.ones((1, model.graph.n_edges))).gradient[0].numpy()
    candidates = np.sort(np.argsort(-np.abs(scores))[:K])
    return make_task(f"{kind}-{K}", engine, candidates, scores, config)
