"""The benchmark of policies: every kind of row, work that is left and taken up again, tables and curves from the rows alone."""

from __future__ import annotations

import csv
import importlib
import json
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mechrl.rl.env import RewardSettings
from mechrl.rl.policy import Policy, PolicyConfig
from mechrl.rl.ppo import PPOConfig, Trainer
from mechrl.rl.rollout import Deployment, discover, load_policy, trained_with
from mechrl.rl.tasks import TaskSettings, task_of
from mechrl.rl.train import Run, describe

from mechrl.behaviours import Behaviour, get_behaviour
from mechrl.models import load_model
from tests.search.model import write_model

ROOT = Path(__file__).parents[1]
NAMES = ("ioi", "acronyms", "simple-syllogism", "simple-syllogism-same")
SMALL = (
    "--pairs 4 --rollouts 2 --seeds 2 --adapt-iterations 2 --scratch-iterations 3 --transitions 16 --envs 4 --device cpu "
    f"--behaviours {','.join(NAMES)}"
).split()


@pytest.fixture(scope="module", autouse=True)
def bench(tmp_path_factory: pytest.TempPathFactory):
    """The script, with a gate that lets all behaviours but one through: the random model exhibits none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        patch.setenv("MECHRL_CACHE", str(tmp_path_factory.mktemp("cache")))
        script = importlib.import_module("policy_smollm2")

        def judge(model: object, behaviour: Behaviour) -> SimpleNamespace:
            return SimpleNamespace(exhibited=behaviour.name != "simple-syllogism", reason="so it is")

        patch.setattr(script.gate, "judge", judge)
        yield script


def train(folder: Path, name: str, seed: int) -> Path:
    """A policy that was trained a little, on one behaviour of a model."""
    settings, reward = (
        TaskSettings(pairs=4, k=30),
        RewardSettings(max_steps=4, best_so_far=True, look_again=0.8, margin=0.2),
    )
    model = load_model(name, device="cpu")
    torch.manual_seed(seed)
    task = task_of(model, get_behaviour("ioi"), settings, reward)
    trainer = Trainer([task], PPOConfig(1, 32, 8, seed=seed), reward, Policy(PolicyConfig(8)))
    for _ in Run(folder, trainer, describe(model, trainer, settings)):
        pass
    return folder


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("policies")
    other = str(write_model(folder / "model", layers=2))
    return [
        "--policy",
        str(train(folder / "toy", "toy", 0)),
        "--other",
        str(train(folder / "other", other, 1)),
    ]


@pytest.fixture(scope="module")
def out(bench, policies: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where everything was measured."""
    folder = tmp_path_factory.mktemp("out")
    measure(bench, folder, policies)
    return folder


def measure(bench, folder: Path, words: list[str], **change: Any) -> list[dict[str, Any]]:
    arguments = bench.parse([str(folder), *words, *SMALL])
    bench.bring_together(arguments.out / "rows.jsonl", arguments.resume, bench.key)
    work = bench.Bench(arguments)
    for name, value in change.items():
        setattr(work, name, value)
    work.run()
    return bench.read(folder / "rows.jsonl")


def told(row: dict[str, Any]) -> dict[str, Any]:
    """A row without what a clock said, and without who ran beside it."""
    return {name: value for name, value in row.items() if "seconds" not in name and name != "together"}


def test_every_cell_has_its_rows(bench, out):
    rows = bench.read(out / "rows.jsonl")
    assert len({bench.key(row) for row in rows}) == len(rows)
    # two models, four behaviours; held out are two, one of them a stand-in; one greedy deployment and two seeds of each cell
    counts = Counter(row["kind"] for row in rows)
    assert counts == {
        "gate": 8,
        "zero-shot": 9,
        "untrained": 9,
        "fresh": 9,
        "adapted": 6,
        "scratch": 6,
        "transfer": 18,
    }
    assert all(
        (row["f_validation"] is not None) == (row["kind"] == "fresh") for row in rows if row["kind"] != "gate"
    )
    assert {row["task"]["pairs"] for row in rows if row["kind"] == "fresh"} == {20}
    zero = [row["behaviour"] for row in rows if row["kind"] == "zero-shot"]
    assert list(dict.fromkeys(zero)) == ["acronyms", "simple-syllogism-same", "ioi"]
    assert not any(
        row["exhibited"] for row in rows if row["kind"] == "gate" and row["behaviour"] == "simple-syllogism"
    )
    by = Counter(
        (row["model"] == "toy", row["policy_model"] == "toy") for row in rows if row["kind"] == "transfer"
    )
    assert by == {(True, False): 6, (False, False): 6, (False, True): 6}
    for row in rows:
        if row["kind"] in bench.TRAINED:
            assert ("learning" in row) == (row["rollouts"] == 0) and row["passes"] > row[
                "passes_training"
            ] > 0


