"""Indirect object identification: two names, one repeated; the other receives. Corrupted: three other names.

Clean prompts are ABBA: `When [A] and [B] went to the store, [B] gave a drink to` → A, foil B.
"""

from __future__ import annotations

from functools import partial
from random import Random

from mechrl.behaviours.base import Behaviour, Lexicon, Row, known
from mechrl.behaviours.lists import FEMALE_NAMES, MALE_NAMES, OBJECTS, PLACES

NAMES = MALE_NAMES + FEMALE_NAMES

FRAMES = (
    "When {a} and {b} went to the {place}, {c} gave a {object} to",
    "After {a} and {b} went to the {place}, {c} gave a {object} to",
    "Then, {a} and {b} had a long argument. Afterwards {c} said to",
    "Friends {a} and {b} found a {object} at the {place}. {c} gave it to",
)


def draw(frame: str, lexicon: Lexicon, rng: Random) -> Row:
    a, b, x, y, z = rng.sample(lexicon.single(NAMES, "names", at_least=5), 5)
    place = rng.choice(lexicon.single(PLACES, "places", at_least=1))
    thing = rng.choice(lexicon.single(OBJECTS, "objects", at_least=1))
    clean = frame.format(a=a, b=b, c=b, place=place, object=thing)
    corrupt = frame.format(a=x, b=y, c=z, place=place, object=thing)
    return Row(clean, corrupt, (f" {a}",), (f" {b}",))


WANG = "Wang et al. 2022"
KNOWN = (
    *known("name mover", WANG, "high", "9.9 10.0 9.6"),
    *known("backup name mover", WANG, "high", "10.10 10.6 10.2 10.1 11.2 9.7 9.0 11.9"),
    *known("negative name mover", WANG, "high", "10.7 11.10"),
    *known("S-inhibition", WANG, "high", "7.3 7.9 8.6 8.10"),
    *known("induction", WANG, "high", "5.5 5.8 5.9 6.9"),
    *known("duplicate token", WANG, "high", "0.1 0.10 3.0"),
    *known("previous token", WANG, "high", "2.2 4.11"),
)

BEHAVIOURS = tuple(
    Behaviour(
        name="ioi" if i == 1 else f"ioi-{i}",
        family="ioi",
        split="train",
        metric="logit-difference",
        description=f"names the indirect object: {frame.format(a='A', b='B', c='B', place='bar', object='cup')!r} → A",
        source=partial(draw, frame),
        known=KNOWN,
    )
    for i, frame in enumerate(FRAMES, 1)
)
