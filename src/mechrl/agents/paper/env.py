"""Circuit discovery as a Markov decision process (the paper's section 3.1) and its reward (section 3.2).

    State       edge and node features (features.py), the mask m_t, six globals g_t
    Actions     stop; cut 1, 3, 10 or 30 edges (a batch cut); cut all remaining edges out of one component (a node cut)
    Transition  the cut is permanent; one forward pass measures the new f
    Reward      r_t = Φ(f_{t+1}, k_{t+1}) − Φ(f_t, k_t), so an episode's rewards sum to Φ(end) − Φ(start)

An episode ends when the agent stops, or after 150 steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mechrl.agents.paper.features import Features, features
from mechrl.engine import Engine, ManyEngines

ACTION_TYPES = ("stop", "cut-1", "cut-3", "cut-10", "cut-30", "node")
STOP, NODE = 0, 5
BATCH_SIZES = (0, 1, 3, 10, 30, 0)  # edges that an action of each type picks
NEEDS = (0, 1, 3, 10, 30, 1)  # edges that must be left for the action to be legal
MAX_PICKS = max(BATCH_SIZES)
PRESENT = 2  # column of the globals: the fraction of edges present
STATE = ("task", "mask", "f", "change", "step_count")  # all that the next step of a `VectorEnv` depends on


@dataclass(frozen=True)
class EnvConfig:
    """The reward's weights and the episode's length. The defaults are the paper's."""

    w: float = 1.0  # weight of sparsity
    lam: float = 5.0  # λ, the weight of missing faithfulness
    margin: float = 0.0  # δ in τ = c − δ
    already_cut: float = -0.01  # reward for cutting an edge that is already cut
    max_steps: int = 150

    def tau(self, ceiling: float) -> float:
        """τ_i = c_i − δ"""
        return ceiling - self.margin

    def potential(
        self, f: np.ndarray, k: np.ndarray, K: np.ndarray | int, tau: np.ndarray | float
    ) -> np.ndarray:
        """Φ(f, k) = w (1 − k/K) − λ max(0, τ − f)        (equation 3)"""
        return self.w * (1 - k / K) - self.lam * np.maximum(0, tau - f)


@dataclass(frozen=True)
class Task:
    """A behaviour as the agent sees it: an engine on its discovery pairs, and its candidate set."""

    name: str
    engine: Engine
    candidates: np.ndarray  # [K] ascending edges
    features: Features
    ceiling: float  # c, the f of the whole candidate set
    tau: float
    scores: np.ndarray  # [E] attribution, by which the candidates are ranked

    @property
    def K(self) -> int:
        return len(self.candidates)

    @property
    def M(self) -> int:
        return len(self.features.nodes)


def make_task(
    name: str, engine: Engine, candidates: np.ndarray, scores: np.ndarray, config: EnvConfig
) -> Task:
    whole = np.ones((1, len(candidates)), dtype=bool)
    ceiling = float(engine.faithfulness(whole, candidates)[0])
    seen = features(engine.graph, candidates, scores[candidates])
    return Task(name, engine, candidates, seen, ceiling, config.tau(ceiling), scores)


@dataclass
class Actions:
    """One action per environment. `edges` holds the picks of a batch cut in order, then −1."""

    type: np.ndarray  # [n]
    edges: np.ndarray  # [n, 30] indices into the candidates
    node: np.ndarray  # [n] index of a component, for node cuts


@dataclass
class Steps:
    """The result of a step, per environment."""

    reward: np.ndarray  # [n]
    f: np.ndarray  # [n] faithfulness after the step ...
    edges: np.ndarray  # [n] ... and the circuit's size, before any restart
    done: np.ndarray  # [n] bool: stopped, or out of steps


class VectorEnv:
    """`n` episodes in parallel. Each step is one call of the engine with all their circuits.

    When an episode ends, a new one starts, with a random behaviour. A reset costs no pass: the ceiling is known.
    """

    def __init__(self, tasks: Sequence[Task], n: int, config: EnvConfig, rng: np.random.Generator) -> None:
        self.tasks, self.n, self.config, self.rng = list(tasks), n, config, rng
        self.engines = ManyEngines([task.engine for task in tasks], [task.candidates for task in tasks])
        self.K = np.array([task.K for task in tasks])
        self.tau = np.array([task.tau for task in tasks])
        self.ceiling = np.array([task.ceiling for task in tasks])
        self.task = np.zeros(n, dtype=np.int64)
        self.mask = np.zeros((n, self.K.max()), dtype=bool)
        self.f, self.change = np.zeros(n), np.zeros(n)
        self.step_count = np.zeros(n, dtype=np.int64)
        for i in range(n):
            self.reset(i)

    def reset(self, i: int) -> None:
        """Environment i starts a new episode of a random behaviour, with every candidate present."""
        task = self.task[i] = self.rng.integers(len(self.tasks))
        self.mask[i] = np.arange(self.mask.shape[1]) < self.K[task]
        self.f[i], self.change[i], self.step_count[i] = self.ceiling[task], 0.0, 0

    def globals(self) -> np.ndarray:
        """g_t [n, 6]: step fraction, f, fraction of edges present, change of f, ceiling, headroom f − τ."""
        K, tau, ceiling = self.K[self.task], self.tau[self.task], self.ceiling[self.task]
        fraction = self.step_count / self.config.max_steps
        columns = [fraction, self.f, self.mask.sum(1) / K, self.change, ceiling, self.f - tau]
        return np.column_stack(columns).astype(np.float32)

    def step(self, actions: Actions, restart: bool = True) -> Steps:
        """Acts in every environment. With `restart=False` ended episodes stay as they are (deployment)."""
        before = self._potential()
        wasted, changed = self._cut(actions)
        f = self.f.copy()
        if changed.any():
            f[changed] = self.engines.faithfulness(self.task[changed], self.mask[changed])
        self.change, self.f = f - self.f, f
        stopped = actions.type == STOP
        self.step_count += ~stopped
        reward = self._potential() - before + self.config.already_cut * wasted  # equation 4
        done = stopped | (self.step_count >= self.config.max_steps)
        steps = Steps(reward, f.copy(), self.mask.sum(1), done)
        if restart:
            for i in np.flatnonzero(done):
                self.reset(int(i))
        return steps

    def _potential(self) -> np.ndarray:
        return self.config.potential(self.f, self.mask.sum(1), self.K[self.task], self.tau[self.task])

    def _cut(self, actions: Actions) -> tuple[np.ndarray, np.ndarray]:
        """Applies the cuts. Returns [n] bool: whether an action cut an edge that was already cut, and whether it cut anything."""
        wasted, changed = np.zeros(self.n, dtype=bool), np.zeros(self.n, dtype=bool)
        for i in np.flatnonzero(actions.type != STOP):
            if actions.type[i] == NODE:
                parent = self.tasks[self.task[i]].features.parent
                places = np.flatnonzero(parent == actions.node[i])
                wasted[i] = not self.mask[i, places].any()
            else:
                places = actions.edges[i, : BATCH_SIZES[actions.type[i]]]
                wasted[i] = not self.mask[i, places].all() or len(np.unique(places)) < len(places)
            changed[i] = self.mask[i, places].any()
            self.mask[i, places] = False
        return wasted, changed
