"""ACDC: walks down the graph and cuts every edge that the circuit does not need.

    kl = KL(M)                                      # one pass; M begins with all candidates
    for v in receivers, from the logits down:       # logits; MLP of the last layer; its v, k, q, last head first; the layer below
        if none of v's nodes has an outgoing edge left:
            cut all edges into v                    # free
            continue
        for u in sources that v reads, late to early:
            cut u → v
            now = KL(M)                             # one pass
            if now − kl < threshold:                # signed: a fall in KL always passes
                kl = now
            else:
                put u → v back

That is the whole algorithm; the rest of this file makes it fast. Outcomes can be guessed: nearly every edge is cut, and those that stay
mostly have a high attribution score. So the next tests are measured in one call, each on top of the guessed outcomes of all tests before
it, and everything after the first wrong guess is discarded. Decisions, KLs and charged passes are those of the loop above; `evaluated`
also counts the discarded circuits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mechrl.engine import Engine
from mechrl.engine.ledger import PAIRS_PER_PASS
from mechrl.engine.run_cpu import Prefix
from mechrl.graph import Graph
from mechrl.search.problem import Problem, State
from mechrl.search.select import receivers_of

THRESHOLDS = (0.001, 0.003, 0.01)
_FEWEST, _MOST = 4, 512  # circuits in one speculative call
_TESTS_PER_MINIBATCH = 256
_SEEN = 512  # number of past tests that guesses are based on


def acdc(problem: Problem, state: State | None = None, threshold: float = 0.01) -> State:
    """ACDC over the candidates (which may be the whole graph) at one threshold.

    `extra` has the KL after every test (`trace`), the number of tests (`tested`) and of circuits measured (`evaluated`).
    """
    return _run(problem, state, threshold, lambda now: now)


def acdc_sweep(
    problem: Problem, state: State | None = None, thresholds: tuple[float, ...] = THRESHOLDS
) -> State:
    """ACDC at several thresholds: the smallest pruned circuit that reaches tau, else the most faithful one.

    `extra` keeps each threshold's circuit: `mask.T`, `order.T`, `faithfulness.T`, `tested.T`, `evaluated.T`. A finished sweep that
    resumes with another tau only chooses again among these.
    """
    found = {} if state is None else {key: value for key, value in state.extra.items() if "." in key}
    inner = None if state is None or state.done else state
    for i, threshold in enumerate(thresholds):
        if f"mask.{threshold}" in found:
            continue

        def dress(now: State, i: int = i, before: dict[str, Any] = dict(found)) -> State:  # noqa: B006 (a snapshot)
            extra = {**now.extra, **before, "progress": (i + now.extra["progress"]) / len(thresholds)}
            return State(now.mask, now.order, now.faithfulness, extra, False, now.note)

        end = _run(problem, inner, threshold, dress)
        inner = None
        found[f"mask.{threshold}"], found[f"order.{threshold}"] = (
            end.mask,
            np.array(end.order, dtype=np.int64),
        )
        found[f"faithfulness.{threshold}"] = end.faithfulness
        found |= {f"{key}.{threshold}": end.extra[key] for key in ("tested", "evaluated")}

    def rank(threshold: float) -> tuple[bool, float]:
        f, mask = found[f"faithfulness.{threshold}"], found[f"mask.{threshold}"]
        reached = f >= problem.tau
        return not reached, problem.model.graph.prune(mask, problem.candidates).sum() if reached else -f

    best = min(thresholds, key=rank)
    note = f"threshold {best:g}" + ("; no threshold reached tau" if rank(best)[0] else "")
    order = found[f"order.{best}"].tolist()
    return State(found[f"mask.{best}"], order, found[f"faithfulness.{best}"], found, True, note)


def _run(problem: Problem, state: State | None, threshold: float, dress: Callable[[State], State]) -> State:
    walk = _Walk(problem, state)
    while walk.position > 0:
        walk.step(threshold)
        problem.checkpoint(dress(walk.state(False, f"threshold {threshold:g}, {walk.position} edges to go")))
    return walk.state(True, f"threshold {threshold:g}")


class _Walk:
    """The state of ACDC. Edges are given as indices into the candidates. These ascend, so the walk only counts `position` down."""

    def __init__(self, problem: Problem, state: State | None) -> None:
        self.problem = problem
        graph, edges = problem.model.graph, problem.candidates
        self.source = graph.edge_source[edges]
        receiver = graph.edge_receiver[edges]
        self.first = np.searchsorted(receiver, receiver)  # [n] first place with the same receiver
        # [n] sources that the receiver feeds
        self.nodes_from, self.nodes_to = _nodes_of_receivers(graph)[:, receiver]
        # the guess: an edge of at least `cut` stays. It decides nothing but speed, so it is not saved
        self.strength = np.zeros(len(edges)) if problem.scores is None else np.abs(problem.scores[edges])
        self.cut, self.seen = np.inf, (np.zeros(0), np.zeros(0, dtype=bool))
        self.prefix: tuple[Engine, Prefix] | None = None  # the circuit at the start
        # places that calls cover, from this stage up
        self.stage, self.columns = -1, np.zeros(0, dtype=np.int64)
        if state is None:
            self.alive = np.ones(len(edges), dtype=bool)
            self.order: list[int] = []
            self.trace = np.zeros(len(edges))
            self.position, self.tested, self.evaluated, self.batch = len(edges), 0, 0, 8 * _FEWEST
            self.kl = self._start()
        else:
            self.alive, self.order = state.mask.copy(), list(state.order)
            extra = state.extra
            self.trace = np.zeros(len(edges))
            self.trace[: len(extra["trace"])] = extra["trace"]
            self.position, self.tested, self.evaluated = (
                extra["position"],
                extra["tested"],
                extra["evaluated"],
            )
            self.batch, self.kl = extra["batch"], extra["kl"]
        self.out = np.bincount(self.source[self.alive], minlength=graph.n_sources)  # [S] outgoing edges left

    def state(self, done: bool, note: str) -> State:
        extra = {
            "position": self.position,
            "tested": self.tested,
            "evaluated": self.evaluated,
            "batch": self.batch,
            "kl": self.kl,
            "trace": self.trace[: self.tested].copy(),
            "progress": 1 - self.position / max(1, len(self.alive)),
        }
        return State(self.alive.copy(), list(self.order), self._faithfulness(done), extra, done, note)

    def step(self, threshold: float) -> None:
        """One speculative call: decides as many edges as possible."""
        limit = self.batch
        if self.problem.minibatch is not None:  # a call does not go beyond its minibatch
            limit = min(limit, _TESTS_PER_MINIBATCH - self.tested % _TESTS_PER_MINIBATCH)
        places, stays = self._upcoming(limit)
        if not len(places):
            self._pass_by(0)
            return
        engine = self._engine()
        with engine.ledger.free():  # charged below
            kl = self._measure(engine, places, stays)
        # each test starts from the KL of the last edge before it that is guessed to be cut
        removal = np.where(stays, -1, np.arange(len(places)))
        base = np.append(self.kl, kl)[np.append(-1, np.maximum.accumulate(removal)[:-1]) + 1]
        refused = ~(kl - base < threshold)
        wrong = refused != stays
        n_tested = int(wrong.argmax()) + 1 if wrong.any() else len(places)
        # charge the algorithm's tests, not everything that was measured
        engine.ledger.charge(n_tested * engine.n_pairs / PAIRS_PER_PASS)
        self.evaluated += len(places)
        self.trace[self.tested : self.tested + n_tested] = kl[:n_tested]
        self.tested += n_tested
        for place, stay, now in zip(
            places[:n_tested].tolist(), refused[:n_tested].tolist(), kl[:n_tested].tolist(), strict=True
        ):
            self._pass_by(place + 1)  # the edges in between were cut with their receiver
            if stay:
                self.position = place
            else:
                self._pass_by(place)
                self.kl = now
        self._learn(places[:n_tested], refused[:n_tested])
        if n_tested < len(places):
            # follow the length of correct runs; overshoot on a GPU, because half-empty calls cost as much as full ones
            eager = 2 if engine.model.device.type == "cuda" else 1
            self.batch = max(_FEWEST, (self.batch + eager * n_tested) // 2)
        else:
            self.batch = min(_MOST, 2 * self.batch)
        if self.problem.minibatch is not None and self.tested % _TESTS_PER_MINIBATCH == 0 and self.position:
            self.kl = self._start()  # the current KL on the next pairs

    def _upcoming(self, limit: int) -> tuple[np.ndarray, np.ndarray]:
        """The next candidates to test, at most `limit`, and which of them are guessed to stay.

        Skips receivers that will have been cut by then if the guesses are right.
        """
        out, position, tested, n = self.out.copy(), self.position, [np.zeros(0, dtype=np.int64)], 0
        while position > 0 and n < limit:
            first = int(self.first[position - 1])
            needed = self.nodes_to[first] == 0 or out[self.nodes_from[first] : self.nodes_to[first]].any()
            run = np.arange(position - 1, (max(first, position - (limit - n)) if needed else first) - 1, -1)
            goes = run[self.strength[run] < self.cut] if needed else run
            out[self.source[goes]] -= 1  # a receiver reads a source once
            position -= len(run)
            if needed:
                tested.append(run)
                n += len(run)
        places = np.concatenate(tested)
        return places, self.strength[places] >= self.cut

    def _learn(self, places: np.ndarray, refused: np.ndarray) -> None:
        """Sets `cut`, the score from which an edge is guessed to stay, to the value with the fewest errors on past tests."""
        self.seen = (
            np.append(self.seen[0], self.strength[places])[-_SEEN:],
            np.append(self.seen[1], refused)[-_SEEN:],
        )
        order = np.argsort(-self.seen[0], kind="stable")
        strength, stayed = self.seen[0][order], self.seen[1][order]
        # if the i highest are guessed to stay, the errors are those of them that were cut, and the others that stayed
        errors = np.append(0, np.cumsum(~stayed)) + np.append(np.cumsum(stayed[::-1])[::-1], 0)
        best = int(errors.argmin())
        self.cut = np.inf if best == 0 else float(strength[best - 1])

    def _pass_by(self, place: int) -> None:
        """Cuts all candidates from the position down to `place`."""
        gone = np.arange(self.position - 1, place - 1, -1)
        self.alive[gone] = False
        self.out -= np.bincount(self.source[gone], minlength=len(self.out))
        self.order += self.problem.candidates[gone].tolist()
        self.position = place

    # ---- measuring --------------------------------------------------------------------------------------------------

    def _engine(self) -> Engine:
        return self.problem.draw(self.tested // _TESTS_PER_MINIBATCH)

    def _measure(self, engine: Engine, places: np.ndarray, stays: np.ndarray) -> np.ndarray:
        """[len(places)] the KL after cutting each of `places`, and those before it that are not guessed to stay.

        Below the stage of the last one nothing has been cut yet, so the engine runs that part once for all circuits.
        """
        graph, edges = self.problem.model.graph, self.problem.candidates
        if self.prefix is None or self.prefix[0] is not engine:
            self.prefix = (engine, engine.prefix(np.ones(len(edges), dtype=bool), edges))
        stage = int(graph.edge_stage[edges[places[-1]]])
        if stage != self.stage:  # edges that are cut by now stay cut, so they need no column
            lowest = int(np.searchsorted(graph.edge_stage[edges], stage))
            self.stage, self.columns = stage, lowest + np.flatnonzero(self.alive[lowest:])
        masks = np.repeat(self.alive[None, self.columns], len(places), axis=0)
        present = ~np.tri(len(places), dtype=bool) | stays
        np.fill_diagonal(present, False)
        masks[:, np.searchsorted(self.columns, places)] = present
        return engine.kl(masks, edges[self.columns], self.prefix[1], stage).double().mean(-1).cpu().numpy()

    def _start(self) -> float:
        return float(self._engine().kl(self.alive[None], self.problem.candidates).double().mean())

    def _faithfulness(self, done: bool) -> float:
        problem = self.problem
        if done and problem.minibatch is not None:
            return float(problem.engine.faithfulness(self.alive[None], problem.candidates)[0])
        return 1 - self.kl / self._engine().kl_cut


def _nodes_of_receivers(graph: Graph) -> np.ndarray:
    """[2, R] the range of sources that each receiver feeds: a head, the heads of a KV head, an MLP; 0:0 for the logits."""
    result = np.zeros((2, graph.n_receivers), dtype=np.int64)
    for source in range(graph.n_sources - 1, 0, -1):
        for receiver in receivers_of(graph, source):
            result[0, receiver] = source
            result[1, receiver] = max(result[1, receiver], source + 1)
    return result
