"""The reference implementation of a circuit run, simple enough to be checked by reading. Slow, edge by edge, differentiable.

Every receiver builds its own copy of the residual stream, before its norm, source by source:

    x_v = base(v) + Σ_u [ a_corr(u) + M_uv (a_now(u) − a_corr(u)) ]

A kept edge (M = 1) carries what its source computed in this run, a cut edge (M = 0) what its source computed in the
corrupted run, and a fraction interpolates. `base` belongs to no node and is never patched: position embeddings and the
output biases b_o.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from mechrl.engine.engine import HasTokens
from mechrl.models.base import Model


def slow_circuit_logits(model: Model, clean_tokens: Tensor, corrupt_tokens: Tensor, mask: Tensor) -> Tensor:
    """[N, V] logits at the last position of the circuit `mask` [E], bool or float, run on the clean tokens."""
    return slow_circuit_logits_everywhere(model, clean_tokens, corrupt_tokens, mask)[:, -1]


def slow_logits(model: Model, pairs: HasTokens, mask: np.ndarray | Tensor) -> Tensor:
    """[N, V] the same for pairs, one by one: lengths may differ."""
    rows = [
        slow_circuit_logits(model, torch.tensor([a]), torch.tensor([b]), torch.as_tensor(mask))
        for a, b in zip(pairs.clean, pairs.corrupt, strict=True)
    ]
    return torch.cat(rows)


def slow_circuit_logits_everywhere(
    model: Model, clean_tokens: Tensor, corrupt_tokens: Tensor, mask: Tensor
) -> Tensor:
    """[N, T, V] the same at every position."""
    graph = model.graph
    mask = mask.to(model.dtype)
    corrupt, _ = slow_run(model, corrupt_tokens, lambda source, receiver, now: now)

    def carried(source: int, receiver: int, now: Tensor) -> Tensor:
        kept = mask[graph.edge(source, receiver)]
        return corrupt[source] + kept * (now - corrupt[source])

    return slow_run(model, clean_tokens, carried)[1]


class Parts:
    """The components' functions; tests of modified derivatives replace some of them."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def normalise(self, x: Tensor) -> Tensor:
        return self.model.normalise(x)

    def query_or_key(self, x: Tensor) -> Tensor:
        return x

    def value(self, x: Tensor) -> Tensor:
        return x

    def softmax(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)

    def mlp(self, layer: int, x: Tensor) -> Tensor:
        return self.model.mlp[layer](x)


def slow_run(
    model: Model,
    tokens: Tensor,
    carried: Callable[[int, int, Tensor], Tensor],
    parts: Parts | None = None,
) -> tuple[list[Tensor], Tensor]:
    """Activations [N, T, d] of every source and logits [N, T, V]; an edge carries `carried(source, receiver, now)`."""
    graph, spec, parts = model.graph, model.spec, parts or Parts(model)
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    base = model.embedding.new_zeros(spec.d_model) if model.position is None else model.position[positions]
    written = [model.embedding[tokens]]  # grows in the order of the sources

    def reads(receiver: int) -> Tensor:
        """The normalised stream as this receiver sees it."""
        stream = base.expand_as(written[0])
        for source in range(int(graph.n_readable[receiver])):
            stream = stream + carried(source, receiver, written[source])
        return parts.normalise(stream)

    future = positions[:, None] < positions[None, :]
    for layer in range(spec.n_layers):
        attention = model.attention[layer]
        heads = []
        for h in range(spec.n_heads):
            g = h // (spec.n_heads // spec.n_kv_heads)  # the KV head of this head
            q = reads(graph.receiver(layer, "q", h)) @ attention.W_q[h] + attention.b_q[h]
            k = reads(graph.receiver(layer, "k", g)) @ attention.W_k[g] + attention.b_k[g]
            v = reads(graph.receiver(layer, "v", g)) @ attention.W_v[g] + attention.b_v[g]
            q, k = (parts.query_or_key(model.rotate(x, positions)) for x in (q, k))
            scores = (q @ k.mT * attention.scale).masked_fill(future, float("-inf"))
            heads.append(parts.softmax(scores) @ parts.value(v) @ attention.W_o[h])
        written += heads
        base = base + attention.b_o
        written.append(parts.mlp(layer, reads(graph.receiver(layer, "mlp"))))
    assert len(written) == graph.n_sources
    return written, model.unembed(reads(graph.logits))
