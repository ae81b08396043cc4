"""Behaviours: the paper's nineteen, other wordings of them, induction, relations, and your own from a file."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel

from mechrl.behaviours import (
    acronyms,
    country_capital,
    docstring,
    gendered_pronoun,
    greater_than,
    induction,
    ioi,
    multiple_choice,
    relations,
    subject_verb,
    syllogism,
)
from mechrl.behaviours.base import (
    DISCOVERY_SEED,
    PARTS,
    TEST_SEED,
    VALIDATION_SEED,
    Behaviour,
    Known,
    Pairs,
    Part,
    Split,
    accuracy,
    metric_value,
)
from mechrl.behaviours.custom import SUFFIXES, load_behaviour
from mechrl.errors import MechRLError

__all__ = [
    "DISCOVERY_SEED",
    "PARTS",
    "TEST_SEED",
    "VALIDATION_SEED",
    "Behaviour",
    "Known",
    "Pairs",
    "Part",
    "accuracy",
    "behaviours",
    "get_behaviour",
    "load_behaviour",
    "metric_value",
    "words",
]

_FAMILIES = (
    ioi,
    greater_than,
    docstring,
    gendered_pronoun,
    subject_verb,
    acronyms,
    syllogism,
    country_capital,
    multiple_choice,
    induction,
)
# In the order of the paper's table; then the other wordings and induction, which it does not have; last the relations.
_TEMPLATES = tuple(
    behaviour
    for split in ("train", "held-out", "extra")
    for family in _FAMILIES
    for behaviour in family.BEHAVIOURS
    if behaviour.split == split
)
_ALL: tuple[Behaviour, ...] = (*_TEMPLATES, *relations.BEHAVIOURS)


def behaviours(split: Split | None = None, with_relations: bool = True) -> tuple[Behaviour, ...]:
    """The built-in behaviours, all or those of a split.

    Without the relations: those that the embedded model was trained on.
    """
    return tuple(b for b in (_ALL if with_relations else _TEMPLATES) if split in (None, b.split))


def get_behaviour(name_or_path: str | Path) -> Behaviour:
    """A built-in behaviour by its name, or your own by its file's path."""
    for behaviour in _ALL:
        if behaviour.name == name_or_path:
            return behaviour
    path = Path(name_or_path)
    if path.suffix.lower() in SUFFIXES or path.exists():
        return load_behaviour(path)
    close = difflib.get_close_matches(str(name_or_path), [behaviour.name for behaviour in _ALL], n=3)
    hint = (
        f"did you mean {' or '.join(close)}?"
        if close
        else "`mechrl behaviours --list` shows the built-in ones;"
    )
    raise MechRLError(
        f"unknown behaviour {str(name_or_path)!r}: {hint} a behaviour file's path ends in {' or '.join(SUFFIXES)}"
    )


class _Listener:
    """A tokenizer that knows every word and records the words it is given."""

    bos = None

    def __init__(self, split: Callable[[str], list[str]]) -> None:
        self.split = split
        self.heard: dict[str, int] = {}
        self.backend = Backend(WordLevel({}, unk_token="<unk>"))

    def encode(self, text: str) -> list[int]:
        return [self.heard.setdefault(word, len(self.heard)) for word in self.split(text)]

    prompt = encode

    def single(self, text: str) -> int | None:
        ids = self.encode(text)
        return ids[0] if len(ids) == 1 else None


def words(split: Callable[[str], list[str]]) -> list[str]:
    """Every word of the built-in behaviours, for a word-level tokenizer that splits text by `split`.

    Excludes the relations, whose words the embedded model does not know.
    """
    listener = _Listener(split)
    for behaviour in _TEMPLATES:
        for part in PARTS:
            behaviour.pairs(listener, 100, part=part)
    return sorted(listener.heard)
