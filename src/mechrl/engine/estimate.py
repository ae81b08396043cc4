"""Estimates the cost of long work: bytes from shapes, seconds per pass from running one circuit."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from mechrl.engine.engine import Engine
from mechrl.engine.memory import budget, circuit_bytes


@dataclass(frozen=True)
class Estimate:
    """The cost of work on one batch of pairs, over some edges."""

    pairs: int
    active_tokens: int  # (pair, position)s at which circuits can differ
    edges: int
    model_bytes: int
    # rows and streams of a circuit of all these edges; a gradient takes about twice as much
    circuit_bytes: int
    at_once: int  # how many such circuits fit the budget; one always runs
    seconds_per_pass: float

    def seconds(self, passes: float) -> float:
        return passes * self.seconds_per_pass

    def line(self) -> str:
        """A summary for the user."""
        size = f"{self.pairs} pairs, {self.edges:,} edges"
        memory = f"{_size(self.model_bytes)} of weights, {_size(self.circuit_bytes)} per circuit"
        return f"{size}; {memory}, {max(1, self.at_once):,} at once; {self.seconds_per_pass:.2g} s per pass"


def estimate(engine: Engine, edges: np.ndarray | None = None) -> Estimate:
    """Runs the circuit of all `edges` once, free of charge. No circuit of these edges costs more."""
    spec, model = engine.model.spec, engine.model
    n = engine.graph.n_edges if edges is None else len(edges)
    begin = time.perf_counter()
    with engine.ledger.free() as bill:
        float(engine.faithfulness(np.ones((1, n), dtype=bool), edges)[0])
    seconds = time.perf_counter() - begin
    need = int(circuit_bytes(spec, np.array([n]), engine.cache.n_tokens, model.embedding.element_size())[0])
    return Estimate(
        pairs=engine.n_pairs,
        active_tokens=engine.cache.n_tokens,
        edges=n,
        model_bytes=weights_bytes(engine),
        circuit_bytes=need,
        at_once=int(budget(model.device, engine.memory_bytes) // need),
        seconds_per_pass=seconds / bill.passes,
    )


def weights_bytes(engine: Engine) -> int:
    """Bytes of the model's tensors, each counted once."""
    model = engine.model
    parts = [model, *model.attention, *model.mlp]
    found = [value for part in parts for value in vars(part).values() if isinstance(value, torch.Tensor)]
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in found}.values())


def _size(n: int) -> str:
    return f"{n / 2**30:.1f} GB" if n >= 2**30 else f"{n / 2**20:,.0f} MB"
