"""Is a circuit real? The validity battery of the paper (its section 4), with the chance levels that it leaves out.

necessity       f of the whole model with the circuit's edges ablated: near 0 if the behaviour depends on them. Beside it, f with
                as many random edges of the candidate set ablated, and with as many that are all outside the circuit: the former
                share edges with the circuit, and what they break may be the circuit.
specificity     f of random circuits, drawn from the candidate set and from the whole graph: near 0 if it matters which edges are
                kept. Random edges seldom lie on a path, so circuits of the same number of edges lose most of theirs to pruning;
                the harder control has as many edges as the circuit *after* pruning.
                Necessity and specificity are told by the behaviour's own metric as well, as a share of the way from the empty circuit
                to the whole model: 0 where nothing of the behaviour is left, 1 where all of it is.
recovery        known components in the circuit, against what as many random components would hold.
generalisation  f on fresh pairs, and on fresh pairs of the other variants of the family.

All f but those on fresh pairs are on the circuit's discovery pairs. "The circuit" is what is left of it after pruning.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mechrl import gate
from mechrl.behaviours import Behaviour, behaviours
from mechrl.behaviours.base import TEST_SEED
from mechrl.candidates import ranking
from mechrl.circuit import Circuit
from mechrl.errors import MechRLError
from mechrl.graph import Graph
from mechrl.models.base import Model
from mechrl.search.fresh_pairs import fresh
from mechrl.stats import Spread, hypergeometric_at_least, rank_p
from mechrl.validity.setting import Setting, f_of, metric_of

if TYPE_CHECKING:
    from mechrl.validity.stability import Stability
    from mechrl.validity.verdict import ValidityVerdict

N_RANDOM = 20


@dataclass(frozen=True)
class Control:
    """Random circuits of one kind."""

    drawn_from: str  # `candidates` or `graph`
    matched: str  # which size is the circuit's: `raw` (edges drawn) or `pruned` (edges left after pruning; at least as many)
    f: Spread
    edges_pruned: Spread
    metric: Spread | None  # by the behaviour's own
    p: float  # of a random circuit with f at least as high as the circuit's: its rank among them


@dataclass(frozen=True)
class Recovery:
    """Known components in the circuit. Chance: as many components drawn at random from all heads (and MLPs, if some are known)."""

    known: tuple[str, ...]
    missed: tuple[str, ...]
    population: int
    in_circuit: int  # components of the population that the circuit has
    recovered: int
    precision: float | None  # recovered / in_circuit
    expected: float  # recovered by chance
    p_value: float  # of recovering at least so many by chance
    recovered_random: Spread  # by random circuits of the candidate set that have the same pruned size

    @property
    def text(self) -> str:
        return f"{self.recovered}/{len(self.known)}"


@dataclass(frozen=True)
class OtherVariant:
    """f of the circuit on fresh pairs of another variant of its family; None, with the reason, where it has no meaning."""

    behaviour: str
    f: float | None
    reason: str = ""


@dataclass(frozen=True)
class Validity:
    """What the battery measured on one circuit. Printing it gives the table of `mechrl validate`."""

    model: str
    behaviour: str
    method: str
    seed: int
    edges: int
    edges_pruned: int
    candidates: int
    faithfulness: float  # measured again
    faithfulness_test: float
    necessity: float
    necessity_random: Spread
    necessity_others: Spread | None  # as many outside the circuit; None if there are no more than that
    necessity_p: float  # of as many others leaving as little f: the circuit's rank among them
    metric: str  # the behaviour's own; where it is KL, f says it
    necessity_metric: float | None  # by the behaviour's own metric
    specificity: tuple[Control, ...]
    recovery: Recovery | None
    recovery_reason: str  # why there is none
    variants: tuple[OtherVariant, ...]
    seconds: float
    verdict: ValidityVerdict | None = None  # see verdict.py
    stability: Stability | None = None  # see stability.py

    def to_json(self) -> dict[str, Any]:
        """As `mechrl validate --json` prints it."""
        known = asdict(replace(self, verdict=None))
        del known["verdict"]
        return known if self.verdict is None else known | {"verdict": self.verdict.to_json()}

    @property
    def headline(self) -> str:
        """One line: what was found, where, by which method, and how large it is."""
        return (
            f"{self.behaviour} in {self.model} by {self.method}: {self.edges_pruned} edges ({self.edges} before pruning), "
            f"f = {self.faithfulness:.3f} on its discovery pairs"
        )

    def rows(self) -> list[list[str]]:
        """Check, what it measured, and the value, for people."""
        rows = [
            ["necessity", "f with the circuit ablated", f"{self.necessity:.3f}"],
            ["", "f with as many random candidates ablated", self.necessity_random.text()],
        ]
        if self.necessity_others is not None:
            what = f"f with as many outside the circuit ablated; p = {self.necessity_p:.2g}"
            rows.append(["", what, self.necessity_others.text()])
        if self.necessity_metric is not None:
            rows.insert(1, ["", f"{self.metric} with the circuit ablated", f"{self.necessity_metric:.3f}"])
        for i, c in enumerate(self.specificity):
            where = (
                f"of the {self.candidates:,} candidates"
                if c.drawn_from == "candidates"
                else "of the whole graph"
            )
            size = (
                f"{self.edges_pruned:,} edges"
                if c.matched == "raw"
                else f"{c.edges_pruned.mean:,.0f} edges after pruning"
            )
            if (
                c.drawn_from == "candidates" and self.candidates < self.edges_pruned
            ):  # a ranking of the whole graph may keep more
                size = f"all of them, fewer than the circuit's {self.edges_pruned:,} edges"
            rows.append(
                [
                    "specificity" if i == 0 else "",
                    f"f of random circuits {where}, {size}; p = {c.p:.2g}",
                    c.f.text(),
                ]
            )
            if c.metric is not None:
                rows.append(["", f"{self.metric} of these", c.metric.text()])
        r = self.recovery
        if r is None:
            rows.append(["recovery", self.recovery_reason, "–"])
        else:
            chance = f"{r.expected:.1f} expected by chance among {r.in_circuit} of {r.population} components, p = {r.p_value:.2g}"
            precision = "–" if r.precision is None else f"{r.precision:.2f}"
            rows.append(["recovery", f"known components; {chance}", r.text])
            rows.append(["", "precision: known ones among the circuit's components", precision])
            rows.append(
                ["", "by random circuits of the candidates, same pruned size", r.recovered_random.text(1)]
            )
            if r.missed:
                rows.append(["", f"missed: {', '.join(r.missed)}", ""])
        rows.append(["generalisation", "f on fresh pairs", f"{self.faithfulness_test:.3f}"])
        for e in self.variants:
            f = "–" if e.f is None else f"{e.f:.3f}"
            rows.append(["", f"f on fresh pairs of {e.behaviour}{e.reason and f' ({e.reason})'}", f])
        if (s := self.stability) is not None:
            what = f"mean Jaccard of the circuits of {s.circuits} bootstraps of the discovery pairs"
            rows.append(["stability", f"{what}; {s.chance:.2f} by chance", s.jaccard.text(2)])
        return rows

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(len(row[i]) for row in rows) for i in range(2)]
        lines = [
            f"{check:<{widths[0]}}  {what:<{widths[1]}}  {value}".rstrip() for check, what, value in rows
        ]
        return "\n".join([self.headline, *([self.verdict.line] if self.verdict else []), *lines])


def random_circuits(
    graph: Graph, edges: np.ndarray, size: int, count: int, seed: int = 0, pruned: bool = False
) -> np.ndarray:
    """[count, E] bool: circuit i is the beginning of the i-th random order of `edges`, whatever the count.

    It has `size` edges or, with `pruned`, just so many that `size` are left after pruning. (Pruning keeps no fewer of more edges,
    so the number is found by bisection. The last edge may complete several paths at once: a few more than `size` may be left.)
    """
    orders = np.stack([np.random.default_rng([seed, i]).permutation(edges) for i in range(count)])

    def beginnings(length: np.ndarray) -> np.ndarray:
        masks = np.zeros((count, graph.n_edges), dtype=bool)
        np.put_along_axis(masks, orders, np.arange(len(edges)) < length[:, None], axis=1)
        return masks

    high = np.full(count, min(size, len(edges)))
    if pruned:
        low, high = high - 1, np.full(count, len(edges))  # `low` is too few, `high` enough, or all there are
        while (high - low > 1).any():
            middle = (low + high) // 2
            enough = graph.prune(beginnings(middle)).sum(1) >= size
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return beginnings(high)


def components(graph: Graph, mask: np.ndarray) -> set[str]:
    """Heads and MLPs on a path from the input to the logits."""
    sources = np.unique(graph.edge_source[graph.prune(mask)])
    return {graph.source_names[s] for s in sources if s != 0}


def known_components(model: Model, behaviour: Behaviour) -> tuple[tuple[str, ...], str]:
    """What people found in this very model; or none, and why."""
    if not behaviour.known:
        return (), "no components have been published for this behaviour"
    if behaviour.known_model != model.name.removeprefix("openai-community/"):
        return (), f"components have been published for {behaviour.known_model} only"
    known = tuple(dict.fromkeys(k.component for k in behaviour.known if k.confidence != "low"))
    return known, "" if known else "no sparse circuit has been published for this behaviour"


def recovery(graph: Graph, mask: np.ndarray, known: tuple[str, ...], random: np.ndarray) -> Recovery:
    """`random` [n, E]: the circuits to compare it with."""
    mlps = any(name.startswith("m") for name in known)
    population = {name for name in graph.source_names[1:] if mlps or name.startswith("a")}
    if strange := set(known) - population:
        raise MechRLError(f"known components that the model does not have: {', '.join(sorted(strange))}")
    mine = components(graph, mask) & population
    found = mine & set(known)
    return Recovery(
        known=known,
        missed=tuple(name for name in known if name not in found),
        population=len(population),
        in_circuit=len(mine),
        recovered=len(found),
        precision=len(found) / len(mine) if mine else None,
        expected=len(known) * len(mine) / len(population),
        p_value=hypergeometric_at_least(len(found), len(population), len(known), len(mine)),
        recovered_random=Spread.of(len(components(graph, m) & set(known)) for m in random),
    )


def validate(
    circuit: Circuit,
    model: Model,
    behaviour: Behaviour,
    n_random: int = N_RANDOM,
    seed: int = 0,
    report: Callable[[str], None] = lambda line: None,
    setting: Setting | None = None,
) -> Validity:
    """The whole battery. `setting`: the circuit's, if it is at hand."""
    began = time.perf_counter()
    if n_random < N_RANDOM:
        raise MechRLError(
            f"fewer than {N_RANDOM} random circuits say little; give --random {N_RANDOM} or more"
        )
    report("pairs, attribution, candidates")
    setting = setting or Setting.of(model, behaviour, circuit)
    model = setting.model  # its prompts open as they did when the circuit was found
    graph, engine = model.graph, setting.engine
    mask = graph.prune(circuit.mask)
    size = int(mask.sum())

    report("necessity")
    outside = _outside(setting, mask)
    ablated, others = (
        ~random_circuits(graph, edges, size, n_random, seed) for edges in (setting.candidates, outside)
    )
    f, necessity, *of_random = f_of(engine, np.concatenate([mask[None], ~mask[None], ablated]))
    of_others = f_of(engine, others) if len(outside) > size else None
    own = metric_of(setting, ~mask[None])
    necessity_metric = None if own is None else float(own[0])

    controls, hard = _controls(setting, size, float(f), n_random, seed, report)
    known, why = known_components(model, behaviour)
    report("fresh pairs")
    return Validity(
        model=model.name,
        behaviour=behaviour.name,
        method=circuit.method,
        seed=circuit.seed,
        edges=len(circuit),
        edges_pruned=size,
        candidates=len(setting.candidates),
        faithfulness=float(f),
        faithfulness_test=float(f_of(setting.test, mask)[0]),
        necessity=float(necessity),
        necessity_random=Spread.of(of_random),
        necessity_others=None if of_others is None else Spread.of(of_others),
        necessity_p=1.0 if of_others is None else rank_p(float(necessity), of_others),
        metric=behaviour.metric,
        necessity_metric=necessity_metric,
        specificity=controls,
        recovery=recovery(graph, mask, known, hard) if known else None,
        recovery_reason=why,
        variants=tuple(_on_variant(model, other, mask, report) for other in _variants(behaviour)),
        seconds=time.perf_counter() - began,
    )


