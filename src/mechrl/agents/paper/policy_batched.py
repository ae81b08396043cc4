"""`policy.py` for many states at once, fast and in little memory: the same numbers and the same gradients.

Tables: an edge is alive or dead, a component has 0 … degree edges left, and nothing else of them changes. So each behaviour has one table
of embeddings, with 2K rows for edges and K + M for components, and a state is a choice of rows. What must be computed for every state
and every edge is in `kernels.py`.

Replay: before its p-th pick a batch cut stands in a state of its own, the mask without the p − 1 edges picked so far. The picks are known,
so all these states are evaluated together; there is no loop over picks.

Gradients per behaviour: the weights carry a leading axis, one copy per behaviour, and the samples are sorted by behaviour. One backward
pass then gives each behaviour's gradient, which is what PCGrad needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from mechrl.agents.paper import kernels
from mechrl.agents.paper.env import BATCH_SIZES, MAX_PICKS, NEEDS, NODE, PRESENT, Actions, Task
from mechrl.agents.paper.features import N_EDGE, N_NODE
from mechrl.agents.paper.policy import Policy, entropy

if TYPE_CHECKING:
    from mechrl.agents.paper.policy_graph import ActGraph

Weights = dict[str, Tensor]  # the policy's parameters, with a leading axis


def copies(policy: Policy, n: int) -> Weights:
    """The parameters, n times, as views."""
    return {name: p.expand(n, *p.shape) for name, p in policy.named_parameters()}


@dataclass(frozen=True)
class Tables:
    """The tasks' features on the device, padded to the widest: T tasks, K edges, M components."""

    edges: Tensor  # [T, K, 16]
    nodes: Tensor  # [T, M, 7]
    parent: Tensor  # [T, K] int64; padding points at component 0 and is never alive
    n_edges: Tensor  # [T]
    n_nodes: Tensor  # [T]
    degree: Tensor  # [T, M] candidate edges out of each component, at least 1
    n_rows: int  # of the components' table: K + M of the largest task

    @staticmethod
    def of(tasks: Sequence[Task], device: torch.device | str = "cpu") -> Tables:
        T, K, M = len(tasks), max(t.K for t in tasks), max(t.M for t in tasks)
        edges, nodes = np.zeros((T, K, N_EDGE), np.float32), np.zeros((T, M, N_NODE), np.float32)
        parent, degree = np.zeros((T, K), np.int64), np.ones((T, M), np.float32)
        for i, task in enumerate(tasks):
            edges[i, : task.K], nodes[i, : task.M] = task.features.edges, task.features.nodes
            parent[i, : task.K] = task.features.parent
            degree[i, : task.M] = np.bincount(task.features.parent)
        sizes = np.array([t.K for t in tasks]), np.array([t.M for t in tasks])
        there = [torch.from_numpy(a).to(device) for a in (edges, nodes, parent, *sizes, degree)]
        return Tables(*there, max(t.K + t.M for t in tasks))  # type: ignore[call-arg, arg-type]  # six tensors and a number

    @property
    def K(self) -> int:
        return self.edges.shape[1]

    @cached_property
    def real_edges(self) -> Tensor:
        return torch.arange(self.K, device=self.edges.device) < self.n_edges[:, None]  # [T, K]

    @cached_property
    def real_nodes(self) -> Tensor:
        return torch.arange(self.nodes.shape[1], device=self.nodes.device) < self.n_nodes[:, None]  # [T, M]

    # ---- what the embeddings are computed from, row by row ----------------------------------------------------------

    @cached_property
    def edge_inputs(self) -> Tensor:
        """[T, 2K, 17] every edge alive, then every edge dead."""
        flag = torch.ones_like(self.edges[..., :1])
        return torch.cat([torch.cat([self.edges, flag], -1), torch.cat([self.edges, 0 * flag], -1)], 1)

    @cached_property
    def node_inputs(self) -> Tensor:
        """[T, R, 8] every component with 0 … degree edges left."""
        ends = self._node_sizes.cumsum(1)
        row = torch.arange(self.n_rows, device=ends.device).expand(len(ends), -1).contiguous()
        node = torch.searchsorted(ends, row, right=True).clamp_max(ends.shape[1] - 1)
        fraction = (row - self._node_start.gather(1, node)) / self.degree.gather(1, node)
        of_node = self.nodes.gather(1, node[..., None].expand(-1, -1, N_NODE))
        return torch.cat([of_node, fraction[..., None]], -1)

    @cached_property
    def _node_sizes(self) -> Tensor:
        return torch.where(self.real_nodes, self.degree.long() + 1, 0)

    @cached_property
    def _node_start(self) -> Tensor:
        """[T, M] where a component's rows begin."""
        return self._node_sizes.cumsum(1) - self._node_sizes

    # ---- which rows states consist of -------------------------------------------------------------------------------

    def edge_rows(self, task: Tensor, mask: Tensor) -> Tensor:
        """[..., K] for masks [..., K]; `task` goes with the leading dimensions."""
        each = torch.arange(self.K, device=mask.device)
        return torch.where(mask, each, torch.where(self.real_edges[task], each + self.K, 2 * self.K))

    def node_rows(self, task: Tensor, alive: Tensor) -> Tensor:
        """[n, M] for states with so many edges left in each component, `alive` [n, M]."""
        return torch.where(self.real_nodes[task], self._node_start[task] + alive, self.n_rows)

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

    @staticmethod
    def of(task: np.ndarray, mask: np.ndarray, values: np.ndarray, device: torch.device | str) -> States:
        """From an environment's arrays."""
        return States(*(torch.from_numpy(x.copy()).to(device) for x in (task, mask, values)))

    def __len__(self) -> int:
        return len(self.task)

    def __getitem__(self, index: Tensor | slice) -> States:
        return States(self.task[index], self.mask[index], self.globals[index])

    @staticmethod
    def cat(many: Sequence[States]) -> States:
        return States(*(torch.cat([getattr(s, f.name) for s in many]) for f in fields(States)))


