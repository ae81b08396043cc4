"""Evaluates given actions as `Policy.decide` does, many at once, with gradients.

Before its p-th pick, a batch cut is in a state of its own: the mask without the p − 1 edges picked so far. The picks are known, so all
these states are evaluated together, without a loop over picks.

Gradients per behaviour: the weights have a leading axis, one copy per behaviour, and the samples are sorted by behaviour. One backward
pass then gives each behaviour's gradient, which PCGrad needs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from mechrl.agents.paper import kernels
from mechrl.agents.paper.env import BATCH_SIZES, MAX_PICKS, NODE, PRESENT, Actions
from mechrl.agents.paper.policy import Policy, entropy
from mechrl.agents.paper.policy_batched import Trunk, Weights, chosen, copies, n_picks_of
from mechrl.agents.paper.policy_tables import States, Tables


@dataclass(frozen=True)
class Evaluation:
    log_prob: Tensor  # [n]
    type_entropy: Tensor  # [n]
    pick_entropy: Tensor  # [n] of the component, or the mean over a batch cut's picks
    value: Tensor  # [n]


@dataclass(frozen=True)
class Transitions:
    """States and the actions taken there, and from both every state that was passed through while picking."""

    states: States  # [N]
    kind: Tensor  # [N]
    edges: Tensor  # [N, 30]
    node: Tensor  # [N]
    life: Tensor  # [N, K] int8: before its p-th pick, p = 0 …, edge k of a sample is alive iff life > p
    node_alive: Tensor  # [N, M]

    @staticmethod
    def of(tables: Tables, states: States, kind: Tensor, edges: Tensor, node: Tensor) -> Transitions:
        N, K = states.mask.shape
        number = torch.arange(MAX_PICKS, device=kind.device)
        picked = number < n_picks_of(kind)[:, None]  # [N, 30]
        life = torch.where(states.mask, 127, 0).to(torch.int8)
        life = torch.cat([life, life.new_zeros(N, 1)], 1)  # a column for padded picks
        life.scatter_(1, torch.where(picked, edges, K), (number + 1).to(torch.int8).expand(N, -1))
        return Transitions(
            states, kind, edges, node, life[:, :K], tables.alive_of_node(states.task, states.mask)
        )


@dataclass(frozen=True)
class Layout:
    """Where samples stand when they are sorted by behaviour: [G, U] states, of which the first B columns are the samples
    themselves (before their first pick) and the others the states before later picks. Short rows are padded with sample 0. Only the
    behaviours that occur have a row."""

    groups: Tensor  # [G] which behaviours these are
    row: Tensor  # [G, U] of the state among the transitions
    pick: Tensor  # [G, U] number p of the pick
    n_picks: Tensor  # [G, U] of the sample; 0 for padding
    owner: Tensor  # [G, U] column of the state's sample, < B
    real: Tensor  # [G, B] 1 for a sample, 0 for padding
    count: Tensor  # [G] columns up to the last one that is not padding
    samples: Tensor  # [G] number of samples of each behaviour
    node_column: Tensor  # [G, N] the samples that cut a node, padded with column 0 ...
    node_real: Tensor  # [G, N] ... and 0 here
    place: Tensor  # [n] each sample's index in [G · B], in the order given

    @property
    def n_samples(self) -> int:
        """B"""
        return self.real.shape[1]

    @staticmethod
    def of(task: np.ndarray, kind: np.ndarray, rows: np.ndarray, device: torch.device | str) -> Layout:
        """For the samples `rows`; `task` and `kind` are of all transitions. On the host, and one transfer."""
        groups, group = np.unique(task[rows], return_inverse=True)
        kind, G = kind[rows], len(groups)
        n_picks = np.array(BATCH_SIZES)[kind]
        samples = np.bincount(group, minlength=G)
        column, B = _columns(group, G)
        later = np.repeat(np.arange(len(rows)), np.maximum(n_picks - 1, 0))
        pick = np.arange(len(later)) - np.searchsorted(later, later) + 1
        place, n_later = _columns(group[later], G)
        U = -(-(B + n_later) // 16) * 16  # the kernels read in steps of sixteen
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
    """Each element's rank within its group, and the size of the largest group."""
    order = np.argsort(group, kind="stable")
    sizes = np.bincount(group, minlength=n_groups)
    column = np.empty(len(group), np.int64)
    column[order] = np.arange(len(group)) - (np.cumsum(sizes) - sizes)[group[order]]
    return column, int(sizes.max())


