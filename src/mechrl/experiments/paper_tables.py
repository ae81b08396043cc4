"""The tables of the paper, and those that it leaves out, from the cells of a reproduction."""

from __future__ import annotations

from dataclasses import replace
from statistics import geometric_mean, median
from typing import Any

from mechrl.behaviours import get_behaviour
from mechrl.experiments import compare
from mechrl.experiments import paper_numbers as paper
from mechrl.experiments.compare_tables import NAMES, comparison_table
from mechrl.experiments.reproduce import View, acdc_best, agreements, greedy_best, spread
from mechrl.report.tables import Column, Table, Value
from mechrl.stats import Spread

PAIRS = {"discovery": "discovery pairs", "test": "fresh pairs"}  # that f is matched on

Results = list[dict[str, Any]]


def all_tables(view: View) -> list[Table]:
    tables = [features(view), behaviours(view), transfer(view), per_behaviour(view)]
    tables += [beyond(view), warm_scratch(view), acdc_sweep(view)]
    for number, target in ((8, "discovery"), (9, "test")):
        cells = [cell for key, cell in view.cells.matched.items() if key[0] == target]
        table = comparison_table(
            compare.rows(cells, view.place), target, view.plan.budget, view.command, (_candidates(view),)
        )
        tables.append(
            replace(table, name=f"table-{number}-matched-{target}", title=f"Table {number} · {table.title}")
        )
    tables += [summary(view), validity(view), beside_searches(view)]
    if view.is_paper_model:
        tables.append(agreement(view))
    return tables


def _candidates(view: View) -> str:
    k = min(view.plan.budget.k, view.gated.graph["edges"])
    return (
        f"Top-n and greedy rank all {view.gated.graph['edges']:,} edges. The other searches choose among the {k:,} best by the behaviour's "
        f"own metric and by KL, doubled until these reach τ together; the paper's agent among {view.candidates}, which may fall short of "
        "τ, and its circuit is the most faithful it found, which need not be matched in f."
    )


def _rule(view: View) -> str:
    """How the policy's circuits are chosen, and counted."""
    return (
        f"The policy's circuit is the most faithful of the last masks of {view.plan.budget.rollouts} sampled rollouts and a greedy one, "
        "whatever its size; its edges are all that are kept, as the paper counts them."
    )


def _seeds(n: int) -> str:
    return f"{n} seed{'s' if n != 1 else ''}"


def _over(view: View) -> str:
    costly = len(view.plan.costly_seeds)
    if costly == len(view.plan.seeds):
        return f"Mean ± sd over {_seeds(costly)}."
    return f"Mean ± sd over {_seeds(len(view.plan.seeds))}; over {_seeds(costly)} where a policy is adapted and for ACDC."


def features(view: View) -> Table:
    """Table 1 of the paper."""
    from mechrl.agents.paper.features import N_EDGE, N_GLOBAL, N_NODE

    rows = (
        (
            "edge",
            N_EDGE,
            "signed attribution score (1); importance rank (1); parent and child layer (2); layer distance (1); parent and child "
            "type, one-hot over attention, MLP, input, logits (8); query, key or value channel, one-hot (3)",
        ),
        (
            "node",
            N_NODE,
            "layer (1); type, one-hot (4); out-degree among the candidates (1); summed |score| of its edges (1)",
        ),
        (
            "globals",
            N_GLOBAL,
            "step fraction; f now; fraction of edges present; change of f in the last step; f of the whole candidate set; f − τ",
        ),
    )
    return Table(
        "table-1-features",
        "Table 1 · State features",
        f"What the policy sees, normalised within each behaviour: K edges (here {view.candidates}), their parents, and six scalars. "
        "Nothing here was measured, so there is no spread.",
        (Column("group", text=True), Column("features", 0), Column("what they are", text=True)),
        rows,
        view.command,
    )


