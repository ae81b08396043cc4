"""What the engine computes once per batch of pairs: the corrupted run, and where the two prompts differ.

Every circuit starts from the corrupted run: a receiver sees `resid_corr(v) + Σ_u M_uv (a_now(u) − a_corr(u))`. Attention is causal, so
positions before the first token in which a pair's prompts differ are the same in every circuit, and those after the prediction position
do not matter. The engine computes only the N remaining (pair, position)s, the *active tokens*, as one flat list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from mechrl.errors import MechRLError
from mechrl.models.base import Model

Tokens = Sequence[Sequence[int]]


@dataclass(frozen=True)
class LayerCache:
    """One layer of the corrupted run. B pairs, T positions, N active tokens, H heads, G KV heads, d model, e head width."""

    resid_attention: Tensor  # [N, d] what the heads read, before the norm
    resid_mlp: Tensor  # [N, d] what the MLP reads, before the norm
    q: Tensor  # [H, B, T, e], rotated
    k: Tensor  # [G, B, T, e], rotated
    v: Tensor  # [G, B, T, e]
    z: Tensor  # [H, N, e] what the heads attend to, before the output projection
    mlp: Tensor  # [N, d] the MLP's output
    last: LayerLast


@dataclass(frozen=True)
class LayerLast:
    """The same at the prediction positions [B, d]."""

    resid_attention: Tensor
    resid_mlp: Tensor
    mlp: Tensor


@dataclass(frozen=True)
class PairsCache:
    """The distinct pairs of a batch and their corrupted run. `inverse` maps each pair of the batch to its distinct one."""

    inverse: Tensor  # [batch] into B
    n_positions: int  # T, the longest prompt
    token_place: Tensor  # [N] pair · T + position of every active token
    token_rotary: tuple[Tensor, Tensor] | None  # cos and sin at every active token ...
    last_rotary: tuple[Tensor, Tensor] | None  # ... and at every prediction position
    layout: Tensor  # [B, 3] first active position, number of positions, first active token
    last_token: Tensor  # [B] index of the prediction position in the list of active tokens
    last_position: Tensor  # [B]
    input_difference: Tensor  # [N, d] e_clean − e_corr, the input node's row
    layers: tuple[LayerCache, ...]
    resid_final: Tensor  # [B, d] what the logits read, at the prediction position
    clean_logits: Tensor  # [B, V]
    corrupt_logits: Tensor  # [B, V]

    @property
    def n_pairs(self) -> int:
        return len(self.last_token)

    @property
    def n_tokens(self) -> int:
        return len(self.token_place)

    @property
    def all_active(self) -> bool:
        """Whether every (pair, position) is an active token, so that nothing needs scattering."""
        return self.n_tokens == self.n_pairs * self.n_positions

    def groups(self, n: int) -> tuple[list[slice], list[slice]]:
        """`n` groups of consecutive pairs, as equal in size as possible: their slices of the pairs and of the active tokens."""
        bounds = np.linspace(0, self.n_pairs, n + 1).round().astype(int).tolist()
        first = [*self.layout[:, 2].tolist(), self.n_tokens]
        pairs = [slice(a, b) for a, b in pairwise(bounds)]
        return pairs, [slice(first[s.start], first[s.stop]) for s in pairs]


def join(caches: Sequence[PairsCache]) -> PairsCache:
    """Joins the caches of several batches: their pairs, and their active tokens, back to back."""
    T = max(c.n_positions for c in caches)
    first_token = np.cumsum([0, *(c.n_tokens for c in caches)])
    first_pair = np.cumsum([0, *(c.n_pairs for c in caches)])

    def rotary(of: Sequence[tuple[Tensor, Tensor] | None]) -> tuple[Tensor, Tensor] | None:
        some = [pair for pair in of if pair is not None]
        return (torch.cat([cos for cos, _ in some]), torch.cat([sin for _, sin in some])) if some else None

    def cat(name: str, shift: np.ndarray | None = None) -> Tensor:
        return torch.cat(
            [getattr(c, name) + (0 if shift is None else int(shift[i])) for i, c in enumerate(caches)]
        )

    layout = torch.cat(
        [c.layout + c.layout.new_tensor([0, 0, int(first_token[i])]) for i, c in enumerate(caches)]
    )
    place = [
        c.token_place // c.n_positions * T + c.token_place % c.n_positions + int(first_pair[i]) * T
        for i, c in enumerate(caches)
    ]
    return PairsCache(
        inverse=cat("inverse", first_pair),
        n_positions=T,
        token_place=torch.cat(place),
        token_rotary=rotary([c.token_rotary for c in caches]),
        last_rotary=rotary([c.last_rotary for c in caches]),
        layout=layout,
        last_token=cat("last_token", first_token),
        last_position=cat("last_position"),
        input_difference=cat("input_difference"),
        layers=tuple(_join_layers(parts, T) for parts in zip(*(c.layers for c in caches), strict=True)),
        resid_final=cat("resid_final"),
        clean_logits=cat("clean_logits"),
        corrupt_logits=cat("corrupt_logits"),
    )


def _join_layers(parts: Sequence[LayerCache], n_positions: int) -> LayerCache:
    def cat(name: str, axis: int = 0) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts], axis)

    def longer(name: str) -> Tensor:
        """Pads [.., B, positions, e] to [.., B, n_positions, e]; the padding is never read."""
        states = [getattr(part, name) for part in parts]
        return torch.cat([pad(x, (0, 0, 0, n_positions - x.shape[2])) for x in states], 1)

    names = ("resid_attention", "resid_mlp", "mlp")
    return LayerCache(
        resid_attention=cat("resid_attention"),
        resid_mlp=cat("resid_mlp"),
        q=longer("q"),
        k=longer("k"),
        v=longer("v"),
        z=cat("z", 1),
        mlp=cat("mlp"),
        last=LayerLast(*(torch.cat([getattr(part.last, name) for part in parts]) for name in names)),
    )


def cache_pairs(model: Model, clean: Tokens, corrupt: Tokens) -> PairsCache:
    """Checks a batch of pairs, runs the model on both prompts, and keeps what circuits need."""
    unique, inverse = _distinct(model, clean, corrupt)
    lengths = [len(a) for a, _ in unique]
    B, T = len(unique), max(lengths)
    device = model.device
    # padding is never attended to: it comes after every real token
    tokens = np.zeros((2, B, T), dtype=np.int64)
    place: list[int] = []
    position: list[int] = []
    last_token: list[int] = []
    layout: list[tuple[int, int, int]] = []
    for i, (a, b) in enumerate(unique):
        tokens[0, i, : len(a)], tokens[1, i, : len(b)] = a, b
        first = next((t for t, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a) - 1)
        layout.append((first, len(a), len(place)))
        place += [i * T + t for t in range(first, len(a))]
        position += range(first, len(a))
        last_token.append(len(place) - 1)
    clean_ids, corrupt_ids = torch.from_numpy(tokens).to(device)
    token_place = torch.tensor(place, device=device)
    last = torch.tensor(lengths, device=device) - 1
    last_place = torch.arange(B, device=device) * T + last

    with torch.no_grad():
        clean_final, _ = plain_forward(model, clean_ids, last_place, None)
        corrupt_final, layers = plain_forward(model, corrupt_ids, last_place, token_place)
        embedding = model.embedding
        difference = (
            embedding[clean_ids.flatten()[token_place]] - embedding[corrupt_ids.flatten()[token_place]]
        )
        return PairsCache(
            inverse=torch.tensor(inverse, device=device),
            n_positions=T,
            token_place=token_place,
            token_rotary=model.rotary(torch.tensor(position, device=device)),
            last_rotary=model.rotary(last),
            layout=torch.tensor(layout, device=device),
            last_token=torch.tensor(last_token, device=device),
            last_position=last,
            input_difference=difference,
            layers=tuple(layers),
            resid_final=corrupt_final,
            clean_logits=model.unembed(model.normalise(clean_final)),
            corrupt_logits=model.unembed(model.normalise(corrupt_final)),
        )


def plain_forward(
    model: Model, ids: Tensor, last_place: Tensor, keep: Tensor | None
) -> tuple[Tensor, list[LayerCache]]:
    """The unmasked model on ids [B, T]: the last residual stream at `last_place`, and the cache at the places `keep`."""
    B, T = ids.shape
    H, G = model.spec.n_heads, model.spec.n_kv_heads
    position = torch.arange(T, device=ids.device)
    x = model.embedding[ids.flatten()]  # [B·T, d]
    if model.position is not None:
        x = x + model.position[:T].repeat(B, 1)
    layers: list[LayerCache] = []
    for attention, mlp in zip(model.attention, model.mlp, strict=True):
        resid_attention = x
        normal = model.normalise(x)

        def read(W: Tensor, b: Tensor, normal: Tensor = normal) -> Tensor:  # [n, B, T, e]
            return (normal @ W + b[:, None]).reshape(len(W), B, T, -1)

        q = model.rotate(read(attention.W_q, attention.b_q), position)
        k = model.rotate(read(attention.W_k, attention.b_k), position)
        v = read(attention.W_v, attention.b_v)
        z = scaled_dot_product_attention(
            q,
            k.repeat_interleave(H // G, 0),
            v.repeat_interleave(H // G, 0),
            is_causal=True,
            scale=attention.scale,
        ).reshape(H, B * T, -1)
        x = x + (z.transpose(0, 1).reshape(B * T, -1) @ attention.W_o.flatten(0, 1) + attention.b_o)
        resid_mlp = x
        out = mlp(model.normalise(x))
        x = x + out
        if keep is not None:
            last = LayerLast(resid_attention[last_place], resid_mlp[last_place], out[last_place])
            layers.append(
                LayerCache(resid_attention[keep], resid_mlp[keep], q, k, v, z[:, keep], out[keep], last)
            )
    return x[last_place], layers


def _distinct(
    model: Model, clean: Tokens, corrupt: Tokens
) -> tuple[list[tuple[Sequence[int], Sequence[int]]], list[int]]:
    """The distinct pairs, and which of them each pair is. Refuses what cannot be run."""
    if not len(clean) or len(clean) != len(corrupt):
        raise MechRLError(
            f"need as many corrupted as clean prompts and at least one; got {len(clean)} and {len(corrupt)}"
        )
    unique: dict[tuple[Sequence[int], Sequence[int]], int] = {}
    inverse = []
    for i, (a, b) in enumerate(zip(clean, corrupt, strict=True)):
        a, b = tuple(int(t) for t in a), tuple(int(t) for t in b)
        if len(a) != len(b) or not a:
            raise MechRLError(
                f"pair {i}: the clean prompt has {len(a)} tokens, the corrupted one {len(b)}; they must be equally long"
            )
        if len(a) > model.spec.n_ctx:
            raise MechRLError(f"pair {i}: {len(a)} tokens exceed the model's context of {model.spec.n_ctx}")
        if not all(0 <= t < model.spec.vocab_size for t in a + b):
            raise MechRLError(
                f"pair {i}: a token id is outside the model's vocabulary of {model.spec.vocab_size}"
            )
        inverse.append(unique.setdefault((a, b), len(unique)))
    return list(unique), inverse
