"""Would another look at the same pairs find the same circuit? The method is run again on bootstraps of them.

A bootstrap has as many discovery pairs, drawn again from them with replacement. Stability is the mean Jaccard overlap |A ∩ B| / |A ∪ B| of
the circuits, after pruning, over all pairs of bootstraps. Chance: that of as many edges drawn from the candidates. Circuits from
different draws of pairs are compared in the same way, as in the tables of `mechrl compare`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import combinations

import numpy as np

from mechrl.behaviours.base import Behaviour, Pairs, Part
from mechrl.circuit import Circuit
from mechrl.errors import MechRLError
from mechrl.models.base import Model
from mechrl.models.tokenizer import Tokenizer
from mechrl.names import SEARCH_METHODS, HoldsOn
from mechrl.search.session import SearchSettings, search
from mechrl.stats import Spread

FEWEST = 2  # bootstraps: one circuit overlaps with nothing


@dataclass(frozen=True)
class Stability:
    """Of so many circuits. `chance` is the mean over the same pairs of circuits."""

    circuits: int
    jaccard: Spread
    chance: float

    @property
    def text(self) -> str:
        return f"{self.jaccard.text(2)} (chance {self.chance:.2f})"


def overlap(circuits: Sequence[Circuit]) -> Stability | None:
    """None of fewer than two."""
    if len(circuits) < FEWEST:
        return None
    live = [circuit.live for circuit in circuits]
    pools = [int(circuit.settings.get("candidates", circuit.graph.n_edges)) for circuit in circuits]
    found, chance = [], []
    for a, b in combinations(range(len(live)), 2):
        found.append(jaccard(live[a], live[b]))
        sizes = int(live[a].sum()), int(live[b].sum())
        chance.append(chance_of(*sizes, max(min(pools[a], pools[b]), *sizes)))
    return Stability(len(live), Spread.of(found), math.fsum(chance) / len(chance))


def jaccard(a: np.ndarray, b: np.ndarray) -> float:
    """Of two masks [E]; two empty ones are the same."""
    union = int((a | b).sum())
    return int((a & b).sum()) / union if union else 1.0


def chance_of(a: int, b: int, pool: int) -> float:
    """The expected Jaccard of `a` and `b` edges drawn at random from `pool`: Σ_i P(i) i / (a + b − i), P hypergeometric."""
    if a + b == 0:
        return 1.0
    shared = range(max(0, a + b - pool), min(a, b) + 1)

    def log_ways(n: int, k: int) -> float:
        return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

    every = log_ways(pool, b)
    return math.fsum(
        math.exp(log_ways(a, i) + log_ways(pool - a, b - i) - every) * i / (a + b - i) for i in shared
    )


class Resampled(Behaviour):
    """A behaviour whose discovery pairs are drawn again, with replacement; all others are as ever."""

    @classmethod
    def of(cls, behaviour: Behaviour, seed: int) -> Resampled:
        mine = cls(**{field.name: getattr(behaviour, field.name) for field in fields(Behaviour)})
        object.__setattr__(mine, "bootstrap", seed)
        return mine

    def pairs(
        self,
        tokenizer: Tokenizer,
        n: int = 20,
        seed: int = 0,
        part: Part | None = None,
        n_ctx: int | None = None,
    ) -> Pairs:
        drawn = super().pairs(tokenizer, n, seed, part, n_ctx)
        if part != "discovery":
            return drawn
        rng = np.random.default_rng([seed, self.bootstrap])  # type: ignore[attr-defined]
        return drawn.take(rng.integers(len(drawn), size=len(drawn)).tolist())


def bootstrapped(
    circuit: Circuit,
    model: Model,
    behaviour: Behaviour,
    bootstraps: int,
    seed: int = 0,
    report: Callable[[str], None] = lambda line: None,
) -> Stability:
    """Runs the method that found the circuit again, with its settings, so many times."""
    if bootstraps < FEWEST:
        raise MechRLError(f"stability needs at least {FEWEST} bootstraps, not {bootstraps}")
    find = _method(circuit, circuit.as_found(model))
    found = []
    for i in range(bootstraps):
        report(f"bootstrap {i + 1} of {bootstraps}, some {circuit.passes:,.0f} passes each")
        found.append(find(Resampled.of(behaviour, seed * bootstraps + i)))
    stability = overlap(found)
    assert stability is not None
    return stability


def _method(circuit: Circuit, model: Model) -> Callable[[Behaviour], Circuit]:
    known = dict(circuit.settings)
    holds_on: HoldsOn = "fresh" if known.get("target") == "test" else "discovery"
    if circuit.method == "planner":
        from mechrl.agents.planner.session import DiscoverSettings, discover
        from mechrl.agents.planner.shipped import load_planner, shipped

        names = {field.name for field in fields(DiscoverSettings)} - {"holds_on"}
        mine = {name: known[name] for name in names if name in known}
        episode = DiscoverSettings(**mine, holds_on=holds_on)
        network = load_planner(shipped(model.name))
        return lambda behaviour: discover(model, behaviour, network, episode)
    if circuit.method not in SEARCH_METHODS:
        raise MechRLError(
            f"a circuit by {circuit.method} is not found again from its file; bootstraps are for the planner and "
            f"{', '.join(SEARCH_METHODS)}"
        )
    mine = {field.name: known[field.name] for field in fields(SearchSettings) if field.name in known}
    settings = SearchSettings(
        **mine | {"holds_on": holds_on, "thresholds": tuple(known.get("thresholds", (0.01,)))}
    )
    return lambda behaviour: search(model, behaviour, settings)
