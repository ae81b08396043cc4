"""Adam (Kingma and Ba, 2015) on a numpy vector, with a state that a search can save."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

BETAS = (0.9, 0.999)


@dataclass
class Adam:
    first: np.ndarray  # [n] first moments
    second: np.ndarray
    step: int = 0

    @classmethod
    def start(cls, n: int) -> Adam:
        return cls(np.zeros(n), np.zeros(n))

    def change(self, gradient: np.ndarray, learning_rate: float, eps: float) -> np.ndarray:
        """[n] the update to subtract from the parameters."""
        self.step += 1
        self.first += (1 - BETAS[0]) * (gradient - self.first)
        self.second += (1 - BETAS[1]) * (gradient**2 - self.second)
        first, second = self.first / (1 - BETAS[0] ** self.step), self.second / (1 - BETAS[1] ** self.step)
        change: np.ndarray = learning_rate * first / (np.sqrt(second) + eps)
        return change

    def pack(self) -> dict[str, Any]:
        return {"first": self.first.copy(), "second": self.second.copy(), "step": self.step}

    @classmethod
    def unpack(cls, extra: dict[str, Any]) -> Adam:
        return cls(extra["first"].copy(), extra["second"].copy(), int(extra["step"]))


def pack_generator(rng: np.random.Generator) -> str:
    return json.dumps(rng.bit_generator.state)


def unpack_generator(text: str) -> np.random.Generator:
    rng = np.random.default_rng()
    rng.bit_generator.state = json.loads(text)
    return rng


def sigmoid(x: np.ndarray) -> np.ndarray:
    """The sigmoid, without overflow."""
    y: np.ndarray = np.exp(-np.logaddexp(0.0, -x))
    return y
