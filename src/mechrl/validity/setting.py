"""Where a circuit was found, made again from what the circuit says of itself: discovery pairs, attribution, candidates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mechrl.behaviours.base import TEST_SEED, VALIDATION_SEED, Behaviour, Metric, Pairs, metric_value
from mechrl.candidates import candidate_set, discovery_pairs, metrics_of, scores_of
from mechrl.circuit import Circuit
from mechrl.engine import Engine
from mechrl.errors import MechRLError
from mechrl.models.base import Model
from mechrl.names import Prefilter
from mechrl.search.fresh_pairs import fresh

_RANKED = ("top-n", "greedy")  # these choose among all edges, so their own candidates say nothing


@dataclass(frozen=True)
class Setting:
    """A behaviour of a model on its discovery pairs, and the candidate set: the k best edges by every score of the prefilter."""

    model: Model
    behaviour: Behaviour
    pairs: Pairs
    engine: Engine
    k: int
    prefilter: Prefilter

    @classmethod
    def of(cls, model: Model, behaviour: Behaviour, circuit: Circuit) -> Setting:
        """The setting that a circuit was found in. Refuses a circuit of another model."""
        model = circuit.as_found(model)
        if behaviour.name != circuit.behaviour:
            raise MechRLError(
                f"the circuit is of the behaviour {circuit.behaviour!r}, not of {behaviour.name!r}"
            )
        known = circuit.settings
        if known.get("spare") or known.get("reach"):
            raise MechRLError(
                "the circuit is a retired agent's, whose candidates cannot be made again; find a new one with `mechrl discover`"
            )
        own = known.get("method", circuit.method) in _RANKED or known.get("whole_graph", False)
        k = known.get("k", 3000) if own else known.get("k_used", known.get("k", 3000))
        by = known.get("prefilter", "metric")
        return cls.make(model, behaviour, circuit.pairs, circuit.pairs_seed, k, by)

    @classmethod
    def make(
        cls,
        model: Model,
        behaviour: Behaviour,
        pairs: int,
        seed: int,
        k: int,
        prefilter: Prefilter,
    ) -> Setting:
        drawn = discovery_pairs(model, behaviour, pairs, seed)
        return cls(
            model,
            behaviour,
            drawn,
            Engine(model, drawn),
            min(k, model.graph.n_edges),
            prefilter,
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
        return candidate_set(self.all_scores, self.k)

    @cached_property
    def test(self) -> Engine:
        """On fresh pairs, which no search has seen."""
        return fresh(self.model, self.behaviour, TEST_SEED)

    def had_to_hold_on(self, circuit: Circuit) -> Engine:
        """On the pairs that decided when the method stopped: validation pairs if it aimed at fresh ones, else its discovery pairs."""
        if circuit.settings.get("target") != "test":
            return self.engine
        return fresh(self.model, self.behaviour, VALIDATION_SEED)


def f_of(engine: Engine, masks: np.ndarray) -> np.ndarray:
    """[C] float64 f of circuits [C, E]."""
    return engine.faithfulness(np.atleast_2d(masks)).double().cpu().numpy()


def metric_of(setting: Setting, masks: np.ndarray) -> np.ndarray | None:
    """[C] float64 (m(C) − m(∅)) / (m(model) − m(∅)) of circuits [C, E], m the behaviour's own metric. None where that is KL: f has it."""
    metric, n_edges = setting.behaviour.metric, setting.model.graph.n_edges
    if metric == "kl":
        return None
    ends = np.stack([np.zeros(n_edges, dtype=bool), np.ones(n_edges, dtype=bool)])
    every = np.concatenate([ends, np.atleast_2d(masks)])
    measured = setting.engine.measure(every, lambda logits: metric_value(metric, logits, setting.pairs))
    m: np.ndarray = measured.double().mean(-1).cpu().numpy()
    shares: np.ndarray = (m[2:] - m[0]) / (m[1] - m[0])
    return shares
