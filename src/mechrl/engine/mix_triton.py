"""The mix on a CUDA device: gather, sum and normalise in one kernel.

What binds a sparse circuit's run on a GPU is memory traffic. A job that keeps n edges must read n rows and write one stream; this
kernel does just that (and the norm on the way), where a dense product would read every row for every layer.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mechrl.engine.mix import Store
from mechrl.engine.plan import Pool
from mechrl.models.base import Spec

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without CUDA: the matrix products of mix.py do the work
    triton = None

_TOKENS_PER_PROGRAM = 4


def available(like: Tensor) -> bool:
    return triton is not None and like.is_cuda and like.dtype == torch.float32


def gather_index(pool: Pool, store: Store) -> np.ndarray:
    """What the kernel reads: [J + 1] where each job's edges begin, then for every edge 2 · (first token of its row in the flat
    store), plus 1 for a row that holds prediction positions only."""
    per_full, per_last = store.full.shape[1], store.last.shape[1]
    last = store.full.shape[0] * per_full + pool.slot * per_last
    place = np.where(pool.slot_is_last, last, pool.slot * per_full) * 2 + pool.slot_is_last
    return np.concatenate([pool.start, place])


def mix_and_normalise(n_jobs: int, index: Tensor, store: Store, resid: Tensor, last_token: Tensor | None, spec: Spec) -> Tensor:
    """[J, tokens, d] normalised streams of a pool's jobs; `index` is its `gather_index` on the device."""
    n_tokens, d = resid.shape
    out = resid.new_empty(n_jobs, n_tokens, d)
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
