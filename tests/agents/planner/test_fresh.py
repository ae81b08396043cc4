"""The judge of fresh pairs on made-up episodes: what it finds, how often it asks, what it teaches the aim."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechrl.agents.planner.episode import Episode
from mechrl.agents.planner.fresh import ROOM, SHRUNK, Fresh

TAU = 0.9
N = 100


def circuit(edges: int) -> np.ndarray:
    return np.arange(N) < edges


def episode(sizes: list[int], f: float = 0.95, gap: float = 0.02) -> Episode:
    """One that went through circuits of these sizes and stands at the last."""
    return Episode(circuit(sizes[-1]), f, gap, path=[circuit(n) for n in sizes[:-1]])


def judge_of(threshold: int, asked: list[int]) -> Fresh:
    """Validation pairs that accept circuits of at least `threshold` edges."""

    def measure(mask: np.ndarray) -> float:
        asked.append(int(mask.sum()))
        return 0.905 if mask.sum() >= threshold else 0.5 + 0.001 * mask.sum()

    return Fresh(TAU, measure)


sizes = st.lists(st.integers(1, N), min_size=1, max_size=30, unique=True).map(
    lambda x: sorted(x, reverse=True)
)


@given(sizes, st.integers(1, N + 1))
def test_the_smallest_circuit_that_holds_is_found_in_logarithmically_many_questions(way, threshold) -> None:
    asked: list[int] = []
    fresh, at = judge_of(threshold, asked), episode(way)
    fresh.judge(at)
    assert fresh.best is not None and len(asked) == len(set(asked)) <= 1 + np.ceil(np.log2(len(way)))
    holds = [n for n in way if n >= threshold]
    size = int(fresh.best[0].sum())
    if holds:
        assert size == min(holds) and fresh.best[1] >= TAU
    else:  # none does: the most faithful that was asked about
        assert size == max(asked) and at.done and "no circuit on the way holds" in at.note


@given(sizes, st.integers(1, N))
def test_an_episode_that_is_read_back_goes_on_once_and_only_from_a_much_larger_circuit(
    way, threshold
) -> None:
    fresh, at = judge_of(threshold, []), episode(way)
    holds = [n for n in way if n >= threshold]
    goes_on = fresh.judge(at)
    if way[-1] >= threshold:
        assert not goes_on and not at.done and at.size == way[-1]  # f = .905 leaves no room to plan on
    elif holds and way[-1] <= SHRUNK * min(holds):
        assert goes_on and fresh.again and at.size == min(holds) and np.isnan(at.f)
        assert [mask.sum() for mask in at.path] == [n for n in way if n > min(holds)]
        again = episode(way)
        assert not fresh.judge(again) and again.done
    else:
        assert not goes_on and at.done and at.size == way[-1]


@pytest.mark.parametrize("f, room", [(TAU + ROOM + 1e-6, True), (TAU + ROOM - 1e-6, False)])
def test_the_aim_follows_what_was_measured(f: float, room: bool) -> None:
    """f = .95 and a predicted gap of .02 that is .95 − f: the offset is their difference, whatever it was before."""
    fresh, at = Fresh(TAU, lambda mask: f, offset=0.3), episode([50], 0.95, gap=0.02)
    assert fresh.judge(at) == room
    assert fresh.offset == pytest.approx(0.3 + (0.95 - f) - 0.02) and at.gap == pytest.approx(0.95 - f)


def test_only_smaller_circuits_are_due() -> None:
    fresh = judge_of(1, [])
    assert fresh.due(episode([50])) and not Fresh(TAU, None).due(episode([50]))
    fresh.judge(episode([50]))
    assert not fresh.due(episode([50])) and not fresh.due(episode([60])) and fresh.due(episode([49]))
    assert not fresh.due(episode([46]), SHRUNK) and fresh.due(episode([45]), SHRUNK)


def test_the_gap_of_a_measured_circuit_is_the_measurement() -> None:
    fresh, at = Fresh(TAU, lambda mask: 0.92), episode([50], 0.95)
    fresh.judge(at)
    before, at.gap = fresh.offset, 0.07  # what the network says at the next look
    fresh.anchor(at)
    assert at.gap == pytest.approx(0.03) and fresh.offset == pytest.approx(before - 0.04)
    other = episode([49], 0.95, gap=0.07)
    fresh.anchor(other)
    assert other.gap == 0.07 and fresh.offset == pytest.approx(before - 0.04)
    fresh.again, at.gap = True, 0.07  # a smaller circuit has fallen short
    fresh.anchor(at)
    assert at.gap == 0.07
