"""Every search on every behaviour that a model exhibits: a row per search, four tables.

    python benchmarks/search_smollm2.py OUT [--model smollm2] [--resume ROWS.jsonl] [--seconds S]      appends to OUT/rows.jsonl
    python benchmarks/search_smollm2.py OUT --found FOLDER          imports the searches of `mechrl reproduce --out FOLDER`
    python benchmarks/search_smollm2.py OUT --table                                                    prints the tables as Markdown

discovery  all methods at f ≥ 0.9 on 20 discovery pairs, with f on test pairs
fresh      all methods at f ≥ 0.9 on validation pairs, with f on test pairs
pairs      f on test pairs against the number of discovery pairs
seeds      blockwise search on other draws of 20 discovery pairs

Cells run in order of importance, and those with a row are skipped, so the script can be stopped at any time and run again. With --jobs
several processes share the work (a GPU has room for many searches of 20 pairs); seconds are then measured on a shared device.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rows import append, bring_together, claimed, done_cells, judged, keep_to_share, read, share

import mechrl
from mechrl import gate
from mechrl.behaviours import TEST_SEED, behaviours, get_behaviour
from mechrl.circuit import Circuit
from mechrl.engine import Engine
from mechrl.errors import MechRLError, OutOfMemory
from mechrl.models import load_model
from mechrl.models.base import Model
from mechrl.search.problem import Interrupted, State
from mechrl.search.session import SearchSettings, prepare
from mechrl.stats import Spread
from mechrl.validity.benchmark_metrics import benchmark_metrics

GROWING = ("gendered-pronoun", "acronyms", "greater-than", "country-capital")  # in the table by pairs
SHARP = (  # their circuits have at most a few hundred edges; the others come last in the table of fresh pairs, where they take long
    *GROWING,
    "greater-than-2",
    "greater-than-3",
    "greater-than-4",
    "ioi-3",
    "opposite-syllogism",
    "simple-syllogism-same",
    "multiple-choice-labels",
)
WHOLE = ("gendered-pronoun", "greater-than", "ioi")  # ACDC over the whole graph
N_PAIRS = (10, 20, 50, 100, 200)
SEEDS = range(5)
THRESHOLDS = (0.01, 0.003, 0.001)
FRESH_PAIRS = 100  # discovery pairs of the second table


@dataclass(frozen=True)
class Cell:
    importance: int  # lower comes first
    table: str
    behaviour: str
    settings: SearchSettings

    @property
    def key(self) -> str:
        return json.dumps([self.table, self.behaviour, self.settings.to_json()], sort_keys=True)

    @property
    def label(self) -> str:
        s = self.settings
        name = {
            "top-n": "EAP-IG top-n",
            "greedy": "EAP-IG greedy",
            "acdc": "ACDC",
            "edge-pruning": "Edge Pruning",
        }.get(s.method, s.method)
        if s.method in ("top-n", "greedy") and s.prefilter == "kl":
            name += " (KL)"
        if s.whole_graph:
            name += ", whole graph"
        if s.method == "acdc" and len(s.thresholds) == 1:
            name += f", {s.thresholds[0]:g}"
        return name


def cells(names: list[str]) -> list[Cell]:
    """All cells, the most important first: those that others are compared with, then table by table.

    Edge Pruning is slow and comes late; the table of fresh pairs omits it, because each aim would be another descent. Whole graphs at low
    thresholds come last.
    """
    found = []
    for name in names:
        fresh = 2 if name in SHARP else 6
        found.append(Cell(0, "discovery", name, SearchSettings("blockwise")))
        found += [Cell(1, "discovery", name, SearchSettings("acdc", thresholds=(t,))) for t in THRESHOLDS]
        if name in WHOLE:
            one = [SearchSettings("acdc", thresholds=(t,), whole_graph=True) for t in THRESHOLDS]
            found += [Cell(1 if i == 0 else 5, "discovery", name, s) for i, s in enumerate(one)]
        # top-n and greedy rank by one score
        for method in ("top-n", "greedy"):
            found += [
                Cell(1, "discovery", name, SearchSettings(method, prefilter=p)) for p in ("metric", "kl")
            ]
            found.append(
                Cell(
                    fresh,
                    "fresh",
                    name,
                    SearchSettings(method, pairs=FRESH_PAIRS, holds_on="fresh", prefilter="metric"),
                )
            )
        # elsewhere there are ten thousand candidates or more, and ACDC tests every one of them on all pairs, three times
        for method in ("blockwise", "acdc") if name in SHARP else ("blockwise",):
            found.append(
                Cell(fresh, "fresh", name, SearchSettings(method, pairs=FRESH_PAIRS, holds_on="fresh"))
            )
        found.append(Cell(4, "discovery", name, SearchSettings("edge-pruning")))
        if name in GROWING:
            found += [Cell(1, "seeds", name, SearchSettings("blockwise", seed=seed)) for seed in SEEDS]
            for n in N_PAIRS:
                for settings in (
                    SearchSettings("blockwise"),
                    SearchSettings("top-n", prefilter="metric"),
                    SearchSettings("acdc", thresholds=(0.003,)),
                ):
                    found.append(Cell(3, "pairs", name, replace(settings, pairs=n)))
    return sorted(found, key=lambda cell: cell.importance)


def run(model: Model, cell: Cell, deadline: float) -> dict[str, Any]:
    def checkpoint(state: State) -> None:
        if time.monotonic() > deadline:
            raise Interrupted

    row = {**about(cell), "model": model.name, "version": mechrl.__version__, "torch": torch.__version__}
    row["device"] = torch.cuda.get_device_name() if model.device.type == "cuda" else "cpu"
    behaviour = get_behaviour(cell.behaviour)
    try:
        session = prepare(model, behaviour, cell.settings)
        session.problem.checkpoint = checkpoint
        state = session.run()
        circuit = session.circuit(state)
    except OutOfMemory:  # caused by other processes on the device, so not a result
        raise
    except MechRLError as exc:
        return row | {"error": str(exc)}
    row |= result(circuit) | {"kl_cut": session.problem.engine.kl_cut, "aim": session.aim}
    row |= {key: value for key, value in state.extra.items() if key.startswith(("tested", "evaluated"))}
    return row | areas(model, circuit) if cell.table == "discovery" else row


def same_search(cell: Cell, rows: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """This cell's row, copied from another table with the same search."""
    known = (
        row
        for row in rows
        if row["behaviour"] == cell.behaviour and row["settings"] == cell.settings.to_json()
    )
    return next((row | about(cell) for row in known if "error" not in row), None)


