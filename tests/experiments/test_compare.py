"""Which cells a comparison has, and what their files add up to."""

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
    cells = [cell(m, t, s) for m in compare.METHODS for t in ("discovery", "test", "paper") for s in (0, 1)]
    assert len({c.name for c in cells}) == len(cells)
    for method, known in compare.SEARCHES.items():
        arguments = cell(method, "test").arguments["search"]
        assert arguments.pop("target") == "test"
        assert SearchSettings(**arguments, seed=0).method == known["method"]


def test_cells_change_with_all_that_determines_them() -> None:
    assert (
        cell("policy").name
        != circuit_cell(MODEL, "ioi", "policy", "discovery", 0, Budget(), Agent("2", 300, "metric", {})).name
    )
    assert cell("policy").name != cell("policy", half=True).name
    assert cell("greedy").name != cell("greedy", tau=0.8).name
    assert cell("greedy").name == cell("greedy", rollouts=3).name == cell("greedy", half=True).name


def test_a_policy_paid_for_the_best_so_far_is_read_along_its_episodes() -> None:
    """The paper's last masks mean nothing then: its tables have the smallest circuit that reaches the agent's own target."""
    ours = Agent("1", 300, "union", {"best_so_far": True})
    papers, own = (
        circuit_cell(MODEL, "ioi", "policy", "paper", 0, Budget(), agent).arguments["deployment"]
        for agent in (AGENT, ours)
    )
    assert papers | {"rule": "paper", "best_along_episode": False, "tau": 0.9} == papers
    assert own | {"rule": "smallest", "best_along_episode": True, "tau": None} == own
    for target in compare.TARGETS:
        one, other = (
            circuit_cell(MODEL, "ioi", "policy", target, 0, Budget(), a).arguments["deployment"]
            for a in (AGENT, ours)
        )
        assert one == other and one["tau"] == 0.9 and one["best_along_episode"]


def test_candidate_sets_that_spare_nothing_are_not_spoken_of() -> None:
    """Cells of earlier versions, which knew no `spare`, keep their names."""
    assert cell("policy").arguments["setting"] == {"pairs": 20, "k": 300, "prefilter": "metric"}
    fewer = circuit_cell(MODEL, "ioi", "policy", "discovery", 0, Budget(), replace(AGENT, spare=0.01))
    assert fewer.arguments["setting"]["spare"] == 0.01 and fewer.name != cell("policy").name


def test_a_discount_is_spoken_of_if_it_is_not_the_papers() -> None:
    """Where more is trained, and nowhere else: other cells keep their names."""
    ours = replace(AGENT, ppo={"gamma": 1.0})
    for method in compare.POLICIES:
        own = circuit_cell(MODEL, "ioi", method, "discovery", 0, Budget(), ours)
        if method in ("policy", "policy-greedy"):
            assert own == cell(method)
        else:
            papers, changed = (c.arguments["policy"]["ppo"] for c in (cell(method), own))
            assert set(papers) == {"iterations", "transitions", "envs"} and changed == papers | {"gamma": 1.0}
            assert own.name != cell(method).name and own.mutex != cell(method).mutex


def test_one_greedy_rollout_is_a_method() -> None:
    greedy, sampled = cell("policy-greedy").arguments, cell("policy").arguments
    assert greedy["deployment"]["rollouts"] == 0 and sampled["deployment"]["rollouts"] == 16
    assert greedy["policy"] == sampled["policy"] and "policy-greedy" in compare.DEFAULT_METHODS


def test_deployments_of_one_adapted_policy_share_its_training() -> None:
    one, other = cell("policy-adapted", "discovery"), cell("policy-adapted", "test")
    assert one.mutex == other.mutex != "" and one.name != other.name
    assert len({one.mutex, cell("policy-adapted", seed=1).mutex, cell("policy-from-scratch").mutex}) == 3
    assert one.mutex != cell("policy-adapted", adapt_iterations=5).mutex and cell("policy").mutex == ""


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
        circuit_cell(MODEL, "ioi", "policy", "test", 0, Budget())


def test_lists() -> None:
    assert parse_seeds("2, 0,2") == [2, 0] and parse_list(
        "acdc, greedy,acdc", "methods", compare.METHODS
    ) == ["acdc", "greedy"]
