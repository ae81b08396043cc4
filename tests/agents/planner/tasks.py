"""Starts of episodes for the planner's tests: planted circuits, small random models, and records from them."""

from __future__ import annotations

import numpy as np

from mechrl.agents.planner.look import Looker
from mechrl.agents.planner.start import Start, begin
from mechrl.graph import Graph
from mechrl.search.problem import Problem
from tests.search.problems import planted_problem, tiny_problem


def start_of(problem: Problem, enough: float = 0.95) -> Start:
    problem.engine.ledger.restore(0.0)
    return begin(problem.engine, Looker(problem.engine, problem.pairs), enough)


def planted_start(plant, architecture: str = "gpt2") -> tuple[Start, set[str]]:
    planted = plant(architecture)
    return start_of(planted_problem(planted)), planted.edges


def tiny_start(kind: str = "gpt2", seed: int = 0, n_pairs: int = 8) -> Start:
    return start_of(tiny_problem(kind, seed, n_pairs))


def some_circuit(start: Start, part: float = 0.5, seed: int = 0) -> np.ndarray:
    """A random circuit over the start's candidates, without dead edges."""
    mask = np.random.default_rng(seed).random(len(start.candidates)) < part
    return start.prune(mask[None])[0]


def feeds(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (node, reader): which nodes each input feeds. A head has q, k and v, heads of a group share k and v; an MLP has one input."""
    H, G, pairs = graph.n_heads, graph.n_kv_heads, []
    for layer in range(graph.n_layers):
        for h in range(H):
            kv = h * G // H
            reads = (
                graph.receiver(layer, "q", h),
                graph.receiver(layer, "k", kv),
                graph.receiver(layer, "v", kv),
            )
            pairs += [(graph.head(layer, h), r) for r in reads]
        pairs.append((graph.mlp(layer), graph.receiver(layer, "mlp")))
    nodes, readers = np.array(pairs).T
    return nodes, readers
