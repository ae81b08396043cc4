"""Blockwise search: cut the edges that matter least, many at a time, and ask anew what matters in the circuit that is left.

**Blocks.** Integrated mask gradients S at the current circuit order its edges, and the lowest go at once. What is low is not obvious:
an edge of negative S works against the behaviour. Cutting it may lead to a smaller circuit, since helpful edges that it held in
check can go as well, or may make the circuit overshoot. So three orders are tried side by side, by |S| with negative scores
weighted by w ∈ `WEIGHTS`, and the circuit of highest f is taken. A block may spend at most half of what f has above τ, for later
blocks know better; if all orders fail it is halved, after a success it is doubled again. When blocks have become small,
exchanges follow.

**Exchanges.** One gradient at the circuit itself estimates what every edge in it costs to cut and what every edge outside would
gain. It cannot be trusted alone: where the circuit overshoots, its most important edges seem harmful. So f is measured without the
edges that seem cheapest, one pass for each, or in a large circuit for a few at a time. To first order costs and gains add up: the a
best additions are traded for the r cheapest removals, r > a, with r at or below the predicted limit. Trades are tried from the one
that leaves the smallest circuit on, a few at once, until some have f ≥ τ. The search ends when no trade makes the circuit smaller,
or when an exchange has cost more passes than the edges it removed are worth.

Dead edges are pruned from every circuit tried: they cost nothing to cut.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mechrl.attribution import integrated_mask_gradients
from mechrl.search.problem import Problem, State

WEIGHTS = (0.0, 0.3, 1.0)  # of negative scores: cut them first, cut them early, treat them like positive ones
LARGEST_BLOCK = 0.8  # part of the circuit
SMALLEST_BLOCK = 15  # edges; a block must be worth its attribution
LAST_BLOCK = 40  # edges; after a block no larger than this exchanges are cheaper
GROUPS = (0.25, 12, 24)  # groups whose cost is measured, as a part of the circuit's edges, but at least and at most so many
GROUP = 1 / 80  # size of a group, as a part of the circuit; at least one edge
ADDITIONS = (0, 2, 5)
NEAR_LIMIT = (1.0, 0.75, 0.5, 0.25)  # the first only for single edges: costs of groups add up worse
AT_ONCE = 4  # trades
PASSES_PER_EDGE = 20  # what an exchange may cost for every edge that it removes, if another is to follow


def blockwise(problem: Problem, state: State | None = None, steps: int = 3) -> State:
    """Prunes `problem.candidates` to the smallest circuit of f ≥ τ that it finds.

    steps: of the integrated mask gradients, three passes each.
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
        return State(mask, dead, f, {}, True, f"the candidate set itself has f = {f:.3f}, below tau = {problem.tau}")
    return State(mask, dead, f, {"block": LARGEST_BLOCK}, False, "blocks")


def _cut_block(problem: Problem, state: State, steps: int) -> State:
    """Cuts one block, as large as f allows."""
    mask, block = state.mask, float(state.extra["block"])
    alive = np.flatnonzero(mask)
    scores = integrated_mask_gradients(problem.engine, problem.candidates, mask, steps=steps)[alive]
    orders = [alive[np.argsort(np.where(scores < 0, -w * scores, scores), kind="stable")] for w in WEIGHTS]
    least = (problem.tau + state.faithfulness) / 2
    while (size := round(block * len(alive))) >= SMALLEST_BLOCK:
        trials = _prune(problem, np.stack([_changed(mask, order[:size]) for order in orders]))
        f = problem.judge(trials)
        best = int(f.argmax())
        if f[best] >= least:
            following = min(2 * block, LARGEST_BLOCK) if size > LAST_BLOCK else 0.0
            return _moved(problem, state, trials[best], float(f[best]), orders[best], following)
        block /= 2
    return _moved(problem, state, mask, state.faithfulness, alive, 0.0)


