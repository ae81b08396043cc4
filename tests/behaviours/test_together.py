"""Rows of a file are assigned to parts in linear time, and always in the same way."""

from __future__ import annotations

import hashlib
import time
from itertools import cycle
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechrl.behaviours import Behaviour


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
    links = CHAINS[name](30_000)
    source = Behaviour.from_pairs("b", rows(links)).source
    assert isinstance(source, tuple) and time.thread_time() - began < 3
    # all rows are linked: a star has one clean prompt and so one part; the others' clean prompts are spread over all parts
    assert len({row.part for row in source}) == (1 if name == "a star" else 3)
    assert len({(row.clean, row.part) for row in source}) == len({clean for clean, _ in links})


@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 12)).filter(lambda t: t[0] != t[1]),
        min_size=1,
        unique=True,
    )
)
def test_parts_are_those_of_the_plain_way(links: list[tuple[int, int]]) -> None:
    """The slow implementation, without path shortening. A file's parts must not change between versions."""
    source = Behaviour.from_pairs("b", rows(links)).source
    assert isinstance(source, tuple)
    strict = dealt(links)
    few = [strict.count(part) < len(links) * share for part, share in HALF_OF_WHAT_IT_SHOULD_HAVE.items()]
    assert [row.part for row in source] == (dealt([(a, a) for a, _ in links]) if any(few) else strict)


HALF_OF_WHAT_IT_SHOULD_HAVE = {"discovery": 1 / 4, "test": 1 / 8, "validation": 1 / 8}


def dealt(links: list[tuple[int, int]]) -> list[str]:
    """The part of every row; rows that share a prompt, directly or through others, are in the same part."""
    group: dict[str, str] = {}

    def stands_for(prompt: str) -> str:
        while group.setdefault(prompt, prompt) != prompt:
            prompt = group[prompt]
        return prompt

    prompts = [(f"p {a}", f"p {b}") for a, b in links]
    for clean, corrupt in prompts:
        group[stands_for(clean)] = stands_for(corrupt)
    groups = sorted(
        {stands_for(clean) for clean, _ in prompts}, key=lambda text: hashlib.sha256(text.encode()).digest()
    )
    parts = dict(zip(groups, cycle(("discovery", "test", "discovery", "validation")), strict=False))
    return [parts[stands_for(clean)] for clean, _ in prompts]
