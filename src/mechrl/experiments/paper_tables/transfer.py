"""Tables 1 to 4 of the paper: features, behaviours, transfer, and policy beside search."""

from __future__ import annotations

from mechrl.behaviours import get_behaviour
from mechrl.experiments import paper_numbers as paper
from mechrl.experiments.paper_tables.captions import (
    n_seeds,
    over_seeds,
    policy_notes,
    policy_rule,
)
from mechrl.experiments.paper_tables.matched import control, recovered_components
from mechrl.experiments.reproduce import View, acdc_best, greedy_best, spread
from mechrl.report.tables import Column, Table, Value


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
        f"The ceiling c is f of the whole candidate set ({view.candidates}) on {view.scope.budget.pairs} discovery pairs; beside it the "
        f"ceiling of the {view.agent.k:,} best edges by KL attribution. Mean ± sd over {n_seeds(len(view.scope.seeds))}; passes are those "
        "of both attributions and of all curves.",
        tuple(columns),
        tuple(_behaviour_row(view, name) for name in view.chosen.all),
        view.command,
        view.chosen.notes,
    )


def _behaviour_row(view: View, name: str) -> tuple[Value, ...]:
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
    return tuple(row)


def transfer(view: View) -> Table:
    """Table 3 of the paper."""
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
        Column("specificity", 3, group),
    ]
    group = "known components"
    columns += [Column("recovered", 0, group), Column("by chance", 1, group), Column("precision", 2, group)]
    columns.append(Column("seeds", text=True))
    if view.is_paper_model:
        group = "the paper"
        columns += [Column("f", 3, group), Column("edges", 0, group), Column("f warm", 3, group)]
        columns += [Column("edges warm", 0, group), Column("recovered", text=True, group=group)]
    b = view.scope.budget
    return Table(
        "table-3-transfer",
        "Table 3 · Transfer to held-out behaviours",
        f"A frozen policy and the same after {b.adapt_iterations} iterations on the behaviour. {policy_rule(view)} "
        "Necessity: f with the circuit ablated. Specificity: f of 20 random circuits of the candidates, as large. Near 0 is what one "
        f"hopes for; table 11 has more controls. {over_seeds(view)}",
        tuple(columns),
        tuple(_transfer_row(view, name) for name in view.chosen.held_out),
        view.command,
        (*view.chosen.notes, *policy_notes(view)),
    )


def _transfer_row(view: View, name: str) -> tuple[Value, ...]:
    zero, warm = view.results(view.cells.policy, name), view.results(view.cells.adapted, name)
    row: list[Value] = [name]
    for results in (zero, warm):
        row += [spread(results, key) for key in ("f", "f_test", "edges", "edges_pruned", "passes")]
    row += [
        spread(zero, "validity", "necessity"),
        control(zero, "candidates", "raw"),
    ]
    row += [*recovered_components(zero), f"{len(zero)}, {len(warm)}"]
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
    return tuple(row)


def per_behaviour(view: View) -> Table:
    """Table 4 of the paper."""
    tau = view.scope.budget.tau
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
        f"f ≥ {tau:g} on {view.scope.budget.pairs} discovery pairs. ACDC: the smallest over thresholds "
        f"{', '.join(f'{t:g}' for t in view.scope.budget.thresholds)} that reaches it, else the most faithful. EAP-IG greedy: the smallest "
        "of the paper's sizes that reaches it, else the largest; it takes no passes beyond the attribution's. Policy: frozen on training "
        f"behaviours, adapted on held-out ones; not matched in f. {policy_rule(view)} Seeds: of ACDC, "
        f"greedy, policy. {over_seeds(view)}",
        tuple(columns),
        tuple(rows),
        view.command,
        view.chosen.notes,
    )
