"""The candidate set: pairs → scores → the K edges that a method chooses from. All other edges are cut.

The paper's prefilter is EAP-IG on inputs with five steps and the behaviour's own metric (which may be KL); the candidates are
the K edges of highest |score|. `union` adds the K best by KL: on some models the best edges by the metric alone reach no useful f.
If a search cannot reach its target with these candidates, K is doubled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mechrl import attribution
from mechrl.behaviours.base import Behaviour, Metric, Pairs
from mechrl.engine import Engine
from mechrl.errors import MechRLError
from mechrl.models.base import Model
from mechrl.names import Prefilter


def discovery_pairs(model: Model, behaviour: Behaviour, n: int, seed: int) -> Pairs:
    """The pairs on which a circuit is found."""
    if model.tokenizer is None:
        raise MechRLError(f"model {model.name!r} has no tokenizer, so no pairs can be made for it")
    return behaviour.pairs(model.tokenizer, n, seed, part="discovery", n_ctx=model.spec.n_ctx)


def metrics_of(metric: Metric, prefilter: Prefilter) -> list[Metric]:
    """The metrics that score edges, for a behaviour with this metric. All edges are ranked by the first one."""
    if prefilter == "kl" or metric == "kl":
        return ["kl"]
    return [metric, "kl"] if prefilter == "union" else [metric]


def scores_of(engine: Engine, pairs: Pairs, metrics: Sequence[Metric]) -> list[np.ndarray]:
    """[E] for each metric: EAP-IG on inputs, five steps."""
    return attribution.cached_by(engine, pairs, metrics)


def ranking(scores: np.ndarray) -> np.ndarray:
    """Edges from the highest |score| to the lowest; ties in edge order."""
    return np.argsort(-np.abs(scores), kind="stable")


def candidate_set(scores: Sequence[np.ndarray], k: int) -> np.ndarray:
    """The union of the k best edges by each score, ascending. (Two scores mostly agree, so the union is far smaller than 2k.)"""
    return np.unique(np.concatenate([ranking(s)[:k] for s in scores]))


@dataclass(frozen=True)
class Widened:
    """The candidates, `k` by each score, and their f as a circuit."""

    edges: np.ndarray
    k: int
    f: float


def widen(engine: Engine, scores: Sequence[np.ndarray], k: int, reach: float) -> Widened:
    """Doubles k until f of the candidates is at least `reach`. Every measurement is charged."""
    n_edges = engine.graph.n_edges
    while True:
        edges = candidate_set(scores, k)
        f = _f(engine, edges)
        if f >= reach or k >= n_edges:
            return Widened(edges, k, f)
        k = min(2 * k, n_edges)


def _f(engine: Engine, edges: np.ndarray) -> float:
    return float(engine.faithfulness(np.ones((1, len(edges)), dtype=bool), edges)[0])
