"""The engine's work on a CUDA device, in Triton: a stage is a handful of launches whatever the number of circuits and heads.

Two things bind a batch of sparse circuits on a GPU: memory traffic, and the host, which must launch everything. A job that keeps
n edges must read n rows and write one stream; `mix` does just that, with the norm on the way, where a dense product would read
every row for every layer. `project` runs all jobs of a stage through their own heads' weights in one launch, `attend` all
heads. Each has its slow twin in `mix.py` and `stages.py`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mechrl.engine.mix import Store
from mechrl.engine.pairs_cache import PairsCache
from mechrl.engine.plan import Pool, Stage
from mechrl.models.base import Attention, Spec

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without CUDA: mix.py and stages.py do the work
    triton = None

MAX_POSITIONS = 128  # a whole prompt's scores are one tile
_TOKENS_PER_PROGRAM = 4


def available(like: Tensor, n_positions: int) -> bool:
    return triton is not None and like.is_cuda and like.dtype == torch.float32 and n_positions <= MAX_POSITIONS


def readers(attention: Attention) -> tuple[Tensor, Tensor]:
    """All weights [H + 2 G, d, e] and biases [H + 2 G, e] that read a layer's stream, in the order of its receivers."""
    weight = torch.cat([attention.W_q, attention.W_k, attention.W_v])
    return weight, torch.cat([attention.b_q, attention.b_k, attention.b_v])


# ---- mix ----------------------------------------------------------------------------------------------------------------


def gather_index(pool: Pool, store: Store) -> np.ndarray:
    """What the kernel reads: [J + 1] where each job's edges begin, then for every edge 2 · (first token of its row in the flat
    store), plus 1 for a row that holds prediction positions only."""
    per_full, per_last = store.full.shape[1], store.last.shape[1]
    last = store.full.shape[0] * per_full + pool.slot * per_last
    place = np.where(pool.slot_is_last, last, pool.slot * per_full) * 2 + pool.slot_is_last
    return np.concatenate([pool.start, place])


def mix_and_normalise(index: Tensor, store: Store, resid: Tensor, last_token: Tensor | None, spec: Spec, out: Tensor) -> Tensor:
    """Writes the normalised streams of a pool's jobs into `out` [J, tokens, d]; `index` is its `gather_index` on the device."""
    n_jobs, n_tokens, d = out.shape
    if n_jobs:
        grid = (n_jobs, triton.cdiv(n_tokens, _TOKENS_PER_PROGRAM))
        _mix_kernel[grid](
            store.flat,
            index[n_jobs + 1 :],
            index,
            resid,
            index if last_token is None else last_token,
            out,
            n_tokens,
            spec.eps,
            d=d,
            last_pool=last_token is not None,
            centre=spec.norm == "layer",
            block_t=_TOKENS_PER_PROGRAM,
            block_d=triton.next_power_of_2(d),
            num_warps=4,
        )
    return out


# ---- attention ----------------------------------------------------------------------------------------------------------


def heads_index(stage: Stage, spec: Spec) -> np.ndarray:
    """Receivers of the full and of the last pool, then head, q, k and v job of the heads at all positions, then of the others.

    k and v jobs are counted within the full pool here. -1 stands for the corrupted input."""
    receiver = stage.full.receiver
    n_q, n_qk = np.searchsorted(receiver, [spec.n_heads, spec.n_heads + spec.n_kv_heads])
    heads = []
    for h in (stage.heads_full, stage.heads_last):
        heads += [h.head, h.q, np.where(h.k >= 0, h.k + n_q, -1), np.where(h.v >= 0, h.v + n_qk, -1)]
    return np.concatenate([receiver, stage.last.receiver, *heads])


