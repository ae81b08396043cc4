"""The policy's expensive operations, without a [states, K, H] tensor: Triton on a CUDA device, chunked torch elsewhere.

States come in groups of equal size, [G, U]. In training there is one group per behaviour, padded; only its first `count[g]` states are
real. In acting there is one group per state. `task` [G] is the table that a group reads.

    pool      sum and elementwise maximum of the table rows that a state consists of
    picks     log-probability of a pick and entropy of its distribution, from scores w · relu(first_k + shift_u)

Table entries are not negative; the last row is zero and used as padding. Every sum has a fixed order, except in the
maximum's gradient: there torch's scatter_add_ adds the winners' shares, on CUDA in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without CUDA
    triton = None

_CHUNK = 2**18  # numbers in one [states, K, H] block of the torch versions: about what a core's cache holds
_PROGRAMS = 1024  # enough to keep a GPU busy


def available(like: Tensor) -> bool:
    return triton is not None and like.is_cuda and like.dtype == torch.float32


# ---- pooling ------------------------------------------------------------------------------------------------------------


def pool(table: Tensor, rows: Tensor, task: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sum, maximum and the maximum's row, each [G, U, H], of the rows [G, U, I] of table [T, R, H]. For a maximum of 0 the row may be any:
    only the padding row is 0."""
    return (pool_triton if available(table) else pool_torch)(table, rows, task, count)


