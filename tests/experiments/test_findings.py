"""The report's opening sentences agree with its rows."""

from __future__ import annotations

from statistics import median

from mechrl.experiments.compare_tables import NAMES
from mechrl.experiments.findings import findings
from mechrl.experiments.paper_tables.matched import by_case
from mechrl.experiments.reproduce import Scope
from tests.experiments.made_up import made_up


def test_they_are_few_and_computed(tmp_path) -> None:
    view = made_up(tmp_path, model="gpt2", scope=Scope(costly_seeds=(0, 1)))
    said = findings(view)
    assert 3 <= len(said) <= 5
    no = [v["name"] for v in view.gated.verdicts.values() if not v["exhibited"]]
    total = len(view.gated.verdicts)
    assert said[0].startswith(f"gpt2 exhibits {total - len(no)} of {total} behaviours")
    methods = [m for m in view.scope.methods if m != "paper-adapted"]
    by = {m: {c: r for c, r in by_case(view, "discovery", m).items() if r["reached"]} for m in methods}
    by = {m: found for m, found in by.items() if found}
    cases = set.intersection(*map(set, by.values()))
    for method, found in by.items():
        size = median(found[case]["edges_pruned"] for case in cases)
        assert f"{NAMES[method]} {size:,.0f} (" in said[1]


def test_they_follow_the_rows(tmp_path) -> None:
    view = made_up(tmp_path, model="gpt2", scope=Scope(costly_seeds=(0, 1)))
    before = findings(view)
    for record in view.records.values():
        if record.get("result", {}).get("edges_pruned"):
            record["result"]["edges_pruned"] += 1000
    assert findings(view)[1] != before[1] and findings(view)[0] == before[0]
