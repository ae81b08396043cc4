"""Circuits straight from scores: the n best edges, or a circuit grown backwards from the logits.

Both searches look for the smallest n whose circuit is faithful. f does not rise with every edge, so no cheap search is certain to find it:
n grows by half until the circuit is faithful, then the last gap is bisected. The result is faithful, but a smaller n may be faithful too.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from mechrl.candidates import ranking
from mechrl.graph import Graph
from mechrl.search.problem import Problem, State

_FIRST, _GROWTH = 8, 1.5
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def top_n(scores: np.ndarray, n: int) -> np.ndarray:
    """[E] bool: the n edges of highest |score|."""
    mask = np.zeros(len(scores), dtype=bool)
    mask[ranking(scores)[:n]] = True
    return mask


def greedy_order(graph: Graph, scores: np.ndarray, candidates: np.ndarray | None = None) -> np.ndarray:
    """The order in which a circuit grows backwards from the logits, always by the available edge of highest |score|.

    When a node enters, the edges into it become available: into q, k and v of a head. Under grouped-query attention k and v of a KV head
    become available with the first of its heads. Edges that never become available are omitted.
    """
    allowed = np.ones(graph.n_edges, dtype=bool)
    if candidates is not None:
        allowed[:] = False
        allowed[candidates] = True
    start, strength = graph.receiver_start, np.abs(scores)
    heap: list[tuple[float, int]] = []
    opened = np.zeros(graph.n_receivers, dtype=bool)
    entered = np.zeros(graph.n_sources, dtype=bool)
    entered[0] = True  # no edge enters the input

    def open_receiver(receiver: int) -> None:
        if not opened[receiver]:
            opened[receiver] = True
            for e in range(start[receiver], start[receiver + 1]):
                if allowed[e]:
                    heapq.heappush(heap, (-strength[e], e))

    order = []
    open_receiver(graph.logits)
    while heap:
        _, edge = heapq.heappop(heap)
        order.append(edge)
        source = int(graph.edge_source[edge])
        if not entered[source]:
            entered[source] = True
            for receiver in receivers_of(graph, source):
                open_receiver(receiver)
    return np.array(order, dtype=np.int64)


def receivers_of(graph: Graph, source: int) -> list[int]:
    """The inputs of a node: q, k and v of a head, the one input of an MLP."""
    if source == 0:
        return []
    layer, place = divmod(source - 1, graph.n_heads + 1)
    if place == graph.n_heads:
        return [graph.receiver(layer, "mlp")]
    kv = place * graph.n_kv_heads // graph.n_heads
    return [graph.receiver(layer, "q", place), graph.receiver(layer, "k", kv), graph.receiver(layer, "v", kv)]


def greedy(graph: Graph, scores: np.ndarray, n: int) -> np.ndarray:
    """[E] bool: the first n edges of the circuit grown backwards from the logits, or all that become available."""
    mask = np.zeros(graph.n_edges, dtype=bool)
    mask[greedy_order(graph, scores)[:n]] = True
    return mask


def top_n_search(problem: Problem, state: State | None = None) -> State:
    """The n best candidates, for the smallest faithful n that the search finds."""
    assert problem.scores is not None
    strength = np.abs(problem.scores[problem.candidates])
    return smallest(problem, np.argsort(-strength, kind="stable"), state)


def greedy_search(problem: Problem, state: State | None = None) -> State:
    """The same for circuits grown backwards from the logits."""
    assert problem.scores is not None
    order = greedy_order(problem.model.graph, problem.scores, problem.candidates)
    return smallest(problem, np.searchsorted(problem.candidates, order), state)


def smallest(
    problem: Problem, order: np.ndarray, state: State | None, also: Mapping[str, Any] = _NOTHING
) -> State:
    """The smallest faithful prefix of `order`, which are indices into the candidates.

    The state has the largest n known to fail, the smallest known to hold, and what determines `order`.
    """
    n_candidates = len(problem.candidates)

    def mask_of(n: int) -> np.ndarray:
        mask = np.zeros(n_candidates, dtype=bool)
        mask[order[:n]] = True
        return mask

    removed = problem.candidates[order[::-1]].tolist()  # from the whole set down to n, lowest score first

    def state_of(n: int, f: float, low: int, high: int, done: bool, note: str) -> State:
        return State(mask_of(n), removed[: len(order) - n], f, {"low": low, "high": high, **also}, done, note)

    if state is None:
        low, high, f_high = 0, 0, float("nan")  # high = 0: no faithful n known yet
    else:
        low, high, f_high = state.extra["low"], state.extra["high"], state.faithfulness
    while high == 0:
        n = min(max(_FIRST, int(low * _GROWTH) + 1), len(order))
        f = float(problem.judge(mask_of(n))[0])
        if f >= problem.tau:
            high, f_high = n, f
        elif n == len(order):
            return state_of(n, f, n, 0, True, f"all {n} edges reach f = {f:.3f} only")
        else:
            low = n
        problem.checkpoint(state_of(n, f, low, high, False, f"n = {n}: f = {f:.3f}"))
    while high - low > 1:
        n = (low + high) // 2
        f = float(problem.judge(mask_of(n))[0])
        if f >= problem.tau:
            high, f_high = n, f
        else:
            low = n
        problem.checkpoint(state_of(high, f_high, low, high, False, f"n = {n}: f = {f:.3f}"))
    return state_of(high, f_high, low, high, True, f"n = {high}")
