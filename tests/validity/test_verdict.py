"""The verdict on a circuit: a good circuit passes every check; for each check, a circuit that lacks only that fails it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import mechrl
from mechrl.behaviours import VALIDATION_SEED, get_behaviour
from mechrl.circuit import Circuit
from mechrl.engine import Engine
from mechrl.models import load_model
from mechrl.search.session import SearchSettings, search
from mechrl.stats import Spread
from mechrl.validity.checks import Control, validate
from mechrl.validity.setting import Setting, f_of
from mechrl.validity.verdict import N_EDGES, bootstraps, judged, validate_and_judge


@pytest.fixture(scope="module")
def model():
    return load_model("toy")


@pytest.fixture(scope="module")
def circuit(model) -> Circuit:
    return search(model, get_behaviour("acronyms"), SearchSettings("blockwise", pairs=12, holds_on="fresh"))


def judge(model, circuit: Circuit):
    return validate_and_judge(circuit, Setting.of(model, get_behaviour("acronyms"), circuit), 20).verdict


def with_edges(model, circuit: Circuit, mask: np.ndarray) -> Circuit:
    return replace(circuit, mask=mask, order=(), attribution=None)


def test_a_circuit_that_a_search_found_is_what_a_circuit_should_be(model, circuit) -> None:
    verdict = judge(model, circuit)
    assert all(verdict[name].holds for name in ("faithful", "necessary", "specific", "stable"))
    assert (
        all(f"{check.better} is better" in check.line for check in verdict.checks)
        and "\n" not in verdict.line
    )
    assert verdict["faithful"].value == pytest.approx(circuit.faithfulness_test, abs=1e-5)


def test_the_whole_model_is_faithful_but_not_minimal(model, circuit) -> None:
    whole = with_edges(model, circuit, np.ones(model.graph.n_edges, dtype=bool))
    verdict = judge(model, whole)
    assert verdict["faithful"].value == pytest.approx(1, abs=1e-4) and verdict["faithful"].holds
    assert not verdict["minimal"].holds and verdict["minimal"].value > 0.8 and "not minimal: " in verdict.line
    assert "not shown necessary: f 0.00 with it ablated, and there are too few other" in verdict.line
    assert verdict["specific"].line.startswith("not specific: ") and verdict["specific"].chance > 0.9


def test_the_empty_circuit_is_nothing(model, circuit) -> None:
    verdict = judge(model, with_edges(model, circuit, np.zeros(model.graph.n_edges, dtype=bool)))
    assert not any(verdict[name].holds for name in ("faithful", "necessary", "specific", "stable"))
    assert verdict["faithful"].value == pytest.approx(0, abs=1e-6)


def test_half_of_the_circuit_is_not_faithful(model, circuit) -> None:
    mask = circuit.mask.copy()
    mask[np.flatnonzero(circuit.live)[::2]] = False
    verdict = judge(model, with_edges(model, circuit, mask))
    assert (
        not verdict["faithful"].holds
        and not verdict["stable"].holds
        and verdict.line.startswith("not faithful: f ")
    )


def _first(mask: np.ndarray, edges: list, n: int) -> np.ndarray:
    mask = np.zeros_like(mask)
    mask[edges[:n]] = True
    return mask


@pytest.mark.parametrize(("target", "seed"), [("discovery", None), ("test", VALIDATION_SEED)])
def test_minimality_is_that_of_single_edges(model, circuit, target: str, seed: int | None) -> None:
    """On the pairs that the circuit had to hold on."""
    strongest = sorted(np.flatnonzero(circuit.live), key=lambda e: -abs(circuit.attribution[e]))
    mask = np.zeros(model.graph.n_edges, dtype=bool)
    size = next(
        n
        for n in range(len(strongest), 0, -1)
        if model.graph.prune(_first(mask, strongest, n)).sum() <= N_EDGES
    )
    mask = _first(mask, strongest, size)
    few = with_edges(model, circuit, mask)
    few = replace(few, settings=few.settings | {"target": target})
    behaviour, without = get_behaviour("acronyms"), []
    if seed is None:
        engine = Setting.of(model, behaviour, few).engine
    else:
        engine = Engine(model, behaviour.pairs(model.tokenizer, 100, seed))
    for edge in np.flatnonzero(few.live):
        mask = few.live.copy()
        mask[edge] = False
        without.append(float(f_of(engine, mask)[0]))
    tau = (min(without) + max(without)) / 2  # some edges can go, others cannot
    share = float(np.mean([f >= tau for f in without]))
    assert 0 < share < 1
    assert judge(model, replace(few, tau=tau))["minimal"].value == pytest.approx(share)


def test_bootstraps_spread_as_pairs_do() -> None:
    rng = np.random.default_rng(0)
    same = bootstraps(np.full(30, 0.2), np.full(30, 2.0), rng)
    assert np.allclose(same, 0.9)
    kl = rng.exponential(0.2, 100)
    f = bootstraps(kl, np.full(100, 2.0), rng, 4000)
    assert f.mean() == pytest.approx(1 - kl.mean() / 2, abs=0.002)
    assert f.std() == pytest.approx(kl.std() / 2 / 100**0.5, rel=0.1)


BATTERY = dict(f=0.95, necessity=0.0, necessity_p=1 / 21, random=0.02, p=1 / 21)


@pytest.mark.parametrize(
    ("found", "necessary", "specific"),
    [
        ({}, "necessary", "specific"),
        ({"necessity": 0.6}, "not necessary", "specific"),  # most of f is left
        ({"necessity_p": 2 / 21}, "not shown necessary", "specific"),  # other edges do the same
        ({"necessity_p": 2 / 41}, "necessary", "specific"),  # one set in forty does
        ({"random": 0.9}, "necessary", "not specific"),  # random ones do nearly as well, however surely worse
        ({"p": 3 / 21}, "necessary", "not shown specific"),
    ],
)
def test_what_is_clear_and_what_is_sure(model, circuit, found: dict, necessary: str, specific: str) -> None:
    known, setting = BATTERY | found, Setting.of(model, get_behaviour("acronyms"), circuit)
    hard = Control(
        "candidates", "pruned", Spread(known["random"], 0.4, 20), Spread(9, 0, 20), None, known["p"]
    )
    battery = replace(
        validate(circuit, model, setting.behaviour, setting=setting),
        faithfulness=known["f"],
        necessity=known["necessity"],
        necessity_p=known["necessity_p"],
        necessity_random=Spread(0.69, 0.36, 20),  # all or nothing: mean − 2 sd is below any f
        specificity=(hard,),
    )
    verdict = judged(circuit, setting, battery).verdict
    for name, said in (("necessary", necessary), ("specific", specific)):
        assert verdict[name].line.startswith(f"{said}: ")
        assert verdict[name].holds == (said == name) and f"p {verdict[name].p:.2g}, " in verdict[name].line


def test_python_and_json_have_it(model, circuit) -> None:
    found = mechrl.validate(circuit, model, get_behaviour("acronyms"))
    assert found.verdict.line in str(found)
    told = {check["name"]: check for check in found.to_json()["verdict"]}
    assert (
        set(told) == {"faithful", "necessary", "specific", "stable", "minimal"}
        and told["faithful"]["better"] == "higher"
    )
