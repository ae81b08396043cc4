"""From behaviours and a model to the agent's tasks: discovery pairs, candidates, ceilings, and the paper's rule for K.

    K is the smallest candidate set whose ceiling reaches 0.9 for every training behaviour        (section 4.2)

Candidates are tried in multiples of a twelfth of the largest tractable set: 3000, scaled with the number of edges for graphs larger than
GPT-2 small's. A behaviour whose ceiling stays below 0.85 even there is left out, as the paper leaves out induction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from mechrl import gate
from mechrl.agents.paper.env import EnvConfig, Task, make_task
from mechrl.behaviours import DISCOVERY_SEED, Behaviour, behaviours, get_behaviour
from mechrl.candidates import candidate_set, discovery_pairs, metrics_of, scores_of
from mechrl.engine import Engine
from mechrl.errors import MechRLError
from mechrl.models.base import Model
from mechrl.names import one_of

PAPERS_K, PAPERS_EDGES = 3000, 32_491  # GPT-2 small
REACHED, LEFT_OUT = 0.9, 0.85  # thresholds for the ceiling
_STEPS = 12
_SPLITS = ("train", "held-out", "all")

ScoredBy = Literal["metric", "kl"]
SCORED_BY: tuple[ScoredBy, ...] = ("metric", "kl")


@dataclass(frozen=True)
class TaskSettings:
    """What determines a task, besides the model and the behaviour. The pairs are always those of the discovery seed."""

    pairs: int = 20
    k: int = PAPERS_K
    prefilter: ScoredBy = "metric"

    def __post_init__(self) -> None:
        one_of("prefilter", self.prefilter, SCORED_BY)
        if self.pairs < 1 or self.k < 1:
            raise MechRLError("the numbers of pairs and of candidates must be at least 1")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Scored:
    """A behaviour's engine, charged for the prefilter, and the scores that rank the edges."""

    behaviour: Behaviour
    engine: Engine
    scores: np.ndarray  # [E]

    @staticmethod
    def of(model: Model, behaviour: Behaviour, settings: TaskSettings) -> Scored:
        pairs = discovery_pairs(model, behaviour, settings.pairs, DISCOVERY_SEED)
        engine = Engine(model, pairs)
        (scores,) = scores_of(engine, pairs, metrics_of(behaviour.metric, settings.prefilter))
        return Scored(behaviour, engine, scores)

    def ceiling(self, k: int) -> float:
        """f of the k best edges."""
        edges = candidate_set([self.scores], k)
        return float(self.engine.faithfulness(np.ones((1, len(edges)), dtype=bool), edges)[0])

    def task(self, k: int, env: EnvConfig) -> Task:
        edges = candidate_set([self.scores], k)
        return make_task(self.behaviour.name, self.engine, edges, self.scores, env)


def task_of(model: Model, behaviour: Behaviour, settings: TaskSettings, env: EnvConfig) -> Task:
    """The task of one behaviour. Its engine has been charged for the prefilter and the ceiling."""
    return Scored.of(model, behaviour, settings).task(settings.k, env)


def training_tasks(
    model: Model,
    chosen: Sequence[Behaviour],
    settings: TaskSettings,
    env: EnvConfig,
    k: int | None,
    report: Callable[[str], None] = lambda line: None,
) -> tuple[list[Task], TaskSettings]:
    """The tasks to train on, and the settings with their K: `k` if given, else by the paper's rule."""
    scored = []
    for behaviour in chosen:
        scored.append(Scored.of(model, behaviour, settings))
        report(f"{behaviour.name}: {model.graph.n_edges:,} edges ranked")
    if k is None:
        k, left_out = papers_k(model.graph.n_edges, {s.behaviour.name: s.ceiling for s in scored})
        for name, ceiling in left_out.items():
            report(f"{name}: LEFT OUT, its ceiling is {ceiling:.3f} with {k:,} candidates")
        scored = [s for s in scored if s.behaviour.name not in left_out]
        if not scored:
            raise MechRLError(
                f"no behaviour reaches a ceiling of {LEFT_OUT:g} with {k:,} candidates; choose another number with --k"
            )
    tasks = [s.task(k, env) for s in scored]
    for task in tasks:
        report(f"{task.name}: {task.K:,} candidates from {task.M} components, ceiling {task.ceiling:.3f}")
    return tasks, replace(settings, k=k)


def papers_k(n_edges: int, ceiling: dict[str, Callable[[int], float]]) -> tuple[int, dict[str, float]]:
    """K by the paper's rule for a model with `n_edges` edges, and the behaviours that are left out, with their ceilings."""
    most = min(n_edges, max(PAPERS_K, round(n_edges * PAPERS_K / PAPERS_EDGES)))
    at_most = {name: f(most) for name, f in ceiling.items()}
    left_out = {name: c for name, c in at_most.items() if c < LEFT_OUT}
    kept = [f for name, f in ceiling.items() if name not in left_out]
    for step in range(1, _STEPS):
        k = max(1, round(most * step / _STEPS))
        if all(f(k) >= REACHED for f in kept):
            return k, left_out
    return most, left_out


def choose_behaviours(names: str) -> list[Behaviour]:
    """`train`, `held-out`, `all` (both), or names and files, comma-separated."""
    if names == "all":
        return [*behaviours("train"), *behaviours("held-out")]
    if names in ("train", "held-out"):
        return list(behaviours(names))  # type: ignore[arg-type]  # the two splits of that name
    chosen = [get_behaviour(name.strip()) for name in names.split(",") if name.strip()]
    if not chosen:
        raise MechRLError(f"no behaviours given; name some, comma-separated, or one of {', '.join(_SPLITS)}")
    repeated = {b.name for b in chosen if sum(c.name == b.name for c in chosen) > 1}
    if repeated:
        raise MechRLError(f"{', '.join(sorted(repeated))}: given more than once")
    return chosen


def exhibited(model: Model, names: str, force: bool, report: Callable[[str], None]) -> list[Behaviour]:
    """The behaviours to train on. From a split: those that the model exhibits. Given by name: all, or an error if one is not exhibited."""
    chosen = choose_behaviours(names)
    if force:
        return chosen
    if names not in _SPLITS:
        for behaviour in chosen:
            gate.check(model, behaviour)
        return chosen
    kept = []
    for behaviour in chosen:
        verdict = gate.judge(model, behaviour)
        if verdict.exhibited:
            kept.append(behaviour)
        else:
            report(f"{behaviour.name}: skipped, {model.name} does not exhibit it ({verdict.reason})")
    if not kept:
        raise MechRLError(
            f"model {model.name!r} exhibits none of these behaviours; see `mechrl behaviours --model {model.name}`"
        )
    return kept