class SumAndMax(torch.autograd.Function):
    """Sum and maximum with a gradient into the table; group g reads table g."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Tensor, task: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        total, top, place = pool(table, rows, task, count)
        ctx.save_for_backward(rows, place)
        ctx.R = table.shape[1]
        return total, top

    @staticmethod
    def backward(ctx: Any, d_total: Tensor, d_top: Tensor) -> tuple[Tensor, None, None, None]:
        rows, place = ctx.saved_tensors
        # wrong for the last row, which has no gradient
        bag = d_total.new_zeros(*rows.shape[:2], ctx.R).scatter_(2, rows, 1.0)
        return (bag.mT @ d_total).scatter_add_(1, place, d_top), None, None, None


def pool_torch(table: Tensor, rows: Tensor, task: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Finding a maximum's index is slow, so first find its block of 64 items, then its index there."""
    (_, R, H), (G, U, n_items) = table.shape, rows.shape
    rows = nn.functional.pad(rows, (0, -n_items % 64), value=R - 1)
    total, top = table.new_zeros(G, U, H), table.new_zeros(G, U, H)
    place = torch.zeros(G, U, H, dtype=torch.int64, device=table.device)
    step = max(1, _CHUNK // (rows.shape[2] * H))
    found, unit = table.new_empty(step * rows.shape[2], H), torch.arange(H, device=table.device)[:, None]
    for t, g, u in _by_table(task, count, U, step):
        these = rows[g, u].unflatten(1, (-1, 64))  # [n, blocks, 64]
        values = torch.index_select(table[t], 0, these.flatten(), out=found[: these.numel()]).view(
            *these.shape, H
        )
        top[g, u], block = values.amax(2).max(1)  # [n, H]
        candidates = these.gather(1, block[..., None].expand(-1, -1, 64))  # [n, H, 64]
        winner = table[t][candidates, unit].argmax(2, keepdim=True)
        place[g, u] = candidates.gather(2, winner)[..., 0]
        total[g, u] = nn.functional.embedding_bag(these.flatten(1), table[t], mode="sum")
    return total, top, place


def _by_table(task: Tensor, count: Tensor, U: int, step: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """A table and the indices (g, u) of at most `step` states that read it, until all states are done."""
    wanted = torch.arange(U, device=count.device) < count[:, None]
    for t in task.unique().tolist():
        for places in (wanted & (task == t)[:, None]).nonzero().split(step):
            yield t, places[:, 0], places[:, 1]


def pool_triton(table: Tensor, rows: Tensor, task: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    (G, U, n_items), (_, R, H) = rows.shape, table.shape
    block_u = min(16, triton.next_power_of_2(U))
    block_h = min(128, triton.next_power_of_2(H))
    blocks = G * triton.cdiv(U, block_u)
    chunks = max(1, min(16, _PROGRAMS // blocks))
    per_chunk = triton.cdiv(triton.cdiv(n_items, chunks), 16) * 16
    chunks = triton.cdiv(n_items, per_chunk)
    total = table.new_empty(chunks, G, U, H)
    top, place = torch.empty_like(total), torch.empty(total.shape, dtype=torch.int64, device=table.device)
    _pool_kernel[(blocks, triton.cdiv(H, block_h), chunks)](
        *(table, rows, task, count, total, top, place, G, U, n_items, R, per_chunk),
        H=H,
        block_u=block_u,
        block_i=16 // block_u,
        block_h=block_h,
        num_warps=4,
    )
    if chunks == 1:
        return total[0], top[0], place[0]
    best, chunk = top.max(0)
    return total.sum(0), best, place.gather(0, chunk[None])[0]


# ---- picking ------------------------------------------------------------------------------------------------------------


def scores(first: Tensor, shift: Tensor, weight: Tensor, task: Tensor, count: Tensor) -> Tensor:
    """[G, U, K] Σ_h weight[g, h] relu(first[t, h, k] + shift[g, u, h])"""
    return (scores_triton if available(first) else scores_torch)(first, shift, weight, task, count)


class Picks(torch.autograd.Function):
    """Log-probability [G, U] of the picks [G, U] among the alive edges, and entropy [G, U] of the distributions.

    With p = softmax(s): ∂ log p_pick / ∂s = 1_pick − p and ∂ entropy / ∂s = −p (log p + entropy). With S = 1[first + shift > 0] ∂s summed
    over states or over edges, the gradients of `first` and `shift` are S · weight, and ∂weight = Σ first · S_k + Σ shift · S_u."""

    @staticmethod
    def forward(
        ctx: Any,
        first: Tensor,
        shift: Tensor,
        weight: Tensor,
        alive: Tensor,
        pick: Tensor,
        task: Tensor,
        count: Tensor,
    ) -> tuple[Tensor, Tensor]:
        log_probs = scores(first, shift, weight, task, count).masked_fill_(~alive, -torch.inf).log_softmax(-1)
        entropy = torch.special.entr(log_probs.exp()).sum(-1)
        ctx.save_for_backward(first, shift, weight, log_probs, entropy, pick, count)
        return log_probs.gather(2, pick[..., None])[..., 0], entropy

    @staticmethod
    def backward(ctx: Any, d_log_prob: Tensor, d_entropy: Tensor) -> tuple[Tensor | None, ...]:
        first, shift, weight, log_probs, entropy, pick, count = ctx.saved_tensors
        p = log_probs.exp()
        d_score = (
            torch.special.entr(p) * d_entropy[..., None] - p * (d_log_prob + d_entropy * entropy)[..., None]
        )
        d_score.scatter_add_(2, pick[..., None], d_log_prob[..., None])
        backward = scores_backward_triton if available(first) else scores_backward_torch
        of_edges, of_states = backward(d_score, first, shift, count)
        d_weight = (first * of_edges).sum(2) + (shift * of_states).sum(1)
        return of_edges * weight[..., None], of_states * weight[:, None], d_weight, None, None, None, None


def scores_torch(first: Tensor, shift: Tensor, weight: Tensor, task: Tensor, count: Tensor) -> Tensor:
    (G, U, H), K = shift.shape, first.shape[2]
    result = first.new_zeros(G, U, K)
    step = max(1, _CHUNK // (K * H))
    hidden = first.new_empty(step, H, K)
    for t, g, u in _by_table(task, count, U, step):
        torch.add(first[t], shift[g, u, :, None], out=hidden[: len(g)]).relu_()
        result[g, u] = (weight[g, None] @ hidden[: len(g)])[:, 0]
    return result


def scores_backward_torch(
    d_score: Tensor, first: Tensor, shift: Tensor, count: Tensor
) -> tuple[Tensor, Tensor]:
    """Σ_u [G, H, K] and Σ_k [G, U, H] of d_score where the hidden unit is active; group g reads table g."""
    H, K = first.shape[1:]
    of_edges, of_states = torch.zeros_like(first), torch.zeros_like(shift)
    step = max(1, _CHUNK // (K * H))
    on = first.new_empty(step, H, K)
    for g in range(len(first)):
        for u in range(0, int(count[g]), step):
            here = slice(u, min(u + step, int(count[g])))
            part = torch.gt(first[g], -shift[g, here, :, None], out=on[: here.stop - u])  # 1 or 0
            d = d_score[g, here]
            of_states[g, here] = (part @ d[..., None])[..., 0]
            of_edges[g] += part.mul_(d[:, None]).sum(0)
    return of_edges, of_states


def scores_triton(first: Tensor, shift: Tensor, weight: Tensor, task: Tensor, count: Tensor) -> Tensor:
    (G, U, H), K = shift.shape, first.shape[2]
    block_u = min(32, triton.next_power_of_2(U))
    block_k = 128
    result = first.new_empty(G, U, K)
    _scores_kernel[(G * triton.cdiv(U, block_u), triton.cdiv(K, block_k))](
        # one hidden unit at a time: transposed, the states' shares of a unit are contiguous
        *(
            first.contiguous(),
            shift.mT.contiguous(),
            weight,
            task,
            count,
            result,
            U,
            K,
            weight.stride(0),
            weight.stride(1),
        ),
        H=H,
        unroll=4 if H % 4 == 0 else 1,
        block_u=block_u,
        block_k=block_k,
        num_warps=4,
    )
    return result


def scores_backward_triton(
    d_score: Tensor, first: Tensor, shift: Tensor, count: Tensor
) -> tuple[Tensor, Tensor]:
    (G, U, H), K = shift.shape, first.shape[2]
    first, shift, d_score = first.contiguous(), shift.contiguous(), d_score.contiguous()
    of_edges = torch.empty_like(first)
    block_k, block_h = 128, min(32, triton.next_power_of_2(H))
    _of_edges_kernel[(G * triton.cdiv(K, block_k), triton.cdiv(H, block_h))](
        *(d_score, first, shift, count, of_edges, U, K),
        H=H,
        unroll=4,
        block_h=block_h,
        block_k=block_k,
        num_warps=4,
    )
    block_u, block_h = min(32, triton.next_power_of_2(U)), min(128, triton.next_power_of_2(H))
    blocks = G * triton.cdiv(U, block_u)
    chunks = max(1, min(16, _PROGRAMS // blocks))
    per_chunk = triton.cdiv(K, chunks)
    of_states = shift.new_empty(chunks, G, U, H)
    _of_states_kernel[(blocks, triton.cdiv(H, block_h), chunks)](
        # both are read along k; transposed copies keep the reads contiguous
        *(d_score.mT.contiguous(), first.mT.contiguous(), shift, count, of_states, G, U, K, per_chunk),
        H=H,
        unroll=4,
        block_u=block_u,
        block_h=block_h,
        num_warps=4,
    )
    return of_edges, of_states.sum(0)


# ---- PCGrad -------------------------------------------------------------------------------------------------------------


def project(gram: Tensor, order: Tensor) -> Tensor:
    """[T, T] row i: gradient i projected on the others, in the order [T, T] of its row, as coefficients of the original gradients."""
    return (project_triton if triton is not None and gram.is_cuda else project_torch)(gram, order)


def project_torch(gram: Tensor, order: Tensor) -> Tensor:
    T = len(gram)
    itself = torch.arange(T, device=gram.device)
    coefficients = torch.eye(T, dtype=gram.dtype, device=gram.device)
    for j in order.T:  # a different one for every i
        dot = (coefficients * gram[j]).sum(1)
        # a zero gradient has no negative product, so nothing is divided by zero
        conflict = (dot < 0) & (j != itself)
        coefficients[itself, j] -= torch.where(conflict, dot / gram[j, j], 0.0)
    return coefficients


def project_triton(gram: Tensor, order: Tensor) -> Tensor:
    T, result = len(gram), torch.empty_like(gram)
    _project_kernel[(1,)](
        gram.contiguous(), order.contiguous(), result, T, block=max(2, triton.next_power_of_2(T)), num_warps=4
    )
    return result


# ---- kernels ------------------------------------------------------------------------------------------------------------

if triton is not None:

    @triton.jit
    def _pool_kernel(
        table, rows, task, count, total, top, place, G, U, n_items, R, per_chunk,
        H: tl.constexpr, block_u: tl.constexpr, block_i: tl.constexpr, block_h: tl.constexpr,
    ):  # fmt: skip
        """One program: block_u states of a group, block_h units, a chunk of the items in steps of block_i."""
        n_blocks = tl.cdiv(U, block_u)
        g = tl.program_id(0) // n_blocks
        start = (tl.program_id(0) % n_blocks) * block_u
        u = start + tl.arange(0, block_u)
        h = tl.program_id(1) * block_h + tl.arange(0, block_h)
        table += tl.load(task + g).to(tl.int64) * R * H
        rows += (g.to(tl.int64) * U + u)[:, None] * n_items
        first = tl.program_id(2) * per_chunk
        # padding: nothing to do
        end = tl.where(start < tl.load(count + g), tl.minimum(first + per_chunk, n_items), first)
        sums = tl.zeros([block_u, block_i, block_h], dtype=tl.float32)
        best = tl.zeros([block_u, block_i, block_h], dtype=tl.float32)
        where = tl.full([block_u, block_i, block_h], R - 1, dtype=tl.int32)
        for step in range(first, end, 4 * block_i):
            for j in tl.static_range(4):
                i = step + j * block_i + tl.arange(0, block_i)
                row = tl.load(rows + i[None, :], mask=(u < U)[:, None] & (i < end)[None, :], other=R - 1).to(
                    tl.int32
                )
                place_of = table + row[:, :, None] * H + h[None, None, :]
                if H % block_h:
                    value = tl.load(place_of, mask=(h < H)[None, None, :], other=0.0)
                else:
                    value = tl.load(place_of)
                sums += value
                better = value > best
                best = tl.where(better, value, best)
                where = tl.where(better, row[:, :, None], where)
        highest = tl.max(best, 1)
        winner = tl.min(tl.where(best == highest[:, None, :], where, R), 1)
        out = ((tl.program_id(2) * G + g).to(tl.int64) * U + u)[:, None] * H + h[None, :]
        inside = (u < U)[:, None] & (h < H)[None, :]
        tl.store(total + out, tl.sum(sums, 1), mask=inside)
        tl.store(top + out, highest, mask=inside)
        tl.store(place + out, winner.to(tl.int64), mask=inside)

    @triton.jit
    def _scores_kernel(
        first, shift, weight, task, count, result, U, K, weight_g, weight_h,
        H: tl.constexpr, unroll: tl.constexpr, block_u: tl.constexpr, block_k: tl.constexpr,
    ):  # fmt: skip
        """One program: block_u states of a group × block_k edges, one hidden unit at a time."""
        n_blocks = tl.cdiv(U, block_u)
        g = tl.program_id(0) // n_blocks
        start = (tl.program_id(0) % n_blocks) * block_u
        u = start + tl.arange(0, block_u)
        k = tl.program_id(1) * block_k + tl.arange(0, block_k)
        first += tl.load(task + g).to(tl.int64) * H * K + k
        shift += g.to(tl.int64) * H * U + u
        end = tl.where(start < tl.load(count + g), H, 0)
        score = tl.zeros([block_u, block_k], dtype=tl.float32)
        for step in range(0, end, unroll):
            for j in tl.static_range(unroll):
                a = tl.load(first + (step + j) * K, mask=k < K, other=0.0)
                b = tl.load(shift + (step + j) * U, mask=u < U, other=0.0)
                w = tl.load(weight + g * weight_g + (step + j) * weight_h)
                score += w * tl.maximum(a[None, :] + b[:, None], 0.0)
        out = (g.to(tl.int64) * U + u)[:, None] * K + k[None, :]
        tl.store(result + out, score, mask=(u < U)[:, None] & (k < K)[None, :])

    @triton.jit
    def _of_edges_kernel(
        d_score, first, shift, count, result, U, K,
        H: tl.constexpr, unroll: tl.constexpr, block_h: tl.constexpr, block_k: tl.constexpr,
    ):  # fmt: skip
        """Σ_u: one program: block_h units × block_k edges of a group, one state at a time."""
        n_blocks = tl.cdiv(K, block_k)
        g = (tl.program_id(0) // n_blocks).to(tl.int64)
        k = (tl.program_id(0) % n_blocks) * block_k + tl.arange(0, block_k)
        h = tl.program_id(1) * block_h + tl.arange(0, block_h)
        inside = (h < H)[:, None] & (k < K)[None, :]
        tile = g * H * K + h[:, None] * K + k[None, :]
        a = tl.load(first + tile, mask=inside, other=0.0)
        d_score += g * U * K + k
        shift += g * U * H + h
        n = tl.load(count + g).to(tl.int32)
        sums = tl.zeros([block_h, block_k], dtype=tl.float32)
        for step in range(0, n, unroll):
            for j in tl.static_range(unroll):
                u = step + j
                d = tl.load(d_score + u * K, mask=(k < K) & (u < n), other=0.0)
                b = tl.load(shift + u * H, mask=(h < H) & (u < n), other=0.0)
                sums += tl.where(a + b[:, None] > 0, d[None, :], 0.0)
        tl.store(result + tile, sums, mask=inside)

    @triton.jit
    def _of_states_kernel(
        d_score, first, shift, count, result, G, U, K, per_chunk,
        H: tl.constexpr, unroll: tl.constexpr, block_u: tl.constexpr, block_h: tl.constexpr,
    ):  # fmt: skip
        """Σ_k: one program: block_u states × block_h units of a group, a chunk of the edges one at a time."""
        n_blocks = tl.cdiv(U, block_u)
        g = (tl.program_id(0) // n_blocks).to(tl.int64)
        start = (tl.program_id(0) % n_blocks) * block_u
        u = start + tl.arange(0, block_u)
        h = tl.program_id(1) * block_h + tl.arange(0, block_h)
        inside = (u < U)[:, None] & (h < H)[None, :]
        b = tl.load(shift + (g * U + u)[:, None] * H + h[None, :], mask=inside, other=0.0)
        d_score += g * K * U + u
        first += g * K * H + h
        begin = tl.program_id(2) * per_chunk
        end = tl.where(start < tl.load(count + g), tl.minimum(begin + per_chunk, K), begin)
        sums = tl.zeros([block_u, block_h], dtype=tl.float32)
        for step in range(begin, end, unroll):
            for j in tl.static_range(unroll):
                k = step + j
                d = tl.load(d_score + k.to(tl.int64) * U, mask=(u < U) & (k < end), other=0.0)
                a = tl.load(first + k * H, mask=(h < H) & (k < end), other=0.0)
                sums += tl.where(a[None, :] + b > 0, d[:, None], 0.0)
        out = ((tl.program_id(2) * G + g) * U + u)[:, None] * H + h[None, :]
        tl.store(result + out, sums, mask=inside)

    @triton.jit
    def _project_kernel(gram, order, result, T, block: tl.constexpr):
        i, c = tl.arange(0, block), tl.arange(0, block)
        coefficients = tl.where((i[:, None] == c[None, :]), 1.0, 0.0).to(tl.float64)
        for step in range(0, T):
            j = tl.load(order + i * T + step, mask=i < T, other=0).to(tl.int32)
            row = tl.load(
                gram + j[:, None] * T + c[None, :], mask=(i < T)[:, None] & (c < T)[None, :], other=0.0
            )
            square = tl.load(gram + j * T + j, mask=i < T, other=1.0)
            dot = tl.sum(coefficients * row, 1)
            conflict = (dot < 0) & (j != i)
            change = tl.where(conflict, dot / tl.where(conflict, square, 1.0), 0.0)
            coefficients -= tl.where(c[None, :] == j[:, None], change[:, None], 0.0)
        tl.store(result + i[:, None] * T + c[None, :], coefficients, mask=(i < T)[:, None] & (c < T)[None, :])