def attention_stage(
    spec: Spec,
    weights: Attention,
    read: tuple[Tensor, Tensor],
    cache: PairsCache,
    layer: int,
    stage: Stage,
    index: Tensor,
    x_full: Tensor,
    x_last: Tensor,
    out_full: Tensor,
    out_last: Tensor,
    tf32: bool,
) -> None:
    """The rows of a layer's heads, as `stages.attention_stage` computes them, written into the store."""
    n_full, n_last = len(stage.heads_full), len(stage.heads_last)
    sizes = [len(stage.full), len(stage.last), *[n_full] * 4, *[n_last] * 4]
    receiver_full, receiver_last, *heads = index.split(sizes)
    n_q = int(np.searchsorted(stage.full.receiver, spec.n_heads))
    inputs = _project(x_full, *read, receiver_full, x_full.new_empty(*x_full.shape[:2], spec.d_head), tf32)
    last_inputs = _project(x_last, *read, receiver_last, x_last.new_empty(*x_last.shape[:2], spec.d_head), tf32)
    corrupted = cache.layers[layer]
    for n, of, out, last in ((n_full, heads[:4], out_full, False), (n_last, heads[4:], out_last, True)):
        if not n:
            continue
        z = x_full.new_empty(n, cache.n_pairs if last else cache.n_tokens, spec.d_head)
        cos, sin = cache.token_rotary or (z, z)
        half = spec.d_head // 2
        _attend_kernel[(n, cache.n_pairs)](
            inputs,
            last_inputs,
            corrupted.q,
            corrupted.k,
            corrupted.v,
            corrupted.z,
            cos,
            sin,
            *of,
            cache.layout,
            z,
            n_q,
            cache.n_tokens,
            cache.n_pairs,
            cache.n_positions,
            weights.scale,
            half=half,
            group=spec.n_heads // spec.n_kv_heads,
            rotary=cache.token_rotary is not None,
            last=last,
            block_t=max(16, triton.next_power_of_2(cache.n_positions)),
            block_h=max(16, triton.next_power_of_2(half)),
            precision="tf32" if tf32 else "ieee",
            num_warps=4 if cache.n_positions <= 64 else 8,
        )
        _project(z, weights.W_o, None, of[0], out, tf32)


def _project(x: Tensor, weight: Tensor, bias: Tensor | None, head: Tensor, out: Tensor, tf32: bool) -> Tensor:
    """x [J, tokens, a] through each job's own head weight [heads, a, b] into `out` [J, tokens, b]."""
    J, tokens, a = x.shape
    if J:
        b = weight.shape[2]
        block_n = min(64, max(16, triton.next_power_of_2(b)))
        block_t = 64 if tokens > 32 else 32
        _project_kernel[(J, triton.cdiv(tokens, block_t), triton.cdiv(b, block_n))](
            x,
            weight,
            weight if bias is None else bias,
            head,
            out,
            tokens,
            a=a,
            b=b,
            has_bias=bias is not None,
            block_t=block_t,
            block_n=block_n,
            block_k=32,
            precision="tf32" if tf32 else "ieee",
            num_warps=4,
            num_stages=3,
        )
    return out


