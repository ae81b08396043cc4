"""The viewer's attention patterns equal those of the slow implementation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mechrl.viewer.attention import attention_patterns
from tests.slow import slow_circuit_logits
from tests.tiny import KINDS, tiny, tiny_pairs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("density", [0.0, 0.4, 1.0])
def test_patterns_are_the_oracles(kind: str, density: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(kind)
    pair = tiny_pairs(1, 6, seed=3)
    mask = np.random.default_rng(0).random(model.graph.n_edges) < density
    seen: list[torch.Tensor] = []
    softmax = torch.Tensor.softmax

    def listen(self: torch.Tensor, *args: int) -> torch.Tensor:
        seen.append(softmax(self, *args))
        return seen[-1]

    monkeypatch.setattr(torch.Tensor, "softmax", listen)
    slow_circuit_logits(model, torch.tensor(pair.clean), torch.tensor(pair.corrupt), torch.from_numpy(mask))
    monkeypatch.undo()
    L, H = model.spec.n_layers, model.spec.n_heads
    assert len(seen) == 2 * L * H  # the corrupted run, then the circuit
    expected = torch.stack([pattern[0] for pattern in seen[L * H :]]).view(L, H, 6, 6)
    torch.testing.assert_close(attention_patterns(model, pair.clean[0], pair.corrupt[0], mask), expected)
