"""Gain and discordance on planted circuits, where both the attribution ranking and the true circuit are known."""

from __future__ import annotations

import numpy as np
import pytest

from mechrl.candidates import ranking
from mechrl.search.select import top_n
from mechrl.validity.beyond import best_with_pruned_size, beyond, curves
from mechrl.validity.setting import f_of
from tests.planted import planted_chain, planted_qkv
from tests.validity.planted_setting import circuit_of, planted_setting


def test_the_ranking_itself_has_no_discordant_edges() -> None:
    setting = planted_setting(planted_qkv())
    graph = setting.model.graph
    mask = graph.prune(top_n(setting.scores, 40))
    size = int(mask.sum())
    result = beyond(circuit_of(setting, mask), setting)
    assert result.edges == size and result.discordant <= 40 - size  # only edges removed by pruning
    assert result.discordant_share == result.discordant / size and result.discordant_chance == pytest.approx(
        1 - size / result.candidates
    )
    best = best_with_pruned_size(setting, setting.scores, size)
    assert graph.prune(best).sum() >= size and (best == top_n(setting.scores, int(best.sum()))).all()
    assert graph.prune(top_n(setting.scores, int(best.sum()) - 1)).sum() < size


def test_discordant_edges_and_their_cost_against_the_slow_way() -> None:
    setting, planted = planted_setting(planted_chain()), planted_chain()
    graph = setting.model.graph
    true = np.isin(graph.edge_names, sorted(planted.edges))
    size = int(true.sum())
    # use a ranking that puts one edge of the circuit last among the candidates
    scores = setting.scores.copy()
    victim = int(np.flatnonzero(true)[0])
    scores[victim] = np.sort(np.abs(scores))[-setting.k] * (1 + 1e-9)
    setting.__dict__["scores"] = scores
    setting.__dict__.pop("candidates", None)
    result = beyond(circuit_of(setting, true), setting)
    outside = [e for e in np.flatnonzero(true) if e not in ranking(scores)[:size]]
    assert victim in outside and result.discordant == len(outside)
    without = true.copy()
    without[outside] = False
    assert result.cost == pytest.approx(
        f_of(setting.engine, true)[0] - f_of(setting.engine, without)[0], abs=1e-9
    )
    assert result.cost > 0.5 and result.gain > 0.5  # every planted edge is necessary
    assert result.cost_random.n == 20 and 0 < result.p_value <= 1
    assert result.to_json()["gain"] == result.f - result.f_top


def test_chance_where_the_ranking_reaches_beyond_the_candidates() -> None:
    """A small candidate set by two scores need not hold the |C| best by one of them."""
    setting = planted_setting(planted_chain())
    true = np.isin(setting.model.graph.edge_names, sorted(planted_chain().edges))
    scores = setting.scores.copy()
    scores[np.flatnonzero(~true)[:2]] = (
        2 * np.abs(scores).max()
    )  # two edges outside the candidate set come first
    setting.__dict__["scores"] = scores
    setting.__dict__["candidates"] = np.union1d(np.flatnonzero(true), np.flatnonzero(~true)[2:12])
    result = beyond(circuit_of(setting, true), setting)
    top = top_n(scores, result.edges)
    assert (result.edges, result.candidates, result.discordant, top[setting.candidates].sum()) == (
        4,
        14,
        2,
        2,
    )
    rng = np.random.default_rng(1)
    draws = [rng.permutation(setting.candidates)[: result.edges] for _ in range(4000)]
    discordant = np.array([(~top[draw]).sum() for draw in draws])
    assert result.discordant_chance == pytest.approx((discordant / result.edges).mean(), abs=0.01)
    assert result.p_value == pytest.approx((discordant <= result.discordant).mean(), abs=0.03)


def test_curves() -> None:
    setting = planted_setting(planted_chain(), k=100)
    result = curves(setting)
    n = setting.model.graph.n_edges
    assert result.k[-1] == n and result.f_metric[-1] == pytest.approx(1, abs=1e-9) and 100 in result.k
    assert result.ceiling == pytest.approx(result.ceiling_metric) and result.candidates == 100
    by_hand = f_of(setting.engine, np.stack([top_n(setting.scores, k) for k in result.k]))
    assert np.allclose(by_hand, result.f_metric)
    assert len(result.greedy_sizes) == len(result.greedy_kl) and result.passes > 0