if triton is not None:

    @triton.jit
    def _mix_kernel(
        flat,  # [.., d] the store
        place,  # [n] int64: 2 · first token of the row, + 1 for a row of prediction positions
        start,  # [J + 1] int64
        resid,  # [tokens, d]
        last_token,  # [tokens] int64: a prediction position's place in a full row
        out,  # [J, tokens, d]
        n_tokens,
        eps,
        d: tl.constexpr,
        last_pool: tl.constexpr,
        centre: tl.constexpr,
        block_t: tl.constexpr,
        block_d: tl.constexpr,
    ):
        job = tl.program_id(0).to(tl.int64)
        token = tl.program_id(1) * block_t + tl.arange(0, block_t)
        column = tl.arange(0, block_d)
        inside = (token < n_tokens)[:, None] & (column < d)[None, :]
        x = tl.load(resid + token[:, None] * d + column[None, :], mask=inside, other=0.0)
        if last_pool:
            in_full_row = tl.load(last_token + token, mask=token < n_tokens, other=0)
        for e in range(tl.load(start + job), tl.load(start + job + 1)):
            code = tl.load(place + e)
            row = token.to(tl.int64)
            if last_pool:
                row = tl.where(code % 2 == 1, row, in_full_row)
            at = (code // 2 + row) * d
            x += tl.load(flat + at[:, None] + column[None, :], mask=inside, other=0.0)
        if centre:
            x = tl.where(inside, x - (tl.sum(x, 1) / d)[:, None], 0.0)
        x = x * tl.rsqrt(tl.sum(x * x, 1) / d + eps)[:, None]
        tl.store(out + (job * n_tokens + token[:, None]) * d + column[None, :], x, mask=inside)

    @triton.jit
    def _project_kernel(
        x,  # [J, tokens, a]
        weight,  # [heads, a, b]
        bias,  # [heads, b]
        head,  # [J] int64
        out,  # [J, tokens, b]
        n_tokens,
        a: tl.constexpr,
        b: tl.constexpr,
        has_bias: tl.constexpr,
        block_t: tl.constexpr,
        block_n: tl.constexpr,
        block_k: tl.constexpr,
        precision: tl.constexpr,
    ):
        job = tl.program_id(0).to(tl.int64)
        h = tl.load(head + job)
        token = tl.program_id(1) * block_t + tl.arange(0, block_t)
        column = tl.program_id(2) * block_n + tl.arange(0, block_n)
        at = (job * n_tokens + token)[:, None]
        inside = (token < n_tokens)[:, None]
        total = tl.zeros((block_t, block_n), dtype=tl.float32)
        for first in range(0, a, block_k):
            k = first + tl.arange(0, block_k)
            left = tl.load(x + at * a + k[None, :], mask=inside & (k < a)[None, :], other=0.0)
            right = tl.load(
                weight + (h * a + k[:, None]) * b + column[None, :], mask=(k < a)[:, None] & (column < b)[None, :], other=0.0
            )
            total += tl.dot(left, right, input_precision=precision)
        if has_bias:
            total += tl.load(bias + h * b + column, mask=column < b, other=0.0)[None, :]
        tl.store(out + at * b + column[None, :], total, mask=inside & (column < b)[None, :])

    @triton.jit
    def _rotated(base, cos, sin, at, token, c, inside, half: tl.constexpr, rotary: tl.constexpr):
        """Both halves of vectors at base + at · 2 half, rotated by the angles of their tokens."""
        left = tl.load(base + at * (2 * half) + c, mask=inside, other=0.0)
        right = tl.load(base + at * (2 * half) + half + c, mask=inside, other=0.0)
        if rotary:
            co = tl.load(cos + token * half + c, mask=inside, other=0.0)
            si = tl.load(sin + token * half + c, mask=inside, other=0.0)
            left, right = left * co - right * si, right * co + left * si
        return left, right

    @triton.jit
    def _attend_kernel(
        inputs,  # [J, N, e] q, k and v of the full pool's jobs, not yet rotated
        last_inputs,  # [J', B, e] q of the last pool's jobs
        corrupted_q,  # [H, B, T, e], rotated
        corrupted_k,  # [G, B, T, e], rotated
        corrupted_v,  # [G, B, T, e]
        corrupted_z,  # [H, N, e]
        cos,  # [N, e / 2]
        sin,
        head,  # [n]
        q_job,  # [n] -1: corrupted
        k_job,
        v_job,
        layout,  # [B, 3] int64: first active position, number of positions, first active token
        out,  # [n, N, e] or [n, B, e]: z − z_corr
        n_q,  # q jobs of the full pool; those of the last pool are numbered after them
        n_tokens,
        n_pairs,
        n_positions,
        scale,
        half: tl.constexpr,
        group: tl.constexpr,
        rotary: tl.constexpr,
        last: tl.constexpr,
        block_t: tl.constexpr,
        block_h: tl.constexpr,
        precision: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64)
        pair = tl.program_id(1).to(tl.int64)
        h = tl.load(head + row)
        qj, kj, vj = tl.load(q_job + row), tl.load(k_job + row), tl.load(v_job + row)
        first, length, start = tl.load(layout + 3 * pair), tl.load(layout + 3 * pair + 1), tl.load(layout + 3 * pair + 2)
        t = tl.arange(0, block_t)
        c = tl.arange(0, block_h)[None, :]
        e: tl.constexpr = 2 * half
        token = (start + t - first)[:, None]
        active = ((t >= first) & (t < length))[:, None]
        real = (t < length)[:, None]
        ok, ok_active = real & (c < half), active & (c < half)

        # keys and values: before the first active position they are the corrupted run's, whoever asks
        in_kv = (((h // group) * n_pairs + pair) * n_positions + t)[:, None]
        k_left = tl.load(corrupted_k + in_kv * e + c, mask=ok, other=0.0)
        k_right = tl.load(corrupted_k + in_kv * e + half + c, mask=ok, other=0.0)
        if kj >= 0:
            left, right = _rotated(inputs, cos, sin, kj * n_tokens + token, token, c, ok_active, half, rotary)
            k_left, k_right = tl.where(active, left, k_left), tl.where(active, right, k_right)
        v_left = tl.load(corrupted_v + in_kv * e + c, mask=ok, other=0.0)
        v_right = tl.load(corrupted_v + in_kv * e + half + c, mask=ok, other=0.0)
        if vj >= 0:
            at = (vj * n_tokens + token) * e
            v_left = tl.where(active, tl.load(inputs + at + c, mask=ok_active, other=0.0), v_left)
            v_right = tl.where(active, tl.load(inputs + at + half + c, mask=ok_active, other=0.0), v_right)

        if last:
            here = start + length - 1 - first  # the prediction position's token
            at_z = (h * n_tokens + here) * e
            inside = c < half
            token_last = here + tl.zeros((1, 1), dtype=tl.int64)
            if qj < 0:
                at_q = (((h * n_pairs + pair) * n_positions) + length - 1) * e
                q_left = tl.load(corrupted_q + at_q + c, mask=inside, other=0.0)
                q_right = tl.load(corrupted_q + at_q + half + c, mask=inside, other=0.0)
            elif qj < n_q:
                q_left, q_right = _rotated(inputs, cos, sin, qj * n_tokens + token_last, token_last, c, inside, half, rotary)
            else:
                at = (qj - n_q) * n_pairs + pair + tl.zeros((1, 1), dtype=tl.int64)
                q_left, q_right = _rotated(last_inputs, cos, sin, at, token_last, c, inside, half, rotary)
            score = (tl.sum(k_left * q_left, 1) + tl.sum(k_right * q_right, 1)) * scale
            score = tl.where(t < length, score, float("-inf"))
            p = tl.exp(score - tl.max(score, 0))
            p = (p / tl.sum(p, 0))[:, None]
            z_left = tl.sum(p * v_left, 0)[None, :] - tl.load(corrupted_z + at_z + c, mask=inside, other=0.0)
            z_right = tl.sum(p * v_right, 0)[None, :] - tl.load(corrupted_z + at_z + half + c, mask=inside, other=0.0)
            at_out = (row * n_pairs + pair) * e
            tl.store(out + at_out + c, z_left, mask=inside)
            tl.store(out + at_out + half + c, z_right, mask=inside)
        else:
            if qj < 0:
                at_q = ((h * n_pairs + pair) * n_positions + t)[:, None] * e
                q_left = tl.load(corrupted_q + at_q + c, mask=ok_active, other=0.0)
                q_right = tl.load(corrupted_q + at_q + half + c, mask=ok_active, other=0.0)
            else:
                q_left, q_right = _rotated(inputs, cos, sin, qj * n_tokens + token, token, c, ok_active, half, rotary)
            score = tl.dot(q_left, tl.trans(k_left), input_precision=precision)
            score += tl.dot(q_right, tl.trans(k_right), input_precision=precision)
            visible = (t[:, None] >= t[None, :]) & (t < length)[None, :]
            score = tl.where(visible, score * scale, float("-inf"))
            p = tl.exp(score - tl.max(score, 1)[:, None])
            p = p / tl.sum(p, 1)[:, None]
            at_z = (h * n_tokens + token) * e
            z_left = tl.dot(p, v_left, input_precision=precision) - tl.load(corrupted_z + at_z + c, mask=ok_active, other=0.0)
            z_right = tl.dot(p, v_right, input_precision=precision)
            z_right -= tl.load(corrupted_z + at_z + half + c, mask=ok_active, other=0.0)
            at_out = (row * n_tokens + token) * e
            tl.store(out + at_out + c, z_left, mask=ok_active)
            tl.store(out + at_out + half + c, z_right, mask=ok_active)

