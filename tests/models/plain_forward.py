"""The whole model, unmasked: the straightforward forward pass that the components must reproduce."""

from __future__ import annotations

import torch
from torch import Tensor

from mechrl.models import Model


def plain_forward(model: Model, ids: Tensor) -> Tensor:
    """Logits [batch, position, vocabulary] of token ids [batch, position]."""
    spec, length = model.spec, ids.shape[1]
    position = torch.arange(length)
    causal = torch.ones(length, length).tril().bool()

    x = model.embedding[ids]
    if model.position is not None:
        x = x + model.position[:length]
    for attention, mlp in zip(model.attention, model.mlp, strict=True):
        normal = model.normalise(x)
        out = attention.b_o.expand_as(x)
        for head in range(spec.n_heads):
            kv = head * spec.n_kv_heads // spec.n_heads
            q = model.rotate(normal @ attention.W_q[head] + attention.b_q[head], position)
            k = model.rotate(normal @ attention.W_k[kv] + attention.b_k[kv], position)
            v = normal @ attention.W_v[kv] + attention.b_v[kv]
            scores = (q @ k.transpose(-1, -2) * attention.scale).masked_fill(~causal, -torch.inf)
            out = out + scores.softmax(-1) @ v @ attention.W_o[head]
        x = x + out
        x = x + mlp(model.normalise(x))
    return model.unembed(model.normalise(x))
