"""Where a circuit was found, made again from what the circuit says of itself: discovery pairs, attribution, candidates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mechrl import attribution
from mechrl.behaviours.base import TEST_SEED, Behaviour, Metric, Pairs
from mechrl.circuit import Circuit
from mechrl.engine import Engine
from mechrl.errors import MechRLError
from mechrl.models.base import Model
from mechrl.rl.tasks import candidates_of
from mechrl.search.run import fresh

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
    prefilter: str  # `metric`, `kl` or `union`
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
        prefilter: str,
        spare: float = 0.0,
        reach: float = 0.0,
    ) -> Setting:
        if model.tokenizer is None:
            raise MechRLError(f"model {model.name!r} has no tokenizer, so no pairs can be made for it")
        drawn = behaviour.pairs(model.tokenizer, pairs, seed, part="discovery", n_ctx=model.spec.n_ctx)
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
        return attribution.cached(self.engine, self.pairs, metric)

    @cached_property
    def scores(self) -> np.ndarray:
        """[E] the ranking that circuits are held against: by the behaviour's own metric, unless the prefilter is KL alone."""
        return self.scores_by("kl" if self.prefilter == "kl" else self.behaviour.metric)

    @cached_property
    def all_scores(self) -> list[np.ndarray]:
        """[E] each: what candidates are chosen by."""
        union = self.prefilter == "union" and self.behaviour.metric != "kl"
        return [self.scores, *([self.scores_by("kl")] if union else [])]

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
