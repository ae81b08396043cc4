"""The whole reproduction: on made-up results with known numbers, and a real run that is killed midway."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mechrl.behaviours import behaviours, get_behaviour
from mechrl.circuit import Circuit
from mechrl.errors import MechRLError
from mechrl.experiments import paper_numbers as paper
from mechrl.experiments.cells import Cell
from mechrl.experiments.experiment import Experiment
from mechrl.experiments.paper_tables import all_tables
from mechrl.experiments.reproduce import (
    QUICK,
    Agreement,
    Scope,
    acdc_best,
    agreements,
    choose,
    cost,
    greedy_best,
    spread,
)
from mechrl.experiments.write import write_report
from mechrl.report.tables import Table
from mechrl.stats import Spread
from mechrl.validity.beyond import GREEDY_GRID
from tests.experiments.made_up import gated, made_up, result_of

OF_THE_POLICY = ("table-3-", "table-4-", "table-5-", "table-6-")


def by_name(tables: list[Table]) -> dict[str, list[dict]]:
    return {table.name: table.to_json()["rows"] for table in tables}


def test_the_paper_agrees_with_itself(tmp_path: Path) -> None:
    view = made_up(tmp_path)
    found = agreements(view)
    assert len(found) > 60 and all(a.agrees for a in found)
    assert {a.row for a in found} > {
        "ceiling, metric",
        "ceiling, KL",
        "ACDC, 0.001",
        "ACDC, 0.003",
        "ACDC, 0.01",
    }
    assert {a.behaviour for a in found} == set(paper.COMPARISON)
    rows = by_name(all_tables(view))
    assert len(rows) == 13 and all(row["agrees"] for row in rows["table-13-agreement"])
    for row in rows["table-4-per-behaviour"]:  # ACDC: the paper's choice among its thresholds, from its sweep
        edges, f, passes = paper.COMPARISON[row["behaviour"]].acdc
        assert (
            row["ACDC, whole graph: edges"]["mean"] == edges
            and row["ACDC, whole graph: passes"]["mean"] == passes
        )
        assert row["ACDC, whole graph: f"]["mean"] == pytest.approx(f, abs=0.006)
    assert [row["the paper: f"] for row in rows["table-3-transfer"]] == [
        v.zero_shot[0] for v in paper.TRANSFER.values()
    ]


@pytest.mark.parametrize(
    ("size", "f", "agrees"),
    [(100, 0.9, True), (115, 0.93, True), (116, 0.9, False), (84, 0.9, False), (100, 0.869, False)],
)
def test_agreement_is_what_it_says(size: int, f: float, agrees: bool) -> None:
    assert Agreement("ACDC, 0.01", "ioi", 100, size, 0.9, f).agrees == agrees
    assert Agreement("ceiling", "ioi", None, None, 0.9, f).agrees == (abs(f - 0.9) <= 0.03 + 1e-9)


def test_every_table_counts_its_seeds_and_passes(tmp_path: Path) -> None:
    view = made_up(tmp_path)
    for table in all_tables(view):
        assert table.command == view.command and table.rows
        headings = " ".join(table.headings)
        if table.name not in (
            "table-1-features",
            "table-10-summary",
            "table-12-beside",
            "table-13-agreement",
        ):
            assert "seeds" in headings and "passes" in headings, table.name
    rows = by_name(all_tables(view))
    for row in rows["table-8-matched-discovery"]:
        adapted = row["method"] == "The paper's agent, adapted"
        assert row["seeds"] == row["edges"]["n"] == (2 if adapted else 3)
        assert not adapted or get_behaviour(row["behaviour"]).split == "held-out"
    results = view.results(view.cells.matched, "test", "ioi", "blockwise")
    (row,) = [
        r
        for r in rows["table-9-matched-test"]
        if (r["behaviour"], r["method"]) == ("ioi", "Blockwise search")
    ]
    assert row["edges"] == vars(Spread.of(r["edges_pruned"] for r in results)) and len(results) == 3


def test_the_tables_of_the_paper_say_how_the_policys_circuits_were_chosen(tmp_path: Path) -> None:
    view = made_up(tmp_path, scope=Scope(seeds=(0,), only=QUICK.only))
    texts = {table.name: table.caption + " ".join(table.notes) for table in all_tables(view)}
    rule = "the most faithful of the last masks of 16 sampled rollouts and a greedy one"
    assert [key for key, text in texts.items() if rule in text] == [
        key for key in texts if key[:8] in OF_THE_POLICY
    ]
    assert "not matched in f" in texts["table-4-per-behaviour"]
    write_report(view, tmp_path)
    plane = json.loads((tmp_path / "figures" / "figure-4-cost.json").read_text())["data"]["plane"]
    assert len(plane["The paper's agent"]) == 2


def test_what_it_costs_is_known_beforehand() -> None:
    """The paper's costs: training of order 6 · 10^5, 17 rollouts of 150 steps, some 40,000 for a warm start."""
    chosen = choose(gated())
    whole = cost(Scope(seeds=(0,)), chosen, trains=True)
    assert whole["training"] == 614_400 and whole["adaptation and its control"] == 7 * 280 * 512
    assert whole["deployment"] == 17 * 150 * (10 + 2 * 7)
    assert cost(Scope(seeds=(0,)), chosen, trains=False)["training"] == 0


