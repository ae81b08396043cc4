"""What the components of a stage compute: from the normalised streams of its jobs to the rows of its nodes.

A row is a difference from the corrupted run. For a head it is (z − z_corr) W_O; the projection is linear, so the corrupted output is
never needed. Without gradients, results are written directly into the store; with gradients, nothing is written in place. `rules`
change derivatives, not values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from mechrl.engine.pairs_cache import PairsCache
from mechrl.engine.plan import Heads, Stage
from mechrl.engine.rules import Rules
from mechrl.models.base import Model, rotate

Groups = list[tuple[int, int, int]]  # (head, first job, end)


@dataclass(frozen=True)
class HeadIndex:
    """`Heads` as indices into [corrupted inputs | jobs]."""

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


def attention_index(model: Model, stage: Stage, upload: Callable[[np.ndarray], Tensor]) -> AttentionIndex:
    """`upload` copies an integer array to the device."""
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


def _head_index(heads: Heads, H: int, G: int, upload: Callable[[np.ndarray], Tensor]) -> HeadIndex | None:
    if not len(heads):
        return None
    kv = heads.head // (H // G)

    def pick(job: np.ndarray, corrupted: np.ndarray, n: int) -> Tensor:
        return upload(np.where(job >= 0, n + job, corrupted))

    q, k, v = pick(heads.q, heads.head, H), pick(heads.k, kv, G), pick(heads.v, kv, G)
    return HeadIndex(q, k, v, upload(heads.head), _groups(heads.head))


def _groups(head: np.ndarray) -> Groups:
    """Ranges of equal heads in a sorted array."""
    unique, first = np.unique(head, return_index=True)
    bounds = [*first.tolist(), len(head)]
    return [(int(h), bounds[i], bounds[i + 1]) for i, h in enumerate(unique)]


def project(
    x: Tensor, weight: Tensor, bias: Tensor | None, groups: Groups, out: Tensor | None = None
) -> Tensor:
    """x [J, tokens, a] times the weight [heads, a, b] of each job's head: [J, tokens, b], in `out` if given."""
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
    x: tuple[Tensor, Tensor],
    out: tuple[Tensor, Tensor] | None = None,
    rules: Rules | None = None,
) -> tuple[Tensor, Tensor]:
    """Rows of heads: those needed at all positions [.., N, d], and those needed at the prediction position [.., B, d].

    `x`: the streams of both pools. `out` receives the rows, if given.
    """
    x_full, x_last = x
    out_full, out_last = out or (None, None)
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
        # a q input is computed here, unless some head needs it at all positions
        q_last = rotate(project(x_last, weights.W_q, weights.b_q, index.q_last), cache.last_rotary)
        pairs = torch.arange(cache.n_pairs, device=x_last.device)
        q_all = torch.cat([corrupted.q[:, pairs, cache.last_position], q_full[:, cache.last_token], q_last])
        of_heads = q_all[index.last.q][:, :, None], k_all[index.last.k], v_all[index.last.v]
        z = _attend_last(of_heads, cache, weights.scale, rules)
        z = z - corrupted.z[:, cache.last_token][index.last.head]
        rows_last = project(z, weights.W_o, None, index.last.groups, out_last)
    return rows_full, rows_last


def _attend_last(
    of_heads: tuple[Tensor, Tensor, Tensor], cache: PairsCache, scale: float, rules: Rules | None
) -> Tensor:
    """[.., B, e] with one query per pair, at its prediction position."""
    visible = torch.arange(cache.n_positions, device=of_heads[0].device) <= cache.last_position[:, None]
    if rules is not None:
        return rules.attend(*of_heads, visible[:, None], scale)[:, :, 0]
    return scaled_dot_product_attention(*of_heads, attn_mask=visible[:, None], scale=scale)[:, :, 0]


def mlp_stage(
    model: Model,
    layer: int,
    cache: PairsCache,
    x: tuple[Tensor, Tensor],
    out: tuple[Tensor, Tensor] | None = None,
    rules: Rules | None = None,
) -> tuple[Tensor, Tensor]:
    """Rows of the MLP, one per job."""
    corrupted, mlp = cache.layers[layer], model.mlp[layer]
    at = corrupted.mlp, corrupted.last.mlp
    if rules is not None:
        return rules.mlp(mlp, x[0]) - at[0], rules.mlp(mlp, x[1]) - at[1]
    if out is None:
        return mlp(x[0]) - at[0], mlp(x[1]) - at[1]
    for stream, corrupt, rows in zip(x, at, out, strict=True):
        if len(stream):
            torch.sub(mlp(stream), corrupt, out=rows)
    return out


def _padded(x: Tensor, corrupted: Tensor, head: Tensor, cache: PairsCache) -> Tensor:
    """Scatters active tokens [J, N, e] into [J, B, T, e]; other positions are filled from the corrupted run."""
    shape = (len(x), cache.n_pairs, cache.n_positions, x.shape[-1])
    if cache.all_active or not len(x):
        return x.view(shape)
    return corrupted[head].flatten(1, 2).index_copy(1, cache.token_place, x).view(shape)
