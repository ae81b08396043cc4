"""Blockwise search: cut the least important edges, many at a time, rescore what is left, and repeat; then swap edges.

**Blocks.** Integrated mask gradients S at the current circuit rank its edges, and a block of the lowest is cut at once. It is unclear where
edges of negative S belong (`attribution.strength`), so three orders are tried, by |S| with negative scores weighted by w ∈ `ORDERS`, and
the circuit of highest f is taken. A block may use up at most half of f − τ, because later blocks have better scores. If all orders fail,
the block is halved; after a success it is doubled. When blocks have become small, swaps follow.

**Swaps** (exchange.py) exchange a few edges outside the circuit for more inside it, or for a higher f. If a swap raises f back to where
blocks failed, and the circuit is still large, blocks resume. A swap fails if no exchange makes the circuit smaller, even with measured
gains as well as costs; it also fails if it cost more passes than the removed edges are worth and left f close to τ. In a large circuit
edges are swapped in groups. There, after a failure, blocks are tried once more, then swaps of groups half as large, down to single edges.

Dead edges are pruned from every circuit; cutting them costs nothing.
"""

from __future__ import annotations

import numpy as np

from mechrl.attribution import ORDERS, integrated_mask_gradients, strength
from mechrl.search.exchange import PASSES_PER_EDGE, Trade, changed, exchange, size_of_groups
from mechrl.search.problem import Problem, State

LARGEST_BLOCK = 0.8  # share of the circuit
SMALLEST_BLOCK = 15  # edges; a block must be worth its attribution passes
LAST_BLOCK = 40  # edges; after a block this small, swaps are cheaper
AGAIN = 0.2  # share of the circuit; size of the first block when blocks resume
ROOM = 0.02  # f above τ; with more room than this, no swap is the last, however little it gained


def blockwise(problem: Problem, state: State | None = None, steps: int = 3) -> State:
    """Prunes `problem.candidates` to the smallest circuit with f ≥ τ that it finds.

    steps: of integrated mask gradients, three passes each.
    """
    if state is None:
        state = _start(problem)
        problem.checkpoint(state)
    while not state.done:
        state = _cut_block(problem, state, steps) if state.extra["block"] else _exchange(problem, state)
        problem.checkpoint(state)
    return state


def _start(problem: Problem) -> State:
    mask = _prune(problem, np.ones((1, len(problem.candidates)), dtype=bool))[0]
    f = float(problem.judge(mask[None])[0])
    dead = problem.candidates[~mask].tolist()
    if f < problem.tau:
        return State(
            mask, dead, f, {}, True, f"the candidate set itself has f = {f:.3f}, below tau = {problem.tau}"
        )
    return State(mask, dead, f, {"block": LARGEST_BLOCK, "finer": 0}, False, "blocks")


def _cut_block(problem: Problem, state: State, steps: int) -> State:
    """Cuts one block, as large as f allows."""
    mask, block = state.mask, float(state.extra["block"])
    alive = np.flatnonzero(mask)
    scores = integrated_mask_gradients(problem.engine, problem.candidates, mask, steps=steps)[alive]
    orders = [alive[np.argsort(strength(scores, w), kind="stable")] for w in ORDERS]
    least = (problem.tau + state.faithfulness) / 2
    while (size := round(block * len(alive))) >= SMALLEST_BLOCK:
        trials = _prune(problem, np.stack([changed(mask, order[:size]) for order in orders]))
        f = problem.judge(trials)
        best = int(f.argmax())
        if f[best] >= least:
            following = min(2 * block, LARGEST_BLOCK) if size > LAST_BLOCK else 0.0
            return _moved(problem, state, trials[best], float(f[best]), orders[best], following)
        block /= 2
    return _moved(problem, state, mask, state.faithfulness, alive, 0.0)


def _exchange(problem: Problem, state: State) -> State:
    """Measures gradients once, then swaps a few additions for more removals."""
    engine, mask, spent = problem.engine, state.mask, 3
    if not mask.any():
        return _failed(problem, state, "no edge is left")
    gradient = engine.gradient(mask[None].astype(np.float64), problem.candidates).gradient[0]
    gain = -gradient.double().cpu().numpy() / engine.kl_cut  # in units of f
    size = size_of_groups(int(mask.sum()), state.extra["finer"])
    trying = exchange(
        mask, state.faithfulness, problem.tau, gain, lambda masks: _prune(problem, masks), size, thorough=True
    )
    try:
        trials = next(trying)
        while True:
            spent += len(trials)
            trials = trying.send(problem.judge(trials))
    except StopIteration as end:
        trade: Trade | None = end.value
    if trade is None:
        return _failed(problem, state, "no exchange makes it smaller")
    blocks_failed_at = state.extra.get("blocks_failed_at", state.faithfulness)
    large = size_of_groups(int(trade.mask.sum())) > 1
    if large and trade.f > state.faithfulness and trade.f >= blocks_failed_at:
        return _moved(problem, state, trade.mask, trade.f, trade.cheap, AGAIN)
    following = _moved(
        problem, state, trade.mask, trade.f, trade.cheap, 0.0, blocks_failed_at=blocks_failed_at
    )
    if trade.won * PASSES_PER_EDGE >= spent or trade.f - problem.tau > ROOM:
        return following
    return _failed(problem, following, "exchanges hardly make it smaller")


def _failed(problem: Problem, state: State, why: str) -> State:
    """After a failed swap: halves the groups, and resumes blocks if swaps changed the circuit since blocks failed. With single edges, the
    search ends.
    """
    finer = state.extra["finer"]
    if size_of_groups(int(state.mask.sum()), finer) > 1:
        block = AGAIN if "blocks_failed_at" in state.extra else 0.0
        return _moved(
            problem, state, state.mask, state.faithfulness, np.flatnonzero(state.mask), block, finer=finer + 1
        )
    return State(
        state.mask,
        state.order,
        state.faithfulness,
        state.extra,
        True,
        f"{int(state.mask.sum())} edges; {why}",
    )


def _moved(
    problem: Problem,
    state: State,
    mask: np.ndarray,
    f: float,
    order: np.ndarray,
    block: float,
    **extra: float,
) -> State:
    """The next state. Edges removed now are listed dead ones first, then in the order of `order`.

    `extra` has the next block size, how often groups were halved (`finer`) and, if swaps followed, the f at which blocks failed.
    """
    gone = state.mask & ~mask
    dead = gone.copy()
    dead[order] = False
    removed = np.concatenate([np.flatnonzero(dead), order[gone[order]]])
    back = set(problem.candidates[mask & ~state.mask].tolist())
    earlier = [edge for edge in state.order if edge not in back]
    note = f"{'blocks' if block else 'exchanges'}: {int(mask.sum())} edges"
    known = {"block": block, "finer": state.extra["finer"], **extra}
    return State(mask, earlier + problem.candidates[removed].tolist(), f, known, False, note)


def _prune(problem: Problem, masks: np.ndarray) -> np.ndarray:
    return problem.model.graph.prune(masks, problem.candidates)
