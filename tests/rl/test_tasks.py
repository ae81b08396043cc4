"""Candidate sets: as many edges as asked for, or the fewest whose f can be spared."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechrl.behaviours import get_behaviour
from mechrl.engine import Engine
from mechrl.models import load_model
from mechrl.rl.env import RewardSettings
from mechrl.rl.tasks import TaskSettings, candidates_of, task_of
from mechrl.search.select import candidate_set
from tests.tiny import tiny, tiny_pairs

ENGINE = Engine(tiny("gpt2"), tiny_pairs())
N = ENGINE.graph.n_edges


def f_of(candidates: np.ndarray) -> float:
    return float(ENGINE.faithfulness(np.ones((1, len(candidates)), dtype=bool), candidates)[0])


def alive(candidates: np.ndarray) -> np.ndarray:
    kept = ENGINE.graph.prune(np.ones(len(candidates), dtype=bool), candidates)
    return candidates[kept] if kept.any() else candidates


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 2), st.integers(2, N + 5), st.sampled_from([0.001, 0.02, 0.3, 0.9]), st.integers(0, 99))
def test_f_is_never_more_than_that_much_lower(n_scores: int, k: int, spare: float, seed: int):
    rng = np.random.default_rng(seed)
    good = -ENGINE.gradient(np.ones((1, N))).gradient[0].numpy()
    scores = [good * rng.lognormal(0, 0.5, N) for _ in range(n_scores)]
    whole, before = candidate_set(scores, k), ENGINE.passes
    found = candidates_of(ENGINE, scores, k, spare)
    spent = round((ENGINE.passes - before) * 20 / ENGINE.n_pairs, 6)
    assert f_of(found) >= f_of(whole) - spare - 1e-9 and set(found) <= set(whole)
    assert any(np.array_equal(found, alive(candidate_set(scores, fewer))) for fewer in range(1, k + 1))
    assert 1 <= spent <= 2 + np.log2(np.log(N) / np.log(1.05))  # bisection
    assert np.array_equal(candidates_of(ENGINE, scores, k, 0.0), whole)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 40),
    st.sampled_from([0.0, 0.02, 0.3]),
    st.sampled_from([0.2, 0.6, 0.95]),
    st.integers(0, 99),
)
def test_there_are_more_where_k_do_not_reach_enough(k: int, spare: float, reach: float, seed: int):
    good = -ENGINE.gradient(np.ones((1, N))).gradient[0].numpy()
    scores = [good * np.random.default_rng(seed).lognormal(0, 0.5, N)]
    doubled = k  # as often as it takes
    while doubled < N and f_of(candidate_set(scores, doubled)) < reach:
        doubled *= 2
    whole = candidate_set(scores, min(doubled, N))
    found = candidates_of(ENGINE, scores, k, spare, reach)
    assert set(found) <= set(whole) and (spare or np.array_equal(found, whole))
    assert f_of(found) >= max(f_of(whole) - spare, min(reach, f_of(whole))) - 1e-9


def test_what_can_be_spared_is_a_setting_of_tasks(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MECHRL_CACHE", str(tmp_path))
    model, behaviour, reward = load_model("toy"), get_behaviour("acronyms"), RewardSettings()
    whole, same, fewer = (
        task_of(model, behaviour, TaskSettings(3, 200, "union", **spare), reward)
        for spare in ({}, {"spare": 0.0}, {"spare": 0.05})
    )
    assert np.array_equal(whole.candidates, same.candidates) and whole.engine.passes == same.engine.passes
    assert (
        fewer.K < whole.K
        and fewer.ceiling >= whole.ceiling - 0.05 - 1e-6
        and fewer.engine.passes > whole.engine.passes
    )
