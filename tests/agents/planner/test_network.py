"""The network: before training an edit's effect is the sum of its edges' effects; order does not matter; saving round-trips."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mechrl.agents.planner.features import Seen, see
from mechrl.agents.planner.network import (
    EditModel,
    NetworkConfig,
    load_model,
    save_model,
    squash,
)
from mechrl.errors import MechRLError
from mechrl.graph import Graph
from tests.agents.planner.tasks import some_circuit, tiny_start
from tests.damage import damaged


@pytest.fixture(scope="module")
def scene() -> tuple[Graph, Seen]:
    start = tiny_start("llama-gqa")
    mask = some_circuit(start)
    look = start.looker.look(mask, np.flatnonzero(~mask)[:12], 0.8)
    return start.graph, see(start.graph, look, start.first.at(np.concatenate([look.alive, look.outside])))


def network(seen: Seen, train: bool = False) -> EditModel:
    torch.manual_seed(0)
    model = EditModel(NetworkConfig(seen.edges.shape[1], hidden=16, pooled=3, interaction=2))
    if train:  # as if it had been trained
        for p in model.parameters():
            p.data += 0.1 * torch.randn_like(p)
    return model.eval()


def edits(seen: Seen, t: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    rng, m = np.random.default_rng(1), len(seen.edges) - seen.n
    return tuple(torch.from_numpy((rng.random((t, k)) < 0.3).astype(np.float32)) for k in (seen.n, m))


def test_untrained_an_edit_does_what_its_edges_do(scene) -> None:
    _, seen = scene
    model, (cut, add) = network(seen), edits(seen)
    found = model.edges(seen)
    expected = cut @ found.cost[: seen.n] - add @ found.cost[seen.n :]
    assert torch.allclose(model.effect(found, cut, add).mu, squash(expected))


def test_an_edit_is_a_set(scene) -> None:
    """Neither the order of edges nor the other edits in the batch matter."""
    _, seen = scene
    model, (cut, add) = network(seen, train=True), edits(seen)
    effect = model.effect(model.edges(seen), cut, add)
    order = np.random.default_rng(2).permutation(seen.n)
    every = np.concatenate([order, np.arange(seen.n, len(seen.edges))])
    turned = Seen(seen.edges[every], seen.gains[..., every], seen.n, seen.f)
    again = model.effect(model.edges(turned), cut[:, order], add)
    assert torch.allclose(again.mu, effect.mu, atol=1e-4) and torch.allclose(again.gap, effect.gap, atol=1e-5)
    one = model.effect(model.edges(seen), cut[2:3], add[2:3])
    assert torch.allclose(one.log_sigma, effect.log_sigma[2:3], atol=1e-5)


def test_what_is_saved_comes_back(scene, tmp_path: Path) -> None:
    _, seen = scene
    model = network(seen, train=True)
    save_model(tmp_path / "m.safetensors", model, {"families": ["ioi"]})
    again, about = load_model(tmp_path / "m.safetensors")
    assert about == {"families": ["ioi"]} and again.config == model.config
    assert torch.equal(again.edges(seen).cost, model.edges(seen).cost)


def test_damaged_files_are_refused_in_one_line(scene, tmp_path: Path) -> None:
    _, seen = scene
    path = tmp_path / "m.safetensors"
    save_model(path, network(seen), {})
    for _ in damaged(path, 60, 1500):
        try:
            load_model(path)
        except MechRLError as exc:
            assert "\n" not in str(exc)
    with pytest.raises(MechRLError, match="no such file"):
        load_model(tmp_path / "none.safetensors")
