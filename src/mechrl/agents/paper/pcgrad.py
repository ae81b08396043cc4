"""PCGrad (Yu et al. 2020): where two behaviours' gradients conflict, each loses its component along the other.

Every gradient is projected on the *original* others, in random order, and never on itself:

    g_i ← g_i − (g_i · g_j) / ‖g_j‖² g_j        if g_i · g_j < 0

and the projected gradients are summed. Everything happens in the span of the gradients, so it is arithmetic on their Gram matrix:
the large vectors are read only twice.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mechrl.agents.paper.kernels import project


def orders(T: int, rng: np.random.Generator) -> np.ndarray:
    """[T, T] for every gradient a random order of all gradients."""
    return np.stack([rng.permutation(T) for _ in range(T)])


def pcgrad(gradients: Tensor, order: Tensor) -> Tensor:
    """[P] the sum of the projected gradients [T, P], each projected in its own order [T, T]. Without conflicts it is their sum."""
    exact = gradients.to(torch.float64)
    return project(exact @ exact.T, order).sum(0).to(gradients.dtype) @ gradients
