"""The state features of the paper (its Table 1 and appendix): what the policy sees of a candidate set, whatever the model.

Everything is normalised within the behaviour, so that nothing depends on the model's size: scores by the largest |score|, layers
and distances by L − 1, degrees and summed scores by their largest value; ranks lie in [0, 1] with 0 for the highest |score|. The
input counts as layer 0, the logits as the last layer.

An agent that looks again sees the same features with scores as of its last look, see `look`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mechrl.attribution import strength
from mechrl.graph import Graph

N_EDGE, N_NODE, N_GLOBAL = 16, 7, 6
SCORE, RANK, TOTAL = 0, 1, 6  # columns: an edge's score and rank, a component's summed |score|
TYPES = ("attention", "mlp", "input", "logits")


@dataclass(frozen=True)
class Features:
    """X^e and X^n of a candidate set with K edges from M distinct parents."""

    edges: np.ndarray  # [K, 16] float32
    nodes: np.ndarray  # [M, 7] float32
    parent: np.ndarray  # [K] place of every edge's parent among the nodes
    node_sources: np.ndarray  # [M] the parents, as sources of the graph


def features(
    graph: Graph, candidates: np.ndarray, scores: np.ndarray, signed_nodes: bool = False
) -> Features:
    """Features of the edges `candidates` [K] with attribution `scores` [K].

    signed_nodes: sum a component's signed scores, as the published code does, instead of their absolute values (the appendix).
    """
    source, receiver = graph.edge_source[candidates], graph.edge_receiver[candidates]
    last = max(graph.n_layers - 1, 1)
    strength = np.abs(scores)
    rank = np.empty(len(candidates))
    rank[np.argsort(-strength, kind="stable")] = np.arange(len(candidates)) / max(len(candidates) - 1, 1)
    parent_layer, child_layer = graph.source_layer[source] / last, graph.receiver_layer[receiver] / last
    columns = [_over_max(scores), rank, parent_layer, child_layer, child_layer - parent_layer]
    edge_rows = np.column_stack(
        [*columns, _source_type(graph, source), _receiver_type(graph, receiver), _channel(graph, receiver)]
    )

    nodes, parent = np.unique(source, return_inverse=True)
    total = np.bincount(parent, weights=scores if signed_nodes else strength)
    node_columns = [
        graph.source_layer[nodes] / last,
        _source_type(graph, nodes),
        _over_max(np.bincount(parent)),
        _over_max(total),
    ]
    return Features(
        edge_rows.astype(np.float32), np.column_stack(node_columns).astype(np.float32), parent, nodes
    )


def look(scores: Tensor) -> Tensor:
    """[n, K, 3] score, rank and strength after a look, from integrated mask gradients [n, K]; 0 for edges that are cut.

    The strength of a negative score counts `NEGATIVE` times: such an edge works against the behaviour, and goes before one that works as
    much for it, but not first of all, since a circuit without any overshoots. Score and strength are divided by the largest |score|;
    the rank is among the edges of nonzero score, and 1 for the others: these matter to nothing.
    """
    largest = scores.abs().amax(-1, keepdim=True)
    scores = scores / torch.where(largest > 0, largest, 1.0)
    worth = strength(scores)
    place = worth.argsort(dim=-1, descending=True, stable=True).argsort(-1)
    others = (worth > 0).sum(-1, keepdim=True) - 1
    return torch.stack([scores, (place / others.clamp_min(1)).clamp_max(1.0), worth], -1)


def totals(worth: Tensor, parent: Tensor, M: int) -> Tensor:
    """[n, M] the components' summed strengths, over the largest. Added up as integers, in whatever order a GPU adds them: strengths are at
    most 1, so 2^46 of each fit, of 2^17 edges together."""
    whole = (worth * 2.0**46).long()
    total = (
        torch.zeros(len(worth), M, dtype=torch.int64, device=worth.device)
        .scatter_add_(1, parent, whole)
        .to(worth.dtype)
    )
    largest = total.amax(-1, keepdim=True)
    return total / torch.where(largest > 0, largest, 1.0)


def after_look(features: Features, scores: np.ndarray) -> Features:
    """The features with the scores [K] of a look."""
    seen = look(torch.from_numpy(scores)[None].float())
    edges, nodes = features.edges.copy(), features.nodes.copy()
    edges[:, [SCORE, RANK]] = seen[0, :, :2].numpy()
    nodes[:, TOTAL] = totals(seen[..., 2], torch.from_numpy(features.parent)[None], len(nodes))[0].numpy()
    return Features(edges, nodes, features.parent, features.node_sources)


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
