"""Files for EAP-IG and the MIB benchmark: every edge with its importance, as JSON or, if that would be too large, as a tensor.

These tools have k and v inputs for every head. Under grouped-query attention ours belong to the KV head of a group of heads, so such an
edge is written once for each head of the group, with the same importance.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mechrl.errors import MechRLError
from mechrl.files import write_atomically
from mechrl.graph import Graph

MOST_AS_JSON = 500_000  # edges, some 70 bytes each: the benchmark skips files of more than 50 MB


def as_json(graph: Graph, d_model: int, importance: np.ndarray, kept: np.ndarray) -> dict[str, Any]:
    """`importance` [E], and the circuit's edges `kept` [E], without dead ones."""
    if not np.isfinite(importance).all():
        raise MechRLError("an edge's score is not a finite number; check the model and its pairs")
    edges: dict[str, dict[str, Any]] = {}
    names = [_names_of_heads(name, graph.n_heads // graph.n_kv_heads) for name in graph.receiver_names]
    for e in range(graph.n_edges):
        # the shortest decimal that reads back as the same single-precision number
        entry = {"score": float(str(np.float32(importance[e]))), "in_graph": bool(kept[e])}
        for receiver in names[int(graph.edge_receiver[e])]:
            edges[f"{graph.source_names[int(graph.edge_source[e])]}->{receiver}"] = entry
    inside = _inside(graph, kept)
    nodes = {name: {"in_graph": bool(inside[s])} for s, name in enumerate(graph.source_names)}
    return {"cfg": _shape(graph, d_model), "nodes": nodes | {"logits": {"in_graph": True}}, "edges": edges}


def as_tensors(graph: Graph, d_model: int, importance: np.ndarray, kept: np.ndarray) -> dict[str, Any]:
    """The same as matrices [sources, receivers]. Receivers of a layer: q of all heads, k, v, the MLP."""
    layers = range(graph.n_layers)
    heads = [[f"a{layer}.h{h}<{kind}>" for kind in "qkv" for h in range(graph.n_heads)] for layer in layers]
    receivers = [name for layer in layers for name in (*heads[layer], f"m{layer}")] + ["logits"]
    place = {name: i for i, name in enumerate(receivers)}
    group = graph.n_heads // graph.n_kv_heads
    scores = np.zeros((graph.n_sources, len(receivers)), dtype=np.float32)
    in_graph = np.zeros(scores.shape, dtype=bool)
    for r, name in enumerate(graph.receiver_names):
        edges = slice(graph.receiver_start[r], graph.receiver_start[r + 1])
        for column in (place[head] for head in _names_of_heads(name, group)):
            scores[graph.edge_source[edges], column] = importance[edges]
            in_graph[graph.edge_source[edges], column] = kept[edges]
    return {
        "cfg": _shape(graph, d_model),
        "src_nodes": list(graph.source_names),
        "dst_nodes": receivers,
        "edges_scores": torch.from_numpy(scores),
        "edges_in_graph": torch.from_numpy(in_graph),
        "nodes_in_graph": torch.from_numpy(_inside(graph, kept)),
    }


def write_json(path: Path, graph: Graph, d_model: int, importance: np.ndarray, kept: np.ndarray) -> None:
    write_atomically(
        path, json.dumps(as_json(graph, d_model, importance, kept), allow_nan=False).encode() + b"\n"
    )


def write_submission(
    folder: Path, task: str, model: str, graph: Graph, d_model: int, importance: np.ndarray
) -> Path:
    """Writes `<task>_<model>/importances.json` in `folder`, or `.pt` for a large graph. A ranking has all edges in the graph."""
    everything = np.ones(graph.n_edges, dtype=bool)
    path = folder / f"{task}_{Path(model).name}" / "importances.json"
    per_head = Graph(graph.n_layers, graph.n_heads, graph.n_heads)
    if per_head.n_edges <= MOST_AS_JSON:
        write_json(path, graph, d_model, importance, everything)
        return path
    content = io.BytesIO()
    torch.save(as_tensors(graph, d_model, importance, everything), content)
    path = path.with_suffix(".pt")
    write_atomically(path, content.getvalue())
    return path


def _shape(graph: Graph, d_model: int) -> dict[str, Any]:
    shape = {"n_layers": graph.n_layers, "n_heads": graph.n_heads}
    return {**shape, "parallel_attn_mlp": False, "d_model": d_model}


def _inside(graph: Graph, kept: np.ndarray) -> np.ndarray:
    """[S] sources of kept edges, and the input."""
    inside = np.zeros(graph.n_sources, dtype=bool)
    inside[graph.edge_source[kept]] = inside[0] = True
    return inside


def _names_of_heads(receiver: str, group: int) -> list[str]:
    """With three heads per group, `a3.kv1<k>` becomes `a3.h3<k>`, `a3.h4<k>` and `a3.h5<k>`; other names stay."""
    layer, kv, rest = receiver.partition(".kv")
    if not kv:
        return [receiver]
    head, kind = int(rest[:-3]), rest[-3:]
    return [f"{layer}.h{h}{kind}" for h in range(head * group, (head + 1) * group)]
