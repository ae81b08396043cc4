"""Features count edges as expected, and do not depend on a model's size or the order of its pairs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mechrl.agents.planner.features import First, kinds, node_degrees, rank, see
from mechrl.graph import Graph
from tests.agents.planner.tasks import feeds, some_circuit, tiny_start

GRAPHS = [Graph(3, 4, 4), Graph(2, 6, 2), Graph(4, 3, 1)]


@pytest.mark.parametrize("graph", GRAPHS)
def test_degrees_of_nodes_are_counted_by_name(graph: Graph) -> None:
    alive = np.random.default_rng(0).choice(graph.n_edges, graph.n_edges // 3, replace=False)
    in_degree = np.bincount(graph.edge_receiver[alive], minlength=graph.n_receivers)
    out_degree = np.bincount(graph.edge_source[alive], minlength=graph.n_sources)
    into, out = node_degrees(graph, in_degree, out_degree)
    node, fed = feeds(graph)
    for s in range(graph.n_sources):
        assert into[s] == sum(in_degree[r] for n, r in zip(node, fed, strict=True) if n == s)
    for r in range(graph.n_receivers - 1):
        assert out[r] == sum(out_degree[n] for n, x in zip(node, fed, strict=True) if x == r)
    names = [(graph.source_names[n], graph.receiver_names[r]) for n, r in zip(node, fed, strict=True)]
    for source, reader in names:
        assert reader.startswith(source.split(".")[0]) and (reader.split("<")[0] == source or ".kv" in reader)


@pytest.mark.parametrize("graph", GRAPHS)
def test_kinds_are_those_of_the_names(graph: Graph) -> None:
    source, reader = kinds(graph)
    for name, kind in zip(graph.source_names, source, strict=True):
        assert kind == (0 if name == "input" else 1 if name.startswith("a") else 2)
    for name, kind in zip(graph.receiver_names, reader, strict=True):
        assert kind == (4 if name == "logits" else "qkv".index(name[-2]) if name.endswith(">") else 3)


@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa"])
def test_features_do_not_depend_on_the_order_of_groups_or_of_edges_outside(kind: str) -> None:
    start = tiny_start(kind)
    mask = some_circuit(start)
    outside = np.flatnonzero(~mask)[:20]
    look = start.looker.look(mask, outside, 0.7)
    first = start.first.at(np.concatenate([look.alive, look.outside]))
    seen, n = see(start.graph, look, first), len(look.alive)
    assert seen.edges.isfinite().all() and seen.edges.shape[0] == n + 20
    other = replace(look, gains=look.gains[:, ::-1], outside_gains=look.outside_gains[::-1])
    assert np.allclose(see(start.graph, other, first).edges, seen.edges, atol=1e-5)
    turned = replace(look, outside=look.outside[::-1], outside_gains=look.outside_gains[:, ::-1])
    back = First(*(np.concatenate([x[:n], x[n:][::-1]]) for x in (first.mean, first.rms)))
    again, edges = see(start.graph, turned, back).edges.numpy(), seen.edges.numpy()
    assert np.allclose(again[:n], edges[:n], atol=1e-6)
    assert np.allclose(again[n:][::-1], edges[n:], atol=1e-6)


def test_a_rank_is_the_part_of_others_below() -> None:
    x = np.array([3.0, 1.0, 2.0, 9.0])
    assert rank(x, np.array([1.5, 2.5])).tolist() == [1.0, 0.0, 0.5, 1.0]
