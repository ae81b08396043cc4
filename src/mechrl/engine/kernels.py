"""The engine on a CUDA device, in Triton: a stage takes a handful of launches, however many circuits and heads there are.

Two things limit a batch of sparse circuits on a GPU: memory traffic, and the host, which has to launch everything. A job that keeps n
edges has to read n rows and write one stream. `mix` does only that, and normalises in the same kernel; a dense product would read every
row for every layer. `project` multiplies all jobs of a stage with the weights of their heads in one launch; `attend` runs all heads.
Each is tested against a slow version in `mix.py` or `stages.py`. Jobs may belong to different batches of pairs (*groups*), so that one
launch serves several behaviours; `fused.py` arranges them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mechrl.engine.pairs_cache import PairsCache
from mechrl.models.base import Attention, Spec

try:
    import triton
    import triton.language as tl
except ImportError:  # without CUDA, mix.py and stages.py are used
    triton = None

MAX_POSITIONS = 128  # the attention scores of a whole prompt are one tile
_TOKENS_PER_PROGRAM = 4


def available(like: Tensor, n_positions: int) -> bool:
    return (
        triton is not None and like.is_cuda and like.dtype == torch.float32 and n_positions <= MAX_POSITIONS
    )


def readers(attention: Attention) -> tuple[Tensor, Tensor]:
    """All weights [H + 2 G, d, e] and biases [H + 2 G, e] that read a layer's stream, in the order of its receivers."""
    weight = torch.cat([attention.W_q, attention.W_k, attention.W_v])
    return weight, torch.cat([attention.b_q, attention.b_k, attention.b_v])


@dataclass(frozen=True)
class Jobs:
    """Jobs, or head rows, on the device. Their tokens are back to back in a flat [tokens, ..] tensor.

    `record`, all int64: the first token of every job, and the end [n + 1]; its group [n]; its receiver or head [n]. Then, for a
    pool's jobs, where their edges begin in the run's list of edges [n + 1]; for head rows, their q, k and v jobs [n] each, -1 for the
    corrupted input.
    """

    n: int
    n_tokens: int  # of all jobs together
    longest: int  # tokens of the largest group, an upper bound for every job's
    record: Tensor


def mix(
    jobs: Jobs,
    flat: Tensor,
    place: Tensor,
    resid: Tensor,
    last_token: Tensor | None,
    bounds: Tensor,
    spec: Spec,
    out: Tensor,
    weight: Tensor | None = None,
    scale: Tensor | None = None,
) -> None:
    """The normalised streams of a pool's jobs, from the store `flat`, into `out` [tokens, d].

    `place` is the location of each edge's row: 2 · (its first token in the store), plus 1 if the row has prediction positions only. `resid`
    and `last_token` cover all groups; group g has active tokens bounds[0, g] : bounds[0, g + 1] and pairs bounds[1, g] : bounds[1, g + 1].
    If edges have a `weight`, `scale` [tokens] receives 1/σ of every stream.
    """
    d = flat.shape[1]
    if jobs.n:
        _mix_kernel[(jobs.n, triton.cdiv(jobs.longest, _TOKENS_PER_PROGRAM))](
            flat,
            jobs.record,
            place,
            resid if weight is None else weight,
            bounds,
            resid,
            resid if last_token is None else last_token,
            out,
            out if scale is None else scale,
            jobs.n,
            bounds.shape[1],
            spec.eps,
            d=d,
            last_pool=last_token is not None,
            weighted=weight is not None,
            centre=spec.norm == "layer",
            block_t=_TOKENS_PER_PROGRAM,
            block_d=triton.next_power_of_2(d),
            num_warps=4,
        )


def subtract(jobs: Jobs, x: Tensor, corrupted: Tensor, bounds: Tensor, out: Tensor) -> None:
    """out = x − corrupted, where `corrupted` covers all groups (`bounds` [groups + 1])."""
    d, block_t = x.shape[1], 8
    if jobs.n:
        _subtract_kernel[(jobs.n, triton.cdiv(jobs.longest, block_t))](
            x,
            corrupted,
            out,
            jobs.record,
            bounds,
            jobs.n,
            d=d,
            block_t=block_t,
            block_d=triton.next_power_of_2(d),
            num_warps=4,
        )


