"""From a behaviour to a circuit: what `mechrl discover` runs. It can be left at any round and taken up again.

On fresh pairs the agent aims at τ plus the gap that the network predicts between f on the discovery pairs and f on others. Where there are
validation pairs, what it ends with is checked on them, five passes a circuit: if f falls short, its path is read back by bisection to
the last circuit that holds, the prediction is corrected by what was seen, and the agent goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from mechrl.agents.planner.left import Left
from mechrl.agents.planner.plan import Model, Planner
from mechrl.agents.planner.start import Start, start
from mechrl.behaviours.base import TEST_SEED, VALIDATION_SEED, Behaviour
from mechrl.circuit import Circuit
from mechrl.engine import Engine
from mechrl.errors import MechRLError
from mechrl.models.base import Model as LanguageModel
from mechrl.ranges import check_seed

N_FRESH = 100  # validation pairs, and test pairs
CHECKS = 3  # circuits that validation pairs judge at the end of a run; a read-back is one of them


class HoldsOn(StrEnum):
    DISCOVERY = "discovery"
    FRESH = "fresh"


@dataclass(frozen=True)
class DiscoverSettings:
    """What determines an episode, besides the model, the behaviour and the planner."""

    tau: float = 0.9
    pairs: int = 20
    holds_on: HoldsOn = HoldsOn.FRESH
    check: bool = True  # with `fresh`: validation pairs judge what the agent ends with
    budget: int = 1000  # passes: then the best so far is the answer
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "holds_on", HoldsOn(self.holds_on))
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
        self, model: LanguageModel, behaviour: Behaviour, network: Model, settings: DiscoverSettings
    ) -> None:
        self.model, self.behaviour, self.settings = model, behaviour, settings
        self._began, self._seconds_before = time.perf_counter(), 0.0
        aim = settings.tau + 0.4 * (1 - settings.tau)
        self.start: Start = start(model, behaviour, settings.pairs, settings.seed, aim)
        fresh = settings.holds_on == HoldsOn.FRESH
        self.planner = Planner(self.start, network, settings.tau, fresh)
        self.episode = self.planner.begin()
        self.best: tuple[np.ndarray, float] | None = (
            None  # the smallest circuit that validation pairs accept, and f on them
        )
        self.checked = 0
        self._validation: Engine | None = None

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

    def run(self, checkpoint: Callable[[Session], None] = lambda session: None) -> None:
        """Goes on to the end. `checkpoint` is called after every round, and may raise to stop."""
        while True:
            while not self.episode.done:
                self.planner.step(self.episode)
                if self.passes > self.settings.budget and not self.episode.done:
                    self.episode.done, self.episode.note = (
                        True,
                        f"{int(self.episode.mask.sum())} edges; the budget is spent",
                    )
                checkpoint(self)
            if not self._go_on_after_check():
                return
            checkpoint(self)

    def _go_on_after_check(self) -> bool:
        """Asks the validation pairs about the end of a run; whether the agent should try again with what was learned."""
        if not (self.planner.fresh and self.settings.check and self.checked < CHECKS):
            return False
        self.checked += 1
        episode = self.episode
        f = self._on_validation(episode.mask)
        self.planner.correct(episode, f)
        smaller = self.best is None or episode.mask.sum() < self.best[0].sum()
        if f >= self.settings.tau:
            if not smaller:
                return False
            improved, self.best = self.best is not None, (episode.mask, f)
            if self.passes > self.settings.budget or (improved and f < self.settings.tau + 0.01):
                return False
        else:
            if self.best is not None and self.checked == CHECKS:
                return False
            self._read_back()
            if self.best is None or self.passes > self.settings.budget:
                return False
            episode.mask = self.best[0]
            episode.f = float(self.start.f_of(episode.mask)[0])
        episode.done, episode.path = False, [*episode.path]
        return True

    def _read_back(self) -> None:
        """The last circuit on the path that validation pairs accept, by bisection as if f fell all along."""
        path = [m for m in self.episode.path if self.best is None or m.sum() < self.best[0].sum()]
        low, high = -1, len(path)  # accepted at low, refused at high
        while high - low > 1:
            middle = (low + high) // 2
            f = self._on_validation(path[middle])
            if f >= self.settings.tau:
                low, self.best = middle, (path[middle], f)
            else:
                high = middle

    def _on_validation(self, mask: np.ndarray) -> float:
        if self._validation is None:
            assert self.model.tokenizer is not None
            pairs = self.behaviour.pairs(
                self.model.tokenizer, N_FRESH, VALIDATION_SEED, n_ctx=self.model.spec.n_ctx
            )
            self._validation = Engine(self.model, pairs, ledger=self.start.engine.ledger)
        return float(self._validation.faithfulness(mask[None], self.start.candidates)[0])

    # ---- what was found ---------------------------------------------------------------------------------------------

    def circuit(self, complete: bool = True) -> Circuit:
        """The best so far. f on test pairs costs nothing: it plays no part in the search."""
        assert self.model.tokenizer is not None
        passes, seconds, start = self.passes, self.seconds, self.start
        kept, f_validation = self.best if self.best is not None else (self.episode.mask, None)
        with start.engine.ledger.free():
            f = float(start.f_of(kept)[0])
        test = Engine(
            self.model,
            self.behaviour.pairs(self.model.tokenizer, N_FRESH, TEST_SEED, n_ctx=self.model.spec.n_ctx),
        )
        graph = self.model.graph
        mask = np.zeros(graph.n_edges, dtype=bool)
        mask[start.candidates[kept]] = True
        settings = asdict(self.settings) | {"candidates": len(start.candidates), "note": self.episode.note}
        settings["target"] = "test" if self.planner.fresh else "discovery"  # what files call it
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
        start = self.start
        Left(
            of=self._of(),
            first=start.first,
            candidates=start.candidates,
            first_mask=start.mask,
            first_f=start.f,
            episode=self.episode,
            best=self.best,
            offset=self.planner.offset,
            checked=self.checked,
            passes=self.passes,
            seconds=self.seconds,
        ).write(path)

    @classmethod
    def resume(
        cls,
        path: Path,
        model: LanguageModel,
        behaviour: Behaviour,
        network: Model,
        settings: DiscoverSettings,
    ) -> Session:
        """The session that was saved; refuses another's."""
        session = cls.__new__(cls)
        session.model, session.behaviour, session.settings = model, behaviour, settings
        left = Left.read(path, session._of(), model.graph.n_edges)
        session.start = Start.again(
            model,
            behaviour,
            settings.pairs,
            settings.seed,
            left.first,
            left.candidates,
            left.first_mask,
            left.first_f,
        )
        session.episode, session.best, session.checked = left.episode, left.best, left.checked
        session.start.engine.ledger.restore(left.passes)
        session._seconds_before = left.seconds
        session._validation, session._began = None, time.perf_counter()
        fresh = settings.holds_on == HoldsOn.FRESH
        session.planner = Planner(session.start, network, settings.tau, fresh, left.offset)
        return session

    def _of(self) -> dict[str, Any]:
        known = asdict(self.settings) | {"holds_on": str(self.settings.holds_on)}
        return known | {"checksum": self.model.checksum, "behaviour": self.behaviour.name}


def discover(
    model: LanguageModel,
    behaviour: Behaviour,
    network: Model,
    settings: DiscoverSettings = DiscoverSettings(),  # noqa: B008 (frozen)
    report: Callable[[Progress], None] = lambda progress: None,
) -> Circuit:
    """One episode, straight through."""
    session = Session(model, behaviour, network, settings)
    session.run(lambda now: report(now.progress))
    return session.circuit()
