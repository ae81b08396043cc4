"""Multiple choice between (A) and (B): the paper's, by content, and two easier ones."""

from __future__ import annotations

from random import Random

from mechrl.behaviours.base import Behaviour, Lexicon, Row, known
from mechrl.behaviours.lists import CATEGORIES, OBJECTS

CONTENT = "Question: Which of these is {kind}? Answer Choices: (A) {first} (B) {second} Answer: ("
LOOKUP = "Answer Choices: (A) {first} (B) {second} Answer: ({label})"
LABELS = "Answer Choices: ({x}) {first} ({y}) {second} Answer: ("


def by_content(lexicon: Lexicon, rng: Random) -> Row:
    """The right content is at (A), as in the paper. Corrupted: the contents are swapped, and (B) is right."""
    kind, other = rng.sample(tuple(CATEGORIES), 2)
    right = rng.choice(lexicon.single(CATEGORIES[kind], f"words for {kind}", at_least=1))
    wrong = rng.choice(lexicon.single(CATEGORIES[other], f"words for {other}", at_least=1))
    clean = CONTENT.format(kind=kind, first=right, second=wrong)
    corrupt = CONTENT.format(kind=kind, first=wrong, second=right)
    return Row(clean, corrupt, ("A",), ("B",))


def by_label(lexicon: Lexicon, rng: Random) -> Row:
    """The content behind a label. Corrupted: the contents are swapped."""
    first, second = rng.sample(lexicon.single(OBJECTS, "objects"), 2)
    label = rng.choice("AB")
    clean = LOOKUP.format(first=first, second=second, label=label)
    corrupt = LOOKUP.format(first=second, second=first, label=label)
    answer, foil = (first, second) if label == "A" else (second, first)
    return Row(clean, corrupt, (f" {answer}",), (f" {foil}",))


def first_label(lexicon: Lexicon, rng: Random) -> Row:
    """One of the labels on offer; corrupted: other labels."""
    first, second = rng.sample(lexicon.single(OBJECTS, "objects"), 2)
    (x, y), (v, w) = rng.sample((("A", "B"), ("X", "Y")), 2)
    clean = LABELS.format(x=x, y=y, first=first, second=second)
    corrupt = LABELS.format(x=v, y=w, first=first, second=second)
    return Row(clean, corrupt, (x, y), (v, w))


BEHAVIOURS = (
    Behaviour(
        name="multiple-choice",
        family="multiple-choice",
        split="held-out",
        metric="kl",
        description="picks by content: 'Which of these is an animal? Answer Choices: (A) cat (B) car Answer: (' → A",
        source=by_content,
        known=known("circuit", "Li & Gao 2025", "medium", "8.1 10.8 m9"),
    ),
    # of the two other wordings, this one replaces the first where a model does not exhibit it, because its prompts end alike
    Behaviour(
        name="multiple-choice-labels",
        family="multiple-choice",
        split="extra",
        metric="logit-difference",
        description="answers with a label on offer: 'Answer Choices: (A) cat (B) dog Answer: (' → A or B, not X or Y",
        source=first_label,
    ),
    Behaviour(
        name="multiple-choice-lookup",
        family="multiple-choice",
        split="extra",
        metric="logit-difference",
        description="looks a label's content up: 'Answer Choices: (A) cat (B) dog Answer: (A)' → cat, not dog",
        source=by_label,
    ),
)
