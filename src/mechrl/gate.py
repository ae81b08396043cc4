"""The gate: does the model at hand show a behaviour at all? Nobody should prune a model for something it does not do.

A behaviour is *exhibited* if, on test pairs, the model is right on at least `MIN_ACCURACY` of them and corrupting the prompt
changes its prediction by at least `MIN_KL_CUT` nats (KL(clean ‖ corrupted) at the prediction position, mean over pairs). With
less than that, f = 1 − KL / KL_cut divides by next to nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from mechrl.behaviours import TEST_SEED, Behaviour
from mechrl.behaviours.base import accuracy, metric_value
from mechrl.engine import Engine
from mechrl.errors import MechRLError
from mechrl.models.base import Model

MIN_ACCURACY = 0.8
MIN_KL_CUT = 0.3
N_PAIRS = 50


@dataclass(frozen=True)
class Verdict:
    """What the model does with a behaviour's pairs. Numbers are None where the pairs cannot be built."""

    name: str
    family: str
    split: str
    metric: str  # the behaviour's own measure; higher is more of the behaviour
    pairs: int
    accuracy: float | None
    metric_clean: float | None
    metric_corrupt: float | None
    p_answer: float | None  # probability of the right answers together
    kl_cut: float | None
    exhibited: bool
    reason: str  # why not, in a few words; empty if it is

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def judge(model: Model, behaviour: Behaviour, n: int = N_PAIRS, seed: int = TEST_SEED) -> Verdict:
    """Runs the model on `n` fresh pairs of a behaviour, clean and corrupted, and judges it."""
    head = (behaviour.name, behaviour.family, behaviour.split, behaviour.metric)
    if model.tokenizer is None:
        raise MechRLError(f"model {model.name!r} has no tokenizer, so it cannot be asked anything")
    try:
        pairs = behaviour.pairs(model.tokenizer, n, seed, n_ctx=model.spec.n_ctx)
    except MechRLError as exc:
        return Verdict(*head, 0, None, None, None, None, None, False, str(exc))
    engine = Engine(model, pairs)
    clean, corrupt = engine.clean_logits, engine.corrupt_logits
    probability = clean.softmax(-1)
    p_answer = torch.stack([probability[i, list(a)].sum() for i, a in enumerate(pairs.answers)]).mean()
    right = float(accuracy(clean, pairs, behaviour.metric))
    reasons = []
    if right < MIN_ACCURACY:
        reasons.append(f"accuracy {right:.2f} < {MIN_ACCURACY}")
    if engine.kl_cut < MIN_KL_CUT:
        reasons.append(f"KL_cut {engine.kl_cut:.2f} < {MIN_KL_CUT}")
    on_clean, on_corrupt = (float(metric_value(behaviour.metric, x, pairs, clean).mean()) for x in (clean, corrupt))
    why = "; ".join(reasons)
    return Verdict(*head, len(pairs), right, on_clean, on_corrupt, float(p_answer), engine.kl_cut, not reasons, why)


def check(model: Model, behaviour: Behaviour) -> None:
    """Refuses a behaviour that the model does not exhibit."""
    verdict = judge(model, behaviour)
    if not verdict.exhibited:
        raise MechRLError(
            f"model {model.name!r} does not exhibit {behaviour.name!r} ({verdict.reason}); "
            f"see `mechrl behaviours --model {model.name}`, or insist with --force"
        )
