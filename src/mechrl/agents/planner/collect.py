"""Collecting: walks from large circuits to small ones, with edits tried on the way. What the network learns from.

At every circuit of a walk single cuts and additions are tried, sets of cuts, and sets of both: cheap edges and random ones, few and
many. f is measured on the discovery pairs and, for a part of the edits, on fresh pairs of the behaviour. The walk goes on from one of
the sets: the smallest whose f is above a level that falls as the circuit becomes smaller, so that walks pass through circuits like those
that searches end with. With a network (a later round) its costs are the order instead of gradients: then the edits are those that the
agent itself would try.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from mechrl.agents.planner.features import see
from mechrl.agents.planner.look import Look, mean_and_rms
from mechrl.agents.planner.network import EditModel
from mechrl.agents.planner.records import Record
from mechrl.agents.planner.start import Start, start
from mechrl.behaviours.base import VALIDATION_SEED, Behaviour
from mechrl.engine import Engine
from mechrl.models.base import Model

LARGE = 2000  # edges: in larger circuits single edges do next to nothing, and a pass costs the most


@dataclass(frozen=True)
class CollectSettings:
    pairs: int = 20
    fresh: int = 100
    states: int = 7  # circuits of a walk
    singles: int = 48  # cuts of one edge at a circuit, half of them the cheapest
    additions: int = 10
    sets: int = 20  # sets of cuts
    mixed: int = 10  # sets of cuts and additions
    fresh_part: float = 0.06  # of the edits are measured on fresh pairs too: five times the price
    outside: int = 1000  # edges that may be added
    smallest: int = 20  # edges; a walk ends below

    def to_json(self) -> dict[str, float]:
        return asdict(self)


# places among the circuit's edges that are cut, among those outside that are added
Edit = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Trials:
    """Edits of a circuit, the first of them empty, and the circuits that they make."""

    look: Look
    edits: list[Edit]
    masks: np.ndarray  # [T, n] over the candidates, without dead edges
    f: np.ndarray  # [T]
    f_fresh: np.ndarray  # [T], NaN where it was not measured


@dataclass(frozen=True)
class Walk:
    records: list[Record]
    passes: float
    seconds: float


def walk(
    model: Model,
    behaviour: Behaviour,
    draw: int,
    settings: CollectSettings,
    network: EditModel | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Walk:
    """One walk on one draw of discovery pairs."""
    began = time.perf_counter()
    rng = np.random.default_rng([draw, *behaviour.name.encode()])
    task = start(model, behaviour, settings.pairs, draw, enough=rng.uniform(0.88, 0.96))
    assert model.tokenizer is not None
    others = behaviour.pairs(model.tokenizer, settings.fresh, VALIDATION_SEED, n_ctx=model.spec.n_ctx)
    fresh = Engine(model, others, ledger=task.engine.ledger)
    mask, f = task.mask, task.f
    records: list[Record] = []
    while len(records) < settings.states and mask.sum() >= settings.smallest:
        report(f"{int(mask.sum())} edges, f {f:.3f}")
        tried = _try_edits(task, fresh, mask, f, settings, network, rng)
        records.append(_record(behaviour, draw, task, tried))
        before = mask
        mask, f = _following(tried, rng)
        if mask.sum() > 0.97 * before.sum() and f < 0.9:
            break
    return Walk(records, task.passes, time.perf_counter() - began)


def _try_edits(
    task: Start,
    fresh: Engine,
    mask: np.ndarray,
    f: float,
    settings: CollectSettings,
    network: EditModel | None,
    rng: np.random.Generator,
) -> Trials:
    """Edits of a circuit, and f of what they make: on discovery pairs and, of some, on fresh ones."""
    outside = task.best_outside(mask, settings.outside)
    look = task.looker.look(mask, outside, f)
    alive = np.flatnonzero(mask)
    cost, gain = _order(task, look, network, rng)
    edits = _edits(cost, gain, settings, rng)
    masks = task.prune(_masks(mask, alive, outside, edits))
    f_of = task.f_of(masks)

    by_measure = _by_measure(cost, edits, f_of)
    more = _second_helping(by_measure, gain, rng)
    if len(alive) <= 3 * len(by_measure):
        extra = task.prune(_masks(mask, alive, outside, more))
        edits, masks = edits + more, np.concatenate([masks, extra])
        f_of = np.concatenate([f_of, task.f_of(extra)])

    f_fresh = np.full(len(edits), np.nan)
    some = np.unique([0, *rng.choice(len(edits), round(settings.fresh_part * len(edits)), replace=False)])
    f_fresh[some] = fresh.faithfulness(masks[some], task.candidates).double().cpu().numpy()
    return Trials(look, edits, masks, f_of, f_fresh)


def _record(behaviour: Behaviour, draw: int, task: Start, tried: Trials) -> Record:
    """What was learned. Of the edges outside only those that were added are worth keeping."""
    look, n = tried.look, len(tried.edits)
    used = np.unique(np.concatenate([add for _, add in tried.edits])).astype(np.int64)
    place = np.zeros(len(look.outside), dtype=np.int64)
    place[used] = np.arange(len(used))
    cuts, adds = np.zeros((n, len(look.alive)), dtype=bool), np.zeros((n, len(used)), dtype=bool)
    for i, (cut, add) in enumerate(tried.edits):
        cuts[i, cut], adds[i, place[add]] = True, True
    outside_gains, f = look.outside_gains[:, used], float(tried.f[0])
    kept = Look(look.alive, look.gains, look.outside[used], outside_gains, f)
    first = task.first.at(np.concatenate([kept.alive, kept.outside]))
    about = behaviour.name, behaviour.family, draw, task.graph
    return Record(*about, kept, first, cuts, adds, tried.f, tried.f_fresh)


def _following(tried: Trials, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """Where the walk goes on: the smallest circuit above a level, else the best bargain; and its f."""
    sizes, f, n = tried.masks.sum(1), tried.f, len(tried.look.alive)
    level = min(float(rng.uniform(0.86, 0.97)), float(f[0]))
    enough = np.flatnonzero((sizes < 0.95 * n) & (sizes > 0.3 * n) & (f >= level))
    if len(enough):
        i = int(enough[sizes[enough].argmin()])
    else:
        i = int(np.where(sizes < n, f - (sizes / n) * 0.2, -np.inf).argmax())
    return tried.masks[i], float(f[i])


def _order(
    task: Start, look: Look, network: EditModel | None, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """What cutting costs [n], and what adding gains [m], as far as anybody knows."""
    if network is not None:
        import torch

        with torch.no_grad():
            first = task.first.at(np.concatenate([look.alive, look.outside]))
            edges = network.edges(see(task.graph, look, first))
        cost = edges.cost.cpu().numpy().astype(np.float64)
        return cost[: edges.n], cost[edges.n :]
    mean, rms = mean_and_rms(look.gains)
    negative = rng.choice([0.0, 0.3, 1.0])
    x = mean[rng.integers(0, 2) :].mean(0)
    return np.clip(x, 0, None) - negative * np.clip(x, None, 0) + 0.2 * rms[-1], look.outside_gains.mean(
        0
    ).astype(np.float64)


def _edits(
    cost: np.ndarray, gain: np.ndarray, settings: CollectSettings, rng: np.random.Generator
) -> list[Edit]:
    """The first is empty."""
    n, m, none = len(cost), len(gain), np.zeros(0, dtype=np.int64)
    cheap, promising = np.argsort(cost, kind="stable"), np.argsort(-gain, kind="stable")
    large = n > LARGE
    few, adds = (0, 0) if large else (settings.singles // 2, settings.additions // 2)
    singles = np.union1d(cheap[:few], rng.permutation(n)[:few])
    additions = np.union1d(promising[:adds], rng.permutation(m)[:adds])
    edits: list[Edit] = [(none, none)]
    edits += [(np.array([e]), none) for e in singles]
    edits += [(none, np.array([e])) for e in additions]

    def noisy(order: np.ndarray, noise: float) -> np.ndarray:
        return order[
            np.argsort(np.arange(len(order)) + noise * len(order) * rng.random(len(order)), kind="stable")
        ]

    def some_cuts(largest: float) -> np.ndarray:
        least = n / 20 if large else 2
        size = int(np.exp(rng.uniform(np.log(least), np.log(max(3, largest * n)))))
        return noisy(cheap, rng.choice([0.0, 0.02, 0.1, 0.3, 3.0], p=[0.3, 0.25, 0.2, 0.15, 0.1]))[:size]

    edits += [(some_cuts(0.8), none) for _ in range(settings.sets // (1 + large))]
    for _ in range(settings.mixed // (1 + 4 * large) if m else 0):
        a = int(np.exp(rng.uniform(0, np.log(16))))
        edits.append((some_cuts(0.5), noisy(promising[: 8 * a], rng.choice([0.0, 0.3]))[:a]))
    return edits


def _by_measure(cost: np.ndarray, edits: list[Edit], f: np.ndarray) -> np.ndarray:
    """Places of the edges that were cut alone, from the one that cost the least."""
    single = [i for i, (cut, add) in enumerate(edits) if len(cut) == 1 and not len(add)]
    tried = np.array([edits[i][0][0] for i in single], dtype=np.int64)
    measured = cost.copy()
    measured[tried] = f[0] - f[single]
    return tried[np.argsort(measured[tried], kind="stable")]


def _second_helping(by_measure: np.ndarray, gain: np.ndarray, rng: np.random.Generator) -> list[Edit]:
    """Sets in the order of measured costs, alone and with a few additions."""
    best_adds = np.argsort(-gain, kind="stable")
    more = []
    for share in (0.2, 0.4, 0.6, 0.8):
        cut = by_measure[: max(2, round(share * len(by_measure)))]
        more += [(cut, best_adds[:0]), (cut, best_adds[: rng.integers(1, 6)])]
    return more


def _masks(mask: np.ndarray, alive: np.ndarray, outside: np.ndarray, edits: list[Edit]) -> np.ndarray:
    masks = np.repeat(mask[None], len(edits), axis=0)
    for row, (cut, add) in zip(masks, edits, strict=True):
        row[alive[cut]] = False
        row[outside[add]] = True
    return masks
