"""Runs plans with the fused kernels of a CUDA device, and a few circuits without a plan (`dense.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from mechrl.engine.backward import FusedGradient, gradient_bytes
from mechrl.engine.dense import MOST, FewCircuits, bucket_of, dense_bytes
from mechrl.engine.fused import FusedRun, RunContext
from mechrl.engine.memory import CIRCUITS_PER_CHUNK, budget, circuit_bytes, consecutive, fitting
from mechrl.engine.pairs_cache import PairsCache
from mechrl.engine.plan import Plan, make_plan
from mechrl.engine.readout import Objective, Readout
from mechrl.engine.run_cpu import Given
from mechrl.graph import EdgeSet
from mechrl.models.base import Model


class GpuBackend:
    """Runs circuits on one batch of pairs; caches what they share."""

    def __init__(
        self,
        model: Model,
        cache: PairsCache,
        readout: Readout,
        memory_bytes: int | None,
        tf32: bool,
        half: bool,
    ) -> None:
        self.model, self.cache, self.readout, self._memory = model, cache, readout, memory_bytes
        self.half, self.context = half, RunContext.of(model, cache, tf32, half)
        self.few = FewCircuits(model, cache)
        self._last_run: tuple[EdgeSet, FusedGradient] | None = None

    def rows(self, plan: Plan) -> Tensor:
        """[rows, N, d] of a plan that computes every row at all positions."""
        run = FusedRun(self.context, plan)
        run.fill(self.cache.input_difference)
        return run.flat.view(-1, *self.cache.input_difference.shape)

    def outputs(self, plan: Plan, reduce: Callable[[Tensor], Tensor], given: Given | None) -> Tensor:
        """`reduce` of the logits of every circuit."""
        run = FusedRun(self.context, plan)
        final = self.cache.resid_final.new_empty(0, *self.cache.resid_final.shape)
        if plan.n_outputs:
            inputs = (
                self.cache.input_difference if given is None else given.prefix.rows[: given.n].flatten(0, 1)
            )
            final = run.forward(inputs).view(plan.n_outputs, self.cache.n_pairs, -1)
        return self.readout.reduced(final, reduce)[run.output]

    def gradients(
        self, edge_set: EdgeSet, values: np.ndarray, objectives: Sequence[Objective], against_full: bool
    ) -> list[list[tuple[Tensor, Tensor]]]:
        """Values and gradients: a list of chunks for each objective."""
        if not against_full and self.are_few(len(values), gradient=True):
            return [[self._of_few(edge_set, values, objective)] for objective in objectives]
        return [self._gradients(edge_set, values, objective, against_full) for objective in objectives]

    def _of_few(self, edge_set: EdgeSet, values: np.ndarray, objective: Objective) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            value, gradient = self.few.gradient(
                values, edge_set.edges, lambda final: self.readout.objective(final, objective)
            )
        return value[1:], gradient

    def outputs_of_few(
        self, edge_set: EdgeSet, masks: np.ndarray, reduce: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """`outputs` of circuits [C, n] that need no plan."""
        return self.readout.reduced(self.few.final(masks, edge_set.edges), reduce)[1:]

    def are_few(self, n: int, gradient: bool) -> bool:
        """Whether `n` circuits should run without a plan."""
        spec, n_tokens = self.model.spec, self.cache.n_tokens
        need = dense_bytes(spec, n_tokens, bucket_of(n), gradient)
        return 0 < n <= MOST and not self.half and need <= budget(self.model.device, self._memory)

    def _gradients(
        self, edge_set: EdgeSet, values: np.ndarray, objective: Objective, against_full: bool
    ) -> list[tuple[Tensor, Tensor]]:
        device, inputs = self.model.device, self.cache.input_difference
        whole = np.ones((1, values.shape[1]), dtype=bool)
        need = np.repeat(
            self.cache.n_tokens * gradient_bytes(self.model.spec, edge_set.edges, whole), len(values)
        )
        against: Tensor | None = None

        def of_chunk(chunk: slice) -> tuple[Tensor, Tensor]:
            nonlocal against
            some = values[chunk]
            run = self.gradient_run(edge_set, len(some))
            if not run.plan.n_outputs:
                return self.readout.of_nothing(some, objective)
            weight = torch.from_numpy(some.reshape(-1)[run.edge].astype(np.float32))
            with torch.no_grad():
                if against_full and against is None:  # the rows of the whole model
                    run.run(inputs, torch.ones_like(weight, device=device))
                    against = run.flat.clone()
                weight = (weight.pin_memory() if device.type == "cuda" else weight).to(
                    device, non_blocking=True
                )
                final = run.run(inputs, weight).view(run.plan.n_outputs, self.cache.n_pairs, -1)
                value, grad_final = self.readout.objective(final, objective)
                of_edges = run.backward(grad_final.flatten(0, 1), against)
            gradient = of_edges.new_zeros(some.size).index_copy_(0, run.edge_there, of_edges)
            return value[run.output], gradient.view(some.shape)

        most = 1 if against_full else CIRCUITS_PER_CHUNK
        chunks = consecutive(need, budget(device, self._memory), most)
        return [result for _, result in fitting(chunks, of_chunk)]

    def gradient_run(self, edge_set: EdgeSet, n_circuits: int) -> FusedGradient:
        """Gradient methods use the same edges many times, so the last plan is kept on the device."""
        known = self._last_run
        if known is None or known[0] is not edge_set or known[1].plan.n_circuits != n_circuits:
            self._last_run = None  # free the old one first
            plan = make_plan(edge_set, np.ones((n_circuits, len(edge_set.edges)), dtype=bool), share=False)
            self._last_run = edge_set, FusedGradient(self.context, plan)
        assert self._last_run is not None
        return self._last_run[1]

    def chunks(self, kept: np.ndarray) -> Iterator[slice]:
        """Consecutive circuits, of `kept` edges each, whose rows and streams together fit the budget."""
        need = circuit_bytes(self.model.spec, kept, self.cache.n_tokens, self.context.dtype.itemsize)
        return consecutive(need, budget(self.model.device, self._memory), CIRCUITS_PER_CHUNK)
