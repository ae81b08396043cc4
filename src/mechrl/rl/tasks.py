"""From a behaviour and a model to a task for the agent: discovery pairs, prefilter, candidates, ceiling.

The paper's prefilter: EAP-IG on inputs with five steps and the behaviour's own metric (KL where that is its metric), the K edges
of highest |score|. `union` adds the K best by KL: on some models the metric's best edges alone do not reach a useful ceiling.
The features carry the metric's score either way. With `spare` the lowest candidates are left out again, as many as f can spare: what
attribution can tell without doubt need not cost the agent its steps. With `reach` there are more of them where k are not enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from mechrl import attribution, gate
from mechrl.behaviours import DISCOVERY_SEED, Behaviour, behaviours, get_behaviour
from mechrl.behaviours.base import Metric
from mechrl.engine import Engine
from mechrl.errors import MechRLError
from mechrl.models.base import Model
from mechrl.rl.env import RewardSettings, Task, make_task
from mechrl.search.select import candidate_set

Prefilter = Literal["metric", "kl", "union"]
_SPLITS = ("train", "held-out", "all")
HIGHEST_REACH = 0.99  # what candidates are asked for at most


@dataclass(frozen=True)
class TaskSettings:
    """What determines a task, besides the model and the behaviour. The pairs are always those of the discovery seed."""

    pairs: int = 20
    k: int = 3000  # candidates by each score
    prefilter: Prefilter = "metric"
    half: bool = False  # rollouts in half precision, see `Engine`; scores are exact either way
    spare: float = 0.0  # how far below that of k candidates f may be with fewer of them
    reach: float = 0.0  # k is doubled until the candidates' f is at least this

    def __post_init__(self) -> None:
        if self.prefilter not in get_args(Prefilter):
            raise MechRLError(
                f"unknown prefilter {self.prefilter!r}; choose one of {', '.join(get_args(Prefilter))}"
            )
        if self.pairs < 1 or self.k < 1:
            raise MechRLError("the numbers of pairs and of candidates must be at least 1")
        for name, value in (("spare", self.spare), ("reach", self.reach)):
            if not 0 <= value < 1:
                raise MechRLError(f"{name} must lie between 0 and 1, not be {value:g}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def task_of(model: Model, behaviour: Behaviour, settings: TaskSettings, reward: RewardSettings) -> Task:
    """The behaviour as the agent meets it. Its engine has been charged for the prefilter and the ceiling."""
    if model.tokenizer is None:
        raise MechRLError(f"model {model.name!r} has no tokenizer, so no pairs can be made for it")
    pairs = behaviour.pairs(
        model.tokenizer, settings.pairs, DISCOVERY_SEED, part="discovery", n_ctx=model.spec.n_ctx
    )
    exact = Engine(model, pairs)  # scores decide what the agent may keep, and are computed once
    metrics: list[Metric] = ["kl"] if settings.prefilter == "kl" else [behaviour.metric]
    if settings.prefilter == "union" and behaviour.metric != "kl":
        metrics.append("kl")
    scores = [attribution.cached(exact, pairs, metric) for metric in metrics]
    candidates = candidates_of(exact, scores, settings.k, settings.spare, settings.reach)
    engine = Engine(model, pairs, tf32=True, half=True) if settings.half else exact
    engine.passes = exact.passes
    return make_task(behaviour.name, engine, candidates, scores, reward)


def aimed(
    task: Task, aim: float, settings: TaskSettings, reward: RewardSettings
) -> tuple[Task, TaskSettings]:
    """The same task with another target, and with more candidates where its own do not reach that with the agent's margin; and settings
    that these candidates come from. Near f = 1 the margin is but a third of what is left: the last thousandths of f cost thousands of
    candidates, in which the agent finds its way less well.
    """
    reach = min(aim + min(reward.margin, (1 - aim) / 3), HIGHEST_REACH)
    if task.ceiling < reach:
        wider = replace(settings, k=max(settings.k, task.K), reach=reach)
        candidates = candidates_of(task.engine, task.scores, wider.k, wider.spare, wider.reach)
        if len(candidates) > task.K:
            settings = wider
            task = make_task(task.name, task.engine, candidates, task.scores, reward)
    return replace(task, tau=aim), settings


def candidates_of(
    engine: Engine, scores: Sequence[np.ndarray], k: int, spare: float, reach: float = 0.0
) -> np.ndarray:
    """The `k` best edges by each score, doubled until they `reach` enough; then the fewest, by bisection, whose f is at most `spare`
    lower and still enough, and none dead."""
    best, all_edges = candidate_set(scores, k), engine.graph.n_edges
    if not (spare or reach):
        return best

    def f(candidates: np.ndarray) -> float:
        return float(engine.faithfulness(np.ones((1, len(candidates)), dtype=bool), candidates)[0])

    highest = f(best)
    while reach and highest < reach and k < all_edges:
        k = min(2 * k, all_edges)
        best = candidate_set(scores, k)
        highest = f(best)
    if not spare:
        return best
    least = max(highest - spare, min(highest, reach)) if reach else highest - spare
    low, high = 1, min(k, all_edges)
    while high > 1.05 * low + 1:
        middle = round((low * high) ** 0.5)
        fewer = candidate_set(scores, middle)
        if f(fewer) >= least:
            high, best = middle, fewer
        else:
            low = middle
    alive = engine.graph.prune(np.ones(len(best), dtype=bool), best)
    return best[alive] if alive.any() else best


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
    """The behaviours to train on: of a split those that the model exhibits, of named ones all, or none if one of them is not."""
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
