"""`policy.py` for many states at once, fast and in little memory, with the same results.

The tables of embeddings are computed once per set of weights (`Trunk`); acting and replaying look up their rows. What has to be computed
for every state and every edge is in `kernels.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mechrl.agents.paper import kernels
from mechrl.agents.paper.env import BATCH_SIZES, MAX_PICKS, NEEDS, NODE, PRESENT, Actions
from mechrl.agents.paper.policy import Policy
from mechrl.agents.paper.policy_tables import States, Tables

if TYPE_CHECKING:
    from mechrl.agents.paper.policy_graph import ActGraph

Weights = dict[str, Tensor]  # the policy's parameters, with a leading axis


def copies(policy: Policy, n: int) -> Weights:
    """`n` copies of the parameters, as views."""
    return {name: p.expand(n, *p.shape) for name, p in policy.named_parameters()}


@dataclass(frozen=True)
class Choice:
    """Sampled actions, with their log-probabilities and the states' values."""

    actions: Actions
    log_prob: Tensor  # [n]
    value: Tensor  # [n]


# ---- the network ----------------------------------------------------------------------------------------------------


class Trunk:
    """The tables of embeddings for given weights, and functions of them. `groups` [G] is the task of each copy of the weights.
    States are [G, U], or [1, n] with any groups if all copies are the same."""

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
        """[G, H, K] what the alive edges add to the first layer."""
        rows = self.edges.rows[:, : self.K]
        return self.weights["edge_head.first.weight"][..., : rows.shape[2]] @ rows.mT

    @cached_property
    def _node_first(self) -> Tensor:
        """[G, R, H] the same for the components' rows."""
        rows = self.nodes.padded
        return rows @ self.weights["node_head.first.weight"][..., : rows.shape[2]].mT

    def edge_head(self, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The first layer's terms for the edges [G, H, K] and for the contexts [G, U, H], to be added, and the second layer [G, H]. The
        second layer's bias is omitted: it shifts all scores equally, so no probability depends on it."""
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
    """Embeddings [G, R, H]. The kernels need non-negative rows and a padding row of zeros, so `_raised` is the table minus a constant below
    all its entries; pooling adds the constant again."""

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
        """Appends one or more rows of zeros, up to a multiple of eight, which is fast in matrix products."""
        return nn.functional.pad(rows, (0, 0, 0, 8 - rows.shape[1] % 8))

    def pool(self, rows: Tensor, group: Tensor, count: Tensor, n: Tensor) -> Pooled:
        """[G, U, H] each, of the rows [G, U, I], n [G] of which are real."""
        total, top = kernels.SumAndMax.apply(self._raised, rows, group, count)  # type: ignore[no-untyped-call]
        low = self._low[group]
        return total + n[group, None, None] * low, top + low


# ---- acting ---------------------------------------------------------------------------------------------------------


class Noise:
    """Gumbel noise: the largest of the noisy log-probabilities is a sample. Drawn from the generator, absent (`greedy`), or recorded in
    advance, [picks + 2, n, width]."""

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
    """[n, 32] type, component and picks; log-probabilities; values. With `noise.recorded` host and device are never synchronised: the loop
    always has its full length, and rows without a pick left are masked out."""
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
    """A policy that acts on given tables. Call `refresh` after its weights change: on the CPU the tables of embeddings are cached."""

    def __init__(self, policy: Policy, tables: Tables) -> None:
        self.policy, self.tables = policy, tables
        self._graphs: dict[int, ActGraph] = {}  # by number of states
        self.refresh()

    def refresh(self) -> None:
        self.trunk = new_trunk(self.policy, self.tables)

    @torch.no_grad()
    def act(self, states: States, generator: torch.Generator | None = None, greedy: bool = False) -> Choice:
        """Samples an action for each state; `greedy` takes the most likely type and picks instead."""
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
    """The trunk of the policy's current weights, for all tasks."""
    T = len(tables.edges)
    return Trunk(copies(policy, T), tables, torch.arange(T, device=tables.edges.device))


@lru_cache
def _constant(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """Cached: a CUDA graph cannot wait for the host."""
    return torch.tensor(numbers, device=device)


def n_picks_of(kind: Tensor) -> Tensor:
    return _constant(BATCH_SIZES, kind.device)[kind]


def chosen(log_probs: Tensor, choice: Tensor) -> Tensor:
    return log_probs.gather(-1, choice[..., None])[..., 0]
