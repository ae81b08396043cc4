"""The planner on families that it was not fitted on, beside the same agent with untrained costs and blockwise search.

    mechrl planner collect --model smollm2 --draws 0 --jobs 2 --out RECORDS
    python benchmarks/planner.py fit RECORDS OUT [--jobs=2]    two networks, one without the families of `DEVELOPED`; how it predicts those
    python benchmarks/planner.py run OUT [--jobs=2]            episodes and searches, a row each in OUT/rows.jsonl; resumes
    python benchmarks/planner.py tables OUT                    OUT/tables.md

A behaviour's planner was fitted without its family. The agent was designed by looking at `DEVELOPED`. Those of `LOCKED` are in no
network's records, and nobody looked at them before the agent was final. Passes include all looks and, for blockwise search, its prefilter.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import geometric_mean, mean, median, stdev
from typing import Any

import numpy as np
import torch
from rows import append, claimed, keep_to_share, read, share

from mechrl.agents.planner import records
from mechrl.agents.planner.assess import assess
from mechrl.agents.planner.fit import FitSettings, fit
from mechrl.agents.planner.network import load_model as load_network
from mechrl.agents.planner.network import save_model
from mechrl.agents.planner.session import DiscoverSettings, HoldsOn, discover
from mechrl.agents.planner.untrained import Gradients
from mechrl.behaviours import get_behaviour
from mechrl.circuit import Circuit
from mechrl.models import load_model
from mechrl.search.session import SearchSettings, search

LOCKED = (
    *("product-company", "element-symbol", "state-abbreviation", "workplace"),
    *("negative-prefix", "category", "first-letter", "abbreviation"),
)
DEVELOPED = ("acronyms", "country-capital", "gendered-pronoun", "opposite", "plural", "past-tense")
DRAWS = (0, 1, 2)
METHODS = ("planner", "absolute", "path", "blockwise")


def fit_all(folder: Path, out: Path, claims: Path | None, settings: FitSettings) -> None:
    """A network without the families of `DEVELOPED`, and one of all; what the first predicts of the families it never saw."""
    known = [r for r in records.read_all(folder / "records") if r.family not in LOCKED]
    developed = sorted({get_behaviour(name).family for name in DEVELOPED})
    for name, left_out in (("developed", developed), ("locked", [])):
        path = out / "networks" / f"without-{name}.safetensors"
        if path.exists() or (claims is not None and not claimed(claims, path.name)):
            continue
        kept = [r for r in known if r.family not in left_out]
        began = time.perf_counter()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        report = partial(_say, path.stem[:30])
        model = fit(kept, settings, device, report)
        about = {
            "without": left_out,
            "behaviours": sorted({r.behaviour for r in kept}),
            "families": records.families(kept),
            "circuits": len(kept),
            "edits": sum(len(r.f) for r in kept),
            "settings": settings.to_json(),
        }
        save_model(path, model, about | {"seconds": time.perf_counter() - began})
        append(out / "prediction.jsonl", assess(model, [r for r in known if r.family in left_out]))


def _say(name: str, epoch: int, line: str) -> None:
    print(f"{name}: {epoch} {line}", flush=True)


def network_for(out: Path, name: str) -> Path:
    """The network that never saw this behaviour's family."""
    return out / "networks" / f"without-{'developed' if name in DEVELOPED else 'locked'}.safetensors"


