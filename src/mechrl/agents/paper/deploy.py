"""Deployment: a frozen policy finds a circuit (the paper's sections 5.1 and 5.3).

Sixteen sampled episodes and a greedy one run in parallel. The last mask of each is a circuit; the most faithful of these is the result,
whatever its size.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mechrl.agents.paper.env import (
    BATCH_SIZES,
    MAX_PICKS,
    NODE,
    STATE,
    STOP,
    Actions,
    EnvConfig,
    Task,
    VectorEnv,
)
from mechrl.agents.paper.policy import Policy
from mechrl.agents.paper.policy_batched import Actor
from mechrl.agents.paper.policy_tables import States, Tables
from mechrl.agents.paper.tasks import TaskSettings, task_of
from mechrl.behaviours import DISCOVERY_SEED, TEST_SEED, Behaviour
from mechrl.circuit import Circuit
from mechrl.errors import MechRLError
from mechrl.files import write_atomically
from mechrl.files.reading import parse_json
from mechrl.files.saving import Saving
from mechrl.files.sealed import read_sealed, sealed
from mechrl.models.base import Model
from mechrl.ranges import check_seed
from mechrl.search.fresh_pairs import fresh
from mechrl.search.problem import Interrupted

ROLLOUTS = 16  # sampled ones; the greedy one is extra
_SAVE_EVERY = 10.0  # seconds
_HISTORY = ("type", "edges", "node")

Report = Callable[[int, str], None]  # the step just done, and a line about it


@dataclass(frozen=True)
class Deployment:
    """What to deploy. The agent aims at its own target, τ_i = c_i − δ; `tau` is only used to report whether the circuit reaches it."""

    tau: float = 0.9
    rollouts: int = ROLLOUTS
    seed: int = 0
    method: str = "paper"
    about: Mapping[str, Any] = field(default_factory=dict)  # further facts for the circuit's file
    passes_before: float = 0.0  # spent on this circuit but not charged to the task's engine
    seconds_before: float = 0.0


@dataclass(frozen=True)
class Watch:
    """`report` is called after every step; with `path` the state is saved every few seconds; if `stopping()`, `Interrupted` is raised."""

    report: Report = lambda step, line: None
    path: Path | None = None
    stopping: Callable[[], bool] = lambda: False


NOBODY = Watch()


@dataclass(frozen=True)
class Trajectory:
    """One rollout. `f` and `size` begin with the whole candidate set."""

    mask: np.ndarray  # [K] bool, the circuit at the end
    f: np.ndarray  # [steps + 1]
    size: np.ndarray  # [steps + 1]
    cuts: tuple[tuple[int, ...], ...]  # [steps] the candidates that each action cut, in order


class Rollouts:
    """`n` sampled episodes and a greedy one, the last, in parallel. They can be interrupted after any step and resumed."""

    def __init__(self, policy: Policy, task: Task, config: EnvConfig, n: int, seed: int) -> None:
        device = next(policy.parameters()).device
        self.task, self.n, self.seed = task, n, check_seed(seed)
        self.env = VectorEnv([task], n + 1, config, np.random.default_rng(0))
        self.actor = Actor(policy, Tables.of([task], device))
        self.generator = torch.Generator(device).manual_seed(seed)
        self.device = device
        self.running = np.ones(n + 1, dtype=bool)
        self.actions: list[Actions] = []
        self.f = [self.env.f.copy()]
        self._passes, self._began, self._seconds = task.engine.passes, time.perf_counter(), 0.0

    def step(self) -> None:
        """One step of every running episode; ended ones do not change."""
        env = self.env
        states = States.of(env.task, env.mask, env.globals(), self.device)
        actions = self.actor.act(states[self.n :], greedy=True).actions
        if self.n:
            drawn = self.actor.act(states[: self.n], self.generator).actions
            pairs = ((drawn.type, actions.type), (drawn.edges, actions.edges), (drawn.node, actions.node))
            actions = Actions(*(np.concatenate(pair) for pair in pairs))
        actions.type[~self.running] = STOP
        self.running &= ~env.step(actions, restart=False).done
        self.actions.append(actions)
        self.f.append(env.f.copy())

    def run(self, watch: Watch = NOBODY) -> list[Trajectory]:
        """To the end, from where `watch.path` has them if it does."""
        path = watch.path
        if path is not None:
            self.restore(path)
        saving, last = Saving(), time.monotonic()
        while self.running.any():
            self.step()
            edges, f = self.env.mask.sum(1).mean(), self.env.f.mean()
            watch.report(
                len(self.actions), f"step {len(self.actions)}, {edges:,.0f} edges left, f {f:.3f} on average"
            )
            asked = watch.stopping()  # once: the answer may change between two calls
            if path is not None and (asked or time.monotonic() - last > _SAVE_EVERY):
                content, last = self._to_bytes(), time.monotonic()
                saving.attempt(lambda content=content: write_atomically(path, content))  # type: ignore[misc]
            if asked:
                raise Interrupted
        return [self._episode(i) for i in range(self.n + 1)]

    @property
    def seconds_before(self) -> float:
        """Seconds spent by earlier processes."""
        return self._seconds

    def _episode(self, i: int) -> Trajectory:
        cuts: list[tuple[int, ...]] = []
        mask = np.ones(self.task.K, dtype=bool)
        size = [self.task.K]
        for actions in self.actions:
            kind = actions.type[i]
            if kind == STOP:
                break
            if kind == NODE:
                cut = np.flatnonzero(mask & (self.task.features.parent == actions.node[i]))
            else:
                cut = actions.edges[i, : BATCH_SIZES[kind]]
            mask[cut] = False
            cuts.append(tuple(cut.tolist()))
            size.append(int(mask.sum()))
        f = np.array([f[i] for f in self.f[: len(size)]])
        return Trajectory(mask, f, np.array(size), tuple(cuts))

    # ---- interrupting and resuming -----------------------------------------------------------------------------------

    def _of(self) -> dict[str, np.ndarray]:
        """What identifies these rollouts."""
        return {
            "candidates": self.task.candidates,
            "tau": np.array(self.task.tau),
            "seed": np.array([self.n, self.seed]),
        }

    def _to_bytes(self) -> bytes:
        arrays = self._of() | {f"env.{name}": getattr(self.env, name) for name in STATE}
        arrays |= {
            "running": self.running,
            "f": np.array(self.f),
            "generator": self.generator.get_state().numpy(),
        }
        arrays |= {name: np.array([getattr(a, name) for a in self.actions]) for name in _HISTORY}
        seconds = self._seconds + time.perf_counter() - self._began
        spent = {"passes": self.task.engine.passes - self._passes, "seconds": seconds}
        return sealed(arrays, {"spent": json.dumps(spent)})

    def restore(self, path: Path) -> bool:
        """Restores the saved state. If the file is damaged or belongs to other rollouts, changes nothing and returns False: that only
        costs time."""
        try:
            arrays, texts = read_sealed(path)
            spent = {key: float(value) for key, value in parse_json(texts["spent"]).items()}
            if not self._fits(arrays) or not all(0 <= spent[key] < np.inf for key in ("passes", "seconds")):
                return False
            self.generator.set_state(torch.from_numpy(arrays["generator"].copy()))
        except (MechRLError, OSError, KeyError, TypeError, ValueError, AttributeError, RuntimeError):
            return False
        for name in STATE:
            setattr(self.env, name, arrays[f"env.{name}"].copy())
        self.running, self.f = arrays["running"].copy(), list(arrays["f"])
        self.actions = [Actions(*parts) for parts in zip(*(arrays[name] for name in _HISTORY), strict=True)]
        self.task.engine.ledger.restore(self._passes + spent["passes"])
        self._seconds = spent["seconds"]
        return True

    def _fits(self, arrays: dict[str, np.ndarray]) -> bool:
        """Whether the arrays are a state of these rollouts."""
        n, steps = self.n + 1, len(arrays["type"])
        shapes = {f"env.{name}": getattr(self.env, name).shape for name in STATE} | {"running": (n,)}
        shapes |= {
            "type": (steps, n),
            "edges": (steps, n, MAX_PICKS),
            "node": (steps, n),
            "f": (steps + 1, n),
        }
        same = all(np.array_equal(arrays[key], value) for key, value in self._of().items())
        return same and all(arrays[name].shape == shape for name, shape in shapes.items())


def discover(
    model: Model,
    behaviour: Behaviour,
    policy: Policy,
    settings: TaskSettings = TaskSettings(),  # noqa: B008 (frozen)
    env: EnvConfig = EnvConfig(),  # noqa: B008 (frozen)
    deployment: Deployment = Deployment(),  # noqa: B008 (frozen)
    watch: Watch = NOBODY,
) -> Circuit:
    """Finds a circuit with a policy, from scratch: pairs, prefilter, rollouts, choice."""
    began = time.perf_counter()
    task = task_of(model, behaviour, settings, env)
    deployment = replace(deployment, seconds_before=time.perf_counter() - began)
    return deploy(model, behaviour, task, policy, settings, env, deployment, watch)


def deploy(
    model: Model,
    behaviour: Behaviour,
    task: Task,
    policy: Policy,
    settings: TaskSettings,
    env: EnvConfig,
    deployment: Deployment,
    watch: Watch = NOBODY,
) -> Circuit:
    """The same for an existing task; passes that its engine was already charged are part of the cost."""
    began = time.perf_counter()
    running = Rollouts(policy, task, env, deployment.rollouts, deployment.seed)
    episodes = running.run(watch)
    best = int(np.argmax([episode.f[-1] for episode in episodes]))  # the paper's choice
    chosen = episodes[best]
    mask = np.zeros(model.graph.n_edges, dtype=bool)
    mask[task.candidates[chosen.mask]] = True
    passes = task.engine.passes + deployment.passes_before
    seconds = deployment.seconds_before + running.seconds_before + time.perf_counter() - began
    kind = "greedy" if best == deployment.rollouts else "sampled"
    known = settings.to_json() | {"pairs_seed": DISCOVERY_SEED} | dict(deployment.about)
    known |= {
        "rollouts": deployment.rollouts,
        "candidates": task.K,
        "ceiling": task.ceiling,
        "agent_tau": task.tau,
    }
    known["note"] = f"{kind} rollout of {len(chosen.cuts)} steps, the most faithful of {len(episodes)}"
    return Circuit(
        model=model.name,
        checksum=model.checksum,
        commit=model.commit,
        graph=model.graph,
        d_model=model.spec.d_model,
        behaviour=behaviour.name,
        method=deployment.method,
        settings=known,
        tau=deployment.tau,
        seed=deployment.seed,
        pairs=task.engine.n_pairs,
        mask=mask,
        faithfulness=float(chosen.f[-1]),
        faithfulness_test=float(fresh(model, behaviour, TEST_SEED).faithfulness(mask)[0]),
        order=tuple(int(task.candidates[c]) for cut in chosen.cuts for c in cut),
        passes=round(passes, 6),
        seconds=seconds,
        attribution=task.scores,
        rows=behaviour.rows(),
        bos=model.tokenizer is not None and model.tokenizer.bos is not None,
    )
