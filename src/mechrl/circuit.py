"""A circuit and where it came from: the one thing that leaves a method, whichever method found it. JSON in and out."""

from __future__ import annotations

import gzip
import json
import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import mechrl
from mechrl.behaviours import Behaviour, behaviours, get_behaviour
from mechrl.errors import MechRLError
from mechrl.files import write_atomically
from mechrl.files.reading import read_json
from mechrl.graph import Graph, checked_graph
from mechrl.models.base import Model
from mechrl.names import PREFILTERS
from mechrl.ranges import MOST_PAIRS

FORMAT = 1


@dataclass(frozen=True, eq=False, repr=False)
class Circuit:
    """The edges that a method kept, and everything needed to judge them and to find them again.

    `scores` follow the sign of `mechrl.attribution`: corrupting an edge of positive score hurts. They are single precision, here
    as in the file. `order` lists the edges that a search removed, first removed first: without scores it says what matters.

    `len(circuit)` is the number of kept edges, `size` that of those on a path; `edges` and `live_edges` are their names.
    """

    model: str
    checksum: str  # of the model's weights
    graph: Graph
    d_model: int
    behaviour: str
    method: str
    settings: dict[str, Any]
    tau: float
    seed: int
    pairs: int  # discovery pairs
    mask: np.ndarray  # [E] bool, the kept edges
    faithfulness: float  # on the discovery pairs
    faithfulness_test: float | None  # on fresh pairs, which played no part in the search
    faithfulness_validation: float | None = None  # on the pairs that decided when to stop, if any did
    scores: np.ndarray | None = None  # [E]
    order: tuple[int, ...] = ()
    passes: float = 0.0
    seconds: float = 0.0
    commit: str | None = None  # of the hub's repository that the model came from
    complete: bool = True  # False: the search was interrupted
    version: str = field(default=mechrl.__version__)
    attribution: np.ndarray | None = (
        None  # [E] EAP-IG on the discovery pairs, of the edges kept or in `order`; 0 for all others
    )
    rows: tuple[
        dict[str, Any], ...
    ] = ()  # of a behaviour of the user's own, as `Behaviour.from_pairs` reads them
    bos: bool | None = None  # whether its prompts opened with a token; None: a file that does not say

    def __post_init__(self) -> None:
        object.__setattr__(self, "mask", np.asarray(self.mask, dtype=bool))
        if self.attribution is not None:
            known = self.mask.copy()
            known[list(self.order)] = True
            object.__setattr__(self, "attribution", np.where(known, self.attribution, 0).astype(np.float32))
        if self.scores is not None:
            object.__setattr__(self, "scores", np.asarray(self.scores, dtype=np.float32))

    # ---- what it is -------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        fresh = "" if self.faithfulness_test is None else f", {self.faithfulness_test:.3f} on fresh ones"
        return (
            f"<Circuit: {self.behaviour} in {self.model} by {self.method}, {self.size:,} of {self.graph.n_edges:,} edges, "
            f"f = {self.faithfulness:.3f} on {self.pairs} discovery pairs{fresh}>"
        )

    def _repr_html_(self) -> str:
        """In a notebook: the viewer, without what needs the model (`mechrl.show` has that)."""
        return mechrl.show(self).html

    def __len__(self) -> int:
        """Raw size: all kept edges."""
        return int(self.mask.sum())

    def __bool__(self) -> bool:
        return True  # an empty circuit is a circuit

    @property
    def edges(self) -> tuple[str, ...]:
        """The names of all kept edges, such as `a9.h6->m10`."""
        return tuple(self.graph.edge_name(int(e)) for e in np.flatnonzero(self.mask))

    @property
    def live(self) -> np.ndarray:
        """[E] bool, the kept edges on a path from the input to the logits."""
        return self.graph.prune(self.mask)

    @property
    def live_edges(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self.graph.edge_name(int(e)) for e in np.flatnonzero(self.live))

    @property
    def size(self) -> int:
        """Edges on a path from the input to the logits; the others change no output. Methods are compared by this."""
        return int(self.live.sum())

    @property
    def pairs_seed(self) -> int:
        """The seed of the discovery pairs: the method's own, unless it says otherwise (a policy's is that of its rollouts)."""
        return int(self.settings.get("pairs_seed", self.seed))

    @property
    def revision(self) -> str | None:
        """What to ask the hub for, to have the model as it was; None where the model is not the hub's, or was not."""
        try:
            return None if Path(self.model).is_dir() else self.commit
        except OSError:  # a name that is too long
            return None

    def importance(self) -> np.ndarray:
        """[E] the scores; without them the removal order: kept edges first, then the later removed the more important.

        Edges that the search never considered come last, with zero.
        """
        if self.scores is not None:
            return self.scores.astype(np.float64)
        result = np.zeros(self.graph.n_edges)
        result[list(self.order)] = 1 + np.arange(len(self.order))
        result[self.mask] = 1 + len(self.order)
        return result / (1 + len(self.order))

    def check_model(self, model: Model) -> None:
        """Refuses a model that the circuit was not found in."""
        if self.graph != model.graph:
            raise MechRLError(
                f"the circuit is of {self.model} ({_shape(self.graph)}), but {model.name} has {_shape(model.graph)}; "
                f"load {self.model}"
            )
        if self.checksum != model.checksum:
            raise MechRLError(
                f"the circuit was found in {self.model} with other weights (checksum {self.checksum[:12]}…) than "
                f"{model.name} has ({model.checksum[:12]}…); load the same weights or search again"
            )

    def as_found(self, model: Model) -> Model:
        """The model with prompts that open as they did when the circuit was found. Refuses a model that it was not found in."""
        self.check_model(model)
        if self.bos is None or model.tokenizer is None or self.bos == (model.tokenizer.bos is not None):
            return model
        return replace(model, tokenizer=model.tokenizer.opened("yes" if self.bos else "no"))

    def its_behaviour(self, given: str | Path | None = None) -> Behaviour:
        """The behaviour it was found for: of its own rows, or a built-in one. `given`: a name or file, which must be that behaviour.

        A circuit file never says what else is to be read.
        """
        own = Behaviour.from_pairs(self.behaviour, self.rows) if self.rows else None
        if given is None:
            if own is not None:
                return own
            if self.behaviour in {behaviour.name for behaviour in behaviours()}:
                return get_behaviour(self.behaviour)
            raise MechRLError(
                f"the behaviour {self.behaviour!r} is not built in; give its file by --behaviour"
            )
        mine = get_behaviour(given)
        if mine.name != self.behaviour:
            raise MechRLError(f"the circuit is of the behaviour {self.behaviour!r}, {given} is {mine.name!r}")
        if own is not None and own.rows() != mine.rows():
            raise MechRLError(
                f"{given} has other rows than the circuit was found with; leave --behaviour away, it has its own"
            )
        return mine

    # ---- as others want it ------------------------------------------------------------------------------------------

    def rows_of_edges(self) -> list[dict[str, Any]]:
        """A dict for every kept edge: `source`, `target`, `channel`, `score`, `live`; the strongest first."""
        return views().rows(self)

    def to_dataframe(self) -> Any:
        """The same as a `pandas.DataFrame`."""
        return views().to_dataframe(self)

    def to_networkx(self) -> Any:
        """The edges on a path as a `networkx.MultiDiGraph`."""
        return views().to_networkx(self)

    def run(self, model: Model, prompt: str, corrupt: str, top: int = 5) -> Any:
        """What the circuit says to a prompt of yours, beside the model; `corrupt` is what it is told where it has no edge."""
        return views().run(self, model, prompt, corrupt, top)

    def transformer_lens_hooks(self, corrupted: Any) -> list[Any]:
        """`fwd_hooks` for TransformerLens that ablate every component outside the circuit; `corrupted` is the cache of that run."""
        return views().transformer_lens_hooks(self, corrupted)

    # ---- JSON -------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """What `save` writes; docs/file-formats.md explains every field."""
        return {
            "format": FORMAT,
            "version": self.version,
            "model": self.model,
            "checksum": self.checksum,
            "commit": self.commit,
            "graph": {
                "n_layers": self.graph.n_layers,
                "n_heads": self.graph.n_heads,
                "n_kv_heads": self.graph.n_kv_heads,
                "d_model": self.d_model,
            },
            "behaviour": self.behaviour,
            "method": self.method,
            "settings": self.settings,
            "tau": self.tau,
            "seed": self.seed,
            "pairs": self.pairs,
            "complete": self.complete,
            "faithfulness": self.faithfulness,
            "faithfulness_test": self.faithfulness_test,
            "faithfulness_validation": self.faithfulness_validation,
            "n_edges": len(self),
            "n_edges_pruned": self.size,
            "passes": self.passes,
            "seconds": self.seconds,
            "edges": list(self.edges),
            "order": list(self.order),
            # the shortest decimal that reads back as the same single-precision number
            "scores": None if self.scores is None else [float(str(x)) for x in self.scores],
            "attribution": None
            if self.attribution is None
            else [float(str(x)) for x in self.attribution[self._attributed()]],
            "rows": list(self.rows),
            "bos": self.bos,
        }

    def _attributed(self) -> np.ndarray:
        """The edges that have an attribution score, as the file lists them: those kept, then those in `order`."""
        return np.concatenate([np.flatnonzero(self.mask), np.array(self.order, dtype=np.int64)])

    def save(self, path: Path | str) -> None:
        """As JSON; compressed, if the name ends with .gz."""
        path, content = Path(path), _encode(self.to_json())
        write_atomically(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)

    @classmethod
    def load(cls, path: Path | str) -> Circuit:
        """Reads a file that `save` wrote. Refuses anything else, and says what is wrong with it."""
        path = Path(path)
        try:
            known = read_json(path)
        except FileNotFoundError as exc:
            raise MechRLError(f"{path}: no such file; `mechrl search` writes circuits") from exc
        except OSError as exc:
            raise MechRLError(f"{path}: cannot be read ({exc.strerror})") from exc
        except ValueError as exc:
            raise MechRLError(f"{path}: not valid JSON, or cut short; search again") from exc
        if not isinstance(known, dict) or "format" not in known:
            raise MechRLError(f"{path}: not a circuit of MechRL; `mechrl search` writes them")
        if known["format"] != FORMAT:
            raise MechRLError(
                f"{path}: format {known['format']!r}, this version of MechRL reads {FORMAT}; search again"
            )
        try:
            return cls._from_json(known)
        except MechRLError as exc:
            raise MechRLError(f"{path}: {exc}") from exc
        except (KeyError, TypeError, ValueError, OverflowError) as exc:
            what = f"there is no {exc}" if isinstance(exc, KeyError) else exc
            raise MechRLError(f"{path}: a field is missing or wrong ({what}); search again") from exc

    @classmethod
    def _from_json(cls, known: dict[str, Any]) -> Circuit:
        shape = _Fields(known["graph"], "graph.")
        graph, d_model = _graph(shape), shape.whole("d_model", 1)
        f = _Fields(known)
        mask = np.zeros(graph.n_edges, dtype=bool)
        mask[[graph.edge_of_name(name) for name in f.list_of("edges", str)]] = True
        order = tuple(f.list_of("order", int))
        if any(not 0 <= e < graph.n_edges for e in order):
            raise ValueError("order names edges that the graph does not have")
        scores = None
        if known["scores"] is not None:
            scores = np.array(f.list_of("scores", int, float), dtype=np.float32)
            if scores.shape != (graph.n_edges,):
                raise ValueError(f"{len(scores)} scores for {graph.n_edges} edges")
            if not np.isfinite(scores).all():
                raise ValueError("a score is not a finite number")
        attribution, mine = None, np.concatenate([np.flatnonzero(mask), np.array(order, dtype=np.int64)])
        if known.get("attribution") is not None:
            values = np.array(f.list_of("attribution", int, float), dtype=np.float32)
            if values.shape != mine.shape or not np.isfinite(values).all():
                raise ValueError(
                    f"{len(values)} attribution scores for {len(mine)} edges, or one that is not a finite number"
                )
            attribution = np.zeros(graph.n_edges, dtype=np.float32)
            attribution[mine] = values
        rows = tuple(f.list_of("rows", dict)) if "rows" in known else ()
        if rows:
            Behaviour.from_pairs(f.text("behaviour"), rows)  # refuses what is none
        return cls(
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
            scores=scores,
            order=order,
            passes=f.number("passes"),
            seconds=f.number("seconds"),
            complete=f.of("complete", bool),
            version=f.text("version"),
            attribution=attribution,
            rows=rows,
            bos=None if known.get("bos") is None else f.of("bos", bool),
        )

    def to_eap_ig(self, path: Path | str) -> None:
        """Writes the JSON that EAP-IG and MIB read: every edge with its score, and whether it is in the circuit."""
        from mechrl import eap_ig

        importance, kept = self.importance(), self.graph.prune(self.mask)
        eap_ig.write_json(Path(path), self.graph, self.d_model, importance, kept)


def views() -> Any:
    """Loaded when asked for: it runs the engine, a circuit file does not."""
    from mechrl import circuit_views

    return circuit_views


class _Fields:
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
        values = self.of(name, list)
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
    f = _Fields(known, "settings.")
    for name, least in (("k", 1), ("k_used", 1), ("pairs_seed", 0)):
        if name in known:
            f.whole(name, least)
    for name in ("spare", "reach"):
        if name in known and not 0 <= f.number(name) < 1:
            raise ValueError(f"settings.{name} must lie between 0 and 1")
    if known.get("prefilter", "metric") not in PREFILTERS:
        raise ValueError("settings.prefilter is none")
    return known


def _graph(shape: _Fields) -> Graph:
    return checked_graph(*(shape.whole(name, 1) for name in ("n_layers", "n_heads", "n_kv_heads")))


def _shape(graph: Graph) -> str:
    return f"{graph.n_layers} layers, {graph.n_heads} heads, {graph.n_kv_heads} KV heads"


def _encode(value: object) -> bytes:
    try:
        return json.dumps(value, allow_nan=False).encode() + b"\n"
    except ValueError as exc:
        raise MechRLError(
            "the circuit has a faithfulness or score that is not a number; check the model and its pairs"
        ) from exc
