"""The planner's readers: its network, its collected records, and the state of an interrupted session."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch

from mechrl.agents.planner import records
from mechrl.agents.planner.episode import Episode
from mechrl.agents.planner.features import First, n_features, see
from mechrl.agents.planner.fit import Example
from mechrl.agents.planner.look import ALPHAS, GROUPS, Look
from mechrl.agents.planner.network import EditModel, NetworkConfig, load_model, save_model
from mechrl.agents.planner.saved import SavedSession
from mechrl.graph import Graph

GRAPH = Graph(2, 4, 2)


def some_record(n: int, m: int, trials: int = 5) -> records.Record:
    """A circuit of n edges with random looks, and edits that add some of m other edges."""
    rng = np.random.default_rng(n)
    edges = rng.permutation(GRAPH.n_edges)[: n + m]
    gains, outside = rng.normal(size=(len(ALPHAS), GROUPS, n)), rng.normal(size=(GROUPS, m))
    look = Look(edges[:n], gains.astype(np.float32), edges[n:], outside.astype(np.float32), 0.9)
    first = First(*rng.normal(size=(2, n + m)).astype(np.float32))
    cut, add = rng.random((trials, n)) < 0.3, rng.random((trials, m)) < 0.3
    cut[0], add[0] = False, False
    f = np.where(np.arange(trials), 0.8, 0.9)
    fresh = np.where(np.arange(trials) % 2, np.nan, f - 0.1)
    return records.Record("ioi", "ioi", 0, GRAPH, look, first, cut, add, f, fresh)


def make_records(folder: Path) -> None:
    records.write(folder / "records.safetensors", [some_record(20, 9), some_record(8, 0)], {"passes": 3.0})


def read_records(folder: Path) -> None:
    """Reads records and builds the training data from them."""
    with np.errstate(all="raise", under="ignore"):
        for record in records.read_all(folder):
            Example.of(record)


def some_network() -> EditModel:
    torch.manual_seed(0)
    return EditModel(NetworkConfig(n_features(), hidden=4, pooled=2, interaction=2))


def make_network(folder: Path) -> None:
    save_model(folder / "model.safetensors", some_network(), {"families": ["ioi"]})


@cache
def seen() -> tuple:
    record = some_record(20, 9)
    return see(record.graph, record.look, record.first), record


def read_network(folder: Path) -> None:
    """Loads the network and predicts the effects of edits."""
    network, about = load_model(folder / "model.safetensors")
    looked, record = seen()
    assert isinstance(about, dict)
    with torch.no_grad():
        edges = network.edges(looked)
        network.effect(edges, torch.from_numpy(record.cut).float(), torch.from_numpy(record.add).float())


OF = {"behaviour": "ioi", "tau": 0.9}


def make_left(folder: Path) -> None:
    rng = np.random.default_rng(0)
    mask = rng.random(30) < 0.5
    measured = np.where(rng.random(30) < 0.5, np.nan, rng.normal(size=30))
    episode = Episode(
        mask,
        0.93,
        measured=measured,
        measured_at=30,
        path_mask=np.ones(30, bool),
        path_gains=rng.normal(size=(GROUPS, 30)).astype(np.float32),
        path=[np.ones(30, bool), mask],
        rounds=2,
    )
    first = First(*rng.normal(size=(2, GRAPH.n_edges)))
    candidates = np.sort(rng.permutation(GRAPH.n_edges)[:30])
    best = mask & (rng.random(30) < 0.9), 0.91
    SavedSession(
        OF, first, candidates, np.ones(30, bool), 0.95, episode, best, 0.0, 1, False, 12.5, 3.0
    ).write(folder / "planner.safetensors")


def read_left(folder: Path) -> None:
    left = SavedSession.read(folder / "planner.safetensors", OF, GRAPH.n_edges)
    assert GRAPH.prune(left.episode.mask[None], left.candidates).shape == (1, len(left.candidates))
    assert left.seconds >= 0 and left.passes >= 0
