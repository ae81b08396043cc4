"""A search from beginning to end: pairs, prefilter, the method, what it found. The command line and the benchmarks both run this.

With `holds_on="fresh"` a circuit must be faithful on pairs that the search has not seen. Every search overfits the pairs it decides
by, so deciding by other pairs would only overfit those. Instead the search aims above tau on its own pairs; if what it found falls
short of tau on validation pairs, it aims higher. A blockwise search orders its cuts by what they cost, so what it found is first read
back as well, cut by cut, to where validation pairs agree; a higher aim may end larger than that, and then the smaller one is taken.
Validation pairs answer a handful of questions, a dozen more where a circuit is read back, test pairs none.

A search finds nothing better than its candidates: where these fall short of the aim, K is doubled until they do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

import numpy as np

from mechrl.behaviours.base import TEST_SEED, VALIDATION_SEED, Behaviour, Metric
from mechrl.candidates import candidate_set, discovery_pairs, metrics_of, scores_of, widen
from mechrl.circuit import Circuit
from mechrl.engine import Engine, Ledger
from mechrl.errors import MechRLError
from mechrl.models.base import Model
from mechrl.names import PREFILTERS, Prefilter, one_of
from mechrl.ranges import check_seed
from mechrl.search.acdc import THRESHOLDS, acdc_sweep
from mechrl.search.matryoshka import STEPS, matryoshka, ranking_scores
from mechrl.search.problem import Problem, State
from mechrl.search.select import greedy_search, top_n_search

Method = Literal["top-n", "greedy", "acdc", "edge-pruning", "matryoshka", "blockwise"]
HoldsOn = Literal["discovery", "fresh"]
METHODS: tuple[Method, ...] = get_args(Method)

N_FRESH = 100  # validation pairs, and test pairs
ATTEMPTS = 6  # searches for one target on fresh pairs
_HIGHEST_AIM = 0.999


@dataclass(frozen=True)
class SearchSettings:
    """What determines a search, besides the model and the behaviour."""

    method: Method
    tau: float = 0.9
    pairs: int = 20
    k: int = 3000  # candidates by each score, to begin with
    whole_graph: bool = False  # all edges are candidates
    prefilter: Prefilter = "union"  # scores by the behaviour's own metric, by KL, or candidates by either
    thresholds: tuple[float, ...] = THRESHOLDS  # ACDC's
    holds_on: HoldsOn = (
        "discovery"  # the pairs on which f ≥ tau must hold; `fresh`: as validation pairs judge
    )
    minibatch: int | None = None
    seed: int = 0
    attempts: int = ATTEMPTS  # searches, each aiming higher, where f must hold on fresh pairs
    steps: int = STEPS  # of Matryoshka attribution

    def __post_init__(self) -> None:
        for name, value, known in (
            ("method", self.method, METHODS),
            ("holds-on", self.holds_on, get_args(HoldsOn)),
            ("prefilter", self.prefilter, PREFILTERS),
        ):
            one_of(name, value, known)
        if not 0 < self.tau < 1:
            raise MechRLError(f"tau must lie between 0 and 1, not be {self.tau:g}")
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
            raise MechRLError("ACDC needs at least one threshold, each a number from 0 on")
        check_seed(self.seed)

    def to_json(self) -> dict[str, Any]:
        """As a circuit file stores them."""
        known = asdict(self) | {"thresholds": list(self.thresholds)}
        known["target"] = "test" if known.pop("holds_on") == "fresh" else "discovery"  # what files call it
        if self.method != "acdc":
            del known["thresholds"]
        if self.method != "matryoshka":
            del known["steps"]
        if self.attempts == ATTEMPTS:  # as it always was: files from before there was a choice are the same
            del known["attempts"]
        return known


@dataclass(frozen=True)
class Found:
    """A circuit that validation pairs have judged. `cut`: all other candidates, first cut first."""

    edges: list[int]
    cut: list[int]
    faithfulness: float
    validation: float
    note: str

    def rank(self, tau: float) -> tuple[bool, float]:
        """The least is best: the smallest that is enough, else the most faithful."""
        enough = self.validation >= tau
        return not enough, len(self.edges) if enough else -self.validation


@dataclass
class SearchSession:
    """A search that can be left and taken up again: everything that must survive, besides the search's own state."""

    problem: Problem
    settings: SearchSettings
    scores: list[np.ndarray]  # [E] each: what candidates are chosen by
    aim: float
    k: int  # best edges by each score among the candidates
    attempt: int = 0
    seconds_before: float = 0.0
    validation: Engine | None = None
    found: Found | None = None  # the best so far, if validation pairs judge

    def __post_init__(self) -> None:
        self._begin = time.perf_counter()

    @property
    def seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self._begin

    @property
    def passes(self) -> float:
        # multiples of a twentieth, but their sum depends in its last bits on where a search was interrupted
        return round(self.problem.passes, 6)

    def about(self) -> dict[str, Any]:
        """What is saved beside the state."""
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
        """The method; where it must hold on fresh pairs, as often as it takes."""
        search = _search(self.settings)
        if state is not None and len(state.mask) != len(self.problem.candidates):
            raise MechRLError("the state is of a search among other candidates; start again without --resume")
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
                or self.aim >= _HIGHEST_AIM
            )
            enough = self.found.validation >= self.settings.tau and len(found.edges) >= len(self.found.edges)
            if given_up or enough:
                return state if self.found is found else self._state()
            self.aim = higher(self.aim, short)
            # a finished sweep of thresholds, or of scores, need only choose again
            if self._widen() or self.settings.method not in ("acdc", "matryoshka"):
                state = None

    def _judged(self, state: State) -> Found:
        """What a search ended with, and what validation pairs make of it."""
        assert self.validation is not None
        candidates = self.problem.candidates
        f = float(self.validation.faithfulness(state.mask[None], candidates)[0])
        return Found(candidates[state.mask].tolist(), state.order, state.faithfulness, f, state.note)

    def _read_back(self, found: Found) -> Found:
        """The same before its last cuts: as many as make validation pairs agree, by bisection."""
        problem, validation, cut = self.problem, self.validation, np.array(found.cut, dtype=np.int64)
        assert validation is not None
        masks = lambda steps: np.stack([~np.isin(problem.candidates, cut[:step]) for step in steps])  # noqa: E731

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
        note = f"{len(edges)} edges; of {len(cut)} cuts the last {len(cut) - step} undone for fresh pairs"
        return Found(edges, cut[:step].tolist() + dead, own, float(f), note)

    def _state(self) -> State:
        """What was found, among the candidates as they are now: there may be more than it was found among."""
        assert self.found is not None
        found, candidates = self.found, self.problem.candidates
        mask = np.isin(candidates, found.edges)
        never = candidates[~mask & ~np.isin(candidates, found.cut)].tolist()
        return State(mask, never + found.cut, found.faithfulness, {}, True, found.note)

    def _widen(self) -> bool:
        """Doubles K until the candidates themselves reach the aim; says whether it had to."""
        problem, engine, before = self.problem, self.problem.engine, self.k
        if len(problem.candidates) < problem.model.graph.n_edges:
            with engine.ledger.free() as bill:
                widened = widen(engine, self.scores, self.k, self.aim)
            self.k, problem.candidates = widened.k, widened.edges
            # every search measures its candidates itself, and is charged for it there
            engine.ledger.charge(bill.passes - engine.price)
        return self.k > before

    def _ranking(self, state: State) -> np.ndarray | None:
        """[E] what the method ranks all edges by, if it does."""
        if self.settings.method in ("top-n", "greedy"):
            return self.problem.scores
        if self.settings.method != "matryoshka" or "scores" not in state.extra:
            return None
        ranking = np.zeros(self.problem.model.graph.n_edges)
        ranking[self.problem.candidates] = ranking_scores(state.extra["scores"])
        return ranking

    def circuit(self, state: State, complete: bool = True) -> Circuit:
        """What a state amounts to. The f reported here cost nothing: they play no part in the search."""
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
    """Pairs, engine, scores and candidates of a search; `about` is what an interrupted one left behind."""
    began = time.perf_counter()
    pairs = discovery_pairs(model, behaviour, settings.pairs, settings.seed)
    if settings.minibatch is not None and settings.minibatch >= len(pairs):
        raise MechRLError(
            f"{behaviour.name!r} has {len(pairs)} discovery pairs only; use a minibatch smaller than that"
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
    """Refuses to continue another search than the one that was left, or what says too little of it."""
    if not isinstance(about.get("settings", {}), dict):
        raise MechRLError("the state's settings are none; start again without --resume")
    mine = {"model": model.name, "checksum": model.checksum, "behaviour": behaviour.name} | settings.to_json()
    theirs = {key: about.get(key) for key in ("model", "checksum", "behaviour")} | about.get("settings", {})
    other = [f"{key} {theirs.get(key)!r}" for key in mine if mine[key] != theirs.get(key)]
    if other:
        raise MechRLError(
            f"the search to resume had {', '.join(other)}; give the same options, or start without --resume"
        )
    if not _says_enough(about):
        raise MechRLError("the state does not say what was spent and aimed at; start again without --resume")


def _says_enough(about: dict[str, Any]) -> bool:
    """Whether all that `prepare` takes over is there, and can be it."""
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
    """One search, straight through."""
    session = prepare(model, behaviour, settings)
    session.problem.checkpoint = checkpoint
    return session.circuit(session.run())


def higher(aim: float, short: float) -> float:
    """What to aim at after falling `short` on validation pairs: as much higher, but no more than half of what is left, for f on one's own
    pairs cannot pass 1."""
    return min(_HIGHEST_AIM, aim + max(min(short, (1 - aim) / 2), 0.002))


def step_back(
    steps: np.ndarray,
    f: np.ndarray,
    tau: float,
    measure: Callable[[np.ndarray, np.ndarray], np.ndarray],
    enough_at: int = -1,
) -> tuple[np.ndarray, np.ndarray]:
    """Where `f` [n] at `steps` [n] of as many episodes is below τ, earlier steps, whose circuits are larger: the last with f ≥ τ, by
    bisection as if f fell all along. Where that finds none, the most faithful it has seen. `measure(episodes, steps)` gives f;
    `enough_at` is a step of which f ≥ τ is known.
    """
    steps, f = steps.copy(), f.copy()
    low, high = (
        np.full(len(steps), enough_at),
        np.where(f < tau, steps, enough_at + 1),
    )  # f ≥ τ at low, and not at high
    while len(which := np.flatnonzero(high - low > 1)):
        middle = (low[which] + high[which]) // 2
        found = measure(which, middle)
        enough = found >= tau
        low[which[enough]], high[which[~enough]] = middle[enough], middle[~enough]
        better = enough | (found > f[which])
        steps[which[better]], f[which[better]] = middle[better], found[better]
    return steps, f


def fresh(
    model: Model, behaviour: Behaviour, seed: int, n: int = N_FRESH, ledger: Ledger | None = None
) -> Engine:
    """An engine on pairs that no search has seen: `VALIDATION_SEED`'s or `TEST_SEED`'s."""
    assert model.tokenizer is not None
    return Engine(model, behaviour.pairs(model.tokenizer, n, seed, n_ctx=model.spec.n_ctx), ledger=ledger)


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
