"""The mix: every job's residual stream, `resid_corr + Σ w · row`, from the store of rows; and its gradients.

Plain tensor operations: the jobs of one circuit are a small matrix product, W [jobs, rows] @ rows [rows, tokens · d]; if hardly any row
is read twice, rows are added one by one instead. On a CUDA device one kernel does all of this (`fused.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mechrl.engine.plan import Plan, Pool


class Store:
    """The rows: a_now(u) − a_corr(u), at all N active tokens (`full`) or at the B prediction positions (`last`)."""

    def __init__(self, plan: Plan, n_tokens: int, n_pairs: int, buffer: Tensor) -> None:
        """`buffer` [at least `Store.size` of the plan, d] holds the rows; the next run may reuse it."""
        n_full, d = plan.n_full_slots * n_tokens, buffer.shape[-1]
        self.flat = buffer[: Store.size(plan, n_tokens, n_pairs)]
        self.full = self.flat[:n_full].view(plan.n_full_slots, n_tokens, d)
        self.last = self.flat[n_full:].view(plan.n_last_slots, n_pairs, d)

    @staticmethod
    def size(plan: Plan, n_tokens: int, n_pairs: int) -> int:
        return plan.n_full_slots * n_tokens + plan.n_last_slots * n_pairs


@dataclass(frozen=True)
class Block:
    """The jobs of one owner in one pool. Jobs with the same weights on the same rows are one *stream*."""

    jobs: Tensor | slice  # [j] indices in the pool
    stream: Tensor | None  # [j] stream of every job; None: one stream per job
    full_slots: Tensor | slice
    last_slots: Tensor | None
    weights: Tensor  # [streams, rows]; rows: full slots first, then last ones
    # per stream, the full slots to add, if that is cheaper than a matrix product
    sums: list[list[int]] | None
    everything: bool  # a single stream, which adds all rows so far
    job_place: np.ndarray  # [n] edge e of the block: weight of job job_place[e] ...
    row_place: np.ndarray  # [n] ... on row row_place[e]
    edge: np.ndarray  # [n] its index in the list of edges


def blocks(pool: Pool, weight: np.ndarray | None, like: Tensor) -> list[Block]:
    """Splits a pool into its owners' blocks. `weight` [edges] is the value of every planned edge, None for all ones."""
    if not len(pool):
        return []
    length = np.diff(pool.start)
    job_of_edge = np.repeat(np.arange(len(pool)), length)
    owner_of_edge = pool.owner[job_of_edge]
    owners = np.unique(pool.owner)
    if len(owners) == 1:
        parts = [np.arange(len(job_of_edge))]
    else:
        order = np.argsort(owner_of_edge, kind="stable")
        parts = np.split(order, np.searchsorted(owner_of_edge[order], owners[1:]))
    result = []
    for part in parts:
        jobs, job_place = np.unique(job_of_edge[part], return_inverse=True)
        row_key = pool.slot[part] + pool.slot_is_last[part] * (1 << 40)  # full slots sort first
        rows, row_place = np.unique(row_key, return_inverse=True)
        n_full = int(np.searchsorted(rows, 1 << 40))
        if (
            n_full == len(rows) > (rows[-1] + 1 - rows[0]) / 2
        ):  # most of a range: reading all of it is faster than gathering
            row_place, rows = rows[row_place] - rows[0], np.arange(rows[0], rows[-1] + 1)
            n_full = len(rows)
        dense = np.zeros((len(jobs), len(rows)), dtype=np.float64)
        dense[job_place, row_place] = 1.0 if weight is None else weight[pool.edge[part]]
        stream = None
        if len(jobs) > 1:
            streams, inverse = np.unique(dense, axis=0, return_inverse=True)
            if len(streams) < len(jobs):
                dense, stream = streams, inverse.reshape(-1)
        sums = None
        if weight is None and n_full == len(rows) and dense.sum() <= 2 * dense.any(0).sum():
            sums = [rows[row.nonzero()[0]].tolist() for row in dense]
        result.append(
            Block(
                jobs=slice(None) if len(jobs) == len(pool) else _index(jobs, like),
                stream=None if stream is None else _index(stream, like),
                full_slots=_range_or_index(rows[:n_full], like),
                last_slots=None if n_full == len(rows) else _index(rows[n_full:] - (1 << 40), like),
                weights=torch.from_numpy(dense).to(like),
                sums=sums,
                everything=len(dense) == 1
                and rows[0] == 0
                and rows[-1] + 1 == len(rows) == n_full
                and bool((dense == 1).all()),
                job_place=job_place,
                row_place=row_place,
                edge=pool.edge[part],
            )
        )
    return result