def test_rows_are_what_discover_finds(bench, out, policies):
    folder, model = Path(policies[1]), load_model("toy", device="cpu")
    settings, reward = trained_with(folder)
    for row in bench.read(out / "rows.jsonl"):
        if row["kind"] != "zero-shot" or row["behaviour"] != "acronyms":
            continue
        deployment = Deployment(0.9, row["rollouts"], seed=row["seed"])
        circuit = discover(
            model, get_behaviour("acronyms"), load_policy(folder), deployment, settings, reward
        )
        assert (row["edges"], row["passes"], row["f_test"]) == (
            len(circuit),
            circuit.passes,
            circuit.faithfulness_test,
        )
        assert row["f"] == pytest.approx(circuit.faithfulness, abs=1e-6)


def test_what_was_left_goes_on_to_the_same_rows(bench, out, policies, tmp_path, capsys):
    whole = {bench.key(row): told(row) for row in bench.read(out / "rows.jsonl")}
    some = [
        json.dumps(row)
        for row in whole.values()
        if row["kind"] == "gate" or (row["kind"] == "adapted" and row["seed"])
    ]
    (tmp_path / "some.jsonl").write_text("\n".join([*some, some[-1][:40]]))  # the last line was cut short
    words = [*policies, "--resume", str(tmp_path / "some.jsonl"), "--only", "adapted acronyms"]
    left = measure(
        bench, tmp_path / "out", words, deadline=0.0, check=lambda: None
    )  # out of time after one iteration
    assert [json.dumps(row) for row in left] == some and "time is up" in capsys.readouterr().out
    rows = measure(bench, tmp_path / "out", words)
    assert {bench.key(row): told(row) for row in rows}.items() <= whole.items()
    assert len([row for row in rows if row["behaviour"] == "acronyms" and row["kind"] == "adapted"]) == 3
    again = measure(bench, tmp_path / "out", words)
    assert again == rows and "0 cells to go" in capsys.readouterr().out


def test_more_training_has_the_discount_of_the_policy(bench, out, policies, tmp_path):
    folder = tmp_path / "policy"
    shutil.copytree(policies[1], folder)
    about = json.loads((folder / "run.json").read_text())
    about["ppo"]["gamma"] = 1.0
    (folder / "run.json").write_text(json.dumps(about))
    words = [
        "--policy",
        str(folder),
        "--resume",
        str(out / "rows.jsonl"),
        "--only",
        "(adapted|scratch) acronyms",
    ]
    rows = {bench.key(row): row for row in measure(bench, tmp_path / "out", words)}
    papers = {bench.key(row) for row in bench.read(out / "rows.jsonl")}  # these stay what they were
    ours = [row for name, row in rows.items() if name not in papers]
    assert papers < rows.keys() and Counter(row["kind"] for row in ours) == {"adapted": 3, "scratch": 3}
    assert all(row["training"]["gamma"] == 1.0 for row in ours)
    assert not any(
        "gamma" in row["training"] for name, row in rows.items() if name in papers and row.get("training")
    )
    runs = [json.loads(path.read_text()) for path in (tmp_path / "out" / "work").glob("*/run.json")]
    assert [run["ppo"]["gamma"] for run in runs] == [1.0, 1.0]


def test_a_gpu_trains_in_more_episodes_side_by_side(bench, policies, tmp_path, monkeypatch):
    def envs(policy: str, *words: str) -> int:
        arguments = bench.parse([str(tmp_path), "--policy", policy, *words])
        bench.bring_together(arguments.out / "rows.jsonl", arguments.resume, bench.key)
        return bench.Bench(arguments).arguments.envs

    toy, other = policies[1], policies[3]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert (envs(other), envs(toy), envs(other, "--device", "cpu"), envs(other, "--envs", "64")) == (
        128,
        32,
        32,
        64,
    )
    assert bench.parse(["out", "--table"]).transitions == PPOConfig().transitions == 512