def behaviours(view: View) -> Table:
    """Table 2 of the paper."""
    rows: list[tuple[Value, ...]] = []
    for name in view.chosen.all:
        behaviour = get_behaviour(name)
        family = [
            v
            for v in view.chosen.variants
            if get_behaviour(v).family == behaviour.family and name in view.chosen.trained
        ]
        example, verdict = view.gated.examples[name], view.gated.verdicts[name]
        results = view.results(view.cells.curves, name)
        ceilings = [
            s.mean
            for s in (spread(view.results(view.cells.curves, v), "ceiling") for v in family)
            if s is not None
        ]
        row: list[Value] = [
            name,
            "training" if name in view.chosen.trained else "held-out",
            example["prompt"],
            example["answer"],
        ]
        row += [behaviour.metric, verdict["accuracy"], spread(results, "kl_cut")]
        row += [spread(results, "candidates"), spread(results, "ceiling")]
        row += [
            f"{min(ceilings):.3f}–{max(ceilings):.3f}" if len(ceilings) > 1 else None,
            spread(results, "ceiling_kl"),
        ]
        row += [spread(results, "passes"), len(results)]
        if view.is_paper_model:
            theirs = paper.CEILING.get(name)
            row.append(
                None
                if theirs is None
                else f"{theirs:.2f}"
                if isinstance(theirs, float)
                else "–".join(f"{x:.2f}" for x in theirs)
            )
        rows.append(tuple(row))
    columns = [
        Column("behaviour", text=True),
        Column("split", text=True),
        Column("example prompt", text=True),
        Column("output", text=True),
        Column("metric", text=True),
        Column("accuracy", 2),
        Column("KL_cut", 2),
        Column("candidates K", 0),
        Column("ceiling c"),
        Column("c over variants", text=True),
        Column("c by KL"),
        Column("passes", 0),
        Column("seeds", 0),
    ]
    if view.is_paper_model:
        columns.append(Column("c in the paper", text=True))
    return Table(
        "table-2-behaviours",
        "Table 2 · Behaviours and ceilings",
        f"The ceiling c is f of the whole candidate set ({view.candidates}) on {view.plan.budget.pairs} discovery pairs; beside it the "
        f"ceiling of the {view.agent.k:,} best edges by KL attribution. Mean ± sd over {_seeds(len(view.plan.seeds))}; passes are those "
        "of both attributions and of all curves.",
        tuple(columns),
        tuple(rows),
        view.command,
        view.chosen.notes,
    )


def _control(results: Results, drawn_from: str, matched: str, by: str = "f") -> Spread | None:
    """f of random circuits, or the behaviour's metric: the mean over seeds of each seed's mean."""
    values = [
        control[by]["mean"]
        for r in results
        if "validity" in r
        for control in r["validity"]["specificity"]
        if (control["drawn_from"], control["matched"]) == (drawn_from, matched) and control[by] is not None
    ]
    return Spread.of(values) if values else None


def _components(results: Results) -> tuple[Value, Value, Value]:
    """Recovered of known, expected by chance, precision."""
    found = [r["validity"]["recovery"] for r in results if r["validity"]["recovery"] is not None]
    if not found:
        return None, None, None
    mean = sum(r["recovered"] for r in found) / len(found)
    expected, precision = (
        Spread.of(r["expected"] for r in found),
        [r["precision"] for r in found if r["precision"] is not None],
    )
    return f"{mean:g}/{len(found[0]['known'])}", expected, Spread.of(precision) if precision else None


