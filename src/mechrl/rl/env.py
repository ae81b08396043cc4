"""The environment: pruning a candidate set, one decision at a time (the paper's section 3.1).

State: features, mask, globals. Actions: stop; cut 1, 3, 10 or 30 edges; cut every remaining edge out of one component. Cuts are
permanent. One forward pass per step measures the new faithfulness. Reward (section 3.2): the change of the potential

    Φ(f, k) = w (1 − k / K) − λ max(0, τ − f)

so that an episode's rewards add up to Φ(end) − Φ(start); −0.01 for an action that cuts what is already cut; 0 for stopping. With
`log_share` s the size k / K becomes (1 − s) k / K + s log(1 + k) / log(1 + K): from 100 to 50 edges is then worth as much as from 2000
to 1000, where the paper's reward hardly notices. With `best_so_far` the reward is the rise of the largest potential so far: an episode's
rewards add up to max Φ − Φ(start), cutting too much costs nothing, and when to stop need not be learned.

The paper's agent sees scores that were computed once, in the whole model. With `look_again` s it looks at the circuit itself: integrated
mask gradients (six passes) replace the scores at the beginning and whenever the circuit has shrunk to s times what it was at the
last look. Edges that are dead, by which nothing flows any more, then go with every cut.

With `take_back` a cut that leaves f below τ is taken back: it costs its pass and nothing else. Its type is closed until the next look, so
that the agent tries something else. When all are closed it looks again, and if nothing was cut since it last did, the episode ends.

A policy may know more actions than the paper's: a tenth or a third of the circuit goes at once, the edges that rank lowest. From 3,000
edges to 100 that is 33 steps by tenths, where cuts of 30 take 97. What ranks lowest is a choice of its own: an edge of negative score
works against the behaviour, and may go first of all, early, or as late as one that works as much for it (`ORDERS`).

With `trades` there is one more, which no longer only cuts: an exchange (search/exchange.py) measures what single edges cost, brings a few
edges back and cuts more. It takes some twenty passes and goes by no look, so one that fails is closed until the circuit has changed.
Where edges are few enough to be measured one by one, a failed exchange ends the episode: it has tried what a cut could still do.
`pass_cost` makes passes count: an agent that may buy what it wants to know must be told that it costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from mechrl.attribution import ORDERS, strength
from mechrl.engine import Engine, ManyEngines
from mechrl.engine.ledger import PAIRS_PER_PASS
from mechrl.rl.features import SCORE, Features, features
from mechrl.search.exchange import PASSES_PER_EDGE, Judging, Trade, exchange, size_of_groups

_PAPERS = ("stop", "cut-1", "cut-3", "cut-10", "cut-30", "node")
PARTS = (10, 3)
ACTION_TYPES = (*_PAPERS, *(f"part-{part}-{weight:g}" for part in PARTS for weight in ORDERS), "trade")
STOP, NODE, PART = (
    0,
    5,
    len(_PAPERS),
)  # parts of the circuit come after the paper's types: every part in every order
TRADE = len(ACTION_TYPES) - 1
PAPERS_TYPES = len(_PAPERS)
BATCH_SIZES = (
    0,
    1,
    3,
    10,
    30,
    0,
    *(0 for _ in ACTION_TYPES[PART:]),
)  # edges that an action of each type picks
NEEDS = (0, 1, 3, 10, 30, 1, *(part for part in PARTS for _ in ORDERS), 1)  # edges that must be left for it
MAX_PICKS = max(BATCH_SIZES)
# where mask gradients are taken between the empty circuit and the one looked at: Gauss's two points, exact for cubic polynomials
LOOK = (0.5 - 0.5 / 3**0.5, 0.5 + 0.5 / 3**0.5)
LOOK_PASSES = 3 * len(LOOK)  # forward and backward
# what a step of `VectorEnv` depends on; for one that goes on, also what was spent
STATE = (
    "task",
    "mask",
    "f",
    "change",
    "best",
    "step_count",
    "finer",
    "episode",
    "scores",
    "looked",
    "closed",
)
STATE_AND_SPENT = (*STATE, "renewed", "passes")


@dataclass(frozen=True)
class RewardSettings:
    """The paper's reward and episode. `tau_low` and `tau_high` clamp the target, as its published code does."""

    w: float = 1.0
    lam: float = 5.0
    margin: float = 0.0  # δ in τ = c − δ
    tau_low: float = 0.5
    tau_high: float = 0.98
    log_share: float = 0.0  # how much of the size's reward goes by log k instead of k
    best_so_far: bool = (
        False  # reward the best potential reached so far: what deployment along the episode will choose from
    )
    give_up: float | None = None  # an episode ends when f is this far below τ
    look_again: float = 0.0  # renew the scores when the circuit has shrunk to this part of what it was; 0: never, as the paper
    take_back: bool = False  # cuts that leave f below τ
    trades: bool = (
        False  # exchanges are an action too, for agents that take back: it begins and ends with f ≥ τ
    )
    pass_cost: float = 0.0  # of the reward, for every pass of 20 pairs
    already_cut: float = -0.01
    max_steps: int = 150

    def tau(self, ceiling: float) -> float:
        """c − δ, clamped from below only where the candidates reach that."""
        low = self.tau_low if ceiling >= self.tau_low else -np.inf
        return float(np.clip(ceiling - self.margin, low, self.tau_high))

    def potential(
        self, f: np.ndarray, kept: np.ndarray, total: np.ndarray | int, tau: np.ndarray | float
    ) -> np.ndarray:
        size = (1 - self.log_share) * kept / total + self.log_share * np.log1p(kept) / np.log1p(total)
        return self.w * (1 - size) - self.lam * np.maximum(0, tau - f)


