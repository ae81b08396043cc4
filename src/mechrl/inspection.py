"""Checks the rows of a file before a search: parts, lengths, answers, what is wrong, what the model says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mechrl import gate
from mechrl.behaviours import PARTS, Behaviour
from mechrl.engine import Engine
from mechrl.errors import MechRLError
from mechrl.models.base import Model
from mechrl.models.tokenizer import Tokenizer

SHOWN = 8  # pairs that the model is run on


@dataclass(frozen=True)
class Said:
    """What the model says to one clean prompt."""

    clean: str
    answer: str
    p_answer: float  # of all right answers together
    foil: str
    p_foil: float
    top: str  # the likeliest token
    p_top: float
    right: bool  # the likeliest token is an answer


@dataclass(frozen=True)
class Inspection:
    name: str
    rows: int
    metric: str
    parts: dict[str, int]
    lengths: dict[str, int]  # prompt length in tokens, as text, and its number of rows
    answers: tuple[str, ...]
    foils: tuple[str, ...]
    problems: tuple[str, ...]  # with their lines; if there are any, nothing below was measured
    said: tuple[Said, ...] = ()
    verdict: gate.Verdict | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"verdict": None if self.verdict is None else self.verdict.to_json()}


def inspect(model: Model, behaviour: Behaviour, shown: int = SHOWN) -> Inspection:
    """What there is to say about a behaviour's rows in a model. Lists broken rows instead of raising."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise MechRLError(f"model {model.name!r} has no tokenizer, so it cannot be asked anything")
    if not isinstance(behaviour.source, tuple):
        raise MechRLError(
            f"{behaviour.name!r} is a built-in behaviour; give the .jsonl or .csv file of your own"
        )
    rows = behaviour.source
    parts = Counter(str(row.part) for row in rows)
    lengths = Counter(len(tokenizer.prompt(row.clean)) for row in rows)
    facts = dict(
        name=behaviour.name,
        rows=len(rows),
        metric=behaviour.metric,
        parts={part: parts[part] for part in PARTS},
        lengths={str(n): lengths[n] for n in sorted(lengths)},
        answers=tuple(dict.fromkeys(text for row in rows for text in row.answers)),
        foils=tuple(dict.fromkeys(text for row in rows for text in row.foils)),
    )
    problems = behaviour.problems(tokenizer, model.spec.n_ctx)
    problems += [
        f"there are no {part} pairs: add rows with other clean prompts" for part in PARTS if not parts[part]
    ]
    if problems:
        return Inspection(**facts, problems=tuple(problems))  # type: ignore[arg-type]
    pairs = behaviour.pairs(tokenizer, shown, n_ctx=model.spec.n_ctx)
    probability = Engine(model, pairs).clean_logits.softmax(-1)
    said = []
    for i, ((clean, _), answers, foils) in enumerate(
        zip(pairs.texts, pairs.answers, pairs.foils, strict=True)
    ):
        p, token = (float(probability[i].max()), int(probability[i].argmax()))

        def of(ids: Sequence[int], i: int = i) -> float:
            return float(probability[i, list(ids)].sum())

        said.append(
            Said(
                clean,
                _text(tokenizer, answers),
                of(answers),
                _text(tokenizer, foils),
                of(foils),
                tokenizer.decode([token]),
                p,
                token in answers,
            )
        )
    verdict = gate.judge(model, behaviour)
    return Inspection(**facts, problems=(), said=tuple(said), verdict=verdict)  # type: ignore[arg-type]


def _text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The first three tokens, as text."""
    return " ".join(repr(tokenizer.decode([t])) for t in ids[:3]) + (" …" if len(ids) > 3 else "")
