"""The planner on families of behaviours it was not fitted to, compared with its untrained controls and blockwise search.

    python benchmarks/planner.py run OUT [--jobs=2]       episodes and searches, a row each in OUT/rows.jsonl; resumes
    python benchmarks/planner.py tables OUT               OUT/tables.md

The planner is the one that ships for real models. It was not fitted to any behaviour of the families in `UNSEEN`, and nobody looked at
these while designing the agent. `DESIGNED_ON` are seven behaviours that the agent was both designed on and fitted to. The other methods:

    unjudged         the planner without validation pairs: on fresh pairs it relies on the network alone
    toy              the planner fitted only to the embedded model
    absolute, path   the same agent with gradients as costs; where the planner does better, its training is the reason

Passes include every gradient measurement and, for blockwise search, its prefilter.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean, mean, median, stdev
from typing import Any

import numpy as np
from rows import append, claimed, keep_to_share, read, share

from mechrl.agents.planner.session import DiscoverSettings, discover
from mechrl.agents.planner.shipped import load_planner, shipped
from mechrl.agents.planner.untrained import Gradients
from mechrl.behaviours import get_behaviour
from mechrl.circuit import Circuit
from mechrl.models import load_model
from mechrl.search.session import SearchSettings, search

UNSEEN = (
    *("product-company", "element-symbol", "state-abbreviation", "workplace"),
    *("negative-prefix", "category", "first-letter", "abbreviation"),
    *("synonym", "british-spelling", "part-of-speech", "verb-object"),
    *("maker-product", "cause-effect", "place-contents", "worn-on"),
    *("first-name", "science-subject", "unit-quantity", "language-code"),
)
DESIGNED_ON = (
    "acronyms",
    "country-capital",
    "gendered-pronoun",
    "greater-than",
    "plural",
    "past-tense",
    "opposite",
)
SEARCHES = ("greedy", "edge-pruning", "acdc", "blockwise")
METHODS = ("planner", "unjudged", "toy", "absolute", "path", *SEARCHES)


def run(
    out: Path, claims: Path | None, model_name: str, cells: Sequence[tuple[int, str, str]], holds_on: str
) -> None:
    """`cells`: draw, behaviour and method."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "rows.jsonl"
    if claims is not None:
        keep_to_share()
    model = load_model(model_name)
    label = Path(model_name).stem if "/" in model_name else model_name
    for draw, name, method in cells:
        cell = dict(model=label, behaviour=name, draw=draw, method=method, holds_on=holds_on)
        done = [{key: row[key] for key in cell} for row in read(path)]
        if cell in done or (claims is not None and not claimed(claims, json.dumps(cell))):
            continue
        began = time.process_time()
        row = cell | result(find(model, name, method, draw, holds_on)) | {"cpu": time.process_time() - began}
        append(path, [row])
        print(row, flush=True)


def find(model: Any, name: str, method: str, draw: int, holds_on: str) -> Circuit:
    behaviour = get_behaviour(name)
    if method in SEARCHES:
        return search(model, behaviour, SearchSettings(method, holds_on=holds_on, seed=draw))
    if method in ("absolute", "path"):
        by = Gradients(method)
    else:
        by = load_planner(shipped("toy" if method == "toy" else "smollm2"))
    return discover(
        model, behaviour, by, DiscoverSettings(holds_on=holds_on, check=method != "unjudged", seed=draw)
    )


def result(circuit: Circuit) -> dict[str, Any]:
    return {
        "edges": circuit.size,
        "f": circuit.faithfulness,
        "f_test": circuit.faithfulness_test,
        "f_validation": circuit.faithfulness_validation,
        "passes": circuit.passes,
        "seconds": circuit.seconds,
        "note": circuit.settings["note"],
    }


# ---- tables ---------------------------------------------------------------------------------------------------------


def tables(out: Path) -> str:
    text = ["# The planner on unseen families", "", "Printed by `python benchmarks/planner.py tables`.", ""]
    rows = read(out / "rows.jsonl")
    for model in dict.fromkeys(row["model"] for row in rows):
        for holds_on in ("discovery", "fresh"):
            some = [row for row in rows if row["holds_on"] == holds_on and row["model"] == model]
            if some:
                text += found(some, f"{model}: f ≥ 0.9 on {holds_on} pairs")
    return "\n".join(text).rstrip() + "\n"


