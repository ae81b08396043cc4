"""The backward pass of `kernels.py`: gradients of rows, edges and inputs in a few launches per stage, all float32.

`gather` is `mix` with its index transposed: the gradient of a row is the weighted sum of the gradients of the streams that read it, and
the gradient of an edge is row · d(stream). Sums have a fixed order, so the same call gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mechrl.engine.kernels import Jobs
from mechrl.engine.pairs_cache import PairsCache
from mechrl.models.base import Spec

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None


@dataclass(frozen=True)
class Readers:
    """Which streams read each row: edges sorted by the row they carry, and where those of each row begin and end."""

    stream: Tensor  # [edges] 2 · (first token of the stream that the edge feeds), plus 1 for a stream of prediction positions
    weight: Tensor  # [edges]
    start: Tensor  # [rows]
    end: Tensor  # [rows]


def gather(
    rows: Jobs,
    first_row: int,
    readers: Readers,
    store: Tensor,
    streams: Tensor,
    pair_of_token: Tensor,
    bounds: Tensor,
    per_token: Tensor,
    out: Tensor | None,
) -> None:
    """Gradients of `rows` into `out` [tokens, d], and those of the edges that carry them, token by token, into `per_token`.

    Row i of `rows` is row first_row + i of `readers`; the record continues with its place in `store` [n], as in `kernels.mix`.
    `streams` has the gradients of the streams.
    """
    d = store.shape[1]
    if rows.n:
        # one token and one warp per program: then the sum over d, for each edge, needs no barrier
        _gather_kernel[(rows.n * rows.longest,)](
            store,
            streams,
            rows.record,
            readers.start,
            readers.end,
            readers.stream,
            readers.weight,
            pair_of_token,
            bounds,
            per_token,
            store if out is None else out,
            rows.n,
            first_row,
            per_token.shape[1],
            d=d,
            sums=out is not None,
            block_d=triton.next_power_of_2(d),
            num_warps=1,
        )


def norm_backward(x: Tensor, scale: Tensor, grad: Tensor, spec: Spec) -> None:
    """Overwrites the normalised streams `x` [tokens, d] with the streams' gradients. `scale` [tokens]: 1/σ; `grad`: of `x`."""
    n, d = x.shape
    if n:
        _norm_backward_kernel[(n,)](
            x, scale, grad, d=d, centre=spec.norm == "layer", block_d=triton.next_power_of_2(d), num_warps=1
        )


def attend_backward(
    rows: Jobs,
    clusters: Tensor,
    n_clusters: int,
    jobs: Jobs,
    read: Tensor,
    grad_z: Tensor,
    *,
    cache: PairsCache,
    layer: int,
    bounds: Tensor,
    most_pairs: int,
    spec: Spec,
    scale: float,
    tf32: bool,
) -> Tensor:
    """The gradient of `read` [tokens of jobs, e] from that of the heads' z [tokens of rows, e].

    The record of `rows` continues with their place in the store and their q, k and v among `jobs` [n] each. Head rows that read the same
    k and v form a cluster: `clusters` has where each begins [n_clusters + 1] in the list of rows after it. One head reads each q input.
    """
    corrupted = cache.layers[layer]
    out = torch.empty_like(read)
    cos, sin = cache.token_rotary or (corrupted.q, corrupted.q)  # not read without rotary positions
    half = spec.d_head // 2
    if n_clusters:
        _attend_backward_kernel[(n_clusters, most_pairs)](
            read,
            grad_z,
            jobs.record,
            rows.record,
            clusters,
            corrupted.q,
            corrupted.k,
            corrupted.v,
            cos,
            sin,
            bounds,
            cache.layout,
            out,
            rows.n,
            n_clusters,
            bounds.shape[1],
            cache.n_pairs,
            cache.n_positions,
            scale,
            half=half,
            queries=spec.n_heads // spec.n_kv_heads,
            rotary=cache.token_rotary is not None,
            block_t=max(16, triton.next_power_of_2(cache.n_positions)),
            block_q=16,
            block_h=max(16, triton.next_power_of_2(half)),
            precision="tf32" if tf32 else "ieee",
            num_warps=4 if cache.n_positions <= 32 else 8,
        )
    return out


