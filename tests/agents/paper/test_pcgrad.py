"""PCGrad against its definition, and against an independent implementation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mechrl.agents.paper import pcgrad as module


def pcgrad(gradients: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    return module.pcgrad(gradients, torch.from_numpy(module.orders(len(gradients), rng)))


def slow(gradients: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    total = torch.zeros_like(gradients[0])
    for i in range(len(gradients)):
        g = gradients[i].clone()
        for j in rng.permutation(len(gradients)):
            if j != i and g @ gradients[j] < 0:
                g = g - (g @ gradients[j]) / (gradients[j] @ gradients[j]) * gradients[j]
        total += g
    return total


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 6), st.integers(1, 8), st.integers(0, 10**6))
def test_it_is_its_definition(tasks, size, seed):
    gradients = torch.randn(tasks, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    ours, expected = (f(gradients, np.random.default_rng(seed)) for f in (pcgrad, slow))
    assert torch.allclose(ours, expected, atol=1e-9)


def test_two_tasks_agree_with_torchjd():
    """With two tasks the order cannot matter, so an independent implementation must agree."""
    torchjd = pytest.importorskip("torchjd.aggregation")
    for seed in range(20):
        gradients = torch.randn(2, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert torch.allclose(
            pcgrad(gradients, np.random.default_rng(0)), torchjd.PCGrad()(gradients), atol=1e-9
        )


def test_without_conflict_it_is_the_sum_and_zeros_are_harmless():
    gradients = torch.rand(4, 7, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(pcgrad(gradients, np.random.default_rng(0)), gradients.sum(0), atol=1e-6)
    gradients[2] = 0
    assert torch.isfinite(pcgrad(torch.cat([gradients, -gradients[:1]]), np.random.default_rng(0))).all()