def project(jobs: Jobs, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, tf32: bool) -> Tensor:
    """Writes x [tokens, a] times the weight [heads, a, b] of each job's head to `out` [tokens, b]."""
    if jobs.n:
        a, b = weight.shape[1:]
        block_n = min(64, max(16, triton.next_power_of_2(b)))
        block_t = 64 if jobs.longest > 32 else 32
        _project_kernel[(jobs.n, triton.cdiv(jobs.longest, block_t), triton.cdiv(b, block_n))](
            x,
            weight,
            weight if bias is None else bias,
            jobs.record,
            out,
            jobs.n,
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


def attend(
    heads: Jobs,
    full: Jobs,
    last_pool: Jobs,
    read: Tensor,
    *,
    n_q: int,
    cache: PairsCache,
    layer: int,
    bounds: Tensor,
    most_pairs: int,
    last: bool,
    spec: Spec,
    scale: float,
    tf32: bool,
) -> Tensor:
    """[tokens, e] z − z_corr of head rows.

    `read` [tokens, e] has the projections of the full pool's jobs, then those of the last pool's. The first `n_q` jobs of the full pool
    are q inputs; those of the last pool are numbered after them. `last`: rows of prediction positions.
    """
    corrupted = cache.layers[layer]
    z = read.new_empty(heads.n_tokens, spec.d_head)
    cos, sin = cache.token_rotary or (corrupted.q, corrupted.q)  # not read without rotary positions
    half = spec.d_head // 2
    if heads.n:
        _attend_kernel[(heads.n, most_pairs)](
            read,
            read[full.n_tokens :],
            full.record,
            last_pool.record,
            heads.record,
            corrupted.q,
            corrupted.k,
            corrupted.v,
            corrupted.z,
            cos,
            sin,
            bounds,
            cache.layout,
            z,
            heads.n,
            n_q,
            bounds.shape[1],
            cache.n_tokens,
            cache.n_pairs,
            cache.n_positions,
            scale,
            half=half,
            queries=spec.n_heads // spec.n_kv_heads,
            rotary=cache.token_rotary is not None,
            last=last,
            block_t=max(16, triton.next_power_of_2(cache.n_positions)),
            block_h=max(16, triton.next_power_of_2(half)),
            precision="tf32" if tf32 else "ieee",
            num_warps=4 if cache.n_positions <= 64 else 8,
        )
    return z


if triton is not None:
    # slices of one upload have any alignment; without the second list, each alignment would be compiled separately
    @triton.jit(do_not_specialize=["n_jobs"], do_not_specialize_on_alignment=["begin", "scale"])
    def _mix_kernel(
        flat,  # [.., d] the store
        begin,  # a pool's record
        place,  # [edges] int64
        weight,  # [edges]
        bounds,  # [2, groups + 1] int64
        resid,  # [tokens of all groups, d]
        last_token,  # [pairs of all groups] int64: a prediction position's place among the active tokens
        out,  # [tokens of all jobs, d]
        scale,  # [tokens of all jobs]
        n_jobs,
        n_bounds,
        eps,
        d: tl.constexpr,
        last_pool: tl.constexpr,
        weighted: tl.constexpr,
        centre: tl.constexpr,
        block_t: tl.constexpr,
        block_d: tl.constexpr,
    ):
        job = tl.program_id(0)
        first = tl.load(begin + job)
        n_tokens = tl.load(begin + job + 1) - first
        if tl.program_id(1) * block_t >= n_tokens:
            return
        g = tl.load(begin + n_jobs + 1 + job)
        start = begin + 3 * n_jobs + 1
        token = tl.program_id(1) * block_t + tl.arange(0, block_t).to(tl.int64)
        column = tl.arange(0, block_d)
        inside = (token < n_tokens)[:, None] & (column < d)[None, :]
        first_token = tl.load(bounds + g)
        if last_pool:
            origin = tl.load(bounds + n_bounds + g)
            in_full_row = tl.load(last_token + origin + token, mask=token < n_tokens, other=0) - first_token
        else:
            origin = first_token
        x = tl.load(resid + (origin + token)[:, None] * d + column[None, :], mask=inside, other=0.0)
        for e in range(tl.load(start + job), tl.load(start + job + 1)):
            code = tl.load(place + e)
            row = token
            if last_pool:
                row = tl.where(code % 2 == 1, row, in_full_row)
            at = (code // 2 + row) * d
            value = tl.load(flat + at[:, None] + column[None, :], mask=inside, other=0.0).to(tl.float32)
            if weighted:
                value *= tl.load(weight + e)
            x += value
        if centre:
            x = tl.where(inside, x - (tl.sum(x, 1) / d)[:, None], 0.0)
        over_sigma = tl.rsqrt(tl.sum(x * x, 1) / d + eps)
        if weighted:
            tl.store(scale + first + token, over_sigma, mask=token < n_tokens)
        x = x * over_sigma[:, None]
        tl.store(out + (first + token)[:, None] * d + column[None, :], x, mask=inside)

    @triton.jit(do_not_specialize=["n_jobs"], do_not_specialize_on_alignment=["begin"])
    def _subtract_kernel(
        x,  # [tokens, d]
        corrupted,  # [tokens of all groups, d]
        out,  # [tokens, d]
        begin,  # a pool's record
        bounds,  # [groups + 1] int64
        n_jobs,
        d: tl.constexpr,
        block_t: tl.constexpr,
        block_d: tl.constexpr,
    ):
        job = tl.program_id(0)
        first = tl.load(begin + job)
        n_tokens = tl.load(begin + job + 1) - first
        if tl.program_id(1) * block_t >= n_tokens:
            return
        token = tl.program_id(1) * block_t + tl.arange(0, block_t).to(tl.int64)
        column = tl.arange(0, block_d)[None, :]
        inside = (token < n_tokens)[:, None] & (column < d)
        at = (first + token)[:, None] * d + column
        from_corrupted = (tl.load(bounds + tl.load(begin + n_jobs + 1 + job)) + token)[:, None] * d + column
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - tl.load(
            corrupted + from_corrupted, mask=inside, other=0.0
        )
        tl.store(out + at, value, mask=inside)

    @triton.jit(do_not_specialize=["n_jobs"], do_not_specialize_on_alignment=["begin"])
    def _project_kernel(
        x,  # [tokens, a]
        weight,  # [heads, a, b]
        bias,  # [heads, b]
        begin,  # a record of jobs or heads
        out,  # [tokens, b]
        n_jobs,
        a: tl.constexpr,
        b: tl.constexpr,
        has_bias: tl.constexpr,
        block_t: tl.constexpr,
        block_n: tl.constexpr,
        block_k: tl.constexpr,
        precision: tl.constexpr,
    ):
        job = tl.program_id(0)
        first_token = tl.load(begin + job)
        n_tokens = tl.load(begin + job + 1) - first_token
        if tl.program_id(1) * block_t >= n_tokens:
            return
        h = tl.load(begin + 2 * n_jobs + 1 + job)
        token = tl.program_id(1) * block_t + tl.arange(0, block_t)
        column = tl.program_id(2) * block_n + tl.arange(0, block_n)
        at = (first_token + token)[:, None]
        inside = (token < n_tokens)[:, None]
        total = tl.zeros((block_t, block_n), dtype=tl.float32)
        for first in range(0, a, block_k):
            k = first + tl.arange(0, block_k)
            left = tl.load(x + at * a + k[None, :], mask=inside & (k < a)[None, :], other=0.0)
            right = tl.load(
                weight + (h * a + k[:, None]) * b + column[None, :],
                mask=(k < a)[:, None] & (column < b)[None, :],
                other=0.0,
            )
            total += tl.dot(left, right, input_precision=precision)
        if has_bias:
            total += tl.load(bias + h * b + column, mask=column < b, other=0.0).to(tl.float32)[None, :]
        tl.store(out + at * b + column[None, :], total, mask=inside & (column < b)[None, :])

    @triton.jit
    def _rotated(base, cos, sin, at, token, c, inside, half: tl.constexpr, rotary: tl.constexpr):
        """Both halves of vectors at base + at · 2 half, rotated by the angles of their tokens."""
        left = tl.load(base + at * (2 * half) + c, mask=inside, other=0.0).to(tl.float32)
        right = tl.load(base + at * (2 * half) + half + c, mask=inside, other=0.0).to(tl.float32)
        if rotary:
            co = tl.load(cos + token * half + c, mask=inside, other=0.0)
            si = tl.load(sin + token * half + c, mask=inside, other=0.0)
            left, right = left * co - right * si, right * co + left * si
        return left, right

    @triton.jit(
        do_not_specialize=["n_rows", "n_q"],
        do_not_specialize_on_alignment=["begin", "last_begin", "row_begin"],
    )
    def _attend_kernel(
        inputs,  # [tokens, e] q, k and v of the full pool's jobs, not yet rotated
        last_inputs,  # [pairs, e] q of the last pool's jobs
        begin,  # the full pool's record
        last_begin,  # the last pool's
        row_begin,  # the heads'
        corrupted_q,  # [H, B, T, e], rotated
        corrupted_k,  # [G, B, T, e], rotated
        corrupted_v,  # [G, B, T, e]
        corrupted_z,  # [H, N, e]
        cos,  # [N, e / 2]
        sin,
        bounds,  # [2, groups + 1] int64
        layout,  # [B, 3] int64: first active position, number of positions, first active token
        out,  # [tokens or pairs, e]: z − z_corr
        n_rows,
        n_q,  # q jobs of the full pool; those of the last pool are numbered after them
        n_bounds,
        n_tokens,
        n_pairs,
        n_positions,
        scale,
        half: tl.constexpr,
        queries: tl.constexpr,
        rotary: tl.constexpr,
        last: tl.constexpr,
        block_t: tl.constexpr,
        block_h: tl.constexpr,
        precision: tl.constexpr,
    ):
        row = tl.program_id(0)
        g = tl.load(row_begin + n_rows + 1 + row)
        first_token, first_pair = tl.load(bounds + g), tl.load(bounds + n_bounds + g)
        pair = first_pair + tl.program_id(1)
        if pair >= tl.load(bounds + n_bounds + g + 1):
            return
        row_at = tl.load(row_begin + row)
        of_row = row_begin + 2 * n_rows + 1 + row
        h = tl.load(of_row)
        qj, kj, vj = tl.load(of_row + n_rows), tl.load(of_row + 2 * n_rows), tl.load(of_row + 3 * n_rows)
        first, length, start = (
            tl.load(layout + 3 * pair),
            tl.load(layout + 3 * pair + 1),
            tl.load(layout + 3 * pair + 2),
        )
        t = tl.arange(0, block_t)
        c = tl.arange(0, block_h)[None, :]
        e: tl.constexpr = 2 * half
        token = (start + t - first)[:, None]  # among the active tokens of all groups
        own = token - first_token  # within a job
        active = ((t >= first) & (t < length))[:, None]
        real = (t < length)[:, None]
        ok, ok_active = real & (c < half), active & (c < half)

        # before the first active position, keys and values are those of the corrupted run
        in_kv = (((h // queries) * n_pairs + pair) * n_positions + t)[:, None]
        k_left = tl.load(corrupted_k + in_kv * e + c, mask=ok, other=0.0)
        k_right = tl.load(corrupted_k + in_kv * e + half + c, mask=ok, other=0.0)
        if kj >= 0:
            left, right = _rotated(
                inputs, cos, sin, tl.load(begin + kj) + own, token, c, ok_active, half, rotary
            )
            k_left, k_right = tl.where(active, left, k_left), tl.where(active, right, k_right)
        v_left = tl.load(corrupted_v + in_kv * e + c, mask=ok, other=0.0)
        v_right = tl.load(corrupted_v + in_kv * e + half + c, mask=ok, other=0.0)
        if vj >= 0:
            at_v = (tl.load(begin + vj) + own) * e
            v_left = tl.where(
                active, tl.load(inputs + at_v + c, mask=ok_active, other=0.0).to(tl.float32), v_left
            )
            v_right = tl.where(
                active, tl.load(inputs + at_v + half + c, mask=ok_active, other=0.0).to(tl.float32), v_right
            )

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
                at_full = tl.load(begin + qj) - first_token + token_last
                q_left, q_right = _rotated(inputs, cos, sin, at_full, token_last, c, inside, half, rotary)
            else:
                at_last = (
                    tl.load(last_begin + qj - n_q) + pair - first_pair + tl.zeros((1, 1), dtype=tl.int64)
                )
                q_left, q_right = _rotated(
                    last_inputs, cos, sin, at_last, token_last, c, inside, half, rotary
                )
            score = (tl.sum(k_left * q_left, 1) + tl.sum(k_right * q_right, 1)) * scale
            score = tl.where(t < length, score, float("-inf"))
            p = tl.exp(score - tl.max(score, 0))
            p = (p / tl.sum(p, 0))[:, None]
            z_left = tl.sum(p * v_left, 0)[None, :] - tl.load(corrupted_z + at_z + c, mask=inside, other=0.0)
            z_right = tl.sum(p * v_right, 0)[None, :] - tl.load(
                corrupted_z + at_z + half + c, mask=inside, other=0.0
            )
            at_out = (row_at + pair - first_pair) * e
            tl.store(out + at_out + c, z_left, mask=inside)
            tl.store(out + at_out + half + c, z_right, mask=inside)
        else:
            if qj < 0:
                at_q = ((h * n_pairs + pair) * n_positions + t)[:, None] * e
                q_left = tl.load(corrupted_q + at_q + c, mask=ok_active, other=0.0)
                q_right = tl.load(corrupted_q + at_q + half + c, mask=ok_active, other=0.0)
            else:
                q_left, q_right = _rotated(
                    inputs, cos, sin, tl.load(begin + qj) + own, token, c, ok_active, half, rotary
                )
            score = tl.dot(q_left, tl.trans(k_left), input_precision=precision)
            score += tl.dot(q_right, tl.trans(k_right), input_precision=precision)
            visible = (t[:, None] >= t[None, :]) & (t < length)[None, :]
            score = tl.where(visible, score * scale, float("-inf"))
            p = tl.exp(score - tl.max(score, 1)[:, None])
            p = p / tl.sum(p, 1)[:, None]
            at_z = (h * n_tokens + token) * e
            z_left = tl.dot(p, v_left, input_precision=precision) - tl.load(
                corrupted_z + at_z + c, mask=ok_active, other=0.0
            )
            z_right = tl.dot(p, v_right, input_precision=precision)
            z_right -= tl.load(corrupted_z + at_z + half + c, mask=ok_active, other=0.0)
            at_out = (row_at + own) * e
            tl.store(out + at_out + c, z_left, mask=ok_active)
            tl.store(out + at_out + half + c, z_right, mask=ok_active)
