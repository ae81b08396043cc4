"""From a behaviour and a model to a task for the agent: discovery pairs, candidates, ceiling.

The features carry the score by the behaviour's metric, whatever the candidates were chosen by. `spare` leaves out what attribution is
sure of: it need not cost the agent its steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from mechrl import gate
from mechrl.behaviours import DISCOVERY_SEED, Behaviour, behaviours, get_behaviour
from mechrl.candidates import candidates_of, discovery_pairs, metrics_of, scores_of
from mechrl.engine import Engine
from mechrl.errors import MechRLError
from mechrl.models.base import Model
from mechrl.names import PREFILTERS, Prefilter, one_of
from mechrl.rl.env import RewardSettings, Task, make_task

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
        one_of("prefilter", self.prefilter, PREFILTERS)
        if self.pairs < 1 or self.k < 1:
            raise MechRLError("the numbers of pairs and of candidates must be at least 1")
        for name, value in (("spare", self.spare), ("reach", self.reach)):
            if not 0 <= value < 1:
                raise MechRLError(f"{name} must lie between 0 and 1, not be {value:g}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def task_of(model: Model, behaviour: Behaviour, settings: TaskSettings, reward: RewardSettings) -> Task:
    """The behaviour as the agent meets it. Its engine has been charged for the prefilter and the ceiling."""
    pairs = discovery_pairs(model, behaviour, settings.pairs, DISCOVERY_SEED)
    exact = Engine(model, pairs)  # scores decide what the agent may keep, and are computed once
    scores = scores_of(exact, pairs, metrics_of(behaviour.metric, settings.prefilter))
    candidates = candidates_of(exact, scores, settings.k, settings.spare, settings.reach)
    engine = Engine(model, pairs, tf32=True, half=True, ledger=exact.ledger) if settings.half else exact
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
