"""The faithfulness of circuits: (pairs, many masks) to logits, KL and f, and gradients with respect to masks.

`Engine` is the only place that runs the language model under a mask. A mask says for every edge whether the circuit keeps it.
Kept edges carry the activation as computed in this run, cut edges the corrupted one; every receiver normalises its own stream.

    KL = KL(model ‖ circuit) at the prediction position, summed over the vocabulary          f = 1 − mean KL / mean KL_cut

What is not computed, and why the result is the same, is written in `plan.py` and `pairs_cache.py`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from mechrl.engine import kernels
from mechrl.engine.backward import FusedGradient, gradient_bytes
from mechrl.engine.fused import FusedRun, Ground, Shipment
from mechrl.engine.ledger import BACKWARD_PASSES, PAIRS_PER_PASS, Ledger
from mechrl.engine.mix import Block, Store, blocks, mix, mix_backward
from mechrl.engine.pairs_cache import Tokens, cache_pairs
from mechrl.engine.plan import Plan, Pool, Stage, make_plan
from mechrl.engine.stages import attention_index, attention_stage, mlp_stage
from mechrl.errors import MechRLError, OutOfMemory
from mechrl.graph import EdgeSet
from mechrl.models.base import Model

_CIRCUITS_PER_CHUNK = (
    512  # enough to fill a GPU, few enough that the next chunk is planned while this one runs
)
Objective = Callable[[Tensor], Tensor]  # logits [C, batch, V] -> [C, batch]


class HasTokens(Protocol):
    """A batch of pairs: token ids of the clean and the corrupted prompts (`mechrl.behaviours.Pairs` is one)."""

    @property
    def clean(self) -> Tokens: ...

    @property
    def corrupt(self) -> Tokens: ...


@dataclass(frozen=True)
class Gradient:
    """The objective of every circuit and its gradient with respect to every given edge weight."""

    value: Tensor  # [C, batch]
    gradient: Tensor  # [C, n]; of the objective's mean over the batch. By groups of pairs: [C, groups, n], of each group's part in it


@dataclass(frozen=True)
class Prefix:
    """The rows of one circuit's sources, kept so that circuits which agree with it below some stage can start there.

    A change of edges into a layer leaves everything below that layer untouched: searches that edit from the logits downwards
    run the lower layers once.
    """

    rows: Tensor  # [S, N, d]; zero for a source that is its corrupted self
    lives: np.ndarray  # [S]


class Engine:
    """Runs circuits of one model on one batch of pairs.

    memory_bytes: what a chunk of circuits may use; worked out from the device if not given.
    tf32: on a CUDA device, allow TensorFloat-32 in float32 matrix products: about twice as fast, f is then off by up to 1e-3.
    half: there, circuits (of gradients the MLPs alone) run on float16 rows, streams and weights with float32 sums: as precise as TF32,
        with half the memory traffic. Meant for training, which asks for many and compares with margins.
    ledger: what circuits are charged to, if other engines share it.
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
        self._memory = memory_bytes
        self._buffers: dict[str, Tensor] = {}  # the rows' room and that of their gradients, kept between runs
        self._room: Tensor | None = None  # the streams' room, likewise
        self._last_edges: EdgeSet | None = None
        self.n_pairs = len(pairs.clean)
        with self._precision():
            self.cache = cache_pairs(model, pairs.clean, pairs.corrupt)
        self.clean_log_probs = self.cache.clean_logits.log_softmax(-1)  # [B, V]
        self._clean_probs = self.clean_log_probs.exp()
        self.kl_cut = float(self._kl(self.cache.corrupt_logits[None])[0].mean())
        self._ground: Ground | None = None
        self._last_run: tuple[EdgeSet, FusedGradient] | None = None

    # ---- public -----------------------------------------------------------------------------------------------------

    @property
    def passes(self) -> float:
        """What the ledger has counted: forward 1, backward 2, per circuit and 20 pairs."""
        return self.ledger.passes

    @property
    def price(self) -> float:
        """Passes that one forward of one circuit costs on these pairs."""
        return self.n_pairs / PAIRS_PER_PASS

    @property
    def clean_logits(self) -> Tensor:
        """[batch, V] the model on the clean prompts."""
        return self.cache.clean_logits[self.cache.inverse]

    @property
    def corrupt_logits(self) -> Tensor:
        """[batch, V] the model on the corrupted prompts: the empty circuit."""
        return self.cache.corrupt_logits[self.cache.inverse]

    def prefix(self, mask: np.ndarray, edges: np.ndarray | None = None) -> Prefix:
        """Runs one circuit and keeps all of its rows."""
        edge_set, order = self._edge_set(edges)
        self._check((1, len(mask)), len(edge_set.edges))
        self._charge(1, 1)
        plan = make_plan(edge_set, np.asarray(mask, dtype=bool)[None, order], everywhere=True)
        difference = self.cache.input_difference
        rows = difference.new_zeros(self.graph.n_sources, *difference.shape)
        lives = plan.row_of[0] >= 0
        with torch.no_grad(), self._precision():
            run: FusedRun | _Run
            if self.fused:
                run = FusedRun(self.ground(), plan)
                run.fill(difference)
                full = run.flat.view(-1, *difference.shape)
            else:
                run = _Run(self, plan, None)
                run.fill()
                full = run.store.full
            rows[torch.from_numpy(np.flatnonzero(lives))] = full[torch.from_numpy(plan.row_of[0][lives])]
        return Prefix(rows, lives)

    def logits(self, masks: np.ndarray | Tensor, edges: np.ndarray | None = None) -> Tensor:
        """[C, batch, V] logits at the prediction position. Large: 20 pairs of a 50,000-word vocabulary are 4 MB a circuit."""
        return self._evaluate(masks, edges, lambda logits: logits[:, self.cache.inverse])

    def kl(
        self,
        masks: np.ndarray | Tensor,
        edges: np.ndarray | None = None,
        prefix: Prefix | None = None,
        stage: int = 0,
    ) -> Tensor:
        """[C, batch] KL(model ‖ circuit) of every pair.

        With `prefix`, edges read before `stage` (see `Graph.edge_stage`) are those of the prefix's circuit, whatever the masks say:
        `edges` must name later ones only.
        """
        return self._evaluate(masks, edges, self._kl, prefix, stage)

    def faithfulness(self, masks: np.ndarray | Tensor, edges: np.ndarray | None = None) -> Tensor:
        """[C] f of every circuit; 1 is the whole model, 0 the empty circuit. Not clamped.

        masks: [C, E] bool, or [C, n] over the edges named in `edges` [n] (all others are cut). One circuit may be [E].
        """
        return 1 - self.kl(masks, edges).mean(-1) / self.kl_cut

    def measure(
        self, masks: np.ndarray | Tensor, objective: Objective, edges: np.ndarray | None = None
    ) -> Tensor:
        """[C, batch] any function of the logits, such as a behaviour's metric."""
        return self._evaluate(masks, edges, lambda logits: objective(logits[:, self.cache.inverse]))

    def kl_objective(self, logits: Tensor) -> Tensor:
        """KL(model ‖ ·) as an objective for `gradient`: [C, batch, V] to [C, batch]."""
        log_probs, probs = self.clean_log_probs[self.cache.inverse], self._clean_probs[self.cache.inverse]
        return (probs * (log_probs - logits.log_softmax(-1))).sum(-1)

    def gradient(
        self,
        weights: np.ndarray | Tensor,
        edges: np.ndarray | None = None,
        objective: Objective | None = None,
        against_full: bool = False,
        groups: int | None = None,
    ) -> Gradient:
        """The objective (default: KL) at real-valued masks and its gradient with respect to them.

        weights: [C, E], or [C, n] over `edges` (all others are cut). A weight of 0 still gets its gradient.
        against_full: take d(objective)/d(stream of v) here, but multiply it with a_clean(u) − a_corr(u) of the whole model
            instead of this run's own a_now(u) − a_corr(u). Attribution on interpolated inputs is defined that way.
        groups: so many groups of consecutive distinct pairs, whose parts of the gradient come apart. Not on a GPU (see `ManyEngines`).
        """
        return self.gradients(weights, [objective or self.kl_objective], edges, against_full, groups)[0]

    def gradients(
        self,
        weights: np.ndarray | Tensor,
        objectives: Sequence[Objective],
        edges: np.ndarray | None = None,
        against_full: bool = False,
        groups: int | None = None,
    ) -> list[Gradient]:
        """`gradient` of several objectives, each charged as if it were alone. On a CPU they share the way forth."""
        values = np.atleast_2d(
            weights.detach().cpu().numpy() if isinstance(weights, Tensor) else np.asarray(weights)
        )
        edge_set, order = self._edge_set(edges)
        self._check(values.shape, len(edge_set.edges))
        self._charge(len(values) * len(objectives), 1 + BACKWARD_PASSES)
        values = values[:, order]
        if groups is not None and self.fused:
            raise MechRLError("gradients by groups of pairs are not for a GPU; use one engine a group")
        if against_full and values.shape[1] != self.graph.n_edges:
            raise MechRLError("against_full needs the whole graph")
        with self._precision():
            if self.fused:
                of_chunks = [
                    self._gradients_fused(edge_set, values, objective, against_full)
                    for objective in objectives
                ]
            else:
                parts = self._gradients(edge_set, values, objectives, against_full, groups)
                of_chunks = [list(of_objective) for of_objective in zip(*parts, strict=True)]
        return [_joined(of_objective, order) for of_objective in of_chunks]

    # ---- running a plan ---------------------------------------------------------------------------------------------

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
            given = _Given(prefix, self.graph.n_sources_before(stage))
        before = None if given is None else given.prefix.lives[: given.n]

        def run(chunk: slice) -> Tensor:
            return self._outputs(make_plan(edge_set, array[chunk], given=before), reduce, given)

        with torch.no_grad(), self._precision():
            results = [result for _, result in fitting(self._chunks(array), run)]
        if not results:
            return reduce(self.cache.corrupt_logits[None])[:0]
        return torch.cat(results)

    def _outputs(self, plan: Plan, reduce: Callable[[Tensor], Tensor], given: _Given | None) -> Tensor:
        """Runs a plan and reduces the logits of its distinct circuits, a few at a time."""
        parts = [
            reduce(self.cache.corrupt_logits[None])
        ]  # the place of circuits that are their corrupted selves
        run: FusedRun | _Run = FusedRun(self.ground(), plan) if self.fused else _Run(self, plan, None, given)
        if plan.n_outputs:
            if isinstance(run, FusedRun):
                inputs = (
                    self.cache.input_difference
                    if given is None
                    else given.prefix.rows[: given.n].flatten(0, 1)
                )
                final = run.forward(inputs).view(plan.n_outputs, self.cache.n_pairs, -1)
            else:
                final = run.forward()
            step = max(
                1, int(2**31 // (4 * self.cache.corrupt_logits.nbytes))
            )  # logits of about half a gigabyte
            parts += [reduce(self.model.unembed(final[i : i + step])) for i in range(0, len(final), step)]
        return torch.cat(parts)[run.output]

    def _whole_model(self, plan: Plan) -> Store:
        """The rows of the whole model, in the layout of a plan that keeps everything."""
        with torch.no_grad():
            run = _Run(self, plan, None)
            run.forward()
        del self._buffers["rows"]  # they must outlive the next run
        return run.store

    def _gradients(
        self,
        edge_set: EdgeSet,
        values: np.ndarray,
        objectives: Sequence[Objective],
        against_full: bool,
        groups: int | None,
    ) -> list[list[tuple[Tensor, Tensor]]]:
        """Per chunk of circuits and objective: its values and gradients."""
        if against_full:
            plan = make_plan(edge_set, np.ones((1, self.graph.n_edges), dtype=bool), share=False)
            against = self._whole_model(plan)
            ones = [values[i : i + 1] for i in range(len(values))]
            return [self._gradient(plan, one, objectives, against, groups) for one in ones]
        parts = []
        for chunk in self._chunks(np.ones_like(values, dtype=bool), copies=1 + len(objectives)):
            plan = make_plan(edge_set, np.ones(values[chunk].shape, dtype=bool), share=False)
            parts.append(self._gradient(plan, values[chunk], objectives, None, groups))
        return parts

    def _gradient(
        self,
        plan: Plan,
        values: np.ndarray,
        objectives: Sequence[Objective],
        against: Store | None,
        groups: int | None,
    ) -> list[tuple[Tensor, Tensor]]:
        if not plan.n_outputs:
            nothing = [self._no_gradient(values, objective) for objective in objectives]
            return [(v, g if groups is None else g[:, None].repeat(1, groups, 1)) for v, g in nothing]
        with torch.no_grad():
            run = _Run(self, plan, values.reshape(-1))
            final = run.forward()
        reached = [self._objective(final, objective) for objective in objectives]
        result = []
        backward = run.backward([grad_final for _, grad_final in reached], against, groups or 1)
        for (value, _), gradient in zip(reached, backward, strict=True):
            of_groups = gradient.view(-1, *values.shape)  # [groups, C, n]
            result.append((value[run.output], of_groups[0] if groups is None else of_groups.transpose(0, 1)))
        return result

    def _gradients_fused(
        self, edge_set: EdgeSet, values: np.ndarray, objective: Objective, against_full: bool
    ) -> list[tuple[Tensor, Tensor]]:
        """Like `_gradient`, chunk by chunk, through the kernels of a CUDA device."""
        device, inputs = self.model.device, self.cache.input_difference
        whole = np.ones((1, values.shape[1]), dtype=bool)
        need = np.repeat(
            self.cache.n_tokens * gradient_bytes(self.model.spec, edge_set.edges, whole), len(values)
        )
        against: Tensor | None = None

        def of_chunk(chunk: slice) -> tuple[Tensor, Tensor]:
            nonlocal against
            some = values[chunk]
            run = self._gradient_run(edge_set, len(some))
            if not run.plan.n_outputs:
                return self._no_gradient(some, objective)
            weight = torch.from_numpy(some.reshape(-1)[run.edge].astype(np.float32))
            with torch.no_grad():
                if against_full and against is None:  # the rows of the whole model
                    run.run(inputs, torch.ones_like(weight, device=device))
                    against = run.flat.clone()
                weight = (weight.pin_memory() if device.type == "cuda" else weight).to(
                    device, non_blocking=True
                )
                final = run.run(inputs, weight).view(run.plan.n_outputs, self.cache.n_pairs, -1)
                value, grad_final = self._objective(final, objective)
                of_edges = run.backward(grad_final.flatten(0, 1), against)
            gradient = of_edges.new_zeros(some.size).index_copy_(0, run.edge_there, of_edges)
            return value[run.output], gradient.view(some.shape)

        chunks = consecutive(need, self._budget(), 1 if against_full else _CIRCUITS_PER_CHUNK)
        return [result for _, result in fitting(chunks, of_chunk)]

    def _gradient_run(self, edge_set: EdgeSet, n_circuits: int) -> FusedGradient:
        """Methods that follow the gradient ask for the same edges again and again: the last plan is kept, on the device."""
        if (
            self._last_run is None
            or self._last_run[0] is not edge_set
            or self._last_run[1].plan.n_circuits != n_circuits
        ):
            self._last_run = None  # let go of the old one first
            plan = make_plan(edge_set, np.ones((n_circuits, len(edge_set.edges)), dtype=bool), share=False)
            self._last_run = edge_set, FusedGradient(self.ground(), plan)
        return self._last_run[1]

    def _objective(self, final: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
        """The objective of the corrupted run, then that of normalised last streams [n, B, d]: [1 + n, batch]; the latter's gradients."""
        value, grad = [objective(self.corrupt_logits[None]).detach()], []
        step = max(
            1, int(2**28 // self.cache.corrupt_logits.nbytes)
        )  # logits of a quarter of a gigabyte, and copies of them
        for part in final.split(step):
            x = part.detach().requires_grad_()
            with torch.enable_grad():
                reached = objective(self.model.unembed(x)[:, self.cache.inverse])
                grad += torch.autograd.grad(reached.mean(-1).sum(), x)
            value.append(reached.detach())
        return torch.cat(value), torch.cat(grad)

    def _no_gradient(self, values: np.ndarray, objective: Objective) -> tuple[Tensor, Tensor]:
        """No path from the input to the logits: nothing depends on the weights."""
        value = objective(self.corrupt_logits[None]).detach()
        return value.repeat(len(values), 1), self.clean_log_probs.new_zeros(values.shape)

    def _store(self, plan: Plan, which: str = "rows") -> Store:
        """Room for a plan's rows, or for their gradients: the last run's. Fresh pages cost as much as filling them."""
        size = Store.size(plan, self.cache.n_tokens, self.cache.n_pairs)
        if which not in self._buffers or len(self._buffers[which]) < size:
            self._buffers.pop(which, None)  # let go of the old one first
            self._buffers[which] = self.cache.input_difference.new_empty(size, self.model.spec.d_model)
        return Store(plan, self.cache.n_tokens, self.cache.n_pairs, self._buffers[which])

    def _streams_room(self, n_jobs: int) -> Tensor:
        size = n_jobs * self.cache.n_tokens
        if self._room is None or len(self._room) < size:
            self._room = self.cache.input_difference.new_empty(size, self.model.spec.d_model)
        return self._room

    def _kl(self, logits: Tensor) -> Tensor:
        """[C, batch] KL(model ‖ circuit) of distinct pairs' logits [C, B, V], summed over the vocabulary."""
        difference = logits.log_softmax(-1).sub_(self.clean_log_probs)
        return difference.mul_(self._clean_probs).sum(-1).neg_()[:, self.cache.inverse]

    @property
    def fused(self) -> bool:
        """Whether circuits and gradients run through the kernels of a CUDA device."""
        return kernels.available(self.cache.input_difference, self.cache.n_positions)

    def ground(self) -> Ground:
        if self._ground is None:
            self._ground = Ground.of(self.model, self.cache, self.tf32, self.half)
        return self._ground

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

    def _budget(self) -> float:
        """Bytes that a chunk of circuits may use."""
        if self._memory is not None:
            return self._memory
        if self.model.device.type == "cuda":
            device = self.model.device
            free, _ = torch.cuda.mem_get_info(device)
            allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
            return 0.4 * max(0.0, min(free + reserved - allocated, allowed_memory(device) - allocated))
        return 2 * 2**30

    def _edge_set(self, edges: np.ndarray | None) -> tuple[EdgeSet, np.ndarray | slice]:
        """The edges of a call, ascending, and how to bring its masks into that order. The last one is kept."""
        if edges is None:
            return self.graph.everything, slice(None)
        edges = np.asarray(edges)
        order = slice(None) if (np.diff(edges) > 0).all() else np.argsort(edges)
        key = edges[order]
        if self._last_edges is None or not np.array_equal(self._last_edges.edges, key):
            self._last_edges = EdgeSet(self.graph, key)
        return self._last_edges, order

    def _chunks(self, array: np.ndarray, copies: int = 1) -> Iterator[slice]:
        """Consecutive circuits whose rows and streams fit the budget together (an upper bound: nothing shared)."""
        s, spec = self.graph, self.model.spec
        kept = array.sum(1)
        rows = np.minimum(kept + 1, s.n_sources)
        per_row = self.cache.n_tokens * spec.d_model * self.model.embedding.element_size()
        per_stage = (
            2 * s.receivers_per_layer + 4 * spec.d_mlp / spec.d_model
        )  # streams of a layer, an MLP's hidden layer
        need = (rows * copies + per_stage) * per_row
        # on a CPU a circuit that keeps most of the graph is quickest by itself: its rows then lie one after the other
        alone = (kept > s.n_edges / 2) & (self.model.device.type == "cpu")
        return consecutive(need, self._budget(), _CIRCUITS_PER_CHUNK, alone)


def share_memory(device: torch.device, processes: int) -> None:
    """Of a GPU that so many processes work on, this one takes its part: an engine takes what it may have, see `_budget`."""
    torch.cuda.set_per_process_memory_fraction(
        0.95 / processes, device.index
    )  # the rest is what CUDA itself takes in each


def let_go() -> None:
    """Of a GPU's memory that is not needed any more: engines are large, and other processes may share the device."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def allowed_memory(device: torch.device) -> float:
    """Bytes of a GPU that this process may have: all, unless processes share it."""
    _, total = torch.cuda.mem_get_info(device)
    return total * torch.cuda.get_per_process_memory_fraction(device.index)


def consecutive(
    need: np.ndarray, budget: float, most: int, alone: np.ndarray | None = None
) -> Iterator[slice]:
    """Runs of at most `most` circuits whose `need` [C] fits the budget together; one that is to be `alone` is a run of its own."""
    first, total = 0, 0.0
    for i, size in enumerate(need):
        apart = alone is not None and (alone[i] or alone[i - 1])
        if i > first and (total + size > budget or i - first == most or apart):
            yield slice(first, i)
            first, total = i, 0.0
        total += size
    if first < len(need):
        yield slice(first, len(need))


Result = TypeVar("Result")


def fitting(chunks: Iterable[slice], run: Callable[[slice], Result]) -> Iterator[tuple[slice, Result]]:
    """Runs of circuits and their results. One that does not fit into memory after all is halved."""
    for chunk in chunks:
        todo = [chunk]
        while todo:
            some = todo.pop()
            try:
                result = run(some)
            except torch.cuda.OutOfMemoryError:
                if some.stop - some.start == 1:
                    raise OutOfMemory(
                        "one circuit does not fit into the device's memory: use fewer pairs"
                    ) from None
                middle = (some.start + some.stop) // 2
                todo += [slice(middle, some.stop), slice(some.start, middle)]
            else:
                yield some, result
                continue
            torch.cuda.empty_cache()  # not above: an exception that is being handled holds on to what did not fit


def _joined(parts: Sequence[tuple[Tensor, Tensor]], order: np.ndarray | slice) -> Gradient:
    """The values and gradients of all chunks, edges in the caller's order."""
    values, gradients = zip(*parts, strict=True)
    gradient = torch.cat(gradients)
    if isinstance(order, np.ndarray):
        to = torch.from_numpy(order).to(gradient.device)
        gradient = torch.empty_like(gradient).index_copy_(-1, to, gradient)
    return Gradient(torch.cat(values), gradient)


@dataclass(frozen=True)
class _Given:
    """The first `n` sources of a prefix."""

    prefix: Prefix
    n: int


class _Run:
    """One execution of a plan: the store of rows, stage after stage, and back again for gradients."""

    def __init__(
        self, engine: Engine, plan: Plan, weight: np.ndarray | None, given: _Given | None = None
    ) -> None:
        self.model, self.cache, self.plan, self.weight = engine.model, engine.cache, plan, weight
        like = self.cache.input_difference
        self.engine, self.store = engine, engine._store(plan)
        if given is None:
            self.store.full[0] = like
        else:
            self.store.full[: given.n] = given.prefix.rows[: given.n]
        # streams live for one stage only: without gradients they share one place (fresh pages cost as much as filling them)
        widest = max((len(stage.full) for stage in plan.stages), default=0)
        self._room = engine._streams_room(widest) if weight is None else None
        self._total, self._n_total = (
            torch.zeros_like(like),
            0,
        )  # of the rows so far, for circuits that keep everything
        self._blocks: dict[int, list[Block]] = {}
        with Shipment(plan, like.device) as ship:
            self.output = ship([plan.output + 1])
            attention = [s for s in plan.stages if s.kind == "attention"]
            self._index = {
                s.layer: attention_index(self.model, s, lambda array: ship([array])) for s in attention
            }

    def fill(self) -> None:
        """Computes all rows, stage by stage."""
        for stage in self.plan.stages:
            if stage.kind != "logits":
                x_full, x_last = self._normal(stage.full, stage, False), self._normal(stage.last, stage, True)
                self._components(stage, x_full, x_last, *self._slots(stage, self.store))

    def forward(self) -> Tensor:
        """Fills the store; returns the normalised last streams [outputs, B, d]."""
        self.fill()
        return self._normal(self.plan.stages[-1].last, self.plan.stages[-1], True)

    def backward(self, grad_finals: Sequence[Tensor], against: Store | None, groups: int = 1) -> list[Tensor]:
        """From d(objective)/d(normalised last stream) of several objectives to d(objective)/d(weight of every edge) [groups, n].

        Recomputes stage by stage.
        """
        assert self.weight is not None
        rows = [self.engine._store(self.plan, f"gradients {i}") for i in range(len(grad_finals))]
        results = [grad_final.new_zeros(groups, len(self.weight)) for grad_final in grad_finals]
        for grads in rows:
            grads.flat.zero_()
        for stage in reversed(self.plan.stages):
            with torch.no_grad():
                x_full = self._streams(stage.full, stage, False)
                x_last = self._streams(stage.last, stage, True)
            x_full.requires_grad_()
            x_last.requires_grad_()
            with torch.enable_grad():
                outputs = self.model.normalise(x_full), self.model.normalise(x_last)
                if stage.kind != "logits":
                    outputs = self._components(stage, *outputs)
            for grad_final, grads, result in zip(grad_finals, rows, results, strict=True):
                of_outputs = (grad_final[:0], grad_final)
                if stage.kind != "logits":
                    of_outputs = self._slots(stage, grads)
                some = [(o, g) for o, g in zip(outputs, of_outputs, strict=True) if len(o)]
                grad_x = torch.autograd.grad(
                    [o for o, _ in some],
                    [x_full, x_last],
                    [g for _, g in some],
                    allow_unused=True,
                    retain_graph=grads is not rows[-1],
                )
                self._backward_of_mix(stage, grad_x, grads, against, groups, result)
        return results

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
        x_full: Tensor,
        x_last: Tensor,
        out_full: Tensor | None = None,
        out_last: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        if stage.kind == "mlp":
            return mlp_stage(self.model, stage.layer, self.cache, x_full, x_last, out_full, out_last)
        return attention_stage(
            self.model, stage.layer, self.cache, self._index[stage.layer], x_full, x_last, out_full, out_last
        )

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
        """A stream that keeps everything needs only what was added since the last one, as in the plain model."""
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