def test_nothing_done_is_nothing_shown(tmp_path: Path) -> None:
    view = made_up(tmp_path, model="other", fill=False)
    assert view.count() == (0, 0, len({c.name for c in view.cells}))
    rows = by_name(all_tables(view))
    assert "table-13-agreement" not in rows and rows["table-10-summary"] == rows["table-12-beside"] == []
    assert all(
        row["edges"] is None and "not done yet" in row["remarks"] for row in rows["table-8-matched-discovery"]
    )
    written = write_report(view, tmp_path)
    assert "0 of" in written.report.read_text() and written.lines == []


def test_the_policy_is_held_against_each_search_case_by_case(tmp_path: Path) -> None:
    view = made_up(tmp_path, scope=Scope(seeds=(0, 1), only=QUICK.only))

    def put(
        target: str, name: str, method: str, seed: int, edges: int, passes: float, reached: bool = True
    ) -> None:
        cell = view.cells.matched[target, name, method, seed]
        known = {"edges_pruned": edges, "passes": passes, "reached": reached}
        view.workspace.write(cell, "done", result=result_of(cell) | known)

    for case, own, theirs in (
        (("ioi", 0), (50, 100.0), (100, 400.0)),  # the policy is better on both axes
        (("ioi", 1), (100, 400.0), (50, 100.0)),  # on neither
        (("acronyms", 0), (80, 100.0), (80, 200.0)),  # as small, and cheaper
        (("acronyms", 1), (70, 100.0, False), (80, 200.0)),  # short of τ
    ):
        put("discovery", case[0], "paper", case[1], *own)
        put("discovery", case[0], "acdc", case[1], *theirs)
    rows = by_name(all_tables(replace(view)))["table-12-beside"]
    key = ("policy", "beside")
    by = {tuple(row[k] for k in key): {k: v for k, v in row.items() if k not in key} for row in rows}
    part = "the policy is, where both reach τ: "
    assert by["The paper's agent", "ACDC"] == {
        "both done": 4,
        "reach τ: both": 3,
        "reach τ: only policy": 0,
        "reach τ: only search": 1,
        **{
            part + word: n
            for word, n in (("smaller", 1), ("as small", 1), ("cheaper", 2), ("both", 1), ("neither", 1))
        },
        "policy / search: edges": pytest.approx(1.0),
        "policy / search: passes": pytest.approx(0.5 ** (1 / 3)),
    }


def test_a_seed_that_some_methods_are_not_done_with_is_left_out_of_the_summary(tmp_path: Path) -> None:
    view = made_up(tmp_path, scope=Scope(seeds=(0, 1), only=QUICK.only))
    view.workspace.path(view.cells.matched["discovery", "ioi", "acdc", 1]).unlink()
    (summary,) = [table for table in all_tables(replace(view)) if table.name == "table-10-summary"]
    rows = {r["method"]: r for r in summary.to_json()["rows"] if r["matched on"] == "discovery pairs"}
    kept = [
        view.cells.matched["discovery", *case]
        for case in (("ioi", "greedy", 0), ("acronyms", "greedy", 0), ("acronyms", "greedy", 1))
    ]
    assert rows["EAP-IG greedy"]["f discovery"] == vars(Spread.of(result_of(cell)["f"] for cell in kept))
    assert rows["EAP-IG greedy"]["reached τ"] == "3 of 3" and rows["EAP-IG greedy"]["behaviours"] == 2
    assert (
        "Matched on discovery pairs, left out until every method is done with them: ioi (seed 1)."
        in summary.notes
    )
    wins = sum(int(row["smallest on"].split()[0]) for row in rows.values())
    assert (
        wins >= 3
    )  # of three behaviours and seeds each, one method has the smallest circuit, or several tie