def about(cell: Cell) -> dict[str, Any]:
    """The beginning of a cell's row."""
    known = {"key": cell.key, "table": cell.table, "behaviour": cell.behaviour, "label": cell.label}
    return known | {"settings": cell.settings.to_json()}


def result(circuit: Circuit) -> dict[str, Any]:
    return {
        "pairs": circuit.pairs,
        "candidates": circuit.settings["candidates"],
        "k": circuit.settings["k_used"],
        "f": circuit.faithfulness,
        "f_test": circuit.faithfulness_test,
        "f_validation": circuit.faithfulness_validation,
        "edges": len(circuit),
        "edges_pruned": circuit.size,
        "passes": circuit.passes,
        "seconds": circuit.seconds,
        "note": circuit.settings["note"],
    }


def areas(model: Model, circuit: Circuit) -> dict[str, float]:
    assert model.tokenizer is not None
    pairs = get_behaviour(circuit.behaviour).pairs(model.tokenizer, 20, TEST_SEED, n_ctx=model.spec.n_ctx)
    metrics = benchmark_metrics(Engine(model, pairs), pairs, circuit)
    return {"cpr": metrics.cpr, "cmd": metrics.cmd}


def found_in(folder: Path, wanted: list[Cell]) -> Iterator[tuple[Cell, Circuit, str]]:
    """The cells of the first table that a reproduction's folder has, their circuits, and the device that searched."""
    by_key = {cell.key: cell for cell in wanted if cell.table == "discovery"}
    for known in done_cells(folder):
        circuit = Circuit.load(folder / known["result"]["circuit"])
        settings = {
            name: circuit.settings[name]
            for name in SearchSettings("greedy").to_json() | {"thresholds": 0}
            if name in circuit.settings
        }
        if cell := by_key.get(json.dumps(["discovery", circuit.behaviour, settings], sort_keys=True)):
            yield cell, circuit, known["result"]["device"]


