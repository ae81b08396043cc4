"""Circuits to display, of any shape and size, without a search."""

from __future__ import annotations

from typing import Any

import numpy as np

from mechrl.circuit import Circuit
from mechrl.graph import Graph

SMOLLM2 = Graph(30, 9, 3)
GPT2 = Graph(12, 12, 12)
SMALL = Graph(3, 4, 2)


def random_circuit(
    graph: Graph, n: int, removed: int = 0, nodes: int = 8, seed: int = 0, scored: bool = True, **changes: Any
) -> Circuit:
    """`n` edges, all on a path from the input to the logits, after `removed` others were cut. Every component has an edge in and out."""
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(np.arange(1, graph.n_sources), nodes, replace=False))
    ports: list[int] = [graph.logits]
    needed: list[int] = []
    for source in chosen.tolist():
        layer, place = divmod(source - 1, graph.n_heads + 1)
        if place == graph.n_heads:
            mine = [graph.receiver(layer, "mlp")]
        else:
            kv = place // (graph.n_heads // graph.n_kv_heads)
            mine = [
                graph.receiver(layer, "q", place),
                graph.receiver(layer, "k", kv),
                graph.receiver(layer, "v", kv),
            ]
        ports += mine
        needed += [graph.edge(0, mine[0]), graph.edge(source, graph.logits)]
    among = np.isin(graph.edge_source, [0, *chosen]) & np.isin(graph.edge_receiver, ports)
    among[needed] = False
    others = rng.permutation(np.flatnonzero(among))[: n + removed - len(needed)]
    assert len(needed) <= n and len(others) == n + removed - len(needed), (
        "too many or too few components for so many edges"
    )
    mask = np.zeros(graph.n_edges, dtype=bool)
    mask[needed] = True
    mask[others[: n - len(needed)]] = True
    fields: dict[str, Any] = dict(
        model="nowhere/nothing",
        checksum="0" * 64,
        graph=graph,
        d_model=64,
        behaviour="ioi",
        method="greedy",
        settings={"k": 3000},
        tau=0.9,
        seed=0,
        pairs=20,
        mask=mask,
        faithfulness=0.912,
        faithfulness_test=0.9,
        scores=rng.normal(size=graph.n_edges) ** 3 if scored else None,
        order=tuple(others[n - len(needed) :].tolist()),
    )
    return Circuit(**fields | changes)
