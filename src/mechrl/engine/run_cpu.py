"""Runs plans with plain matrix products, on a CPU and wherever the kernels of `fused.py` do not apply."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from mechrl.engine.fused import Upload
from mechrl.engine.memory import CIRCUITS_PER_CHUNK, budget, circuit_bytes, consecutive, mlp_bytes
from mechrl.engine.mix import Block, Store, blocks, mix, mix_backward
from mechrl.engine.pairs_cache import PairsCache
from mechrl.engine.plan import Plan, Pool, Stage, make_plan
from mechrl.engine.readout import Objective, Readout
from mechrl.engine.rules import Rules
from mechrl.engine.stages import attention_index, attention_stage, mlp_stage
from mechrl.graph import EdgeSet
from mechrl.models.base import Model


@dataclass(frozen=True)
class Prefix:
    """The rows of one circuit, kept so that circuits which agree with it below some stage can start from there.

    Edges into a layer do not affect the layers below, so a search that edits from the logits downwards runs the lower layers only once.
    """

    rows: Tensor  # [S, N, d]; zero for a source that stays corrupted
    lives: np.ndarray  # [S]


@dataclass(frozen=True)
class Given:
    """The first `n` sources of a prefix."""

    prefix: Prefix
    n: int


class CpuBackend:
    """Runs plans on one batch of pairs. Reuses its working memory between runs."""

    def __init__(self, model: Model, cache: PairsCache, readout: Readout, memory_bytes: int | None) -> None:
        self.model, self.cache, self.readout, self._memory = model, cache, readout, memory_bytes
        self._rooms: dict[str, Tensor] = {}

    def rows(self, plan: Plan) -> Tensor:
        """[rows, N, d] of a plan that computes every row at all positions."""
        run = CpuRun(self, plan, None)
        run.fill()
        return run.store.full

    def outputs(self, plan: Plan, reduce: Callable[[Tensor], Tensor], given: Given | None) -> Tensor:
        """`reduce` of the logits of every circuit."""
        run = CpuRun(self, plan, None, given)
        final = (
            run.forward()
            if plan.n_outputs
            else self.cache.resid_final.new_empty(0, *self.cache.resid_final.shape)
        )
        return self.readout.reduced(final, reduce)[run.output]

    def gradients(
        self,
        edge_set: EdgeSet,
        values: np.ndarray,
        objectives: Sequence[Objective],
        against_full: bool,
        groups: int | None,
        rules: Rules | None,
    ) -> list[list[tuple[Tensor, Tensor]]]:
        """Values and gradients: a list of chunks for each objective."""
        parts = []
        if against_full:
            plan = make_plan(edge_set, np.ones((1, len(edge_set.edges)), dtype=bool), share=False)
            against = self._whole_model(plan)
            for i in range(len(values)):
                parts.append(self._gradient(plan, values[i : i + 1], objectives, against, groups, rules))
        else:
            felt = edge_set.for_gradient(values)
            for chunk in self.chunks(felt.sum(1), copies=1 + len(objectives)):
                plan = make_plan(edge_set, felt[chunk], share=False)
                parts.append(self._gradient(plan, values[chunk], objectives, None, groups, rules))
        return [list(of_objective) for of_objective in zip(*parts, strict=True)]

    def _whole_model(self, plan: Plan) -> Store:
        """The rows of the whole model, laid out for a plan that keeps everything."""
        with torch.no_grad():
            run = CpuRun(self, plan, None)
            run.forward()
        del self._rooms["rows"]  # they must outlive the next run
        return run.store

    def _gradient(
        self,
        plan: Plan,
        values: np.ndarray,
        objectives: Sequence[Objective],
        against: Store | None,
        groups: int | None,
        rules: Rules | None,
    ) -> list[tuple[Tensor, Tensor]]:
        if not plan.n_outputs:
            nothing = [self.readout.of_nothing(values, objective) for objective in objectives]
            return [(v, g if groups is None else g[:, None].repeat(1, groups, 1)) for v, g in nothing]
        with torch.no_grad():
            run = CpuRun(self, plan, values.reshape(-1), rules=rules, keeps=self._has_room(plan, objectives))
            final = run.forward()
        reached = [self.readout.objective(final, objective) for objective in objectives]
        backward = run.backward([grad for _, grad in reached], against, groups or 1)
        result = []
        for (value, _), gradient in zip(reached, backward, strict=True):
            of_groups = gradient.view(-1, *values.shape)  # [groups, C, n]
            result.append((value[run.output], of_groups[0] if groups is None else of_groups.transpose(0, 1)))
        return result

    def _has_room(self, plan: Plan, objectives: Sequence[Objective]) -> bool:
        """Whether the MLPs' activations fit beside the rows and their gradients."""
        spec, itemsize, n_tokens = self.model.spec, self.model.embedding.element_size(), self.cache.n_tokens
        rows = Store.size(plan, n_tokens, self.cache.n_pairs) * spec.d_model * itemsize
        need = (1 + len(objectives)) * rows + plan.n_circuits * mlp_bytes(spec, n_tokens, itemsize)
        return need <= budget(self.model.device, self._memory)

    def chunks(self, kept: np.ndarray, copies: int = 1) -> Iterator[slice]:
        """Consecutive circuits, of `kept` edges each, whose rows and streams together fit the budget."""
        device, spec = self.model.device, self.model.spec
        need = circuit_bytes(spec, kept, self.cache.n_tokens, self.model.embedding.element_size(), copies)
        # on a CPU a circuit that keeps most of the graph runs fastest alone, because its rows are then contiguous
        alone = (kept > spec.graph.n_edges / 2) & (device.type == "cpu")
        return consecutive(need, budget(device, self._memory), CIRCUITS_PER_CHUNK, alone)

    def store(self, plan: Plan, which: str = "rows") -> Store:
        """Memory for a plan's rows, or their gradients. Reused between runs: allocating a fresh page costs as much as filling it."""
        size = Store.size(plan, self.cache.n_tokens, self.cache.n_pairs)
        return Store(plan, self.cache.n_tokens, self.cache.n_pairs, self._room(which, size))

    def streams_room(self, n_jobs: int) -> Tensor:
        """The same for streams [tokens of all jobs, d]."""
        return self._room("streams", n_jobs * self.cache.n_tokens)

    def _room(self, which: str, size: int) -> Tensor:
        if which not in self._rooms or len(self._rooms[which]) < size:
            self._rooms.pop(which, None)  # free the old one first
            self._rooms[which] = self.cache.input_difference.new_empty(size, self.model.spec.d_model)
        return self._rooms[which]


