"""Candidate sets: the best edges by any score, as many as needed to reach an f."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechrl import attribution
from mechrl.behaviours import get_behaviour
from mechrl.candidates import candidate_set, discovery_pairs, metrics_of, scores_of, widen
from mechrl.engine import Engine
from mechrl.models import load_model
from tests.tiny import tiny, tiny_pairs

ENGINE = Engine(tiny("gpt2"), tiny_pairs())
N = ENGINE.graph.n_edges


def f_of(candidates: np.ndarray) -> float:
    return float(ENGINE.faithfulness(np.ones((1, len(candidates)), dtype=bool), candidates)[0])


@given(st.integers(0, 1000), st.integers(0, 200))
@settings(max_examples=40, deadline=None)
def test_the_best_by_any_score(seed: int, k: int) -> None:
    a, b = np.random.default_rng(seed).normal(size=(2, 60))
    best = lambda scores: {e for e in range(60) if (np.abs(scores) > abs(scores[e])).sum() < k}  # noqa: E731
    assert candidate_set([a, b], k).tolist() == sorted(best(a) | best(b))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.sampled_from([0.2, 0.6, 0.95, 2.0]), st.integers(0, 99))
def test_widening_says_what_it_found_and_charges_every_set(k: int, reach: float, seed: int) -> None:
    scores = [np.random.default_rng(seed).normal(size=N)]
    before, found = ENGINE.passes, widen(ENGINE, scores, k, reach)
    assert np.array_equal(found.edges, candidate_set(scores, found.k)) and found.f == f_of(found.edges)
    assert found.f >= reach or found.k == N
    measured = 1 + np.ceil(np.log2(found.k / k))
    # one extra pass for the assertion above
    assert ENGINE.passes - before == pytest.approx((measured + 1) * ENGINE.price)


def test_metrics_of_a_prefilter() -> None:
    assert metrics_of("logit-difference", "metric") == ["logit-difference"]
    assert metrics_of("logit-difference", "union") == ["logit-difference", "kl"]
    assert metrics_of("logit-difference", "kl") == ["kl"]
    assert {tuple(metrics_of("kl", by)) for by in ("metric", "union", "kl")} == {("kl",)}


def test_scores_are_eap_ig_on_inputs(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MECHRL_CACHE", str(tmp_path))
    model = load_model("toy")
    pairs = discovery_pairs(model, get_behaviour("ioi"), 3, 5)
    engine = Engine(model, pairs)
    for metric, scores in zip(
        ("kl", "logit-difference"), scores_of(engine, pairs, ["kl", "logit-difference"]), strict=True
    ):
        objective = attribution.loss(metric, pairs, engine)
        assert np.array_equal(scores, attribution.eap_ig_inputs(engine, objective, 5, "from-corrupt"))
