"""A plan run by the fused kernels of a CUDA device, for circuits of one batch of pairs or of many (*groups*) at once.

Rows, streams and everything else per token are stored back to back in flat tensors [tokens, ..]. A job of group g has the active tokens
of g's pairs, or one token per pair if only the prediction position is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor

from mechrl.engine import kernels
from mechrl.engine.kernels import Jobs
from mechrl.engine.pairs_cache import PairsCache
from mechrl.engine.plan import Heads, Plan, Stage
from mechrl.models.base import Model


class RunContext:
    """Shared by all runs on the same pairs: the weights that read the stream, the pairs' cache, group offsets, working memory."""

    def __init__(self, model: Model, cache: PairsCache, bounds: np.ndarray, tf32: bool, half: bool) -> None:
        """`bounds` [2, groups + 1]: the offsets of each group's active tokens and pairs in the cache.

        half: rows, normalised streams and weights are float16, with about TF32's precision and half the traffic; sums and the corrupted run
        are float32.
        """
        self.model, self.cache, self.tf32 = model, cache, tf32
        self.dtype = torch.float16 if half else model.dtype
        reduced = model.to(dtype=torch.float16) if half else model
        self.attention, self.mlp = reduced.attention, reduced.mlp
        self.bounds, self.sizes = torch.from_numpy(bounds).to(model.device), np.diff(bounds)
        self.longest = self.sizes.max(1).tolist()
        self.readers = [kernels.readers(attention) for attention in self.attention]
        self._rooms: dict[str, Tensor] = {}

    @staticmethod
    def of(model: Model, cache: PairsCache, tf32: bool, half: bool) -> RunContext:
        """A context with a single group: all pairs."""
        return RunContext(model, cache, np.array([[0, cache.n_tokens], [0, cache.n_pairs]]), tf32, half)

    @cached_property
    def for_gradients(self) -> RunContext:
        """For gradients, rows and streams are float32; with `half`, the MLPs (most of the arithmetic) stay float16."""
        if self.dtype == self.model.dtype:
            return self
        first = np.zeros((2, 1), dtype=np.int64)
        bounds = np.concatenate([first, np.cumsum(self.sizes, axis=1)], axis=1)
        context = RunContext(self.model, self.cache, bounds, self.tf32, half=False)
        context.mlp = self.mlp
        return context

    @cached_property
    def transposed(self) -> list[tuple[Tensor, Tensor]]:
        """Per layer W_Oᵀ [H, d, e] and the transposed reading weights [H + 2 G, e, d], for the backward pass."""
        layers = zip(self.attention, self.readers, strict=True)
        return [
            (a.W_o.transpose(1, 2).contiguous(), weight.transpose(1, 2).contiguous())
            for a, (weight, _) in layers
        ]

    @cached_property
    def pair_of_token(self) -> Tensor:
        """[active tokens] the pair, within its group, whose prediction position the token is; -1 for other tokens."""
        pair_of_token = torch.full((self.cache.n_tokens,), -1, device=self.bounds.device)
        pair_of_token[self.cache.last_token] = torch.from_numpy(
            np.concatenate([np.arange(n) for n in self.sizes[1]])
        ).to(pair_of_token.device)
        return pair_of_token

    def room(self, name: str, n: int) -> Tensor:
        """A buffer [n, d], reused by the next run."""
        if name not in self._rooms or len(self._rooms[name]) < n:
            self._rooms.pop(name, None)  # free the old one first
            self._rooms[name] = self.cache.input_difference.new_empty(
                n, self.model.spec.d_model, dtype=self.dtype
            )
        return self._rooms[name][:n]


