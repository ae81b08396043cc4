"""Every number has a stated range that is checked before anything is loaded; seeds have the same range everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from mechrl.agents.paper.ppo import PPOConfig
from mechrl.agents.planner.fit import FitSettings
from mechrl.agents.planner.session import DiscoverSettings
from mechrl.cli import app as cli
from mechrl.errors import MechRLError
from mechrl.experiments.compare import parse_seeds
from mechrl.search.session import SearchSettings
from tests.cli.test_app import every_command
from tests.viewer.circuits import SMALL, random_circuit

# required arguments of each command
GIVEN = {
    "mechrl discover": ["ioi"],
    "mechrl adapt": ["ioi", "--policy", "policy"],
    "mechrl curves": ["run"],
    "mechrl search": ["acdc", "ioi"],
    "mechrl validate": ["circuit.json"],
    "mechrl export": ["circuit.json", "--html", "page.html"],
    "mechrl view": ["circuit.json"],
    "mechrl planner fit": ["records"],
}


def kind(parameter) -> type | None:
    """int or float, also inside tuples and optional types."""
    annotation = parameter.type_descriptor.annotation
    return next((each for each in (int, float) if each in (annotation, *get_args(annotation))), None)


NUMBERS = [
    (name, parameter)
    for name, command in every_command().items()
    for parameter in command.params
    if kind(parameter) and parameter.param_type_name == "option" and parameter.name != "tau"
]
TAU = [name for name, command in every_command().items() if any(p.name == "tau" for p in command.params)]
ONE = pytest.mark.parametrize(
    ("name", "option"), NUMBERS, ids=lambda x: x if isinstance(x, str) else x.opts[-1]
)


@pytest.fixture(autouse=True)
def nothing_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    random_circuit(SMALL, 20, model="toy").save(tmp_path / "circuit.json")

    def load(*arguments: object, **options: object) -> None:
        raise AssertionError("it was loaded")

    for name in (
        "mechrl.models.load_model",
        "mechrl.circuit.Circuit.load",
        "mechrl.agents.paper.checkpoint.load_policy",
    ):
        monkeypatch.setattr(name, load)
    monkeypatch.setattr("mechrl.experiments.executor.run", load)


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.run(arguments) in (1, 2)
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "a bug" not in said.err, said.err
    assert "loaded" not in said.err and sorted(p.name for p in Path().iterdir()) == ["circuit.json"]
    return said.err


def test_there_are_numbers():
    assert len(NUMBERS) > 40 and len(TAU) > 4


@ONE
def test_a_number_has_a_range_and_help_states_it(
    name: str, option, capsys: pytest.CaptureFixture[str]
) -> None:
    assert option.min is not None and option.max is not None and option.min < option.max < float("inf")
    assert cli.run([*name.split()[1:], "--help"]) == 0
    assert option.opts[-1] in capsys.readouterr().out


@ONE
def test_what_is_outside_is_refused_before_anything_is_loaded(
    name: str, option, capsys: pytest.CaptureFixture[str]
) -> None:
    far = ["1000000000000000000000", str(option.min - 1)] + (
        ["inf", "nan", "-inf", "1e300"] if kind(option) is float else []
    )
    for value in far:
        line = refused([*name.split()[1:], *GIVEN.get(name, []), f"{option.opts[-1]}={value}"], capsys)
        assert option.opts[-1] in line and "--help`" in line


@pytest.mark.parametrize("name", TAU)
def test_tau_lies_between_0_and_1_and_is_neither(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for value in ("0", "1", "-1", "1e300", "inf", "nan"):
        line = refused([*name.split()[1:], *GIVEN.get(name, []), f"--tau={value}"], capsys)
        assert "tau must lie between 0 and 1" in line


@pytest.mark.parametrize(
    "arguments",
    [
        "behaviours --pairs 1000000000000",
        "search acdc ioi --pairs 1000000000000",
        "validate circuit.json --random 1000000000",
        "bench engine --circuits 100000000",
        "bench engine --circuits 1,-4",
        "search acdc ioi --threshold inf",
        "search acdc ioi --threshold 0.1 --threshold nan",
        f"compare --seeds {2**70}",
        f"compare --seeds 0,{2**32}",
        f"reproduce --costly-seeds {2**70}",
        "compare --seeds -1",
        f"search acdc ioi --seed {2**32}",
        "behaviours --model=",
        "search acdc ioi --model=",
        "train --model=",
        "validate circuit.json --model=",
        "export circuit.json --html page.html --model=",
        "compare --model=",
        "discover ioi --model=",
        "discover ioi --budget 1000000000000",
        "planner collect --model=",
        f"planner collect --draws {2**70}",
        "planner train --draws 0,-1",
        "planner fit records --epochs 1000000000000",
    ],
)
def test_what_was_found_out_too_late(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused(arguments.split(), capsys)


@pytest.mark.parametrize("seed", [-1, 2**32, 2**70])
def test_one_range_for_all_seeds(seed: int) -> None:
    for use in (
        lambda: parse_seeds(str(seed)),
        lambda: SearchSettings("acdc", seed=seed),
        lambda: PPOConfig(seed=seed),
        lambda: DiscoverSettings(seed=seed),
        lambda: FitSettings(seed=seed),
    ):
        with pytest.raises(MechRLError, match=r"a seed lies between 0 and 2\*\*32 - 1"):
            use()
    assert parse_seeds(str(2**32 - 1)) == [2**32 - 1] and SearchSettings("acdc", seed=2**32 - 1)