def test_failed_cells_are_shown(tmp_path: Path) -> None:
    view = made_up(tmp_path, scope=Scope(seeds=(0,), only=QUICK.only))
    cell = view.cells.matched["test", "ioi", "acdc", 0]
    view.workspace.write(cell, "failed", reason="out of <memory>")
    view = replace(view)
    done, failed, total = view.count()
    assert (failed, done) == (1, total - 1)
    (row,) = [
        r
        for r in by_name(all_tables(view))["table-9-matched-test"]
        if (r["behaviour"], r["method"]) == ("ioi", "ACDC")
    ]
    assert row["edges"] is None and row["remarks"] == "failed on 1 of 1: out of <memory>"
    summary = next(table for table in all_tables(view) if table.name == "table-10-summary")
    counted = {(r["matched on"], r["method"]): r["behaviours"] for r in summary.to_json()["rows"]}
    for method in ("ACDC", "Blockwise search"):  # compared where both are done
        assert counted["discovery pairs", method] == 2 and counted["fresh pairs", method] == 1
    assert "Matched on fresh pairs, left out until every method is done with them: ioi." in summary.notes
    html = write_report(view, tmp_path).report.read_text()
    assert "1\nfailed" in html and "out of &lt;memory&gt;" in html and "<memory>" not in html


def test_the_page_says_by_which_other_commands_its_cells_were_made(tmp_path: Path) -> None:
    view = made_up(tmp_path, scope=Scope(seeds=(0,), only=QUICK.only))
    by = (
        f"{view.command} --jobs 3",
        "mechrl compare --half --out 'a b' --seconds 9.5 --jobs=2",
        "mechrl compare --half",
    )
    for record, command in zip(view.records.values(), by, strict=False):
        record["context"] = {"command": command}
    html = write_report(view, tmp_path).report.read_text()
    assert html.count("cells also by") == 1 and "mechrl compare --half<" in html


def test_the_page_needs_nothing_else_and_escapes(tmp_path: Path) -> None:
    view = made_up(tmp_path, scope=Scope(seeds=(0, 1)))
    html = write_report(view, tmp_path).report.read_text()
    assert "http:" not in html and "https:" not in html and "<script" not in html
    assert all(uri.startswith(("data:", "#")) for uri in re.findall(r'(?:src|href)="([^"]*)"', html))
    assert "<b>ioi</b>" not in html and "&lt;b&gt;ioi&lt;/b&gt;" in html and "--model &lt;gpt2&gt;" in html
    # five figures and thirteen tables; the findings, which show figure 5 too, and the provenance
    assert html.count("<img") == 5 + 1 and html.count("<section") == 5 + 13 + 2
    for kind, n in (("csv", 13), ("json", 13), ("md", 13)):
        assert len(list((tmp_path / "tables").glob(f"*.{kind}"))) == n
    for svg in (tmp_path / "figures").glob("*.svg"):
        assert svg.with_suffix(".png").read_bytes().startswith(b"\x89PNG") and svg.read_bytes().startswith(
            b"<?xml"
        )
        assert json.loads(svg.with_suffix(".json").read_text())["command"] == view.command


def test_a_behaviour_that_is_not_exhibited_is_replaced_or_left_out() -> None:
    chosen = choose(gated("smollm2", without=("simple-syllogism", "country-capital", "ioi")))
    assert chosen.trained == ["ioi-2", "greater-than", "docstring"]
    assert "simple-syllogism-same" in chosen.held_out and "country-capital" not in chosen.held_out
    assert len(chosen.notes) == 2 and "stands in for it" in chosen.notes[0]
    assert choose(gated(), QUICK.only).all == ["ioi", "acronyms"]
    assert choose(gated()).held_out == [b.name for b in behaviours("held-out")]