class FusedRun:
    """One execution of a plan. `flat` [tokens, d] is the store: rows at all active tokens, then rows at prediction positions."""

    def __init__(self, context: RunContext, plan: Plan) -> None:
        self.context, self.plan = context, plan
        self.full_begin = first_tokens(context.sizes[0][plan.full_group])
        self.last_begin = first_tokens(context.sizes[1][plan.last_group])
        self.n_full = int(self.full_begin[-1])
        self.pools = [pool for stage in plan.stages for pool in (stage.full, stage.last)]
        self.flat = context.room("rows", self.n_full + int(self.last_begin[-1]))
        with Upload(plan, context.model.device) as upload:
            self._send(upload)

    def _send(self, upload: Uploader) -> None:
        plan = self.plan
        slot = np.concatenate([np.zeros(0, dtype=np.int64), *(pool.slot for pool in self.pools)])
        is_last = np.concatenate([np.zeros(0, dtype=bool), *(pool.slot_is_last for pool in self.pools)])
        self.codes = self.code(slot, is_last)  # [edges] location of each summed row in the store
        self.output = upload([plan.output + 1])
        self.place = upload([self.codes])
        first_edge = np.cumsum([0, *(len(pool.slot) for pool in self.pools)]).tolist()
        self.stages = [
            StageOnDevice(self, s, first_edge[2 * i], first_edge[2 * i + 1], upload)
            for i, s in enumerate(plan.stages)
        ]

    def code(self, slot: np.ndarray, is_last: np.ndarray | bool) -> np.ndarray:
        """2 · (first token of a row in the store), plus 1 for a row of prediction positions."""
        # slots of the other store are looked up too, but not used
        full, last = self.full_begin.take(slot, mode="clip"), self.last_begin.take(slot, mode="clip")
        return 2 * np.where(is_last, self.n_full + last, full) + is_last

    def fill(self, inputs: Tensor) -> None:
        """Computes all rows, stage by stage, from the rows `inputs` [tokens, d]."""
        self.flat[: len(inputs)] = inputs
        for stage in self.stages:
            if stage.kind == "mlp":
                self._mlp(stage)
            elif stage.kind == "attention":
                self._attention(stage)

    def forward(self, inputs: Tensor) -> Tensor:
        """Fills the store; returns the normalised last streams [pairs of all outputs, d]."""
        self.fill(inputs)
        resid = self.context.cache.resid_final
        return self._normal(self.stages[-1], resid, resid)

    def _normal(self, stage: StageOnDevice, resid: Tensor, resid_last: Tensor) -> Tensor:
        """The normalised streams of a stage [tokens of the full pool's jobs, then those of the last pool's; d]."""
        like = resid if stage.kind == "logits" else self.flat  # never in half precision
        x = like.new_empty(stage.n_tokens, self.flat.shape[1])
        self._mix(stage, resid, resid_last, x)
        return x

    def _mix(
        self,
        stage: StageOnDevice,
        resid: Tensor,
        resid_last: Tensor,
        x: Tensor,
        weight: Tensor | None = None,
        scale: Tensor | None = None,
    ) -> None:
        context, n = self.context, stage.full.n_tokens
        for jobs, of, last_token, part in (
            (stage.full, resid, None, slice(n)),
            (stage.last, resid_last, context.cache.last_token, slice(n, None)),
        ):
            to = None if scale is None else scale[part]
            kernels.mix(
                jobs,
                self.flat,
                self.place,
                of,
                last_token,
                context.bounds,
                context.model.spec,
                x[part],
                weight,
                to,
            )

    def _mlp(self, stage: StageOnDevice) -> None:
        """One run of the MLP for both pools, to save launches."""
        layer, bounds, n = self.context.cache.layers[stage.layer], self.context.bounds, stage.full.n_tokens
        x = self._normal(stage, layer.resid_mlp, layer.last.resid_mlp)
        x = self._mlp_of(stage, x)
        kernels.subtract(stage.full, x[:n], layer.mlp, bounds[0], self.flat[stage.full_at :])
        kernels.subtract(stage.last, x[n:], layer.last.mlp, bounds[1], self.flat[stage.last_at :])

    def _mlp_of(self, stage: StageOnDevice, x: Tensor) -> Tensor:
        return self.context.mlp[stage.layer](x, out=x)

    def _attention(self, stage: StageOnDevice) -> None:
        context, spec = self.context, self.context.model.spec
        weights = context.attention[stage.layer]
        read = self._read(stage)
        for heads, at, last in (
            (stage.heads_full, stage.full_at, False),
            (stage.heads_last, stage.last_at, True),
        ):
            z = kernels.attend(
                heads,
                stage.full,
                stage.last,
                read,
                n_q=stage.n_q,
                cache=context.cache,
                layer=stage.layer,
                bounds=context.bounds,
                most_pairs=context.longest[1],
                last=last,
                spec=spec,
                scale=weights.scale,
                tf32=context.tf32,
            )
            kernels.project(heads, z, weights.W_o, None, self.flat[at : at + len(z)], context.tf32)

    def _read(self, stage: StageOnDevice) -> Tensor:
        """[tokens, e] q, k and v of every job of an attention stage, before rotation."""
        context = self.context
        layer = context.cache.layers[stage.layer]
        x = self._normal(stage, layer.resid_attention, layer.last.resid_attention)
        read = x.new_empty(len(x), context.model.spec.d_head)
        return kernels.project(stage.jobs, x, *context.readers[stage.layer], read, context.tf32)


