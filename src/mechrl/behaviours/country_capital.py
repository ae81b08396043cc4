"""Country–capital recall: `The capital of France is` → Paris. Corrupted: another country; the foil is its capital."""

from __future__ import annotations

from random import Random

from mechrl.behaviours.base import PARTS, Behaviour, Lexicon, Row, known
from mechrl.behaviours.lists import CAPITALS

FRAME = "The capital of {country} is"


def draw(lexicon: Lexicon, rng: Random) -> Row:
    capitals = set(lexicon.single(tuple(CAPITALS.values()), "capitals"))
    i = rng.randrange(len(PARTS))  # a part takes every third country, because there are few
    country, other = rng.sample([c for c in tuple(CAPITALS)[i :: len(PARTS)] if CAPITALS[c] in capitals], 2)
    clean, corrupt = FRAME.format(country=country), FRAME.format(country=other)
    return Row(clean, corrupt, (f" {CAPITALS[country]}",), (f" {CAPITALS[other]}",), part=PARTS[i])


LV = "Lv et al. 2024"
BEHAVIOURS = (
    Behaviour(
        name="country-capital",
        family="country-capital",
        split="held-out",
        metric="logit-difference",
        description="recalls a capital: 'The capital of France is' → Paris, not another country's",
        source=draw,
        # Informational only: no sparse circuit has been published.
        known=known("informational", LV, "low", "9.8 10.0 10.7 11.10 11.1 11.5 11.6 11.9 m9 m10 m11"),
    ),
)
