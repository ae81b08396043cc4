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
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from mechrl.agents.planner.features import First
from mechrl.agents.planner.look import ALPHAS, GROUPS, Look
from mechrl.errors import MechRLError
from mechrl.files import write_atomically
from mechrl.graph import Graph


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
    write_atomically(path, save(arrays, {"about": json.dumps(about), "states": json.dumps(states)}))


def read(path: Path) -> tuple[list[Record], dict[str, Any]]:
    """The records of a file, and what was said about them."""
    try:
        with safe_open(path, framework="numpy") as file:
            known = file.metadata() or {}
            states, about = json.loads(known["states"]), json.loads(known["about"])
            return [_record(i, state, file) for i, state in enumerate(states)], about
    except FileNotFoundError as exc:
        raise MechRLError(f"{path}: no such file") from exc
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, IndexError, RecursionError) as exc:
        raise MechRLError(
            f"{path}: not what `mechrl planner collect` writes, or damaged; collect it again"
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


def _record(i: int, state: dict[str, Any], file: Any) -> Record:
    n, m = int(state["n"]), int(state["m"])
    graph = Graph(int(state["layers"]), int(state["heads"]), int(state["kv_heads"]))
    edges = file.get_tensor(f"{i}.edges").astype(np.int64)
    gains, outside = _whole(file.get_tensor(f"{i}.gains")), _whole(file.get_tensor(f"{i}.outside_gains"))
    first, f = _whole(file.get_tensor(f"{i}.first")), file.get_tensor(f"{i}.f")
    cut = np.unpackbits(file.get_tensor(f"{i}.cut"), axis=1, count=n).astype(bool)
    add = np.unpackbits(file.get_tensor(f"{i}.add"), axis=1, count=m).astype(bool)
    sound = (
        edges.shape == (n + m,)
        and gains.shape == (len(ALPHAS), GROUPS, n)
        and outside.shape == (GROUPS, m)
        and first.shape == (2, n + m)
        and f.shape == (2, len(cut)) == (2, len(add))
        and ((edges >= 0) & (edges < graph.n_edges)).all()
        and all(np.isfinite(x).all() for x in (gains, outside, first, f[0]))
    )
    if not sound:
        raise ValueError(i)
    look = Look(edges[:n], gains, edges[n:], outside, float(state["f"]))
    return Record(
        str(state["behaviour"]),
        str(state["family"]),
        int(state["draw"]),
        graph,
        look,
        First(first[0], first[1]),
        cut,
        add,
        f[0],
        f[1],
    )


def _shape(graph: Graph) -> dict[str, int]:
    return {"layers": graph.n_layers, "heads": graph.n_heads, "kv_heads": graph.n_kv_heads}


_SCALE = 2.0**10  # gradients of large circuits lie below what half precision can tell apart


def _half(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(
        np.clip(x * _SCALE, -60000, 60000), dtype=np.float16
    )  # as it is stored: row by row


def _whole(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) / np.float32(_SCALE)
