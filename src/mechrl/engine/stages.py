"""What the components of one stage compute: from the normalised streams of its jobs to the rows of its nodes.

A row is a difference to the corrupted run. For a head it is (z − z_corr) W_O: the projection is linear, so the corrupted output
itself is never needed. With gradients enabled nothing is written in place; without, results go straight into the store. With `rules`
the values are the same and the derivatives are theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from mechrl.engine.pairs_cache import LayerCache, PairsCache
from mechrl.engine.plan import Heads, Stage
from mechrl.engine.rules import Rules
from mechrl.models.base import Model, rotate

Groups = list[tuple[int, int, int]]  # (head, first job, behind the last job)


@dataclass(frozen=True)
class HeadIndex:
    """`Heads` ready for use: what to pick from [corrupted inputs | jobs]."""

    q: Tensor
    k: Tensor
    v: Tensor
    head: Tensor
    groups: Groups


@dataclass(frozen=True)
class AttentionIndex:
    """The index tensors of an attention stage."""

    q_full: Groups
    q_last: Groups
    k: Groups
    v: Groups
    n_q: int  # jobs of the full pool: n_q q inputs, then n_k k inputs, then v inputs
    n_k: int
    k_head: Tensor  # [n_k] KV head of every k job
    v_head: Tensor
    q_head: Tensor  # [n_q]
    full: HeadIndex | None
    last: HeadIndex | None


def attention_index(model: Model, stage: Stage, upload) -> AttentionIndex:
    """`upload` moves an integer array to the device."""
    H, G = model.spec.n_heads, model.spec.n_kv_heads
    receiver = stage.full.receiver
    n_q, n_qk = np.searchsorted(receiver, [H, H + G])
    q, k, v = receiver[:n_q], receiver[n_q:n_qk] - H, receiver[n_qk:] - H - G
    return AttentionIndex(
        q_full=_groups(q),
        q_last=_groups(stage.last.receiver),
        k=_groups(k),
        v=_groups(v),
        n_q=int(n_q),
        n_k=int(n_qk - n_q),
        k_head=upload(k),
        v_head=upload(v),
        q_head=upload(q),
        full=_head_index(stage.heads_full, H, G, upload),
        last=_head_index(stage.heads_last, H, G, upload),
    )


def _head_index(heads: Heads, H: int, G: int, upload) -> HeadIndex | None:
    if not len(heads):
        return None
    kv = heads.head // (H // G)

    def pick(job: np.ndarray, corrupted: np.ndarray, n: int) -> Tensor:
        return upload(np.where(job >= 0, n + job, corrupted))

    q, k, v = pick(heads.q, heads.head, H), pick(heads.k, kv, G), pick(heads.v, kv, G)
    return HeadIndex(q, k, v, upload(heads.head), _groups(heads.head))


def _groups(head: np.ndarray) -> Groups:
    """Runs of equal heads in a sorted array."""
    unique, first = np.unique(head, return_index=True)
    bounds = [*first.tolist(), len(head)]
    return [(int(h), bounds[i], bounds[i + 1]) for i, h in enumerate(unique)]


def project(
    x: Tensor, weight: Tensor, bias: Tensor | None, groups: Groups, out: Tensor | None = None
) -> Tensor:
    """x [J, tokens, a] through each job's own head weight [heads, a, b]: [J, tokens, b]; `out` receives it if given."""
    J, tokens, _ = x.shape
    b = weight.shape[2]
    if not torch.is_grad_enabled():
        out = x.new_empty(J, tokens, b) if out is None else out
        for head, first, end in groups:
            target = out[first:end].view(-1, b)
            flat = x[first:end].reshape(-1, x.shape[2])
            if bias is None:
                torch.mm(flat, weight[head], out=target)
            else:
                torch.addmm(bias[head], flat, weight[head], out=target)
        return out
    pieces = [
        x[first:end] @ weight[head] + (0 if bias is None else bias[head]) for head, first, end in groups
    ]
    return torch.cat(pieces) if pieces else x.new_empty(J, tokens, b)