def transfer(view: View) -> Table:
    """Table 3 of the paper."""
    rows: list[tuple[Value, ...]] = []
    for name in view.chosen.held_out:
        zero, warm = view.results(view.cells.policy, name), view.results(view.cells.adapted, name)
        row: list[Value] = [name]
        for results in (zero, warm):
            row += [spread(results, key) for key in ("f", "f_test", "edges", "edges_pruned", "passes")]
        row += [
            spread(zero, "validity", "necessity"),
            spread(zero, "validity", "necessity_metric"),
            _control(zero, "candidates", "raw"),
            _control(zero, "candidates", "raw", "metric"),
            _control(zero, "candidates", "pruned"),
        ]
        row += [*_components(zero), f"{len(zero)}, {len(warm)}"]
        if view.is_paper_model:
            theirs = paper.TRANSFER.get(name)
            cells: list[Value] = [None] * 5
            if theirs is not None:
                known = theirs["components"]
                cells = [
                    *theirs["zero_shot"],
                    *theirs["warm"],
                    None if known is None else f"{known[0]}/{known[1]}",
                ]
            row += cells
        rows.append(tuple(row))
    columns = [Column("behaviour", text=True)]
    for group in ("zero-shot", "warm start"):
        columns += [
            Column("f", 3, group),
            Column("f test", 3, group),
            Column("edges", 0, group),
            Column("on a path", 0, group),
            Column("passes", 0, group),
        ]
    group = "controls, zero-shot circuit"
    columns += [
        Column("necessity", 3, group),
        Column("by the metric", 3, group),
        Column("specificity", 3, group),
        Column("specificity by the metric", 3, group),
        Column("specificity, pruned", 3, group),
    ]
    group = "known components"
    columns += [Column("recovered", 0, group), Column("by chance", 1, group), Column("precision", 2, group)]
    columns.append(Column("seeds", text=True))
    if view.is_paper_model:
        group = "the paper"
        columns += [Column("f", 3, group), Column("edges", 0, group), Column("f warm", 3, group)]
        columns += [Column("edges warm", 0, group), Column("recovered", text=True, group=group)]
    b = view.plan.budget
    return Table(
        "table-3-transfer",
        "Table 3 · Transfer to held-out behaviours",
        f"A frozen policy and the same after {b.adapt_iterations} iterations on the behaviour. {_rule(view)} "
        "Necessity: f with the circuit ablated. Specificity: f of 20 random circuits of the candidates, of the same size before and after "
        f"pruning. Beside both the behaviour's own metric, 0 for the empty circuit and 1 for the whole model. Near 0 is what one hopes "
        f"for. {_over(view)}",
        tuple(columns),
        tuple(rows),
        view.command,
        (*view.chosen.notes, *_policy_notes(view)),
    )


def _policy_notes(view: View) -> tuple[str, ...]:
    known = view.training
    if "trained_on" not in known:
        return ("The folder of the policy does not say what it was trained on.",)
    notes = [f"The policy was trained in {known['trained_in']} on {', '.join(known['trained_on'])}."]
    if seen := [name for name in view.chosen.held_out if name in known["trained_on"]]:
        notes.append(f"Not held out from it: {', '.join(seen)}.")
    return tuple(notes)


def per_behaviour(view: View) -> Table:
    """Table 4 of the paper."""
    tau = view.plan.budget.tau
    rows: list[tuple[Value, ...]] = []
    for name in view.chosen.all:
        curves = view.results(view.cells.curves, name)
        row: list[Value] = [name]
        best = acdc_best(view, name, tau)
        results = best[1] if best else []
        row += [
            f"{best[0]:g}" if best else None,
            *(spread(results, key) for key in ("edges", "f", "f_test", "passes")),
        ]
        for which in ("metric", "kl"):
            found = greedy_best(curves, which, tau)
            row += [None, None] if found is None else [found[0], found[1]]
        own = view.results(view.cells.adapted if name in view.chosen.held_out else view.cells.policy, name)
        row += [spread(own, key) for key in ("edges", "f", "f_test", "passes")]
        row.append(f"{len(results)}, {len(curves)}, {len(own)}")
        if view.is_paper_model:
            theirs = paper.COMPARISON.get(name)
            if theirs is None:
                row += [None] * 4
            else:
                acdc, policy = theirs["acdc"], theirs["policy"]
                row += [
                    f"{acdc[0]} ({acdc[1]:.2f})",
                    *(f"{theirs[k][0]} ({theirs[k][1]:.2f})" for k in ("greedy_ld", "greedy_kl")),
                ]
                row.append(f"{policy[0]} ({policy[1]:.2f})")
        rows.append(tuple(row))
    columns = [Column("behaviour", text=True), Column("threshold", text=True, group="ACDC, whole graph")]
    columns += [
        Column(n, d, "ACDC, whole graph") for n, d in (("edges", 0), ("f", 3), ("f test", 3), ("passes", 0))
    ]
    for group in ("EAP-IG greedy, metric", "EAP-IG greedy, KL"):
        columns += [Column("edges", 0, group), Column("f", 3, group)]
    columns += [Column(n, d, "policy") for n, d in (("edges", 0), ("f", 3), ("f test", 3), ("passes", 0))]
    columns.append(Column("seeds", text=True))
    if view.is_paper_model:
        columns += [
            Column(n, text=True, group="the paper: edges (f)") for n in ("ACDC", "metric", "KL", "policy")
        ]
    return Table(
        "table-4-per-behaviour",
        "Table 4 · Policy and per-behaviour search, as the paper compares them",
        f"f ≥ {tau:g} on {view.plan.budget.pairs} discovery pairs. ACDC: the smallest over thresholds "
        f"{', '.join(f'{t:g}' for t in view.plan.budget.thresholds)} that reaches it, else the most faithful. EAP-IG greedy: the smallest "
        "of the paper's sizes that reaches it, else the largest; it takes no passes beyond the attribution's. Policy: frozen on training "
        f"behaviours, adapted on held-out ones; not matched in f. {_rule(view)} Seeds: of ACDC, "
        f"greedy, policy. {_over(view)}",
        tuple(columns),
        tuple(rows),
        view.command,
        view.chosen.notes,
    )


