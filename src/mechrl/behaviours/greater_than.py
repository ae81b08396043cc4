"""Greater-than: an event ends in a later year than it began. Corrupted: it began so early that any year is later.

If the tokenizer ends years in a two-digit token, as in the paper: `The war lasted from the year 1732 to the year 17` → the two-digit tokens
above 32, foils 32 and below; corrupted 1701. If digits are tokens, the units digit: `… to the year 173` → the digits above 2, foils 2 and
below; corrupted 1730.
"""

from __future__ import annotations

from functools import partial
from random import Random

from mechrl.behaviours.base import Behaviour, Lexicon, Row, Unbuildable, known
from mechrl.behaviours.lists import EVENTS

FRAMES = (
    "The {noun} lasted from the year {start} to the year {end}",
    "From the year {start} to the year {end}",
    "The {noun} began in {start} and ended in {end}",
    "The {noun} took place between {start} and {end}",
)
CENTURIES = range(10, 20)
ENDINGS = {2: tuple(f"{i:02}" for i in range(100)), 1: tuple("0123456789")}
# Excludes the first year of a century, which is the corrupted prompt's, and the last, after which no year follows.
STARTS = {2: ENDINGS[2][2:99], 1: ENDINGS[1][2:9]}
CORRUPT = {2: "01", 1: "0"}
# number of years drawn before the other kind of ending is tried; some years are one token (" 1800")
_DRAWS = 100


def draw(frame: str, lexicon: Lexicon, rng: Random) -> Row:
    noun = rng.choice(lexicon.single(EVENTS, "nouns", at_least=1)) if "{noun}" in frame else ""
    for digits in (2, 1):
        endings = [e for e in ENDINGS[digits] if lexicon.id(e) is not None]
        for _ in range(_DRAWS if endings else 0):
            end = f"{rng.choice(CENTURIES)}{rng.randrange(10)}"[: 4 - digits]
            start = rng.choice(STARTS[digits])
            if lexicon.continues(f" {end}", start):
                clean, corrupt = (
                    frame.format(noun=noun, start=end + s, end=end) for s in (start, CORRUPT[digits])
                )
                later, earlier = (
                    tuple(e for e in endings if e > start),
                    tuple(e for e in endings if e <= start),
                )
                # corrupted prompts are too few to be divided among the parts
                return Row(clean, corrupt, later, earlier, keys=(clean,))
    raise Unbuildable("it ends years in neither a two-digit nor a one-digit token")


HANNA = "Hanna et al. 2023"
KNOWN = (
    *known("circuit", HANNA, "high", "0.1 0.3 0.5 5.5 6.1 6.9 7.10 8.11 9.1"),
    *known("circuit, in the author's own script", HANNA, "high", "5.1 8.8"),
    *known("circuit", HANNA, "high", "m0 m1 m2 m3 m8 m9 m10 m11"),
)

BEHAVIOURS = tuple(
    Behaviour(
        name="greater-than" if i == 1 else f"greater-than-{i}",
        family="greater-than",
        split="train",
        metric="probability-difference",
        description=f"ends later than it began: {frame.format(noun='war', start='1732', end='17')!r} → above 32",
        source=partial(draw, frame),
        known=KNOWN,
    )
    for i, frame in enumerate(FRAMES, 1)
)
