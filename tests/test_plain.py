"""The plain run against the oracle's: where its heads look, and that what is written to the logits is the logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mechrl.engine import Engine
from mechrl.engine.plain import run
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
    torch.testing.assert_close(run(model, pair.clean[0], pair.corrupt[0], mask).patterns, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("density", [0.0, 0.4, 1.0])
def test_writes_sum_to_the_logits(kind: str, density: float) -> None:
    model, pair = tiny(kind), tiny_pairs(1, 6, seed=3)
    graph = model.graph
    mask = np.random.default_rng(0).random(graph.n_edges) < density
    plain, engine = run(model, pair.clean[0], pair.corrupt[0], mask), Engine(model, pair)
    torch.testing.assert_close(
        plain.rest + plain.writes.sum(0), engine.logits(mask)[0, 0], rtol=1e-4, atol=1e-4
    )
    to_logits = np.flatnonzero(mask & (graph.edge_receiver == graph.logits))
    assert plain.writers.tolist() == graph.edge_source[to_logits].tolist()
    if density == 1:
        torch.testing.assert_close(
            plain.rest + plain.writes.sum(0), engine.clean_logits[0], rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_components_edge_its_write_is_gone(kind: str) -> None:
    """Only the norm's scale moves besides: what is left points exactly where it did."""
    model, pair = tiny(kind), tiny_pairs(1, 6, seed=3)
    graph, whole = model.graph, np.ones(model.graph.n_edges, dtype=bool)
    plain, engine = run(model, pair.clean[0], pair.corrupt[0], whole), Engine(model, pair)
    shift = model.final_shift @ model.unembedding.mT
    for i, source in enumerate(plain.writers.tolist()):
        mask = whole.copy()
        mask[graph.edge(source, graph.logits)] = False
        left, expected = (
            engine.logits(mask)[0, 0] - shift,
            engine.logits(whole)[0, 0] - plain.writes[i] - shift,
        )
        assert torch.nn.functional.cosine_similarity(left, expected, dim=0) > 1 - 1e-6
