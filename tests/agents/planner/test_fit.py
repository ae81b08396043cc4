"""Fitting: a rule planted in the effects is learned and transfers; from shuffled effects nothing is learned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mechrl.agents.planner.assess import assess, pearson, spearman
from mechrl.agents.planner.features import First, kinds
from mechrl.agents.planner.fit import FitSettings, fit
from mechrl.agents.planner.look import ALPHAS, GROUPS, Look
from mechrl.agents.planner.records import Record
from mechrl.errors import MechRLError
from mechrl.graph import Graph

GRAPH = Graph(4, 6, 2)
QUICK = FitSettings(epochs=12, hidden=48, circuits=4)


def made_up(seed: int) -> Record:
    """Edges into MLPs cost ten times their gradient's estimate, those into v a tenth; the cost of a set is 1.5 times the sum."""
    rng = np.random.default_rng(seed)
    n, m, T = int(rng.integers(60, 160)), 10, 90
    edges = rng.choice(GRAPH.n_edges, n + m, replace=False)
    alive, outside = np.sort(edges[:n]), np.sort(edges[n:])
    size = np.exp(rng.normal(size=n + m)) / n
    look = Look(
        alive,
        (size[:n] * rng.normal(1, 0.1, (len(ALPHAS), GROUPS, n))).astype(np.float32),
        outside,
        (size[n:] * rng.normal(1, 0.1, (GROUPS, m))).astype(np.float32),
        0.95,
    )
    into = kinds(GRAPH)[1][GRAPH.edge_receiver[np.concatenate([alive, outside])]]
    effect = size * np.array([1, 1, 0.1, 10, 1])[into] / 20
    cut, add = np.zeros((T, n), dtype=bool), np.zeros((T, m), dtype=bool)
    cut[np.arange(1, 41), rng.choice(n, 40, replace=False)] = True
    add[np.arange(41, 51), np.arange(m)] = True
    for row in cut[51:]:
        row[rng.choice(n, int(rng.integers(2, n // 2)), replace=False)] = True
    lost = np.where(cut.sum(1) > 1, 1.5, 1.0) * (cut @ effect[:n]) - add @ effect[n:]
    f = 0.95 - lost
    return Record(
        "made-up", f"family-{seed % 5}", seed, GRAPH, look, First(size / 2, size), cut, add, f, f - 0.02
    )


@pytest.fixture(scope="module")
def made() -> tuple[list[Record], list[Record]]:
    return [made_up(i) for i in range(40)], [made_up(i) for i in range(100, 108)]


def mean_of(rows: list[dict], key: str) -> float:
    return float(np.nanmean([row[key] for row in rows]))


def test_a_planted_rule_is_learned_and_transfers(made) -> None:
    train, test = made
    rows = assess(fit(train, QUICK), test)
    assert mean_of(rows, "cost learned") > 0.9 > 0.85 > mean_of(rows, "cost gradient")
    assert mean_of(rows, "sets learned") > 0.97 and mean_of(rows, "gap error") < 0.005
    assert 0.5 < mean_of(rows, "within 1 sigma") <= 1


def test_from_shuffled_effects_nothing_is_learned(made) -> None:
    """A negative control: the same network fitted to other edits' effects does worse than gradients."""
    train, test = made
    rng = np.random.default_rng(0)
    shuffled = [replace(r, f=np.concatenate([r.f[:1], rng.permutation(r.f[1:])])) for r in train]
    rows = assess(fit(shuffled, QUICK), test)
    assert mean_of(rows, "cost learned") < 0.5 < mean_of(rows, "cost gradient")


def test_the_same_records_give_the_same_network(made) -> None:
    a, b = (fit(made[0][:6], replace(QUICK, epochs=2)) for _ in range(2))
    assert all(
        torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )
    with pytest.raises(MechRLError, match="no records"):
        fit([], QUICK)


def test_correlations() -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0])
    assert spearman(x, np.exp(x)) == pytest.approx(1) and pearson(x, -x) == pytest.approx(-1)
    assert np.isnan(pearson(x, np.ones(4)))
