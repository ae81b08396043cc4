"""Docstring completion: arguments are documented in the order of the signature. Corrupted: the signature is shuffled.

`def f(self, [a], [b], [c], [d]):` with b and c documented → d, foil a. In the corrupted signature d does not follow c.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from random import Random

from mechrl.behaviours.base import Behaviour, Lexicon, Row
from mechrl.behaviours.lists import ARGUMENTS

FRAMES = (
    'def f(self, {args}):\n    """summary\n    :param {b}:\n    :param {c}:\n    :param',
    'class A:\n    def f(self, {args}):\n        """summary\n        :param {b}:\n        :param {c}:\n        :param',
    'def run(self, {args}):\n    """summary\n    :param {b}: the {b} to use.\n    :param {c}: the {c} to use.'
    "\n    :param",
    'def f({args}):\n    """summary\n    :param {b}:\n    :param {c}:\n    :param',
)
STYLES = ("a method", "a method in its class", "a method whose entries are described", "a free function")


def draw(frame: str, lexicon: Lexicon, rng: Random) -> Row:
    a, b, c, d = args = rng.sample(lexicon.single(ARGUMENTS, "argument names", at_least=4), 4)
    shuffled = rng.sample(args, 4)
    while (c, d) in pairwise(shuffled):
        rng.shuffle(shuffled)
    clean = frame.format(args=", ".join(args), b=b, c=c)
    corrupt = frame.format(args=", ".join(shuffled), b=b, c=c)
    return Row(clean, corrupt, (f" {d}",), (f" {a}",))


BEHAVIOURS = tuple(
    Behaviour(
        name="docstring" if i == 1 else f"docstring-{i}",
        family="docstring",
        split="train",
        metric="logit-difference",
        description=f"documents the next argument of {style}: 'def f(a, b, c, d)' with b and c documented → d, not a",
        source=partial(draw, frame),
    )
    for i, (frame, style) in enumerate(zip(FRAMES, STYLES, strict=True), 1)
)
