"""PCGrad (Yu et al. 2020): where two behaviours' gradients conflict, each loses its component along the other.

Every gradient is projected on the *original* others, in random order, and never on itself:

    g_i ← g_i − (g_i · g_j) / ‖g_j‖² g_j        if g_i · g_j < 0

All of that happens in the span of the gradients, so it is arithmetic on their Gram matrix: the large vectors are touched twice.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def pcgrad(gradients: Tensor, rng: np.random.Generator) -> Tensor:
    """[P] the sum of the projected gradients [T, P]. Without conflicts it is their sum."""
    gram = (gradients.double() @ gradients.double().T).cpu().numpy()
    T = len(gram)
    coefficients = np.eye(T)  # row i: the projected gradient i in terms of the originals
    for i in range(T):
        for j in rng.permutation(T):
            dot = coefficients[i] @ gram[:, j]
            if j != i and dot < 0:  # a zero gradient has no negative product, so nothing is divided by zero
                coefficients[i, j] -= dot / gram[j, j]
    weights = torch.from_numpy(coefficients.sum(0)).to(gradients)
    return weights @ gradients
