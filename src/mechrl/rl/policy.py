"""The policy (the paper's section 3.3): a set network over candidate edges and components, the same for every behaviour and model.

    h^e_i = MLP_e([X^e_i, m_i])        h^n_j = MLP_n([X^n_j, fraction of j's edges still alive])
    c = MLP_c([mean h^e, max h^e, mean h^n, max h^n, g])
    type head from c; edge head from [h^e_i, c]; node head from [h^n_j, c]; value head from c

A batch cut picks its edges one after the other, re-scoring after each pick: before its p-th pick the agent stands in a state of its
own, the mask without the p − 1 edges picked so far (the fraction of edges present follows, the other globals stay). So an action's
log-probability is that of its type plus, for every pick, that of one edge in one such state, and replaying an update's
actions is evaluating all those states at once: no loop over picks, the order is part of the action.

Memory: an edge is alive or dead, a component has 0 … degree edges left, and nothing else of them changes. So there is one table of
embeddings per behaviour, with 2K rows for edges and K + M for components, and a state is a choice of rows. What must be computed for
every state and edge is in `kernels.py`.

After a look (`features.look`) the scores of a state are its own, and so are its tables: then there is one per state instead, of K + M rows
and two more for every pick, and only so many states are taken together as `apart` says.

Gradients per behaviour: all weights carry a leading axis, one copy per behaviour, and the samples are sorted by behaviour. The gradient
with respect to the copies is what PCGrad needs, from one forward and one backward pass.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from mechrl.attribution import ORDERS
from mechrl.errors import MechRLError
from mechrl.files import write_atomically
from mechrl.files.reading import made_of, read_json
from mechrl.ranges import MOST_WIDTH
from mechrl.rl import kernels
from mechrl.rl.env import (
    ACTION_TYPES,
    BATCH_SIZES,
    MAX_PICKS,
    NEEDS,
    NODE,
    PAPERS_TYPES,
    PART,
    TRADE,
    Actions,
    Task,
)
from mechrl.rl.features import N_EDGE, N_GLOBAL, N_NODE, RANK, SCORE, TOTAL, look, totals

_GRAPHS = 4  # captured at a time: deployment acts greedily and by drawing, in turns
_EDGES_AT_ONCE = 2**19  # of states that have tables of their own: 128 states of four thousand candidates

Weights = dict[str, Tensor]  # the policy's parameters with a leading axis, one copy per group


@dataclass(frozen=True)
class PolicyConfig:
    """width: H. The type head's bias at the start keeps an untrained agent from stopping at once.

    prior: how strongly an untrained agent prefers to cut edges of high rank (low |score|) and components of low total score. The
    paper's 0 is a uniform choice, by which almost every cut loses: such an agent learns to stop before it learns what to cut.
    """

    width: int = 128
    stop_bias: float = -5.0
    cut_1_bias: float = 2.0
    cut_30_bias: float = 0.0
    prior: float = 0.0
    parts: bool = (
        False  # whether it knows to cut a tenth or a third of the circuit at once, which the paper's does not
    )
    trades: bool = False  # knows exchanges besides, which come after the parts at the start
    part_bias: float = (
        2.0  # of tenths; thirds have one more: at the start these come first, and are a good search already
    )

    def __post_init__(self) -> None:
        if not 1 <= self.width <= MOST_WIDTH:
            raise MechRLError(
                f"the policy's width must lie between 1 and {MOST_WIDTH:,}, not be {self.width}"
            )


@dataclass(frozen=True)
class Tables:
    """The tasks' features on the device, padded to the widest: T tasks, K edges, M nodes.

    With `mask` they are those of T states: every edge and node has one row there, as it is, and none for what it may become. What picks
    make of them has rows of its own behind these, the p-th pick the p-th.
    """

    edges: Tensor  # [T, K, 16]
    nodes: Tensor  # [T, M, 7]
    parent: Tensor  # [T, K] int64; padding points at node 0 and is never alive
    n_edges: Tensor  # [T]
    n_nodes: Tensor  # [T]
    degree: Tensor  # [T, M] candidate edges out of every node, at least 1
    n_rows: int  # of the node table: of the task with most edges and nodes
    mask: Tensor | None = None  # [T, K] bool

    @staticmethod
    def of(tasks: list[Task], device: torch.device | str = "cpu") -> Tables:
        T, K, M = len(tasks), max(t.K for t in tasks), max(t.M for t in tasks)
        edges, nodes = np.zeros((T, K, N_EDGE), np.float32), np.zeros((T, M, N_NODE), np.float32)
        parent, degree = np.zeros((T, K), np.int64), np.ones((T, M), np.float32)
        for i, task in enumerate(tasks):
            edges[i, : task.K], nodes[i, : task.M] = task.features.edges, task.features.nodes
            parent[i, : task.K] = task.features.parent
            degree[i, : task.M] = np.bincount(task.features.parent)
        arrays = (
            edges,
            nodes,
            parent,
            np.array([t.K for t in tasks]),
            np.array([t.M for t in tasks]),
            degree,
        )
        there = [torch.from_numpy(a).to(device) for a in arrays]
        return Tables(*there, max(t.K + t.M for t in tasks))  # type: ignore[call-arg, arg-type]  # six tensors and a number

    def after_look(self, task: Tensor, looks: Tensor) -> Tables:
        """One table for each state of `task` [n], with the scores that it saw last, `looks` [n, K, 3]."""
        edges, nodes, parent = self.edges[task], self.nodes[task], self.parent[task]
        edges[..., SCORE], edges[..., RANK] = looks[..., 0], looks[..., 1]
        nodes[..., TOTAL] = totals(looks[..., 2], parent, nodes.shape[1])
        return Tables(
            edges, nodes, parent, self.n_edges[task], self.n_nodes[task], self.degree[task], self.n_rows
        )

    # what the embeddings are computed from, row by row

    @cached_property
    def edge_inputs(self) -> Tensor:
        """[T, 2K, 17] every edge alive, then every edge dead; [T, K, 17] of states."""
        if self.mask is not None:
            return torch.cat([self.edges, self.mask[..., None].to(self.edges.dtype)], -1)
        flag = torch.ones_like(self.edges[..., :1])
        return torch.cat([torch.cat([self.edges, flag], -1), torch.cat([self.edges, 0 * flag], -1)], 1)

    @cached_property
    def node_start(self) -> Tensor:
        """[T, M] where a node's rows begin: one for every number of edges that it may have left, 0 … degree."""
        sizes = self._node_sizes
        return sizes.cumsum(1) - sizes

    @cached_property
    def node_inputs(self) -> Tensor:
        """[T, R, 8]; [T, M, 8] of states."""
        if self.mask is not None:
            return torch.cat([self.nodes, (self.alive / self.degree)[..., None]], -1)
        ends = self._node_sizes.cumsum(1)
        row = torch.arange(self.n_rows, device=ends.device).expand(len(ends), -1).contiguous()
        node = torch.searchsorted(ends, row, right=True).clamp_max(ends.shape[1] - 1)
        fraction = (row - self.node_start.gather(1, node)) / self.degree.gather(1, node)
        of_node = self.nodes.gather(1, node[..., None].expand(-1, -1, N_NODE))
        return torch.cat([of_node, fraction[..., None]], -1)

    def inputs_of_picks(self, task: Tensor, picks: Tensor, alive: Tensor) -> tuple[Tensor, Tensor]:
        """[n, P, 17] the edges `picks` [n, P], cut, and [n, P, 8] their parents with so many left, `alive` [n, P]."""
        task = task[:, None]
        parent = self.parent[task, picks]
        fraction = (alive / self.degree[task, parent])[..., None]
        edges, nodes = self.edges[task, picks], self.nodes[task, parent]
        return torch.cat([edges, torch.zeros_like(fraction)], -1), torch.cat([nodes, fraction], -1)

    @cached_property
    def alive(self) -> Tensor:
        """[T, M] edges that the nodes of states have left."""
        assert self.mask is not None
        return self.alive_of_node(torch.arange(len(self.mask), device=self.mask.device), self.mask)

    @cached_property
    def real_edges(self) -> Tensor:
        return torch.arange(self.edges.shape[1], device=self.edges.device) < self.n_edges[:, None]  # [T, K]

    @cached_property
    def real_nodes(self) -> Tensor:
        return torch.arange(self.nodes.shape[1], device=self.nodes.device) < self.n_nodes[:, None]  # [T, M]

    @cached_property
    def _node_sizes(self) -> Tensor:
        return torch.where(self.real_nodes, self.degree.long() + 1, 0)

    def edge_rows(self, task: Tensor, mask: Tensor) -> Tensor:
        """The rows [..., K] that states with these masks [..., K] consist of, in tables of states before any pick; `task` goes with the
        leading dimensions."""
        K = mask.shape[-1]
        each = torch.arange(K, device=mask.device)
        if self.mask is not None:
            return torch.where(self.real_edges[task], each, K + MAX_PICKS)
        return torch.where(mask, each, torch.where(self.real_edges[task], each + K, 2 * K))

    def one_row_a_node(self, task: Tensor) -> Tensor:
        """The rows [n, M] of states [n] in tables of their own, before any pick."""
        M = self.nodes.shape[1]
        return torch.where(self.real_nodes[task], torch.arange(M, device=task.device), M + MAX_PICKS)

    def node_rows(self, task: Tensor, alive: Tensor) -> Tensor:
        """The rows [n, M] of states [n] with so many edges alive out of every node [n, M]."""
        if self.mask is not None:
            return self.one_row_a_node(task)
        return torch.where(self.real_nodes[task], self.node_start[task] + alive, self.node_inputs.shape[1])

    def without_edges(self, task: Tensor, rows: Tensor) -> Tensor:
        """[..., M] bool: nodes with no edge alive, or that are none, from the rows of states before their first pick."""
        if self.mask is not None:
            return self.alive[task] == 0
        return (rows == self.node_start[task]) | (rows == self.node_inputs.shape[1])

    def alive_of_node(self, task: Tensor, mask: Tensor) -> Tensor:
        """[n, M] int64"""
        alive = torch.zeros(len(task), self.nodes.shape[1], dtype=torch.int64, device=task.device)
        return alive.scatter_add_(1, self.parent[task], mask.long())


