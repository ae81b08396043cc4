"""Tables 1 to 4 of the paper: features, behaviours, transfer, and policy beside search."""

from __future__ import annotations

from mechrl.behaviours import get_behaviour
from mechrl.experiments import paper_numbers as paper
from mechrl.experiments.paper_tables.captions import n_seeds, over_seeds, policy_notes, policy_rule
from mechrl.experiments.paper_tables.matched import control, recovered_components
from mechrl.experiments.reproduce import View, acdc_best, greedy_best, spread
from mechrl.report.tables import Table, Value, columns


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
        columns({"group": None, "features": 0, "what they are": None}),
        rows,
        view.command,
    )


def behaviours(view: View) -> Table:
    """Table 2 of the paper."""
    return Table(
        "table-2-behaviours",
        "Table 2 · Behaviours and ceilings",
        f"The ceiling c is f of the whole candidate set ({view.candidates}) on {view.scope.budget.pairs} discovery pairs; beside it the "
        f"ceiling of the {view.agent.k:,} best edges by KL attribution. Mean ± sd over {n_seeds(len(view.scope.seeds))}; passes are those "
        "of both attributions and of all curves.",
        (
            *columns({"behaviour": None, "split": None, "example prompt": None, "output": None}),
            *columns({"metric": None, "accuracy": 2, "KL_cut": 2, "candidates K": 0, "ceiling c": 3}),
            *columns({"c over variants": None, "c by KL": 3, "passes": 0, "seeds": 0}),
            *(columns({"c in the paper": None}) if view.is_paper_model else ()),
        ),
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
    split = "training" if name in view.chosen.trained else "held-out"
    row: list[Value] = [name, split, example["prompt"], example["answer"], behaviour.metric]
    row += [verdict["accuracy"], *(spread(results, key) for key in ("kl_cut", "candidates", "ceiling"))]
    row.append(f"{min(ceilings):.3f}–{max(ceilings):.3f}" if len(ceilings) > 1 else None)
    row += [spread(results, "ceiling_kl"), spread(results, "passes"), len(results)]
    if view.is_paper_model:
        theirs = paper.CEILINGS[name].stated if name in paper.CEILINGS else ()
        row.append("–".join(f"{c:.2f}" for c in (theirs if isinstance(theirs, tuple) else [theirs])) or None)
    return tuple(row)


def transfer(view: View) -> Table:
    """Table 3 of the paper."""
    each = {"f": 3, "f test": 3, "edges": 0, "on a path": 0, "passes": 0}
    theirs = {"f": 3, "edges": 0, "f warm": 3, "edges warm": 0, "recovered": None}
    return Table(
        "table-3-transfer",
        "Table 3 · Transfer to held-out behaviours",
        f"A frozen policy and the same after {view.scope.budget.adapt_iterations} iterations on the behaviour. {policy_rule(view)} "
        "Necessity: f with the circuit ablated. Specificity: f of 20 random circuits of the candidates, as large. Near 0 is what one "
        f"hopes for; table 11 has more controls. {over_seeds(view)}",
        (
            *columns({"behaviour": None}),
            *columns(each, "zero-shot"),
            *columns(each, "warm start"),
            *columns({"necessity": 3, "specificity": 3}, "controls, zero-shot circuit"),
            *columns({"recovered": 0, "by chance": 1, "precision": 2}, "known components"),
            *columns({"seeds": None}),
            *(columns(theirs, "the paper") if view.is_paper_model else ()),
        ),
        tuple(_transfer_row(view, name) for name in view.chosen.held_out),
        view.command,
        (*view.chosen.notes, *policy_notes(view)),
    )


def _transfer_row(view: View, name: str) -> tuple[Value, ...]:
    zero, warm = view.results(view.cells.policy, name), view.results(view.cells.adapted, name)
    row: list[Value] = [name]
    for results in (zero, warm):
        row += [spread(results, key) for key in ("f", "f_test", "edges", "edges_pruned", "passes")]
    row += [spread(zero, "validity", "necessity"), control(zero, "candidates", "raw")]
    row += [*recovered_components(zero), f"{len(zero)}, {len(warm)}"]
    if view.is_paper_model:
        theirs = paper.TRANSFER.get(name)
        if theirs is None:
            row += [None] * 5
        else:
            recovered = None if theirs.components is None else "{}/{}".format(*theirs.components)
            row += [*theirs.zero_shot, *theirs.warm, recovered]
    return tuple(row)


def per_behaviour(view: View) -> Table:
    """Table 4 of the paper."""
    tau = view.scope.budget.tau
    rows: list[tuple[Value, ...]] = []
    keys = ("edges", "f", "f_test", "passes")
    for name in view.chosen.all:
        curves = view.results(view.cells.curves, name)
        best = acdc_best(view, name, tau)
        results = best[1] if best else []
        row: list[Value] = [name, f"{best[0]:g}" if best else None, *(spread(results, key) for key in keys)]
        for which in ("metric", "kl"):
            row += greedy_best(curves, which, tau) or (None, None)
        own = view.results(view.cells.adapted if name in view.chosen.held_out else view.cells.policy, name)
        row += [*(spread(own, key) for key in keys), f"{len(results)}, {len(curves)}, {len(own)}"]
        if view.is_paper_model:
            known = paper.COMPARISON.get(name)
            row += [None] * 4 if known is None else [f"{edges} ({f:.2f})" for edges, f, *_ in known]
        rows.append(tuple(row))
    each, size = {"edges": 0, "f": 3, "f test": 3, "passes": 0}, {"edges": 0, "f": 3}
    theirs = {"ACDC": None, "metric": None, "KL": None, "policy": None}
    return Table(
        "table-4-per-behaviour",
        "Table 4 · Policy and per-behaviour search, as the paper compares them",
        f"f ≥ {tau:g} on {view.scope.budget.pairs} discovery pairs. ACDC: the smallest over thresholds "
        f"{', '.join(f'{t:g}' for t in view.scope.budget.thresholds)} that reaches it, else the most faithful. EAP-IG greedy: the smallest "
        "of the paper's sizes that reaches it, else the largest; it takes no passes beyond the attribution's. Policy: frozen on training "
        f"behaviours, adapted on held-out ones; not matched in f. {policy_rule(view)} Seeds: of ACDC, "
        f"greedy, policy. {over_seeds(view)}",
        (
            *columns({"behaviour": None}),
            *columns({"threshold": None, **each}, "ACDC, whole graph"),
            *columns(size, "EAP-IG greedy, metric"),
            *columns(size, "EAP-IG greedy, KL"),
            *columns(each, "policy"),
            *columns({"seeds": None}),
            *(columns(theirs, "the paper: edges (f)") if view.is_paper_model else ()),
        ),
        tuple(rows),
        view.command,
        view.chosen.notes,
    )
