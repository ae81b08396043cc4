"""The earlier policy (docs/history.md) and the searches, on the same pairs.

    python benchmarks/results.py

It runs no model, but reads rows of `search_smollm2.py` and of the retired agent. Every method is run for f ≥ 0.9 on the 20 discovery pairs;
f on fresh pairs is shown as well. For ACDC, the threshold with the smallest circuit that reaches τ counts, with the passes of that
threshold only, although it is not known in advance. The policy's 16 sampled rollouts and the greedy one are a mean over seeds. The last
table has the methods that were run at f ≥ 0.9 on fresh pairs: 100 discovery pairs, validation pairs decide.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from rows import Row, judged, read

HERE = Path(__file__).parent
TAU = 0.9
SEARCHES = {
    "greedy": "EAP-IG greedy",
    "acdc": "ACDC",
    "edge-pruning": "Edge Pruning",
    "blockwise": "blockwise",
}
POLICIES = {  # by whether it trades, and the number of rollouts
    (True, 0): "earlier policy, greedy",
    (True, 16): "earlier policy, 16 + 1",
    (False, 0): "earlier policy that only cuts, greedy",
    (False, 16): "earlier policy that only cuts, 16 + 1",
}


def of_searches(rows: list[Row], table: str) -> dict[str, dict[str, list[Row]]]:
    """By behaviour and method the smallest circuit that reached τ; none if no setting did."""
    found: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        if row["table"] != table or "error" in row or row["settings"]["whole_graph"]:
            continue
        best = found.setdefault(row["behaviour"], {}).setdefault(
            SEARCHES.get(row["settings"]["method"], ""), []
        )
        if judged(row) >= TAU and (not best or row["edges_pruned"] < best[0]["edges"]):
            best[:] = [row | {"edges": row["edges_pruned"]}]
    return found


def of_policy(rows: list[Row], kind: str) -> dict[str, dict[str, list[Row]]]:
    """By behaviour and kind of deployment, all seeds."""
    found: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        if row["kind"] == kind and row["model"] == "smollm2":
            deployed = POLICIES[bool(row.get("trades")), row["rollouts"]]
            found.setdefault(row["behaviour"], {}).setdefault(deployed, []).append(row)
    return found


def cells(rows: list[Row] | None) -> list[str]:
    """Edges, f on fresh pairs and passes."""
    if rows is None:
        return ["not run", "", ""]
    if not rows or any(judged(row) < TAU for row in rows):
        return ["not reached", "", ""]
    spread = [[row[key] for row in rows] for key in ("edges", "f_test", "passes")]
    return [
        f"{np.mean(numbers):,.{digits}f}"
        + (f" ± {np.std(numbers, ddof=1):,.{digits}f}" if len(rows) > 1 else "")
        for numbers, digits in zip(spread, (0, 3, 0), strict=True)
    ]


def overfitting(searches: dict[str, dict[str, list[Row]]], policy: dict[str, dict[str, list[Row]]]) -> None:
    """What f loses on fresh pairs, where all of these methods reach τ and so have about the same f to lose from; ACDC overshoots τ."""
    found = {name: searches.get(name, {}) | policy[name] for name in policy}
    methods = [
        "EAP-IG greedy",
        "ACDC",
        "blockwise",
        *(m for m in POLICIES.values() if any(m in of for of in policy.values())),
    ]
    common = [
        name
        for name, of in found.items()
        if all(of.get(m) and all(r["f"] >= TAU for r in of[m]) for m in methods)
    ]
    print(f"Where all of them reach {TAU} ({', '.join(common)}):\n")
    print("| method | mean f, discovery pairs | mean f, fresh pairs | loss |\n| --- | --- | --- | --- |")
    for method in methods:
        f, fresh = (
            np.mean([np.mean([row[key] for row in found[name][method]]) for name in common])
            for key in ("f", "f_test")
        )
        print(f"| {method} | {f:.3f} | {fresh:.3f} | {f - fresh:.3f} |")
    print()


def wins(searches: dict[str, dict[str, list[Row]]], policy: dict[str, dict[str, list[Row]]]) -> None:
    """On how many behaviours the policy's circuits are smaller, and cheaper, than each rival's."""
    smaller: dict[tuple[str, str], list[tuple[bool, bool]]] = {}
    for behaviour, of in policy.items():
        for mine, ours in of.items():
            for rival, theirs in searches.get(behaviour, {}).items():
                if rival and theirs and all(judged(row) >= TAU for row in ours):
                    pair = [
                        [np.mean([row[key] for row in rows]) for key in ("edges", "passes")]
                        for rows in (ours, theirs)
                    ]
                    smaller.setdefault((rival, mine), []).append(
                        (bool(pair[0][0] < pair[1][0]), bool(pair[0][1] < pair[1][1]))
                    )
    print(
        f"Where both reach {TAU}:\n\n| | against | behaviours | smaller | cheaper | both |\n| --- | --- | --- | --- | --- | --- |"
    )
    for (rival, mine), won in sorted(smaller.items()):
        counts = [len(won), sum(a for a, _ in won), sum(b for _, b in won), sum(a and b for a, b in won)]
        print(f"| {mine} | {rival} | {' | '.join(map(str, counts))} |")


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    of_search, of_agent = read(HERE / "search/rows.jsonl"), read(HERE / "policy/rows.jsonl")
    searches, policy = of_searches(of_search, "discovery"), of_policy(of_agent, "zero-shot")
    methods = [*SEARCHES.values(), *POLICIES.values()]
    print(
        f"| behaviour | method | edges at f ≥ {TAU} | f, fresh pairs | passes |\n| --- | --- | --- | --- | --- |"
    )
    for behaviour in policy:
        both = searches.get(behaviour, {}) | policy[behaviour]
        for method in methods:
            print("|", " | ".join([behaviour, method, *cells(both.get(method))]), "|")
    print()
    overfitting(searches, policy)
    wins(searches, policy)
    searches, policy = of_searches(of_search, "fresh"), of_policy(of_agent, "fresh")
    if policy:
        print(
            f"\n## At f ≥ {TAU} on fresh pairs\n\n100 discovery pairs; validation pairs decide. Without a line: not run.\n"
        )
        print(f"| behaviour | method | edges at f ≥ {TAU} on validation pairs | f, test pairs | passes |")
        print("| --- | --- | --- | --- | --- |")
        for behaviour in policy:
            both = searches.get(behaviour, {}) | policy[behaviour]
            for method in (method for method in methods if method in both):
                print("|", " | ".join([behaviour, method, *cells(both[method])]), "|")
        print()
        wins(searches, policy)


if __name__ == "__main__":
    main()
