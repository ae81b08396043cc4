"""Matryoshka attribution: learns one score per edge, so that for every k the best k edges are a faithful circuit.

Circuits of all sizes are nested. Every candidate edge has a score s. Each step draws a size k, log-uniformly from 1 to n, and keeps the
best k, softly:

    m = σ(s − θ)      θ such that Σ m = k

Adam minimises the circuit's KL / KL_cut. With w = m (1 − m), the gradient also passes through θ and never changes the sum:

    ∂m_i / ∂s_j = w_i (δ_ij − w_j / Σ w)

All scores start equal, so m = k / n everywhere, and the first steps are those of integrated mask gradients. At the end the fewest edges
of highest score that reach f ≥ τ are kept. The scores rank all edges, which ranking benchmarks need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mechrl.search.adam import Adam, pack_generator, sigmoid, unpack_generator
from mechrl.search.problem import Problem, State
from mechrl.search.select import smallest

STEPS = 500
_EPS = 1e-12  # Adam's; for k far below n the first gradients are small
_WIDE = 40.0  # this far from θ, σ is 0 or 1 to the last bit


def matryoshka(
    problem: Problem, state: State | None = None, steps: int = STEPS, learning_rate: float = 0.1
) -> State:
    """Learns scores for `steps` steps (three passes each), then keeps the smallest circuit with f ≥ τ.

    A finished run that resumes with another tau only chooses the circuit again.
    """
    n = len(problem.candidates)
    if state is not None and state.done:
        return _end(problem, state.extra["scores"], None)
    if state is None:
        state = State(np.ones(n, dtype=bool), [], float("nan"), _Descent.start(n, problem.seed).pack())
    while not state.done:
        if "low" in state.extra:
            return _end(problem, state.extra["scores"], state)
        descent = _Descent.unpack(state.extra)
        if descent.step == steps:
            return _end(problem, descent.scores, None)
        f, mask = descent.take(problem, learning_rate)
        progress = {"progress": descent.step / steps}
        note = f"step {descent.step} of {steps}"
        state = State(mask > 0.5, [], f, descent.pack() | progress, False, note)
        problem.checkpoint(state)
    return state


def _end(problem: Problem, scores: np.ndarray, state: State | None) -> State:
    end = smallest(problem, np.argsort(-scores, kind="stable"), state, {"scores": scores})
    problem.checkpoint(end)
    return end


def soft_top(scores: np.ndarray, k: float) -> np.ndarray:
    """[n] m = σ(s − θ) with Σ m = k, 0 < k ≤ n; θ by bisection."""
    if k >= len(scores):
        return np.ones(len(scores))
    low, high = scores.min() - _WIDE, scores.max() + _WIDE  # Σ m falls with θ
    while high - low > 1e-10:
        middle = (low + high) / 2
        low, high = (middle, high) if sigmoid(scores - middle).sum() > k else (low, middle)
    return sigmoid(scores - low)


def through(mask: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """[n] ∂L/∂s from ∂L/∂m, at m = `mask`."""
    w = mask * (1 - mask)
    total = w.sum()
    return w * (gradient - (w @ gradient) / total) if total > 0 else np.zeros(len(mask))


def ranking_scores(scores: np.ndarray) -> np.ndarray:
    """The same order with positive numbers, so that edges outside the candidates, at 0, rank last."""
    positive: np.ndarray = scores - scores.min() + 1.0
    return positive


@dataclass
class _Descent:
    """Everything that the next step depends on: scores, Adam's moments, the random generator."""

    scores: np.ndarray  # [n]
    adam: Adam
    rng: np.random.Generator

    @classmethod
    def start(cls, n: int, seed: int) -> _Descent:
        return cls(np.zeros(n), Adam.start(n), np.random.default_rng(seed))

    def pack(self) -> dict[str, Any]:
        return {"scores": self.scores.copy()} | self.adam.pack() | {"rng": pack_generator(self.rng)}

    @classmethod
    def unpack(cls, extra: dict[str, Any]) -> _Descent:
        return cls(extra["scores"].copy(), Adam.unpack(extra), unpack_generator(extra["rng"]))

    @property
    def step(self) -> int:
        return self.adam.step

    def take(self, problem: Problem, learning_rate: float) -> tuple[float, np.ndarray]:
        """One step. Returns f and the mask of the sampled soft circuit."""
        engine, n = problem.engine, len(self.scores)
        mask = soft_top(self.scores, float(np.exp(self.rng.uniform(0, np.log(n)))))
        run = engine.gradient(mask[None], problem.candidates)
        gradient = through(mask, run.gradient[0].double().cpu().numpy() / engine.kl_cut)
        self.scores = self.scores - self.adam.change(gradient, learning_rate, _EPS)
        return 1 - float(run.value.double().mean()) / engine.kl_cut, mask
