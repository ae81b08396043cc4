"""How well the network predicts the effects of edits on families it never saw, and how this depends on the number of training behaviours.

    python benchmarks/planner_prediction.py collect OUT [--jobs=2]   a walk for each behaviour: OUT/records/NAME.safetensors; resumes
    python benchmarks/planner_prediction.py assess OUT               networks and gradients on them: OUT/prediction.jsonl
    python benchmarks/planner_prediction.py tables OUT               OUT/prediction.md

Every network is assessed on the same walks through circuits of the families in `planner.UNSEEN`:

    shipped     the planner that ships for real models
    N           networks fitted here to one walk each of N behaviours of other families, in three random subsets
    shuffled    a control: the largest of these, fitted to effects that were shuffled among each circuit's edits
    gradients   what a look sees, without a network
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from planner import UNSEEN
from rows import append, claimed, keep_to_share, read, share

from mechrl.agents.planner import records as store
from mechrl.agents.planner.assess import assess
from mechrl.agents.planner.collect import CollectSettings, walk
from mechrl.agents.planner.fit import FitSettings, fit
from mechrl.agents.planner.records import Record
from mechrl.agents.planner.shipped import load_planner, shipped
from mechrl.behaviours import get_behaviour
from mechrl.models import load_model

TRAIN = (
    *("acronyms", "adjective-noun", "adverb", "agent-noun", "base-form", "capitalise"),
    *("city-country", "comparative", "country-capital", "country-continent", "country-language", "demonym"),
    *("gendered-pronoun", "greater-than", "greater-than-2", "greater-than-3", "induction", "ioi-2"),
    *("ioi-3", "letter-successor", "lowercase", "male-female", "month-successor", "number-successor"),
    *("opposite", "participle", "past-participle", "past-tense", "plural", "singular"),
    *("superlative", "third-person", "uppercase", "verb-noun", "word-repeat"),
)
SIZES = (5, 10, 20, 35)
SUBSETS = 3
WALK = CollectSettings(states=5, singles=24, additions=6, sets=10, mixed=6, fresh_part=0.05)
COLUMNS = {  # of the table: what `assess` calls it
    "single cost, Spearman": "cost learned",
    "sets, r": "sets learned",
    "within 1 σ": "within 1 sigma",
    "within 2 σ": "within 2 sigma",
    "error of the gap": "gap error",
}
GRADIENTS = {
    "gradient": ("cost gradient", "sets gradient"),
    "\\|gradient\\|": ("cost |gradient|",),
    "gradients on the path": ("cost path", "sets path"),
    "no gap at all": (None, None, None, None, "gap error of none"),
}


def collect(out: Path, claims: Path | None, model_name: str) -> None:
    (out / "records").mkdir(parents=True, exist_ok=True)
    if claims is not None:
        keep_to_share()
    model = load_model(model_name)
    for name in (*UNSEEN, *TRAIN):
        path = out / "records" / f"{name}.safetensors"
        if path.exists() or (claims is not None and not claimed(claims, name)):
            continue
        found = walk(model, get_behaviour(name), 0, WALK)
        store.write(path, found.records, {"passes": found.passes, "seconds": found.seconds})
        print(f"{name}: {len(found.records)} circuits, {found.passes:.0f} passes", flush=True)


def networks(records: dict[str, list[Record]]) -> Iterator[tuple[str, int, Any]]:
    """Name, subset and network of everything that is assessed."""
    yield "shipped", 0, load_planner(shipped("smollm2"))
    names = [name for name in TRAIN if name in records]
    for size in SIZES:
        for subset in range(SUBSETS if size < len(names) else 1):
            some = np.random.default_rng([size, subset]).permutation(len(names))[:size]
            train = [record for i in some for record in records[names[i]]]
            yield str(size), subset, fit(train, FitSettings(seed=subset))
    rng = np.random.default_rng(0)
    shuffled = [replace(r, f=np.concatenate([r.f[:1], rng.permutation(r.f[1:])])) for r in train]
    yield "shuffled", 0, fit(shuffled, FitSettings())


def assess_all(out: Path) -> None:
    records = {path.stem: store.read(path)[0] for path in sorted((out / "records").glob("*.safetensors"))}
    unseen = [record for name in UNSEEN if name in records for record in records[name]]
    path = out / "prediction.jsonl"
    path.unlink(missing_ok=True)
    for name, subset, network in networks(records):
        append(path, [{"network": name, "subset": subset} | row for row in assess(network, unseen)])
        print(name, subset, flush=True)


# ---- tables ---------------------------------------------------------------------------------------------------------

Row = dict[str, Any]


def over_behaviours(rows: Sequence[Row], key: str | None) -> str:
    """Mean ± sd over behaviours of each one's mean over circuits and subsets."""
    by: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        value = row.get(key) if key else None
        if value is not None and np.isfinite(value):
            by[row["behaviour"]].append(value)
    means = [mean(values) for values in by.values()]
    return f"{mean(means):.3f} ± {stdev(means):.3f}" if len(means) > 1 else "–"


def tables(out: Path) -> str:
    rows = read(out / "prediction.jsonl")
    of: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        of[row["network"]].append(row)
    behaviours, circuits = {row["behaviour"] for row in rows}, len(of["shipped"])
    lines = [
        "# What the planner's network predicts on unseen families",
        "",
        "Printed by `python benchmarks/planner_prediction.py tables`.",
        "",
        f"{circuits} circuits of {len(behaviours)} behaviours of SmolLM2, in families that no network here was fitted to. Means over "
        "behaviours ± sd. *Single cost* compares what cutting one edge costs with what is predicted, in circuits of at most 1,200 edges; "
        "*sets* correlates the predicted effects of edits of several edges with the measured ones, on the scale of the fit. If σ is "
        "calibrated, .68 and .95 are within 1 and 2.",
        "",
        f"| fitted to | {' | '.join(COLUMNS)} |",
        "| --- " * (1 + len(COLUMNS)) + "|",
    ]
    labels = {name: f"{name} behaviours" for name in map(str, SIZES)}
    labels |= {"shipped": "shipped planner", "shuffled": "shuffled effects"}
    for name, some in of.items():
        numbers = [over_behaviours(some, key) for key in COLUMNS.values()]
        lines.append(f"| {labels[name]} | {' | '.join(numbers)} |")
    for label, keys in GRADIENTS.items():
        numbers = [
            over_behaviours(of["shipped"], key) for key in (*keys, *[None] * (len(COLUMNS) - len(keys)))
        ]
        lines.append(f"| {label} | {' | '.join(numbers)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("collect", "assess", "tables"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--claims", type=Path)
    given = parser.parse_args()
    if given.what == "tables":
        (given.out / "prediction.md").write_text(tables(given.out))
        print(tables(given.out))
    elif given.what == "assess":
        assess_all(given.out)
    elif given.jobs > 1:
        share(given.jobs)
    else:
        collect(given.out, given.claims, given.model)


if __name__ == "__main__":
    main()
