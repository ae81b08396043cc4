"""`mechrl metrics`: rankings by name and from a circuit's file, its output, the submission, and errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mechrl.agents.planner.look import FIRST_ALPHAS
from mechrl.behaviours import get_behaviour
from mechrl.behaviours.base import TEST_SEED
from mechrl.circuit import Circuit
from mechrl.cli import app as cli
from mechrl.engine import Engine
from mechrl.models import load_model
from mechrl.search.session import SearchSettings, search
from mechrl.validity.benchmark_metrics import FRACTIONS, benchmark_metrics
from mechrl.validity.rankings import RANKINGS, ranking
from tests.search.model import write_model
from tests.search.problems import tiny_problem


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model")))


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict:
    assert cli.run(["metrics", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_ranking_and_its_submission(model: str, tmp_path: Path, capsys) -> None:
    found = run(capsys, "gim", "ioi", "-m", model, "--pairs", 4, "--fresh", 6, "--submission", tmp_path)
    assert [size["edges"] for size in found["sizes"]] == list(FRACTIONS)
    absolute, signed = (
        [s[key] for s in found["sizes"]] for key in ("f_by_absolute_score", "f_by_signed_score")
    )
    assert found["cmd"] == pytest.approx(np.trapezoid(np.abs(1 - np.array(absolute)), FRACTIONS))
    assert found["cpr"] == pytest.approx(np.trapezoid(signed, FRACTIONS))
    assert found["passes"] == 3 * 4 / 20 and "overshoot" in found["warning"]
    file = Path(found["submission"])
    loaded = load_model(model)
    pairs = get_behaviour("ioi").pairs(loaded.tokenizer, 4, 0, part="discovery", n_ctx=loaded.spec.n_ctx)
    scores, _ = ranking("gim", Engine(loaded, pairs), pairs, "logit-difference")
    edges = json.loads(file.read_text())["edges"]
    assert file.parent.parent == tmp_path and len(edges) == loaded.graph.n_edges
    for name, entry in edges.items():
        assert entry["score"] == pytest.approx(scores[loaded.graph.edge_of_name(name)], rel=1e-4, abs=1e-9)


def test_a_circuit_is_ranked_by_its_order(model: str, tmp_path: Path, capsys) -> None:
    loaded = load_model(model)
    circuit = search(loaded, get_behaviour("ioi"), SearchSettings("blockwise", tau=0.5, pairs=4, k=40))
    circuit.save(tmp_path / "circuit.json")
    found = run(capsys, tmp_path / "circuit.json", "--fresh", 5)
    unseen = get_behaviour("ioi").pairs(loaded.tokenizer, 5, TEST_SEED, n_ctx=loaded.spec.n_ctx)
    expected = benchmark_metrics(Engine(loaded, unseen), unseen, Circuit.load(tmp_path / "circuit.json"))
    assert found["cmd"] == pytest.approx(expected.cmd) and found["passes"] == circuit.passes


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["guess", "ioi"], "neither a circuit"), (["eap"], "which behaviour"), (["eap", "ioo"], "ioi")],
)
def test_what_makes_no_sense_is_said_in_one_line(arguments: list[str], said: str, capsys) -> None:
    assert cli.run(["metrics", *arguments]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert said in lines[-1]


def test_every_ranking_charges_its_passes() -> None:
    problem = tiny_problem("gpt2", n_pairs=4)
    groups = 2 * problem.model.spec.n_layers + 1
    steps = dict.fromkeys(RANKINGS, 1) | {"eap-ig-inputs": 5, "mask-gradients": 5, "first-look": 2}
    for name in RANKINGS:
        scores, passes = ranking(name, problem.engine, problem.pairs, "logit-difference")
        assert scores.shape == (problem.model.graph.n_edges,) and np.isfinite(scores).all()
        expected = 5 * groups if name == "eap-ig-activations" else steps[name]
        assert passes == pytest.approx(expected * 3 * 4 / 20)


def test_the_first_look_is_the_mean_of_two_mask_gradients() -> None:
    problem = tiny_problem("llama-gqa")
    engine = problem.engine
    look, _ = ranking("first-look", engine, problem.pairs, "kl")
    weights = np.repeat(np.array(FIRST_ALPHAS)[:, None], engine.graph.n_edges, axis=1)
    expected = -engine.gradient(weights).gradient.mean(0).numpy() / engine.kl_cut
    np.testing.assert_allclose(look, expected, atol=1e-6)
