"""The validity checks on circuits known edge by edge, and their arithmetic against brute force."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechrl.behaviours import get_behaviour
from mechrl.candidates import ranking
from mechrl.cli.validate import validate_command
from mechrl.errors import MechRLError
from mechrl.graph import Graph
from mechrl.models import load_model
from mechrl.search.session import SearchSettings, search
from mechrl.stats import Spread, hypergeometric_at_least, rank_p
from mechrl.validity.checks import N_RANDOM, _outside, components, random_circuits, recovery, validate
from mechrl.validity.setting import Setting, f_of
from tests.planted import planted_chain, planted_qkv
from tests.validity.planted_setting import circuit_of, no_behaviour, planted_setting

GRAPH = Graph(3, 4, 2)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
def test_spread_is_the_textbook_one(values: list[float]) -> None:
    spread = Spread.of(values)
    assert spread.mean == pytest.approx(np.mean(values), abs=1e-6)
    assert spread.sd == pytest.approx(np.std(values, ddof=1), abs=1e-6)
    assert spread.n == len(values)


def test_spread_of_one_and_of_none() -> None:
    assert Spread.of([0.5]) == Spread(0.5, None, 1) and Spread.of([0.5]).text() == "0.500"
    assert Spread.of([1.0, 3.0]).text(1) == "2.0 ± 1.4" and Spread.of([-1e-9, 1e-9]).text() == "0.000 ± 0.000"
    with pytest.raises(ValueError, match="at least one"):
        Spread.of([])


@pytest.mark.parametrize(("population", "marked", "drawn"), [(7, 3, 4), (6, 6, 2), (5, 0, 3), (8, 2, 8)])
def test_hypergeometric_against_all_draws(population: int, marked: int, drawn: int) -> None:
    draws = [sum(i < marked for i in draw) for draw in combinations(range(population), drawn)]
    for k in range(drawn + 2):
        assert hypergeometric_at_least(k, population, marked, drawn) == pytest.approx(
            np.mean([d >= k for d in draws])
        )


@given(st.lists(st.integers(-1000, 1000), unique=True, min_size=2, max_size=60), st.integers(1, 20))
def test_one_draw_among_others_is_seldom_the_lowest(values: list[int], percent: int) -> None:
    """p of every one of n + 1 values among the others: at most a share α of them has p ≤ α, and just floor(α (n + 1)) do."""
    n = len(values)
    p = [rank_p(v, values[:i] + values[i + 1 :]) for i, v in enumerate(values)]
    assert sorted(p) == pytest.approx([k / n for k in range(1, n + 1)])
    assert sum(100 * x <= percent + 1e-9 for x in p) == percent * n // 100


def test_twenty_draws_are_just_enough_for_one_in_twenty() -> None:
    above = [0.01] * 5 + [0.99] * 15  # mean − 2 sd is −0.12: no f could be below that
    assert rank_p(0.0, above) == pytest.approx(1 / 21) and rank_p(0.01, above) == pytest.approx(6 / 21)
    assert rank_p(0.5, [0.5 - 1e-7] * 20) == 1  # the same but for rounding
    assert rank_p(2.0, []) == 1


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 60), st.integers(0, 3), st.booleans())
def test_random_circuits_do_not_depend_on_how_many_are_drawn(size: int, seed: int, pruned: bool) -> None:
    edges = np.flatnonzero(np.random.default_rng(seed).random(GRAPH.n_edges) < 0.6)
    many, few = (random_circuits(GRAPH, edges, size, count, seed, pruned) for count in (5, 2))
    assert (many[:2] == few).all()
    assert not many[:, np.setdiff1d(np.arange(GRAPH.n_edges), edges)].any()
    if not pruned:
        assert (many.sum(1) == size).all()


def test_a_random_circuit_has_the_fewest_edges_that_leave_enough() -> None:
    edges = np.arange(GRAPH.n_edges)
    masks = random_circuits(GRAPH, edges, 30, 4, seed=3, pruned=True)
    for i, mask in enumerate(masks):
        order = np.random.default_rng([3, i]).permutation(edges)
        for n in range(len(edges) + 1):  # the slow way: add one edge at a time
            slow = np.isin(edges, order[:n])
            if GRAPH.prune(slow).sum() >= 30:
                break
        assert (mask == slow).all()


def test_a_planted_circuit_passes() -> None:
    setting = planted_setting(planted_qkv("llama"), k=100)
    planted = planted_qkv("llama")
    result = validate(circuit_of(setting, planted.edges), setting.model, setting.behaviour, setting=setting)
    assert result.faithfulness > 0.999 and abs(result.necessity) < 0.05
    assert result.necessity_random.n == N_RANDOM and result.necessity_random.mean > result.necessity + 0.3
    assert [(c.drawn_from, c.matched) for c in result.specificity] == [
        (d, m) for d in ("candidates", "graph") for m in ("raw", "pruned")
    ]
    assert all(c.f.n == N_RANDOM and c.f.mean < 0.5 for c in result.specificity)
    assert all(c.edges_pruned.mean >= len(planted.edges) for c in result.specificity if c.matched == "pruned")
    others = result.necessity_others
    assert others.n == N_RANDOM and others.mean > 0.999 and result.necessity_p == pytest.approx(1 / 21)
    assert all(c.p == pytest.approx(1 / 21) for c in result.specificity)
    assert result.recovery is None and "no components" in result.recovery_reason
    json.dumps(result.to_json(), allow_nan=False)


def test_a_circuit_of_most_candidates_is_held_against_the_next_best_edges() -> None:
    planted = planted_chain()
    setting = planted_setting(planted, k=len(planted.edges) + 2)
    found = circuit_of(setting, planted.edges)
    outside = _outside(setting, found.live)
    best = ranking(setting.scores)
    best = best[~found.live[best]]
    assert len(outside) >= 2 * found.size and not found.live[outside].any()
    assert set(outside) == {*best[: 2 * found.size], *setting.candidates[~found.live[setting.candidates]]}
    result = validate(found, setting.model, setting.behaviour, setting=setting)
    assert result.necessity_others.mean > 0.9 and result.necessity_p == pytest.approx(1 / 21)


def test_a_wrong_circuit_fails() -> None:
    setting, planted = planted_setting(planted_chain()), planted_chain()
    graph = setting.model.graph
    mask = np.isin(graph.edge_names, sorted(planted.edges))
    wrong = random_circuits(graph, np.flatnonzero(~mask), len(planted.edges), 1)[0]
    result = validate(circuit_of(setting, wrong), setting.model, setting.behaviour, setting=setting)
    assert result.faithfulness < 0.1 and result.necessity > 0.9
    assert result.necessity_p > 0.05 and all(c.p > 0.05 for c in result.specificity)


def test_a_circuit_larger_than_the_candidate_set_is_not_said_to_be_matched() -> None:
    setting = planted_setting(planted_chain())
    result = validate(
        circuit_of(setting, planted_chain().edges), setting.model, setting.behaviour, setting=setting
    )
    few = replace(result, candidates=result.edges_pruned - 1)
    assert not any("all of them" in what for _, what, _ in result.rows())
    said = [what for _, what, _ in few.rows() if "random circuits of the" in what and "candidates" in what]
    assert len(said) == 2 and all(
        f"all of them, fewer than the circuit's {result.edges_pruned} edges" in what for what in said
    )


def test_the_numbers_do_not_depend_on_the_batch() -> None:
    setting = planted_setting(planted_chain())
    graph = setting.model.graph
    masks = random_circuits(graph, np.arange(graph.n_edges), 60, 8, pruned=True)
    together = f_of(setting.engine, masks)
    assert np.allclose(together, [f_of(setting.engine, m)[0] for m in masks], rtol=0, atol=1e-12)


def test_recovery_of_planted_components() -> None:
    planted = planted_chain()
    setting = planted_setting(planted, components="0.1 m1 2.0")
    graph = setting.model.graph
    mask = np.isin(graph.edge_names, sorted(planted.edges))
    mine = components(graph, mask)
    assert {"a0.h1", "m1"} <= mine and "input" not in mine and "logits" not in mine
    result = validate(circuit_of(setting, mask), setting.model, setting.behaviour, setting=setting).recovery
    assert result is not None and result.population == graph.n_sources - 1 and result.in_circuit == len(mine)
    assert result.recovered == len(mine & {"a0.h1", "m1", "a2.h0"}) == len(result.known) - len(result.missed)
    assert (
        result.precision == result.recovered / len(mine)
        and result.expected == 3 * len(mine) / result.population
    )
    assert result.p_value == hypergeometric_at_least(result.recovered, result.population, 3, len(mine))
    with pytest.raises(MechRLError, match="does not have: a7"):
        recovery(graph, mask, ("a7.h7",), mask[None])
    # only heads are known, so MLPs are not part of the population
    assert recovery(graph, mask, ("a0.h1",), mask[None]).population == 3 * 4


def test_known_components_of_another_model_are_not_held_against_it() -> None:
    setting = planted_setting(planted_chain(), components="0.1")
    other = replace(setting.behaviour, known_model="gpt2")
    result = validate(circuit_of(setting, planted_chain().edges), setting.model, other, setting=setting)
    assert result.recovery is None and "gpt2 only" in result.recovery_reason


def test_the_circuit_of_another_model_is_refused() -> None:
    setting, other = planted_setting(planted_chain()), planted_setting(planted_qkv())
    with pytest.raises(MechRLError, match="other weights"):
        Setting.of(setting.model, setting.behaviour, circuit_of(other, planted_chain().edges))
    with pytest.raises(MechRLError, match="not of 'other'"):
        Setting.of(setting.model, no_behaviour(), circuit_of(setting, planted_chain().edges))
    with pytest.raises(MechRLError, match="say little"):
        validate(circuit_of(setting, planted_chain().edges), setting.model, setting.behaviour, n_random=19)


def test_the_discovery_pairs_are_those_of_the_search() -> None:
    model = load_model("toy")
    circuit = search(model, get_behaviour("acronyms"), SearchSettings("greedy", pairs=6, seed=3))
    assert circuit.pairs_seed == 3
    setting = Setting.of(model, get_behaviour("acronyms"), circuit)
    assert f_of(setting.engine, circuit.mask)[0] == pytest.approx(circuit.faithfulness, abs=1e-5)
    assert f_of(setting.test, circuit.mask)[0] == pytest.approx(circuit.faithfulness_test, abs=1e-5)
    by_policy = replace(circuit, method="policy", settings={"pairs_seed": 2})
    assert by_policy.pairs_seed == 2


def test_the_command(tmp_path: Path, capsys) -> None:
    circuit = search(load_model("toy"), get_behaviour("greater-than"), SearchSettings("greedy", pairs=6))
    circuit.save(tmp_path / "circuit.json")
    validate_command(tmp_path / "circuit.json", bootstraps=2, as_json=True, device="cpu")
    printed = json.loads(capsys.readouterr().out)
    assert printed["faithfulness"] == pytest.approx(circuit.faithfulness, abs=1e-5)
    assert [v["behaviour"] for v in printed["variants"]] == [f"greater-than-{i}" for i in (2, 3, 4)]
    assert len(printed["specificity"]) == 4 and all(c["f"]["n"] == 20 for c in printed["specificity"])
    again = printed["stability"]
    assert again["circuits"] == 2 and 0 < again["chance"] < again["jaccard"]["mean"] <= 1
    validate_command(tmp_path / "circuit.json", device="cpu")
    text = capsys.readouterr()
    assert "necessity" in text.out and "published for gpt2 only" in text.out and "specificity" in text.err

    replace(circuit, checksum="0" * 64).save(tmp_path / "other.json")
    with pytest.raises(MechRLError, match="other weights") as caught:
        validate_command(tmp_path / "other.json", device="cpu")
    assert "\n" not in str(caught.value)
    replace(circuit, behaviour="mine").save(tmp_path / "mine.json")
    with pytest.raises(MechRLError, match="give its file by --behaviour"):
        validate_command(tmp_path / "mine.json", device="cpu")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, mechrl.cli.validate, mechrl.cli.compare; "
        "print(sorted({'torch', 'numpy', 'matplotlib', 'jinja2'} & set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )
