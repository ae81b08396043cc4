"""Circuits of several behaviours in one call. On a GPU a call of a few circuits costs as much as one of a hundred."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from mechrl.engine import kernels
from mechrl.engine.engine import Engine, consecutive
from mechrl.engine.fused import FusedRun, Ground
from mechrl.engine.pairs_cache import join
from mechrl.engine.plan import make_plan
from mechrl.errors import MechRLError
from mechrl.graph import EdgeSet

_CIRCUITS_PER_CHUNK = 64  # so that the next chunk is planned while this one runs
_MEMORY = 8 * 2**30  # bytes of rows in a chunk


class ManyEngines:
    """Engines, one a behaviour, each with its own candidate set. Passes are charged to each engine as if asked alone."""

    def __init__(self, engines: Sequence[Engine], edges: Sequence[np.ndarray]) -> None:
        """`edges`: for every engine the ascending edges that its masks speak of."""
        self.engines, self.edges = list(engines), [np.asarray(e) for e in edges]
        model, caches = engines[0].model, [engine.cache for engine in engines]
        together = all(engine.model is model for engine in engines)
        self.fused = together and kernels.available(caches[0].input_difference, max(c.n_positions for c in caches))
        if self.fused:
            self.edge_set = EdgeSet(model.graph, np.unique(np.concatenate(self.edges)))
            self._columns = [np.searchsorted(self.edge_set.edges, e) for e in self.edges]
            cache = join(caches)
            tokens, pairs = [c.n_tokens for c in caches], [c.n_pairs for c in caches]
            bounds = np.array([[0, *np.cumsum(tokens)], [0, *np.cumsum(pairs)]])
            self._ground = Ground(model, cache, bounds, engines[0].tf32, engines[0].half)
            device = model.device
            # f = 1 − Σ_pairs share · KL / KL_cut, where pairs that occur several times in a batch were computed once
            count = torch.bincount(cache.inverse, minlength=cache.n_pairs)
            n = torch.tensor([engine.n_pairs * engine.kl_cut for engine in engines], dtype=torch.float64, device=device)
            group = torch.repeat_interleave(torch.arange(len(pairs), device=device), torch.tensor(pairs, device=device))
            self._share = count / n[group]  # [pairs of all groups], float64
            self._probs = torch.cat([engine.clean_log_probs for engine in engines]).exp()  # [pairs of all groups, V]
            self._entropy = torch.cat([-(e.clean_log_probs.exp() * e.clean_log_probs).sum(-1) for e in engines])

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
        array = np.zeros((len(which), len(self.edge_set.edges)), dtype=bool)
        for g, columns in enumerate(self._columns):
            mine = np.flatnonzero(which == g)
            array[mine[:, None], columns] = masks[mine, : len(columns)]
            self.engines[g]._charge(len(mine), 1)
        with torch.no_grad(), self.engines[0]._precision():
            parts = [self._chunk(which[chunk], array[chunk]) for chunk in self._chunks(which, array)]
        f = torch.cat(parts).cpu().numpy() if parts else np.empty(0)
        if not np.isfinite(f).all():
            raise MechRLError("an activation is beyond the range of half precision; run this model without it")
        return f

    def mask_gradients(self, which: np.ndarray, masks: np.ndarray, alpha: Sequence[float]) -> np.ndarray:
        """[C, width of masks] float64: minus the average over `alpha` of ∂(KL / KL_cut)/∂M at αM, for the edges that M keeps.

        Zero for the edges that it cuts. With the midpoints (k + ½)/m for `alpha` these are `attribution.integrated_mask_gradients`
        of every circuit, and add up to its f.
        """
        which = np.asarray(which, dtype=np.int64)
        result = np.zeros(masks.shape)
        for i, g in enumerate(which):
            engine, edges = self.engines[g], self.edges[g]
            kept = np.flatnonzero(masks[i, : len(edges)])
            weights = np.repeat(np.array(alpha)[:, None], len(kept), axis=1)
            gradient = engine.gradient(weights, edges[kept]).gradient.double().cpu().numpy()
            result[i, kept] = -gradient.mean(0) / engine.kl_cut
        return result

    def _chunk(self, which: np.ndarray, array: np.ndarray) -> torch.Tensor:
        plan = make_plan(self.edge_set, array, group=which)
        ground = self._ground
        run = FusedRun(ground, plan)
        distance = self._share.new_ones(plan.n_outputs + 1)  # 1 − f; first the circuits that are their corrupted selves
        if plan.n_outputs:
            n_inputs = int(run.full_begin[int(which.max()) + 1])
            final = run.forward(ground.cache.input_difference[:n_inputs])
            group = plan.stages[-1].last.group
            sizes = ground.sizes[1][group]
            job = np.repeat(np.arange(len(group)), sizes)
            first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
            pair = np.arange(len(job)) - first[job] + np.concatenate([[0], np.cumsum(ground.sizes[1])])[group][job]
            index = torch.from_numpy(np.stack([job, pair]))
            job_there, pair_there = (index.pin_memory() if final.is_cuda else index).to(final.device, non_blocking=True)
            step = max(1, 2**28 // self._probs.shape[1])  # logits of about a gigabyte
            kl = []
            for i in range(0, len(final), step):
                logits, of = ground.model.unembed(final[i : i + step]), pair_there[i : i + step]
                # Σ p (log p − log q) = Σ p log p − Σ p · logit + log Σ exp logit
                kl.append(logits.logsumexp(-1) - (self._probs[of] * logits).sum(-1) - self._entropy[of])
            distance[1:] = 0
            distance.index_add_(0, job_there + 1, torch.cat(kl).double() * self._share[pair_there])
        return 1 - distance[run.output]

    def _chunks(self, which: np.ndarray, array: np.ndarray) -> Iterator[slice]:
        """Consecutive circuits whose rows fit the memory together (an upper bound: nothing shared)."""
        spec, graph = self._ground.model.spec, self._ground.model.graph
        rows = np.minimum(array.sum(1) + 1, graph.n_sources)
        need = rows * self._ground.sizes[0][which] * spec.d_model * self._ground.dtype.itemsize
        return consecutive(need, _MEMORY, _CIRCUITS_PER_CHUNK)
