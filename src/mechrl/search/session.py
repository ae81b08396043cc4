"""A complete search: pairs, prefilter, method, result. Used by the command line and the benchmarks.

With `holds_on="fresh"` a circuit must be faithful on fresh pairs (fresh_pairs.py): the search aims above tau on its own pairs, and aims
higher if its circuit falls short of tau on validation pairs. Blockwise search ranks its cuts by cost, so its last cuts are also reverted
until the validation pairs accept the circuit; the smaller of both circuits is taken. Each attempt measures one circuit on the validation
pairs, about a dozen more when cuts are reverted. Test pairs play no part.

A search is limited by its candidates, so K doubles until they reach the aim.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, get_args

import numpy as np

from mechrl.behaviours.base import TEST_SEED, VALIDATION_SEED, Behaviour, Metric
from mechrl.candidates import candidate_set, discovery_pairs, metrics_of, scores_of, widen
from mechrl.circuit import Circuit
from mechrl.engine import Engine
from mechrl.errors import MechRLError
from mechrl.models.base import Model
from mechrl.names import PREFILTERS, SEARCH_METHODS, HoldsOn, Prefilter, SearchMethod, one_of
from mechrl.ranges import check_seed
from mechrl.search.acdc import THRESHOLDS, acdc_sweep
from mechrl.search.fresh_pairs import HIGHEST_AIM, fresh, higher, step_back
from mechrl.search.matryoshka import STEPS, matryoshka, ranking_scores
from mechrl.search.problem import Problem, State
from mechrl.search.select import greedy_search, top_n_search

ATTEMPTS = 6  # searches with rising aims


@dataclass(frozen=True)
class SearchSettings:
    """What determines a search, besides the model and the behaviour."""

    method: SearchMethod
    tau: float = 0.9
    pairs: int = 20
    k: int = 3000  # initial number of candidates by each score
    whole_graph: bool = False  # all edges are candidates
    prefilter: Prefilter = "union"  # candidates by the behaviour's own metric, by KL, or by both
    thresholds: tuple[float, ...] = THRESHOLDS  # ACDC's
    holds_on: HoldsOn = "discovery"  # the pairs on which f ≥ tau must hold; `fresh`: validation pairs judge
    minibatch: int | None = None
    seed: int = 0
    attempts: int = ATTEMPTS  # searches, each aiming higher, if f must hold on fresh pairs
    steps: int = STEPS  # training steps of Matryoshka attribution

    def __post_init__(self) -> None:
        for name, value, known in (
            ("method", self.method, SEARCH_METHODS),
            ("holds-on", self.holds_on, get_args(HoldsOn)),
            ("prefilter", self.prefilter, PREFILTERS),
        ):
            one_of(name, value, known)
        if not 0 < self.tau < 1:
            raise MechRLError(f"tau must lie between 0 and 1, not {self.tau:g}")
        if self.steps < 1:
            raise MechRLError("Matryoshka attribution needs at least one step")
        if self.attempts < 1:
            raise MechRLError("there must be at least one attempt")
        if self.pairs < 1 or self.k < 1:
            raise MechRLError("the numbers of pairs and of candidates must be at least 1")
        if self.minibatch is not None and not 0 < self.minibatch < self.pairs:
            raise MechRLError(
                f"a minibatch must be smaller than the {self.pairs} pairs it is drawn from, not {self.minibatch}"
            )
        if not self.thresholds or not all(0 <= threshold < float("inf") for threshold in self.thresholds):
            raise MechRLError("ACDC needs at least one threshold, each at least 0")
        check_seed(self.seed)

    def to_json(self) -> dict[str, Any]:
        """The settings as a circuit file stores them."""
        known = asdict(self) | {"thresholds": list(self.thresholds)}
        known["target"] = "test" if known.pop("holds_on") == "fresh" else "discovery"  # its name in files
        if self.method != "acdc":
            del known["thresholds"]
        if self.method != "matryoshka":
            del known["steps"]
        if self.attempts == ATTEMPTS:  # omitted, as in files from before it was a setting
            del known["attempts"]
        return known


@dataclass(frozen=True)
class Found:
    """A circuit and its f on validation pairs. `cut`: all other candidates, first cut first."""

    edges: list[int]
    cut: list[int]
    faithfulness: float
    validation: float
    note: str

    def rank(self, tau: float) -> tuple[bool, float]:
        """Sort key, best first: the smallest circuit that holds, else the most faithful."""
        enough = self.validation >= tau
        return not enough, len(self.edges) if enough else -self.validation


@dataclass
class SearchSession:
    """A search that can be interrupted and resumed: everything to be saved besides its `State`."""

    problem: Problem
    settings: SearchSettings
    scores: list[np.ndarray]  # [E] each; the candidates are chosen by these
    aim: float
    k: int  # number of candidates by each score
    attempt: int = 0
    seconds_before: float = 0.0
    validation: Engine | None = None
    found: Found | None = None  # the best circuit so far, if validation pairs judge

    def __post_init__(self) -> None:
        self._begin = time.perf_counter()

    @property
    def seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self._begin

    @property
    def passes(self) -> float:
        # interruptions change the last bits of the sum
        return round(self.problem.passes, 6)

    def about(self) -> dict[str, Any]:
        """What is saved with the state."""
        problem = self.problem
        return {
            "model": problem.model.name,
            "checksum": problem.model.checksum,
            "behaviour": problem.behaviour.name,
            "settings": self.settings.to_json(),
            "aim": self.aim,
            "k": self.k,
            "attempt": self.attempt,
            "found": None if self.found is None else asdict(self.found),
            "passes": self.passes,
            "seconds": self.seconds,
            "calls": problem.calls,
        }

    # ---- the search -------------------------------------------------------------------------------------------------

    def run(self, state: State | None = None) -> State:
        """Runs the method; if f must hold on fresh pairs, repeatedly with rising aims."""
        search = _search(self.settings)
        if state is not None and len(state.mask) != len(self.problem.candidates):
            raise MechRLError("the saved state has other candidates; start again without --resume")
        if state is None:
            self._widen()
        while True:
            self.problem.tau = self.aim
            state = search(self.problem, state)
            if self.validation is None:
                return state
            self.attempt += 1
            found = self._judged(state)
            short = self.settings.tau - found.validation
            others: list[Found] = []
            if self.settings.method == "blockwise":
                others += [self.found] if self.found is not None else []
                others += [self._read_back(found)] if short > 0 else []
            self.found = min([found, *others], key=lambda one: one.rank(self.settings.tau))
            given_up = (
                self.attempt >= self.settings.attempts
                or state.faithfulness < self.aim
                or self.aim >= HIGHEST_AIM
            )
            enough = self.found.validation >= self.settings.tau and len(found.edges) >= len(self.found.edges)
            if given_up or enough:
                return state if self.found is found else self._state()
            self.aim = higher(self.aim, short)
            # a finished sweep of thresholds or of scores only has to choose again
            if self._widen() or self.settings.method not in ("acdc", "matryoshka"):
                state = None

    def _judged(self, state: State) -> Found:
        """The result of a search, with its f on validation pairs."""
        assert self.validation is not None
        candidates = self.problem.candidates
        f = float(self.validation.faithfulness(state.mask[None], candidates)[0])
        return Found(candidates[state.mask].tolist(), state.order, state.faithfulness, f, state.note)

    def _read_back(self, found: Found) -> Found:
        """Reverts the last cuts until validation pairs accept the circuit, by bisection."""
        problem, validation, cut = self.problem, self.validation, np.array(found.cut, dtype=np.int64)
        assert validation is not None

        def masks(steps: Sequence[int] | np.ndarray) -> np.ndarray:
            return np.stack([~np.isin(problem.candidates, cut[:step]) for step in steps])

        def measure(which: np.ndarray, steps: np.ndarray) -> np.ndarray:
            return validation.faithfulness(masks(steps), problem.candidates).double().cpu().numpy()

        (step,), (f,) = step_back(
            np.array([len(cut)]), np.array([found.validation]), self.settings.tau, measure
        )
        mask = masks([step])
        own = float(problem.judge(mask)[0])
        alive = problem.model.graph.prune(mask, problem.candidates)[0]
        dead = problem.candidates[mask[0] & ~alive].tolist()
        edges = problem.candidates[alive].tolist()
        note = f"{len(edges)} edges; reverted the last {len(cut) - step} of {len(cut)} cuts for fresh pairs"
        return Found(edges, cut[:step].tolist() + dead, own, float(f), note)

    def _state(self) -> State:
        """The best circuit as a state over the current candidates, which may be more than when it was found."""
        assert self.found is not None
        found, candidates = self.found, self.problem.candidates
        mask = np.isin(candidates, found.edges)
        never = candidates[~mask & ~np.isin(candidates, found.cut)].tolist()
        return State(mask, never + found.cut, found.faithfulness, {}, True, found.note)

    def _widen(self) -> bool:
        """Doubles K until the candidates reach the aim. Returns whether K changed."""
        problem, engine, before = self.problem, self.problem.engine, self.k
        if len(problem.candidates) < problem.model.graph.n_edges:
            with engine.ledger.free() as bill:
                widened = widen(engine, self.scores, self.k, self.aim)
            self.k, problem.candidates = widened.k, widened.edges
            # the search repeats the last measurement, and is charged for it
            engine.ledger.charge(bill.passes - engine.price)
        return self.k > before

    def _ranking(self, state: State) -> np.ndarray | None:
        """[E] the method's ranking of all edges, if it makes one."""
        if self.settings.method in ("top-n", "greedy"):
            return self.problem.scores
        if self.settings.method != "matryoshka" or "scores" not in state.extra:
            return None
        ranking = np.zeros(self.problem.model.graph.n_edges)
        ranking[self.problem.candidates] = ranking_scores(state.extra["scores"])
        return ranking

    def circuit(self, state: State, complete: bool = True) -> Circuit:
        """The circuit of a state. Measuring f here is not charged: it plays no part in the search."""
        problem, settings = self.problem, self.settings
        seconds, passes = self.seconds, self.passes
        mask = np.zeros(problem.model.graph.n_edges, dtype=bool)
        mask[problem.candidates[state.mask]] = True

        def f(engine: Engine) -> float:
            return float(engine.faithfulness(state.mask[None], problem.candidates)[0])

        with problem.engine.ledger.free():
            on_discovery = f(problem.engine)
        return Circuit(
            model=problem.model.name,
            checksum=problem.model.checksum,
            commit=problem.model.commit,
            graph=problem.model.graph,
            d_model=problem.model.spec.d_model,
            behaviour=problem.behaviour.name,
            method=settings.method,
            settings=settings.to_json()
            | {"k_used": self.k, "candidates": len(problem.candidates), "note": state.note},
            tau=settings.tau,
            seed=settings.seed,
            pairs=len(problem.pairs),
            mask=mask,
            faithfulness=on_discovery,
            faithfulness_test=f(fresh(problem.model, problem.behaviour, TEST_SEED)),
            faithfulness_validation=self.found.validation if self.found is not None and complete else None,
            scores=self._ranking(state),
            attribution=problem.scores,
            rows=problem.behaviour.rows(),
            bos=problem.model.tokenizer is not None and problem.model.tokenizer.bos is not None,
            order=tuple(state.order),
            passes=passes,
            seconds=seconds,
            complete=complete,
        )


