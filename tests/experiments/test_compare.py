"""Which cells a comparison has, and the tables made from their files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mechrl.errors import MechRLError
from mechrl.experiments import compare
from mechrl.experiments.cells import Cell, Workspace
from mechrl.experiments.compare import Agent, Budget, circuit_cell, parse_list, parse_seeds, rows
from mechrl.experiments.compare_tables import comparison_tables
from mechrl.experiments.experiment import GateResult
from mechrl.search.session import SearchSettings
from tests.test_circuit import circuit

MODEL = {"model": "toy", "checksum": "0"}
AGENT = Agent("1", 300, "metric", {})


def cell(method: str, target: str = "discovery", seed: int = 0, **more) -> Cell:
    return circuit_cell(MODEL, "ioi", method, target, seed, Budget(**more), AGENT)


def test_every_method_has_cells_of_its_own() -> None:
    targets = {
        m: ("discovery",) if m in compare.PAPERS else ("discovery", "test", "paper") for m in compare.METHODS
    }
    cells = [cell(m, t, s) for m, of in targets.items() for t in of for s in (0, 1)]
    assert len({c.name for c in cells}) == len(cells)
    for method, known in compare.SEARCHES.items():
        arguments = cell(method, "test").arguments["search"]
        assert arguments.pop("target") == "test"
        assert SearchSettings(**arguments, seed=0).method == known["method"]


def test_cells_change_with_all_that_determines_them() -> None:
    other = Agent("2", 300, "metric", {})
    assert cell("paper").name != circuit_cell(MODEL, "ioi", "paper", "discovery", 0, Budget(), other).name
    assert cell("paper").name != cell("paper", rollouts=3).name
    assert cell("paper-adapted").name != cell("paper-adapted", adapt_iterations=3).name
    assert cell("greedy").name != cell("greedy", tau=0.8).name
    assert cell("greedy").name == cell("greedy", rollouts=3).name


def test_the_papers_agent_has_the_candidates_of_its_training_and_the_papers_budget() -> None:
    frozen, warm, scratch = (cell(method).arguments for method in compare.PAPERS)
    assert frozen["setting"] == {"pairs": 20, "k": 300, "prefilter": "metric"}
    assert frozen["deployment"] == {"tau": 0.9, "rollouts": 16} and frozen["policy"]["ppo"] is None
    assert warm["policy"]["ppo"] == {"iterations": 80, "transitions": 512, "envs": 4}
    assert scratch["policy"]["ppo"]["iterations"] == 200
    with pytest.raises(MechRLError, match="discovery pairs alone"):
        cell("paper", "test")


def test_rows_count_what_failed_and_what_is_missing(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, lambda resources, cell: {}, lambda workspace: None)
    cells = [cell("greedy", seed=s) for s in range(4)]
    numbers = {"edges": 5, "f": 0.9, "f_test": 0.8, "passes": 10.0, "seconds": 1.0}
    workspace.write(cells[0], "done", result=numbers | {"edges_pruned": 3, "reached": True})
    workspace.write(cells[1], "done", result=numbers | {"edges_pruned": 5, "reached": False})
    workspace.write(cells[2], "failed", reason="no <memory>")
    (row,) = rows(cells, workspace)
    assert (row.seeds, row.done, row.failed, row.reached) == (4, 2, 1, 1)
    assert (
        row.edges_pruned.mean == 4
        and row.edges_pruned.sd == pytest.approx(2**0.5)
        and row.edges_pruned.n == 2
    )
    assert row.status == "failed on 1 of 4: no <memory>; 1 of 4 not done yet; short of τ on 1 of 2"
    (table,) = comparison_tables([row], Budget(), "mechrl compare", GateResult(MODEL, {}, ["ioi"], {}, {}))
    assert table.texts()[0][:3] == ["ioi", "EAP-IG greedy", "4 ± 1"] and "no <memory>" in table.texts()[0][-1]
    (empty,) = rows([cell("acdc")], workspace)
    assert empty.edges is None and empty.status == "1 of 1 not done yet"


def test_stability_is_that_of_the_circuits_that_are_done(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, lambda resources, cell: {}, lambda workspace: None)
    cells = [cell("greedy", seed=s) for s in range(3)]
    numbers = {"edges": 5, "f": 0.9, "f_test": 0.8, "passes": 10.0, "seconds": 1.0}
    done = numbers | {"edges_pruned": 3, "reached": True}
    whole = replace(circuit(), settings={}, mask=np.ones(circuit().graph.n_edges, dtype=bool))
    empty = replace(whole, mask=~whole.mask)
    for one, found in zip(cells[:2], (whole, empty), strict=True):
        workspace.write(one, "done", result=done)
        compare.circuit_path(workspace, one).parent.mkdir(exist_ok=True)
        found.save(compare.circuit_path(workspace, one))
    (row,) = rows(cells, workspace, stability=True)
    assert row.stability is not None and (row.stability.circuits, row.stability.jaccard.mean) == (2, 0)
    assert rows(cells, workspace)[0].stability is None
    with_it, without = (
        comparison_tables([r], Budget(), "mechrl compare", GateResult(MODEL, {}, ["ioi"], {}, {}))[0]
        for r in (row, replace(row, stability=None))
    )
    assert len(with_it.texts()[0]) == len(with_it.headings) == len(without.headings) + 2
    assert "0.00" in with_it.texts()[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "--seeds takes"), ("a", "--seeds takes"), ("0,-1", "a seed lies"), ("1.5", "--seeds takes")],
)
def test_mistakes_are_one_line(text: str, said: str) -> None:
    with pytest.raises(MechRLError, match=said):
        parse_seeds(text)
    with pytest.raises(MechRLError):
        parse_list(text, "methods", compare.METHODS)
    with pytest.raises(MechRLError, match="needs a policy"):
        circuit_cell(MODEL, "ioi", "paper", "discovery", 0, Budget())


def test_lists() -> None:
    assert parse_seeds("2, 0,2") == [2, 0] and parse_list(
        "acdc, greedy,acdc", "methods", compare.METHODS
    ) == ["acdc", "greedy"]