def beyond(view: View) -> Table:
    rows: list[tuple[Value, ...]] = []
    for name in view.chosen.all:
        for label, group in (("paper", view.cells.policy), ("paper-adapted", view.cells.adapted)):
            results = view.results(group, name)
            if not results:
                continue
            keys = (
                "edges",
                "f",
                "f_top",
                "gain",
                "gain_pruned",
                "gain_test",
                "discordant_share",
                "discordant_chance",
                "cost",
                "cost_test",
            )
            values = [spread(results, "beyond", key) for key in keys]
            random = spread(results, "beyond", "cost_random", "mean")
            rows.append((name, NAMES[label], *values, random, spread(results, "passes"), len(results)))
    columns = (
        Column("behaviour", text=True),
        Column("method", text=True),
        Column("edges", 0),
        Column("f"),
        Column("f of top-|C|"),
        Column("discovery", 3, "gain over the ranking"),
        Column("equal pruned size", 3, "gain over the ranking"),
        Column("test pairs", 3, "gain over the ranking"),
        Column("share", 2, "discordant edges"),
        Column("by chance", 2, "discordant edges"),
        Column("cost", 3, "discordant edges"),
        Column("cost on test pairs", 3, "discordant edges"),
        Column("cost of random edges", 3, "discordant edges"),
        Column("passes", 0),
        Column("seeds", 0),
    )
    return Table(
        "table-5-beyond",
        "Table 5 · Beyond the prefilter",
        "Gain: f of the circuit C less f of the |C| best edges by attribution. Discordant: edges of C outside those; a random |C| of the "
        "candidates would hold the share “by chance”. Cost: f lost when they are deleted, beside that of deleting as many random "
        f"edges of C. {_over(view)}",
        columns,
        tuple(rows),
        view.command,
        (_rule(view),),
    )


def warm_scratch(view: View) -> Table:
    rows: list[tuple[Value, ...]] = []
    for name in view.chosen.held_out:
        warm, scratch = view.results(view.cells.adapted, name), view.results(view.cells.scratch, name)
        row: list[Value] = [name]
        for results in (warm, scratch):
            row += [spread(results, key) for key in ("edges", "f", "f_test", "passes")]
        both = [
            b["edges"] / a["edges"]
            for seed in view.plan.costly_seeds
            if (a := view.result(view.cells.adapted.get((name, seed))))
            and (b := view.result(view.cells.scratch.get((name, seed))))
            if a["edges"]
        ]
        rows.append((*row, Spread.of(both) if both else None, len(both)))
    columns = [Column("behaviour", text=True)]
    budget = view.plan.budget
    for group in (
        f"warm start, {budget.adapt_iterations} iterations",
        f"from scratch, {budget.scratch_iterations} iterations",
    ):
        columns += [Column(n, d, group) for n, d in (("edges", 0), ("f", 3), ("f test", 3), ("passes", 0))]
    columns += [Column("scratch / warm", 2), Column("seeds", 0)]
    return Table(
        "table-6-warm-scratch",
        "Table 6 · Warm start and training from scratch",
        "The same reward, candidates, target and hyperparameters; only the first weights and the number of iterations differ. "
        f"Mean ± sd over {_seeds(len(view.plan.costly_seeds))}.",
        tuple(columns),
        tuple(rows),
        view.command,
        (_rule(view),),
    )


