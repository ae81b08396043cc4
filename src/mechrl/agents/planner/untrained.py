"""The control: the same agent with costs that nothing has learned. What the planner does better than this, its training does."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mechrl.agents.planner.features import Seen
from mechrl.agents.planner.network import _SPREAD, Edges, Effect, doubt, squash

SIGMA = 1.0  # of T(Δ): what sums of gradients are off by


class Gradients:
    """Costs and gains straight from a look: the gradient at the circuit itself (`local`), its size, or the gradient on the path to it."""

    def __init__(self, kind: str = "path") -> None:
        self.kind = kind

    def edges(self, seen: Seen) -> Edges:
        n, mean = max(seen.n, 1), seen.gains.mean(1)  # [A, n + m]
        cost = mean[-1].clone()
        if self.kind == "path":
            cost[:n] = mean[:-1, :n].mean(0)
        elif self.kind == "absolute":
            cost[:n] = cost[:n].abs()
        squashed, nothing = torch.asinh(_SPREAD * n * cost), cost.new_zeros(len(cost), 0)
        return Edges(cost, squashed, squashed, nothing, nothing, seen.gains, n, seen.f, doubt(seen.gains))

    def effect(self, edges: Edges, cut: Tensor, add: Tensor) -> Effect:
        lost = cut @ edges.cost[: edges.n] - add @ edges.cost[edges.n :]
        zero = torch.zeros_like(lost)
        return Effect(squash(lost), zero + float(np.log(SIGMA)), zero, zero - 3.5)
