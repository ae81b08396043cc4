"""The network: before training an edit does what its edges do; sums do not know orders; what is saved comes back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mechrl.agents.planner.features import Seen, see
from mechrl.agents.planner.network import (
    EditModel,
    NetworkConfig,
    _messages,
    feeds,
    load_model,
    save_model,
    squash,
)
from mechrl.errors import MechRLError
from mechrl.graph import Graph
from tests.agents.planner.tasks import some_circuit, tiny_start


@pytest.fixture(scope="module")
def scene() -> tuple[Graph, Seen]:
    start = tiny_start("llama-gqa")
    mask = some_circuit(start)
    look = start.looker.look(mask, np.flatnonzero(~mask)[:12], 0.8)
    return start.graph, see(start.graph, look, start.first.at(np.concatenate([look.alive, look.outside])))


def network(seen: Seen, messages: bool = False, train: bool = False) -> EditModel:
    torch.manual_seed(0)
    model = EditModel(
        NetworkConfig(seen.edges.shape[1], hidden=16, pooled=3, interaction=2, messages=messages)
    )
    if train:  # as if it had learned something
        for p in model.parameters():
            p.data += 0.1 * torch.randn_like(p)
    return model.eval()


def edits(seen: Seen, t: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    rng, m = np.random.default_rng(1), len(seen.edges) - seen.n
    return tuple(torch.from_numpy((rng.random((t, k)) < 0.3).astype(np.float32)) for k in (seen.n, m))


def test_untrained_an_edit_does_what_its_edges_do(scene) -> None:
    graph, seen = scene
    model, (cut, add) = network(seen), edits(seen)
    found = model.edges(seen, graph)
    expected = cut @ found.cost[: seen.n] - add @ found.cost[seen.n :]
    assert torch.allclose(model.effect(found, cut, add).mu, squash(expected))


@pytest.mark.parametrize("messages", [False, True])
def test_an_edit_is_a_set(scene, messages: bool) -> None:
    """Neither the order of edges nor that of the other edits matters."""
    graph, seen = scene
    model, (cut, add) = network(seen, messages, train=True), edits(seen)
    effect = model.effect(model.edges(seen, graph), cut, add)
    order = np.random.default_rng(2).permutation(seen.n)
    every = np.concatenate([order, np.arange(seen.n, len(seen.edges))])
    turned = Seen(
        seen.edges[every], seen.gains[..., every], seen.source[every], seen.reader[every], seen.n, seen.f
    )
    again = model.effect(model.edges(turned, graph), cut[:, order], add)
    assert torch.allclose(again.mu, effect.mu, atol=1e-4) and torch.allclose(again.gap, effect.gap, atol=1e-5)
    one = model.effect(model.edges(seen, graph), cut[2:3], add[2:3])
    assert torch.allclose(one.log_sigma, effect.log_sigma[2:3], atol=1e-5)


def test_messages_are_means_over_edges_that_share_a_node(scene) -> None:
    graph, seen = scene
    h = torch.from_numpy(np.random.default_rng(3).normal(size=(len(seen.edges), 4)))
    found = torch.stack(_messages(h, seen, graph))
    node, fed = feeds(graph)
    zero = torch.zeros(4, dtype=h.dtype)
    mean_of = lambda which: h[: seen.n][which].mean(0) if which.any() else zero  # noqa: E731
    out_of = [mean_of(seen.source[: seen.n] == s) for s in range(graph.n_sources)]
    into = [mean_of(seen.reader[: seen.n] == r) for r in range(graph.n_receivers)]
    for e in range(0, len(seen.edges), 7):
        s, r = seen.source[e], seen.reader[e]
        above = [into[x] for n, x in zip(node, fed, strict=True) if n == s]
        below = [out_of[n] for n, x in zip(node, fed, strict=True) if x == r]
        expected = [
            out_of[s],
            into[r],
            torch.stack(above).mean(0) if above else zero,
            torch.stack(below).mean(0) if below else zero,
        ]
        assert torch.allclose(found[:, e], torch.stack(expected))


def test_what_is_saved_comes_back(scene, tmp_path: Path) -> None:
    graph, seen = scene
    model = network(seen, messages=True, train=True)
    save_model(tmp_path / "m.safetensors", model, {"families": ["ioi"]})
    again, about = load_model(tmp_path / "m.safetensors")
    assert about == {"families": ["ioi"]} and again.config == model.config
    assert torch.equal(again.edges(seen, graph).cost, model.edges(seen, graph).cost)


def test_damaged_files_are_refused_in_one_line(scene, tmp_path: Path) -> None:
    _, seen = scene
    path = tmp_path / "m.safetensors"
    save_model(path, network(seen), {})
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for i in range(60):
        content = bytearray(whole)
        for place in rng.integers(0, min(len(whole), 1500), 3):
            content[place] = rng.integers(256)
        path.write_bytes(bytes(content[: rng.integers(len(whole))]) if i % 3 == 0 else bytes(content))
        try:
            load_model(path)
        except MechRLError as exc:
            assert "\n" not in str(exc)
    with pytest.raises(MechRLError, match="no such file"):
        load_model(tmp_path / "none.safetensors")
