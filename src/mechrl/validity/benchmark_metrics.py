"""CPR and CMD of a scored or ordered circuit, as MIB's circuit track computes them.

    f(C_k) = (m(C_k) − m(∅)) / (m(model) − m(∅)),  m the logit difference,  C_k the best k of all edges (k = .1 % … 100 %), pruned

CPR is the area under f, with edges ranked by signed score: does the circuit perform? The higher the better, and above 1 where
edges that harm the behaviour are left out. CMD is the area of |1 − f|, with edges ranked by absolute score: does it do what the
model does? 0 is best. Both are trapezoids over the fraction of edges. This f is not the f of the searches, which compares whole
distributions; and with grouped-query attention MIB, which has k and v inputs for every head, counts more edges than there are here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mechrl.behaviours.base import Pairs, metric_value
from mechrl.circuit import Circuit
from mechrl.engine import Engine

FRACTIONS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True)
class BenchmarkMetrics:
    cpr: float
    cmd: float
    faithfulness_signed: tuple[float, ...]  # at every fraction
    faithfulness_absolute: tuple[float, ...]


def benchmark_metrics(engine: Engine, pairs: Pairs, importance: np.ndarray | Circuit) -> BenchmarkMetrics:
    """CPR and CMD on the pairs of the engine. A circuit counts by its scores or, without any, by its removal order."""
    scores = importance.importance() if isinstance(importance, Circuit) else np.asarray(importance)
    n_edges, parts = engine.graph.n_edges, FRACTIONS[:-1]  # all edges are the model: f = 1
    masks = np.zeros((2, len(parts), n_edges), dtype=bool)
    for which, key in enumerate((scores, np.abs(scores))):
        best_first = np.argsort(-key, kind="stable")
        for i, fraction in enumerate(parts):
            masks[which, i, best_first[: int(fraction * n_edges)]] = True
    whole, empty = np.ones((1, n_edges), dtype=bool), np.zeros((1, n_edges), dtype=bool)
    every = np.concatenate([whole, empty, masks.reshape(-1, n_edges)])
    difference = engine.measure(every, lambda logits: metric_value("logit-difference", logits, pairs))
    m = difference.double().mean(-1).cpu().numpy()
    signed, absolute = np.pad(
        ((m[2:] - m[1]) / (m[0] - m[1])).reshape(2, -1), ((0, 0), (0, 1)), constant_values=1.0
    )
    return BenchmarkMetrics(
        cpr=float(np.trapezoid(signed, FRACTIONS)),
        cmd=float(np.trapezoid(np.abs(1 - absolute), FRACTIONS)),
        faithfulness_signed=tuple(signed.tolist()),
        faithfulness_absolute=tuple(absolute.tolist()),
    )
