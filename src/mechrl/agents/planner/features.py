"""What the network sees of every edge at a circuit. Nothing here depends on how large a model is, or how it numbers its parts.

Gradients g (look.py) are in units of f. A circuit of n edges shares about f = 1 among them, so n·g is of order one for an average
edge in any circuit of any model; `squash` spreads what is far below and far above that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from mechrl.agents.planner.look import ALPHAS, GROUPS, Look, mean_and_rms, strength
from mechrl.graph import Graph

SOURCE_KINDS = ("input", "head", "mlp")
RECEIVER_KINDS = ("q", "k", "v", "mlp", "logits")


@dataclass(frozen=True)
class First:
    """What the first look, at the whole graph, has seen of some edges."""

    mean: np.ndarray  # [n] integrated gradients
    rms: np.ndarray  # [n] their spread over groups of pairs

    @classmethod
    def of(cls, look: Look) -> First:
        mean, rms = mean_and_rms(look.gains[:-1].mean(0))
        return cls(mean, rms)

    def at(self, edges: np.ndarray) -> First:
        return First(self.mean[edges], self.rms[edges])


@dataclass(frozen=True)
class Seen:
    """The network's input at one circuit."""

    edges: Tensor  # [n + m, F] float32: the circuit's edges, then those outside
    gains: Tensor  # [A, Q, n + m] float32, zero where not asked for
    source: np.ndarray  # [n + m] node that writes
    reader: np.ndarray  # [n + m] place that reads
    n: int
    f: float


def squash(x: np.ndarray, scale: float = 30.0) -> np.ndarray:
    return np.arcsinh(scale * x)


def see(graph: Graph, look: Look, first: First) -> Seen:
    """The features of all edges of a look; `first` is of the same edges."""
    alive, edges = look.alive, np.concatenate([look.alive, look.outside])
    n, source, reader = len(alive), graph.edge_source[edges], graph.edge_receiver[edges]
    gains = np.concatenate(
        [look.gains, np.zeros((len(ALPHAS), look.gains.shape[1], len(look.outside)), np.float32)], axis=2
    )
    gains[-1, :, n:] = look.outside_gains
    mean, rms = mean_and_rms(gains)  # [A, n + m]
    worth = strength(look.gains)
    integrated = gains[:-1].mean((0, 1))

    in_degree = np.bincount(graph.edge_receiver[alive], minlength=graph.n_receivers)
    out_degree = np.bincount(graph.edge_source[alive], minlength=graph.n_sources)
    into_source, from_reader = node_degrees(graph, in_degree, out_degree)
    worth_out = np.bincount(graph.edge_source[alive], worth, graph.n_sources)
    worth_in = np.bincount(graph.edge_receiver[alive], worth, graph.n_receivers)
    of_edge = np.concatenate([worth, np.zeros(len(look.outside))])
    small = 1e-12

    inside = np.arange(len(edges)) < n
    source_kind, reader_kind = kinds(graph)
    last = max(graph.n_layers - 1, 1)
    from_layer, to_layer = graph.source_layer[source] / last, graph.receiver_layer[reader] / last
    columns = [
        *(squash(n * mean)),
        *(squash(n * rms)),
        squash(n * integrated),
        *(mean[1:] / (rms[1:] + small)),  # +1 or −1 where all groups agree
        rank(mean[-1], mean[-1, :n]),
        rank(np.abs(mean[-1]), np.abs(mean[-1, :n])),
        np.where(inside, rank(of_edge, worth), 0.0),
        squash(1e3 * first.mean, 1.0),
        squash(1e3 * first.rms, 1.0),
        first.mean / (first.rms + small),
        rank(np.abs(first.mean), np.abs(first.mean[:n])),
        np.log1p(out_degree[source]),
        np.log1p(in_degree[reader]),
        np.log1p(into_source[source]),
        np.log1p(from_reader[reader]),
        (out_degree[source] == inside).astype(float),  # no other edge out of its source
        (in_degree[reader] == inside).astype(float),
        of_edge / (worth_out[source] + small),
        of_edge / (worth_in[reader] + small),
        squash(n * worth_out[source]),
        squash(n * worth_in[reader]),
        from_layer,
        to_layer,
        to_layer - from_layer,
        *(source_kind[source] == k for k in range(len(SOURCE_KINDS))),
        *(reader_kind[reader] == k for k in range(len(RECEIVER_KINDS))),
        inside,
        np.full(len(edges), np.log(max(n, 1))),
        np.full(len(edges), look.f),
        np.full(len(edges), np.log(max(1 - look.f, 0) + 1e-3)),
    ]
    features = torch.from_numpy(np.stack(columns, axis=1).astype(np.float32))
    return Seen(features, torch.from_numpy(gains), source, reader, n, look.f)


@cache
def n_features() -> int:
    """Of an edge: counted at a circuit of one."""
    edge, none = np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    gains = np.ones((len(ALPHAS), GROUPS, 1), dtype=np.float32)
    look = Look(edge, gains, none, np.zeros((GROUPS, 0), dtype=np.float32), 1.0)
    return see(Graph(1, 1, 1), look, First(np.ones(1), np.ones(1))).edges.shape[1]


def rank(x: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Where x stands among others, from 0 (below all) to 1."""
    return np.searchsorted(np.sort(among), x) / max(len(among), 1)


def kinds(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """[S] and [R] what writes and what reads, as places in `SOURCE_KINDS` and `RECEIVER_KINDS`."""
    H, G = graph.n_heads, graph.n_kv_heads
    source = np.ones(graph.n_sources, dtype=np.int64)
    source[0], source[H + 1 :: H + 1] = 0, 2
    reader = np.concatenate([np.tile(np.repeat([0, 1, 2, 3], [H, G, G, 1]), graph.n_layers), [4]])
    return source, reader


def node_degrees(
    graph: Graph, in_degree: np.ndarray, out_degree: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """[S] edges into the node that is a source, and [R] edges out of the nodes that a receiver feeds."""
    L, H, G = graph.n_layers, graph.n_heads, graph.n_kv_heads
    reads = in_degree[:-1].reshape(L, -1)
    writes = out_degree[1:].reshape(L, H + 1)
    of_kv = np.repeat(reads[:, H : H + G] + reads[:, H + G : H + 2 * G], H // G, axis=1)
    into = np.concatenate([reads[:, :H] + of_kv, reads[:, -1:]], axis=1)
    heads = writes[:, :H]
    by_kv = heads.reshape(L, G, H // G).sum(-1)
    out = np.concatenate([heads, by_kv, by_kv, writes[:, -1:]], axis=1)
    return np.concatenate([[0], into.reshape(-1)]), np.concatenate([out.reshape(-1), [1]])
