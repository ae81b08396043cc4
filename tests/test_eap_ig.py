"""Files for EAP-IG and MIB: both formats agree, and have what EAP-IG's own code reads. (Names and heads: tests/test_circuit.py.)"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from mechrl import eap_ig
from mechrl.eap_ig import as_json, as_tensors, write_submission
from mechrl.errors import MechRLError
from mechrl.graph import Graph
from mechrl.models import load_model

GOLDEN = Path(__file__).parent / "data" / "golden" / "seed0"


def test_tensors_are_laid_out_as_in_eap_ig() -> None:
    golden, graph = np.load(GOLDEN / "golden.npz"), load_model(GOLDEN).graph
    importance = np.array([golden["scores_eap_f64"][s, d] for s, d in _places(golden, graph)])
    kept = graph.prune(np.random.default_rng(0).random(graph.n_edges) < 0.5)
    tensors = as_tensors(graph, 32, importance, kept)
    assert tensors["src_nodes"] == golden["src_names"].tolist()
    assert tensors["dst_nodes"] == golden["dst_names"].tolist()
    np.testing.assert_array_equal(tensors["edges_scores"], golden["scores_eap_f64"].astype(np.float32))


def _places(golden, graph: Graph) -> list[tuple[int, int]]:
    where = dict(
        zip(
            golden["edge_names"].tolist(),
            zip(golden["edge_src"], golden["edge_dst"], strict=True),
            strict=True,
        )
    )
    return [where[graph.edge_name(e)] for e in range(graph.n_edges)]


@pytest.mark.parametrize("graph", [Graph(2, 3, 3), Graph(2, 6, 2)])
def test_json_and_tensors_say_the_same(graph: Graph) -> None:
    rng = np.random.default_rng(1)
    importance, kept = rng.normal(size=graph.n_edges), graph.prune(rng.random(graph.n_edges) < 0.4)
    file, tensors = (write(graph, 8, importance, kept) for write in (as_json, as_tensors))
    row, column = ({name: i for i, name in enumerate(tensors[key])} for key in ("src_nodes", "dst_nodes"))
    filled = np.zeros(tensors["edges_scores"].shape, dtype=bool)
    for name, entry in file["edges"].items():
        source, receiver = name.split("->")
        at = row[source], column[receiver]
        filled[at] = True
        assert tensors["edges_scores"][at] == np.float32(entry["score"])
        assert tensors["edges_in_graph"][at] == entry["in_graph"]
    assert not tensors["edges_scores"][torch.from_numpy(~filled)].any()
    nodes = {name: node["in_graph"] for name, node in file["nodes"].items() if name != "logits"}
    assert nodes == dict(zip(tensors["src_nodes"], tensors["nodes_in_graph"].tolist(), strict=True))
    assert file["cfg"] == tensors["cfg"]


def test_a_large_graph_is_submitted_as_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph(2, 3, 3)
    importance = np.arange(graph.n_edges, dtype=float)
    small = write_submission(tmp_path, "ioi", "openai-community/gpt2", graph, 8, importance)
    assert small == tmp_path / "ioi_gpt2" / "importances.json"
    assert all(entry["in_graph"] for entry in json.loads(small.read_text())["edges"].values())
    monkeypatch.setattr(eap_ig, "MOST_AS_JSON", graph.n_edges - 1)
    large = write_submission(tmp_path, "ioi", "gpt2", graph, 8, importance)
    assert large == tmp_path / "ioi_gpt2" / "importances.pt"
    assert torch.load(large)["edges_scores"].max() == graph.n_edges - 1


def test_a_score_that_is_no_number_is_refused_and_nothing_written(tmp_path: Path) -> None:
    graph = Graph(1, 2, 2)
    with pytest.raises(MechRLError, match="finite"):
        write_submission(tmp_path, "ioi", "gpt2", graph, 8, np.full(graph.n_edges, np.nan))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