@dataclass(frozen=True)
class Taped:
    """Tensors at all positions, and at the prediction position only."""

    streams: tuple[Tensor, Tensor]
    outputs: tuple[Tensor, Tensor]


class CpuRun:
    """One execution of a plan: fills the store of rows, stage by stage, and goes back through the stages for gradients.

    The backward pass recomputes each stage, unless it is an MLP and the run `keeps` these. MLPs are most of the arithmetic; attention's
    intermediate results, for its many streams, would take far more memory.
    """

    def __init__(
        self,
        cpu: CpuBackend,
        plan: Plan,
        weight: np.ndarray | None,
        given: Given | None = None,
        rules: Rules | None = None,
        keeps: bool = False,
    ) -> None:
        self.rules, self.keeps = rules, keeps
        self._kept: dict[int, Taped] = {}  # by layer
        self.model, self.cache, self.plan, self.weight = cpu.model, cpu.cache, plan, weight
        like = self.cache.input_difference
        self.cpu, self.store = cpu, cpu.store(plan)
        if given is None:
            self.store.full[0] = like
        else:
            self.store.full[: given.n] = given.prefix.rows[: given.n]
        # streams live for one stage, so without gradients all stages use the same memory
        widest = max((len(stage.full) for stage in plan.stages), default=0)
        self._room = cpu.streams_room(widest) if weight is None else None
        # of the rows so far, for circuits that keep everything
        self._total, self._n_total = torch.zeros_like(like), 0
        self._blocks: dict[int, list[Block]] = {}
        with Upload(plan, like.device) as upload:
            self.output = upload([plan.output + 1])
            attention = [s for s in plan.stages if s.kind == "attention"]
            self._index = {
                s.layer: attention_index(self.model, s, lambda array: upload([array])) for s in attention
            }

    def fill(self) -> None:
        """Computes all rows, stage by stage."""
        for stage in self.plan.stages:
            if stage.kind == "mlp" and self.keeps:
                taped = self._kept[stage.layer] = self._taped(stage)
                for slots, output in zip(self._slots(stage, self.store), taped.outputs, strict=True):
                    slots.copy_(output.detach())
            elif stage.kind != "logits":
                x = self._normal(stage.full, stage, False), self._normal(stage.last, stage, True)
                self._components(stage, x, self._slots(stage, self.store))

    def forward(self) -> Tensor:
        """Fills the store; returns the normalised final streams [outputs, B, d]."""
        self.fill()
        return self._normal(self.plan.stages[-1].last, self.plan.stages[-1], True)

    def backward(self, grad_finals: Sequence[Tensor], against: Store | None, groups: int) -> list[Tensor]:
        """From d(objective)/d(normalised final stream), for several objectives, to d(objective)/d(edge weights) [groups, n]."""
        assert self.weight is not None
        rows = [self.cpu.store(self.plan, f"gradients {i}") for i in range(len(grad_finals))]
        results = [grad_final.new_zeros(groups, len(self.weight)) for grad_final in grad_finals]
        for grads in rows:
            grads.flat.zero_()
        for stage in reversed(self.plan.stages):
            taped = self._kept.pop(stage.layer) if stage.kind == "mlp" and self.keeps else self._taped(stage)
            for grad_final, grads, result in zip(grad_finals, rows, results, strict=True):
                of_outputs = (grad_final[:0], grad_final)
                if stage.kind != "logits":
                    of_outputs = self._slots(stage, grads)
                some = [(o, g) for o, g in zip(taped.outputs, of_outputs, strict=True) if len(o)]
                grad_x = torch.autograd.grad(
                    [o for o, _ in some],
                    taped.streams,
                    [g for _, g in some],
                    allow_unused=True,
                    retain_graph=grads is not rows[-1],
                )
                self._backward_of_mix(stage, grad_x, grads, against, groups, result)
        return results

    def _taped(self, stage: Stage) -> Taped:
        """The streams of a stage and what it computes from them, recorded by autograd."""
        with torch.no_grad():
            streams = self._streams(stage.full, stage, False), self._streams(stage.last, stage, True)
        with torch.enable_grad():
            norm = self.model.normalise if self.rules is None else partial(self.rules.normalise, self.model)
            x = norm(streams[0].requires_grad_()), norm(streams[1].requires_grad_())
            if stage.kind == "logits":
                return Taped(streams, x)
            return Taped(streams, self._components(stage, x, rules=self.rules))

    @torch.no_grad()
    def _backward_of_mix(
        self,
        stage: Stage,
        grad_x: Sequence[Tensor | None],
        grads: Store,
        against: Store | None,
        groups: int,
        result: Tensor,
    ) -> None:
        """From d(objective)/d(streams of a stage) to that of the rows they read, in `grads`, and of the edges, in `result`."""
        of_pairs, of_tokens = self.cache.groups(groups)
        for pool, grad, last in (
            (stage.full, grad_x[0], None),
            (stage.last, grad_x[1], self.cache.last_token),
        ):
            for block in self._blocks_of(pool):
                assert grad is not None
                some_groups = of_tokens if last is None else of_pairs
                of_edges = mix_backward(
                    block, self.store, grads, grad[block.jobs], last, against, some_groups
                )
                result.index_add_(1, torch.from_numpy(block.edge).to(result.device), of_edges)

    # ---- one stage --------------------------------------------------------------------------------------------------

    def _components(
        self,
        stage: Stage,
        x: tuple[Tensor, Tensor],
        out: tuple[Tensor, Tensor] | None = None,
        rules: Rules | None = None,
    ) -> tuple[Tensor, Tensor]:
        model, layer, cache = self.model, stage.layer, self.cache
        if stage.kind == "mlp":
            return mlp_stage(model, layer, cache, x, out, rules)
        return attention_stage(model, layer, cache, self._index[layer], x, out, rules)

    def _slots(self, stage: Stage, store: Store) -> tuple[Tensor, Tensor]:
        n_full, n_last = len(stage.heads_full), len(stage.heads_last)
        if stage.kind == "mlp":
            n_full, n_last = len(stage.full), len(stage.last)
        return (
            store.full[stage.first_full_slot : stage.first_full_slot + n_full],
            store.last[stage.first_last_slot : stage.first_last_slot + n_last],
        )

    def _resid(self, stage: Stage, last: bool) -> Tensor:
        if stage.kind == "logits":
            return self.cache.resid_final
        layer = self.cache.layers[stage.layer].last if last else self.cache.layers[stage.layer]
        return layer.resid_mlp if stage.kind == "mlp" else layer.resid_attention

    def _normal(self, pool: Pool, stage: Stage, last: bool) -> Tensor:
        """[J, tokens, d] the normalised streams of a pool's jobs."""
        return self._streams(pool, stage, last, finish=self.model.normalise_)

    def _streams(
        self, pool: Pool, stage: Stage, last: bool, finish: Callable[[Tensor], Tensor] = lambda x: x
    ) -> Tensor:
        """[J, tokens, d] the streams of a pool's jobs."""
        resid = self._resid(stage, last)
        last_token = self.cache.last_token if last else None
        parts = self._blocks_of(pool)
        if len(parts) == 1 and parts[0].everything and not last and self.weight is None:
            return self._running(parts[0], resid, finish)
        if len(parts) == 1:
            return mix(parts[0], self.store, resid, last_token, finish, None if last else self._room)
        x = resid.new_empty(len(pool), *resid.shape)
        for block in parts:
            x[block.jobs] = mix(block, self.store, resid, last_token, finish)
        return x

    def _running(self, block: Block, resid: Tensor, finish: Callable[[Tensor], Tensor]) -> Tensor:
        """A stream that keeps everything adds to the previous one, as in the plain model."""
        assert isinstance(block.full_slots, slice)
        end = block.full_slots.stop
        for row in self.store.full[self._n_total : end]:
            self._total += row
        self._n_total = end
        x = finish((resid + self._total)[None])
        return x if block.stream is None else x[block.stream]

    def _blocks_of(self, pool: Pool) -> list[Block]:
        if id(pool) not in self._blocks:
            self._blocks[id(pool)] = blocks(pool, self.weight, self.cache.input_difference)
        return self._blocks[id(pool)]
