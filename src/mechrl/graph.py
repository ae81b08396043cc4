"""The computation graph of a transformer: who writes to the residual stream, who reads from it, and which pairs are edges.

Sources (writers) are the token input, every attention head and every MLP. Receivers (readers) are every head's q, k and v
input, every MLP and the logits. An edge joins a source to a receiver that comes after it; an MLP also reads the heads of its
own layer. With grouped-query attention the model computes k and v once per KV head, so they are one receiver per KV head.

    GPT-2 small   158 nodes, 32,491 edges          SmolLM2-135M   302 nodes, 70,651 edges

Edges are integers. They are numbered receiver by receiver and, within a receiver, source by source: the edges of one receiver
are a contiguous run, and those of a layer's attention inputs are a rectangle [receivers, sources]. Names exist at the border only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

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
        return 1 + self.n_layers * (self.n_heads + 1)

    @property
    def n_nodes(self) -> int:
        """Sources and the logits."""
        return self.n_sources + 1

    @property
    def receivers_per_layer(self) -> int:
        return self.n_heads + 2 * self.n_kv_heads + 1

    @property
    def n_receivers(self) -> int:
        return self.n_layers * self.receivers_per_layer + 1

    @property
    def n_edges(self) -> int:
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
        offset = {"q": 0, "k": self.n_heads, "v": self.n_heads + self.n_kv_heads, "mlp": self.receivers_per_layer - 1}
        return layer * self.receivers_per_layer + offset[kind] + head

    @property
    def logits(self) -> int:
        """Receiver index of the logits."""
        return self.n_receivers - 1

    @cached_property
    def n_readable(self) -> np.ndarray:
        """[R] how many sources a receiver reads: always the first so many, because sources are in topological order."""
        layer, offset = np.divmod(np.arange(self.n_receivers), self.receivers_per_layer)
        before_layer = 1 + layer * (self.n_heads + 1)
        return np.where(offset == self.receivers_per_layer - 1, before_layer + self.n_heads, before_layer)

    @cached_property
    def receiver_start(self) -> np.ndarray:
        """[R + 1] first edge of every receiver, and the number of edges."""
        return np.concatenate([[0], np.cumsum(self.n_readable)])

    @cached_property
    def edge_receiver(self) -> np.ndarray:
        """[E] receiver of every edge."""
        return np.repeat(np.arange(self.n_receivers), self.n_readable)

    @cached_property
    def edge_source(self) -> np.ndarray:
        """[E] source of every edge."""
        return np.arange(self.n_edges) - self.receiver_start[self.edge_receiver]

    @cached_property
    def edge_stage(self) -> np.ndarray:
        """[E] when an edge is read: 2l for the attention of layer l, 2l + 1 for its MLP, 2L for the logits."""
        layer, place = np.divmod(self.edge_receiver, self.receivers_per_layer)
        return (2 * layer + (place == self.receivers_per_layer - 1)).astype(np.int16)

    def edge(self, source: int, receiver: int) -> int:
        return int(self.receiver_start[receiver]) + source

    @cached_property
    def source_layer(self) -> np.ndarray:
        """[S] layer of every source; the input counts as layer 0."""
        return np.concatenate([[0], np.repeat(np.arange(self.n_layers), self.n_heads + 1)])

    @cached_property
    def receiver_layer(self) -> np.ndarray:
        """[R] layer of every receiver; the logits count as the last layer."""
        return np.minimum(np.arange(self.n_receivers) // self.receivers_per_layer, self.n_layers - 1)

    # ---- names ------------------------------------------------------------------------------------------------------

    @cached_property
    def source_names(self) -> list[str]:
        names = ["input"]
        for layer in range(self.n_layers):
            names += [f"a{layer}.h{h}" for h in range(self.n_heads)] + [f"m{layer}"]
        return names

    @cached_property
    def receiver_names(self) -> list[str]:
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
        return [self.edge_name(e) for e in range(self.n_edges)]

    def edge_name(self, edge: int) -> str:
        receiver = int(self.edge_receiver[edge])
        return f"{self.source_names[int(self.edge_source[edge])]}->{self.receiver_names[receiver]}"

    @cached_property
    def _source_of_name(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.source_names)}

    @cached_property
    def _receiver_of_name(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.receiver_names)}

    def edge_of_name(self, name: str) -> int:
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

    def prune(self, masks: np.ndarray) -> np.ndarray:
        """Removes edges that lie on no path from the input to the logits. [C, E] or [E] bool in, the same out.

        A node lives if it has a live edge in (the input is exempt) and a live edge out. The graph is layered, so one sweep up
        (which nodes can be reached from the input) and one sweep down (which reach the logits) are the fixed point. Under
        corrupted patching this changes no output: an unreached node is its corrupted self, an unread node is read by nobody.
        """
        batch = np.atleast_2d(np.asarray(masks, dtype=bool))
        circuit, edge = np.nonzero(batch)
        keep = self.prune_edges(circuit, edge, len(batch))
        pruned = np.zeros_like(batch)
        pruned[circuit[keep], edge[keep]] = True
        return pruned.reshape(np.shape(masks))

    def prune_edges(self, circuit: np.ndarray, edge: np.ndarray, n_circuits: int) -> np.ndarray:
        """`prune` on a list of kept edges (circuit, edge), in any order: which of them live, [n] bool."""
        source, receiver, stage = self.edge_source[edge], self.edge_receiver[edge], self.edge_stage[edge]
        order = np.argsort(stage, kind="stable")
        bounds = np.searchsorted(stage[order], np.arange(2 * self.n_layers + 2))
        stages = [order[a:b] for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
        keep = np.zeros(len(edge), dtype=bool)

        reached = np.zeros((n_circuits, self.n_sources), dtype=bool)  # has a path from the input
        reached[:, 0] = True
        for s, rows in enumerate(stages):
            keep[rows] = reached[circuit[rows], source[rows]]
            self._mark_outputs(s, circuit[rows], receiver[rows], keep[rows], reached)

        needed = np.zeros((n_circuits, self.n_sources), dtype=bool)  # has a path to the logits
        for s, rows in reversed(list(enumerate(stages))):
            rows = rows[keep[rows]]
            keep[rows] = self._needed_receivers(s, circuit[rows], receiver[rows], needed)
            rows = rows[keep[rows]]
            needed[circuit[rows], source[rows]] = True
        return keep

    def _mark_outputs(self, stage: int, circuit: np.ndarray, receiver: np.ndarray, live: np.ndarray, reached: np.ndarray) -> None:
        """A node of this stage is reached if any of its receivers has a live edge in."""
        layer, is_mlp = divmod(stage, 2)
        circuit, receiver = circuit[live], receiver[live]
        if layer == self.n_layers or not len(circuit):
            return
        if is_mlp:
            reached[circuit, self.mlp(layer)] = True
            return
        offset = receiver - layer * self.receivers_per_layer
        is_q = offset < self.n_heads
        reached[circuit[is_q], self.head(layer, 0) + offset[is_q]] = True
        if not is_q.all():
            kv = (offset[~is_q] - self.n_heads) % self.n_kv_heads
            per_kv = self.n_heads // self.n_kv_heads
            heads = self.head(layer, 0) + kv[:, None] * per_kv + np.arange(per_kv)
            reached[circuit[~is_q][:, None], heads] = True

    def _needed_receivers(self, stage: int, circuit: np.ndarray, receiver: np.ndarray, needed: np.ndarray) -> np.ndarray:
        """[n] a receiver is needed if any node it feeds is needed; the logits always are."""
        layer, is_mlp = divmod(stage, 2)
        if layer == self.n_layers:
            return np.ones(len(circuit), dtype=bool)
        if is_mlp:
            return needed[circuit, self.mlp(layer)]
        offset = receiver - layer * self.receivers_per_layer
        per_kv = self.n_heads // self.n_kv_heads
        by_head = needed[:, self.head(layer, 0) : self.mlp(layer)]
        by_kv = by_head.reshape(len(needed), self.n_kv_heads, per_kv).any(-1)
        by_receiver = np.concatenate([by_head, by_kv, by_kv], axis=1)
        return by_receiver[circuit, offset]
