"""Gendered pronoun: `So [name] is a really great friend, isn't` → he or she. Corrupted: a name of the other gender."""

from __future__ import annotations

from random import Random

from mechrl.behaviours.base import Behaviour, Lexicon, Row, known
from mechrl.behaviours.lists import FEMALE_NAMES, MALE_NAMES

FRAME = "So {name} is a really great friend, isn't"


def draw(lexicon: Lexicon, rng: Random) -> Row:
    he = (rng.choice(lexicon.single(MALE_NAMES, "male names")), " he")
    she = (rng.choice(lexicon.single(FEMALE_NAMES, "female names")), " she")
    (name, answer), (other, foil) = rng.sample((he, she), 2)
    return Row(FRAME.format(name=name), FRAME.format(name=other), (answer,), (foil,))


BEHAVIOURS = (
    Behaviour(
        name="gendered-pronoun",
        family="gendered-pronoun",
        split="held-out",
        metric="logit-difference",
        description='takes the pronoun of a name: "So Dave is a really great friend, isn\'t" → he, not she',
        source=draw,
        known=known("circuit", "Mathwin & Corlouer 2023", "medium", "0.4 2.6 4.3 6.0 9.7 10.9 11.8"),
    ),
)
