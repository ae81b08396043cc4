"""Rows of a file are dealt to parts in linear time, and as they always were."""

from __future__ import annotations

import time
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
    source = Behaviour.from_pairs("b", rows(CHAINS[name](30_000))).source
    assert isinstance(source, tuple) and len({row.part for row in source}) == 1  # all hang together
    assert time.thread_time() - began < 3


@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 12)).filter(lambda t: t[0] != t[1]),
        min_size=1,
        unique=True,
    )
)
def test_parts_are_those_of_the_plain_way(links: list[tuple[int, int]]) -> None:
    """The slow twin: without shortening any path. A file's parts must not change with the program's version."""
    import hashlib
    from itertools import cycle

    from mechrl.behaviours.custom import _DEAL

    group: dict[str, str] = {}

    def stands_for(prompt: str) -> str:
        while group.setdefault(prompt, prompt) != prompt:
            prompt = group[prompt]
        return prompt

    plain = rows(links)
    for row in plain:
        group[stands_for(row["clean"])] = stands_for(row["corrupt"])
    groups = sorted(
        {stands_for(row["clean"]) for row in plain}, key=lambda text: hashlib.sha256(text.encode()).digest()
    )
    parts = dict(zip(groups, cycle(_DEAL), strict=False))
    source = Behaviour.from_pairs("b", plain).source
    assert isinstance(source, tuple)
    assert [row.part for row in source] == [parts[stands_for(row["clean"])] for row in plain]
