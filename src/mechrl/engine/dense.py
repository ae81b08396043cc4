"""A few circuits at a time on a GPU, without a plan: every row of every circuit is computed.

The edges of a layer's attention inputs are a rectangle [receivers, sources], so the mix is one batched product per layer,

    x_v = resid_corr(v) + Σ_u M_uv · row(u)        row(u) = a_now(u) − a_corr(u)

and shapes depend only on the model, the pairs and the number of circuits, which is padded to a bucket. On a CUDA device a run is captured
once as a graph and then replayed in one launch. It computes what a plan would skip (dead edges, repetition, positions that are not read);
for few circuits that is cheaper than planning. The MLP reads the heads of its layer and the sources that these heads read. Its sum over
these sources is one more row of the layer's product, so each layer reads all rows only once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from mechrl.engine.pairs_cache import PairsCache
from mechrl.models.base import Model, Spec, rotate

BUCKETS = (1, 4, 16, 64)
MOST = 16  # circuits per call; planning is faster for more


def bucket_of(n: int) -> int:
    """The smallest bucket that holds `n` circuits, else the largest."""
    return next((bucket for bucket in BUCKETS if bucket >= n), BUCKETS[-1])


def dense_bytes(spec: Spec, n_tokens: int, n_circuits: int, gradient: bool) -> int:
    """Bytes of a float32 run: rows and one layer's streams; for gradients also all layers' streams and the gradients of rows."""
    graph = spec.graph
    stream = n_tokens * spec.d_model
    layer = 3 * graph.receivers_per_layer * stream + 6 * n_tokens * spec.d_mlp
    rows = graph.n_sources * stream
    floats = 2 * rows + spec.n_layers * layer if gradient else rows + layer
    return 4 * n_circuits * (floats + 2 * graph.n_edges)


class Dense:
    """Runs `n_circuits` circuits: fill `masks`, call `forward` and, for gradients, `backward`.

    C circuits, E edges, S sources, R receivers of a layer's attention, N active tokens, B pairs, H heads, G KV heads, d model.
    """

    def __init__(self, model: Model, cache: PairsCache, n_circuits: int, gradient: bool) -> None:
        self.model, self.cache, self.graph, self.gradient = model, cache, model.graph, gradient
        self.n_readers = self.graph.receivers_per_layer - 1  # R
        like, S = cache.input_difference, self.graph.n_sources
        self.masks = like.new_zeros(n_circuits, self.graph.n_edges)  # [C, E]
        self.rows = like.new_empty(n_circuits, S, *like.shape)  # [C, S, N, d]
        self.rows[:, 0] = like
        self._kept: list[
            tuple[Tensor, Tensor]
        ] = []  # the streams of every stage, and what it computed from them
        if gradient:
            self.grad_final = like.new_zeros(n_circuits, cache.n_pairs, like.shape[1])
            self.grad_rows = torch.empty_like(self.rows)
            self.grad_masks = torch.empty_like(self.masks)
        self.forward = CudaGraph(self._forward, model.device)
        self.backward = CudaGraph(self._backward, model.device)

    # ---- forward ----------------------------------------------------------------------------------------------------

    def _forward(self) -> Tensor:
        """[C, B, d] the normalised final streams."""
        self._kept = []
        with torch.no_grad():
            for layer in range(self.graph.n_layers):
                self._layer(layer)
            weights = self.masks[:, None, self.graph.receiver_start[self.graph.logits] :]
            read = weights @ self._last_rows().flatten(2)
            stream = self.cache.resid_final + read.view(len(self.masks), self.cache.n_pairs, -1)
            return self._component(stream, self.model.normalise)

    def _layer(self, layer: int) -> None:
        H, R, corrupted = self.graph.n_heads, self.n_readers, self.cache.layers[layer]
        n = self.graph.n_sources_before(2 * layer)
        weights, of_heads = self._weights(layer)
        heads, mlp = self.rows[:, n : n + H], self.rows[:, n + H]
        mixed = (weights @ self.rows[:, :n].flatten(2)).view(len(weights), R + 1, *mlp.shape[1:])
        heads.copy_(
            self._component(mixed[:, :R] + corrupted.resid_attention, lambda x: self._heads(layer, x))
        )
        stream = mixed[:, R] + corrupted.resid_mlp + (of_heads @ heads.flatten(2)).view(mlp.shape)
        of_mlp = self.model.mlp[layer]
        mlp.copy_(self._component(stream, lambda x: of_mlp(self.model.normalise(x)) - corrupted.mlp))

    def _component(self, stream: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Computes a stage from its streams. Gradients need both input and output, so both are kept."""
        if not self.gradient:
            return compute(stream)
        with torch.enable_grad():
            result = compute(stream.requires_grad_())
        self._kept.append((stream, result))
        return result.detach()

    def _weights(self, layer: int) -> tuple[Tensor, Tensor]:
        """M of a layer: [C, R + 1, n] from the n sources before it to its attention and its MLP; [C, 1, H] from its heads to the MLP."""
        n, R, start = self.graph.n_sources_before(2 * layer), self.n_readers, self._start(layer)
        rectangle = self.masks[:, start : start + (R + 1) * n].view(len(self.masks), R + 1, n)
        return rectangle, self.masks[:, None, start + (R + 1) * n :][..., : self.graph.n_heads]

    def _start(self, layer: int) -> int:
        """The layer's first edge. The MLP's edges come after the attention rectangle, those from the same sources first."""
        return int(self.graph.receiver_start[self.graph.receiver(layer, "q")])

    def _heads(self, layer: int, stream: Tensor) -> Tensor:
        """[C, H, N, d] the rows of a layer's heads, from the streams [C, R, N, d] of their q, k and v."""
        weights, cache, corrupted = self.model.attention[layer], self.cache, self.cache.layers[layer]
        H, G, C = self.graph.n_heads, self.graph.n_kv_heads, len(stream)
        q, k, v = self.model.normalise(stream).split([H, G, G], dim=1)
        q = rotate(_project(q, weights.W_q) + weights.b_q[:, None], cache.token_rotary)
        k = rotate(_project(k, weights.W_k) + weights.b_k[:, None], cache.token_rotary)
        v = _project(v, weights.W_v) + weights.b_v[:, None]
        q, k, v = (self._padded(*of) for of in ((q, corrupted.q), (k, corrupted.k), (v, corrupted.v)))
        k, v = (x.repeat_interleave(H // G, 1).flatten(0, 1) for x in (k, v))
        z = scaled_dot_product_attention(q.flatten(0, 1), k, v, is_causal=True, scale=weights.scale)
        z = z.view(C, H, -1, z.shape[-1])  # [C, H, B · T, e]
        z = z if cache.all_active else z.index_select(2, cache.token_place)
        return _project(z - corrupted.z, weights.W_o)

    def _padded(self, x: Tensor, corrupted: Tensor) -> Tensor:
        """Scatters active tokens [C, h, N, e] into [C, h, B, T, e]; other positions are filled from the corrupted run."""
        whole = corrupted.flatten(1, 2).expand(len(x), -1, -1, -1)
        if not self.cache.all_active:
            x = whole.index_copy(2, self.cache.token_place, x)
        return x.reshape(len(x), *corrupted.shape)

    def _last_rows(self) -> Tensor:
        """[C, S, B, d] the rows at the prediction positions."""
        return self.rows.index_select(2, self.cache.last_token)

    # ---- backward ---------------------------------------------------------------------------------------------------

    def _backward(self) -> Tensor:
        """[C, E] d/dM, from `grad_final` [C, B, d]: d/d(normalised last streams)."""
        graph, kept = self.graph, list(self._kept)
        stream, result = kept.pop()
        last = _pulled(result, stream, self.grad_final)  # [C, B, d]
        start = int(graph.receiver_start[graph.logits])
        with torch.no_grad():
            of_edges = last.flatten(1)[:, None] @ self._last_rows().flatten(2).mT
            self.grad_masks[:, start:] = of_edges[:, 0]
            into = self.masks[:, start:, None, None] * last[:, None]  # [C, S, B, d]
            self.grad_rows.zero_().index_add_(2, self.cache.last_token, into)
        for layer in reversed(range(graph.n_layers)):
            of_mlp, of_attention = kept.pop(), kept.pop()
            self._layer_backward(layer, of_attention, of_mlp)
        return self.grad_masks

    def _layer_backward(
        self, layer: int, of_attention: tuple[Tensor, Tensor], of_mlp: tuple[Tensor, Tensor]
    ) -> None:
        H, R, n = self.graph.n_heads, self.n_readers, self.graph.n_sources_before(2 * layer)
        start, (weights, of_heads) = self._start(layer), self._weights(layer)
        C = len(weights)
        rows = [self.rows[:, part].flatten(2) for part in (slice(n), slice(n, n + H))]
        grads = [self.grad_rows[:, part].flatten(2) for part in (slice(n), slice(n, n + H))]
        to_mlp = _pulled(of_mlp[1], of_mlp[0], self.grad_rows[:, n + H]).flatten(1)[:, None]  # [C, 1, N · d]
        with torch.no_grad():
            end = start + (R + 1) * n
            self.grad_masks[:, end : end + H] = (to_mlp @ rows[1].mT)[:, 0]
            grads[1].baddbmm_(of_heads.mT, to_mlp)
        to_attention = _pulled(of_attention[1], of_attention[0], self.grad_rows[:, n : n + H]).flatten(2)
        with torch.no_grad():
            streams = torch.cat([to_attention, to_mlp], 1)  # [C, R + 1, N · d]
            self.grad_masks[:, start:end] = (streams @ rows[0].mT).view(C, -1)
            grads[0].baddbmm_(weights.mT, streams)


class CudaGraph:
    """Work with fixed shapes on tensors that stay in place: on a CUDA device captured once and replayed, elsewhere called directly."""

    def __init__(self, work: Callable[[], Tensor], device: torch.device) -> None:
        self.work, self.device = work, device
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> Tensor:
        if self.device.type != "cuda":
            return self.work()
        if self._graph is None:
            self._capture()
        assert self._graph is not None
        self._graph.replay()
        return self._result

    def _capture(self) -> None:
        aside = torch.cuda.Stream(self.device)
        aside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(aside):  # in the first call, libraries allocate their working memory
            self.work()
        torch.cuda.current_stream(self.device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._result = self.work()
        self._graph = graph


class FewCircuits:
    """The dense runs of a batch of pairs, one per bucket."""

    def __init__(self, model: Model, cache: PairsCache) -> None:
        self.model, self.cache = model, cache
        self._runs: dict[tuple[int, bool], Dense] = {}
        self._places: tuple[np.ndarray, Tensor] | None = None

    def final(self, values: np.ndarray, edges: np.ndarray) -> Tensor:
        """[C, B, d] the normalised final streams of circuits [C, n], bool or float, over `edges` [n]. Valid until the next call."""
        run = self._filled(values, edges, gradient=False)
        return run.forward()[: len(values)]

    def gradient(
        self,
        values: np.ndarray,
        edges: np.ndarray,
        objective: Callable[[Tensor], tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor]:
        """The objective's value, and its gradient [C, n] by the masks. `objective` maps final streams to (value, gradient by them)."""
        run = self._filled(values, edges, gradient=True)
        value, grad_final = objective(run.forward()[: len(values)])
        run.grad_final.zero_()[: len(values)] = grad_final
        return value, run.backward()[: len(values)].index_select(1, self._on_device(edges))

    def _filled(self, values: np.ndarray, edges: np.ndarray, gradient: bool) -> Dense:
        bucket = bucket_of(len(values))
        key = bucket, gradient
        if key not in self._runs:
            self._runs[key] = Dense(self.model, self.cache, bucket, gradient)
        run = self._runs[key]
        there = torch.from_numpy(values).to(run.masks.device).to(run.masks.dtype)
        run.masks.zero_()[: len(values)].index_copy_(1, self._on_device(edges), there)
        return run

    def _on_device(self, edges: np.ndarray) -> Tensor:
        if self._places is None or self._places[0] is not edges:
            self._places = edges, torch.from_numpy(edges).to(self.model.device)
        return self._places[1]


def _project(x: Tensor, weight: Tensor) -> Tensor:
    """x [C, h, N, a] times each head's weight [h, a, b]: [C, h, N, b]."""
    C, h, N, _ = x.shape
    flat = x.transpose(0, 1).reshape(h, C * N, -1)
    return torch.bmm(flat, weight).view(h, C, N, -1).transpose(0, 1)


def _pulled(result: Tensor, stream: Tensor, grad: Tensor) -> Tensor:
    """d/d(stream) from d/d(result). Keeps the graph, because a capture traverses it more than once."""
    return torch.autograd.grad(result, stream, grad, retain_graph=True)[0]
