"""Where a circuit was found, made again from what the circuit says of itself: discovery pairs, attribution, candidates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mechrl.behaviours.base import TEST_SEED, Behaviour, Metric, Pairs
from mechrl.candidates import candidates_of, discovery_pairs, metrics_of, scores_of
from mechrl.circuit import Circuit
from mechrl.engine import Engine
from mechrl.errors import MechRLError
from mechrl.models.base import Model
from mechrl.names import Prefilter
from mechrl.search.fresh_pairs import fresh

_RANKED = ("top-n", "greedy")  # these choose among all edges, so their own candidates say nothing


@dataclass(frozen=True)
class Setting:
    """A behaviour of a model on its discovery pairs, and the candidate set: the k best edges by every score of the prefilter, doubled until
    they `reach` enough, or with `spare` the fewest whose f is at most that much lower."""

    model: Model
    behaviour: Behaviour
    pairs: Pairs
    engine: Engine
    k: int
    prefilter: Prefilter
    spare: float = 0.0
    reach: float = 0.0

    @classmethod
    def of(cls, model: Model, behaviour: Behaviour, circuit: Circuit) -> Setting:
        """The setting that a circuit was found in. Refuses a circuit of another model."""
        model = circuit.as_found(model)
        if behaviour.name != circuit.behaviour:
            raise MechRLError(
                f"the circuit is of the behaviour {circuit.behaviour!r}, not of {behaviour.name!r}"
            )
        known = circuit.settings
        own = known.get("method", circuit.method) in _RANKED or known.get("whole_graph", False)
        k = known.get("k", 3000) if own else known.get("k_used", known.get("k", 3000))
        by, spare, reach = known.get("prefilter", "metric"), known.get("spare", 0.0), known.get("reach", 0.0)
        return cls.make(model, behaviour, circuit.pairs, circuit.pairs_seed, k, by, spare, reach)

    @classmethod
    def make(
        cls,
        model: Model,
        behaviour: Behaviour,
        pairs: int,
        seed: int,
        k: int,
        prefilter: Prefilter,
        spare: float = 0.0,
        reach: float = 0.0,
    ) -> Setting:
        drawn = discovery_pairs(model, behaviour, pairs, seed)
        return cls(
            model,
            behaviour,
            drawn,
            Engine(model, drawn),
            min(k, model.graph.n_edges),
            prefilter,
            spare,
            reach,
        )

    def scores_by(self, metric: Metric) -> np.ndarray:
        """[E] EAP-IG on inputs, five steps, as the prefilter computes it."""
        return scores_of(self.engine, self.pairs, [metric])[0]

    @property
    def metrics(self) -> list[Metric]:
        return metrics_of(self.behaviour.metric, self.prefilter)

    @cached_property
    def scores(self) -> np.ndarray:
        """[E] the ranking that circuits are held against: by the behaviour's own metric, unless the prefilter is KL alone."""
        return self.scores_by(self.metrics[0])

    @cached_property
    def all_scores(self) -> list[np.ndarray]:
        """[E] each: what candidates are chosen by."""
        return [self.scores, *scores_of(self.engine, self.pairs, self.metrics[1:])]

    @cached_property
    def candidates(self) -> np.ndarray:
        """[K] ascending edges."""
        return candidates_of(self.engine, self.all_scores, self.k, self.spare, self.reach)

    @cached_property
    def test(self) -> Engine:
        """On fresh pairs, which no search has seen."""
        return fresh(self.model, self.behaviour, TEST_SEED)


def f_of(engine: Engine, masks: np.ndarray) -> np.ndarray:
    """[C] float64 f of circuits [C, E]."""
    return engine.faithfulness(np.atleast_2d(masks)).double().cpu().numpy()
