"""What was collected: circuits, looks at them, edits tried there and what they did. One safetensors file holds many states.

A state is a circuit with its look. Its trials are edits: sets of its edges that were cut and of edges outside that were added, with f of
the circuit that results on the discovery pairs and, where it was asked for, on fresh ones. f of the circuit itself is that of trial 0,
the empty edit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mechrl.agents.planner.features import First
from mechrl.agents.planner.look import ALPHAS, GROUPS, Look
from mechrl.errors import MechRLError
from mechrl.files import write_atomically
from mechrl.files.reading import count, number, parse_json
from mechrl.files.sealed import read_sealed, sealed
from mechrl.graph import Graph, checked_graph


@dataclass(frozen=True)
class Record:
    """One state and the edits tried at it."""

    behaviour: str
    family: str
    draw: int
    graph: Graph
    look: Look
    first: First  # of the look's edges alone: [n + m] each, the circuit's, then those outside
    cut: np.ndarray  # [T, n] bool
    add: np.ndarray  # [T, m] bool
    f: np.ndarray  # [T]
    f_fresh: np.ndarray  # [T], NaN where it was not measured


def write(path: Path, records: Sequence[Record], about: dict[str, Any]) -> None:
    """All records in one file, in one step."""
    arrays: dict[str, np.ndarray] = {}
    states = []
    for i, r in enumerate(records):
        n, m = len(r.look.alive), len(r.look.outside)
        states.append(
            {"behaviour": r.behaviour, "family": r.family, "draw": r.draw, "f": r.look.f, "n": n, "m": m}
            | _shape(r.graph)
        )
        arrays |= {
            f"{i}.edges": np.concatenate([r.look.alive, r.look.outside]).astype(np.int32),
            f"{i}.gains": _half(r.look.gains),
            f"{i}.outside_gains": _half(r.look.outside_gains),
            f"{i}.first": _half(np.stack([r.first.mean, r.first.rms])),
            f"{i}.cut": np.packbits(r.cut, axis=1),
            f"{i}.add": np.packbits(r.add, axis=1),
            f"{i}.f": np.stack([r.f, r.f_fresh]).astype(np.float32),
        }
    write_atomically(path, sealed(arrays, {"about": json.dumps(about), "states": json.dumps(states)}))


def read(path: Path) -> tuple[list[Record], dict[str, Any]]:
    """The records of a file, and what was said about them."""
    try:
        arrays, texts = read_sealed(path, needed=False)
        states, about = parse_json(texts["states"]), parse_json(texts["about"])
        if not isinstance(states, list) or not isinstance(about, dict):
            raise ValueError("no list of states")
        return [_record(i, state, arrays) for i, state in enumerate(states)], about
    except FileNotFoundError as exc:
        raise MechRLError(f"{path}: no such file") from exc
    except (OSError, KeyError, TypeError, ValueError) as exc:
        raise MechRLError(
            f"{path}: not what `mechrl planner collect` writes, or damaged; remove it, then collect again"
        ) from exc


def read_all(folder: Path) -> list[Record]:
    """The records of all files in a folder."""
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise MechRLError(
            f"{folder}: nothing collected there; run `mechrl planner collect --out {folder}` first"
        )
    return [record for path in paths for record in read(path)[0]]


def families(records: Iterable[Record]) -> list[str]:
    return sorted({record.family for record in records})


def _record(i: int, state: dict[str, Any], arrays: dict[str, np.ndarray]) -> Record:
    """The i-th state of a file, if all of it fits together."""

    def array(name: str, kind: Any) -> np.ndarray:
        return _of_kind(arrays[f"{i}.{name}"], kind)

    n, m, draw = (count(state[name]) for name in ("n", "m", "draw"))
    graph = checked_graph(*(count(state[name]) for name in ("layers", "heads", "kv_heads")))
    edges = array("edges", np.int32).astype(np.int64)
    gains, outside, first = (_scaled(array(x, np.float16)) for x in ("gains", "outside_gains", "first"))
    cut, add, f = array("cut", np.uint8), array("add", np.uint8), array("f", np.float32)
    trials = f.shape[-1]
    sound = (
        n >= 1
        and trials >= 1
        and edges.shape == (n + m,)
        and gains.shape == (len(ALPHAS), GROUPS, n)
        and outside.shape == (GROUPS, m)
        and first.shape == (2, n + m)
        and (cut.shape, add.shape, f.shape) == ((trials, -(-n // 8)), (trials, -(-m // 8)), (2, trials))
        and ((edges >= 0) & (edges < graph.n_edges)).all()
        and len(np.unique(edges)) == n + m
        and all(np.isfinite(x).all() for x in (gains, outside, first, f[0]))
        and not np.isinf(f[1]).any()
        and all(isinstance(state[name], str) for name in ("behaviour", "family"))
    )
    if not sound:
        raise ValueError(f"state {i} does not fit together")
    cut, add = (np.unpackbits(x, axis=1, count=k).astype(bool) for x, k in ((cut, n), (add, m)))
    if cut[0].any() or add[0].any():
        raise ValueError(f"the first edit of state {i} is not empty")
    look = Look(edges[:n], gains, edges[n:], outside, number(state["f"]))
    return Record(state["behaviour"], state["family"], draw, graph, look, First(*first), cut, add, *f)


def _of_kind(array: np.ndarray, kind: Any) -> np.ndarray:
    if array.dtype != kind:
        raise ValueError("an array is of another kind")
    return array


def _shape(graph: Graph) -> dict[str, int]:
    return {"layers": graph.n_layers, "heads": graph.n_heads, "kv_heads": graph.n_kv_heads}


_SCALE = 2.0**10  # gradients of large circuits lie below what half precision can tell apart


def _half(x: np.ndarray) -> np.ndarray:
    # as it is stored: row by row
    return np.ascontiguousarray(np.clip(x * _SCALE, -60000, 60000), dtype=np.float16)


def _scaled(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) / np.float32(_SCALE)
