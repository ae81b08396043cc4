"""The Python API of `mechrl`'s docstring: thin wrappers around the rest of the package, with lazy imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mechrl
from mechrl.agents.paper.checkpoint import save_policy
from mechrl.agents.paper.deploy import Deployment
from mechrl.agents.paper.deploy import discover as by_paper
from mechrl.agents.paper.policy import Policy
from mechrl.agents.paper.tasks import TaskSettings
from mechrl.circuit import Circuit
from mechrl.cli import app as cli
from mechrl.errors import MechRLError
from mechrl.search.session import SearchSettings, search


@pytest.fixture(scope="module")
def model():
    return mechrl.load_model("toy")


def same(a: Circuit, b: Circuit) -> bool:
    return a.to_json() | {"seconds": 0} == b.to_json() | {"seconds": 0}


def test_importing_it_imports_nothing_heavy() -> None:
    heavy = "{'torch', 'numpy', 'transformers'} & set(sys.modules)"
    code = f"import sys, mechrl; assert not {heavy}, {heavy}; mechrl.MechRLError; assert not {heavy}; print(*dir(mechrl))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert set(mechrl.__all__) <= set(done.stdout.split())


def test_all_names_are_there_and_no_others() -> None:
    for name in mechrl.__all__:
        assert callable(getattr(mechrl, name))
    with pytest.raises(AttributeError, match="no attribute 'serach'"):
        _ = mechrl.serach


def test_the_papers_agent_is_deployed_as_the_command_deploys_it(model, tmp_path) -> None:
    torch.manual_seed(0)
    behaviour, policy = mechrl.behaviour("acronyms"), Policy(16)
    save_policy(policy, tmp_path)
    lines: list[str] = []
    settings = {"tau": 0.8, "rollouts": 1, "seed": 3}
    found = mechrl.discover(
        model, behaviour, "paper", policy=str(tmp_path), report=lines.append, pairs=6, k=40, **settings
    )
    assert same(
        found, by_paper(model, behaviour, policy, TaskSettings(6, 40), deployment=Deployment(**settings))
    )
    assert lines and found.method == "paper"


def test_the_planner_is_what_the_command_runs(model, tmp_path: Path) -> None:
    behaviour, lines = mechrl.behaviour("acronyms"), []
    found = mechrl.discover(
        model, behaviour, tau=0.8, pairs=6, holds_on="discovery", seed=3, report=lines.append
    )
    command = [
        "discover",
        "acronyms",
        "--tau",
        "0.8",
        "--pairs",
        "6",
        "--holds-on",
        "discovery",
        "--seed",
        "3",
        "--device",
        "cpu",
    ]
    assert cli.run([*command, "--out", str(tmp_path)]) == 0
    assert same(found, mechrl.Circuit.load(tmp_path / "circuit.json")) and lines and found.method == "planner"


def test_a_search_is_the_commands_search(model) -> None:
    behaviour, lines = mechrl.behaviour("acronyms"), []
    found = mechrl.discover(model, behaviour, "greedy", pairs=5, tau=0.8, report=lines.append)
    assert same(found, search(model, behaviour, SearchSettings("greedy", tau=0.8, pairs=5))) and lines


def test_what_the_model_does_not_do_is_refused_unless_forced(model, tmp_path: Path) -> None:
    path = tmp_path / "backwards.jsonl"
    names = (
        ("John", "Mary"),
        ("Mary", "John"),
        ("Paul", "Anna"),
        ("Anna", "Paul"),
        ("John", "Anna"),
        ("Paul", "Mary"),
    )
    rows = [
        f'{{"clean": "When {a} and {b} went to the store, {b} gave a book to", "corrupt": "When {b} and {a} went to the store, '
        f'{a} gave a book to", "answer": " {b}", "foil": " {a}"}}'
        for a, b in names
    ]
    path.write_text("\n".join(rows))
    backwards = mechrl.behaviour(path)
    assert not mechrl.judge(model, backwards).exhibited
    for method in ("planner", "greedy"):
        with pytest.raises(MechRLError, match="does not exhibit"):
            mechrl.discover(model, backwards, method)
    assert mechrl.discover(model, backwards, "greedy", force=True).behaviour == "backwards"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"method": "guess"}, MechRLError, "unknown method"),
        ({"method": "greedy", "policy": "runs/toy"}, MechRLError, "needs no policy"),
        ({"method": "paper"}, MechRLError, "needs a policy"),
        ({"method": "paper", "policy": "no/such/folder"}, MechRLError, "not the folder of a policy"),
        ({"policy": "runs/toy"}, MechRLError, "planner needs no policy"),
        ({"planner": "no/such/folder"}, MechRLError, "no such file"),
        ({"tau": 1.5}, MechRLError, "tau must lie between"),
    ],
)
def test_mistakes(model, changes: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        mechrl.discover(model, mechrl.behaviour("ioi"), **changes)


def test_validity_and_the_page(model) -> None:
    behaviour = mechrl.behaviour("acronyms")
    circuit = mechrl.discover(model, behaviour, "greedy", pairs=6)
    validity = mechrl.validate(circuit, model, behaviour, 20)
    assert (
        validity.faithfulness == pytest.approx(circuit.faithfulness, abs=1e-6)
        and validity.necessity < validity.faithfulness
    )
    alone, with_model = mechrl.show(circuit), mechrl.show(circuit, model, behaviour, height=300)
    assert "height:300px" in with_model._repr_html_() and len(with_model.html) > len(alone.html)
    assert "<" not in repr(alone) and "\n" not in repr(alone)
