"""Gradients of whole circuits, by `ManyEngines.gradients`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mechrl.engine import ManyEngines


def mask_gradients(
    many: ManyEngines, which: np.ndarray, masks: np.ndarray, alpha: np.ndarray | Sequence[float]
) -> np.ndarray:
    """[C, width]: the average over `alpha` at αM for kept edges, 0 for cut ones."""
    n, kept = len(alpha), np.repeat(masks, len(alpha), axis=0)
    found = many.gradients(np.repeat(which, n), kept * np.tile(alpha, len(which))[:, None], kept)
    return found.reshape(len(which), n, -1).mean(1)


def gains_of(many: ManyEngines, which: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """[C, width] at the circuits themselves, for all edges of their engines."""
    wanted = np.arange(masks.shape[1]) < np.array([len(many.edges[g]) for g in which])[:, None]
    return many.gradients(which, masks.astype(np.float64), wanted)