def found(rows: list[dict[str, Any]], title: str) -> list[str]:
    cases: dict[tuple[str, int], dict[str, Any]] = defaultdict(dict)
    for row in rows:
        cases[row["behaviour"], row["draw"]][row["method"]] = row
    methods = [m for m in METHODS if any(m in by for by in cases.values())]
    lines = [f"## {title}", ""]
    lines += beside_blockwise(cases, [m for m in methods if m in LABELS])
    lines += ["", "Edges, f on test pairs, passes of every case:", ""]
    lines += [f"| behaviour, draw | {' | '.join(methods)} |", "| --- " * (1 + len(methods)) + "|"]
    for (name, draw), by in sorted(cases.items()):
        star = "" if name in UNSEEN else "*"
        cells = [
            f"{by[m]['edges']}, {by[m]['f_test']:.3f}, {by[m]['passes']:.0f}" if m in by else "–"
            for m in methods
        ]
        lines.append(f"| {name}{star}, {draw} | {' | '.join(cells)} |")
    if not {name for name, _ in cases} <= set(UNSEEN):
        lines += ["", "*: a behaviour that the agent was designed on and the planner fitted to."]
    return [*lines, ""]


LABELS = {
    "planner": "planner",
    "unjudged": "planner, no validation pairs",
    "toy": "planner fitted to `toy` alone",
    "absolute": "control: \\|gradient\\|",
    "path": "control: gradients on the path",
}


def beside_blockwise(cases: dict[tuple[str, int], dict[str, Any]], methods: Sequence[str]) -> list[str]:
    """Ratios over the cases that both have: geometric mean, and its spread over cases in the logarithm."""
    heads = (
        *(
            "compared with blockwise search",
            "behaviours",
            "cases",
            "edges ×",
            "smallest, largest",
            "passes ×",
        ),
        *("CPU time ×", "median edges", "median passes", "f, test pairs"),
    )
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for method in methods:
        for which, names in (("", UNSEEN), (" (designed on)", DESIGNED_ON)):
            both = {
                case: (by[method], by["blockwise"])
                for case, by in cases.items()
                if {method, "blockwise"} <= set(by) and case[0] in names
            }
            if not both:
                continue
            pairs = list(both.values())
            edges, passes, cpu = ([a[key] / b[key] for a, b in pairs] for key in ("edges", "passes", "cpu"))
            sd = stdev(np.log(edges)) if len(edges) > 1 else 0
            of_both = (
                f"{median(a[key] for a, _ in pairs):,.0f} ({median(b[key] for _, b in pairs):,.0f})"
                for key in ("edges", "passes")
            )
            f_test = [mean(row["f_test"] for row in side) for side in zip(*pairs, strict=True)]
            cells = (
                LABELS[method] + which,
                f"{len({name for name, _ in both})}",
                f"{len(both)}",
                f"{geometric_mean(edges):.2f} (sd of log {sd:.2f})",
                f"{min(edges):.2f}, {max(edges):.2f}",
                f"{geometric_mean(passes):.2f}",
                f"{geometric_mean(cpu):.2f}",
                *of_both,
                f"{f_test[0]:.3f} ({f_test[1]:.3f})",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "tables"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--behaviours", default=",".join(UNSEEN))
    parser.add_argument("--draws", default="0,1,2")
    parser.add_argument("--methods", default="planner,absolute,path,blockwise")
    parser.add_argument("--holds-on", default="discovery")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--claims", type=Path)
    given = parser.parse_args()
    names = given.behaviours.split(",")
    if given.what == "tables":
        (given.out / "tables.md").write_text(tables(given.out))
        print(tables(given.out))
    elif given.jobs > 1:
        share(given.jobs)
    else:
        draws, methods = [int(draw) for draw in given.draws.split(",")], given.methods.split(",")
        cells = [(draw, name, method) for draw in draws for name in names for method in methods]
        run(given.out, given.claims, given.model, cells, given.holds_on)


if __name__ == "__main__":
    main()
