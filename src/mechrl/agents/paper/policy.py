"""The policy and value function (the paper's section 3.3), one state at a time: this is the code to read.

    h^e_i = MLP_e([X^e_i, m_i])        h^n_j = MLP_n([X^n_j, fraction of j's edges still alive])
    c = MLP_c([mean h^e, max h^e, mean h^n, max h^n, g])
    type and value heads read c; the edge head reads [h^e_i, c], the node head [h^n_j, c]

Edges and components are scored one by one with shared weights, so the parameters do not depend on K, M or the model. Training runs
`policy_batched.py` and `policy_replay.py`, which compute the same for many states at once; tests compare them with this, gradients
included.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from mechrl.agents.paper.env import ACTION_TYPES, BATCH_SIZES, NEEDS, NODE, PRESENT
from mechrl.agents.paper.features import N_EDGE, N_GLOBAL, N_NODE

STOP_BIAS, CUT_1_BIAS = -5.0, 2.0  # initial biases of the type head: an untrained agent must not stop at once


@dataclass(frozen=True)
class State:
    """s_t = (X^e, X^n, m_t, g_t) of one episode."""

    edges: Tensor  # X^e [K, 16]
    nodes: Tensor  # X^n [M, 7]
    parent: Tensor  # [K] every edge's component
    mask: Tensor  # m_t [K] bool
    globals: Tensor  # g_t [6]

    @property
    def alive(self) -> Tensor:
        """[M] how many edges each component has left."""
        alive = self.globals.new_zeros(len(self.nodes))
        return alive.index_add(0, self.parent, self.mask.to(alive.dtype))

    @property
    def degree(self) -> Tensor:
        """[M] candidate edges out of each component."""
        return torch.bincount(self.parent, minlength=len(self.nodes))

    def without(self, edge: int) -> State:
        """The state after one pick of a batch cut: the edge is gone, and the fraction of edges present is updated. Other globals stay."""
        mask, values = self.mask.clone(), self.globals.clone()
        mask[edge] = False
        values[PRESENT] -= 1 / len(mask)
        return replace(self, mask=mask, globals=values)


@dataclass(frozen=True)
class Action:
    """`edges` are the picks of a batch cut, in order; `node` is the component of a node cut."""

    type: int
    edges: tuple[int, ...] = ()
    node: int = 0


@dataclass(frozen=True)
class Decision:
    """An action, and what PPO needs of it."""

    action: Action
    log_prob: Tensor  # log π(a | s)
    type_entropy: Tensor
    pick_entropy: Tensor  # of the component, or the mean over a batch cut's picks
    value: Tensor  # V(s)


class MLP(nn.Module):
    """Two layers, [in, H] and [H, out], with a ReLU between them."""

    __call__: Callable[..., Tensor]

    def __init__(self, n_in: int, width: int, n_out: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(n_in, width), nn.Linear(width, n_out)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(torch.relu(self.first(x)))
        return out


class Policy(nn.Module):
    """π_θ and V, with hidden width H."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.width = H = width
        self.edge_embedding = MLP(N_EDGE + 1, H, H)
        self.node_embedding = MLP(N_NODE + 1, H, H)
        self.context = MLP(4 * H + N_GLOBAL, H, H)
        self.type_head = MLP(H, H, len(ACTION_TYPES))
        self.edge_head = MLP(2 * H, H, 1)
        self.node_head = MLP(2 * H, H, 1)
        self.value_head = MLP(H, H, 1)
        with torch.no_grad():
            self.type_head.second.bias.zero_()
            self.type_head.second.bias[0], self.type_head.second.bias[1] = STOP_BIAS, CUT_1_BIAS

    # ---- trunk ------------------------------------------------------------------------------------------------------

    def embed_edges(self, s: State) -> Tensor:
        """h^e [K, H]"""
        return self.edge_embedding(torch.cat([s.edges, s.mask[:, None].to(s.edges.dtype)], 1))

    def embed_nodes(self, s: State) -> Tensor:
        """h^n [M, H]"""
        return self.node_embedding(torch.cat([s.nodes, (s.alive / s.degree)[:, None]], 1))

    def pool(self, h_e: Tensor, h_n: Tensor, g: Tensor) -> Tensor:
        """c = MLP_c([mean h^e, max h^e, mean h^n, max h^n, g])        (equation 5)"""
        return self.context(torch.cat([h_e.mean(0), h_e.amax(0), h_n.mean(0), h_n.amax(0), g]))

    # ---- heads ------------------------------------------------------------------------------------------------------

    def type_log_probs(self, c: Tensor, edges_left: int) -> Tensor:
        """[6] No batch larger than what is left, no node cut when nothing is. Stopping is always legal."""
        legal = edges_left >= torch.tensor(NEEDS)
        return self.type_head(c).masked_fill(~legal, -math.inf).log_softmax(0)

    def edge_log_probs(self, h_e: Tensor, c: Tensor, mask: Tensor) -> Tensor:
        """[K] over the edges that are alive."""
        return _over_items(self.edge_head, h_e, c, mask)

    def node_log_probs(self, h_n: Tensor, c: Tensor, alive: Tensor) -> Tensor:
        """[M] over the components with an edge left."""
        return _over_items(self.node_head, h_n, c, alive > 0)

    # ---- acting -----------------------------------------------------------------------------------------------------

    def decide(
        self, s: State, action: Action | None = None, generator: torch.Generator | None = None
    ) -> Decision:
        """Samples an action, or evaluates a given one.

            log π(stop)  = log p_type(stop)
            log π(node)  = log p_type(node) + log p_node(j)
            log π(batch) = log p_type(N) + Σ_l log p_edge(e_l | e_1 … e_{l−1})        (equation 6)

        Before each pick of a batch cut the remaining edges are rescored: the picked edge's embedding becomes that of a cut edge, and the
        context is pooled again. The components' embeddings are computed once.
        """

        def choose(log_probs: Tensor, taken: int | None) -> int:
            if taken is not None:
                return taken
            return int(torch.multinomial(log_probs.exp(), 1, generator=generator))

        h_n, alive = self.embed_nodes(s), s.alive
        c = self.pool(self.embed_edges(s), h_n, s.globals)
        value = self.value_head(c)[0]
        of_types = self.type_log_probs(c, int(s.mask.sum()))
        kind = choose(of_types, None if action is None else action.type)
        log_prob, pick_entropy = of_types[kind], torch.zeros(())
        edges: list[int] = []
        node = 0
        if kind == NODE:
            of_nodes = self.node_log_probs(h_n, c, alive)
            node = choose(of_nodes, None if action is None else action.node)
            log_prob, pick_entropy = log_prob + of_nodes[node], entropy(of_nodes)
        N = BATCH_SIZES[kind]
        for pick in range(N):
            h_e = self.embed_edges(s)
            c = self.pool(h_e, h_n, s.globals)
            of_edges = self.edge_log_probs(h_e, c, s.mask)
            edge = choose(of_edges, None if action is None else action.edges[pick])
            log_prob = log_prob + of_edges[edge]
            pick_entropy = pick_entropy + entropy(of_edges) / N
            edges.append(edge)
            s = s.without(edge)
        taken = Action(kind, tuple(edges), node)
        return Decision(taken, log_prob, entropy(of_types), pick_entropy, value)


def entropy(log_probs: Tensor) -> Tensor:
    """−Σ p log p; impossible choices contribute 0."""
    return -(log_probs.exp() * log_probs.masked_fill(log_probs == -math.inf, 0.0)).sum(-1)


def _over_items(head: MLP, items: Tensor, c: Tensor, legal: Tensor) -> Tensor:
    score = head(torch.cat([items, c.expand(len(items), -1)], 1))[:, 0]
    return score.masked_fill(~legal, -math.inf).log_softmax(0)