def acdc_sweep(view: View) -> Table:
    rows: list[tuple[Value, ...]] = []
    for name in view.chosen.all:
        for t in view.plan.budget.thresholds:
            results = view.results(view.cells.acdc, name, t)
            row: list[Value] = [name, f"{t:g}"]
            row += [
                spread(results, key) for key in ("edges_pruned", "edges", "f", "f_test", "passes", "seconds")
            ]
            row.append(len(results))
            if view.is_paper_model:
                known = dict(zip(paper.ACDC_THRESHOLDS, paper.ACDC.get(name, ()), strict=False)).get(t)
                row += [None] * 3 if known is None else list(known)
            rows.append(tuple(row))
    columns = [
        Column("behaviour", text=True),
        Column("threshold", text=True),
        Column("edges", 0),
        Column("before pruning", 0),
    ]
    columns += [Column("f"), Column("f test"), Column("passes", 0), Column("seconds", 1), Column("seeds", 0)]
    if view.is_paper_model:
        columns += [Column(n, d, "the paper") for n, d in (("edges", 0), ("f", 3), ("passes", 0))]
    return Table(
        "table-7-acdc",
        "Table 7 · ACDC over the whole graph",
        f"{view.gated.graph['edges']:,} edges, {view.plan.budget.pairs} discovery pairs. Mean ± sd over "
        f"{_seeds(len(view.plan.costly_seeds))}.",
        tuple(columns),
        tuple(rows),
        view.command,
    )


def summary(view: View) -> Table:
    """Does the policy overfit its pairs less than a search does? Over the behaviours and seeds that all methods are done with."""
    rows: list[tuple[Value, ...]] = []
    notes = []
    for target in ("discovery", "test"):
        compared, missing = _compared(view, target)
        if missing:
            notes.append(
                f"Matched on {PAIRS[target]}, left out until every method is done with them: {missing}."
            )
        found = {method: _by_case(view, target, method, compared) for method in view.plan.methods}
        for method, by_case in found.items():
            results = list(by_case.values())
            if not results:
                continue
            smallest = sum(_is_smallest(found, method, case) for case in by_case)
            rows.append(
                (
                    PAIRS[target],
                    NAMES[method],
                    median([r["edges_pruned"] for r in results]),
                    median([r["passes"] for r in results]),
                    Spread.of(r["f"] for r in results),
                    Spread.of(r["f_test"] for r in results),
                    Spread.of(r["f"] - r["f_test"] for r in results),
                    f"{sum(r['reached'] for r in results)} of {len(results)}",
                    len({name for name, _ in by_case}),
                    f"{smallest} of {len(results)}",
                )
            )
    columns = (
        Column("matched on", text=True),
        Column("method", text=True),
        Column("edges", 0, "median"),
        Column("passes", 0, "median"),
        Column("f discovery"),
        Column("f test"),
        Column("f lost on test pairs"),
        Column("reached τ", text=True),
        Column("behaviours", 0),
        Column("smallest on", text=True),
    )
    return Table(
        "table-10-summary",
        "Table 10 · What fresh pairs cost each method",
        "Over the behaviours and seeds that all methods are done with: medians of size and passes; mean ± sd of f. “Smallest on”: with "
        "how many of these the method's circuit is the smallest of all that reach τ.",
        columns,
        tuple(rows),
        view.command,
        (
            "Over the costly seeds only: adapted policies, on held-out behaviours. Table 12 compares like with like.",
            *notes,
        ),
    )