def run(
    out: Path,
    claims: Path | None,
    model_name: str,
    holds_on: str,
    names: Sequence[str],
    draws: Sequence[int],
    methods: Sequence[str],
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    path = out / "rows.jsonl"
    if claims is not None:
        keep_to_share()
    model = load_model(model_name)
    for draw in draws:
        for name in names:
            for method in methods:
                cell = {
                    "model": model_name,
                    "behaviour": name,
                    "draw": draw,
                    "method": method,
                    "holds_on": holds_on,
                }
                done = [{key: row[key] for key in cell} for row in (read(path) if path.exists() else [])]
                if cell in done or (claims is not None and not claimed(claims, json.dumps(cell))):
                    continue
                began = time.process_time()
                row = cell | result(one(out, model, cell)) | {"cpu": time.process_time() - began}
                append(path, [row])
                print(row, flush=True)


def one(out: Path, model: Any, cell: dict[str, Any]) -> Circuit:
    behaviour = get_behaviour(cell["behaviour"])
    if cell["method"] == "blockwise":
        return search(
            model, behaviour, SearchSettings("blockwise", holds_on=cell["holds_on"], seed=cell["draw"])
        )
    untrained = cell["method"] in ("absolute", "path")
    by = Gradients(cell["method"]) if untrained else load_network(network_for(out, behaviour.name))[0]
    return discover(
        model, behaviour, by, DiscoverSettings(holds_on=HoldsOn(cell["holds_on"]), seed=cell["draw"])
    )


def result(circuit: Circuit) -> dict[str, Any]:
    f = {
        "f": circuit.faithfulness,
        "f_test": circuit.faithfulness_test,
        "f_validation": circuit.faithfulness_validation,
    }
    return (
        {"edges": circuit.size}
        | f
        | {"passes": circuit.passes, "seconds": circuit.seconds, "note": circuit.settings["note"]}
    )


# ---- tables ---------------------------------------------------------------------------------------------------------


def tables(out: Path) -> str:
    text = ["# The planner on unseen families", "", "Printed by `python benchmarks/planner.py tables`.", ""]
    text += prediction(read(out / "prediction.jsonl"))
    rows = read(out / "rows.jsonl")
    for model in sorted({row["model"] for row in rows}):
        for holds_on in ("discovery", "fresh"):
            some = [row for row in rows if row["holds_on"] == holds_on and row["model"] == model]
            if some:
                text += found(some, f"{model}: f ≥ 0.9 on {holds_on} pairs")
    return "\n".join(text) + "\n"


def prediction(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Means over behaviours, each the mean of its circuits."""
    by = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for key, value in row.items():
            if isinstance(value, float) and np.isfinite(value):
                by[key][row["behaviour"]].append(value)
    lines = ["## Prediction", "", "| what | mean over behaviours ± sd | behaviours |", "| --- | --- | --- |"]
    for key, values in by.items():
        means = [mean(v) for v in values.values()]
        if key != "f":
            lines.append(
                f"| {key} | {mean(means):.3f} ± {stdev(means) if len(means) > 1 else 0:.3f} | {len(means)} |"
            )
    return [*lines, ""]


def found(rows: list[dict[str, Any]], title: str) -> list[str]:
    cases = defaultdict(dict)
    for row in rows:
        cases[row["behaviour"], row["draw"]][row["method"]] = row
    lines = [
        f"## {title}",
        "",
        "Edges, f on test pairs, passes.",
        "",
        f"| behaviour, draw | {' | '.join(METHODS)} |",
    ]
    lines.append("| --- " * (1 + len(METHODS)) + "|")
    for (name, draw), by in sorted(cases.items()):
        star = "*" if name in LOCKED else ""
        cells = [
            f"{by[m]['edges']}, {by[m]['f_test']:.3f}, {by[m]['passes']:.0f}" if m in by else "–"
            for m in METHODS
        ]
        lines.append(f"| {name}{star}, {draw} | {' | '.join(cells)} |")
    lines += ["", "*: locked until the end.", ""]
    heads = (
        "beside blockwise",
        "cases",
        "edges, geometric mean",
        "largest",
        "passes, geometric mean",
        "f on test pairs",
    )
    lines += [f"| {' | '.join(heads)} |", "| --- " * 6 + "|"]
    for method in METHODS[:-1]:
        for which in ("developed", "locked"):
            pairs = [
                (by[method], by["blockwise"])
                for (name, _), by in cases.items()
                if {method, "blockwise"} <= set(by) and (name in LOCKED) == (which == "locked")
            ]
            if pairs:
                edges, passes = ([a[key] / b[key] for a, b in pairs] for key in ("edges", "passes"))
                lines.append(
                    f"| {method}, {which} | {len(pairs)} | {geometric_mean(edges):.2f} | {max(edges):.2f} | {geometric_mean(passes):.2f} | "
                    f"{mean(a['f_test'] for a, _ in pairs):.3f}; {mean(b['f_test'] for _, b in pairs):.3f} |"
                )
    lines += [
        "",
        "| method | cases | edges, median | passes, median | f ≥ 0.9 on test pairs |",
        "| --- " * 5 + "|",
    ]
    for method in METHODS:
        mine = [by[method] for by in cases.values() if method in by]
        if mine:
            holds = sum(row["f_test"] >= 0.9 for row in mine)
            edges, passes = (median(row[key] for row in mine) for key in ("edges", "passes"))
            lines.append(f"| {method} | {len(mine)} | {edges:.0f} | {passes:.0f} | {holds} |")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("fit", "run", "tables"))
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--behaviours", default=",".join((*DEVELOPED, *LOCKED)))
    parser.add_argument("--draws", default=",".join(map(str, DRAWS)))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--holds-on", default="discovery")
    parser.add_argument("--epochs", type=int, default=FitSettings.epochs)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--claims", type=Path)
    given = parser.parse_args()
    out = given.folders[-1]
    if given.what == "fit":
        (out / "networks").mkdir(parents=True, exist_ok=True)
        if given.jobs > 1:
            share(given.jobs)
        else:
            fit_all(given.folders[0], out, given.claims, FitSettings(epochs=given.epochs))
    elif given.what == "tables":
        (out / "tables.md").write_text(tables(out))
        print(tables(out))
    elif given.jobs > 1:
        share(given.jobs)
    else:
        draws = [int(draw) for draw in given.draws.split(",")]
        run(
            out,
            given.claims,
            given.model,
            given.holds_on,
            given.behaviours.split(","),
            draws,
            given.methods.split(","),
        )


if __name__ == "__main__":
    main()