def attention_stage(
    model: Model,
    layer: int,
    cache: PairsCache,
    index: AttentionIndex,
    x_full: Tensor,
    x_last: Tensor,
    out_full: Tensor | None = None,
    out_last: Tensor | None = None,
    rules: Rules | None = None,
) -> tuple[Tensor, Tensor]:
    """Rows of the heads needed at all positions [.., N, d] and of those needed at the prediction position [.., B, d]."""
    weights, corrupted = model.attention[layer], cache.layers[layer]
    n_q, n_qk = index.n_q, index.n_q + index.n_k
    q_full = rotate(project(x_full[:n_q], weights.W_q, weights.b_q, index.q_full), cache.token_rotary)
    k = rotate(project(x_full[n_q:n_qk], weights.W_k, weights.b_k, index.k), cache.token_rotary)
    v = project(x_full[n_qk:], weights.W_v, weights.b_v, index.v)
    # [G corrupted inputs | jobs], each [B, T, e]
    k_all = torch.cat([corrupted.k, _padded(k, corrupted.k, index.k_head, cache)])
    v_all = torch.cat([corrupted.v, _padded(v, corrupted.v, index.v_head, cache)])

    rows_full = x_full.new_empty(0, cache.n_tokens, model.spec.d_model)
    if index.full is not None:
        q_all = torch.cat([corrupted.q, _padded(q_full, corrupted.q, index.q_head, cache)])
        heads = q_all[index.full.q], k_all[index.full.k], v_all[index.full.v]
        if rules is None:
            z = scaled_dot_product_attention(*heads, is_causal=True, scale=weights.scale).flatten(1, 2)
        else:
            position = torch.arange(cache.n_positions, device=x_full.device)
            z = rules.attend(*heads, position <= position[:, None], weights.scale).flatten(1, 2)
        z = z if cache.all_active else z[:, cache.token_place]
        rows_full = project(z - corrupted.z[index.full.head], weights.W_o, None, index.full.groups, out_full)

    rows_last = x_full.new_empty(0, cache.n_pairs, model.spec.d_model)
    if index.last is not None:
        rows_last = _last_heads(
            model, layer, cache, corrupted, index, index.last, q_full, x_last, k_all, v_all, out_last, rules
        )
    return rows_full, rows_last


def _last_heads(
    model: Model,
    layer: int,
    cache: PairsCache,
    corrupted: LayerCache,
    index: AttentionIndex,
    heads: HeadIndex,
    q_full: Tensor,
    x_last: Tensor,
    k_all: Tensor,
    v_all: Tensor,
    out: Tensor | None,
    rules: Rules | None,
) -> Tensor:
    """One query per pair. A q input may be computed here, or at all positions because another head needs it there."""
    weights = model.attention[layer]
    pairs = torch.arange(cache.n_pairs, device=x_last.device)
    q_last = rotate(project(x_last, weights.W_q, weights.b_q, index.q_last), cache.last_rotary)
    q_all = torch.cat([corrupted.q[:, pairs, cache.last_position], q_full[:, cache.last_token], q_last])
    visible = torch.arange(cache.n_positions, device=x_last.device) <= cache.last_position[:, None]  # [B, T]
    of_heads = q_all[heads.q][:, :, None], k_all[heads.k], v_all[heads.v]
    if rules is None:
        z = scaled_dot_product_attention(*of_heads, attn_mask=visible[:, None], scale=weights.scale)[:, :, 0]
    else:
        z = rules.attend(*of_heads, visible[:, None], weights.scale)[:, :, 0]
    return project(z - corrupted.z[:, cache.last_token][heads.head], weights.W_o, None, heads.groups, out)


def mlp_stage(
    model: Model,
    layer: int,
    cache: PairsCache,
    x_full: Tensor,
    x_last: Tensor,
    out_full: Tensor | None = None,
    out_last: Tensor | None = None,
    rules: Rules | None = None,
) -> tuple[Tensor, Tensor]:
    """Rows of the MLP, one a job."""
    corrupted, mlp = cache.layers[layer], model.mlp[layer]
    if rules is not None:
        return rules.mlp(mlp, x_full) - corrupted.mlp, rules.mlp(mlp, x_last) - corrupted.last.mlp
    if out_full is None or out_last is None:
        return mlp(x_full) - corrupted.mlp, mlp(x_last) - corrupted.last.mlp
    if len(x_full):
        torch.sub(mlp(x_full), corrupted.mlp, out=out_full)
    if len(x_last):
        torch.sub(mlp(x_last), corrupted.last.mlp, out=out_last)
    return out_full, out_last


def _padded(x: Tensor, corrupted: Tensor, head: Tensor, cache: PairsCache) -> Tensor:
    """Active tokens [J, N, e] laid into [J, B, T, e]; the other positions are the corrupted run's."""
    shape = (len(x), cache.n_pairs, cache.n_positions, x.shape[-1])
    if cache.all_active or not len(x):
        return x.view(shape)
    return corrupted[head].flatten(1, 2).index_copy(1, cache.token_place, x).view(shape)
