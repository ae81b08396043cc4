"""Rows of a file are dealt to parts in linear time, and a file's parts never change with the program's version."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from itertools import cycle
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechrl.behaviours import Behaviour
from mechrl.behaviours.custom import _AT_LEAST, _DEAL


def rows(links: list[tuple[int, int]]) -> list[dict[str, str]]:
    return [{"clean": f"p {a}", "corrupt": f"p {b}", "answer": " x", "foil": " y"} for a, b in links]


def chain(n: int) -> list[tuple[int, int]]:
    return [(i, i + 1) for i in range(n)]


def shuffled(n: int) -> list[tuple[int, int]]:
    return Random(0).sample(chain(n), n)


CHAINS = {
    "forwards": chain,
    "backwards": lambda n: chain(n)[::-1],
    "the other way": lambda n: [(b, a) for a, b in chain(n)],
    "both": lambda n: [(b, a) for a, b in chain(n)][::-1],
    "shuffled": shuffled,
    "a star": lambda n: [(0, i) for i in range(1, n + 1)],
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", CHAINS)
def test_thirty_thousand_chained_rows(name: str) -> None:
    began = time.thread_time()
    source = Behaviour.from_pairs("b", rows(CHAINS[name](30_000))).source
    assert time.thread_time() - began < 3
    assert isinstance(source, tuple)
    counted = Counter(row.part for row in source)
    if name == "a star":  # all have one clean prompt
        assert len(counted) == 1
    else:  # all hang together; their clean prompts are told apart
        assert counted == pytest.approx({"discovery": 15_000, "test": 7_500, "validation": 7_500}, abs=1)


@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 12)).filter(lambda t: t[0] != t[1]),
        min_size=1,
        unique=True,
    )
)
def test_parts_are_those_of_the_plain_way(links: list[tuple[int, int]]) -> None:
    """The slow twin: without shortening any path."""
    plain = plainly_dealt(links)
    if any(plain.count(part) < least * len(links) for part, least in _AT_LEAST.items()):
        plain = plainly_dealt([(a, a) for a, _ in links])
    source = Behaviour.from_pairs("b", rows(links)).source
    assert isinstance(source, tuple) and [row.part for row in source] == plain


def plainly_dealt(links: list[tuple[int, int]]) -> list[str]:
    """The part of every row, where rows that share a prompt go together."""
    group: dict[str, str] = {}

    def stands_for(number: int) -> str:
        prompt = f"p {number}"
        while group.setdefault(prompt, prompt) != prompt:
            prompt = group[prompt]
        return prompt

    for clean, corrupt in links:
        group[stands_for(clean)] = stands_for(corrupt)
    groups = sorted(
        {stands_for(clean) for clean, _ in links}, key=lambda text: hashlib.sha256(text.encode()).digest()
    )
    parts = dict(zip(groups, cycle(_DEAL), strict=False))
    return [parts[stands_for(clean)] for clean, _ in links]
