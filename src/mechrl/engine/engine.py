"""The faithfulness of circuits: from pairs and masks to logits, KL and f, and to gradients with respect to masks.

Only `Engine` runs the language model under a mask. A mask says for every edge whether the circuit keeps it. A kept edge carries what its
source computes in this run, a cut edge what the source computed on the corrupted prompt; every receiver normalises its own stream.

    KL = KL(model ‖ circuit) at the prediction position, summed over the vocabulary          f = 1 − mean KL / mean KL_cut

`plan.py` and `pairs_cache.py` explain what is skipped and why the result is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from mechrl.engine import kernels
from mechrl.engine.ledger import BACKWARD_PASSES, PAIRS_PER_PASS, Ledger
from mechrl.engine.memory import fitting
from mechrl.engine.pairs_cache import Tokens, cache_pairs
from mechrl.engine.plan import make_plan
from mechrl.engine.readout import Objective, Readout
from mechrl.engine.rules import Rules
from mechrl.engine.run_cpu import CpuBackend, Given, Prefix
from mechrl.engine.run_gpu import GpuBackend
from mechrl.errors import MechRLError
from mechrl.graph import EdgeSet
from mechrl.models.base import Model


class HasTokens(Protocol):
    """A batch of pairs: token ids of the clean and the corrupted prompts (`mechrl.behaviours.Pairs` is one)."""

    @property
    def clean(self) -> Tokens: ...

    @property
    def corrupt(self) -> Tokens: ...


@dataclass(frozen=True)
class Gradient:
    """The objective of every circuit, and its gradient with respect to the edge weights."""

    value: Tensor  # [C, batch]
    gradient: Tensor  # [C, n] of the mean over the batch; by groups of pairs [C, groups, n], each group's part of it


class Engine:
    """Runs circuits of one model on one batch of pairs.

    memory_bytes: memory for a chunk of circuits; by default derived from the device.
    tf32: on a CUDA device, allow TensorFloat-32 matrix products: about twice as fast, changes f by up to 1e-3.
    half: on a CUDA device, float16 rows, streams and weights with float32 sums (for gradients, in the MLPs only): as precise as TF32, at
        half the memory traffic. Meant for training, which measures many circuits and tolerates small errors.
    ledger: the ledger to charge, if several engines share one.
    """

    def __init__(
        self,
        model: Model,
        pairs: HasTokens,
        *,
        memory_bytes: int | None = None,
        tf32: bool = False,
        half: bool = False,
        ledger: Ledger | None = None,
    ) -> None:
        self.model, self.graph = model, model.graph
        self.tf32, self.half = tf32, half
        self.ledger = Ledger() if ledger is None else ledger
        self.memory_bytes = memory_bytes
        self._last_edges: EdgeSet | None = None
        self.n_pairs = len(pairs.clean)
        with self._precision():
            self.cache = cache_pairs(model, pairs.clean, pairs.corrupt)
        self.readout = Readout(model, self.cache)
        self.clean_log_probs = self.readout.log_probs  # [B, V]
        self.kl_cut = float(self.readout.kl(self.cache.corrupt_logits[None])[0].mean())
        # by a CUDA device's kernels
        self.fused = kernels.available(self.cache.input_difference, self.cache.n_positions)

    @cached_property
    def cpu(self) -> CpuBackend:
        """Plain matrix products: for a CPU, and for whatever the GPU's kernels do not support."""
        return CpuBackend(self.model, self.cache, self.readout, self.memory_bytes)

    @cached_property
    def gpu(self) -> GpuBackend:
        """The kernels of a CUDA device."""
        return GpuBackend(self.model, self.cache, self.readout, self.memory_bytes, self.tf32, self.half)

    # ---- public -----------------------------------------------------------------------------------------------------

    @property
    def passes(self) -> float:
        """Passes charged so far: forward 1, backward 2, per circuit and 20 pairs."""
        return self.ledger.passes

    @property
    def price(self) -> float:
        """Passes that one forward of one circuit costs on these pairs."""
        return self.n_pairs / PAIRS_PER_PASS

    @property
    def clean_logits(self) -> Tensor:
        """[batch, V] the model's logits on the clean prompts."""
        return self.cache.clean_logits[self.cache.inverse]

    @property
    def corrupt_logits(self) -> Tensor:
        """[batch, V] the model's logits on the corrupted prompts: the empty circuit."""
        return self.cache.corrupt_logits[self.cache.inverse]

    def prefix(self, mask: np.ndarray, edges: np.ndarray | None = None) -> Prefix:
        """Runs one circuit and keeps all its rows."""
        edge_set, order = self._edge_set(edges)
        self._check((1, len(mask)), len(edge_set.edges))
        self._charge(1, 1)
        plan = make_plan(edge_set, np.asarray(mask, dtype=bool)[None, order], everywhere=True)
        difference = self.cache.input_difference
        rows = difference.new_zeros(self.graph.n_sources, *difference.shape)
        lives = plan.row_of[0] >= 0
        with torch.no_grad(), self._precision():
            full = self.gpu.rows(plan) if self.fused else self.cpu.rows(plan)
            rows[torch.from_numpy(np.flatnonzero(lives))] = full[torch.from_numpy(plan.row_of[0][lives])]
        return Prefix(rows, lives)

    def logits(self, masks: np.ndarray | Tensor, edges: np.ndarray | None = None) -> Tensor:
        """[C, batch, V] logits at the prediction position. Large: 4 MB per circuit for 20 pairs and 50,000 tokens."""
        return self._evaluate(masks, edges, lambda logits: logits[:, self.cache.inverse])

    def kl(
        self,
        masks: np.ndarray | Tensor,
        edges: np.ndarray | None = None,
        prefix: Prefix | None = None,
        stage: int = 0,
    ) -> Tensor:
        """[C, batch] KL(model ‖ circuit) of every pair.

        With `prefix`, edges read before `stage` (`Graph.edge_stage`) are those of the prefix's circuit; `edges` may contain only later
        ones.
        """
        return self._evaluate(masks, edges, self.readout.kl, prefix, stage)

    def faithfulness(self, masks: np.ndarray | Tensor, edges: np.ndarray | None = None) -> Tensor:
        """[C] f of every circuit: 1 for the whole model, 0 for the empty circuit, not clamped.

        masks: [C, E] bool, or [C, n] over `edges` [n], all others cut. One circuit may be [E].
        """
        return 1 - self.kl(masks, edges).mean(-1) / self.kl_cut

    def measure(
        self, masks: np.ndarray | Tensor, objective: Objective, edges: np.ndarray | None = None
    ) -> Tensor:
        """[C, batch] any objective of the logits, such as a behaviour's metric."""
        return self._evaluate(masks, edges, lambda logits: objective(logits[:, self.cache.inverse]))

    @property
    def kl_objective(self) -> Objective:
        """KL(model ‖ ·) as an objective for `gradient`: [C, batch, V] to [C, batch]."""
        return self.readout.kl_objective

    def gradient(
        self,
        weights: np.ndarray | Tensor,
        edges: np.ndarray | None = None,
        objective: Objective | None = None,
        groups: int | None = None,
        rules: Rules | None = None,
    ) -> Gradient:
        """The objective (default: KL) at real-valued masks, and its gradient with respect to them.

        weights: [C, E], or [C, n] over `edges`, all others cut. A weight of 0 still gets its gradient.
        groups: split the gradient into the parts of this many groups of consecutive distinct pairs. Not on a GPU; see `ManyEngines`.
        rules: for the backward pass, in place of true derivatives. Slower on a GPU, whose kernels do not have them.
        """
        objectives = [objective or self.kl_objective]
        return self.gradients(weights, objectives, edges, groups=groups, rules=rules)[0]

    def gradients(
        self,
        weights: np.ndarray | Tensor,
        objectives: Sequence[Objective],
        edges: np.ndarray | None = None,
        against_full: bool = False,
        groups: int | None = None,
        rules: Rules | None = None,
    ) -> list[Gradient]:
        """`gradient` for several objectives, each charged as if alone. On a CPU they share the forward pass."""
        values = np.atleast_2d(
            weights.detach().cpu().numpy() if isinstance(weights, Tensor) else np.asarray(weights)
        )
        edge_set, order = self._edge_set(edges)
        self._check(values.shape, len(edge_set.edges))
        self._charge(len(values) * len(objectives), 1 + BACKWARD_PASSES)
        values = values[:, order]
        if groups is not None and self.fused:
            raise MechRLError("gradients by groups of pairs do not run on a GPU; use one engine per group")
        if against_full and values.shape[1] != self.graph.n_edges:
            raise MechRLError("against_full needs the whole graph")
        with self._precision():
            if self.fused and rules is None:
                parts = self.gpu.gradients(edge_set, values, objectives, against_full)
            else:
                parts = self.cpu.gradients(edge_set, values, objectives, against_full, groups, rules)
        return [_joined(of_objective, order) for of_objective in parts]

    def _evaluate(
        self,
        masks: np.ndarray | Tensor,
        edges: np.ndarray | None,
        reduce: Callable[[Tensor], Tensor],
        prefix: Prefix | None = None,
        stage: int = 0,
    ) -> Tensor:
        array = np.atleast_2d(
            masks.detach().cpu().numpy() if isinstance(masks, Tensor) else np.asarray(masks)
        )
        if array.dtype != np.bool_:
            raise MechRLError("masks must be boolean here; real-valued masks go through Engine.gradient")
        edge_set, order = self._edge_set(edges)
        self._check(array.shape, len(edge_set.edges))
        self._charge(len(array), 1)
        array = array[:, order]
        given = None
        if prefix is not None:
            if len(edge_set.edges) and self.graph.edge_stage[edge_set.edges[0]] < stage:
                raise MechRLError(f"an edge is read before stage {stage}, where the prefix ends")
            given = Given(prefix, self.graph.n_sources_before(stage))
        before = None if given is None else given.prefix.lives[: given.n]
        where: GpuBackend | CpuBackend = self.gpu if self.fused else self.cpu

        def run(chunk: slice) -> Tensor:
            return where.outputs(make_plan(edge_set, array[chunk], given=before), reduce, given)

        with torch.no_grad(), self._precision():
            if self.fused and given is None and self.gpu.are_few(len(array), gradient=False):
                return self.gpu.outputs_of_few(edge_set, array, reduce)
            results = [result for _, result in fitting(where.chunks(array.sum(1)), run)]
        if not results:
            return reduce(self.cache.corrupt_logits[None])[:0]
        return torch.cat(results)

    # ---- bookkeeping ------------------------------------------------------------------------------------------------

    def _charge(self, n_circuits: int, passes: int) -> None:
        self.ledger.charge(n_circuits * passes * self.n_pairs / PAIRS_PER_PASS)

    def _check(self, shape: tuple[int, ...], n_edges: int) -> None:
        if len(shape) != 2 or shape[1] != n_edges:
            raise MechRLError(
                f"a mask has {shape[-1]} entries, the graph or the given edge list has {n_edges}"
            )

    @contextmanager
    def _precision(self) -> Iterator[None]:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = self.tf32
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    def _edge_set(self, edges: np.ndarray | None) -> tuple[EdgeSet, np.ndarray | slice]:
        """The edges of a call, ascending, and how to reorder masks accordingly. Caches the last set."""
        if edges is None:
            return self.graph.everything, slice(None)
        edges = np.asarray(edges)
        order = slice(None) if (np.diff(edges) > 0).all() else np.argsort(edges)
        key = edges[order]
        if self._last_edges is None or not np.array_equal(self._last_edges.edges, key):
            self._last_edges = EdgeSet(self.graph, key)
        return self._last_edges, order


def _joined(parts: Sequence[tuple[Tensor, Tensor]], order: np.ndarray | slice) -> Gradient:
    """The values and gradients of all chunks, edges in the caller's order."""
    values, gradients = zip(*parts, strict=True)
    gradient = torch.cat(gradients)
    if isinstance(order, np.ndarray):
        to = torch.from_numpy(order).to(gradient.device)
        gradient = torch.empty_like(gradient).index_copy_(-1, to, gradient)
    return Gradient(torch.cat(values), gradient)