if triton is not None:
    from mechrl.engine.kernels import _rotated

    @triton.jit(do_not_specialize=["n_rows", "first_row", "width"], do_not_specialize_on_alignment=["begin"])
    def _gather_kernel(
        store,  # [.., d] the rows
        streams,  # [.., d] the streams' gradients
        begin,  # the rows' record
        start,  # [all rows] int64
        end,  # [all rows] int64
        stream,  # [edges] int64
        weight,  # [edges]
        pair_of_token,  # [tokens of all groups] int64
        bounds,  # [2, groups + 1] int64
        per_token,  # [edges, width]
        out,  # [tokens of rows, d]
        n_rows,
        first_row,
        width,
        d: tl.constexpr,
        sums: tl.constexpr,
        block_d: tl.constexpr,
    ):
        # rows of the same token run consecutively, because they read many of the same streams
        row, token = tl.program_id(0) % n_rows, tl.program_id(0) // n_rows
        at = tl.load(begin + row) + token
        if at >= tl.load(begin + row + 1):
            return
        g = tl.load(begin + n_rows + 1 + row)
        code = tl.load(begin + 3 * n_rows + 1 + row)
        column = tl.arange(0, block_d)
        inside = column < d
        # of a row at all positions, a stream of prediction positions reads only these tokens
        pair = tl.load(pair_of_token + tl.load(bounds + g) + token, mask=code % 2 == 0, other=0)
        pair = tl.where(code % 2 == 1, token, pair)
        x = tl.load(store + (code // 2 + token) * d + column, mask=inside, other=0.0)
        total = tl.zeros((block_d,), dtype=tl.float32)
        for e in range(tl.load(start + first_row + row), tl.load(end + first_row + row)):
            reader = tl.load(stream + e)
            place = tl.where(reader % 2 == 1, pair, token)
            grad = tl.load(
                streams + (reader // 2 + place) * d + column, mask=inside & (place >= 0), other=0.0
            )
            tl.store(per_token + e * width + token, tl.sum(x * grad, 0))
            if sums:
                total += tl.load(weight + e) * grad
        if sums:
            tl.store(out + at * d + column, total, mask=inside)

    @triton.jit(do_not_specialize_on_alignment=["scale"])
    def _norm_backward_kernel(
        x,  # [tokens, d] normalised streams; becomes the gradient of the streams
        scale,  # [tokens]
        grad,  # [tokens, d] of x
        d: tl.constexpr,
        centre: tl.constexpr,
        block_d: tl.constexpr,
    ):
        # x̂ = (x − μ)/σ: dx = (dx̂ − mean dx̂ − x̂ · mean(x̂ dx̂)) / σ; a norm that does not centre has neither μ nor mean dx̂
        token = tl.program_id(0).to(tl.int64)
        column = tl.arange(0, block_d)
        inside = column < d
        at = token * d + column
        normal = tl.load(x + at, mask=inside, other=0.0)
        g = tl.load(grad + at, mask=inside, other=0.0)
        result = g - normal * (tl.sum(normal * g, 0) / d)
        if centre:
            result -= tl.sum(g, 0) / d
        tl.store(x + at, result * tl.load(scale + token), mask=inside)

    @triton.jit
    def _store_turned_back(
        base, left, right, cos, sin, at, token, c, inside, half: tl.constexpr, rotary: tl.constexpr
    ):
        """The gradient before rotation from both halves of that after it, stored at base + at · 2 half."""
        if rotary:
            co = tl.load(cos + token * half + c, mask=inside, other=0.0)
            si = tl.load(sin + token * half + c, mask=inside, other=0.0)
            left, right = left * co + right * si, right * co - left * si
        tl.store(base + at * (2 * half) + c, left, mask=inside)
        tl.store(base + at * (2 * half) + half + c, right, mask=inside)

    @triton.jit(
        do_not_specialize=["n_rows", "n_clusters"],
        do_not_specialize_on_alignment=["begin", "row_begin", "clusters"],
    )
    def _attend_backward_kernel(
        read,  # [tokens, e] q, k and v of the jobs, not yet rotated
        grad_z,  # [tokens of rows, e]
        begin,  # the jobs' record
        row_begin,  # the rows'
        clusters,
        corrupted_q,  # [H, B, T, e], rotated
        corrupted_k,  # [G, B, T, e], rotated
        corrupted_v,  # [G, B, T, e]
        cos,  # [N, e / 2]
        sin,
        bounds,  # [2, groups + 1] int64
        layout,  # [B, 3] int64: first active position, number of positions, first active token
        out,  # [tokens, e] the gradient of read
        n_rows,
        n_clusters,
        n_bounds,
        n_pairs,
        n_positions,
        scale,
        half: tl.constexpr,
        queries: tl.constexpr,
        rotary: tl.constexpr,
        block_t: tl.constexpr,
        block_q: tl.constexpr,  # queries at once
        block_h: tl.constexpr,
        precision: tl.constexpr,
    ):
        cluster = tl.program_id(0)
        member, end = tl.load(clusters + cluster), tl.load(clusters + cluster + 1)
        of_members = clusters + n_clusters + 1
        one = tl.load(of_members + member)  # group, KV head, k and v are the same for all
        g = tl.load(row_begin + n_rows + 1 + one)
        first_token, first_pair = tl.load(bounds + g), tl.load(bounds + n_bounds + g)
        pair = first_pair + tl.program_id(1)
        if pair >= tl.load(bounds + n_bounds + g + 1):
            return
        of_one = row_begin + 2 * n_rows + 1 + one
        kv = tl.load(of_one) // queries
        kj, vj = tl.load(of_one + 3 * n_rows), tl.load(of_one + 4 * n_rows)
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
        ok, ok_active = (t < length)[:, None] & (c < half), active & (c < half)

        in_kv = ((kv * n_pairs + pair) * n_positions + t)[:, None]
        k_left = tl.load(corrupted_k + in_kv * e + c, mask=ok, other=0.0)
        k_right = tl.load(corrupted_k + in_kv * e + half + c, mask=ok, other=0.0)
        at_k = own
        if kj >= 0:
            at_k = tl.load(begin + kj) + own
            left, right = _rotated(read, cos, sin, at_k, token, c, ok_active, half, rotary)
            k_left, k_right = tl.where(active, left, k_left), tl.where(active, right, k_right)
        v_left = tl.load(corrupted_v + in_kv * e + c, mask=ok, other=0.0)
        v_right = tl.load(corrupted_v + in_kv * e + half + c, mask=ok, other=0.0)
        at_v = own
        if vj >= 0:
            at_v = tl.load(begin + vj) + own
            v_left = tl.where(active, tl.load(read + at_v * e + c, mask=ok_active, other=0.0), v_left)
            v_right = tl.where(
                active, tl.load(read + at_v * e + half + c, mask=ok_active, other=0.0), v_right
            )

        dk_left = tl.zeros((block_t, block_h), dtype=tl.float32)
        dk_right = tl.zeros((block_t, block_h), dtype=tl.float32)
        dv_left = tl.zeros((block_t, block_h), dtype=tl.float32)
        dv_right = tl.zeros((block_t, block_h), dtype=tl.float32)
        for i in range(member, end):
            row = tl.load(of_members + i)
            of_row = row_begin + 2 * n_rows + 1 + row
            h, code, qj = tl.load(of_row), tl.load(of_row + n_rows), tl.load(of_row + 2 * n_rows)
            # in a row of prediction positions, other queries have no gradient
            last = code % 2 == 1
            first_query = tl.where(last, length - 1, first)
            for begin_query in range(first_query // block_q * block_q, length, block_q):
                s = begin_query + tl.arange(0, block_q)
                ok_query = ((s >= first_query) & (s < length))[:, None] & (c < half)
                token_q = (start + s - first)[:, None]
                in_row = tl.where(last, pair - first_pair, token_q - first_token)
                at_row = (tl.load(row_begin + row) + in_row) * e
                dz_left = tl.load(grad_z + at_row + c, mask=ok_query, other=0.0)
                dz_right = tl.load(grad_z + at_row + half + c, mask=ok_query, other=0.0)
                at_q = in_row
                if qj >= 0:
                    at_q = tl.load(begin + qj) + in_row
                    q_left, q_right = _rotated(read, cos, sin, at_q, token_q, c, ok_query, half, rotary)
                else:
                    in_q = ((h * n_pairs + pair) * n_positions + s)[:, None] * e
                    q_left = tl.load(corrupted_q + in_q + c, mask=ok_query, other=0.0)
                    q_right = tl.load(corrupted_q + in_q + half + c, mask=ok_query, other=0.0)
                score = tl.dot(q_left, tl.trans(k_left), input_precision=precision)
                score += tl.dot(q_right, tl.trans(k_right), input_precision=precision)
                visible = (s[:, None] >= t[None, :]) & (t < length)[None, :]
                score = tl.where(visible, score * scale, float("-inf"))
                p = tl.exp(score - tl.max(score, 1)[:, None])
                p = p / tl.sum(p, 1)[:, None]
                # dv = pᵀ dz; dp = dz vᵀ; ds = p (dp − Σ p dp); dq = ds k, dk = dsᵀ q
                p_t = tl.trans(p)
                dv_left += tl.dot(p_t, dz_left, input_precision=precision)
                dv_right += tl.dot(p_t, dz_right, input_precision=precision)
                dp = tl.dot(dz_left, tl.trans(v_left), input_precision=precision)
                dp += tl.dot(dz_right, tl.trans(v_right), input_precision=precision)
                ds = p * (dp - tl.sum(p * dp, 1)[:, None]) * scale
                ds_t = tl.trans(ds)
                dk_left += tl.dot(ds_t, q_left, input_precision=precision)
                dk_right += tl.dot(ds_t, q_right, input_precision=precision)
                if qj >= 0:
                    dq_left = tl.dot(ds, k_left, input_precision=precision)
                    dq_right = tl.dot(ds, k_right, input_precision=precision)
                    _store_turned_back(
                        out, dq_left, dq_right, cos, sin, at_q, token_q, c, ok_query, half, rotary
                    )
        if kj >= 0:
            _store_turned_back(out, dk_left, dk_right, cos, sin, at_k, token, c, ok_active, half, rotary)
        if vj >= 0:
            tl.store(out + at_v * e + c, dv_left, mask=ok_active)
            tl.store(out + at_v * e + half + c, dv_right, mask=ok_active)