def _outside(setting: Setting, mask: np.ndarray) -> np.ndarray:
    """Candidates that the circuit does not have, and where these are few the next best edges: twice as many as it has, if there are."""
    best = ranking(setting.scores)
    best = best[~mask[best]][: 2 * int(mask.sum())]
    return np.union1d(setting.candidates[~mask[setting.candidates]], best)


def _controls(
    setting: Setting, size: int, f: float, n_random: int, seed: int, report: Callable[[str], None]
) -> tuple[tuple[Control, ...], np.ndarray]:
    """Random circuits of every kind, and the masks of the hardest: candidates, with as many edges after pruning."""
    graph, engine = setting.model.graph, setting.engine
    controls, hard = [], np.zeros((0, graph.n_edges), dtype=bool)
    for name, edges in (("candidates", setting.candidates), ("graph", np.arange(graph.n_edges))):
        for matched in ("raw", "pruned"):
            report(f"specificity: {n_random} random circuits of the {name}, same {matched} size")
            masks = random_circuits(graph, edges, size, n_random, seed, matched == "pruned")
            if (name, matched) == ("candidates", "pruned"):
                hard = masks
            left = graph.prune(masks).sum(1)
            of_random, own = f_of(engine, masks), metric_of(setting, masks)
            metric = None if own is None else Spread.of(own)
            # with no more edges than that to draw from, all draws are the same
            p = rank_p(-f, -of_random) if size < len(edges) else 1.0
            controls.append(Control(name, matched, Spread.of(of_random), Spread.of(left), metric, p))
    return tuple(controls), hard


def _variants(behaviour: Behaviour) -> list[Behaviour]:
    if behaviour.family == "custom":
        return []
    return [
        other for other in behaviours() if other.family == behaviour.family and other.name != behaviour.name
    ]


def _on_variant(
    model: Model, behaviour: Behaviour, mask: np.ndarray, report: Callable[[str], None]
) -> OtherVariant:
    report(f"variant {behaviour.name}")
    try:
        engine = fresh(model, behaviour, TEST_SEED)
    except MechRLError as exc:
        return OtherVariant(behaviour.name, None, str(exc))
    if engine.kl_cut < gate.MIN_KL_CUT:
        return OtherVariant(
            behaviour.name, None, f"not exhibited: KL_cut {engine.kl_cut:.2f} < {gate.MIN_KL_CUT}"
        )
    return OtherVariant(behaviour.name, float(f_of(engine, mask)[0]))
