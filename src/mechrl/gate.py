"""The gate: does the model exhibit the behaviour at all? There is no circuit for something it does not do.

On test pairs, the model must prefer an answer to every foil on at least `MIN_ACCURACY` of them, give the answers at least `MIN_P_ANSWER`
of its probability, and change its prediction by at least `MIN_KL_CUT` nats when the prompt is corrupted (KL(clean ‖ corrupted) at the
prediction position, mean over pairs). Below `MIN_KL_CUT`, f = 1 − KL / KL_cut divides by next to nothing; with hardly any probability on
the answers, f would measure everything else. A behaviour that is weak, or rests on few rows, passes with a warning.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from mechrl.behaviours import PARTS, TEST_SEED, Behaviour
from mechrl.behaviours.base import ENOUGH, Pairs, accuracy, metric_value
from mechrl.behaviours.custom import recurring
from mechrl.engine import Engine
from mechrl.errors import MechRLError
from mechrl.models.base import Model

MIN_ACCURACY = 0.8
MIN_KL_CUT = 0.3
MIN_P_ANSWER = 0.01
N_PAIRS = 50

_WEAK_P_ANSWER, _WEAK_TOP1 = 0.1, 0.3
_OTHER_PAIRS = 16  # to see what the other choice of a first token would do
_FAR_BETTER = 0.25  # in accuracy or in top-1


@dataclass(frozen=True)
class Verdict:
    """What the model does on a behaviour's pairs. Numbers are None if the pairs cannot be built."""

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
    top1: float | None = None  # share of pairs whose likeliest token is a right answer
    opener: str = ""  # the token that every prompt began with; empty if none
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As `mechrl behaviours --json` prints it."""
        return asdict(self) | {"warnings": list(self.warnings)}


def judge(model: Model, behaviour: Behaviour, n: int = N_PAIRS, seed: int = TEST_SEED) -> Verdict:
    """Runs the model on `n` fresh pairs of a behaviour, clean and corrupted, and judges it.

    A broken file raises a `FileError`; it says nothing about the model.
    """
    head = (behaviour.name, behaviour.family, behaviour.split, behaviour.metric)
    if model.tokenizer is None:
        raise MechRLError(f"model {model.name!r} has no tokenizer, so it cannot be asked anything")
    opener = model.tokenizer.opening
    try:
        pairs = behaviour.pairs(model.tokenizer, n, seed, n_ctx=model.spec.n_ctx)
    except MechRLError as exc:
        if behaviour.rows():
            raise
        return Verdict(*head, 0, None, None, None, None, None, False, str(exc), opener=opener)
    engine = Engine(model, pairs)
    clean, corrupt = engine.clean_logits, engine.corrupt_logits
    right, top1, p_answer = _scores(clean, pairs, behaviour)
    reasons = []
    if right < MIN_ACCURACY:
        reasons.append(f"accuracy {right:.2f} < {MIN_ACCURACY}")
    if p_answer < MIN_P_ANSWER:
        reasons.append(f"P(answer) {p_answer:.3f} < {MIN_P_ANSWER}")
    if engine.kl_cut < MIN_KL_CUT:
        reasons.append(f"KL_cut {engine.kl_cut:.2f} < {MIN_KL_CUT}")
    warnings = of_rows(behaviour) + _weak(right, p_answer, top1, clean, pairs, model)
    warnings += _other_opener(model, behaviour, seed, right, top1)
    on_clean, on_corrupt = (
        float(metric_value(behaviour.metric, x, pairs, clean).mean()) for x in (clean, corrupt)
    )
    why, measured = "; ".join(reasons), (right, on_clean, on_corrupt, p_answer, engine.kl_cut)
    return Verdict(*head, len(pairs), *measured, not reasons, why, top1, opener, tuple(warnings))


def check(model: Model, behaviour: Behaviour) -> Verdict:
    """Refuses a behaviour that the model does not exhibit. Offers `--force` where that can help."""
    verdict = judge(model, behaviour)
    if not verdict.exhibited:
        if not verdict.pairs:
            raise MechRLError(f"model {model.name!r}: {verdict.reason}")
        advice = "".join(f"; {line}" for line in verdict.warnings if "--bos" in line)
        raise MechRLError(
            f"model {model.name!r} does not exhibit {behaviour.name!r} ({verdict.reason}){advice}; "
            f"see `mechrl behaviours -b {behaviour.asked_as} --model {model.name}`, or insist with --force"
        )
    return verdict


def of_rows(behaviour: Behaviour) -> list[str]:
    """Warnings about the rows of a file that need no model."""
    if not isinstance(behaviour.source, tuple):
        return []
    rows, found = behaviour.source, []
    spaces = [
        row.where for row in rows if row.clean != row.clean.rstrip() or row.corrupt != row.corrupt.rstrip()
    ]
    if spaces:
        more = f" and {len(spaces) - 1} more rows" if len(spaces) > 1 else ""
        found.append(
            f"{spaces[0]}{more}: the prompt ends with a space, which belongs to the answer (' older', not 'older')"
        )
    size = Counter(row.part for row in rows)
    if few := [f"{size[part]} {part}" for part in PARTS if size[part] < ENOUGH]:
        found.append(
            f"only {', '.join(few)} pairs: forty rows give every part ten; with fewer, f is that of these very rows"
        )
    if repeats := recurring(rows):
        found.append(
            f"{repeats} test pairs share a corrupted prompt with another part; no clean prompt is in two parts"
        )
    return found


def _scores(logits: torch.Tensor, pairs: Pairs, behaviour: Behaviour) -> tuple[float, float, float]:
    """Accuracy, top-1 and P(answer) of logits [B, V]."""
    probability, best = logits.softmax(-1), logits.argmax(-1).tolist()
    p_answer = torch.stack([probability[i, list(a)].sum() for i, a in enumerate(pairs.answers)]).mean()
    top1 = sum(token in answers for token, answers in zip(best, pairs.answers, strict=True)) / len(pairs)
    return float(accuracy(logits, pairs, behaviour.metric)), top1, float(p_answer)


def _weak(
    right: float, p_answer: float, top1: float, clean: torch.Tensor, pairs: Pairs, model: Model
) -> list[str]:
    if right < MIN_ACCURACY or (p_answer >= _WEAK_P_ANSWER and top1 >= _WEAK_TOP1):
        return []
    assert model.tokenizer is not None
    token, times = Counter(clean.argmax(-1).tolist()).most_common(1)[0]
    said = f"most often it says {model.tokenizer.decode([token])!r} ({times} of {len(pairs)})"
    return [
        f"P(answer) {p_answer:.2f}, top-1 {top1:.2f}: the model prefers the answer to the foil but seldom says it; {said}"
    ]


def _other_opener(model: Model, behaviour: Behaviour, seed: int, right: float, top1: float) -> list[str]:
    """A warning if the model does far better with the other choice of first token."""
    tokenizer = model.tokenizer
    assert tokenizer is not None
    if (
        tokenizer.opener is None or min(right, top1) > 1 - _FAR_BETTER
    ):  # there is no other, or it cannot be far better
        return []
    choice = "yes" if tokenizer.bos is None else "no"
    pairs = behaviour.pairs(tokenizer.opened(choice), _OTHER_PAIRS, seed, n_ctx=model.spec.n_ctx)
    other, other_top1, _ = _scores(
        Engine(replace(model, tokenizer=None), pairs).clean_logits, pairs, behaviour
    )
    better, worse = max(other - right, other_top1 - top1), min(other - right, other_top1 - top1)
    if better < _FAR_BETTER or worse < -_FAR_BETTER / 2:
        return []
    what = (
        f"with {tokenizer.opener_text!r} in front"
        if choice == "yes"
        else f"without {tokenizer.opener_text!r} in front"
    )
    return [
        f"{what} accuracy is {other:.2f} instead of {right:.2f}, top-1 {other_top1:.2f} instead of {top1:.2f}: try --bos {choice}"
    ]
