"""From a behaviour to a circuit: what `mechrl discover` runs. It can be left at any round and taken up again.

With `holds_on="fresh"` the circuit must be faithful on pairs that the agent has not seen (fresh.py); 100 validation pairs judge, five
passes a circuit. Test pairs judge nothing: f on them is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from mechrl.agents.planner.fresh import Fresh
from mechrl.agents.planner.plan import Planner, Predictor
from mechrl.agents.planner.saved import SavedSession
from mechrl.agents.planner.start import Start, start
from mechrl.behaviours.base import TEST_SEED, VALIDATION_SEED, Behaviour
from mechrl.circuit import Circuit
from mechrl.engine import Engine
from mechrl.errors import MechRLError
from mechrl.models.base import Model
from mechrl.names import HoldsOn, one_of
from mechrl.ranges import check_seed
from mechrl.search.fresh_pairs import fresh


@dataclass(frozen=True)
class DiscoverSettings:
    """What determines an episode, besides the model, the behaviour and the planner."""

    tau: float = 0.9
    pairs: int = 20
    holds_on: HoldsOn = "fresh"  # the pairs on which f ≥ tau must hold
    check: bool = True  # with `fresh`: validation pairs judge; else the predicted gap is all
    budget: int = 1000  # passes: then the best so far is the answer
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("holds-on", self.holds_on, get_args(HoldsOn))
        if not 0 < self.tau < 1:
            raise MechRLError(f"tau must lie between 0 and 1, not be {self.tau:g}")
        if self.pairs < 1 or self.budget < 1:
            raise MechRLError("the number of pairs and the budget must be at least 1")
        check_seed(self.seed)


@dataclass(frozen=True)
class Progress:
    """How far a session is. `passes` never exceeds the budget by more than a round."""

    edges: int
    f: float
    passes: float
    budget: int
    seconds: float


class Session:
    """One behaviour's episode, with everything that must survive an interruption."""

    def __init__(
        self, model: Model, behaviour: Behaviour, network: Predictor, settings: DiscoverSettings
    ) -> None:
        self.model, self.behaviour, self.settings = model, behaviour, settings
        self._began, self._seconds_before = time.perf_counter(), 0.0
        aim = settings.tau + 0.4 * (1 - settings.tau)
        self.start: Start = start(model, behaviour, settings.pairs, settings.seed, aim)
        self._validation: Engine | None = None
        self.planner = Planner(self.start, network, settings.tau, self._fresh())
        self.episode = self.planner.begin()

    # ---- the search -------------------------------------------------------------------------------------------------

    @property
    def passes(self) -> float:
        return round(self.start.passes, 6)

    @property
    def seconds(self) -> float:
        return self._seconds_before + time.perf_counter() - self._began

    @property
    def progress(self) -> Progress:
        return Progress(
            int(self.episode.mask.sum()), self.episode.f, self.passes, self.settings.budget, self.seconds
        )

    def run(
        self,
        checkpoint: Callable[[Session], None] = lambda session: None,
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        """Goes on to the end. Both callbacks may raise to stop; a session can be saved in `checkpoint` alone.

        checkpoint: called after every round. watch: called several times within one.
        """
        self.planner.watch = watch
        while not self.episode.done:
            self.planner.step(self.episode)
            if self.passes > self.settings.budget:
                self.planner.finish(self.episode, "the budget is spent")
            checkpoint(self)

    def _fresh(self) -> Fresh | None:
        if self.settings.holds_on == "discovery":
            return None
        return Fresh(self.settings.tau, self._on_validation if self.settings.check else None)

    def _on_validation(self, mask: np.ndarray) -> float:
        if self._validation is None:
            self._validation = fresh(
                self.model, self.behaviour, VALIDATION_SEED, ledger=self.start.engine.ledger
            )
        return float(self._validation.faithfulness(mask[None], self.start.candidates)[0])

    # ---- what was found ---------------------------------------------------------------------------------------------

    def circuit(self, complete: bool = True) -> Circuit:
        """The best so far. f on test pairs costs nothing: it plays no part in the search."""
        assert self.model.tokenizer is not None
        passes, seconds, start = self.passes, self.seconds, self.start
        judged = self.planner.fresh
        kept, f_validation = (judged and judged.best) or (self.episode.mask, None)
        with start.engine.ledger.free():
            f = float(start.f_of(kept)[0])
        test = fresh(self.model, self.behaviour, TEST_SEED)
        graph = self.model.graph
        mask = np.zeros(graph.n_edges, dtype=bool)
        mask[start.candidates[kept]] = True
        settings = asdict(self.settings) | {"candidates": len(start.candidates), "note": self.episode.note}
        settings["target"] = "test" if judged else "discovery"  # what files call it
        return Circuit(
            model=self.model.name,
            checksum=self.model.checksum,
            commit=self.model.commit,
            graph=graph,
            d_model=self.model.spec.d_model,
            behaviour=self.behaviour.name,
            method="planner",
            settings={k: v for k, v in settings.items() if k != "holds_on"} | {"rounds": self.episode.rounds},
            tau=self.settings.tau,
            seed=self.settings.seed,
            pairs=start.engine.n_pairs,
            mask=mask,
            faithfulness=f,
            faithfulness_test=float(test.faithfulness(kept[None], start.candidates)[0]),
            faithfulness_validation=f_validation,
            attribution=start.first.mean,
            rows=self.behaviour.rows(),
            bos=self.model.tokenizer is not None and self.model.tokenizer.bos is not None,
            order=tuple(self._order(kept)),
            passes=passes,
            seconds=seconds,
            complete=complete,
        )

    def _order(self, kept: np.ndarray) -> list[int]:
        """The candidates that went, the first first: by round, and within one by the first look."""
        path, gone = [*self.episode.path, kept], np.zeros(len(kept), dtype=bool)
        worth, order = np.abs(self.start.first.mean[self.start.candidates]), []
        last = np.full(len(kept), -1)  # the round after which an edge was never there again
        for i, mask in enumerate(path):
            last[mask] = i
        for i in range(-1, len(path) - 1):
            now = np.flatnonzero((last == i) & ~gone & ~kept)
            order += now[np.argsort(worth[now], kind="stable")].tolist()
        edges: list[int] = self.start.candidates[np.array(order, dtype=np.int64)].tolist()
        return edges

    # ---- leaving and coming back ------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        start, judged = self.start, self.planner.fresh or Fresh(self.settings.tau, None)
        SavedSession(
            of=self._of(),
            first=start.first,
            candidates=start.candidates,
            first_mask=start.mask,
            first_f=start.f,
            episode=self.episode,
            best=judged.best,
            offset=judged.offset,
            judged=judged.judged,
            again=judged.again,
            passes=self.passes,
            seconds=self.seconds,
        ).write(path)

    @classmethod
    def resume(
        cls,
        path: Path,
        model: Model,
        behaviour: Behaviour,
        network: Predictor,
        settings: DiscoverSettings,
    ) -> Session:
        """The session that was saved; refuses another's."""
        session = cls.__new__(cls)
        session.model, session.behaviour, session.settings = model, behaviour, settings
        saved = SavedSession.read(path, session._of(), model.graph.n_edges)
        session.start = Start.again(
            model,
            behaviour,
            settings.pairs,
            settings.seed,
            saved.first,
            saved.candidates,
            saved.first_mask,
            saved.first_f,
        )
        session.start.engine.ledger.restore(saved.passes)
        session._seconds_before, session._began = saved.seconds, time.perf_counter()
        session._validation, session.episode = None, saved.episode
        judged = session._fresh()
        if judged is not None:
            judged.offset, judged.judged, judged.again = saved.offset, saved.judged, saved.again
            judged.best = saved.best
        session.planner = Planner(session.start, network, settings.tau, judged)
        return session

    def _of(self) -> dict[str, Any]:
        return asdict(self.settings) | {"checksum": self.model.checksum, "behaviour": self.behaviour.name}


def discover(
    model: Model,
    behaviour: Behaviour,
    network: Predictor,
    settings: DiscoverSettings = DiscoverSettings(),  # noqa: B008 (frozen)
    report: Callable[[Progress], None] = lambda progress: None,
) -> Circuit:
    """One episode, straight through."""
    session = Session(model, behaviour, network, settings)
    session.run(lambda now: report(now.progress))
    return session.circuit()
