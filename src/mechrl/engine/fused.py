"""A plan run by the fused kernels of a CUDA device, for circuits of one batch of pairs or of many (*groups*) at once.

Rows, streams and everything else that has tokens lie one after the other in flat tensors [tokens, ..]: a job of group g has as many
tokens as the pairs of g have active ones, or as g has pairs where only the prediction position is wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import numpy as np
import torch
from torch import Tensor

from mechrl.engine import kernels
from mechrl.engine.kernels import Jobs
from mechrl.engine.pairs_cache import PairsCache
from mechrl.engine.plan import Heads, Plan, Pool, Stage
from mechrl.models.base import Model


class Ground:
    """What all runs on the same pairs share: the model's reading weights, the pairs' cache, where its groups begin, working memory."""

    def __init__(self, model: Model, cache: PairsCache, bounds: np.ndarray, tf32: bool, half: bool) -> None:
        """`bounds` [2, groups + 1]: where every group's active tokens and pairs begin in the cache.

        half: rows, normalised streams and weights have float16's ten bits, as TF32 has them in a matrix product, and half the
        traffic; sums are in float32, and so is everything of the corrupted run.
        """
        self.model, self.cache, self.tf32 = model, cache, tf32
        self.dtype = torch.float16 if half else model.dtype
        reduced = model.to(dtype=torch.float16) if half else model
        self.attention, self.mlp = reduced.attention, reduced.mlp
        self.bounds, self.sizes = torch.from_numpy(bounds).to(model.device), np.diff(bounds)
        self.longest = self.sizes.max(1).tolist()
        self.readers = [kernels.readers(attention) for attention in self.attention]
        self._buffer: Tensor | None = None

    @staticmethod
    def of(model: Model, cache: PairsCache, tf32: bool, half: bool) -> Ground:
        """One group: all pairs."""
        return Ground(model, cache, np.array([[0, cache.n_tokens], [0, cache.n_pairs]]), tf32, half)

    def room(self, n: int) -> Tensor:
        """[n, d] that the next run uses again."""
        if self._buffer is None or len(self._buffer) < n:
            self._buffer = None  # let go of the old one first
            self._buffer = self.cache.input_difference.new_empty(n, self.model.spec.d_model, dtype=self.dtype)
        return self._buffer[:n]


class FusedRun:
    """One execution of a plan. `flat` [tokens, d] is the store: rows at all active tokens, then rows at prediction positions."""

    def __init__(self, ground: Ground, plan: Plan) -> None:
        self.ground, self.plan = ground, plan
        self.full_begin = _begin(plan.full_group, ground.sizes[0])
        self.last_begin = _begin(plan.last_group, ground.sizes[1])
        self.n_full = int(self.full_begin[-1])
        self.flat = ground.room(self.n_full + int(self.last_begin[-1]))
        with Shipment(plan, ground.model.device) as ship:
            self.output = ship([plan.output + 1])
            self._stages = [_StageOnDevice(self, stage, ship) for stage in plan.stages]

    def fill(self, inputs: Tensor) -> None:
        """Computes all rows, stage by stage; `inputs` [tokens, d] are the rows at hand."""
        self.flat[: len(inputs)] = inputs
        for stage in self._stages:
            if stage.kind == "mlp":
                self._mlp(stage)
            elif stage.kind == "attention":
                self._attention(stage)

    def forward(self, inputs: Tensor) -> Tensor:
        """Fills the store; returns the normalised last streams [pairs of all outputs, d]."""
        self.fill(inputs)
        jobs, resid = self._stages[-1].last, self.ground.cache.resid_final
        return self._streams(jobs, resid, last=True, out=resid.new_empty(jobs.n_tokens, resid.shape[1]))

    def _streams(self, jobs: Jobs, resid: Tensor, last: bool, out: Tensor | None = None) -> Tensor:
        ground = self.ground
        out = self.flat.new_empty(jobs.n_tokens, self.flat.shape[1]) if out is None else out
        return kernels.mix(
            jobs, self.flat, resid, ground.cache.last_token if last else None, ground.bounds, ground.model.spec, out
        )

    def _mlp(self, stage: _StageOnDevice) -> None:
        """One run of the MLP for both pools: on a GPU the launches count."""
        layer, bounds, n = self.ground.cache.layers[stage.layer], self.ground.bounds, stage.full.n_tokens
        x = self.flat.new_empty(n + stage.last.n_tokens, self.flat.shape[1])
        self._streams(stage.full, layer.resid_mlp, False, x[:n])
        self._streams(stage.last, layer.last.resid_mlp, True, x[n:])
        self.ground.mlp[stage.layer](x, out=x)
        kernels.subtract(stage.full, x[:n], layer.mlp, bounds[0], self.flat[stage.full_at :])
        kernels.subtract(stage.last, x[n:], layer.last.mlp, bounds[1], self.flat[stage.last_at :])

    def _attention(self, stage: _StageOnDevice) -> None:
        ground, spec = self.ground, self.ground.model.spec
        layer, weights = ground.cache.layers[stage.layer], ground.attention[stage.layer]
        inputs = []
        for jobs, resid, last in ((stage.full, layer.resid_attention, False), (stage.last, layer.last.resid_attention, True)):
            x = self._streams(jobs, resid, last)
            read = x.new_empty(len(x), spec.d_head)
            inputs.append((jobs, kernels.project(jobs, x, *ground.readers[stage.layer], read, ground.tf32)))
        for heads, at, last in ((stage.heads_full, stage.full_at, False), (stage.heads_last, stage.last_at, True)):
            z = kernels.attend(
                heads,
                *inputs[0],
                *inputs[1],
                n_q=stage.n_q,
                cache=ground.cache,
                layer=stage.layer,
                bounds=ground.bounds,
                most_pairs=ground.longest[1],
                last=last,
                spec=spec,
                scale=weights.scale,
                tf32=ground.tf32,
            )
            kernels.project(heads, z, weights.W_o, None, self.flat[at : at + len(z)], ground.tf32)


Ship = Callable[[list[np.ndarray]], Tensor]


class _StageOnDevice:
    """A stage's jobs and heads."""

    def __init__(self, run: FusedRun, stage: Stage, ship: Ship) -> None:
        self.kind, self.layer = stage.kind, stage.layer
        self.full, self.last = _pool(run, stage.full, False, ship), _pool(run, stage.last, True, ship)
        self.full_at = int(run.full_begin[stage.first_full_slot])  # where the rows of this stage go
        self.last_at = run.n_full + int(run.last_begin[stage.first_last_slot])
        if self.kind == "attention":
            spec = run.ground.model.spec
            n_q, n_qk = np.searchsorted(stage.full.receiver, [spec.n_heads, spec.n_heads + spec.n_kv_heads]).tolist()
            self.n_q = n_q
            self.heads_full = _heads(run, stage.heads_full, n_q, n_qk, False, ship)
            self.heads_last = _heads(run, stage.heads_last, n_q, n_qk, True, ship)


