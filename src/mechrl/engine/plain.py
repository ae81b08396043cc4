"""One pair, written plainly: where heads look in a circuit, and what each component writes to the logits.

The engine computes no more than f needs, and keeps neither. Here the corrupted run and the circuit go up the layers side by
side, every receiver with its own stream x_v = x_corr + Σ_u M_uv (a_now(u) − a_corr(u)). The whole model is the mask of all ones,
the corrupted run the mask of all zeros.

What u writes to the logits, at the prediction position, with the final norm held at the circuit's own scale s (and its mean taken off,
where the norm does that), is linear: unembed((a_now(u) − a_corr(u)) / s). All writes and that of the corrupted stream x_corr / s
sum to the circuit's logits. This is direct logit attribution; a write's likeliest tokens are its logit lens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mechrl.models.base import Model


@dataclass(frozen=True)
class PlainRun:
    """A circuit on one pair of T tokens."""

    patterns: Tensor  # [L, H, T, T] a row is a query, and sums to 1 over the positions up to its own
    writers: Tensor  # [n] the sources that have an edge to the logits
    writes: Tensor  # [n, V] what each adds to the logits, beyond what it adds in the corrupted run
    rest: Tensor  # [V] what is there without them


def push(logits: Tensor, answers: Sequence[int], foils: Sequence[int]) -> Tensor:
    """The mean over the answers less the mean over the foils, of [..., V]."""
    return logits[..., list(answers)].mean(-1) - logits[..., list(foils)].mean(-1)


@torch.no_grad()
def run(model: Model, clean: Sequence[int], corrupt: Sequence[int], mask: np.ndarray) -> PlainRun:
    """The circuit `mask` [E] on one pair."""
    graph, H, G = model.graph, model.spec.n_heads, model.spec.n_kv_heads
    keep = torch.from_numpy(np.asarray(mask, dtype=bool)).to(model.device, model.dtype)
    position = torch.arange(len(clean), device=model.device)
    future = position[:, None] < position
    ids = torch.tensor([list(clean), list(corrupt)], device=model.device)
    corrupted = model.embedding[ids[1]]  # [T, d] the stream of the corrupted run
    if model.position is not None:
        corrupted = corrupted + model.position[: len(clean)]
    rows = (model.embedding[ids[0]] - model.embedding[ids[1]])[None]  # [sources so far, T, d] a_now − a_corr

    def streams(first: int, n: int) -> Tensor:
        """[2, n, T, d] what receivers first … first + n read, in the corrupted run and in the circuit, after the norm."""
        start = int(graph.receiver_start[first])
        M = keep[start : start + n * len(rows)].view(
            n, len(rows)
        )  # receivers of one stage read the same sources
        both = torch.stack([torch.zeros_like(M), M])
        return model.normalise(corrupted + torch.einsum("rns,std->rntd", both, rows))

    patterns = []
    for layer, (attention, mlp) in enumerate(zip(model.attention, model.mlp, strict=True)):
        x = streams(graph.receiver(layer, "q"), H + 2 * G)
        q = model.rotate(x[:, :H] @ attention.W_q + attention.b_q[:, None], position)
        k = model.rotate(x[:, H : H + G] @ attention.W_k + attention.b_k[:, None], position)
        v = x[:, H + G :] @ attention.W_v + attention.b_v[:, None]
        k, v = k.repeat_interleave(H // G, 1), v.repeat_interleave(H // G, 1)
        pattern = (q @ k.mT * attention.scale).masked_fill(future, -torch.inf).softmax(-1)  # [2, H, T, T]
        out = pattern @ v @ attention.W_o  # [2, H, T, d]
        patterns.append(pattern[1])
        corrupted = corrupted + out[0].sum(0) + attention.b_o
        rows = torch.cat([rows, out[1] - out[0]])
        out = mlp(streams(graph.receiver(layer, "mlp"), 1)[:, 0])
        corrupted = corrupted + out[0]
        rows = torch.cat([rows, (out[1] - out[0])[None]])
    M = keep[int(graph.receiver_start[graph.logits]) :].bool()
    x, written = corrupted[-1], rows[M, -1]  # at the prediction position
    now = x + written.sum(0)
    centred = now - now.mean() if model.spec.norm == "layer" else now
    scale = (centred.square().mean() + model.spec.eps).sqrt()

    def logits(part: Tensor) -> Tensor:
        """What a part [..., d] of the final stream adds to the logits."""
        if model.spec.norm == "layer":
            part = part - part.mean(-1, keepdim=True)
        return part / scale * model.final_gain @ model.unembedding.mT

    rest = logits(x) + model.final_shift @ model.unembedding.mT
    return PlainRun(torch.stack(patterns), M.nonzero()[:, 0], logits(written), rest)