def prepare(
    model: Model, behaviour: Behaviour, settings: SearchSettings, about: dict[str, Any] | None = None
) -> SearchSession:
    """Pairs, engine, scores and candidates of a search. `about`: what an interrupted search saved."""
    began = time.perf_counter()
    pairs = discovery_pairs(model, behaviour, settings.pairs, settings.seed)
    if settings.minibatch is not None and settings.minibatch >= len(pairs):
        raise MechRLError(
            f"{behaviour.name!r} has only {len(pairs)} discovery pairs; use a smaller minibatch"
        )
    engine = Engine(model, pairs)
    straight = settings.method in ("top-n", "greedy")  # these rank all edges by one score
    metrics: list[Metric] = []
    if straight or not settings.whole_graph:
        metrics = metrics_of(behaviour.metric, settings.prefilter)[: 1 if straight else None]
    scores = scores_of(engine, pairs, metrics)
    everything = np.arange(model.graph.n_edges)
    k = settings.k if about is None else about["k"]
    if straight or settings.whole_graph:
        k, candidates = len(everything), everything
    else:
        candidates = candidate_set(scores, k)
    problem = Problem(
        model,
        behaviour,
        engine,
        pairs,
        settings.tau,
        settings.seed,
        candidates,
        scores[0] if scores else None,
        minibatch=settings.minibatch,
    )
    session = SearchSession(problem, settings, scores, settings.tau, k)
    if settings.holds_on == "fresh":
        session.validation = fresh(model, behaviour, VALIDATION_SEED, ledger=engine.ledger)
    if about is None:
        session.seconds_before = time.perf_counter() - began
    else:
        engine.ledger.restore(about["passes"])
        problem.calls = about["calls"]
        session.aim, session.attempt, session.seconds_before = (
            about["aim"],
            about["attempt"],
            about["seconds"],
        )
        session.found = Found(**about["found"]) if about.get("found") else None
    return session


