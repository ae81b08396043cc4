"""The computation graph of a transformer: what writes to the residual stream, what reads from it, and which pairs are edges.

Sources write: the token input, every attention head, every MLP. Receivers read: the q, k and v inputs of every head, every MLP, the
logits. An edge joins a source to a later receiver; an MLP also reads the heads of its own layer. Under grouped-query attention k and v
are computed once per KV head, so each KV head has one k and one v receiver.

    GPT-2 small   158 nodes, 32,491 edges          SmolLM2-135M   302 nodes, 70,651 edges

Edges are integers, numbered receiver by receiver and, within a receiver, source by source. So the edges of a receiver are contiguous,
and those of a layer's attention inputs form a rectangle [receivers, sources]. Names are used only in files and output.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from mechrl.errors import MechRLError

_EDGE = re.compile(r"^(?P<source>[a-z0-9.]+)->(?P<receiver>[a-z0-9.]+(?:<[qkv]>)?)$")


@dataclass(frozen=True)
class Graph:
    """The graph of a model with L layers, H heads and G KV heads (G = H without grouped-query attention)."""

    n_layers: int
    n_heads: int
    n_kv_heads: int

    # ---- sizes ------------------------------------------------------------------------------------------------------

    @property
    def n_sources(self) -> int:
        """The input, every head and every MLP."""
        return 1 + self.n_layers * (self.n_heads + 1)

    @property
    def n_nodes(self) -> int:
        """Sources and the logits."""
        return self.n_sources + 1

    @property
    def receivers_per_layer(self) -> int:
        """q of every head, k and v of every KV head, the MLP."""
        return self.n_heads + 2 * self.n_kv_heads + 1

    @property
    def n_receivers(self) -> int:
        """The receivers of all layers, and the logits."""
        return self.n_layers * self.receivers_per_layer + 1

    @property
    def n_edges(self) -> int:
        """E: every source joined to every later receiver."""
        return int(self.receiver_start[-1])

    # ---- index maps -------------------------------------------------------------------------------------------------

    def head(self, layer: int, head: int) -> int:
        """Source index of a head."""
        return 1 + layer * (self.n_heads + 1) + head

    def mlp(self, layer: int) -> int:
        """Source index of an MLP."""
        return 1 + layer * (self.n_heads + 1) + self.n_heads

    def receiver(self, layer: int, kind: str, head: int = 0) -> int:
        """Receiver index; `kind` is 'q', 'k', 'v' or 'mlp', `head` the head for q and the KV head for k and v."""
        offset = {
            "q": 0,
            "k": self.n_heads,
            "v": self.n_heads + self.n_kv_heads,
            "mlp": self.receivers_per_layer - 1,
        }
        return layer * self.receivers_per_layer + offset[kind] + head

    @property
    def logits(self) -> int:
        """Receiver index of the logits."""
        return self.n_receivers - 1

    @cached_property
    def n_readable(self) -> np.ndarray:
        """[R] how many sources a receiver can read. They are the first ones: sources are in topological order."""
        layer, offset = np.divmod(np.arange(self.n_receivers), self.receivers_per_layer)
        before_layer = 1 + layer * (self.n_heads + 1)
        return np.where(offset == self.receivers_per_layer - 1, before_layer + self.n_heads, before_layer)

    @cached_property
    def receiver_start(self) -> np.ndarray:
        """[R + 1] first edge of every receiver; last, the number of edges."""
        return np.concatenate([[0], np.cumsum(self.n_readable)])

    @cached_property
    def edge_receiver(self) -> np.ndarray:
        """[E] receiver of every edge."""
        return np.repeat(np.arange(self.n_receivers), self.n_readable)

    @cached_property
    def edge_source(self) -> np.ndarray:
        """[E] source of every edge."""
        source: np.ndarray = np.arange(self.n_edges) - self.receiver_start[self.edge_receiver]
        return source

    @cached_property
    def edge_stage(self) -> np.ndarray:
        """[E] when an edge is read: 2l for the attention of layer l, 2l + 1 for its MLP, 2L for the logits."""
        layer, place = np.divmod(self.edge_receiver, self.receivers_per_layer)
        stage: np.ndarray = (2 * layer + (place == self.receivers_per_layer - 1)).astype(np.int16)
        return stage

    def n_sources_before(self, stage: int) -> int:
        """How many sources are written before a stage."""
        layer, is_mlp = divmod(stage, 2)
        return 1 + layer * (self.n_heads + 1) + is_mlp * self.n_heads

    def edge(self, source: int, receiver: int) -> int:
        """The edge from a source to a receiver."""
        return int(self.receiver_start[receiver]) + source

    @cached_property
    def source_layer(self) -> np.ndarray:
        """[S] layer of every source; 0 for the input."""
        return np.concatenate([[0], np.repeat(np.arange(self.n_layers), self.n_heads + 1)])

    @cached_property
    def receiver_layer(self) -> np.ndarray:
        """[R] layer of every receiver; the last one for the logits."""
        return np.minimum(np.arange(self.n_receivers) // self.receivers_per_layer, self.n_layers - 1)

    # ---- names ------------------------------------------------------------------------------------------------------

    @cached_property
    def source_names(self) -> list[str]:
        """`input`, then layer by layer `a0.h0`, `a0.h1`, …, `m0`."""
        names = ["input"]
        for layer in range(self.n_layers):
            names += [f"a{layer}.h{h}" for h in range(self.n_heads)] + [f"m{layer}"]
        return names

    @cached_property
    def receiver_names(self) -> list[str]:
        """Layer by layer `a0.h0<q>`, …, `a0.kv0<k>`, …, `m0`; last `logits`."""
        kv = "h" if self.n_kv_heads == self.n_heads else "kv"
        names = []
        for layer in range(self.n_layers):
            names += [f"a{layer}.h{h}<q>" for h in range(self.n_heads)]
            names += [f"a{layer}.{kv}{g}<k>" for g in range(self.n_kv_heads)]
            names += [f"a{layer}.{kv}{g}<v>" for g in range(self.n_kv_heads)]
            names.append(f"m{layer}")
        return [*names, "logits"]

    @cached_property
    def edge_names(self) -> list[str]:
        """The names of all edges, in order."""
        return [self.edge_name(e) for e in range(self.n_edges)]

    def edge_name(self, edge: int) -> str:
        """The name of an edge, such as `a9.h6->m10`."""
        receiver = int(self.edge_receiver[edge])
        return f"{self.source_names[int(self.edge_source[edge])]}->{self.receiver_names[receiver]}"

    @cached_property
    def _source_of_name(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.source_names)}

    @cached_property
    def _receiver_of_name(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.receiver_names)}

    def edge_of_name(self, name: str) -> int:
        """The edge with this name."""
        match = _EDGE.match(name)
        source = self._source_of_name.get(match["source"]) if match else None
        receiver = self._receiver_of_name.get(match["receiver"]) if match else None
        if source is None or receiver is None or source >= self.n_readable[receiver]:
            raise MechRLError(
                f"no edge {name!r} in this graph ({self.n_layers} layers, {self.n_heads} heads, {self.n_kv_heads} KV heads); "
                f"edges look like 'input->a0.h1<q>' or 'm0->logits'"
            )
        return self.edge(source, receiver)

    # ---- pruning ----------------------------------------------------------------------------------------------------

    def prune(self, masks: np.ndarray, edges: np.ndarray | None = None) -> np.ndarray:
        """Removes dead edges, which lie on no path from the input to the logits: [C, E] or [E] bool in, the same out.

        With `edges` [n], ascending, masks are over these edges and all others are cut.
        """
        part = self.everything if edges is None else EdgeSet(self, edges)
        return part.prune(np.atleast_2d(np.array(masks, dtype=bool))).reshape(np.shape(masks))

    @cached_property
    def everything(self) -> EdgeSet:
        """The set of all edges."""
        return EdgeSet(self, np.arange(self.n_edges))


class StageEdges:
    """The edges of a set that are read in one stage (a layer's attention, its MLP, the logits): columns a:b of the set."""

    def __init__(self, graph: Graph, stage: int, edges: np.ndarray, a: int, b: int) -> None:
        self.stage, self.columns = stage, slice(a, b)
        self.layer, is_mlp = divmod(stage, 2)
        self.kind = "logits" if self.layer == graph.n_layers else ("mlp" if is_mlp else "attention")
        self.n_receivers = graph.n_heads + 2 * graph.n_kv_heads if self.kind == "attention" else 1


@dataclass(frozen=True)
class LiveEdges:
    """The live edges of one stage in many circuits, sorted by circuit, then by receiver, then by source."""

    stage: StageEdges
    circuit: np.ndarray  # [n]
    column: np.ndarray  # [n] index in the set
    place: np.ndarray  # [n] index of the receiver within the stage
    source: np.ndarray  # [n]


class EdgeSet:
    """A set of edges, ascending, split into stages, so that masks over it are pruned and planned quickly."""

    def __init__(self, graph: Graph, edges: np.ndarray) -> None:
        self.graph, self.edges = graph, np.asarray(edges)
        bounds = np.searchsorted(graph.edge_stage[self.edges], np.arange(2 * graph.n_layers + 2)).tolist()
        self.stages = [
            StageEdges(graph, s, self.edges, a, b) for s, (a, b) in enumerate(pairwise(bounds)) if b > a
        ]
        self._source = graph.edge_source[self.edges]
        self._place = np.zeros(len(self.edges), dtype=np.int64)  # index of the receiver within its stage
        self._stage = np.zeros(len(self.edges), dtype=np.uint16)  # numpy radix-sorts 16-bit integers
        for i, stage in enumerate(self.stages):
            self._stage[stage.columns] = i
            if stage.kind == "attention":
                first = stage.layer * graph.receivers_per_layer
                self._place[stage.columns] = graph.edge_receiver[self.edges[stage.columns]] - first

    def prune(self, masks: np.ndarray) -> np.ndarray:
        """Removes dead edges from masks [C, n] over the set, in place."""
        stages, _ = self.live(masks)
        masks[:] = False
        for live in stages:
            masks[live.circuit, live.column] = True
        return masks

    def live(
        self, masks: np.ndarray, given: np.ndarray | None = None, keep_unread: bool = False
    ) -> tuple[list[LiveEdges], np.ndarray]:
        """The live edges of masks [C, n] over the set, stage by stage, and [C, sources] which sources they read.

        A node lives if a live edge enters it (the input needs none) and a live edge leaves it. The graph is layered, so one sweep up (nodes
        reached from the input) and one down (nodes that reach the logits) find the fixed point. Under corrupted patching this changes no
        output: a node that is not reached stays corrupted, a node that is not read has no effect.

        given: [m] which of the first m sources live, if that is known. keep_unread: skip the sweep down.
        """
        circuit, column = np.nonzero(masks)
        order = np.argsort(self._stage[column], kind="stable")
        circuit, column = circuit[order], column[order]
        place, source = self._place[column], self._source[column]
        bounds = np.cumsum([0, *np.bincount(self._stage[column], minlength=len(self.stages))]).tolist()

        reached = np.zeros((len(masks), self.graph.n_sources), dtype=bool)
        reached[:, 0] = True
        if given is not None:
            reached[:, : len(given)] = given
        result = []
        for stage, (a, b) in zip(self.stages, pairwise(bounds), strict=True):
            c, u = circuit[a:b], source[a:b]
            alive = reached[c, u]
            live = LiveEdges(stage, c[alive], column[a:b][alive], place[a:b][alive], u[alive])
            self._mark_outputs(live, reached)
            result.append(live)
        read = np.zeros_like(reached)
        if not keep_unread:
            for i in reversed(range(len(result))):
                live = result[i]
                if live.stage.kind != "logits":
                    needed = self._needed_receivers(live.stage, read)[live.circuit, live.place]
                    live = LiveEdges(
                        live.stage,
                        live.circuit[needed],
                        live.column[needed],
                        live.place[needed],
                        live.source[needed],
                    )
                    result[i] = live
                read[live.circuit, live.source] = True
        else:
            read[:] = True
        return [live for live in result if len(live.circuit)], read

    def for_gradient(self, values: np.ndarray) -> np.ndarray:
        """[C, n] bool: the edges that a gradient run at real-valued masks [C, n] over the set has to keep.

        d(objective)/dw_uv = row(u) · d(stream of v) is zero unless u is reached from the input and v reaches the logits, both along edges
        of nonzero weight. The run also needs the edges from which these rows are computed.
        """
        weighs = values != 0
        reached = np.zeros((len(values), self.graph.n_sources), dtype=bool)
        reached[:, 0] = True
        for stage in self.stages:
            place, source = self._place[stage.columns], self._source[stage.columns]
            circuit, at = np.nonzero(weighs[:, stage.columns] & reached[:, source])
            self._mark_outputs(LiveEdges(stage, circuit, at, place[at], source[at]), reached)
        kept: np.ndarray = weighs | reached[:, self._source]
        moves = np.zeros_like(reached)  # sources whose row has a derivative
        read = np.zeros_like(reached)  # sources whose row is read
        for stage in reversed(self.stages):
            columns = stage.columns
            place, source = self._place[columns], self._source[columns]
            derived = np.ones((len(values), len(place)), dtype=bool)
            if stage.kind != "logits":
                derived = self._needed_receivers(stage, moves)[:, place]
                computed = self._needed_receivers(stage, read)[:, place]
                kept[:, columns] &= derived | (computed & weighs[:, columns])
            for sources, edges in ((moves, weighs[:, columns] & derived), (read, kept[:, columns])):
                circuit, at = np.nonzero(edges)
                sources[circuit, source[at]] = True
        return kept

    def _mark_outputs(self, live: LiveEdges, reached: np.ndarray) -> None:
        """A node is reached if a live edge enters any of its receivers."""
        graph, stage = self.graph, live.stage
        if stage.kind == "mlp":
            reached[live.circuit, graph.mlp(stage.layer)] = True
        elif stage.kind == "attention":
            H, G = graph.n_heads, graph.n_kv_heads
            by_receiver = np.zeros((len(reached), H + 2 * G), dtype=bool)
            by_receiver[live.circuit, live.place] = True
            by_kv = by_receiver[:, H : H + G] | by_receiver[:, H + G :]
            heads = by_receiver[:, :H] | np.repeat(by_kv, H // G, axis=1)
            reached[:, graph.head(stage.layer, 0) : graph.mlp(stage.layer)] = heads

    def _needed_receivers(self, stage: StageEdges, read: np.ndarray) -> np.ndarray:
        """[C, receivers of the stage] A receiver is needed if any node it feeds is read."""
        graph = self.graph
        if stage.kind == "mlp":
            return read[:, [graph.mlp(stage.layer)]]
        by_head = read[:, graph.head(stage.layer, 0) : graph.mlp(stage.layer)]
        by_kv = np.asarray(by_head.reshape(-1, graph.n_kv_heads, graph.n_heads // graph.n_kv_heads).any(-1))
        return np.concatenate([by_head, by_kv, by_kv], axis=1)


# Limits for a graph in a file: more than 48 layers of 48 heads need, and few enough that index maps fit into memory.
_MOST_EDGES, _MOST_LAYERS_OR_HEADS = 10_000_000, 1000


def checked_graph(L: int, H: int, G: int) -> Graph:
    """The graph of a file. One that is too large is refused before anything of its size is allocated."""
    if min(L, H, G) < 1 or H % G:
        raise ValueError(f"{H} heads do not share {G} KV heads evenly in {L} layers")
    if max(L, H) > _MOST_LAYERS_OR_HEADS or count_edges(L, H, G) > _MOST_EDGES:
        raise ValueError(f"a graph of {L:,} layers of {H:,} heads is too large")
    return Graph(L, H, G)


def count_edges(L: int, H: int, G: int) -> int:
    """`Graph.n_edges` without building anything: Σ_l [(1 + l(H + 1))(H + 2G + 1) + H] + 1 + L(H + 1)."""
    return (L + (H + 1) * L * (L - 1) // 2) * (H + 2 * G + 1) + L * H + 1 + L * (H + 1)