def test_tables_have_every_behaviour_and_say_what_is_missing(bench, out):
    rows = bench.read(out / "rows.jsonl")
    lines = bench.tables(rows)
    text = "\n".join(lines)
    assert (
        "does not exhibit simple-syllogism (so it is); simple-syllogism-same stands in" in text
        and "not run" not in text
    )
    sampled = [
        row for row in rows if row["kind"] == "zero-shot" and row["behaviour"] == "ioi" and row["rollouts"]
    ]
    mean = sum(row["f"] for row in sampled) / len(sampled)
    assert any(line.startswith("| ioi | train |") and f"{mean:.3f} ± " in line for line in lines)
    across = text.partition("# Across models")[2]
    assert (
        across.count("| acronyms |") == across.count("| simple-syllogism-same |") == 4
    )  # two models, two policies
    fewer = "\n".join(
        bench.tables([row for row in rows if row["kind"] != "zero-shot" or row["behaviour"] != "ioi"])
    )
    assert "| ioi | train | not run |" in fewer and "2 of 3 behaviours were run" in fewer


def test_a_card_takes_the_rows_of_its_policy(bench, out, policies):
    card = importlib.import_module("policy_card")
    of = lambda policy: SimpleNamespace(run=Path(policy), rows=out / "rows.jsonl")  # noqa: E731
    lines = card.deployments(of(policies[1]))
    assert "over 2 seeds" in lines[0]
    zero = [row for row in bench.read(out / "rows.jsonl") if row["kind"] == "zero-shot"]
    assert lines[2:] == bench.zero_shot_table(("ioi", "acronyms", "simple-syllogism-same"), zero)
    with pytest.raises(SystemExit, match="no row is of the policy"):
        card.deployments(of(policies[3]))


def test_curves_are_drawn_from_rows(bench, out, tmp_path):
    bench.figure(bench.read(out / "rows.jsonl"), tmp_path / "curves.svg")
    assert (tmp_path / "curves.svg").read_bytes().startswith(b"<?xml") and (tmp_path / "curves.png").exists()
    with open(tmp_path / "curves.csv") as file:
        found = list(csv.DictReader(file))
    of = Counter((row["behaviour"], row["kind"]) for row in found)
    assert set(of) == {
        (name, kind) for name in ("acronyms", "simple-syllogism-same") for kind in bench.TRAINED
    }
    assert all(n <= {"adapted": 2, "scratch": 3}[kind] for (_, kind), n in of.items())
    assert bench.smooth([1.0, 2.0, 3.0]) == [1.0, 1.5, 2.0]
    assert bench.smooth([0.0] * 5 + [1.0] * 10)[-1] == 1.0


def test_greedy_rollouts_of_a_reproduction_are_taken_over_where_the_pairs_are_the_same(
    bench, policies, tmp_path
):
    arguments = bench.parse([str(tmp_path / "out"), *policies[:2], *SMALL, "--found", str(tmp_path)])
    bench.bring_together(arguments.out / "rows.jsonl", None, bench.key)
    work = bench.Bench(arguments)
    (cell,) = [
        c
        for c in bench.cells(work.agent, None, work.shown, arguments)
        if (c.kind, c.behaviour) == ("zero-shot", "ioi")
    ]
    settings = cell.settings.to_json()
    half = settings.pop("half")
    names = (*bench.TAKEN, *(name for name, _ in bench.NUMBERS))
    (tmp_path / "cells").mkdir()
    for seed, checksum in (
        (0, cell.agent.checksum),
        (1, cell.agent.checksum),
        (0, "another policy's"),
    ):  # seed 1: other pairs
        asked = {
            "behaviour": "ioi",
            "method": "policy-greedy",
            "target": "discovery",
            "seed": seed,
            "setting": settings,
        }
        asked |= {"policy": {"checksum": checksum[:16], "half": half}, "deployment": {"trades": True}}
        result = dict.fromkeys(names, 0.9) | {"edges_pruned": 7 + seed, "candidates": 30}
        known = {"arguments": asked, "status": "done", "result": result, "version": "0"}
        (tmp_path / "cells" / f"circuit-{seed}-{checksum[:3]}.json").write_text(json.dumps(known))
    bench.take_over(arguments)
    (row,) = [row for row in bench.read(arguments.out / "rows.jsonl") if row["kind"] == "zero-shot"]
    assert (row["edges"], row["seed"], row["rollouts"], row["behaviour"]) == (7, 0, 0, "ioi")
