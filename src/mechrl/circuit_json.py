"""`circuit.json`: what is written of a circuit, and read back field by field, each refused by name if it is not of its kind."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mechrl.behaviours import Behaviour
from mechrl.errors import MechRLError
from mechrl.files import write_atomically
from mechrl.files.reading import read_json
from mechrl.graph import Graph, checked_graph
from mechrl.names import PREFILTERS
from mechrl.ranges import MOST_PAIRS

if TYPE_CHECKING:
    from mechrl.circuit import Circuit

FORMAT = 1


def to_json(circuit: Circuit) -> dict[str, Any]:
    """The object that `circuit.json` holds."""
    return {
        "format": FORMAT,
        "version": circuit.version,
        "model": circuit.model,
        "checksum": circuit.checksum,
        "commit": circuit.commit,
        "graph": {
            "n_layers": circuit.graph.n_layers,
            "n_heads": circuit.graph.n_heads,
            "n_kv_heads": circuit.graph.n_kv_heads,
            "d_model": circuit.d_model,
        },
        "behaviour": circuit.behaviour,
        "method": circuit.method,
        "settings": circuit.settings,
        "tau": circuit.tau,
        "seed": circuit.seed,
        "pairs": circuit.pairs,
        "complete": circuit.complete,
        "faithfulness": circuit.faithfulness,
        "faithfulness_test": circuit.faithfulness_test,
        "faithfulness_validation": circuit.faithfulness_validation,
        "n_edges": len(circuit),
        "n_edges_pruned": circuit.size,
        "passes": circuit.passes,
        "seconds": circuit.seconds,
        "edges": list(circuit.edges),
        "order": list(circuit.order),
        # the shortest decimal that reads back as the same single-precision number
        "scores": None if circuit.scores is None else [float(str(x)) for x in circuit.scores],
        "attribution": None
        if circuit.attribution is None
        else [float(str(x)) for x in circuit.attribution[_attributed(circuit.mask, circuit.order)]],
        "rows": list(circuit.rows),
        "bos": circuit.bos,
    }


def write(path: Path, known: dict[str, Any]) -> None:
    """As JSON; compressed, if the name ends with .gz."""
    content = encode(known)
    write_atomically(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def read(path: Path) -> dict[str, Any]:
    """The fields of the circuit in a file, checked; anything else is a `MechRLError`."""
    try:
        known = read_json(path)
    except FileNotFoundError as exc:
        raise MechRLError(
            f"{path}: no such file; `mechrl discover` and `mechrl search` write circuits"
        ) from exc
    except OSError as exc:
        raise MechRLError(f"{path}: cannot be read ({exc.strerror})") from exc
    except ValueError as exc:
        raise MechRLError(f"{path}: not valid JSON, or cut short; search again") from exc
    if not isinstance(known, dict) or "format" not in known:
        raise MechRLError(
            f"{path}: not a circuit of MechRL; `mechrl discover` and `mechrl search` write them"
        )
    if known["format"] != FORMAT:
        raise MechRLError(
            f"{path}: format {known['format']!r}, this version of MechRL reads {FORMAT}; search again"
        )
    try:
        return _fields(known)
    except MechRLError as exc:
        raise MechRLError(f"{path}: {exc}") from exc
    except (KeyError, TypeError, ValueError, OverflowError) as exc:
        what = f"there is no {exc}" if isinstance(exc, KeyError) else exc
        raise MechRLError(f"{path}: a field is missing or wrong ({what}); search again") from exc


def _fields(known: dict[str, Any]) -> dict[str, Any]:
    shape = Fields(known["graph"], "graph.")
    graph, d_model = _graph(shape), shape.whole("d_model", 1)
    f = Fields(known)
    mask = np.zeros(graph.n_edges, dtype=bool)
    mask[[graph.edge_of_name(name) for name in f.list_of("edges", str)]] = True
    order = tuple(f.list_of("order", int))
    if any(not 0 <= e < graph.n_edges for e in order):
        raise ValueError("order names edges that the graph does not have")
    rows = tuple(f.list_of("rows", dict)) if "rows" in known else ()
    if rows:
        Behaviour.from_pairs(f.text("behaviour"), rows)  # refuses what is none
    return dict(
        model=f.text("model"),
        checksum=f.text("checksum"),
        commit=_commit(known.get("commit")),
        graph=graph,
        d_model=d_model,
        behaviour=f.text("behaviour"),
        method=f.text("method"),
        settings=_settings(f.of("settings", dict)),
        tau=f.number("tau"),
        seed=f.whole("seed", 0),
        pairs=f.whole("pairs", 1, MOST_PAIRS),
        mask=mask,
        faithfulness=f.number("faithfulness"),
        faithfulness_test=f.number_or_none("faithfulness_test"),
        faithfulness_validation=f.number_or_none("faithfulness_validation"),
        scores=_scores(f, known, graph.n_edges),
        order=order,
        passes=f.number("passes"),
        seconds=f.number("seconds"),
        complete=f.of("complete", bool),
        version=f.text("version"),
        attribution=_attribution(f, known, mask, order),
        rows=rows,
        bos=None if known.get("bos") is None else f.of("bos", bool),
    )


def _attributed(mask: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """The edges that have an attribution score, as the file lists them: those kept, then those in `order`."""
    return np.concatenate([np.flatnonzero(mask), np.array(order, dtype=np.int64)])


def _scores(f: Fields, known: dict[str, Any], n_edges: int) -> np.ndarray | None:
    if known["scores"] is None:
        return None
    scores = np.array(f.list_of("scores", int, float), dtype=np.float32)
    if scores.shape != (n_edges,):
        raise ValueError(f"{len(scores)} scores for {n_edges} edges")
    if not np.isfinite(scores).all():
        raise ValueError("a score is not a finite number")
    return scores


def _attribution(
    f: Fields, known: dict[str, Any], mask: np.ndarray, order: Sequence[int]
) -> np.ndarray | None:
    if known.get("attribution") is None:
        return None
    mine = _attributed(mask, order)
    values = np.array(f.list_of("attribution", int, float), dtype=np.float32)
    if values.shape != mine.shape or not np.isfinite(values).all():
        raise ValueError(
            f"{len(values)} attribution scores for {len(mine)} edges, or one that is not a finite number"
        )
    attribution = np.zeros(len(mask), dtype=np.float32)
    attribution[mine] = values
    return attribution


class Fields:
    """The fields of a JSON object, each of its kind. What is of another kind is refused by name."""

    def __init__(self, known: Any, prefix: str = "") -> None:
        self._known, self._prefix = known, prefix

    def of(self, name: str, *kinds: type) -> Any:
        value = self._known[name]
        if type(value) not in kinds:  # not isinstance: True is no number here
            expected = " or ".join(_KINDS[kind] for kind in kinds)
            raise ValueError(
                f"{self._prefix}{name} must be {expected}, not {_KINDS.get(type(value), 'null')}"
            )
        return value

    def text(self, name: str) -> str:
        value: str = self.of(name, str)
        value.encode()  # JSON can escape half a character, which nobody could print
        return value

    def number(self, name: str) -> float:
        value: float = self.of(name, int, float)
        if not math.isfinite(value):
            raise ValueError(f"{self._prefix}{name} must be finite")
        return value

    def number_or_none(self, name: str) -> float | None:
        return None if self._known[name] is None else self.number(name)

    def whole(self, name: str, least: int, most: int = 2**63 - 1) -> int:
        value: int = self.of(name, int)
        if not least <= value <= most:
            raise ValueError(f"{self._prefix}{name} must be at least {least}, and of a sensible size")
        return value

    def list_of(self, name: str, *kinds: type) -> list[Any]:
        values: list[Any] = self.of(name, list)
        if any(type(value) not in kinds for value in values):
            raise ValueError(
                f"{self._prefix}{name} must be a list, each entry {' or '.join(_KINDS[kind] for kind in kinds)}"
            )
        return values


_KINDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


def _commit(known: Any) -> str | None:
    if known is not None and not (isinstance(known, str) and re.fullmatch("[0-9a-f]{40}", known)):
        raise ValueError("commit must be one of the hub, or null")
    return known


def _settings(known: dict[str, Any]) -> dict[str, Any]:
    """A method's settings; those that pairs and candidates are made from again must be what they can be made from."""
    f = Fields(known, "settings.")
    for name, least in (("k", 1), ("k_used", 1), ("pairs_seed", 0)):
        if name in known:
            f.whole(name, least)
    for name in ("spare", "reach"):
        if name in known and not 0 <= f.number(name) < 1:
            raise ValueError(f"settings.{name} must lie between 0 and 1")
    if known.get("prefilter", "metric") not in PREFILTERS:
        raise ValueError("settings.prefilter is none")
    return known


def _graph(shape: Fields) -> Graph:
    return checked_graph(*(shape.whole(name, 1) for name in ("n_layers", "n_heads", "n_kv_heads")))


def encode(value: object) -> bytes:
    try:
        return json.dumps(value, allow_nan=False).encode() + b"\n"
    except ValueError as exc:
        raise MechRLError(
            "the circuit has a faithfulness or score that is not a number; check the model and its pairs"
        ) from exc