def check_continues(
    model: Model, behaviour: Behaviour, settings: SearchSettings, about: dict[str, Any]
) -> None:
    """Refuses to resume a different search, or from incomplete facts."""
    if not isinstance(about.get("settings", {}), dict):
        raise MechRLError("the saved settings are damaged; start again without --resume")
    mine = {"model": model.name, "checksum": model.checksum, "behaviour": behaviour.name} | settings.to_json()
    theirs = {key: about.get(key) for key in ("model", "checksum", "behaviour")} | about.get("settings", {})
    other = [f"{key} {theirs.get(key)!r}" for key in mine if mine[key] != theirs.get(key)]
    if other:
        raise MechRLError(
            f"the search to resume had {', '.join(other)}; give the same options, or start without --resume"
        )
    if not _says_enough(about):
        raise MechRLError("the saved state is incomplete; start again without --resume")


def _says_enough(about: dict[str, Any]) -> bool:
    """Whether everything that `prepare` restores is there, and plausible."""
    numbers = {key: about.get(key) for key in ("k", "attempt", "calls", "aim", "passes", "seconds")}
    whole = all(type(numbers[key]) is int and 0 <= numbers[key] < 2**31 for key in ("k", "attempt", "calls"))  # type: ignore[operator]
    finite = all(type(x) in (int, float) and 0 <= x < 2**53 for x in numbers.values())  # type: ignore[operator]
    found = about.get("found")
    if found is None:
        return whole and finite
    names = {field.name for field in fields(Found)}
    return whole and finite and isinstance(found, dict) and set(found) == names


def search(
    model: Model,
    behaviour: Behaviour,
    settings: SearchSettings,
    checkpoint: Callable[[State], None] = lambda state: None,
) -> Circuit:
    """Runs one search to its end."""
    session = prepare(model, behaviour, settings)
    session.problem.checkpoint = checkpoint
    return session.circuit(session.run())


def _search(settings: SearchSettings) -> Callable[[Problem, State | None], State]:
    if settings.method == "top-n":
        return top_n_search
    if settings.method == "greedy":
        return greedy_search
    if settings.method == "acdc":
        return lambda problem, state: acdc_sweep(problem, state, settings.thresholds)
    if settings.method == "matryoshka":
        return lambda problem, state: matryoshka(problem, state, settings.steps)
    if settings.method == "blockwise":
        from mechrl.search.blockwise import blockwise

        return blockwise
    from mechrl.search.edge_pruning import edge_pruning

    return edge_pruning
