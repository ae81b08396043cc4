"""A reproduction without a model: cells filled with known numbers, to test the tables and figures made from them."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from mechrl.behaviours import behaviours
from mechrl.experiments import paper_numbers as paper
from mechrl.experiments.cells import Cell, Workspace
from mechrl.experiments.compare import Agent, Budget
from mechrl.experiments.experiment import GateResult
from mechrl.experiments.reproduce import Scope, View, cells_of, choose
from mechrl.validity.beyond import GREEDY_GRID, K_GRID


def gated(model: str = "gpt2", without: tuple[str, ...] = ()) -> GateResult:
    names = [b.name for b in behaviours(with_relations=False) if b.name not in without]
    verdicts = {
        b.name: {
            "name": b.name,
            "exhibited": b.name in names,
            "reason": "accuracy 0.50 < 0.8",
            "accuracy": 1.0,
        }
        for b in behaviours(with_relations=False)
    }
    examples = {
        b.name: {"prompt": f"The <b>{b.name}</b> & co. of", "answer": "it"}
        for b in behaviours(with_relations=False)
    }
    graph = {"layers": 12, "heads": 12, "kv_heads": 12, "edges": 32491, "nodes": 158}
    return GateResult({"model": model, "checksum": "0"}, graph, names, verdicts, examples)


def made_up(
    folder: Path,
    model: str = "gpt2",
    scope: Scope | None = None,
    without: tuple[str, ...] = (),
    fill: bool = True,
    agent: Agent = Agent("0123456789abcdef", 3000, "metric", {}),  # noqa: B008 (frozen)
) -> View:
    """With `fill`, every cell is done. Deterministic rows equal the paper's."""
    scope = scope or Scope(costly_seeds=(0, 1), budget=Budget())
    known = gated(model, without)
    chosen = choose(known, scope.only)
    cells = cells_of(scope, known, chosen, agent)
    workspace = Workspace(folder, lambda resources, cell: {}, lambda workspace: None)
    training = {"trained_in": "smollm2", "trained_on": ["ioi", "docstring"], "passes": 614400.0}
    if fill:
        for cell in cells:
            workspace.write(cell, "done", result=result_of(cell))
    return View(scope, known, chosen, cells, workspace, agent, training, "mechrl reproduce --model <gpt2>")


def result_of(cell: Cell) -> dict[str, Any]:
    a = cell.arguments
    name, rng = a["behaviour"], Random(cell.name)
    if cell.kind == "curves":
        f = [1 - (1 + k / 100) ** -1 + rng.gauss(0, 0.002) for k in K_GRID]
        theirs = paper.COMPARISON.get(name)
        by_metric, by_kl = (dict([theirs.greedy_metric]), dict([theirs.greedy_kl])) if theirs else ({}, {})
        ceilings = paper.CEILINGS.get(name, paper.Ceilings(0.95, 0.95, 0.95))
        return {
            "kl_cut": 4.65,
            "k": list(K_GRID),
            "f_metric": f,
            "ceiling": 0.95,
            "ceiling_metric": ceilings.metric,
            "ceiling_kl": ceilings.kl,
            "candidates": 3000,
            "greedy_sizes": list(GREEDY_GRID),
            "greedy_metric": [by_metric.get(n, 1 - (1 + n / 80) ** -1) for n in GREEDY_GRID],
            "greedy_kl": [by_kl.get(n, 1 - (1 + n / 80) ** -1) for n in GREEDY_GRID],
            "passes": 55.0,
            "seconds": 1.0,
            "device": "a device",
        }
    sizes = {
        "paper": 500,
        "paper-adapted": 400,
        "paper-from-scratch": 800,
        "acdc": 200,
        "blockwise": 90,
    }
    edges, f, passes = (
        round(sizes.get(a["method"], 700) * rng.lognormvariate(0, 0.4)),
        0.9 + 0.08 * rng.random(),
        40000 * rng.random(),
    )
    if a["target"] == "paper" and a["method"] == "acdc" and name in paper.ACDC:
        edges, f, passes = paper.ACDC[name][paper.ACDC_THRESHOLDS.index(a["search"]["thresholds"][0])]
    spread = {"mean": 0.01, "sd": 0.02, "n": 20}
    controls = [
        {"drawn_from": d, "matched": m, "f": spread, "metric": spread}
        for d in ("candidates", "graph")
        for m in ("raw", "pruned")
    ]
    recovery = {"recovered": 7, "known": ["a"] * 8, "expected": 2.5, "precision": 0.12}
    gain = {
        "edges": edges,
        "f": f,
        "f_top": f - 0.03,
        "gain": rng.gauss(0.03, 0.03),
        "gain_pruned": 0.02,
        "gain_test": 0.01,
    }
    gain |= {
        "discordant_share": 0.4,
        "discordant_chance": 0.8,
        "cost": abs(rng.gauss(0.2, 0.1)),
        "cost_test": 0.2,
        "cost_random": spread,
    }
    steps = range(1, 81)
    return {
        "edges": edges,
        "edges_pruned": edges,
        "f": f,
        "f_test": f - 0.05 * rng.random(),
        "f_validation": f,
        "reached": f >= 0.9,
        "passes": passes,
        "seconds": 12.3,
        "candidates": 3000,
        "passes_training": 41000.0,
        "learning": {
            "iteration": list(steps),
            "share": [0.2 + 0.7 / i**0.5 for i in steps],
            "f": [0.9 for _ in steps],
        },
        "validity": {
            "necessity": 0.003,
            "necessity_random": spread,
            "necessity_metric": 0.01,
            "specificity": controls,
            "recovery": recovery,
            "variants": [
                {"behaviour": "x", "f": 0.8, "reason": ""},
                {"behaviour": "y", "f": None, "reason": "not exhibited"},
            ],
        },
        "beyond": gain,
        "device": "a device",
    }
