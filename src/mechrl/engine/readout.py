"""From final residual streams to logits, KL(model ‖ circuit), or any objective of the logits and its gradient."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from mechrl.engine.pairs_cache import PairsCache
from mechrl.models.base import Model

Objective = Callable[[Tensor], Tensor]  # logits [C, batch, V] -> [C, batch]


class Readout:
    """For B distinct pairs and a vocabulary of V. `final` [n, B, d] are normalised final streams."""

    def __init__(self, model: Model, cache: PairsCache) -> None:
        self.model, self.cache = model, cache
        self.log_probs = cache.clean_logits.log_softmax(-1)  # [B, V] of the model on the clean prompts
        self._probs = self.log_probs.exp()

    @property
    def corrupt_logits(self) -> Tensor:
        """[batch, V] of the corrupted run."""
        return self.cache.corrupt_logits[self.cache.inverse]

    def kl(self, logits: Tensor) -> Tensor:
        """[C, batch] KL(model ‖ circuit), summed over the vocabulary, from logits of the distinct pairs [C, B, V]."""
        difference = logits.log_softmax(-1).sub_(self.log_probs)
        return difference.mul_(self._probs).sum(-1).neg_()[:, self.cache.inverse]

    def kl_objective(self, logits: Tensor) -> Tensor:
        """The same, differentiable and for the whole batch: [C, batch, V] to [C, batch]."""
        log_probs, probs = self.log_probs[self.cache.inverse], self._probs[self.cache.inverse]
        return (probs * (log_probs - logits.log_softmax(-1))).sum(-1)

    def reduced(self, final: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
        """`reduce` of the distinct pairs' logits: first for the corrupted run, then for `final`."""
        parts = [reduce(self.cache.corrupt_logits[None])]
        if len(final):
            parts += [reduce(self.model.unembed(part)) for part in final.split(self._at_once(2**29))]
        return torch.cat(parts)

    def objective(self, final: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
        """The objective [1 + n, batch], first for the corrupted run, then for `final`; and the gradient of its mean, [n, B, d]."""
        value, grad = [objective(self.corrupt_logits[None]).detach()], []
        for part in final.split(self._at_once(2**28)):
            x = part.detach().requires_grad_()
            with torch.enable_grad():
                reached = objective(self.model.unembed(x)[:, self.cache.inverse])
                grad += torch.autograd.grad(reached.mean(-1).sum(), x)
            value.append(reached.detach())
        return torch.cat(value), torch.cat(grad)

    def of_nothing(self, values: np.ndarray, objective: Objective) -> tuple[Tensor, Tensor]:
        """The objective and its gradient if no path leads from the input to the logits: then nothing depends on the weights."""
        value = objective(self.corrupt_logits[None]).detach()
        return value.repeat(len(values), 1), self.log_probs.new_zeros(values.shape)

    def _at_once(self, n_bytes: int) -> int:
        """How many circuits' logits fit into `n_bytes`."""
        return max(1, n_bytes // self.cache.corrupt_logits.nbytes)
