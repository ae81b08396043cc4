"""The graph: counts, names, index maps, and pruning against an obvious fixed point."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechrl.errors import MechRLError
from mechrl.graph import Graph, count_edges

SHAPES = [(1, 1, 1), (2, 4, 4), (3, 4, 2), (2, 6, 1)]


@pytest.mark.parametrize(
    ("graph", "nodes", "edges"), [(Graph(12, 12, 12), 158, 32_491), (Graph(30, 9, 3), 302, 70_651)]
)
def test_counts(graph, nodes, edges):
    assert (graph.n_nodes, graph.n_edges) == (nodes, edges)


@pytest.mark.parametrize("shape", SHAPES)
def test_edge_count_is_the_closed_form(shape):
    L, H, G = shape
    n_q, n_k, n_v = H, G, G
    expected = sum((1 + l * (H + 1)) * (n_q + n_k + n_v + 1) + H for l in range(L)) + 1 + L * (H + 1)
    assert Graph(*shape).n_edges == expected


@pytest.mark.parametrize("shape", SHAPES)
def test_names_and_indices_are_one_to_one(shape):
    graph = Graph(*shape)
    assert len(set(graph.edge_names)) == graph.n_edges
    for e in range(graph.n_edges):
        assert graph.edge_of_name(graph.edge_name(e)) == e
        assert graph.edge(int(graph.edge_source[e]), int(graph.edge_receiver[e])) == e


def test_gpt2_names():
    graph = Graph(12, 12, 12)
    assert graph.source_names[0] == "input"
    assert graph.source_names[1 + 13 * 9 + 9] == "a9.h9"
    assert graph.receiver_names[37 * 10 + 36] == "m10"
    assert graph.edge_name(graph.edge_of_name("a9.h9->m10")) == "a9.h9->m10"
    assert graph.edge_source[graph.edge_of_name("input->a0.h1<q>")] == 0


@pytest.mark.parametrize(
    "name", ["m3->a0.h0<q>", "a0.h0->a0.h1<k>", "logits->m0", "input->a0.h1", "<script>", "m11->logits "]
)
def test_no_such_edge(name):
    with pytest.raises(MechRLError, match="no edge"):
        Graph(12, 12, 12).edge_of_name(name)


def fixed_point(graph: Graph, mask: np.ndarray) -> np.ndarray:
    """The definition, iterated: remove edges of nodes with no edge in (input exempt) or no edge out, until there are none."""
    mask = mask.copy()
    per_kv = graph.n_heads // graph.n_kv_heads
    while True:
        before = mask.copy()
        alive_in, alive_out = {0}, set()
        for e in np.flatnonzero(mask):
            alive_out.add(int(graph.edge_source[e]))
            alive_in |= fed(graph, int(graph.edge_receiver[e]), per_kv)
        alive = alive_in & alive_out
        for e in np.flatnonzero(mask):
            receiver = int(graph.edge_receiver[e])
            feeds_alive = receiver == graph.logits or fed(graph, receiver, per_kv) & alive
            if int(graph.edge_source[e]) not in alive or not feeds_alive:
                mask[e] = False
        if (mask == before).all():
            return mask


def fed(graph: Graph, receiver: int, per_kv: int) -> set[int]:
    """The nodes that a receiver is an input of."""
    if receiver == graph.logits:
        return set()
    layer, place = divmod(receiver, graph.receivers_per_layer)
    if place == graph.receivers_per_layer - 1:
        return {graph.mlp(layer)}
    if place < graph.n_heads:
        return {graph.head(layer, place)}
    kv = (place - graph.n_heads) % graph.n_kv_heads
    return {graph.head(layer, kv * per_kv + i) for i in range(per_kv)}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SHAPES), st.integers(0, 10**6), st.floats(0.02, 0.9))
def test_pruning_is_the_fixed_point(shape, seed, density):
    graph = Graph(*shape)
    rng = np.random.default_rng(seed)
    masks = rng.random((3, graph.n_edges)) < density
    pruned = graph.prune(masks)
    for mask, result in zip(masks, pruned, strict=True):
        assert (result == fixed_point(graph, mask)).all()
    assert (graph.prune(pruned) == pruned).all() and graph.prune(masks[:0]).shape == (0, graph.n_edges)
    assert (graph.prune(masks[0]) == pruned[0]).all()
    edges = np.sort(rng.choice(graph.n_edges, max(1, graph.n_edges // 2), replace=False))
    some = np.zeros_like(masks)
    some[:, edges] = masks[:, edges]
    assert (graph.prune(masks[:, edges], edges) == graph.prune(some)[:, edges]).all()


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 4))
def test_edges_are_counted_without_building_the_graph(layers: int, group: int, kv_heads: int) -> None:
    shape = layers, group * kv_heads, kv_heads
    assert count_edges(*shape) == Graph(*shape).n_edges
