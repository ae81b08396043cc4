"""Subject–verb agreement across a plural attractor: `The author near the cars` → is. Corrupted: the subject has the other number."""

from __future__ import annotations

from random import Random

from mechrl.behaviours.base import Behaviour, Lexicon, Row, known
from mechrl.behaviours.lists import ATTRACTORS, PREPOSITIONS, SUBJECTS


def draw(lexicon: Lexicon, rng: Random) -> Row:
    singulars = set(lexicon.single(tuple(SUBJECTS), "singular subjects"))
    plurals = set(lexicon.single(tuple(SUBJECTS.values()), "plural subjects"))
    singular, plural = rng.choice([(s, p) for s, p in SUBJECTS.items() if s in singulars and p in plurals])
    frame = (
        f"The {{}} {rng.choice(PREPOSITIONS)} the {rng.choice(lexicon.single(ATTRACTORS, 'plural nouns'))}"
    )
    (subject, answer), (other, foil) = rng.sample(((singular, " is"), (plural, " are")), 2)
    return Row(frame.format(subject), frame.format(other), (answer,), (foil,))


BEHAVIOURS = (
    Behaviour(
        name="subject-verb",
        family="subject-verb",
        split="held-out",
        metric="logit-difference",
        description="agrees with the subject, not with the nearer noun: 'The author near the cars' → is, not are",
        source=draw,
        known=known(
            "circuit for agreement in other prompts than is/are",
            "Africa 2025",
            "high",
            "0.4 0.8 1.0 1.1 2.1 2.6 6.0 9.4 10.0 11.4 11.6 11.7",
        ),
    ),
)
