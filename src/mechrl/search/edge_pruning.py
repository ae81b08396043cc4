"""Edge Pruning: a mask learned by gradient descent, each edge behind a hard-concrete gate.

Every candidate edge has a parameter log α. Every step samples its gate,

    u ~ U(0, 1)      s = σ((log u − log(1 − u) + log α) / β)      z = clip(1.2 s − 0.1, 0, 1)      β = 2/3

which is exactly 0 or 1 with finite probability; dz/d log α = 1.2 s (1 − s) / β in between, else 0. Adam minimises the KL of the circuit
with mask z, plus a Lagrangian that holds the expected sparsity at its target t,

    KL(z) / KL_cut + λ1 (t − sp) + λ2 (t − sp)²      sp = 1 − mean P(z > 0)      P(z > 0) = σ(log α − β log(0.1 / 1.1))

while t rises linearly from 0 over the first `warm_up` of the steps, and λ1, λ2 are increased by gradient ascent. KL is divided by KL_cut
so that one step size works for all behaviours. At the end, bisection over edges ranked by log α finds the fewest that reach f ≥ τ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mechrl.search.adam import Adam, pack_generator, sigmoid, unpack_generator
from mechrl.search.problem import Problem, State

BETA = 2 / 3
LEFT, RIGHT = -0.1, 1.1  # range to which s is stretched before it is clipped
_GROWTH = 1.25
_EPS = 1e-15  # Adam's; at open gates the gradient of sparsity, k(1 − k)/n, is far below 1e-8


def edge_pruning(
    problem: Problem,
    state: State | None = None,
    steps: int = 300,
    learning_rate: float = 0.3,
    multiplier_rate: float = 2.0,
    target_sparsity: float = 0.985,
    warm_up: float = 0.8,
    initial: float = 10.0,
) -> State:
    """Learns log α for `steps` steps (three passes each), then thresholds it to the smallest circuit of f ≥ τ."""
    n = len(problem.candidates)
    if state is None:
        everything = np.ones(n, dtype=bool)
        f = float(problem.judge(everything)[0])
        state = State(everything, [], f, _Descent.start(n, initial, problem.seed).pack())
    while not state.done:
        descent = _Descent.unpack(state.extra)
        if descent.step < steps:
            target = target_sparsity * min(1.0, (descent.step + 1) / (warm_up * steps))
            f = descent.take(problem, target, learning_rate, multiplier_rate)
            state = State(
                descent.log_alpha > 0, [], f, descent.pack(), False, f"step {descent.step} of {steps}"
            )
        else:
            state = _threshold(problem, descent.log_alpha)
        problem.checkpoint(state)
    return state


@dataclass
class _Descent:
    """Everything that the next step depends on: parameters, Adam's moments, multipliers, the random generator."""

    log_alpha: np.ndarray  # [n]
    adam: Adam
    multipliers: np.ndarray  # [2] λ1, λ2
    rng: np.random.Generator

    @classmethod
    def start(cls, n: int, initial: float, seed: int) -> _Descent:
        return cls(np.full(n, initial), Adam.start(n), np.zeros(2), np.random.default_rng(seed))

    def pack(self) -> dict[str, Any]:
        arrays = {"log_alpha": self.log_alpha.copy(), "multipliers": self.multipliers.copy()}
        return arrays | self.adam.pack() | {"rng": pack_generator(self.rng)}

    @classmethod
    def unpack(cls, extra: dict[str, Any]) -> _Descent:
        log_alpha, multipliers = extra["log_alpha"].copy(), extra["multipliers"].copy()
        return cls(log_alpha, Adam.unpack(extra), multipliers, unpack_generator(extra["rng"]))

    @property
    def step(self) -> int:
        return self.adam.step

    def take(self, problem: Problem, target: float, learning_rate: float, multiplier_rate: float) -> float:
        """One step; returns f of the sampled circuit."""
        engine = problem.engine
        z, dz = gate(self.log_alpha, self.rng.random(len(self.log_alpha)))
        run = engine.gradient(z[None], problem.candidates)
        f = 1 - float(run.value.double().mean()) / engine.kl_cut
        gradient = run.gradient[0].double().cpu().numpy() / engine.kl_cut * dz

        kept = open_probability(self.log_alpha)
        missing = target - (1 - kept.mean())
        # d sp / d log α = −k (1 − k) / n with k = P(z > 0)
        gradient += (self.multipliers[0] + 2 * self.multipliers[1] * missing) * kept * (1 - kept) / len(kept)
        self.log_alpha = self.log_alpha - self.adam.change(gradient, learning_rate, _EPS)
        # the multipliers only ascend: they were needed once, and the target will rise
        lack = max(missing, 0.0)
        self.multipliers = self.multipliers + multiplier_rate * np.array([lack, lack**2])
        return f


def gate(log_alpha: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The hard-concrete gate z and dz / d log α at the noise u."""
    u = np.clip(u, 1e-6, 1 - 1e-6)
    s = sigmoid((np.log(u) - np.log1p(-u) + log_alpha) / BETA)
    stretched = LEFT + (RIGHT - LEFT) * s
    inside = (stretched > 0) & (stretched < 1)
    return np.clip(stretched, 0.0, 1.0), np.where(inside, (RIGHT - LEFT) * s * (1 - s) / BETA, 0.0)


def open_probability(log_alpha: np.ndarray) -> np.ndarray:
    """P(z > 0)."""
    return sigmoid(log_alpha - BETA * np.log(-LEFT / RIGHT))


def _threshold(problem: Problem, log_alpha: np.ndarray) -> State:
    """The fewest edges of highest log α whose circuit has f ≥ τ, by bisection, pruned.

    f does not rise with every edge, least of all with edges of closed gates, whose order is arbitrary. So the search starts from the open
    gates and adds closed ones only if necessary.
    """
    order = np.argsort(-log_alpha, kind="stable")

    def circuit(size: int) -> tuple[np.ndarray, float]:
        mask = np.zeros((1, len(order)), dtype=bool)
        mask[0, order[:size]] = True
        mask = problem.model.graph.prune(mask, problem.candidates)
        return mask[0], float(problem.judge(mask)[0])

    low, high = 0, max(1, int((log_alpha > 0).sum()))  # not enough, enough
    best = circuit(high)
    while best[1] < problem.tau and high < len(order):
        low, high = high, min(len(order), 1 + int(_GROWTH * high))
        best = circuit(high)
    while best[1] >= problem.tau and high - low > 1:
        middle = (low + high) // 2
        tried = circuit(middle)
        if tried[1] >= problem.tau:
            high, best = middle, tried
        else:
            low = middle
    mask, f = best
    removed = problem.candidates[order[::-1]][~mask[order[::-1]]].tolist()
    note = (
        f"{int(mask.sum())} edges"
        if f >= problem.tau
        else f"the candidate set itself has f = {f:.3f}, below τ = {problem.tau}"
    )
    return State(mask, removed, f, {"log_alpha": log_alpha, "step": 0}, True, note)