def test_the_first_seed_comes_first(tmp_path: Path) -> None:
    view = made_up(tmp_path, fill=False)
    order = [cell.name for cell in view.cells]
    groups = [
        *view.cells.curves.values(),
        *view.cells.policy.values(),
        *view.cells.acdc.values(),
        *view.cells.matched.values(),
    ]
    groups += [*view.cells.adapted.values(), *view.cells.scratch.values()]
    assert sorted(order) == sorted({cell.name for cell in groups})  # cells that two tables share are run once
    seeds = [cell.arguments["seed"] for cell in view.cells]
    assert seeds == sorted(seeds) and set(seeds) == {0, 1, 2}


def test_one_circuit_serves_all_tables_of_the_papers_agent(tmp_path: Path) -> None:
    cells = made_up(tmp_path, fill=False).cells
    for method, group in (("paper", cells.policy), ("paper-adapted", cells.adapted)):
        for (name, seed), cell in group.items():
            assert cell.arguments["assess"] and cells.matched["discovery", name, method, seed] is cell
    assert not any(key[0] == "test" and key[2].startswith("paper") for key in cells.matched)


def test_what_was_done_for_some_counts_for_all(tmp_path: Path) -> None:
    some = made_up(tmp_path, scope=Scope(seeds=(0, 2), only=("ioi", "acronyms"), methods=("greedy", "paper")))
    everything = made_up(tmp_path, fill=False)
    assert everything.count()[0] == some.count()[0] == len(list(some.cells)) < len(list(everything.cells))


def test_best_of_a_sweep(tmp_path: Path) -> None:
    view = made_up(tmp_path, scope=Scope(seeds=(0,)))
    assert [acdc_best(view, name, 0.9)[0] for name in ("ioi", "greater-than", "country-capital")] == [
        0.01,
        0.003,
        0.001,
    ]
    curve = {"greedy_sizes": list(GREEDY_GRID), "greedy_kl": [i / 10 for i in range(len(GREEDY_GRID))]}
    assert greedy_best([curve], "kl", 0.45) == (1000, Spread(0.5, None, 1))
    assert greedy_best([curve], "kl", 0.99)[0] == GREEDY_GRID[-1] and greedy_best([], "kl", 0.9) is None
    assert spread([{"a": {"b": 1}}, {"a": None}, {"a": {"b": 3}}], "a", "b") == Spread.of([1, 3])


@pytest.mark.slow
def test_reproduce_quick(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mechrl.cli",
        "reproduce",
        "--model",
        "toy",
        "--quick",
        "--device",
        "cpu",
        "--out",
        str(tmp_path),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MECHRL_CACHE": str(tmp_path / "cache")}
    run = subprocess.run(command, capture_output=True, env=environment, timeout=300, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [str(tmp_path / "report.html")]
    # one iteration of 32; on both behaviours, adapted and from scratch 3 episodes of 6 steps; 2 + 3 iterations of 32
    assert f"the paper's agent will take at most {32 + 4 * 3 * 6 + 5 * 32} passes" in run.stderr
    html = (tmp_path / "report.html").read_text()
    names = [p.name for p in (tmp_path / "cells").glob("*.json") if not p.name.startswith(("gate", "train"))]
    assert f"{len(names)} of {len(names)} cells done." in html
    tables = {p.stem: json.loads(p.read_text())["rows"] for p in (tmp_path / "tables").glob("*.json")}
    assert len(tables) == 12 and all(tables.values())
    (row,) = tables["table-3-transfer"]
    assert row["behaviour"] == "acronyms" and row["zero-shot: f"]["n"] == row["warm start: f"]["n"] == 1
    # every circuit in the tables can be viewed and validated again
    for path in (tmp_path / "circuits").glob("*.json.gz"):
        Circuit.load(path)
    assert len(list((tmp_path / "circuits").glob("*.json.gz"))) == len(
        [n for n in names if n.startswith("circuit-")]
    )


@pytest.mark.parametrize(("kind", "said"), [("gate", "no gate done"), ("train", "give one by --policy")])
def test_a_report_alone_runs_nothing(kind: str, said: str, tmp_path: Path) -> None:
    with (
        Experiment("toy", tmp_path, None, "cpu", 1, None, reads_only=True) as experiment,
        pytest.raises(MechRLError, match=said),
    ):
        experiment.need(Cell(kind, {}))
    assert not list(tmp_path.rglob("*.json"))
