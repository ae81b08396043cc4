"""The policy by its definition: one state at a time, every edge and node embedded anew, one pick after the other."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mechrl.rl.env import BATCH_SIZES, NODE, Actions
from mechrl.rl.policy import Evaluation, Perceptron, Policy, States, Tables


def mlp(module: Perceptron, x: Tensor) -> Tensor:
    return module.second(torch.relu(module.first(x)))


class State:
    """Embeddings and context of a single state."""

    def __init__(
        self, policy: Policy, tables: Tables, t: int, mask: Tensor, values: Tensor, closed: Tensor | None
    ) -> None:
        self.policy, self.mask = policy, mask[: tables.n_edges[t]]
        self.closed = torch.zeros(13, dtype=torch.bool) if closed is None else closed
        K, M = int(tables.n_edges[t]), int(tables.n_nodes[t])
        flag = self.mask.to(values.dtype)
        self.edges = torch.relu(
            mlp(policy.edge_embedding, torch.cat([tables.edges[t, :K], flag[:, None]], 1))
        )
        parent = tables.parent[t, :K]
        self.left = torch.stack([flag[parent == j].sum() for j in range(M)])
        fraction = self.left / torch.stack([(parent == j).sum() for j in range(M)])
        self.nodes = torch.relu(
            mlp(policy.node_embedding, torch.cat([tables.nodes[t, :M], fraction[:, None]], 1))
        )
        pooled = [self.edges.mean(0), self.edges.amax(0), self.nodes.mean(0), self.nodes.amax(0), values]
        self.context = torch.relu(mlp(policy.context, torch.cat(pooled)))

    def type_log_probs(self) -> Tensor:
        config = self.policy.config
        needs = torch.tensor(
            [0, *BATCH_SIZES[1:NODE], 1, 10, 10, 10, 3, 3, 3, 1][: 12 + config.trades if config.parts else 6]
        )
        illegal = (self.mask.sum() < needs) | self.closed[: len(needs)]
        return mlp(self.policy.type_head, self.context).masked_fill(illegal, -math.inf).log_softmax(0)

    def log_probs(self, head: Perceptron, items: Tensor, legal: Tensor) -> Tensor:
        both = torch.cat([items, self.context.expand(len(items), -1)], 1)
        return mlp(head, both)[:, 0].masked_fill(~legal, -math.inf).log_softmax(0)

    def edge_log_probs(self) -> Tensor:
        return self.log_probs(self.policy.edge_head, self.edges, self.mask)

    def node_log_probs(self) -> Tensor:
        return self.log_probs(self.policy.node_head, self.nodes, self.left > 0)


def entropy(log_probs: Tensor) -> Tensor:
    legal = log_probs[log_probs > -math.inf]
    return -(legal.exp() * legal).sum()


def type_log_probs(policy: Policy, tables: Tables, state: States) -> Tensor:
    return State(policy, tables, int(state.task[0]), state.mask[0], state.globals[0], None).type_log_probs()


def evaluate(policy: Policy, tables: Tables, states: States, actions: Actions) -> Evaluation:
    results = []
    for i in range(len(states)):
        own, t = tables, int(states.task[i])
        if states.looks is not None:
            own, t = tables.after_look(states.task[i : i + 1], states.looks[i : i + 1]), 0
        kind, mask, values = int(actions.type[i]), states.mask[i].clone(), states.globals[i].clone()
        here = State(policy, own, t, mask, values, None if states.closed is None else states.closed[i])
        of_types = here.type_log_probs()
        log_prob, spread = of_types[kind], entropy(of_types)
        if kind == NODE:
            log_prob, spread = (
                log_prob + here.node_log_probs()[actions.node[i]],
                spread + entropy(here.node_log_probs()),
            )
        for p in range(BATCH_SIZES[kind]):
            now = State(policy, own, t, mask, values, None).edge_log_probs()
            log_prob, spread = log_prob + now[actions.edges[i, p]], spread + entropy(now) / BATCH_SIZES[kind]
            mask[actions.edges[i, p]] = False
            values[2] -= 1 / own.n_edges[t].to(values.dtype)
        results.append(torch.stack([log_prob, spread, mlp(policy.value_head, here.context)[0]]))
    return Evaluation(*torch.stack(results).T)
