"""Syllogisms: a statement is true or false, another is like it (simple) or its opposite. Corrupted: the other truth value.

The letters of the statements vary; a pair of letters, in either order and with either truth value, belongs to one part.
"""

from __future__ import annotations

from functools import partial
from random import Random
from string import ascii_uppercase

from mechrl.behaviours.base import Behaviour, Lexicon, Row, known

LETTERS = tuple(ascii_uppercase)

SIMPLE = "Statement {a} is {truth}. Statement {b} matches statement {a}. Statement {b} is"
SAME = "{a} and {b} are the same. If {a} is {truth}, then {b} is also"
OPPOSITE = "Statement {a} and statement {b} are opposite. Statement {a} is {truth}. Statement {b} is"


def draw(frame: str, opposite: bool, lexicon: Lexicon, rng: Random) -> Row:
    a, b = rng.sample(lexicon.single(LETTERS, "letters"), 2)
    truth, other = rng.sample(("true", "false"), 2)
    answer, foil = (other, truth) if opposite else (truth, other)
    clean, corrupt = (frame.format(a=a, b=b, truth=t) for t in (truth, other))
    return Row(clean, corrupt, (f" {answer}",), (f" {foil}",), keys=("".join(sorted(a + b)),))


SARAIPOUR = "Saraipour & Zhang 2025"
SIMPLE_KNOWN = known("circuit", SARAIPOUR, "medium", "7.2 9.1 9.9 10.1 10.4")
BEHAVIOURS = (
    Behaviour(
        name="simple-syllogism",
        family="simple-syllogism",
        split="held-out",
        metric="logit-difference",
        description="carries truth over: 'Statement A is true. Statement B matches statement A. Statement B is' → true",
        source=partial(draw, SIMPLE, False),
        known=SIMPLE_KNOWN,
    ),
    Behaviour(
        name="opposite-syllogism",
        family="opposite-syllogism",
        split="held-out",
        metric="logit-difference",
        description="reverses truth: 'Statement A and statement B are opposite. Statement A is true. …' → false",
        source=partial(draw, OPPOSITE, True),
        known=known("circuit", SARAIPOUR, "medium", "7.3 8.8 8.10 9.7 10.7 m7 m8 m9 m10"),
    ),
    Behaviour(
        name="simple-syllogism-same",
        family="simple-syllogism",
        split="extra",
        metric="logit-difference",
        description="carries truth over: 'A and B are the same. If A is true, then B is also' → true",
        source=partial(draw, SAME, False),
    ),
)