Case = tuple[str, int]  # a behaviour and a seed


def _compared(view: View, target: str) -> tuple[set[Case], str]:
    """Where every method is done that was asked for, and in words where not. An adapted policy may be missing: it is costly."""
    undone = {
        (name, seed)
        for (of, name, method, seed), cell in view.cells.matched.items()
        if of == target and method != "paper-adapted" and view.result(cell) is None
    }
    words = []
    for name in view.chosen.all:
        seeds = [str(seed) for seed in view.plan.seeds if (name, seed) in undone]
        if seeds:
            words.append(name if len(seeds) == len(view.plan.seeds) else f"{name} (seed {', '.join(seeds)})")
    everywhere = {(name, seed) for name in view.chosen.all for seed in view.plan.seeds}
    return everywhere - undone, ", ".join(words)


def _by_case(
    view: View, target: str, method: str, cases: set[Case] | None = None
) -> dict[Case, dict[str, Any]]:
    """What a method has found, at all cases that it is done with or at some of these."""
    found = {
        (name, seed): view.result(cell)
        for (of, name, by, seed), cell in view.cells.matched.items()
        if (of, by) == (target, method) and (cases is None or (name, seed) in cases)
    }
    return {case: result for case, result in found.items() if result is not None}


def _is_smallest(found: dict[str, dict[Case, dict[str, Any]]], method: str, case: Case) -> bool:
    sizes = {m: by[case]["edges_pruned"] for m, by in found.items() if case in by and by[case]["reached"]}
    return method in sizes and sizes[method] == min(sizes.values())


def beside_searches(view: View) -> Table:
    """Does the policy win, on either axis or on both? Each search beside it, where both are done."""
    rows: list[tuple[Value, ...]] = []
    policies = [method for method in view.plan.methods if method in compare.PAPERS]
    for policy in policies:
        own = _by_case(view, "discovery", policy)
        for method in view.plan.methods:
            theirs = _by_case(view, "discovery", method) if method in compare.SEARCHES else {}
            cases = [case for case in own if case in theirs]
            if cases:
                head = (NAMES[policy], NAMES[method], len(cases))
                rows.append((*head, *_contest([(own[case], theirs[case]) for case in cases])))
    columns = (
        Column("policy", text=True),
        Column("beside", text=True),
        Column("both done", 0),
        Column("both", 0, "reach τ"),
        Column("only policy", 0, "reach τ"),
        Column("only search", 0, "reach τ"),
        Column("smaller", 0, "the policy is, where both reach τ"),
        Column("as small", 0, "the policy is, where both reach τ"),
        Column("cheaper", 0, "the policy is, where both reach τ"),
        Column("both", 0, "the policy is, where both reach τ"),
        Column("neither", 0, "the policy is, where both reach τ"),
        Column("edges", 2, "policy / search"),
        Column("passes", 2, "policy / search"),
    )
    return Table(
        "table-12-beside",
        "Table 12 · The paper's agent beside each search",
        "Circuits of table 8, behaviour by behaviour and seed by seed, where both methods are done. Both: smaller, and for fewer "
        "passes; neither: at least as large, for at least as many. The ratios are geometric means where both reach τ.",
        columns,
        tuple(rows),
        view.command,
        ("Attribution and a policy's adaptation are charged for, its training is not.",),
    )


