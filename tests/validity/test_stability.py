"""Stability: the chance level against counting, overlaps of circuits, bootstraps that resample only the discovery pairs."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from mechrl.behaviours import get_behaviour
from mechrl.behaviours.base import TEST_SEED
from mechrl.errors import MechRLError
from mechrl.models import load_model
from mechrl.models.base import Model
from mechrl.search.session import SearchSettings, search
from mechrl.validity.stability import Resampled, bootstrapped, chance_of, jaccard, overlap
from tests.search.model import write_model
from tests.test_circuit import circuit


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(write_model(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize(("a", "b", "pool"), [(2, 3, 6), (1, 1, 4), (4, 4, 5), (0, 2, 5), (5, 5, 5)])
def test_chance_is_the_mean_over_all_ways_to_draw(a: int, b: int, pool: int) -> None:
    first = set(range(a))
    ways = [len(first & set(c)) / len(first | set(c)) for c in combinations(range(pool), b)]
    assert chance_of(a, b, pool) == pytest.approx(np.mean(ways))


def test_chance_of_large_circuits_is_that_of_random_masks() -> None:
    rng = np.random.default_rng(0)
    masks = np.zeros((2, 400, 3000), dtype=bool)
    for mask, size in zip(masks, (300, 700), strict=True):
        for row in mask:
            row[rng.choice(3000, size, replace=False)] = True
    drawn = [jaccard(a, b) for a, b in zip(*masks, strict=True)]
    error = np.std(drawn) / np.sqrt(len(drawn))
    assert chance_of(300, 700, 3000) == pytest.approx(np.mean(drawn), abs=4 * error)


def test_the_overlap_of_circuits_is_the_mean_over_their_pairs() -> None:
    one = circuit()
    settings = {"candidates": 12}
    full = replace(one, mask=np.ones_like(one.mask), settings=settings)
    none = replace(one, mask=np.zeros_like(one.mask), settings=settings)
    same = overlap([full, full, full])
    assert same is not None and (same.jaccard.mean, same.chance, same.circuits) == (1, 1, 3)
    mixed = overlap([full, none, none])
    assert mixed is not None and mixed.jaccard.mean == pytest.approx(1 / 3)
    assert overlap([full]) is None
    assert jaccard(none.mask, none.mask) == 1 and jaccard(none.mask, full.mask) == 0


def test_a_bootstrap_redraws_the_discovery_pairs_and_no_others(model: Model) -> None:
    behaviour = get_behaviour("ioi")
    asked = dict(n=30, n_ctx=model.spec.n_ctx)
    plain = behaviour.pairs(model.tokenizer, seed=0, part="discovery", **asked)
    one, again, other = (
        Resampled.of(behaviour, i).pairs(model.tokenizer, seed=0, part="discovery", **asked)
        for i in (1, 1, 2)
    )
    assert one == again != other and len(one) == len(plain)
    assert set(one.clean) < set(plain.clean)
    assert len(set(one.clean)) == pytest.approx((1 - np.exp(-1)) * 30, abs=8)  # 1 − 1/e of them are distinct
    fresh = behaviour.pairs(model.tokenizer, seed=TEST_SEED, **asked)
    assert Resampled.of(behaviour, 1).pairs(model.tokenizer, seed=TEST_SEED, **asked) == fresh


@pytest.mark.parametrize("method", ["greedy", "blockwise"])
def test_a_method_is_run_again_with_the_circuits_settings(model: Model, method: str) -> None:
    behaviour = get_behaviour("ioi")
    settings = SearchSettings(method, tau=0.6, pairs=6, k=60)
    found = search(model, behaviour, settings)
    ours = bootstrapped(found, model, behaviour, 3, seed=5)
    expected = overlap([search(model, Resampled.of(behaviour, 15 + i), settings) for i in range(3)])
    assert ours == expected and ours.circuits == 3 and 0 <= ours.jaccard.mean <= 1


def test_what_cannot_be_run_again_is_said(model: Model, tmp_path: Path) -> None:
    one = search(model, get_behaviour("ioi"), SearchSettings("greedy", tau=0.3, pairs=3))
    with pytest.raises(MechRLError, match="at least 2"):
        bootstrapped(one, model, get_behaviour("ioi"), 1)
    with pytest.raises(MechRLError, match="not found again"):
        bootstrapped(replace(one, method="policy"), model, get_behaviour("ioi"), 2)
