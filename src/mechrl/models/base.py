"""A language model as components: what each node computes from its own copy of the residual stream.

Two transformations apply to every architecture. Norm gains and shifts are folded into the weights that read the normalised stream,
W(γ·x̂ + β) + b = (Wγ)x̂ + (Wβ + b), so norms have no parameters and all receivers of a layer can share one. And q, k, v and the
output projection are stored per head, because a head is a node.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Tensor

from mechrl.errors import MechRLError
from mechrl.graph import Graph

if TYPE_CHECKING:
    from mechrl.models.tokenizer import Tokenizer


@dataclass(frozen=True)
class Spec:
    """The shape of a model: everything about it that the graph and the engine need."""

    architecture: Literal["gpt2", "llama"]
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_model: int
    d_head: int
    d_mlp: int
    vocab_size: int
    n_ctx: int
    norm: Literal["layer", "rms"]  # LayerNorm centres, RMSNorm does not
    eps: float

    @property
    def graph(self) -> Graph:
        """The graph of a model of this shape."""
        return Graph(self.n_layers, self.n_heads, self.n_kv_heads)


@dataclass(frozen=True)
class Attention:
    """One layer's heads: H heads, G KV heads, model width d, head width e. The norm is folded into q, k and v."""

    W_q: Tensor  # [H, d, e]
    W_k: Tensor  # [G, d, e]
    W_v: Tensor  # [G, d, e]
    b_q: Tensor  # [H, e]
    b_k: Tensor  # [G, e]
    b_v: Tensor  # [G, e]
    W_o: Tensor  # [H, e, d]
    b_o: Tensor  # [d]; belongs to no node
    scale: float  # of q·k


@dataclass(frozen=True)
class MLP:
    """One layer's MLP, with the norm folded in. `W_gate` is None for an MLP without a gate."""

    W_in: Tensor  # [d, m]
    b_in: Tensor  # [m]
    W_gate: Tensor | None  # [d, m]
    b_gate: Tensor | None  # [m]
    W_out: Tensor  # [m, d]
    b_out: Tensor  # [d]
    activation: str

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """The output, bias included, for the normalised stream [..., d]. Written to `out` [n, d] if given, which may be x itself."""
        flat = x.reshape(-1, x.shape[-1])
        hidden = torch.addmm(self.b_in, flat, self.W_in)
        if self.W_gate is None or self.b_gate is None:
            hidden = self.activate(hidden)
        else:
            hidden = self.activate(torch.addmm(self.b_gate, flat, self.W_gate)) * hidden
        return torch.addmm(self.b_out, hidden, self.W_out, out=out).reshape(x.shape)

    def activate(self, hidden: Tensor) -> Tensor:
        return _ACTIVATIONS[self.activation](hidden)


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_new": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "gelu": torch.nn.functional.gelu,
    "relu": torch.nn.functional.relu,
    "silu": torch.nn.functional.silu,
    "swish": torch.nn.functional.silu,
}


def check_activation(name: str) -> str:
    if name not in _ACTIVATIONS:
        raise MechRLError(f"activation {name!r} is not supported; known: {', '.join(sorted(_ACTIVATIONS))}")
    return name