@dataclass(frozen=True)
class States:
    """A batch of states."""

    task: Tensor  # [n] int64
    mask: Tensor  # [n, K] bool, False beyond the task's own edges
    globals: Tensor  # [n, 6]
    looks: Tensor | None = None  # [n, K, 3] what was seen at the last look
    closed: Tensor | None = (
        None  # [n, types] bool: what may not be tried again before the next; None: nothing is
    )

    @staticmethod
    def of(
        task: np.ndarray,
        mask: np.ndarray,
        values: np.ndarray,
        scores: np.ndarray,
        closed: np.ndarray,
        device: torch.device | str,
    ) -> States:
        """From an environment's arrays; `scores` [n, K], or [n, 0] if it does not look again."""
        there = [torch.from_numpy(x.copy()).to(device) for x in (task, mask, values, scores, closed)]
        return States(there[0], there[1], there[2], look(there[3]) if scores.shape[1] else None, there[4])

    def __len__(self) -> int:
        return len(self.task)

    def __getitem__(self, index: Tensor | slice) -> States:
        return States(*(None if x is None else x[index] for x in self._parts()))  # type: ignore[arg-type]

    def _parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        return self.task, self.mask, self.globals, self.looks, self.closed

    def clone(self) -> States:
        return States(*(None if x is None else x.clone() for x in self._parts()))  # type: ignore[arg-type]

    def copy_(self, other: States) -> None:
        for mine, theirs in zip(self._parts(), other._parts(), strict=True):
            if mine is not None and theirs is not None:
                mine.copy_(theirs)

    @staticmethod
    def cat(many: list[States]) -> States:
        parts = zip(*(states._parts() for states in many), strict=True)
        return States(*(None if xs[0] is None else torch.cat(xs) for xs in parts))  # type: ignore[arg-type]

    def parts(self) -> list[States]:
        """That are to be taken one after the other: all together, unless every state has tables of its own."""
        return [self] if self.looks is None else [self[some] for some in apart(*self.mask.shape)]

    def own_tables(self, tables: Tables) -> tuple[Tables, States]:
        """The tables as these states see them: their behaviours', or after a look one for each state."""
        if self.looks is None:
            return tables, self
        own = torch.arange(len(self), device=self.task.device)
        seen = replace(tables.after_look(self.task, self.looks), mask=self.mask)
        return seen, States(own, self.mask, self.globals, closed=self.closed)