def _exchange(problem: Problem, state: State) -> State:
    """Measures once, then trades additions for more removals."""
    engine, mask, f = problem.engine, state.mask, state.faithfulness
    alive, outside = np.flatnonzero(mask), np.flatnonzero(~mask)
    if not len(alive):
        return _finished(state, "no edge is left")
    gradient = engine.gradient(mask[None].astype(np.float64), problem.candidates).gradient[0]
    gain = -gradient.double().cpu().numpy() / engine.kl_cut  # in units of f
    best = outside[np.argsort(-gain[outside], kind="stable")]
    part, at_least, at_most = GROUPS
    size = max(1, round(len(alive) * GROUP))
    cheap = alive[np.argsort(gain[alive], kind="stable")][: size * int(np.clip(part * len(alive), at_least, at_most))]
    groups = [cheap[i : i + size] for i in range(0, len(cheap), size)]
    cost = f - problem.judge(_prune(problem, np.stack([_changed(mask, group) for group in groups])))
    order = np.argsort(cost, kind="stable")
    cheap, cost = np.concatenate([groups[i] for i in order]), np.maximum(cost[order], 0.0)

    trades = []
    for a in ADDITIONS:
        limit = int(np.searchsorted(np.cumsum(cost), f - problem.tau + gain[best[:a]].sum(), side="right"))
        removals = {a + 1, *(round(near * limit) * size for near in NEAR_LIMIT[size > 1 :])}
        trades += [_changed(mask, cheap[:r], best[:a]) for r in sorted(removals) if a < r <= len(cheap)]
    trials = _prune(problem, np.stack([mask, *trades]))
    sizes = trials.sum(1)
    trials = trials[np.argsort(sizes, kind="stable")][: (sizes < mask.sum()).sum()]
    for first in range(0, len(trials), AT_ONCE):
        some = trials[first : first + AT_ONCE]
        judged = problem.judge(some)
        if (judged >= problem.tau).any():
            # what f has above tau is worth edges too: as many as it could pay for at the mean cost
            per_edge = max(cost.mean() / size, 1e-9)
            worth = (judged - problem.tau) / per_edge
            chosen = int(np.where(judged >= problem.tau, some.sum(1) - worth, np.inf).argmin())
            following = _moved(problem, state, some[chosen], float(judged[chosen]), cheap, 0.0)
            won = mask.sum() - some[chosen].sum() + max(0.0, (judged[chosen] - f) / per_edge)
            spent = 3 + len(groups) + first + len(some)
            return following if won * PASSES_PER_EDGE >= spent else _finished(following, "exchanges hardly make it smaller")
    return _finished(state, "no exchange makes it smaller")


def _finished(state: State, why: str) -> State:
    return State(state.mask, state.order, state.faithfulness, state.extra, True, f"{int(state.mask.sum())} edges; {why}")


def _moved(problem: Problem, state: State, mask: np.ndarray, f: float, order: np.ndarray, block: float) -> State:
    """The next state. Of the edges cut now, dead ones come first, then those of `order` as they stand in it."""
    gone = state.mask & ~mask
    dead = gone.copy()
    dead[order] = False
    removed = np.concatenate([np.flatnonzero(dead), order[gone[order]]])
    back = set(problem.candidates[mask & ~state.mask].tolist())
    earlier = [edge for edge in state.order if edge not in back]
    note = f"{'blocks' if block else 'exchanges'}: {int(mask.sum())} edges"
    return State(mask, earlier + problem.candidates[removed].tolist(), f, {"block": block}, False, note)


def _prune(problem: Problem, masks: np.ndarray) -> np.ndarray:
    return problem.model.graph.prune(masks, problem.candidates)


def _changed(mask: np.ndarray, cut: np.ndarray | list[int], add: np.ndarray | Sequence[int] = ()) -> np.ndarray:
    mask = mask.copy()
    mask[cut] = False
    mask[np.asarray(add, dtype=int)] = True
    return mask
