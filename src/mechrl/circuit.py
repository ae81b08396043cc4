"""A circuit and where it came from: the one thing that leaves a method, whichever method found it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import mechrl
from mechrl import circuit_json, hub
from mechrl.behaviours import Behaviour, behaviours, get_behaviour
from mechrl.errors import MechRLError
from mechrl.graph import Graph
from mechrl.models.base import Model

FILE = "circuit.json"  # in a folder and on the hub


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
            raise MechRLError(f"the circuit is of the behaviour {self.behaviour!r}, not of {mine.name!r}")
        if own is not None and own.rows() != mine.rows():
            raise MechRLError(
                f"{given} has other rows than the circuit was found with; leave --behaviour away, it has its own"
            )
        return mine

    # ---- as others want it ------------------------------------------------------------------------------------------

    def rows_of_edges(self) -> list[dict[str, Any]]:
        """A dict for every kept edge: `source`, `target`, `channel`, `score`, `live`; the strongest first."""
        found: list[dict[str, Any]] = views().rows(self)
        return found

    def to_dataframe(self) -> Any:
        """The same as a `pandas.DataFrame`."""
        return views().to_dataframe(self)

    def to_networkx(self) -> Any:
        """The edges on a path as a `networkx.MultiDiGraph`."""
        return views().to_networkx(self)

    def run(self, model: Model, prompt: str, corrupt: str, top: int = 5) -> Any:
        """What the circuit says to a prompt of yours, beside the model; `corrupt` is what it is told where it has no edge."""
        return views().run(self, model, prompt, corrupt, top)

    def logit_attribution(self, model: Model, behaviour: Behaviour | None = None) -> list[dict[str, Any]]:
        """A dict for every component: `circuit` and `model`, how much it pushes the answers above the foils there by what it writes to
        the logits; the strongest first."""
        found: list[dict[str, Any]] = views().logit_attribution(
            self, model, behaviour or self.its_behaviour()
        )
        return found

    def transformer_lens_hooks(self, corrupted: Any) -> Any:
        """`fwd_hooks` for TransformerLens that ablate every component outside the circuit; `corrupted` is the cache of that run."""
        return views().transformer_lens_hooks(self, corrupted)

    # ---- JSON -------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """What `save` writes; docs/file-formats.md explains every field."""
        return circuit_json.to_json(self)

    def save(self, path: Path | str) -> None:
        """As JSON; compressed, if the name ends with .gz."""
        circuit_json.write(Path(path), self.to_json())

    def push_to_hub(self, repo: str, private: bool = False) -> str:
        """To a repository of its own, with a model card; its address `hf:…`, which `load` and every command take.

        The rows of a behaviour of your own go with it.
        """
        return hub.push(repo, {FILE: circuit_json.encode(self.to_json())}, views().card(self, repo), private)

    @classmethod
    def load(cls, path: Path | str) -> Circuit:
        """Reads a file that `save` wrote, or a folder's circuit.json, or what `push_to_hub` put on the hub. Refuses anything else, and
        says what is wrong with it."""
        return cls(**circuit_json.read(hub.local(path, FILE)))

    def to_eap_ig(self, path: Path | str) -> None:
        """Writes the JSON that EAP-IG and MIB read: every edge with its score, and whether it is in the circuit."""
        from mechrl import eap_ig

        importance, kept = self.importance(), self.graph.prune(self.mask)
        eap_ig.write_json(Path(path), self.graph, self.d_model, importance, kept)


def views() -> Any:
    """Loaded when asked for: it runs the engine, a circuit file does not."""
    from mechrl import circuit_views

    return circuit_views


def _shape(graph: Graph) -> str:
    return f"{graph.n_layers} layers, {graph.n_heads} heads, {graph.n_kv_heads} KV heads"