@dataclass(frozen=True)
class Task:
    """A behaviour as the agent meets it: the engine on its discovery pairs and its candidate set."""

    name: str
    engine: Engine
    candidates: np.ndarray  # [K] ascending edges
    features: Features
    ceiling: float  # f of the whole candidate set, c
    tau: float
    scores: Sequence[np.ndarray]  # [E] each: what the candidates were chosen by

    @property
    def K(self) -> int:
        return len(self.candidates)

    @property
    def M(self) -> int:
        return len(self.features.nodes)


def make_task(
    name: str, engine: Engine, candidates: np.ndarray, scores: Sequence[np.ndarray], settings: RewardSettings
) -> Task:
    """`scores` [E] each: the prefilter's attributions, by which it chose the candidates. The agent sees the first."""
    whole = np.ones((1, len(candidates)), dtype=bool)
    ceiling = float(engine.faithfulness(whole, candidates)[0])
    of_edges = features(engine.graph, candidates, scores[0][candidates])
    return Task(name, engine, candidates, of_edges, ceiling, settings.tau(ceiling), scores)


@dataclass
class Actions:
    """One action per environment. `edges` holds the picked places in order, then -1; `node` is used by node cuts."""

    type: np.ndarray  # [n]
    edges: np.ndarray  # [n, 30]
    node: np.ndarray  # [n]


@dataclass
class Steps:
    """What a step brought, per environment."""

    reward: np.ndarray  # [n]
    f: np.ndarray  # [n] faithfulness and ...
    edges: np.ndarray  # [n] ... size of the circuit after the step, before any restart
    done: (
        np.ndarray
    )  # [n] bool: stopped, given up, or out of steps; the state shown afterwards is the next episode's first