Uploader = Callable[[list[np.ndarray]], Tensor]


class StageOnDevice:
    """A stage's jobs and heads."""

    def __init__(
        self, run: FusedRun, stage: Stage, first_edge: int, first_last_edge: int, upload: Uploader
    ) -> None:
        context = run.context
        self.kind, self.layer = stage.kind, stage.layer
        self.full = make_jobs(
            context, stage.full.group, False, [stage.full.receiver, stage.full.start + first_edge], upload
        )
        self.last = make_jobs(
            context, stage.last.group, True, [stage.last.receiver, stage.last.start + first_last_edge], upload
        )
        self.n_tokens = self.full.n_tokens + self.last.n_tokens
        self.full_at = int(run.full_begin[stage.first_full_slot])  # where this stage writes its rows
        self.last_at = run.n_full + int(run.last_begin[stage.first_last_slot])
        if self.kind == "attention":
            spec = context.model.spec
            n_q, n_qk = np.searchsorted(
                stage.full.receiver, [spec.n_heads, spec.n_heads + spec.n_kv_heads]
            ).tolist()
            self.n_q, self.n_qk = n_q, n_qk
            receiver = np.concatenate([stage.full.receiver, stage.last.receiver])
            self.jobs = both(context, stage.full.group, stage.last.group, [receiver], upload)
            self.heads_full = self._heads(context, stage.heads_full, False, upload)
            self.heads_last = self._heads(context, stage.heads_last, True, upload)

    def _heads(self, context: RunContext, heads: Heads, last: bool, upload: Uploader) -> Jobs:
        return make_jobs(context, heads.group, last, [heads.head, heads.q, *self.kv(heads)], upload)

    def kv(self, heads: Heads) -> tuple[np.ndarray, np.ndarray]:
        """The k and v jobs of head rows, counted within the full pool."""
        return np.where(heads.k >= 0, heads.k + self.n_q, -1), np.where(heads.v >= 0, heads.v + self.n_qk, -1)


def make_jobs(
    context: RunContext, group: np.ndarray, last: bool, rest: list[np.ndarray], upload: Uploader
) -> Jobs:
    begin = first_tokens(context.sizes[int(last)][group])
    return Jobs(len(group), int(begin[-1]), context.longest[int(last)], upload([begin, group, *rest]))


def both(
    context: RunContext, full: np.ndarray, last: np.ndarray, rest: list[np.ndarray], upload: Uploader
) -> Jobs:
    """Jobs, or rows, at all positions followed by those at prediction positions; their groups are `full` and `last`."""
    begin = first_tokens(np.concatenate([context.sizes[0][full], context.sizes[1][last]]))
    group = np.concatenate([full, last])
    return Jobs(
        len(group), int(begin[-1]), context.longest[0 if len(full) else 1], upload([begin, group, *rest])
    )


def first_tokens(sizes: np.ndarray) -> np.ndarray:
    """[n + 1] the offsets of n blocks of these sizes; the last entry is the end."""
    begin = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=begin[1:])
    return begin


class Upload:
    """Copies integer arrays to the device in one transfer; on a GPU, separate copies would each stall the queue.

    `upload(arrays)` returns their device tensors at once; these are filled when the `with` block ends.
    """

    def __init__(self, plan: Plan, device: torch.device) -> None:
        pools = [pool for stage in plan.stages for pool in (stage.full, stage.last)]
        n_edges, n_jobs = sum(len(pool.slot) for pool in pools), sum(map(len, pools))
        n_rows = plan.n_full_slots + plan.n_last_slots
        # an upper bound: some arrays per circuit, edge, job and row, and their ends
        size = 8 * plan.n_circuits + 4 * n_edges + 7 * n_jobs + 16 * n_rows + 16 * len(plan.stages) + 16
        self.host = torch.empty(size, dtype=torch.int64, pin_memory=device.type == "cuda")
        self.array = self.host.numpy()
        self.there = torch.empty(size, dtype=torch.int64, device=device)
        self.used = 0

    def __enter__(self) -> Self:
        return self

    def __call__(self, arrays: list[np.ndarray]) -> Tensor:
        first, self.used = self.used, self.used + sum(map(len, arrays))
        np.concatenate(arrays, out=self.array[first : self.used])
        return self.there[first : self.used]

    def __exit__(self, *_: object) -> None:
        self.there[: self.used].copy_(self.host[: self.used], non_blocking=True)