@dataclass(frozen=True)
class Choice:
    """Sampled actions, with their log-probabilities and the states' values."""

    actions: Actions
    log_prob: Tensor  # [n]
    value: Tensor  # [n]


@dataclass(frozen=True)
class Evaluation:
    log_prob: Tensor  # [n]
    type_entropy: Tensor  # [n]
    pick_entropy: Tensor  # [n] of the component, or the mean over a batch cut's picks
    value: Tensor  # [n]


# ---- the network ----------------------------------------------------------------------------------------------------


class Trunk:
    """The tables of embeddings for given weights, and what is read off them. `groups` [G] says whose table each copy of the weights is for.
    States are [G, U], or [1, n] of any group where all copies are the same."""

    def __init__(self, weights: Weights, tables: Tables, groups: Tensor) -> None:
        self.weights, self.K = weights, tables.K
        self.n_edges, self.n_nodes = tables.n_edges[groups], tables.n_nodes[groups]
        self.edges = _Table(self._mlp("edge_embedding", tables.edge_inputs[groups]))  # rows 0 … 2K − 1
        self.nodes = _Table(self._mlp("node_embedding", tables.node_inputs[groups]))

    def _weight(self, name: str, groups: int) -> Tensor:
        weight = self.weights[name]
        return weight if len(weight) == groups else weight[:groups]

    def _mlp(self, name: str, x: Tensor) -> Tensor:
        for layer in ("first", "second"):
            weight, bias = (self._weight(f"{name}.{layer}.{part}", len(x)) for part in ("weight", "bias"))
            x = torch.baddbmm(bias[:, None], x.relu() if layer == "second" else x, weight.mT)
        return x

    def context(self, group: Tensor, edges: Pooled, nodes: Pooled, values: Tensor) -> Tensor:
        """[G, U, H] from sums and maxima over edges and over components."""
        n_edges, n_nodes = self.n_edges[group][..., None], self.n_nodes[group][..., None]
        pooled = torch.cat([edges[0] / n_edges, edges[1], nodes[0] / n_nodes, nodes[1], values], -1)
        return self._mlp("context", pooled)

    def pool_edges(self, rows: Tensor, group: Tensor, count: Tensor) -> Pooled:
        return self.edges.pool(rows, group, count, self.n_edges)

    def pool_nodes(self, rows: Tensor, group: Tensor, count: Tensor) -> Pooled:
        return self.nodes.pool(rows, group, count, self.n_nodes)

    def type_log_probs(self, context: Tensor, alive: Tensor) -> Tensor:
        """[G, U, 6]"""
        illegal = alive[..., None] < _constant(NEEDS, context.device)
        return self._mlp("type_head", context).masked_fill(illegal, -math.inf).log_softmax(-1)

    def value(self, context: Tensor) -> Tensor:
        return self._mlp("value_head", context)[..., 0]

    def _shift(self, head: str, context: Tensor) -> Tensor:
        """[G, U, H] what the context adds to the first layer of the edge or node head."""
        weight, bias = (self._weight(f"{head}.first.{part}", len(context)) for part in ("weight", "bias"))
        return torch.baddbmm(bias[:, None], context, weight[..., context.shape[-1] :].mT)

    @cached_property
    def _edge_first(self) -> Tensor:
        """[G, H, K] what the alive edges add to it."""
        rows = self.edges.rows[:, : self.K]
        return self.weights["edge_head.first.weight"][..., : rows.shape[2]] @ rows.mT

    @cached_property
    def _node_first(self) -> Tensor:
        """[G, R, H] the same of the components' rows."""
        rows = self.nodes.padded
        return rows @ self.weights["node_head.first.weight"][..., : rows.shape[2]].mT

    def edge_head(self, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """First layer on the edges [G, H, K] and on the contexts [G, U, H], to be added; second layer [G, H]. Its bias raises all
        scores alike: no probability depends on it."""
        weight = self._weight("edge_head.second.weight", len(context))
        return self._edge_first, self._shift("edge_head", context), weight[:, 0]

    def edge_log_probs(self, task: Tensor, mask: Tensor, context: Tensor) -> Tensor:
        """[n, K] over the alive edges, for states [n] with contexts [1, n, H]."""
        first, shift, weight = self.edge_head(context)
        shift, weight = shift.transpose(0, 1), weight.expand(len(task), -1)
        score = kernels.scores(first, shift, weight, task, torch.ones_like(task))
        return score[:, 0].masked_fill(~mask, -math.inf).log_softmax(-1)

    def node_log_probs(self, group: Tensor, rows: Tensor, context: Tensor, legal: Tensor) -> Tensor:
        """[G, U, M] over the `legal` components, for states of `group` [G, U] with rows [G, U, M]."""
        _, R, H = self._node_first.shape
        index = group[..., None] * R + rows
        of_rows = self._node_first.view(-1, H).index_select(0, index.flatten()).view(*rows.shape, H)
        hidden = (of_rows + self._shift("node_head", context)[:, :, None]).relu()
        second = self._weight("node_head.second.weight", len(context))
        score = (hidden.flatten(1, 2) @ second.mT).view(rows.shape)
        return score.masked_fill(~legal, -math.inf).log_softmax(-1)


Pooled = tuple[Tensor, Tensor]  # sum and maximum


class _Table:
    """Embeddings [G, R, H]. The kernels want rows that are not negative and one of zeros, which stands for nothing: `_raised` is the
    table minus a constant that lies below everything in it, which pooling adds again."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self._low = rows.detach().amin(1, keepdim=True) - 1

    @cached_property
    def padded(self) -> Tensor:
        return self._pad(self.rows)

    @cached_property
    def _raised(self) -> Tensor:
        return self._pad(self.rows - self._low)

    def _pad(self, rows: Tensor) -> Tensor:
        """A row or more of zeros: a multiple of eight, which matrix products like."""
        return nn.functional.pad(rows, (0, 0, 0, 8 - rows.shape[1] % 8))

    def pool(self, rows: Tensor, group: Tensor, count: Tensor, n: Tensor) -> Pooled:
        """[G, U, H] each, of the rows [G, U, I], n [G] of which are real."""
        total, top = kernels.Pool.apply(self._raised, rows, group, count)
        low = self._low[group]
        return total + n[group, None, None] * low, top + low


# ---- acting ---------------------------------------------------------------------------------------------------------


class Noise:
    """Gumbel noise, which makes the largest of noisy log-probabilities a draw: fresh from the generator, none (`greedy`), or recorded
    beforehand, [picks + 2, n, width]."""

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


def act(trunk: Trunk, tables: Tables, states: States, noise: Noise) -> tuple[Tensor, Tensor, Tensor]:
    """[n, 32] type, component and picks; log-probabilities; values. With `noise.recorded` host and device exchange no word: the loop is
    always the longest, and rows that are done with it look on."""
    task, n = states.task, len(states)
    mask, present, one = states.mask.clone(), states.globals.clone(), torch.ones_like(states.task)
    alive = tables.alive_of_node(task, mask)
    edge_rows, node_rows = tables.edge_rows(task, mask), tables.node_rows(task, alive)
    nodes = trunk.pool_nodes(node_rows[:, None], task, one)

    def context_of(rows: slice | Tensor) -> Tensor:
        """[1, n, H]"""
        edges = trunk.pool_edges(edge_rows[rows][:, None], task[rows], one[rows])
        pooled = [x.transpose(0, 1) for x in (*edges, *(x[rows] for x in nodes))]
        return trunk.context(
            task[rows][None], (pooled[0], pooled[1]), (pooled[2], pooled[3]), present[rows][None]
        )

    rows: slice | Tensor = slice(None)
    context = context_of(rows)
    value = trunk.value(context)[0]
    of_types = trunk.type_log_probs(context, mask.sum(1)[None])[0]
    kind = noise.draw(of_types, MAX_PICKS)
    of_nodes = trunk.node_log_probs(task[None], node_rows[None], context, (alive > 0)[None])[0]
    node, cuts_node = noise.draw(of_nodes, MAX_PICKS + 1), kind == NODE
    log_prob = chosen(of_types, kind) + torch.where(cuts_node, chosen(of_nodes, node), 0.0)
    node = torch.where(cuts_node, node, 0)

    n_picks = n_picks_of(kind)
    edges = torch.full((n, MAX_PICKS), -1, device=kind.device)
    for p in range(MAX_PICKS if noise.recorded is not None else int(n_picks.max())):
        if noise.recorded is None:
            rows = (n_picks > p).nonzero()[:, 0]
        t, m = task[rows], mask[rows]
        of_edges = trunk.edge_log_probs(t, m, context[:, rows] if p == 0 else context_of(rows))
        pick, picks = noise.draw(of_edges, p), n_picks[rows] > p
        log_prob[rows] += torch.where(picks, chosen(of_edges, pick), 0.0)
        edges[rows, p] = torch.where(picks, pick, -1)
        place, really = pick[:, None], picks[:, None]
        mask[rows] = m.scatter(1, place, m.gather(1, place) & ~really)
        here = edge_rows[rows]
        edge_rows[rows] = here.scatter(1, place, torch.where(really, tables.K + place, here.gather(1, place)))
        present[rows, PRESENT] -= picks.to(present.dtype) / tables.n_edges[t]
    return torch.cat([kind[:, None], node[:, None], edges], 1), log_prob, value


class Actor:
    """A policy that acts on some tables. `refresh` after its weights have changed: on the CPU the tables of embeddings are kept."""

    def __init__(self, policy: Policy, tables: Tables) -> None:
        self.policy, self.tables = policy, tables
        self._graphs: dict[int, ActGraph] = {}  # by number of states
        self.refresh()

    def refresh(self) -> None:
        self.trunk = new_trunk(self.policy, self.tables)

    @torch.no_grad()
    def act(self, states: States, generator: torch.Generator | None = None, greedy: bool = False) -> Choice:
        """Draws an action for each state; `greedy` takes the likeliest type and picks instead."""
        if kernels.available(self.tables.edges):
            from mechrl.agents.paper.policy_graph import ActGraph

            if len(states) not in self._graphs:
                self._graphs[len(states)] = ActGraph(self.policy, self.tables, states)
            decided, log_prob, value = self._graphs[len(states)](states, generator, greedy)
        else:
            decided, log_prob, value = act(self.trunk, self.tables, states, Noise(generator, greedy))
        host = decided.cpu().numpy()
        return Choice(Actions(host[:, 0], host[:, 2:], host[:, 1]), log_prob, value)

    @torch.no_grad()
    def value(self, states: States) -> Tensor:
        """[n]"""
        tables, trunk, task, one = self.tables, self.trunk, states.task, torch.ones_like(states.task)
        node_rows = tables.node_rows(task, tables.alive_of_node(task, states.mask))
        edges = trunk.pool_edges(tables.edge_rows(task, states.mask)[:, None], task, one)
        nodes = trunk.pool_nodes(node_rows[:, None], task, one)
        e, n = (tuple(x.transpose(0, 1) for x in pooled) for pooled in (edges, nodes))
        return trunk.value(trunk.context(task[None], (e[0], e[1]), (n[0], n[1]), states.globals[None]))[0]


@torch.no_grad()
def new_trunk(policy: Policy, tables: Tables) -> Trunk:
    """Of the policy as it is now, for all tasks."""
    T = len(tables.edges)
    return Trunk(copies(policy, T), tables, torch.arange(T, device=tables.edges.device))


# ---- replaying ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """States and the actions taken there, and from both every state that was passed through while picking."""

    states: States  # [N]
    kind: Tensor  # [N]
    edges: Tensor  # [N, 30]
    node: Tensor  # [N]
    life: Tensor  # [N, K] int8: before its p-th pick, p = 0 …, edge k of a sample is alive iff life > p
    node_alive: Tensor  # [N, M]

    @staticmethod
    def of(tables: Tables, states: States, kind: Tensor, edges: Tensor, node: Tensor) -> Record:
        N, K = states.mask.shape
        number = torch.arange(MAX_PICKS, device=kind.device)
        picked = number < n_picks_of(kind)[:, None]  # [N, 30]
        life = torch.where(states.mask, 127, 0).to(torch.int8)
        life = torch.cat([life, life.new_zeros(N, 1)], 1)  # a column for picks that are none
        life.scatter_(1, torch.where(picked, edges, K), (number + 1).to(torch.int8).expand(N, -1))
        return Record(states, kind, edges, node, life[:, :K], tables.alive_of_node(states.task, states.mask))


@dataclass(frozen=True)
class Layout:
    """Where samples of a record stand when they are sorted by behaviour: [G, U] states, of which the first B columns are the samples
    themselves (before their first pick) and the others the states before later picks. Short rows are padded with sample 0. Only the
    behaviours that occur have a row."""

    groups: Tensor  # [G] which behaviours these are
    row: Tensor  # [G, U] of the record
    pick: Tensor  # [G, U] number p of the pick
    n_picks: Tensor  # [G, U] of the sample; 0 for padding
    owner: Tensor  # [G, U] column of the state's sample, < B
    real: Tensor  # [G, B] 1 for a sample, 0 for padding
    count: Tensor  # [G] columns up to the last that is not padding
    samples: Tensor  # [G] of each behaviour
    node_column: Tensor  # [G, N] the samples that cut a node, padded with column 0 ...
    node_real: Tensor  # [G, N] ... and 0 here
    place: Tensor  # [n] where the samples are in [G · B], in the order in which they were given

    @property
    def n_samples(self) -> int:
        """B"""
        return self.real.shape[1]

    @staticmethod
    def of(task: np.ndarray, kind: np.ndarray, rows: np.ndarray, device: torch.device | str) -> Layout:
        """For the samples `rows`; `task` and `kind` are the whole record's. On the host, and one transfer."""
        groups, group = np.unique(task[rows], return_inverse=True)
        kind, G = kind[rows], len(groups)
        n_picks = np.array(BATCH_SIZES)[kind]
        samples = np.bincount(group, minlength=G)
        column, B = _columns(group, G)
        later = np.repeat(np.arange(len(rows)), np.maximum(n_picks - 1, 0))
        pick = np.arange(len(later)) - np.searchsorted(later, later) + 1
        place, n_later = _columns(group[later], G)
        U = -(-(B + n_later) // 16) * 16  # the kernels read sixteen numbers at a time
        table = np.zeros((4, G, U), np.int64)
        table[:, group, column] = np.stack([rows, 0 * rows, n_picks, column])
        table[:, group[later], B + place] = np.stack([rows[later], pick, n_picks[later], column[later]])
        real = np.zeros((G, B), np.int64)
        real[group, column] = 1
        of_later = np.bincount(group[later], minlength=G)
        count = np.where(of_later > 0, B + of_later, samples)
        cuts_node = np.flatnonzero(kind == NODE)
        place, width = _columns(group[cuts_node], G)
        nodes = np.zeros((2, G, width), np.int64)
        nodes[:, group[cuts_node], place] = np.stack([column[cuts_node], np.ones_like(cuts_node)])
        parts = (groups, *table, real, count, samples, *nodes, group * B + column)
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


def replay(weights: Weights, tables: Tables, record: Record, layout: Layout) -> Evaluation:
    """What `Policy.decide` says of the actions that were taken: [G, B] each, with weights [G, ...] of its own for every behaviour."""
    group, B = torch.arange(len(layout.groups), device=layout.row.device), layout.n_samples
    trunk = Trunk(weights, tables, layout.groups)
    own_row = layout.row[:, :B]
    alive = record.life[layout.row] > layout.pick[..., None]  # [G, U, K]
    node_alive = record.node_alive[own_row]  # [G, B, M]
    M = node_alive.shape[2]
    of_sample = layout.groups.repeat_interleave(B)
    node_rows = tables.node_rows(of_sample, node_alive.view(-1, M)).view(-1, B, M)
    values = record.states.globals[layout.row]
    values[..., PRESENT] -= layout.pick.to(values.dtype) / trunk.n_edges[:, None]

    edges = trunk.pool_edges(tables.edge_rows(layout.groups[:, None], alive), group, layout.count)
    own_nodes = trunk.pool_nodes(node_rows, group, layout.samples)  # as they are before the first pick
    owner = layout.owner[..., None].expand(-1, -1, own_nodes[0].shape[2])
    nodes = own_nodes[0].gather(1, owner), own_nodes[1].gather(1, owner)
    context = trunk.context(group[:, None], edges, nodes, values)  # [G, U, H]
    own = context[:, :B]

    of_types = trunk.type_log_probs(own, alive[:, :B].sum(-1))
    kind = record.kind[own_row]
    log_prob, pick_entropy = chosen(of_types, kind), torch.zeros_like(of_types[..., 0])

    if layout.node_column.shape[1]:
        column, real = layout.node_column, layout.node_real.bool()
        wide = column[..., None].expand(-1, -1, M)
        c = own.gather(1, column[..., None].expand(-1, -1, own.shape[-1]))
        # padding may choose among all components: there is always one, and its probability goes nowhere
        legal = (node_alive.gather(1, wide) > 0) | ~real[..., None]
        of_nodes = trunk.node_log_probs(group[:, None].expand_as(column), node_rows.gather(1, wide), c, legal)
        node = torch.where(real, record.node[own_row.gather(1, column)], 0)
        log_prob = log_prob.scatter_add(1, column, torch.where(real, chosen(of_nodes, node), 0.0))
        pick_entropy = pick_entropy.scatter_add(1, column, torch.where(real, entropy(of_nodes), 0.0))

    picks = layout.n_picks > 0
    edge = torch.where(picks, record.edges[layout.row, layout.pick], 0)
    first, shift, weight = trunk.edge_head(context)
    of_picks = kernels.Picks.apply(first, shift, weight, alive | ~picks[..., None], edge, group, layout.count)
    picked, spread = (torch.where(picks, x, 0.0) for x in of_picks)
    log_prob = log_prob.scatter_add(1, layout.owner, picked)
    pick_entropy = pick_entropy.scatter_add(1, layout.owner, spread / layout.n_picks.clamp_min(1))
    return Evaluation(log_prob, entropy(of_types), pick_entropy, trunk.value(own))


def evaluate(policy: Policy, tables: Tables, states: States, actions: Actions) -> Evaluation:
    """`replay` of given actions with one set of weights: [n] each."""
    there = [torch.from_numpy(x).to(states.task.device) for x in (actions.type, actions.edges, actions.node)]
    record = Record.of(tables, states, *there)
    n = np.arange(len(states))
    layout = Layout.of(states.task.cpu().numpy(), actions.type, n, states.task.device)
    found = replay(copies(policy, len(layout.groups)), tables, record, layout)
    return Evaluation(*(getattr(found, f.name).flatten()[layout.place] for f in fields(Evaluation)))


@lru_cache
def _constant(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """Made once: a CUDA graph cannot wait for the host."""
    return torch.tensor(numbers, device=device)


def n_picks_of(kind: Tensor) -> Tensor:
    return _constant(BATCH_SIZES, kind.device)[kind]


def chosen(log_probs: Tensor, choice: Tensor) -> Tensor:
    return log_probs.gather(-1, choice[..., None])[..., 0]