@dataclass(frozen=True)
class Choice:
    """Sampled actions, with their log-probabilities and the states' values."""

    actions: Actions
    log_prob: Tensor  # [n]
    value: Tensor  # [n]


@dataclass(frozen=True)
class Evaluation:
    log_prob: Tensor  # [n]
    entropy: Tensor  # [n] of the type, plus the mean conditional entropy along the sampled picks
    value: Tensor  # [n]


@dataclass(frozen=True)
class Record:
    """States and the actions taken there, and from both every state that was passed through while picking."""

    states: States  # [N]
    kind: Tensor  # [N]
    edges: Tensor  # [N, 30]
    node: Tensor  # [N]
    life: Tensor  # [N, K] int8: before its p-th pick, p = 0 …, edge k of a sample is alive iff life > p
    node_rows: Tensor  # [N, 30, M] rows of the node table before the p-th pick
    alive: Tensor  # [N, 30] edges that the p-th pick leaves to its edge's parent

    @staticmethod
    def of(tables: Tables, states: States, kind: Tensor, edges: Tensor, node: Tensor) -> Record:
        task, (N, K), M = states.task, states.mask.shape, tables.nodes.shape[1]
        number = torch.arange(MAX_PICKS, device=kind.device)
        picked = number < _n_picks(kind)[:, None]  # [N, 30]
        life = torch.where(states.mask, 127, 0).to(torch.int8)
        life = torch.cat([life, life.new_zeros(N, 1)], 1)  # a column for picks that are none
        life.scatter_(1, torch.where(picked, edges, K), (number + 1).to(torch.int8).expand(N, -1))
        parent = tables.parent[task].gather(1, edges.clamp_min(0))
        cut = torch.zeros(N, MAX_PICKS, M, dtype=torch.int64, device=kind.device)
        cut.scatter_(2, parent[..., None], picked[..., None].long())
        left = tables.alive_of_node(task, states.mask)[:, None] - cut.cumsum(
            1
        )  # [N, 30, M] after the p-th pick
        if states.looks is None and tables.mask is None:
            rows = tables.node_rows(task.repeat_interleave(MAX_PICKS), (left + cut).view(-1, M)).view(
                N, MAX_PICKS, M
            )
        else:  # a node stands where the last of its edges to be picked put it
            last = torch.where(cut > 0, M + number[:, None], -1).cummax(1).values.roll(1, 1)
            last[:, 0] = -1
            rows = torch.where(last < 0, tables.one_row_a_node(task)[:, None], last)
        return Record(states, kind, edges, node, life[:, :K], rows, left.gather(2, parent[..., None])[..., 0])


