"""Acronyms: `The Federal Reserve Board (FR` → B. Corrupted: another third word, with another initial."""

from __future__ import annotations

from random import Random

from mechrl.behaviours.base import Behaviour, Lexicon, Row, Unbuildable, known
from mechrl.behaviours.lists import ACRONYM_WORDS

_DRAWS = 1000


def draw(lexicon: Lexicon, rng: Random) -> Row:
    words = lexicon.single(ACRONYM_WORDS, "capitalised words", at_least=4)
    for _ in range(_DRAWS):
        first, second, third, other = rng.sample(words, 4)
        opened, letter, foil = f" ({first[0]}{second[0]}", third[0], other[0]
        if letter != foil and all(lexicon.continues(opened, end) for end in (letter, foil)):
            frame = f"The {first} {second} {{}}{opened}"
            return Row(frame.format(third), frame.format(other), (letter,), (foil,))
    raise Unbuildable("the last letter of an acronym is never a token of its own")


GARCIA = "García-Carrasco et al. 2024"
BEHAVIOURS = (
    Behaviour(
        name="acronyms",
        family="acronyms",
        split="held-out",
        metric="logit-difference",
        description="ends an acronym with the third word's initial: 'The Federal Reserve Board (FR' → B",
        source=draw,
        known=(
            *known("letter mover", GARCIA, "high", "8.11 9.9 10.10 11.4"),
            *known("previous token", GARCIA, "high", "1.0 2.2 4.11"),
            *known("propagation", GARCIA, "high", "5.8"),
        ),
    ),
)