@dataclass(frozen=True)
class Model:
    """A frozen language model, as `load_model` returns it.

    `embedding` is the input node. Positions are learned (`position`) or rotary (`inverse_frequency`) and belong to no node. The final
    norm is not folded, because only one position is unembedded.
    """

    name: str
    spec: Spec
    embedding: Tensor  # [V, d]
    position: Tensor | None  # [n_ctx, d]
    inverse_frequency: Tensor | None  # [e / 2]
    rotary_scale: float
    attention: tuple[Attention, ...]
    mlp: tuple[MLP, ...]
    final_gain: Tensor  # [d]
    final_shift: Tensor  # [d]
    unembedding: Tensor  # [V, d]
    checksum: str = ""  # sha256 over the weights as loaded
    tokenizer: Tokenizer | None = None
    # of the hub's repository, if the model came from there; the same name may later have other weights
    commit: str | None = None

    @property
    def graph(self) -> Graph:
        """The graph of what can be cut."""
        return self.spec.graph

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the weights."""
        return self.embedding.dtype

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """A copy on another device or in another precision."""

        def move(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.to(device=device, dtype=dtype)
            if isinstance(value, tuple):
                return tuple(move(v) for v in value)
            if isinstance(value, Attention | MLP):
                return replace(value, **{f.name: move(getattr(value, f.name)) for f in fields(value)})
            return value

        return replace(self, **{f.name: move(getattr(self, f.name)) for f in fields(self)})

    # ---- what the components compute --------------------------------------------------------------------------------

    def normalise(self, x: Tensor) -> Tensor:
        """The parameter-free norm of the residual stream, x̂."""
        if self.spec.norm == "layer":
            return torch.nn.functional.layer_norm(x, x.shape[-1:], eps=self.spec.eps)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.spec.eps)

    def normalise_(self, x: Tensor) -> Tensor:
        """`normalise` in place, for runs without gradients."""
        if self.spec.norm == "layer":
            x -= x.mean(-1, keepdim=True)
        mean_square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1])
        return x.mul_(mean_square.add_(self.spec.eps).rsqrt_())

    def rotary(self, position: Tensor) -> tuple[Tensor, Tensor] | None:
        """cos and sin [..., e / 2] of rotary positions; None for a model without them."""
        if self.inverse_frequency is None:
            return None
        angle = position[..., None].to(self.inverse_frequency.dtype) * self.inverse_frequency
        return angle.cos() * self.rotary_scale, angle.sin() * self.rotary_scale

    def rotate(self, x: Tensor, position: Tensor) -> Tensor:
        """Applies rotary positions, if the model has them, to q or k [..., e]. `position` broadcasts against x's leading dimensions."""
        return rotate(x, self.rotary(position))

    def unembed(self, x: Tensor) -> Tensor:
        """Logits for the normalised final residual stream."""
        return torch.nn.functional.linear(x * self.final_gain + self.final_shift, self.unembedding)


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
    """Rotates q or k [..., e] by the angles of `Model.rotary`."""
    if rotary is None:
        return x
    cos, sin = rotary
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


def fold(weight: Tensor, bias: Tensor | None, gain: Tensor, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    """Folds a norm into the linear map [d, n] that reads it: (weight·γ, weight·β + bias)."""
    folded_bias = torch.zeros(weight.shape[1], dtype=weight.dtype) if bias is None else bias
    if shift is not None:
        folded_bias = folded_bias + shift @ weight
    return (gain[:, None] * weight).contiguous(), folded_bias.contiguous()


def by_head(weight: Tensor, bias: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Splits [d, n·e] into [n, d, e] and [n·e] into [n, e]."""
    d = weight.shape[0]
    return weight.reshape(d, n, -1).transpose(0, 1).contiguous(), bias.reshape(n, -1).contiguous()


class Weights:
    """The tensors of a checkpoint, with their shapes checked. An error names the tensor that is missing or misshapen."""

    def __init__(self, tensors: Mapping[str, Tensor], where: str) -> None:
        self._tensors, self._where = tensors, where

    def __contains__(self, key: str) -> bool:
        return key in self._tensors

    def get(self, key: str, *shape: int) -> Tensor:
        if key not in self._tensors:
            raise MechRLError(
                f"{self._where}: weight {key!r} is missing; the checkpoint is incomplete or of another architecture"
            )
        tensor = self._tensors[key]
        if tuple(tensor.shape) != shape:
            raise MechRLError(
                f"{self._where}: weight {key!r} has shape {tuple(tensor.shape)}, the config says {shape}"
            )
        # norms are folded in at float32 or better; a float64 checkpoint stays exact, which the tests rely on
        return tensor if tensor.dtype == torch.float64 else tensor.to(torch.float32)

    def optional(self, key: str, *shape: int) -> Tensor | None:
        return self.get(key, *shape) if key in self else None


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """sha256 over names, shapes and float32 values in name order: the same for the same weights, whatever file they come from."""
    digest = hashlib.sha256()
    for key in sorted(tensors):
        tensor = tensors[key].to(torch.float32).contiguous()
        digest.update(f"{key}{tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).numpy().data)  # its bytes, in place
    return digest.hexdigest()