@dataclass(frozen=True)
class Layout:
    """Where samples of a record stand when they are sorted by behaviour: [T, U] states, of which the first B columns are the samples
    themselves (before their first pick) and the others the states before later picks; short rows are padded with sample 0."""

    row: Tensor  # [T, U] of the record
    pick: Tensor  # [T, U] number p of the pick
    n_picks: Tensor  # [T, U] of the sample; 0 for padding
    owner: Tensor  # [T, U] column of the state's sample, < B
    real: Tensor  # [T, B] 1 for a sample, 0 for padding
    count: Tensor  # [T] columns up to the last that is not padding
    node_column: Tensor  # [T, N] the samples that cut a node, padded with column 0 ...
    node_real: Tensor  # [T, N] ... and 0 here
    place: Tensor  # [n] where the samples are in [T · B], in the order in which they were given

    @property
    def n_samples(self) -> int:
        """B"""
        return self.real.shape[1]

    @staticmethod
    def of(
        task: np.ndarray, kind: np.ndarray, rows: np.ndarray, T: int, device: torch.device | str
    ) -> Layout:
        """For the samples `rows`; `task` and `kind` are the whole record's. On the host, and one transfer."""
        task, kind = task[rows], kind[rows]
        n_picks = np.array(BATCH_SIZES)[kind]
        column, B = _columns(task, T)
        later = np.repeat(np.arange(len(rows)), np.maximum(n_picks - 1, 0))
        pick = np.arange(len(later)) - np.searchsorted(later, later) + 1
        place, n_later = _columns(task[later], T)
        U = -(-(B + n_later) // 16) * 16  # the kernels read sixteen numbers at a time
        table = np.zeros((4, T, U), np.int64)
        table[:, task, column] = np.stack([rows, 0 * rows, n_picks, column])
        table[:, task[later], B + place] = np.stack([rows[later], pick, n_picks[later], column[later]])
        real = np.zeros((T, B), np.int64)
        real[task, column] = 1
        count = np.where(
            np.bincount(task[later], minlength=T) > 0,
            B + np.bincount(task[later], minlength=T),
            np.bincount(task, minlength=T),
        )
        cuts_node = np.flatnonzero(kind == NODE)
        place, width = _columns(task[cuts_node], T)
        nodes = np.zeros((2, T, width), np.int64)
        nodes[:, task[cuts_node], place] = np.stack([column[cuts_node], np.ones_like(cuts_node)])
        parts = (*table, real, count, *nodes, task * B + column)
        packed = torch.from_numpy(np.concatenate([part.ravel() for part in parts]))
        if torch.device(device).type == "cuda":
            packed = packed.pin_memory().to(device, non_blocking=True)
        split = packed.split([part.size for part in parts])
        return Layout(*(x.view(part.shape) for x, part in zip(split, parts, strict=True)))


def _columns(group: np.ndarray, n_groups: int) -> tuple[np.ndarray, int]:
    """How many of its group stand before each; the size of the largest group."""
    order = np.argsort(group, kind="stable")
    sizes = np.bincount(group, minlength=n_groups)
    column = np.empty(len(group), np.int64)
    column[order] = np.arange(len(group)) - (np.cumsum(sizes) - sizes)[group[order]]
    return column, int(sizes.max())


class Perceptron(nn.Module):
    """The parameters of a layer [in, H], a ReLU and a layer [H, out]. Orthogonal start; `gain` is that of the second layer."""

    def __init__(self, n_in: int, width: int, n_out: int, gain: float = math.sqrt(2)) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(n_in, width), nn.Linear(width, n_out)
        for linear, scale in ((self.first, math.sqrt(2)), (self.second, gain)):
            nn.init.orthogonal_(linear.weight, scale)
            nn.init.zeros_(linear.bias)


def _carry(feature: int, weight: float, embedding: Perceptron, head: Perceptron) -> None:
    """Lets the first unit of every layer carry a feature (at least 0, so that the ReLUs let it pass) to the head's output."""
    for linear, column in ((embedding.first, feature), (embedding.second, 0), (head.first, 0)):
        linear.weight[0] = 0
        linear.weight[0, column] = 1
    head.second.weight[0, 0] = weight


class Policy(nn.Module):
    """Policy and value function. Its parameters know nothing of K, M or the model."""

    def __init__(self, config: PolicyConfig = PolicyConfig()) -> None:  # noqa: B008 (frozen)
        super().__init__()
        self.config = config
        H = config.width
        self.edge_embedding = Perceptron(N_EDGE + 1, H, H)
        self.node_embedding = Perceptron(N_NODE + 1, H, H)
        self.context = Perceptron(4 * H + N_GLOBAL, H, H)
        n_types = TRADE + config.trades if config.parts else PAPERS_TYPES
        self.type_head = Perceptron(H, H, n_types, gain=0.01)
        self.edge_head = Perceptron(2 * H, H, 1, gain=0.01)
        self.node_head = Perceptron(2 * H, H, 1, gain=0.01)
        self.value_head = Perceptron(H, H, 1, gain=1.0)
        with torch.no_grad():
            self.type_head.second.bias[0] = config.stop_bias
            self.type_head.second.bias[1] = config.cut_1_bias
            self.type_head.second.bias[4] = config.cut_30_bias
            self.type_head.second.bias[PART:TRADE] = config.part_bias
            self.type_head.second.bias[PART + len(ORDERS) : TRADE] += 1
            self.type_head.second.bias[TRADE:] = config.part_bias - 1
            if config.prior:
                _carry(RANK, config.prior, self.edge_embedding, self.edge_head)
                _carry(TOTAL, -config.prior, self.node_embedding, self.node_head)
        self._graphs: dict[tuple[int, ...], _ActGraph] = {}

    def weights(self, n: int) -> Weights:
        """The parameters, n times, as views."""
        return {name: p.expand(n, *p.shape) for name, p in self.named_parameters()}

    # ---- acting -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def act(
        self, tables: Tables, states: States, generator: torch.Generator | None = None, greedy: bool = False
    ) -> Choice:
        """Draws an action for every state; `greedy` takes the likeliest type and picks instead."""
        some = [self._act_together(tables, part, generator, greedy) for part in states.parts()]
        decided, log_prob, value = (torch.cat(parts) for parts in zip(*some, strict=True))
        host = decided.cpu().numpy()
        return Choice(Actions(host[:, 0], host[:, 2:], host[:, 1]), log_prob, value)

    def _act_together(
        self, tables: Tables, states: States, generator: torch.Generator | None, greedy: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As `_act`."""
        if kernels.available(tables.edges):
            key = (len(states), tables.edges.data_ptr(), *(p.data_ptr() for p in self.parameters()))
            if key not in self._graphs:
                while len(self._graphs) >= _GRAPHS:
                    del self._graphs[next(iter(self._graphs))]
                self._graphs[key] = _ActGraph(self, tables, states)
            return self._graphs[key](states, generator, greedy)
        return self._act(tables, states, _Noise(generator, greedy))

    def _act(self, tables: Tables, states: States, noise: _Noise) -> tuple[Tensor, Tensor, Tensor]:
        """[n, 32] type, node and picks; log-probabilities; values. With `noise.recorded` there is no word between host and device: the loop
        is always the longest, and rows that are done with it look on."""
        tables, states = states.own_tables(tables)
        trunk = _Trunk(self.weights(len(tables.edges)), tables)
        task, n, K, M = states.task, len(states), states.mask.shape[1], tables.nodes.shape[1]
        mask, present = states.mask.clone(), states.globals.clone()
        alive = tables.alive_of_node(task, mask)
        edge_rows, node_rows = tables.edge_rows(task, mask), tables.node_rows(task, alive)
        context = trunk.context_of(task, edge_rows, node_rows, present)
        closed = None if states.closed is None else states.closed[None]
        type_log_probs = trunk.type_log_probs(context, mask.sum(1)[None], closed)[0]
        kind = noise.draw(type_log_probs, MAX_PICKS)
        of_nodes = trunk.node_log_probs(task[None], node_rows[None], context)[0]
        node = noise.draw(of_nodes, MAX_PICKS + 1)
        cuts_node = kind == NODE
        log_prob = _chosen(type_log_probs, kind) + torch.where(cuts_node, _chosen(of_nodes, node), 0.0)
        node = torch.where(cuts_node, node, 0)

        n_picks = _n_picks(kind)
        edges = torch.full((n, MAX_PICKS), -1, device=kind.device)
        rows: slice | Tensor = slice(None)
        for p in range(MAX_PICKS if noise.recorded is not None else int(n_picks.max())):
            if noise.recorded is None:
                rows = (n_picks > p).nonzero()[:, 0]
            t, m = task[rows], mask[rows]
            c = (
                context[:, rows]
                if p == 0
                else trunk.context_of(t, edge_rows[rows], node_rows[rows], present[rows])
            )
            of_edges = trunk.edge_log_probs(t, m, c)
            pick = noise.draw(of_edges, p)
            picks = n_picks[rows] > p
            log_prob[rows] += torch.where(picks, _chosen(of_edges, pick), 0.0)
            edges[rows, p] = torch.where(picks, pick, -1)
            place, really, parent = pick[:, None], picks[:, None], tables.parent[t, pick][:, None]
            mask[rows] = m.scatter(1, place, m.gather(1, place) & ~really)
            if tables.mask is None:
                edge_row, node_row = K + place, node_rows[rows].gather(1, parent) - 1
            else:
                alive[rows] = alive[rows].scatter_add(1, parent, -really.long())
                trunk.picked(p, t, pick, alive[rows].gather(1, parent))
                edge_row, node_row = torch.full_like(place, K + p), torch.full_like(parent, M + p)
            for of_state, at, new in ((edge_rows, place, edge_row), (node_rows, parent, node_row)):
                here = of_state[rows]
                of_state[rows] = here.scatter(1, at, torch.where(really, new, here.gather(1, at)))
            present[rows, 2] -= picks.to(present.dtype) / tables.n_edges[t]
        value = trunk.value(context)[0]
        return torch.cat([kind[:, None], node[:, None], edges], 1), log_prob, value

    @torch.no_grad()
    def value(self, tables: Tables, states: States) -> Tensor:
        """[n]"""
        return torch.cat([self._value(tables, part) for part in states.parts()])

    def _value(self, tables: Tables, states: States) -> Tensor:
        tables, states = states.own_tables(tables)
        trunk = _Trunk(self.weights(len(tables.edges)), tables)
        task, mask = states.task, states.mask
        rows = tables.edge_rows(task, mask), tables.node_rows(task, tables.alive_of_node(task, mask))
        return trunk.value(trunk.context_of(task, *rows, states.globals))[0]

    # ---- replaying --------------------------------------------------------------------------------------------------

    def evaluate(
        self, tables: Tables, states: States, kind: Tensor, edges: Tensor, node: Tensor
    ) -> Evaluation:
        """Log-probability, entropy and value of given actions: type [n], ordered picks [n, 30], node [n]."""
        tables, states = states.own_tables(tables)
        T = len(tables.edges)
        layout = Layout.of(
            states.task.cpu().numpy(), kind.cpu().numpy(), np.arange(len(kind)), T, kind.device
        )
        found = replay(self.weights(T), tables, Record.of(tables, states, kind, edges, node), layout)
        return Evaluation(*(x.flatten()[layout.place] for x in (found.log_prob, found.entropy, found.value)))

    # ---- on disk ----------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """config.json and model.safetensors, in the hub's manner."""
        write_atomically(
            folder / "model.safetensors", save({k: v.contiguous() for k, v in self.state_dict().items()})
        )
        write_atomically(folder / "config.json", (json.dumps(asdict(self.config), indent=1) + "\n").encode())

    def with_trades(self) -> Policy:
        """The policy, with exchanges for one more action if it knows none: at the bias with which they begin, whatever the state is."""
        if self.config.trades:
            return self
        grown = Policy(replace(self.config, trades=True)).to(next(self.parameters()))
        known, last = self.state_dict(), grown.type_head.second
        with torch.no_grad():
            last.weight[TRADE] = 0
        for name in ("weight", "bias"):
            known[f"type_head.second.{name}"] = torch.cat(
                [known[f"type_head.second.{name}"], getattr(last, name)[TRADE:]]
            )
        grown.load_state_dict(known)
        return grown

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu") -> Policy:
        config = made_of(PolicyConfig, read_json(folder / "config.json"))
        if config.width > MOST_WIDTH:
            raise ValueError(f"a width of {config.width:,}")
        policy = cls(config)
        policy.load_state_dict(load_file(folder / "model.safetensors"))
        return policy.to(device)


def apart(states: int, edges: int) -> list[slice]:
    """Of states of so many candidate edges, each with tables of its own, those that are taken together: as few and as equal parts as
    memory allows."""
    most = max(1, _EDGES_AT_ONCE // edges)
    parts = max(1, -(-states // most))
    n = -(-states // parts)
    return [slice(i * n, (i + 1) * n) for i in range(parts)]


def replay(weights: Weights, tables: Tables, record: Record, layout: Layout) -> Evaluation:
    """`Policy.evaluate` with weights of its own for every behaviour, on samples laid out by behaviour: all results are [T, B]."""
    group, B = torch.arange(len(tables.edges), device=layout.row.device), layout.n_samples
    life = record.life[layout.row]  # [T, U, K]
    alive = life > layout.pick[..., None]
    if tables.mask is None:
        trunk = _Trunk(weights, tables)
        edge_rows = tables.edge_rows(group[:, None], alive)
    else:  # one state each; an edge that was picked stands where its pick put it
        sample = layout.row[:, 0]
        trunk = _Trunk(
            weights,
            tables,
            tables.inputs_of_picks(group, record.edges[sample].clamp_min(0), record.alive[sample]),
        )
        at_first = tables.edge_rows(group, tables.mask)[:, None]
        edge_rows = torch.where(alive | (life == 0), at_first, life.long() + (life.shape[2] - 1))
    node_rows = record.node_rows[layout.row, layout.pick]  # [T, U, M]
    values = record.states.globals[layout.row]
    values[..., 2] -= layout.pick.to(values.dtype) / tables.n_edges[:, None]
    pooled_edges = kernels.Pool.apply(trunk.edge_table, edge_rows, group, layout.count)
    pooled_nodes = kernels.Pool.apply(trunk.node_table, node_rows, group, layout.count)
    context = trunk.context(group[:, None], pooled_edges, pooled_nodes, values)  # [T, U, H]
    own = context[:, :B]

    closed = record.states.closed
    type_log_probs = trunk.type_log_probs(
        own, alive[:, :B].sum(-1), None if closed is None else closed[layout.row[:, :B]]
    )
    kind = record.kind[layout.row[:, :B]]
    log_prob, entropy = _chosen(type_log_probs, kind), _entropy(type_log_probs)

    if layout.node_column.shape[1]:
        column, real = layout.node_column, layout.node_real.bool()
        sample = layout.row.gather(1, column)
        c = own.gather(1, column[..., None].expand(-1, -1, own.shape[-1]))
        # padding may choose among all nodes: there is always one, and its probability goes nowhere
        of_nodes = trunk.node_log_probs(
            group[:, None].expand_as(column), record.node_rows[sample, 0], c, free=~real
        )
        chosen = torch.where(real, _chosen(of_nodes, torch.where(real, record.node[sample], 0)), 0.0)
        log_prob = log_prob.scatter_add(1, column, chosen)
        entropy = entropy.scatter_add(1, column, torch.where(real, _entropy(of_nodes), 0.0))

    picks = layout.n_picks > 0
    edge = torch.where(picks, record.edges[layout.row, layout.pick], 0)
    first, shift, weight = trunk.edge_head(context)
    of_picks = kernels.Picks.apply(first, shift, weight, alive | ~picks[..., None], edge, group, layout.count)
    picked, pick_entropy = (torch.where(picks, x, 0.0) for x in of_picks)
    log_prob = log_prob.scatter_add(1, layout.owner, picked)
    entropy = entropy.scatter_add(1, layout.owner, pick_entropy / layout.n_picks.clamp_min(1))
    return Evaluation(log_prob, entropy, trunk.value(own))


class _Trunk:
    """The tables of embeddings for given weights, and what is read off them. States are [G, U] with weights of their own for every group,
    or [1, n] with everybody's."""

    def __init__(
        self, weights: Weights, tables: Tables, of_picks: tuple[Tensor, Tensor] | None = None
    ) -> None:
        """of_picks: the inputs of rows for picks, in tables of states; without them `picked` must fill these rows before they are read."""
        self.weights, self.tables = weights, tables
        inputs: list[Tensor] = [tables.edge_inputs, tables.node_inputs]
        if of_picks is not None:
            inputs = [torch.cat(both, 1) for both in zip(inputs, of_picks, strict=True)]
        spare = MAX_PICKS if tables.mask is not None and of_picks is None else 0
        self.edge_table = self._table("edge_embedding", inputs[0], spare)  # [T, > 2K or > K + 30, H]
        self.node_table = self._table("node_embedding", inputs[1], spare)

    def picked(self, p: int, task: Tensor, pick: Tensor, alive: Tensor) -> None:
        """Fills the rows of the p-th picks [n] of states `task` [n], which leave so many edges to their parents, `alive` [n, 1]."""
        tables = self.tables
        inputs = tables.inputs_of_picks(task, pick[:, None], alive)
        (K, M), names = (tables.edges.shape[1], tables.nodes.shape[1]), ("edge_embedding", "node_embedding")
        for table, row, name, x in zip(
            (self.edge_table, self.node_table), (K + p, M + p), names, inputs, strict=True
        ):
            table[:, row].index_copy_(0, task, self._mlp(name, x)[:, 0].relu())

    def _weight(self, name: str, groups: int) -> Tensor:
        weight = self.weights[name]
        return weight if len(weight) == groups else weight[:groups]

    def _mlp(self, name: str, x: Tensor) -> Tensor:
        for layer in ("first", "second"):
            weight, bias = (self._weight(f"{name}.{layer}.{part}", len(x)) for part in ("weight", "bias"))
            x = torch.baddbmm(bias[:, None], x.relu() if layer == "second" else x, weight.mT)
        return x

    def _table(self, name: str, inputs: Tensor, spare: int) -> Tensor:
        """Embeddings, `spare` rows for more, and then a row or more of zeros that stand for nothing: a multiple of eight, which matrix
        products like."""
        return nn.functional.pad(
            self._mlp(name, inputs).relu(), (0, 0, 0, spare + 8 - (inputs.shape[1] + spare) % 8)
        )

    def context(
        self, task: Tensor, edges: tuple[Tensor, Tensor], nodes: tuple[Tensor, Tensor], values: Tensor
    ) -> Tensor:
        """[G, U, H] from sum and maximum over edges and over nodes."""
        n_edges, n_nodes = self.tables.n_edges[task][..., None], self.tables.n_nodes[task][..., None]
        pooled = torch.cat([edges[0] / n_edges, edges[1], nodes[0] / n_nodes, nodes[1], values], -1)
        return self._mlp("context", pooled).relu()

    def context_of(self, task: Tensor, edge_rows: Tensor, node_rows: Tensor, values: Tensor) -> Tensor:
        """[1, n, H] for states [n]."""
        one = torch.ones_like(task)
        edges = kernels.pool(self.edge_table, edge_rows[:, None], task, one)
        nodes = kernels.pool(self.node_table, node_rows[:, None], task, one)
        e_sum, e_max, n_sum, n_max = (x.transpose(0, 1) for x in (*edges[:2], *nodes[:2]))
        return self.context(task[None], (e_sum, e_max), (n_sum, n_max), values[None])

    def type_log_probs(self, context: Tensor, alive: Tensor, closed: Tensor | None) -> Tensor:
        """[G, U, types] no batch larger than what is alive, no node cut when nothing is, nothing closed; stopping is always legal."""
        score = self._mlp("type_head", context)
        needs = _constant(NEEDS[: score.shape[-1]], context.device)
        illegal = alive[..., None] < needs
        if closed is not None:
            illegal = illegal | closed[..., : score.shape[-1]]
        return score.masked_fill(illegal, -math.inf).log_softmax(-1)

    def value(self, context: Tensor) -> Tensor:
        return self._mlp("value_head", context)[..., 0]

    def _shift(self, head: str, context: Tensor) -> Tensor:
        """[G, U, H] what the context adds to the first layer of the edge or node head."""
        weight, bias = (self._weight(f"{head}.first.{part}", len(context)) for part in ("weight", "bias"))
        return torch.baddbmm(bias[:, None], context, weight[..., context.shape[-1] :].mT)

    @cached_property
    def _edge_first(self) -> Tensor:
        """[T, H, K] what the alive edges add to it."""
        K, H = self.tables.edges.shape[1], self.edge_table.shape[2]
        return self.weights["edge_head.first.weight"][..., :H] @ self.edge_table[:, :K].mT

    def edge_head(self, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """First layer on the edges [T, H, K] and on the contexts [G, U, H], to be added; second layer [G, H]. The second layer's bias
        raises all scores alike: no probability depends on it."""
        weight = self._weight("edge_head.second.weight", len(context))
        return self._edge_first, self._shift("edge_head", context), weight[:, 0]

    def edge_log_probs(self, task: Tensor, mask: Tensor, context: Tensor) -> Tensor:
        """[n, K] over the alive edges, for states [n] with contexts [1, n, H]."""
        first, shift, weight = self.edge_head(context)
        score = kernels.scores(
            first, shift.transpose(0, 1), weight.expand(len(task), -1), task, torch.ones_like(task)
        )
        return score[:, 0].masked_fill(~mask, -math.inf).log_softmax(-1)

    def node_log_probs(
        self, task: Tensor, rows: Tensor, context: Tensor, free: Tensor | None = None
    ) -> Tensor:
        """[G, U, M] over the components with an alive edge, for states of `task` [G, U] with node rows [G, U, M]. Where `free` [G, U] is
        set over all of them."""
        T, R, H = self.node_table.shape
        first = (self.node_table @ self.weights["node_head.first.weight"][..., :H].mT).view(T * R, H)
        index = task[..., None] * R + rows
        of_rows = first.index_select(0, index.flatten()).view(*rows.shape, H)
        hidden = (of_rows + self._shift("node_head", context)[:, :, None]).relu()
        second = self._weight("node_head.second.weight", len(context))
        score = (hidden.flatten(1, 2) @ second.mT).view(rows.shape)
        illegal = self.tables.without_edges(task, rows)
        if free is not None:
            illegal = illegal & ~free[..., None]
        return score.masked_fill(illegal, -math.inf).log_softmax(-1)


class _Noise:
    """Gumbel noise, which makes the largest of noisy log-probabilities a draw: fresh from the generator, which lives where the numbers
    are, or recorded beforehand."""

    def __init__(
        self, generator: torch.Generator | None = None, greedy: bool = False, recorded: Tensor | None = None
    ) -> None:
        self.generator, self.greedy, self.recorded = generator, greedy, recorded

    def draw(self, log_probs: Tensor, number: int) -> Tensor:
        if self.recorded is not None:
            log_probs = log_probs + self.recorded[number, :, : log_probs.shape[-1]]
        elif not self.greedy:
            log_probs = log_probs - torch.empty_like(log_probs).exponential_(generator=self.generator).log_()
        return log_probs.argmax(-1)


class _ActGraph:
    """`Policy._act` for so many states and these tables as one CUDA graph: its 30 picks are thousands of small kernels, which take the
    host longer to launch than the device to run. It reads the weights where they are, so it follows training."""

    def __init__(self, policy: Policy, tables: Tables, states: States) -> None:
        self.tables = tables
        self.states = states.clone()
        width = max(states.mask.shape[1], tables.nodes.shape[1], len(ACTION_TYPES))
        self.noise = torch.zeros(MAX_PICKS + 2, len(states), width, device=states.mask.device)
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # compiles what must be compiled
            policy._act(tables, self.states, _Noise(recorded=self.noise))
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = policy._act(tables, self.states, _Noise(recorded=self.noise))

    def __call__(
        self, states: States, generator: torch.Generator | None, greedy: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        self.states.copy_(states)
        if greedy:
            self.noise.zero_()
        else:
            self.noise.exponential_(generator=generator).log_().neg_()
        self.graph.replay()
        decided, log_prob, value = self.result
        return decided.clone(), log_prob.clone(), value.clone()


@lru_cache
def _constant(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """Made once: a CUDA graph cannot wait for the host."""
    return torch.tensor(numbers, device=device)


def _n_picks(kind: Tensor) -> Tensor:
    return _constant(BATCH_SIZES, kind.device)[kind]


def _chosen(log_probs: Tensor, choice: Tensor) -> Tensor:
    return log_probs.gather(-1, choice[..., None])[..., 0]


def _entropy(log_probs: Tensor) -> Tensor:
    return -(log_probs.exp() * log_probs.masked_fill(log_probs == -math.inf, 0.0)).sum(-1)
