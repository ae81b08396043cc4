"""Induction: a list of words repeats; the answer is the word that came next the first time. Corrupted: another word came next."""

from __future__ import annotations

from random import Random

from mechrl.behaviours.base import Behaviour, Lexicon, Row
from mechrl.behaviours.lists import OBJECTS

LENGTH = 8


def draw(lexicon: Lexicon, rng: Random) -> Row:
    *words, other = rng.sample(lexicon.single(OBJECTS, "nouns", at_least=LENGTH + 1), LENGTH + 1)
    k = rng.randrange(2, LENGTH)  # at least two words are repeated before the prediction
    frame = "List: {} " + " ".join(words[:k])
    clean = frame.format(" ".join(words))
    corrupt = frame.format(" ".join([*words[:k], other, *words[k + 1 :]]))
    return Row(clean, corrupt, (f" {words[k]}",), (f" {other}",))


BEHAVIOURS = (
    Behaviour(
        name="induction",
        family="induction",
        split="extra",
        metric="logit-difference",
        description="continues a repetition: 'List: cup book lamp … cup book' → lamp, not the word of another list",
        source=draw,
    ),
)
