"""Gradients with respect to edge weights on a CUDA device: runs a plan forward and backward with the fused kernels.

The forward pass keeps every job's normalised stream x̂ and its 1/σ, and the MLPs' intermediate results. The backward pass takes the stages
in reverse. When it reaches a stage, all streams that read the stage's rows have their gradients, so one kernel gathers both

    d(row) = Σ_e w_e · d(stream that edge e feeds)        d/dw_e = row · d(stream that edge e feeds)

The component turns d(row) into d(x̂), the norm turns that into d(stream), which overwrites x̂.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from mechrl.engine import kernels, kernels_backward
from mechrl.engine.fused import FusedRun, RunContext, StageOnDevice, Uploader, both, first_tokens, make_jobs
from mechrl.engine.kernels import Jobs
from mechrl.engine.kernels_backward import Readers
from mechrl.engine.plan import Heads, Plan, Stage
from mechrl.models.base import Spec

_LARGEST = 64.0  # an MLP's output gradients are scaled to at most this before rounding to float16
_SMALLEST = 1e-30  # keeps the scale finite where all gradients are 0, for an MLP that only feeds cut edges


class FusedGradient(FusedRun):
    """A run of a plan without sharing, for any edge weights. `edge`: their indices in the flattened masks."""

    _reader: Tensor  # see `Readers`
    _row_of_edge: Tensor  # [edges] the index of the row that each edge carries
    _rows: Tensor  # [rows] the indices of all rows, stage by stage

    def __init__(self, context: RunContext, plan: Plan) -> None:
        super().__init__(context.for_gradients, plan)
        row_of_edge, self._order = torch.sort(self._row_of_edge, stable=True)
        self._reader = self._reader[self._order]
        self._start = torch.searchsorted(row_of_edge, self._rows)
        self._end = torch.searchsorted(row_of_edge, self._rows, right=True)

    def _send(self, upload: Uploader) -> None:
        super()._send(upload)
        plan, context = self.plan, self.context
        self.edge = np.concatenate([np.zeros(0, dtype=np.int64), *(pool.edge for pool in self.pools)])
        self.edge_there = upload([self.edge])
        begin = np.cumsum([0, *(stage.n_tokens for stage in self.stages)]).tolist()
        self.n_streams = begin[-1]
        # offset of each stage's streams
        self._part = {stage: slice(*at) for stage, at in zip(self.stages, pairwise(begin), strict=True)}
        self._reader = upload([self._streams_of_edges()])

        # all circuits of a group read the same input row; for edge gradients each has a copy
        circuit = np.arange(plan.n_circuits)
        group = plan.row_of[:, 0]
        n_inputs = int(self.full_begin[group.max(initial=0) + 1])
        owner = np.concatenate(
            [np.zeros(0, dtype=np.int64), *(np.repeat(p.owner, np.diff(p.start)) for p in self.pools)]
        )
        self._row_of_edge = upload([np.where(self.codes < 2 * n_inputs, -1 - owner, self.codes)])
        self._inputs = make_jobs(context, group, False, [circuit, self.code(group, False)], upload)
        self._of_stage = [
            _Rows(self, stage, s, upload) for stage, s in zip(self.stages, plan.stages, strict=True)
        ]
        self._rows = upload([-1 - circuit, *(rows.code for rows in self._of_stage)])

    def _streams_of_edges(self) -> np.ndarray:
        """[edges] 2 · (first token of the stream that every edge feeds), plus 1 for a stream of prediction positions."""
        parts = [np.zeros(0, dtype=np.int64)]
        for on_device, stage in zip(self.stages, self.plan.stages, strict=True):
            at = self._part[on_device].start
            for pool, last, first in ((stage.full, 0, at), (stage.last, 1, at + on_device.full.n_tokens)):
                begin = first_tokens(self.context.sizes[last][pool.group])[:-1]
                parts.append(np.repeat(2 * (first + begin) + last, np.diff(pool.start)))
        return np.concatenate(parts)

    def run(self, inputs: Tensor, weight: Tensor) -> Tensor:
        """The normalised final streams [pairs of all outputs, d] under `weight` [edges]."""
        self.flat = self.context.room("rows", len(self.flat))
        self.streams = self.context.room("streams", self.n_streams)
        self.scale = self.streams.new_empty(len(self.streams))
        self.weight = weight
        self._kept: dict[int, Tensor] = {}
        self._mlps: dict[int, tuple[Tensor, Tensor]] = {}
        return self.forward(inputs)

    def _normal(self, stage: StageOnDevice, resid: Tensor, resid_last: Tensor) -> Tensor:
        part = self._part[stage]
        self._mix(stage, resid, resid_last, self.streams[part], self.weight, self.scale[part])
        return self.streams[part]

    def _mlp_of(self, stage: StageOnDevice, x: Tensor) -> Tensor:
        mlp = self.context.mlp[stage.layer]
        with torch.enable_grad():
            x = x.detach().to(mlp.W_in.dtype).requires_grad_()
            y = mlp(x)
        self._mlps[stage.layer] = x, y
        return y.detach()

    def _read(self, stage: StageOnDevice) -> Tensor:
        self._kept[stage.layer] = super()._read(stage)
        return self._kept[stage.layer]

    def backward(self, grad_final: Tensor, against: Tensor | None = None) -> Tensor:
        """[edges] d(objective)/d(weight), from d(objective)/d(normalised final streams). Call once after each `run`.

        With `against`, the rows in row · d(stream) are taken from the store of that other run.
        """
        store = self.flat if against is None else against
        context = self.context
        readers = Readers(self._reader, self.weight[self._order], self._start, self._end)
        per_token = self.flat.new_zeros(len(self.edge), context.longest[0])
        common = readers, store, self.streams, context.pair_of_token, context.bounds, per_token
        first_row = self.plan.n_circuits + sum(rows.jobs.n for rows in self._of_stage)
        for stage, rows in zip(reversed(self.stages), reversed(self._of_stage), strict=True):
            part, grad = self._part[stage], grad_final
            if stage.kind != "logits":
                first_row -= rows.jobs.n
                of_rows = self.flat.new_empty(rows.jobs.n_tokens, self.flat.shape[1])
                kernels_backward.gather(rows.jobs, first_row, *common, of_rows)
                grad = (
                    self._mlp_back(stage, of_rows)
                    if stage.kind == "mlp"
                    else self._attention_back(stage, rows, of_rows)
                )
            kernels_backward.norm_backward(self.streams[part], self.scale[part], grad, context.model.spec)
        kernels_backward.gather(self._inputs, 0, *common, None)
        return torch.empty_like(self.weight).index_copy_(0, self._order, per_token.sum(1))

    def _mlp_back(self, stage: StageOnDevice, grad: Tensor) -> Tensor:
        x, y = self._mlps.pop(stage.layer)
        if y.dtype == grad.dtype:
            return torch.autograd.grad(y, x, grad)[0]
        scale = _LARGEST / grad.abs().amax().clamp_min(_SMALLEST)  # float16 has a narrow range
        return torch.autograd.grad(y, x, (grad * scale).to(y.dtype))[0].to(grad.dtype) / scale

    def _attention_back(self, stage: StageOnDevice, rows: _Rows, grad: Tensor) -> Tensor:
        context, spec = self.context, self.context.model.spec
        output, reading = context.transposed[stage.layer]
        grad_z = kernels.project(
            rows.jobs, grad, output, None, grad.new_empty(len(grad), spec.d_head), context.tf32
        )
        grad_read = kernels_backward.attend_backward(
            rows.jobs,
            rows.clusters,
            rows.n_clusters,
            stage.jobs,
            self._kept.pop(stage.layer),
            grad_z,
            cache=context.cache,
            layer=stage.layer,
            bounds=context.bounds,
            most_pairs=context.longest[1],
            spec=spec,
            scale=context.attention[stage.layer].scale,
            tf32=context.tf32,
        )
        return kernels.project(
            stage.jobs, grad_read, reading, None, grad.new_empty(stage.n_tokens, spec.d_model), context.tf32
        )


def gradient_bytes(spec: Spec, edges: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """[C] upper bound of the bytes per active token for gradients of circuits `masks` [C, n] over `edges`."""
    graph, (circuit, column) = spec.graph, np.nonzero(masks)
    source, receiver = graph.edge_source[edges[column]], graph.edge_receiver[edges[column]]

    def distinct(what: np.ndarray, chosen: np.ndarray | slice = slice(None)) -> np.ndarray:
        unique = np.unique(circuit[chosen] * graph.n_receivers + what[chosen])
        return np.bincount(unique // graph.n_receivers, minlength=len(masks))

    is_mlp = (receiver % graph.receivers_per_layer == graph.receivers_per_layer - 1) & (
        receiver != graph.logits
    )
    rows, streams, mlps = distinct(source) + 1, distinct(receiver), distinct(receiver, is_mlp)
    one_stage = np.maximum((graph.receivers_per_layer + spec.n_heads) * spec.d_model, 8 * spec.d_mlp)
    of_mlps = mlps * (5 * spec.d_mlp + spec.d_model)
    of_streams = streams * (spec.d_model + spec.d_head)
    total: np.ndarray = 4 * (rows * spec.d_model + of_streams + masks.sum(1) + of_mlps + one_stage)
    return total


class _Rows:
    """The rows of a stage, those at all positions first, and which heads of an attention stage share keys and values."""

    jobs: Jobs
    code: np.ndarray  # [n] their location in the store

    def __init__(self, run: FusedGradient, on_device: StageOnDevice, stage: Stage, upload: Uploader) -> None:
        full, last = (stage.full, stage.last) if stage.kind == "mlp" else (stage.heads_full, stage.heads_last)
        self.code = np.concatenate(
            [
                run.code(stage.first_full_slot + np.arange(len(full)), False),
                run.code(stage.first_last_slot + np.arange(len(last)), True),
            ]
        )
        head, rest = np.zeros_like(self.code), []
        if isinstance(full, Heads) and isinstance(last, Heads) and len(self.code):
            head = np.concatenate([full.head, last.head])
            k, v = (np.concatenate(both) for both in zip(on_device.kv(full), on_device.kv(last), strict=True))
            # circuits share nothing, so a head's q input is computed at the positions of its row
            q_last = np.where(last.q >= 0, last.q - on_device.n_q + on_device.full.n, -1)
            rest = [np.concatenate([full.q, q_last]), k, v]
            # heads of the same circuit and KV head have the same k and v; a head with neither forms a cluster of its own
            n = on_device.full.n + 1
            key = np.where((k >= 0) | (v >= 0), (k + 1) * n + v + 1, -1 - np.arange(len(k)))
            member = np.argsort(key, kind="stable")
            begin = np.flatnonzero(np.diff(key[member], prepend=key.min() - 1))
            self.n_clusters = len(begin)
            self.clusters = upload([begin, np.array([len(key)]), member])
        self.jobs = both(run.context, full.group, last.group, [head, self.code, *rest], upload)
