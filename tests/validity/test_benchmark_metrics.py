"""CPR and CMD against the formula and against EAP-IG's own scores, and invariants for any model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mechrl.attribution import Method, attribute
from mechrl.behaviours.base import metric_value
from mechrl.circuit import Circuit
from mechrl.engine import Engine
from mechrl.models import load_model
from mechrl.search.problem import Problem
from mechrl.validity.benchmark_metrics import FRACTIONS, benchmark_metrics
from tests.planted import planted_chain
from tests.search.problems import planted_problem, tiny_problem
from tests.slow import slow_circuit_logits
from tests.test_attribution import with_answers

GOLDEN = Path(__file__).parents[1] / "data" / "golden"


def slow(problem: Problem, key: np.ndarray, distance: bool) -> tuple[float, list[float]]:
    engine, n = problem.engine, problem.model.graph.n_edges

    def m(edges: list[int]) -> float:
        mask = np.zeros((1, n), dtype=bool)
        mask[0, edges] = True
        return float(
            metric_value(
                "logit-difference", engine.logits(problem.model.graph.prune(mask)), problem.pairs
            ).mean()
        )

    low, high = m([]), m(list(range(n)))
    ranked = sorted(range(n), key=lambda e: -key[e])
    f = [(m(ranked[: int(part * n)]) - low) / (high - low) for part in FRACTIONS]
    y = [abs(1 - x) if distance else x for x in f]
    return sum((FRACTIONS[i + 1] - FRACTIONS[i]) * (y[i] + y[i + 1]) / 2 for i in range(len(f) - 1)), f


@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa"])
def test_areas_are_those_of_the_formula(kind: str) -> None:
    problem = tiny_problem(kind)
    scores = np.random.default_rng(0).normal(size=problem.model.graph.n_edges)
    result = benchmark_metrics(problem.engine, problem.pairs, scores)
    cpr, signed = slow(problem, scores, False)
    cmd, absolute = slow(problem, np.abs(scores), True)
    assert result.cpr == pytest.approx(cpr) and result.cmd == pytest.approx(cmd)
    assert result.faithfulness_signed == pytest.approx(
        signed
    ) and result.faithfulness_absolute == pytest.approx(absolute)
    assert result.faithfulness_signed[-1] == pytest.approx(1)


def test_a_planted_circuit_without_scores_is_near_perfect() -> None:
    planted = planted_chain("gpt2")
    problem = planted_problem(planted)
    graph = problem.model.graph
    mask = np.array([name in planted.edges for name in graph.edge_names])
    order = tuple(np.flatnonzero(~mask).tolist())
    about = dict(
        model="planted",
        checksum="",
        graph=graph,
        d_model=1,
        behaviour="test",
        method="acdc",
        settings={},
        tau=0.9,
        seed=0,
    )
    circuit = Circuit(**about, pairs=16, mask=mask, faithfulness=1.0, faithfulness_test=None, order=order)
    result = benchmark_metrics(problem.engine, problem.pairs, circuit)
    assert result.faithfulness_absolute[FRACTIONS.index(0.02)] == pytest.approx(
        1, abs=0.01
    )  # 5 edges of 262, 4 of them the circuit's
    assert result.cmd < 0.03


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("name", "mine"), [("eap", "eap"), ("eap_ig5", "eap-ig-inputs")])
def test_areas_of_our_scores_are_those_of_eap_igs_own(seed: int, name: str, mine: Method) -> None:
    """Their scores are ranked by their edge names and measured edge by edge; ours use the engine."""
    golden = np.load(GOLDEN / f"seed{seed}" / "golden.npz")
    model = load_model(GOLDEN / f"seed{seed}", dtype=torch.float64)
    pairs = with_answers(golden["clean_tokens"], golden["corrupt_tokens"])
    tokens = torch.tensor(golden["clean_tokens"]), torch.tensor(golden["corrupt_tokens"])
    theirs = golden[f"scores_{name}_f64"][golden["edge_src"], golden["edge_dst"]]
    names, n = golden["edge_names"].tolist(), model.graph.n_edges

    def m(chosen: list[str]) -> float:
        mask = torch.zeros(n, dtype=torch.bool)
        mask[[model.graph.edge_of_name(edge) for edge in chosen]] = True
        logits = slow_circuit_logits(model, *tokens, mask)
        return float((logits[:, 7] - logits[:, 11]).mean())

    whole, empty = (golden[f"circuit_{which}_metric_f64"].mean() for which in ("full", "empty"))
    engine = Engine(model, pairs)
    found = benchmark_metrics(engine, pairs, attribute(engine, pairs, "logit-difference", mine))
    for key, area, distance in ((theirs, found.cpr, False), (np.abs(theirs), found.cmd, True)):
        ranked = [names[i] for i in np.argsort(-key, kind="stable")]
        f = [(m(ranked[: int(part * n)]) - empty) / (whole - empty) for part in FRACTIONS]
        y = [abs(1 - x) if distance else x for x in f]
        expected = sum((FRACTIONS[i + 1] - FRACTIONS[i]) * (y[i] + y[i + 1]) / 2 for i in range(len(f) - 1))
        assert area == pytest.approx(expected, abs=1e-8)
