"""X^e and X^n: what the policy sees of a candidate set, for any model (the paper's Table 1 and appendix A.3).

Everything is normalised within the behaviour: scores by the largest |score|, layers and distances by L − 1, degrees and summed
scores by their largest value. Ranks lie in [0, 1], with 0 for the highest |score|. The input counts as layer 0, the logits as
the last layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mechrl.graph import Graph

N_EDGE, N_NODE, N_GLOBAL = 16, 7, 6
TYPES = ("attention", "mlp", "input", "logits")


@dataclass(frozen=True)
class Features:
    """X^e and X^n of a candidate set with K edges from M distinct parents."""

    edges: np.ndarray  # [K, 16] float32
    nodes: np.ndarray  # [M, 7] float32
    parent: np.ndarray  # [K] place of every edge's parent among the nodes


def features(graph: Graph, candidates: np.ndarray, scores: np.ndarray) -> Features:
    """Features of the edges `candidates` [K] with attribution `scores` [K]."""
    source, receiver = graph.edge_source[candidates], graph.edge_receiver[candidates]
    last, K = max(graph.n_layers - 1, 1), len(candidates)
    rank = np.empty(K)
    rank[np.argsort(-np.abs(scores), kind="stable")] = np.arange(K) / max(K - 1, 1)
    parent_layer, child_layer = graph.source_layer[source] / last, graph.receiver_layer[receiver] / last
    edges = [
        _over_max(scores),  # 1: signed attribution score
        rank,  # 1: importance rank
        parent_layer,  # 1
        child_layer,  # 1
        child_layer - parent_layer,  # 1: layer distance
        _source_type(graph, source),  # 4: the parent's type
        _receiver_type(graph, receiver),  # 4: the child's type
        _channel(graph, receiver),  # 3: query, key or value
    ]
    node, parent = np.unique(source, return_inverse=True)
    nodes = [
        graph.source_layer[node] / last,  # 1: layer
        _source_type(graph, node),  # 4: type
        _over_max(np.bincount(parent)),  # 1: out-degree
        _over_max(np.bincount(parent, weights=np.abs(scores))),  # 1: aggregate edge score
    ]
    X_e, X_n = (np.column_stack(columns).astype(np.float32) for columns in (edges, nodes))
    return Features(X_e, X_n, parent)


def _over_max(x: np.ndarray) -> np.ndarray:
    largest = np.abs(x).max()
    return x / largest if largest > 0 else np.zeros(len(x))


def _source_type(graph: Graph, source: np.ndarray) -> np.ndarray:
    """[n, 4] one-hot over attention head, MLP, input, logits."""
    place = (source - 1) % (graph.n_heads + 1)
    kind = np.where(source == 0, 2, (place == graph.n_heads).astype(int))
    return np.eye(len(TYPES))[kind]


def _receiver_type(graph: Graph, receiver: np.ndarray) -> np.ndarray:
    place = receiver % graph.receivers_per_layer
    kind = np.where(receiver == graph.logits, 3, (place == graph.receivers_per_layer - 1).astype(int))
    return np.eye(len(TYPES))[kind]


def _channel(graph: Graph, receiver: np.ndarray) -> np.ndarray:
    """[n, 3] one-hot over q, k, v; zero where the child is not a head."""
    H, G = graph.n_heads, graph.n_kv_heads
    place = receiver % graph.receivers_per_layer
    channel = np.searchsorted([H, H + G, H + 2 * G], place, side="right")
    channel[receiver == graph.logits] = 3
    return np.eye(4)[channel][:, :3]
