"""Circuits of several behaviours in one call. On a GPU, a call with a few circuits takes as long as one with a hundred."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from mechrl.engine import kernels
from mechrl.engine.backward import FusedGradient, gradient_bytes
from mechrl.engine.engine import Engine
from mechrl.engine.fused import FusedRun, RunContext, first_tokens
from mechrl.engine.memory import allowed_memory, consecutive, fitting
from mechrl.engine.pairs_cache import join
from mechrl.engine.plan import Plan, make_plan
from mechrl.errors import MechRLError
from mechrl.graph import EdgeSet

_CIRCUITS_PER_CHUNK = 64  # small enough that the next chunk is planned while this one runs
_MEMORY = 3 * 2**30  # bytes of rows in a chunk; at most a fifth of what this process may use
_GRADIENT_MEMORY = 4 * 2**30  # bytes for all that a chunk's gradients need; at most three tenths


class ManyEngines:
    """One engine per behaviour, each with its own candidate set. Every engine is charged as if it were called alone."""

    def __init__(self, engines: Sequence[Engine], edges: Sequence[np.ndarray]) -> None:
        """`edges`: for every engine, the edges that its masks cover, ascending."""
        self.engines, self.edges = list(engines), [np.asarray(e) for e in edges]
        model, caches = engines[0].model, [engine.cache for engine in engines]
        together = all(engine.model is model for engine in engines)
        self.fused = together and kernels.available(
            caches[0].input_difference, max(c.n_positions for c in caches)
        )
        if self.fused:
            self.edge_set = EdgeSet(model.graph, np.unique(np.concatenate(self.edges)))
            self._columns = [np.searchsorted(self.edge_set.edges, e) for e in self.edges]
            # the way back
            self._own_column = np.zeros((len(engines), len(self.edge_set.edges)), dtype=np.int64)
            for own, columns in zip(self._own_column, self._columns, strict=True):
                own[columns] = np.arange(len(columns))
            cache = join(caches)
            tokens, pairs = [c.n_tokens for c in caches], [c.n_pairs for c in caches]
            bounds = np.array([[0, *np.cumsum(tokens)], [0, *np.cumsum(pairs)]])
            self._context = RunContext(model, cache, bounds, engines[0].tf32, engines[0].half)
            device = model.device
            self._allowed = allowed_memory(device)
            # f = 1 − Σ_pairs share · KL / KL_cut; a pair that occurs several times in a batch is computed once
            count = torch.bincount(cache.inverse, minlength=cache.n_pairs)
            n = torch.tensor(
                [engine.n_pairs * engine.kl_cut for engine in engines], dtype=torch.float64, device=device
            )
            group = torch.repeat_interleave(
                torch.arange(len(pairs), device=device), torch.tensor(pairs, device=device)
            )
            self._share = count / n[group]  # [pairs of all groups], float64
            self._probs = torch.cat(
                [engine.clean_log_probs for engine in engines]
            ).exp()  # [pairs of all groups, V]
            self._entropy = torch.cat(
                [-(e.clean_log_probs.exp() * e.clean_log_probs).sum(-1) for e in engines]
            )

    def faithfulness(self, which: np.ndarray, masks: np.ndarray) -> np.ndarray:
        """[C] float64 f of every circuit: masks [C, at least n] bool over the edges of engine `which` [C]."""
        which = np.asarray(which, dtype=np.int64)
        if not self.fused:
            f = np.empty(len(which))
            for g, (engine, edges) in enumerate(zip(self.engines, self.edges, strict=True)):
                mine = which == g
                if mine.any():
                    f[mine] = engine.faithfulness(masks[mine, : len(edges)], edges).double().cpu().numpy()
            return f
        array = self._over_all_edges(which, masks, passes=1)
        with torch.no_grad(), self.engines[0]._precision():
            found = fitting(self._chunks(which, array), lambda some: self._chunk(which[some], array[some]))
            parts = [part for _, part in found]
        f = torch.cat(parts).cpu().numpy() if parts else np.empty(0)
        if not np.isfinite(f).all():
            raise MechRLError(
                "an activation is beyond the range of half precision; run this model without it"
            )
        return f

    def gradients(self, which: np.ndarray, weights: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """[C, width] float64: −∂(KL / KL_cut)/∂M of the edges `wanted`, at real-valued masks `weights`. All other edges are cut."""
        which = np.asarray(which, dtype=np.int64)
        if not self.fused:
            result = np.zeros(weights.shape)
            for i, g in enumerate(which):
                engine, kept = self.engines[g], np.flatnonzero(wanted[i, : len(self.edges[g])])
                gradient = engine.gradient(weights[i : i + 1, kept], self.edges[g][kept]).gradient[0]
                result[i, kept] = -gradient.double().cpu().numpy() / engine.kl_cut
            return result
        array = self._over_all_edges(which, wanted, passes=3)
        weight = np.zeros(array.shape, dtype=np.float32)
        for i, g in enumerate(which):
            weight[i, self._columns[g]] = weights[i, : len(self.edges[g])]
        need = self._context.sizes[0][which] * gradient_bytes(
            self._context.model.spec, self.edge_set.edges, array
        )
        places, parts = [np.zeros(0, dtype=np.int64)], [torch.zeros(0, device=self._share.device)]
        width = weights.shape[1]
        with torch.no_grad(), self.engines[0]._precision():
            chunks = consecutive(need, min(_GRADIENT_MEMORY, 0.3 * self._allowed), _CIRCUITS_PER_CHUNK)

            def run(some: slice) -> tuple[np.ndarray, Tensor]:
                return self._gradient_chunk(which[some], array[some], weight[some])

            for some, (edge, gradient) in fitting(chunks, run):
                place, column = np.divmod(edge, array.shape[1])
                circuit = some.start + place
                places.append(circuit * width + self._own_column[which[circuit], column])
                parts.append(gradient)
        found = torch.cat(parts).double().cpu().numpy()
        if not np.isfinite(found).all():
            raise MechRLError("a gradient is beyond the range of half precision; run this model without it")
        return -np.bincount(np.concatenate(places), found, minlength=len(which) * width).reshape(-1, width)

    def _over_all_edges(self, which: np.ndarray, masks: np.ndarray, passes: int) -> np.ndarray:
        """The masks, over the union of all candidate sets. Charges `passes` for each."""
        array = np.zeros((len(which), len(self.edge_set.edges)), dtype=bool)
        for g, columns in enumerate(self._columns):
            mine = np.flatnonzero(which == g)
            array[mine[:, None], columns] = masks[mine, : len(columns)]
            self.engines[g]._charge(len(mine), passes)
        return array

    def _chunk(self, which: np.ndarray, array: np.ndarray) -> Tensor:
        plan = make_plan(self.edge_set, array, group=which)
        run = FusedRun(self._context, plan)
        # 1 − f; first the circuits that are their corrupted selves
        distance = self._share.new_ones(plan.n_outputs + 1)
        if plan.n_outputs:
            final = run.forward(self._inputs(run, which))
            job, pair = self._outputs(plan)
            kl = []
            for x, of in self._some(final, pair):
                logits = self._context.model.unembed(x)
                # Σ p (log p − log q) = Σ p log p − Σ p · logit + log Σ exp logit
                kl.append(logits.logsumexp(-1) - (self._probs[of] * logits).sum(-1) - self._entropy[of])
            distance[1:] = 0
            distance.index_add_(0, job + 1, torch.cat(kl).double() * self._share[pair])
        return 1 - distance[run.output]

    def _gradient_chunk(
        self, which: np.ndarray, array: np.ndarray, weight: np.ndarray
    ) -> tuple[np.ndarray, Tensor]:
        """∂(KL / KL_cut)/∂w at `weight` [C, edges] for the edges in `array`: their entries in the flattened masks, and their gradients."""
        plan = make_plan(self.edge_set, array, share=False, group=which)
        run = FusedGradient(self._context, plan)
        model = self._context.model
        if not plan.n_outputs:
            return run.edge, self._probs.new_zeros(0)
        of_edges = torch.from_numpy(weight[np.divmod(run.edge, array.shape[1])])
        final = run.run(self._inputs(run, which), self._there(of_edges))
        _, pair = self._outputs(plan)
        grad = []
        for x, of in self._some(final, pair):
            # ∂KL/∂logit = q − p
            of_logits = model.unembed(x).softmax(-1).sub_(self._probs[of]).mul_(self._share[of, None].float())
            grad.append(of_logits @ model.unembedding * model.final_gain)
        return run.edge, run.backward(torch.cat(grad))

    def _inputs(self, run: FusedRun, which: np.ndarray) -> Tensor:
        """The input rows of the groups in this run, which come first."""
        return self._context.cache.input_difference[: int(run.full_begin[int(which.max()) + 1])]

    def _outputs(self, plan: Plan) -> tuple[Tensor, Tensor]:
        """The output, and the pair among those of all groups, of each normalised final stream that a run returns."""
        group, sizes = plan.stages[-1].last.group, self._context.sizes[1]
        job = np.repeat(np.arange(len(group)), sizes[group])
        pair = np.arange(len(job)) - first_tokens(sizes[group])[job] + first_tokens(sizes)[group][job]
        job_there, pair_there = self._there(torch.from_numpy(np.stack([job, pair])))
        return job_there, pair_there

    def _some(self, final: Tensor, pair: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Streams and their pairs, in parts whose logits take at most a quarter of a gigabyte."""
        step = max(1, 2**26 // self._probs.shape[1])
        return zip(final.split(step), pair.split(step), strict=True)

    def _there(self, x: Tensor) -> Tensor:
        device = self._share.device
        return (x.pin_memory() if device.type == "cuda" else x).to(device, non_blocking=True)

    def _chunks(self, which: np.ndarray, array: np.ndarray) -> Iterator[slice]:
        """Consecutive circuits whose rows fit into memory together, even if they share nothing."""
        spec, graph = self._context.model.spec, self._context.model.graph
        rows = np.minimum(array.sum(1) + 1, graph.n_sources)
        need = rows * self._context.sizes[0][which] * spec.d_model * self._context.dtype.itemsize
        return consecutive(need, min(_MEMORY, 0.2 * self._allowed), _CIRCUITS_PER_CHUNK)