def mix(
    block: Block,
    store: Store,
    resid: Tensor,
    last_token: Tensor | None,
    finish: Callable[[Tensor], Tensor] = lambda x: x,
    room: Tensor | None = None,
) -> Tensor:
    """[j, tokens, d] streams of a block's jobs; `last_token` for a pool of prediction positions. `finish` is applied per stream.

    The result is in `room` [.., d], if that is given and large enough.
    """
    tokens, d = resid.shape
    n = len(block.weights)
    x = (
        resid.new_empty(n, tokens, d)
        if room is None or len(room) < n * tokens
        else room[: n * tokens].view(n, tokens, d)
    )
    if block.sums is not None and last_token is None:
        for stream, (first, *others) in zip(x, block.sums, strict=True):
            torch.add(resid, store.full[first], out=stream)
            for slot in others:
                stream += store.full[slot]
    else:
        rows = _rows(block, store, last_token)
        base = resid.reshape(1, tokens * d).expand(n, -1)
        torch.addmm(base, block.weights, rows.reshape(len(rows), -1), out=x.view(n, -1))
    x = finish(x)
    return x if block.stream is None else x[block.stream]


def mix_backward(
    block: Block,
    store: Store,
    grads: Store,
    grad: Tensor,
    last_token: Tensor | None,
    against: Store | None,
    groups: Sequence[slice] = (slice(None),),
) -> Tensor:
    """Backpropagates `grad` [j, tokens, d]: adds to the rows' gradients, `grads`, and returns those of the block's edges [groups, n].

    d/dW = grad · row, summed over the tokens of each group. With `against`, the rows are those of another run, as attribution needs.
    """
    of_store = store if against is None else against
    reference = _rows(block, of_store, last_token)
    job, row = _index(block.job_place, grad), _index(block.row_place, grad)
    wanted = [grad[:, some].flatten(1) @ reference[:, some].flatten(1).T for some in groups]  # [j, rows] each
    per_edge = torch.stack([of_group[job, row] for of_group in wanted])

    if block.stream is not None:
        grad = grad.new_zeros(len(block.weights), *grad.shape[1:]).index_add_(0, block.stream, grad)
    grad = grad.reshape(len(grad), -1)
    if isinstance(block.full_slots, slice) and block.last_slots is None and last_token is None:
        grads.full[block.full_slots].flatten(1).addmm_(block.weights.T, grad)  # a view: added in place
        return per_edge
    back = (block.weights.T @ grad).view(len(block.weights.T), -1, reference.shape[-1])  # [rows, tokens, d]
    full = back if block.last_slots is None else back[: len(back) - len(block.last_slots)]
    if block.last_slots is not None:
        grads.last.index_add_(0, block.last_slots, back[len(full) :])
    if last_token is not None:
        places = (_slots(block.full_slots, grads)[:, None] * grads.full.shape[1] + last_token).flatten()
        grads.flat.index_add_(0, places, full.reshape(-1, full.shape[-1]))
    else:
        grads.full.index_add_(0, _slots(block.full_slots, grads), full)
    return per_edge


def _rows(block: Block, store: Store, last_token: Tensor | None) -> Tensor:
    """[rows, tokens, d] the rows that a block reads."""
    if last_token is None:
        return store.full[block.full_slots]
    slots = _slots(block.full_slots, store)
    full = store.flat[slots[:, None] * store.full.shape[1] + last_token]
    return full if block.last_slots is None else torch.cat([full, store.last[block.last_slots]])


def _slots(slots: Tensor | slice, store: Store) -> Tensor:
    return (
        torch.arange(slots.start, slots.stop, device=store.flat.device) if isinstance(slots, slice) else slots
    )


def _index(array: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64)).to(like.device)


def _range_or_index(rows: np.ndarray, like: Tensor) -> Tensor | slice:
    """Contiguous rows are read in place, others gathered."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return _index(rows, like)