def _pool(run: FusedRun, pool: Pool, last: bool, ship: Ship) -> Jobs:
    row = np.where(pool.slot_is_last, run.n_full + _take(run.last_begin, pool.slot), _take(run.full_begin, pool.slot))
    return _jobs(run.ground, pool.group, last, [pool.receiver, pool.start, 2 * row + pool.slot_is_last], ship)


def _heads(run: FusedRun, heads: Heads, n_q: int, n_qk: int, last: bool, ship: Ship) -> Jobs:
    k, v = np.where(heads.k >= 0, heads.k + n_q, -1), np.where(heads.v >= 0, heads.v + n_qk, -1)  # counted within the full pool
    return _jobs(run.ground, heads.group, last, [heads.head, heads.q, k, v], ship)


def _jobs(ground: Ground, group: np.ndarray, last: bool, rest: list[np.ndarray], ship: Ship) -> Jobs:
    begin = _begin(group, ground.sizes[int(last)])
    return Jobs(len(group), int(begin[-1]), ground.longest[int(last)], ship([begin, group, *rest]))


def _begin(group: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """[n + 1] where each of n things begins that are as long as their groups' `sizes`, and the end."""
    begin = np.zeros(len(group) + 1, dtype=np.int64)
    np.cumsum(sizes[group], out=begin[1:])
    return begin


def _take(begin: np.ndarray, slot: np.ndarray) -> np.ndarray:
    """Slots of the other store are looked up too, and not used."""
    return begin.take(slot, mode="clip")


class Shipment:
    """Integer arrays on their way to the device, all in one copy: on a GPU every single one would stall the queue.

    `ship(arrays)` returns their place on the device at once; the contents are there when the `with` block ends.
    """

    def __init__(self, plan: Plan, device: torch.device) -> None:
        pools = [pool for stage in plan.stages for pool in (stage.full, stage.last)]
        heads = sum(len(stage.heads_full) + len(stage.heads_last) + 2 for stage in plan.stages)
        size = plan.n_circuits + sum(len(p.slot) + 4 * len(p) + 2 for p in pools) + 6 * heads
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