class VectorEnv:
    """Many episodes of many behaviours at once. Every step is one engine call, with the circuits of all environments.

    An environment whose episode ends starts a new one at once; the whole candidate set's f is known, so a reset costs no pass.
    Its behaviour is a function of `rng`'s seed, the environment's number (counted from `first`) and the episode's: environments
    draw alike wherever they run.

    go_on: an episode that is out of steps is given as many once more, where the last ones were worth their passes. For deployment of
    agents that take back: they can only gain.
    """

    def __init__(
        self,
        tasks: list[Task],
        n: int,
        settings: RewardSettings,
        rng: np.random.Generator,
        first: int = 0,
        go_on: bool = False,
    ) -> None:
        self.tasks, self.n, self.settings, self.first, self.go_on = tasks, n, settings, first, go_on
        self.seed = int(rng.integers(2**63))
        self.episode = np.zeros(n, dtype=np.int64)
        self.engines = ManyEngines([task.engine for task in tasks], [task.candidates for task in tasks])
        self.width = max(task.K for task in tasks)
        self.task = np.zeros(n, dtype=np.int64)
        self.mask = np.zeros((n, self.width), dtype=bool)
        self.f, self.change = np.zeros(n), np.zeros(n)  # by the last cut, also if it was taken back
        self.best = np.zeros(n)  # the largest potential of the episode so far
        self.scores = np.zeros(
            (n, self.width if settings.look_again else 0), dtype=np.float32
        )  # as of the last look
        self.looked = np.zeros(n, dtype=np.int64)  # edges at the last look
        self.closed = np.zeros(
            (n, len(ACTION_TYPES)), dtype=bool
        )  # types of cuts that were taken back since then
        self.step_count = np.zeros(n, dtype=np.int64)
        self.finer = np.zeros(
            n, dtype=np.int64
        )  # times that the groups of edges that are traded together were halved
        self.renewed = np.zeros((n, 2))  # edges, and passes, when the steps were last counted from 0
        self.passes = np.zeros(
            n
        )  # what every environment's steps and looks have cost, without the first look, which is shared
        self._pass = np.array([task.engine.n_pairs / PAIRS_PER_PASS for task in tasks])
        self._K = np.array([task.K for task in tasks])
        self._tau = np.array([task.tau for task in tasks])
        self._ceiling = np.array([task.ceiling for task in tasks])
        self._never = (np.arange(len(ACTION_TYPES)) == TRADE) & (
            not settings.trades
        )  # types that are closed for good
        if settings.look_again:
            whole = np.arange(self.width) < self._K[:, None]
            self._first_look = self.engines.mask_gradients(np.arange(len(tasks)), whole, LOOK)
        for i in range(n):
            self.reset(i, self.draw(i))

    def draw(self, i: int) -> int:
        """The behaviour of environment i's next episode."""
        rng = np.random.default_rng((self.seed, self.first + i, int(self.episode[i])))
        self.episode[i] += 1
        return int(rng.integers(len(self.tasks)))

    def reset(self, i: int, task: int) -> None:
        self.task[i] = task
        self.mask[i] = np.arange(self.width) < self._K[task]
        self.f[i], self.change[i], self.closed[i] = self._ceiling[task], 0.0, self._never
        self.best[i] = self.settings.potential(self.f[i], self._K[task], self._K[task], self._tau[task])
        self.step_count[i], self.finer[i] = 0, 0
        self.renewed[i] = self._K[task], self.passes[i]
        if self.settings.look_again:
            self.scores[i], self.looked[i] = self._first_look[task], self._K[task]

    def globals(self) -> np.ndarray:
        """[n, 6] step fraction, f, fraction of edges present, change of f, ceiling, headroom f − τ."""
        K, tau, ceiling = self._K[self.task], self._tau[self.task], self._ceiling[self.task]
        fraction = self.step_count / self.settings.max_steps
        columns = [fraction, self.f, self.mask.sum(1) / K, self.change, ceiling, self.f - tau]
        return np.column_stack(columns).astype(np.float32)

    def step(self, actions: Actions, restart: bool = True) -> Steps:
        """Acts in every environment. With `restart=False` ended episodes stay as they are (deployment)."""
        before, paid = self.mask.copy(), self.passes.copy()
        wasted = self._cut(actions)
        stopped, trading = actions.type == STOP, actions.type == TRADE
        changed = (self.mask != before).any(1)
        f = self.f.copy()
        if changed.any():
            if self.settings.look_again:
                self.mask[changed] = self.engines.prune(self.task[changed], self.mask[changed])
            f[changed] = self.engines.faithfulness(self.task[changed], self.mask[changed])
        self.passes += changed * self._pass[self.task]
        K, tau, settings = self._K[self.task], self._tau[self.task], self.settings
        minimal = np.zeros(
            self.n, dtype=bool
        )  # no edge of those that seem cheapest can go, measured one by one, nor be traded
        for j, trade in self._trade(np.flatnonzero(trading)).items():
            if trade is None:
                self.closed[j, TRADE] = True
                minimal[j] = size_of_groups(int(self.mask[j].sum())) == 1
            else:
                self.mask[j, : self._K[self.task[j]]], f[j] = trade.mask, trade.f
        self.change = f - self.f
        if settings.take_back:
            failed = changed & (f < tau)
            self.mask[failed], f[failed] = before[failed], self.f[failed]
            self.closed[failed, actions.type[failed]] = True
        self.closed[(self.mask != before).any(1), TRADE] = self._never[TRADE]
        after = settings.potential(f, self.mask.sum(1), K, tau)
        reward = after - (
            self.best if settings.best_so_far else settings.potential(self.f, before.sum(1), K, tau)
        )
        reward = np.maximum(reward, 0) if settings.best_so_far else reward
        reward += settings.already_cut * wasted
        self.best = np.maximum(self.best, after)
        self.f = f.copy()
        self.step_count += ~stopped
        if self.go_on:
            self._renew()
        done = stopped | minimal | (self.step_count >= settings.max_steps)
        if settings.give_up is not None:
            done |= f < tau - settings.give_up
        edges = self.mask.sum(1)
        # stopping is always possible, and no cut any more
        stuck = settings.take_back & (self.closed | (edges[:, None] < NEEDS))[:, 1:].all(1)
        ended = ~done & stuck & (edges == self.looked if settings.look_again else True)
        for i in np.flatnonzero(ended & settings.trades):
            if self._group(int(i)) > 1:  # not the end: edges can still be traded in smaller groups
                self.finer[i] += 1
                self.closed[i, TRADE] = ended[i] = stuck[i] = False
        done |= ended
        self._look(~done & (stuck | (edges <= settings.look_again * self.looked)) & (edges > 0), edges)
        reward -= settings.pass_cost * (self.passes - paid)
        if restart:
            for i in np.flatnonzero(done):
                self.reset(int(i), self.draw(int(i)))
        return Steps(reward, f, edges, done)

    def _renew(self) -> None:
        """The steps of environments that have none left, if edges went for at most so many passes each since they were last renewed."""
        now = np.column_stack([self.mask.sum(1), self.passes])
        went, paid = self.renewed[:, 0] - now[:, 0], now[:, 1] - self.renewed[:, 1]
        which = (self.step_count >= self.settings.max_steps) & (went * PASSES_PER_EDGE >= paid) & (went > 0)
        self.renewed[which], self.step_count[which] = now[which], 0

    def _cut(self, actions: Actions) -> np.ndarray:
        """Applies the cuts; [n] bool: did an action cut what was cut already?"""
        wasted = np.zeros(self.n, dtype=bool)
        for i in np.flatnonzero((actions.type != STOP) & (actions.type != TRADE)):
            task = self.tasks[self.task[i]]
            if actions.type[i] >= PART:
                places = self._lowest(int(i), *divmod(int(actions.type[i]) - PART, len(ORDERS)))
            elif actions.type[i] == NODE:
                places = np.flatnonzero(task.features.parent == actions.node[i])
                wasted[i] = not self.mask[i, places].any()
            else:
                places = actions.edges[i, : BATCH_SIZES[actions.type[i]]]
                wasted[i] = not self.mask[i, places].all() or len(np.unique(places)) < len(places)
            self.mask[i, places] = False
        return wasted

    def _group(self, i: int) -> int:
        """Edges that environment i trades together."""
        return size_of_groups(int(self.mask[i].sum()), int(self.finer[i]))

    def _trade(self, which: np.ndarray) -> dict[int, Trade | None]:
        """One exchange in each of the environments `which`, side by side: what all of them want judged is one engine call. An edge that
        comes back has the score by which it was chosen."""
        found: dict[int, Trade | None] = {}
        if not len(which):
            return found
        gain = self.engines.gains(self.task[which], self.mask[which])
        self.passes[which] += 3 * self._pass[self.task[which]]
        trying: dict[int, Judging] = {}
        asked: dict[int, np.ndarray] = {}

        def ask(i: int, f: np.ndarray | None) -> None:
            try:
                asked[i] = next(trying[i]) if f is None else trying[i].send(f)
            except StopIteration as end:
                found[i] = end.value
                asked.pop(i, None)

        for i, of in zip(which.tolist(), gain, strict=True):
            task = self.tasks[self.task[i]]
            prune = partial(task.engine.graph.prune, edges=task.candidates)
            trying[i] = exchange(
                self.mask[i, : task.K].copy(), float(self.f[i]), task.tau, of[: task.K], prune, self._group(i)
            )
            ask(i, None)
        while asked:
            owner = np.repeat(list(asked), [len(masks) for masks in asked.values()])
            masks = np.zeros((len(owner), self.width), dtype=bool)
            for i, mine in asked.items():
                masks[owner == i, : mine.shape[1]] = mine
            f = self.engines.faithfulness(self.task[owner], masks)
            np.add.at(self.passes, owner, self._pass[self.task[owner]])
            for i in list(asked):
                ask(i, f[owner == i])
        for i, of in zip(which.tolist(), gain, strict=True):
            trade = found[i]
            if trade is not None and self.settings.look_again:
                back = np.flatnonzero(trade.mask & ~self.mask[i, : len(trade.mask)])
                self.scores[i, back] = of[back]
        return found

    def _lowest(self, i: int, part: int, order: int) -> np.ndarray:
        """Of the edges left in environment i those that rank lowest by their scores, as of the last look or the prefilter's."""
        left = np.flatnonzero(self.mask[i])
        scores = (
            self.scores[i] if self.settings.look_again else self.tasks[self.task[i]].features.edges[:, SCORE]
        )
        return left[
            np.argsort(strength(scores[left], ORDERS[order]), kind="stable")[: len(left) // PARTS[part]]
        ]

    def _look(self, which: np.ndarray, edges: np.ndarray) -> None:
        if which.any():
            self.scores[which] = self.engines.mask_gradients(self.task[which], self.mask[which], LOOK)
            self.passes += which * LOOK_PASSES * self._pass[self.task]
            self.looked[which], self.closed[which, :TRADE] = edges[which], False