def take_over(arguments: argparse.Namespace) -> None:
    """CPR and CMD are computed here; all else is what the reproduction measured."""
    rows = bring_together(arguments.out / "rows.jsonl", arguments.resume, of_cell)
    model = load_model(arguments.model, device=arguments.device)
    wanted = [
        cell for cell in cells([b.name for b in behaviours(with_relations=False)]) if cell.key not in rows
    ]
    for cell, circuit, device in found_in(arguments.found, wanted):
        row = {
            **about(cell),
            "model": circuit.model,
            "version": circuit.version,
            "device": device,
            **result(circuit),
        }
        append(arguments.out / "rows.jsonl", [row | areas(model, circuit)])
        print(f"{cell.behaviour} {cell.label}: {line(row)}", flush=True)


def line(row: dict[str, Any]) -> str:
    """For people."""
    if "error" in row:
        return row["error"]
    return "{edges_pruned} edges, f {f:.3f}, test {f_test:.3f}, {passes:.0f} passes, {seconds:.1f} s".format(
        **row
    )


def of_cell(row: dict[str, Any]) -> str:
    return row["key"]


def measure(arguments: argparse.Namespace) -> None:
    deadline = time.monotonic() + arguments.seconds
    path = arguments.out / "rows.jsonl"
    rows = (
        {row["key"]: row for row in read(path)}
        if arguments.claims
        else bring_together(path, arguments.resume, of_cell)
    )
    model = load_model(arguments.model, device=arguments.device)
    asked = (
        arguments.behaviours.split(",")
        if arguments.behaviours
        else [b.name for b in behaviours(with_relations=False)]
    )
    verdicts = [gate.judge(model, get_behaviour(name)) for name in asked]
    for verdict in verdicts:
        if not verdict.exhibited:
            print(f"{verdict.name}: not exhibited ({verdict.reason})", flush=True)
    todo = [cell for cell in cells([v.name for v in verdicts if v.exhibited]) if cell.key not in rows]
    if arguments.only:
        todo = [cell for cell in todo if arguments.only in f"{cell.table} {cell.settings.method}"]
    todo = [cell for cell in todo if cell.settings.method not in arguments.without.split(",")]
    print(f"{len(rows)} rows, {len(todo)} cells to go", flush=True)
    for i, cell in enumerate(todo):
        if arguments.claims and not claimed(arguments.claims, cell.key):
            continue
        if time.monotonic() > deadline:
            print(f"time is up, {len(todo) - i} cells to go")
            return
        begin = time.monotonic()
        try:
            row = same_search(cell, rows.values()) or run(model, cell, deadline)
        except Interrupted:
            print(
                f"time is up within {cell.table} {cell.behaviour} {cell.label}, {len(todo) - i} cells to go"
            )
            return
        except (OutOfMemory, torch.cuda.OutOfMemoryError):
            print(
                f"{cell.table} {cell.behaviour} {cell.label}: out of memory; to be run again with fewer --jobs",
                flush=True,
            )
            continue
        append(path, [row])
        took = time.monotonic() - begin
        print(
            f"[{i + 1}/{len(todo)}, {took:.1f} s] {cell.table} {cell.behaviour} {cell.label}: {line(row)}",
            flush=True,
        )


