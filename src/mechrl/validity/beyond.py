"""Does a method find more than the ranking it was handed? (The paper's section 5.2.)

ceiling      f of the K best edges by attribution, against K
gain         f of the circuit C less f of the |C| best edges by attribution, on discovery pairs and on fresh ones. The |C| best
             edges lose some to pruning; `gain_pruned` gives the ranking as many edges *after* pruning
discordant   edges of C outside the |C| best. A random |C| of the K candidates would hold a share 1 − b / K of them, where b
             candidates are among the |C| best: all |C| unless K is small. What deleting them costs stands beside what deleting
             as many random edges of C costs. K is the behaviour's own number of candidates
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mechrl.candidates import ranking
from mechrl.circuit import Circuit
from mechrl.search.select import greedy_order, top_n
from mechrl.stats import Spread, hypergeometric_at_least
from mechrl.validity.setting import Setting, f_of

N_RANDOM = 20
K_GRID = (50, 100, 200, 400, 700, 1000, 1500, 2000, 3000, 5000, 8000, 16000)
GREEDY_GRID = (50, 100, 200, 400, 700, 1000, 1500, 2000, 3000)  # of the paper


@dataclass(frozen=True)
class Beyond:
    edges: int  # |C|, pruned
    candidates: int  # K
    f: float
    f_top: float  # the |C| best edges by attribution
    f_top_pruned: float  # the best edges of which at least |C| are left after pruning
    f_test: float  # all three again on fresh pairs
    f_top_test: float
    f_top_pruned_test: float
    discordant: int
    discordant_share: float
    discordant_chance: float  # expected share of a random |C| of the candidates
    p_value: float  # of no more discordant edges by chance
    cost: float  # f(C) − f(C without its discordant edges)
    cost_test: float
    cost_random: Spread  # f(C) − f(C without as many random edges)

    @property
    def gain(self) -> float:
        return self.f - self.f_top

    @property
    def gain_pruned(self) -> float:
        return self.f - self.f_top_pruned

    @property
    def gain_test(self) -> float:
        return self.f_test - self.f_top_test

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "gain": self.gain,
            "gain_pruned": self.gain_pruned,
            "gain_test": self.gain_test,
        }


def best_with_pruned_size(setting: Setting, scores: np.ndarray, size: int) -> np.ndarray:
    """[E] bool: the fewest best edges of which at least `size` are left after pruning."""
    graph, order = setting.model.graph, ranking(scores)
    low, high = size - 1, len(order)  # `low` edges are too few; `high` are enough, or all there are
    while high - low > 1:
        middle = (low + high) // 2
        mask = np.zeros(graph.n_edges, dtype=bool)
        mask[order[:middle]] = True
        low, high = (low, middle) if graph.prune(mask).sum() >= size else (middle, high)
    return top_n(scores, high)


def beyond(circuit: Circuit, setting: Setting, n_random: int = N_RANDOM, seed: int = 0) -> Beyond:
    mask = setting.model.graph.prune(circuit.mask)
    kept, K = np.flatnonzero(mask), len(setting.candidates)
    size = len(kept)
    top = top_n(setting.scores, size)
    discordant = mask & ~top
    n = int(discordant.sum())
    without = np.repeat(mask[None], n_random, axis=0)
    for i, row in enumerate(without):
        row[np.random.default_rng([seed, i]).permutation(kept)[:n]] = False
    four = np.stack([mask, top, best_with_pruned_size(setting, setting.scores, size), mask & ~discordant])
    f, f_top, f_top_pruned, f_without, *f_random = f_of(setting.engine, np.concatenate([four, without]))
    test = f_of(setting.test, four)
    # a circuit with edges from elsewhere is no draw from the candidates: all edges then count
    ours = np.isin(kept, setting.candidates).all()
    population, inside = (
        (K, int(top[setting.candidates].sum())) if ours else (setting.model.graph.n_edges, size)
    )
    return Beyond(
        edges=size,
        candidates=K,
        f=float(f),
        f_top=float(f_top),
        f_top_pruned=float(f_top_pruned),
        f_test=float(test[0]),
        f_top_test=float(test[1]),
        f_top_pruned_test=float(test[2]),
        discordant=n,
        discordant_share=n / size if size else 0.0,
        discordant_chance=1 - inside / population,
        # no more than n of `size` draws from outside the top: at least size − n from inside
        p_value=hypergeometric_at_least(size - n, population, inside, size),
        cost=float(f - f_without),
        cost_test=float(test[0] - test[3]),
        cost_random=Spread.of(f - x for x in f_random),
    )


@dataclass(frozen=True)
class Curves:
    """What attribution alone can do, by the behaviour's own metric and by KL."""

    kl_cut: float
    metric: str
    k: list[int]
    f_metric: list[float]  # the K best edges, on the discovery pairs
    f_kl: list[float]
    f_metric_test: list[float]
    f_kl_test: list[float]
    ceiling: float  # of the candidate set
    ceiling_metric: float  # of the k best by the metric alone
    ceiling_kl: float
    candidates: int
    greedy_sizes: list[int]  # grown backwards from the logits
    greedy_metric: list[float]
    greedy_kl: list[float]
    passes: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def curves(setting: Setting) -> Curves:
    graph = setting.model.graph
    ks = sorted({min(k, graph.n_edges) for k in (*K_GRID, setting.k)})
    sizes = [n for n in GREEDY_GRID if n <= graph.n_edges]
    before = setting.engine.passes
    f: dict[str, list[float]] = {}
    for name, metric in (("metric", setting.behaviour.metric), ("kl", "kl")):
        scores = setting.scores_by(metric)
        top = np.stack([top_n(scores, k) for k in ks])
        order = greedy_order(graph, scores)
        grown = np.zeros((len(sizes), graph.n_edges), dtype=bool)
        for row, n in zip(grown, sizes, strict=True):
            row[order[:n]] = True
        f[name], f[f"{name} test"] = f_of(setting.engine, top).tolist(), f_of(setting.test, top).tolist()
        f[f"{name} greedy"] = f_of(setting.engine, grown).tolist()
    whole = np.zeros(graph.n_edges, dtype=bool)
    whole[setting.candidates] = True
    here = ks.index(setting.k)
    return Curves(
        kl_cut=setting.engine.kl_cut,
        metric=setting.behaviour.metric,
        k=ks,
        f_metric=f["metric"],
        f_kl=f["kl"],
        f_metric_test=f["metric test"],
        f_kl_test=f["kl test"],
        ceiling=float(f_of(setting.engine, whole)[0]),
        ceiling_metric=f["metric"][here],
        ceiling_kl=f["kl"][here],
        candidates=len(setting.candidates),
        greedy_sizes=sizes,
        greedy_metric=f["metric greedy"],
        greedy_kl=f["kl greedy"],
        passes=round(setting.engine.passes - before, 6),
    )