def _contest(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> tuple[Value, ...]:
    """Counts and ratios of (policy's, search's) results."""
    both = [(p, s) for p, s in pairs if p["reached"] and s["reached"]]
    reached = (
        len(both),
        *(sum(pair[i]["reached"] and not pair[1 - i]["reached"] for pair in pairs) for i in (0, 1)),
    )
    smaller = [p["edges_pruned"] < s["edges_pruned"] for p, s in both]
    as_small = sum(p["edges_pruned"] == s["edges_pruned"] for p, s in both)
    cheaper = [p["passes"] < s["passes"] for p, s in both]
    won = sum(map(all, zip(smaller, cheaper, strict=True)))
    lost = sum(not any(pair) for pair in zip(smaller, cheaper, strict=True))
    ratios = [[p[key] / s[key] for p, s in both if p[key] and s[key]] for key in ("edges_pruned", "passes")]
    means = [geometric_mean(some) if some else None for some in ratios]
    return (*reached, sum(smaller), as_small, sum(cheaper), won, lost, *means)


def validity(view: View) -> Table:
    rows: list[tuple[Value, ...]] = []
    for name in view.chosen.all:
        for method in view.plan.methods:
            results = [
                r for r in view.results(view.cells.matched, "discovery", name, method) if "validity" in r
            ]
            if not results:
                continue
            others = [v["f"] for r in results for v in r["validity"]["variants"] if v["f"] is not None]
            row: list[Value] = [
                name,
                NAMES[method],
                spread(results, "edges_pruned"),
                spread(results, "f"),
                spread(results, "f_test"),
            ]
            row += [Spread.of(others) if others else None, spread(results, "validity", "necessity")]
            row += [spread(results, "validity", "necessity_random", "mean")]
            row.append(spread(results, "validity", "necessity_metric"))
            row += [_control(results, d, m) for d in ("candidates", "graph") for m in ("raw", "pruned")]
            row.append(_control(results, "candidates", "raw", "metric"))
            rows.append((*row, _components(results)[0], spread(results, "passes"), len(results)))
    group = "specificity: f of random circuits"
    columns = (
        Column("behaviour", text=True),
        Column("method", text=True),
        Column("edges", 0),
        Column("f"),
        Column("test", 3, "f on fresh pairs"),
        Column("other variants", 3, "f on fresh pairs"),
        Column("circuit", 3, "necessity: f without"),
        Column("random edges", 3, "necessity: f without"),
        Column("circuit", 3, "the behaviour's metric without"),
        Column("candidates", 3, group),
        Column("candidates, pruned size", 3, group),
        Column("whole graph", 3, group),
        Column("whole graph, pruned size", 3, group),
        Column("candidates", 3, "their metric"),
        Column("components", text=True),
        Column("passes", 0),
        Column("seeds", 0),
    )
    return Table(
        "table-11-validity",
        "Table 11 · Are the circuits real?",
        f"The circuits of table 8, f ≥ {view.plan.budget.tau:g} on discovery pairs. Random controls are means of 20 draws, from "
        "each method's own candidates or from the whole graph. Other variants: mean ± sd over the family's others. The metric is the "
        "behaviour's own: 0 for the empty circuit, 1 for the whole model. Circuits of seed 0, and "
        "of all seeds for the paper's agent.",
        columns,
        tuple(rows),
        view.command,
        ("Components found by hand have been published for GPT-2 small only.",)
        if not view.is_paper_model
        else (),
    )


def agreement(view: View) -> Table:
    found = agreements(view)
    rows = tuple(
        (
            a.row,
            a.behaviour,
            a.paper_size,
            a.size,
            a.paper_f,
            a.f,
            a.f - a.paper_f,
            None if a.size is None or a.paper_size is None else f"{100 * (a.size / a.paper_size - 1):+.0f} %",
            a.agrees,
        )
        for a in found
    )
    columns = (
        Column("row", text=True),
        Column("behaviour", text=True),
        Column("paper", 0, "edges"),
        Column("ours", 0, "edges"),
        Column("paper", 3, "f"),
        Column("ours", 3, "f"),
        Column("Δf", 3),
        Column("Δ edges", text=True),
        Column("agrees", text=True),
    )
    return Table(
        "table-13-agreement",
        "Table 13 · Deterministic rows of the paper beside ours",
        f"{sum(a.agrees for a in found)} of {len(found)} rows agree: |Δf| ≤ {paper.TOLERANCE_F:g} and, where a row has a size, within "
        f"{paper.TOLERANCE_SIZE:.0%} of it. Prompts differ, so none can be exact. Ours are means over the seeds that are done.",
        columns,
        rows,
        view.command,
    )