def tables(rows: list[dict[str, Any]]) -> None:
    """Every cell of the behaviours at hand: those without a row say so."""
    known = {row["key"]: row for row in rows}
    rows = [row for row in known.values() if "error" not in row]
    wanted = cells(list(dict.fromkeys(row["behaviour"] for row in known.values())))
    titles = {
        "discovery": "f ≥ 0.9 on 20 discovery pairs",
        "fresh": f"f ≥ 0.9 on fresh pairs (validation decides; {FRESH_PAIRS} discovery pairs)",
    }
    for table, title in titles.items():
        print(f"\n## {title}\n")
        print(
            "| behaviour | method | edges | raw | f discovery | f test | passes | seconds | candidates | CPR | CMD |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        mine = [cell for cell in wanted if cell.table == table]
        names = list(dict.fromkeys(cell.behaviour for cell in mine))
        for cell in sorted(mine, key=lambda cell: (names.index(cell.behaviour), cell.label)):
            row = known.get(cell.key, {"error": "not run"})
            print("|", " | ".join([cell.behaviour, cell.label, *columns(row)]), "|")
    mine = [cell for cell in wanted if cell.table == "pairs"]
    if mine:
        print("\n## f on test pairs against the number of discovery pairs (edges, f discovery → f test)\n")
        print("| behaviour | method |", " | ".join(map(str, N_PAIRS)), "|")
        print("| --- | --- |", " | ".join("---" for _ in N_PAIRS), "|")
        for name, label in dict.fromkeys((cell.behaviour, cell.label) for cell in mine):
            keys = {
                cell.settings.pairs: cell.key
                for cell in mine
                if (cell.behaviour, cell.label) == (name, label)
            }
            texts = []
            for n in N_PAIRS:
                row = known.get(keys[n], {"error": "not run"})
                texts.append(
                    row["error"]
                    if "error" in row
                    else f"{row['edges_pruned']}, {row['f']:.3f} → {row['f_test']:.3f}"
                )
            print(f"| {name} | {label} |", " | ".join(texts), "|")
        fewer = sorted(
            {(row["behaviour"], row["pairs"]) for row in rows if row["pairs"] < row["settings"]["pairs"]}
        )
        for name, n in fewer:
            print(f"\n{name} has {n} discovery pairs in all.")
    names = list(dict.fromkeys(cell.behaviour for cell in wanted if cell.table == "seeds"))
    if names:
        print("\n## Blockwise search on five draws of 20 discovery pairs (f ≥ 0.9 on these)\n")
        print("| behaviour | draws | edges | passes | f test | edges of each |")
        print("| --- | --- | --- | --- | --- | --- |")
    for name in names:
        some = [
            known[c.key]
            for c in wanted
            if (c.table, c.behaviour) == ("seeds", name) and "edges" in known.get(c.key, {})
        ]
        if some:
            spreads = [Spread.of(row[key] for row in some) for key in ("edges_pruned", "passes", "f_test")]
            texts = [spread.text(digits) for spread, digits in zip(spreads, (1, 0, 3), strict=True)]
            print(
                f"| {name} | {len(some)} |",
                " | ".join(texts),
                "|",
                ", ".join(str(row["edges_pruned"]) for row in some),
                "|",
            )
    missing = sum(cell.key not in known for cell in wanted)
    print(f"\n{len(wanted) - missing} of {len(wanted)} cells were run.")
    searches = [row for row in rows if row["table"] == "discovery" and row["settings"]["whole_graph"]]
    if searches:
        slowest = max(searches, key=lambda row: row["seconds"])
        evaluated = np.sum([v for k, v in slowest.items() if k.startswith("evaluated")])
        circuits = (
            f" ({evaluated:,.0f} circuits evaluated)" if evaluated else ""
        )  # a row that was taken over does not say
        print(
            f"\nSlowest ACDC over the whole graph: {slowest['behaviour']}, {slowest['seconds']:.0f} s for {slowest['passes']:,.0f} passes"
            f"{circuits} on {slowest['device']}."
        )


def columns(row: dict[str, Any]) -> list[str]:
    if "error" in row:
        return [row["error"], *["–"] * 8]
    short = "" if judged(row) >= row["settings"]["tau"] else " (short of τ)"
    result = [f"{row['edges_pruned']}{short}", str(row["edges"]), f"{row['f']:.3f}", f"{row['f_test']:.3f}"]
    result += [f"{row['passes']:.0f}", f"{row['seconds']:.1f}", str(row["candidates"])]
    return result + [f"{row[key]:.3f}" if key in row else "–" for key in ("cpr", "cmd")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--behaviours", default="", help="comma-separated; default: all that the model exhibits"
    )
    parser.add_argument("--only", default="", help="only cells whose 'table method' contains this")
    parser.add_argument("--without", default="", help="comma-separated methods to leave out")
    parser.add_argument("--resume", type=Path, help="rows of an earlier run")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop cleanly after so long")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the work, as --jobs=N")
    parser.add_argument("--claims", type=Path, help=argparse.SUPPRESS)
    parser.add_argument(
        "--found", type=Path, help="folder of `mechrl reproduce`, of which the same searches are taken over"
    )
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if arguments.table:
        tables(read(arguments.out / "rows.jsonl"))
    elif arguments.found:
        take_over(arguments)
    elif arguments.jobs > 1:
        bring_together(arguments.out / "rows.jsonl", arguments.resume, of_cell)
        share(arguments.jobs)
    else:
        if arguments.claims:
            keep_to_share()
        measure(arguments)


if __name__ == "__main__":
    main()
