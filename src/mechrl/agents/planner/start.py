"""Where every episode begins: pairs, engines, a look at the whole graph, and the candidates that it leaves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mechrl.agents.planner.features import First
from mechrl.agents.planner.look import Looker, strength
from mechrl.behaviours.base import Behaviour
from mechrl.candidates import discovery_pairs
from mechrl.engine import Engine
from mechrl.graph import Graph
from mechrl.models.base import Model

SIZES = tuple(500 * 2**i for i in range(7))  # of the first circuits that are tried, of the best edges
ROOM = 4  # times as many edges are candidates


@dataclass
class Start:
    """A behaviour of a model, looked at once. Masks are over `candidates`, edges of the graph in ascending order."""

    engine: Engine  # on all discovery pairs
    looker: Looker
    first: First  # [E]
    candidates: (
        np.ndarray
    )  # [n] ascending edges: those that the first circuit has, and those that may be added to it
    mask: np.ndarray  # [n] the first circuit, without dead edges
    f: float  # its f

    @property
    def graph(self) -> Graph:
        return self.engine.graph

    @property
    def passes(self) -> float:
        return self.engine.passes

    def f_of(self, masks: np.ndarray) -> np.ndarray:
        """[C] float64 f of circuits [C, n] over the candidates."""
        return self.engine.faithfulness(np.atleast_2d(masks), self.candidates).double().cpu().numpy()

    @classmethod
    def again(
        cls,
        model: Model,
        behaviour: Behaviour,
        pairs: int,
        seed: int,
        first: First,
        candidates: np.ndarray,
        mask: np.ndarray,
        f: float,
    ) -> Start:
        """What was begun before; nothing is measured or charged."""
        engine, looker = _engines(model, behaviour, pairs, seed)
        looker.choose(candidates)
        return cls(engine, looker, first, candidates, mask, f)

    def prune(self, masks: np.ndarray) -> np.ndarray:
        return self.graph.prune(masks, self.candidates)

    def best_outside(self, mask: np.ndarray, most: int) -> np.ndarray:
        """Places of candidates that the circuit does not have, the most promising at first sight."""
        outside = np.flatnonzero(~mask)
        return np.sort(
            outside[np.argsort(-np.abs(self.first.mean[self.candidates[outside]]), kind="stable")][:most]
        )


def start(model: Model, behaviour: Behaviour, pairs: int, seed: int, enough: float, least: int = 0) -> Start:
    """The start of an episode on one draw of discovery pairs."""
    return begin(*_engines(model, behaviour, pairs, seed), enough, least)


def begin(engine: Engine, looker: Looker, enough: float, least: int = 0) -> Start:
    """Looks at the whole graph once and takes the first of `SIZES` whose best edges have f ≥ `enough`; else the whole graph.

    least: edges of the first circuit.
    """
    graph = engine.graph
    look = looker.look(np.ones(graph.n_edges, dtype=bool), np.zeros(0, dtype=np.int64), 1.0)
    order = np.argsort(-strength(look.gains), kind="stable")
    found = Start(
        engine, looker, First.of(look), np.arange(graph.n_edges), np.ones(graph.n_edges, dtype=bool), 1.0
    )
    for size in [size for size in SIZES if least <= size < graph.n_edges]:
        mask = np.zeros(graph.n_edges, dtype=bool)
        mask[order[:size]] = True
        f = float(engine.faithfulness(mask[None])[0])
        if f >= enough:
            found.candidates = np.sort(order[: ROOM * size])
            found.mask, found.f = graph.prune(mask[found.candidates], found.candidates), f
            break
    looker.choose(found.candidates)
    return found


def _engines(model: Model, behaviour: Behaviour, pairs: int, seed: int) -> tuple[Engine, Looker]:
    drawn = discovery_pairs(model, behaviour, pairs, seed)
    engine = Engine(model, drawn)
    return engine, Looker(engine, drawn)