def replay(weights: Weights, tables: Tables, transitions: Transitions, layout: Layout) -> Evaluation:
    """What `Policy.decide` says of the actions that were taken: [G, B] each, with weights [G, ...] of its own for every behaviour."""
    group, B = torch.arange(len(layout.groups), device=layout.row.device), layout.n_samples
    trunk = Trunk(weights, tables, layout.groups)
    own_row = layout.row[:, :B]
    alive = transitions.life[layout.row] > layout.pick[..., None]  # [G, U, K]
    node_alive = transitions.node_alive[own_row]  # [G, B, M]
    M = node_alive.shape[2]
    of_sample = layout.groups.repeat_interleave(B)
    node_rows = tables.node_rows(of_sample, node_alive.view(-1, M)).view(-1, B, M)
    values = transitions.states.globals[layout.row]
    values[..., PRESENT] -= layout.pick.to(values.dtype) / trunk.n_edges[:, None]

    edges = trunk.pool_edges(tables.edge_rows(layout.groups[:, None], alive), group, layout.count)
    own_nodes = trunk.pool_nodes(node_rows, group, layout.samples)  # as they are before the first pick
    owner = layout.owner[..., None].expand(-1, -1, own_nodes[0].shape[2])
    nodes = own_nodes[0].gather(1, owner), own_nodes[1].gather(1, owner)
    context = trunk.context(group[:, None], edges, nodes, values)  # [G, U, H]
    own = context[:, :B]

    of_types = trunk.type_log_probs(own, alive[:, :B].sum(-1))
    kind = transitions.kind[own_row]
    log_prob, pick_entropy = chosen(of_types, kind), torch.zeros_like(of_types[..., 0])

    if layout.node_column.shape[1]:
        column, real = layout.node_column, layout.node_real.bool()
        wide = column[..., None].expand(-1, -1, M)
        c = own.gather(1, column[..., None].expand(-1, -1, own.shape[-1]))
        # padding may choose among all components: there is at least one, and its probability is not used
        legal = (node_alive.gather(1, wide) > 0) | ~real[..., None]
        of_nodes = trunk.node_log_probs(group[:, None].expand_as(column), node_rows.gather(1, wide), c, legal)
        node = torch.where(real, transitions.node[own_row.gather(1, column)], 0)
        log_prob = log_prob.scatter_add(1, column, torch.where(real, chosen(of_nodes, node), 0.0))
        pick_entropy = pick_entropy.scatter_add(1, column, torch.where(real, entropy(of_nodes), 0.0))

    picks = layout.n_picks > 0
    edge = torch.where(picks, transitions.edges[layout.row, layout.pick], 0)
    first, shift, weight = trunk.edge_head(context)
    legal_picks = alive | ~picks[..., None]
    of_picks = kernels.Picks.apply(first, shift, weight, legal_picks, edge, group, layout.count)  # type: ignore[no-untyped-call]
    picked, spread = (torch.where(picks, x, 0.0) for x in of_picks)
    log_prob = log_prob.scatter_add(1, layout.owner, picked)
    pick_entropy = pick_entropy.scatter_add(1, layout.owner, spread / layout.n_picks.clamp_min(1))
    return Evaluation(log_prob, entropy(of_types), pick_entropy, trunk.value(own))


def evaluate(policy: Policy, tables: Tables, states: States, actions: Actions) -> Evaluation:
    """`replay` of given actions with one set of weights: [n] each."""
    there = [torch.from_numpy(x).to(states.task.device) for x in (actions.type, actions.edges, actions.node)]
    transitions = Transitions.of(tables, states, *there)
    n = np.arange(len(states))
    layout = Layout.of(states.task.cpu().numpy(), actions.type, n, states.task.device)
    found = replay(copies(policy, len(layout.groups)), tables, transitions, layout)
    return Evaluation(*(getattr(found, f.name).flatten()[layout.place] for f in fields(Evaluation)))
