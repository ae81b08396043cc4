"""ACDC: walk down the graph and cut every edge whose loss the circuit does not feel.

Receivers are visited from the logits to layer 0 (logits; MLP of the last layer; its v, k and q inputs, last head first; the layer
below), parents from late to early. An edge is removed and the KL measured: if it rose by less than the threshold (signed: a fall
always counts) the edge stays out and the new KL is the current one, else it is put back. A receiver none of whose nodes has an
outgoing edge left is dropped with all edges into it, for free. One pass for every tested edge, and one for the KL at the start.

Nearly every edge is removed. So the next B removals are measured in one call, each on top of all before it, as if every one of
them would be accepted; what comes after the first refusal is thrown away. The decisions, and the KLs they rest on, are those of the
loop that tests one edge at a time. Thrown-away circuits are work but no passes of the algorithm: `evaluated` counts all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mechrl.engine.engine import PAIRS_PER_PASS, Engine, Prefix
from mechrl.graph import Graph
from mechrl.search.problem import Problem, State
from mechrl.search.select import receivers_of

THRESHOLDS = (0.001, 0.003, 0.01)
_FEWEST, _MOST = 4, 512  # circuits of one speculative call
_TESTS_PER_MINIBATCH = 256


def acdc(problem: Problem, state: State | None = None, threshold: float = 0.01) -> State:
    """ACDC from the candidate set (the whole graph, if all edges are candidates) at one threshold.

    `extra` has the KL after every test (`trace`), their number (`tested`) and that of all circuits measured (`evaluated`).
    """
    return _run(problem, state, threshold, lambda now: now)


def acdc_sweep(problem: Problem, state: State | None = None, thresholds: tuple[float, ...] = THRESHOLDS) -> State:
    """ACDC at several thresholds: the smallest circuit (pruned) that reaches tau, else the most faithful one.

    `extra` keeps every threshold's circuit: `mask.T`, `order.T`, `faithfulness.T`, `tested.T`, `evaluated.T`. A finished sweep that
    is continued, with another tau, only chooses again.
    """
    found = {} if state is None else {key: value for key, value in state.extra.items() if "." in key}
    inner = None if state is None or state.done else state
    for i, threshold in enumerate(thresholds):
        if f"mask.{threshold}" in found:
            continue

        def dress(now: State, i: int = i, before: dict = dict(found)) -> State:  # noqa: B006 (a snapshot)
            extra = {**now.extra, **before, "progress": (i + now.extra["progress"]) / len(thresholds)}
            return State(now.mask, now.order, now.faithfulness, extra, False, now.note)

        end = _run(problem, inner, threshold, dress)
        inner = None
        found[f"mask.{threshold}"], found[f"order.{threshold}"] = end.mask, np.array(end.order, dtype=np.int64)
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
    """Where ACDC stands. Edges are places among the candidates; because they ascend, the walk simply counts `position` down."""

    def __init__(self, problem: Problem, state: State | None) -> None:
        self.problem = problem
        graph, edges = problem.model.graph, problem.candidates
        self.source = graph.edge_source[edges]
        receiver = graph.edge_receiver[edges]
        self.first = np.searchsorted(receiver, receiver)  # [n] the first place of every place's receiver
        self.nodes_from, self.nodes_to = _nodes_of_receivers(graph)[:, receiver]  # [n] sources that every place's receiver feeds
        self.prefix: tuple[Engine, Prefix] | None = None  # the circuit at the start
        self.stage, self.columns = -1, np.zeros(0, dtype=np.int64)  # places that the engine is told of, from this stage up
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
            self.position, self.tested, self.evaluated = extra["position"], extra["tested"], extra["evaluated"]
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
        """One speculative call: decides as many edges as it can."""
        limit = self.batch
        if self.problem.minibatch is not None:  # a change of minibatch ends the call, wherever speculation stands
            limit = min(limit, _TESTS_PER_MINIBATCH - self.tested % _TESTS_PER_MINIBATCH)
        places = self._upcoming(limit)
        if not len(places):
            self._pass_by(0)
            return
        engine = self._engine()
        passes = engine.passes
        kl = self._measure(engine, places)
        risen = ~(np.diff(kl, prepend=self.kl) < threshold)
        n_accepted = int(risen.argmax()) if risen.any() else len(places)
        n_tested = min(n_accepted + 1, len(places))
        engine.passes = passes + n_tested * engine.n_pairs / PAIRS_PER_PASS  # the algorithm's, not all that were measured
        self.evaluated += len(places)
        self.trace[self.tested : self.tested + n_tested] = kl[:n_tested]
        self.tested += n_tested
        if n_accepted:
            self.kl = float(kl[n_accepted - 1])
            self._pass_by(int(places[n_accepted - 1]))
        if n_accepted < len(places):  # dropped receivers may lie before the edge that stays
            self._pass_by(int(places[n_accepted]) + 1)
            self.position -= 1
            # towards the runs seen; on a GPU twice as far, because half-empty calls cost it as much as full ones
            eager = 2 if engine.model.device.type == "cuda" else 1
            self.batch = max(_FEWEST, (self.batch + eager * n_tested) // 2)
        else:
            self.batch = min(_MOST, 2 * self.batch)
        if self.problem.minibatch is not None and self.tested % _TESTS_PER_MINIBATCH == 0 and self.position:
            self.kl = self._start()  # the current KL on the next pairs

    def _upcoming(self, limit: int) -> np.ndarray:
        """The next places to test if all of them are removed, at most `limit`; places of receivers dropped by then are left out."""
        out, position, tested, n = self.out.copy(), self.position, [], 0
        while position > 0 and n < limit:
            first = int(self.first[position - 1])
            needed = self.nodes_to[first] == 0 or out[self.nodes_from[first] : self.nodes_to[first]].any()
            run = np.arange(position - 1, (max(first, position - (limit - n)) if needed else first) - 1, -1)
            out[self.source[run]] -= 1  # a receiver reads a source once
            position -= len(run)
            if needed:
                tested.append(run)
                n += len(run)
        return np.concatenate(tested) if tested else np.zeros(0, dtype=np.int64)

    def _pass_by(self, place: int) -> None:
        """Removes everything from the position down to `place`, tested or dropped with its receiver."""
        gone = np.arange(self.position - 1, place - 1, -1)
        self.alive[gone] = False
        self.out -= np.bincount(self.source[gone], minlength=len(self.out))
        self.order += self.problem.candidates[gone].tolist()
        self.position = place

    # ---- measuring --------------------------------------------------------------------------------------------------

    def _engine(self) -> Engine:
        return self.problem.draw(self.tested // _TESTS_PER_MINIBATCH)

    def _measure(self, engine: Engine, places: np.ndarray) -> np.ndarray:
        """[len(places)] the KL after removing the first, the first two, … of `places`.

        Below the stage of the last of them the circuit is what it was at the start: the engine runs that part once and for all.
        """
        graph, edges = self.problem.model.graph, self.problem.candidates
        if self.prefix is None or self.prefix[0] is not engine:
            self.prefix = (engine, engine.prefix(np.ones(len(edges), dtype=bool), edges))
        stage = int(graph.edge_stage[edges[places[-1]]])
        if stage != self.stage:  # what is cut by now stays so: it needs no column
            lowest = int(np.searchsorted(graph.edge_stage[edges], stage))
            self.stage, self.columns = stage, lowest + np.flatnonzero(self.alive[lowest:])
        masks = np.repeat(self.alive[None, self.columns], len(places), axis=0)
        masks[:, np.searchsorted(self.columns, places)] = ~np.tri(len(places), dtype=bool)
        return engine.kl(masks, edges[self.columns], self.prefix[1], stage).double().mean(-1).cpu().numpy()

    def _start(self) -> float:
        return float(self._engine().kl(self.alive[None], self.problem.candidates).double().mean())

    def _faithfulness(self, done: bool) -> float:
        problem = self.problem
        if done and problem.minibatch is not None:
            return float(problem.engine.faithfulness(self.alive[None], problem.candidates)[0])
        return 1 - self.kl / self._engine().kl_cut


def _nodes_of_receivers(graph: Graph) -> np.ndarray:
    """[2, R] the range of sources that every receiver feeds: a head, the heads of a KV head, an MLP; 0:0 for the logits."""
    result = np.zeros((2, graph.n_receivers), dtype=np.int64)
    for source in range(graph.n_sources - 1, 0, -1):
        for receiver in receivers_of(graph, source):
            result[0, receiver] = source
            result[1, receiver] = max(result[1, receiver], source + 1)
    return result

