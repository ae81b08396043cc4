"""Circuits that hold on fresh pairs.

A search overfits the pairs it decides by, whichever they are; deciding by the validation pairs would only overfit those. Instead a search
aims above tau on its own pairs, and the validation pairs judge the result.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mechrl.behaviours.base import Behaviour
from mechrl.engine import Engine, Ledger
from mechrl.models.base import Model

N_FRESH = 100  # number of validation pairs, and of test pairs


HIGHEST_AIM = 0.999


def fresh(
    model: Model, behaviour: Behaviour, seed: int, n: int = N_FRESH, ledger: Ledger | None = None
) -> Engine:
    """An engine on pairs that no search has seen: `VALIDATION_SEED`'s or `TEST_SEED`'s."""
    assert model.tokenizer is not None
    return Engine(model, behaviour.pairs(model.tokenizer, n, seed, n_ctx=model.spec.n_ctx), ledger=ledger)


def higher(aim: float, short: float) -> float:
    """The next aim after a circuit fell `short` on validation pairs: higher by the same amount, but by at most half of 1 − aim."""
    return min(HIGHEST_AIM, aim + max(min(short, (1 - aim) / 2), 0.002))


def step_back(
    steps: np.ndarray,
    f: np.ndarray,
    tau: float,
    measure: Callable[[np.ndarray, np.ndarray], np.ndarray],
    enough_at: int = -1,
) -> tuple[np.ndarray, np.ndarray]:
    """For each of n episodes whose f at its step is below τ: the last earlier step with f ≥ τ, by bisection, as if f fell monotonically.

    Circuits of earlier steps are larger. If bisection finds no such step, returns the most faithful one it measured. `measure(episodes,
    steps)` gives f; at step `enough_at`, f ≥ τ is known.
    """
    steps, f = steps.copy(), f.copy()
    # f ≥ τ at low, and not at high
    low, high = np.full(len(steps), enough_at), np.where(f < tau, steps, enough_at + 1)
    while len(which := np.flatnonzero(high - low > 1)):
        middle = (low[which] + high[which]) // 2
        found = measure(which, middle)
        enough = found >= tau
        low[which[enough]], high[which[~enough]] = middle[enough], middle[~enough]
        better = enough | (found > f[which])
        steps[which[better]], f[which[better]] = middle[better], found[better]
    return steps, f
