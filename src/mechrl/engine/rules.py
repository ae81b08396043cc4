"""Rules for the backward pass: components compute the model's own values, but pass other derivatives.

The gradient at the clean run misleads where components saturate. These rules change only that gradient, so attribution with them costs
the same as EAP. "Held" means treated as a constant; c·x means that the derivative of x is multiplied by c.

    GIM     (Edin et al. 2025) Norms: scale held. Attention: the derivative of softmax at temperature 2, of ¼·q, ¼·k and ½·v. Gated MLPs:
            ½·gate and ½·up.
    RelP    (Rezaei Jafari et al. 2025) Layer-wise relevance propagation. Norms: scale held. Attention: pattern held, so q and k get
            no gradient. MLPs: act(h) = h · [act(h) / h] with the bracket held; gated ones: ½·gate and ½·up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mechrl.models.base import MLP, Model

_NEAR_ZERO = 1e-6  # below this, act(h) / h is act'(0), ½ for GELU and SiLU


@dataclass(frozen=True)
class Rules:
    """Changes to the backward pass. The scale of norms is always held."""

    temperature: float  # for softmax's derivative
    query_key: float  # factors
    value: float
    product: float  # of both sides of a gated MLP
    secant: bool  # act(h) = h · [act(h) / h]

    def normalise(self, model: Model, x: Tensor) -> Tensor:
        """`Model.normalise` with its scale held."""
        centred = x - x.mean(-1, keepdim=True) if model.spec.norm == "layer" else x
        return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + model.spec.eps).detach()

    def attend(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float) -> Tensor:
        """[.., queries, e] what heads attend to; `visible` broadcasts against [.., queries, keys]."""
        scores = _times(self.query_key, q) @ _times(self.query_key, k).mT * scale
        scores = scores.masked_fill(~visible, float("-inf"))
        # cancels the factor from the chain rule
        softer = self.temperature * (scores / self.temperature).softmax(-1)
        return _held(scores.softmax(-1), softer) @ _times(self.value, v)

    def mlp(self, mlp: MLP, x: Tensor) -> Tensor:
        """`MLP.__call__`."""
        hidden = x @ mlp.W_in + mlp.b_in
        if mlp.W_gate is None or mlp.b_gate is None:
            hidden = self._activate(mlp, hidden)
        else:
            gate = self._activate(mlp, x @ mlp.W_gate + mlp.b_gate)
            hidden = _times(self.product, gate) * _times(self.product, hidden)
        return hidden @ mlp.W_out + mlp.b_out

    def _activate(self, mlp: MLP, h: Tensor) -> Tensor:
        if not self.secant:
            return mlp.activate(h)
        ratio = torch.where(h.abs() < _NEAR_ZERO, 0.5, mlp.activate(h) / h)
        return _held(mlp.activate(h), h * ratio.detach())


GIM = Rules(temperature=2.0, query_key=0.25, value=0.5, product=0.5, secant=False)
RELP = Rules(temperature=1.0, query_key=0.0, value=1.0, product=0.5, secant=True)


def _times(factor: float, x: Tensor) -> Tensor:
    """x, with its derivative multiplied by `factor`."""
    return x if factor == 1 else _held(x, factor * x)


def _held(value: Tensor, path: Tensor) -> Tensor:
    """`value`, with the derivative of `path`."""
    return value.detach() + (path - path.detach())
