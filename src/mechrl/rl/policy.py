"""The policy (the paper's section 3.3): a set network over candidate edges and components, the same for every behaviour and model.

    h^e_i = MLP_e([X^e_i, m_i])        h^n_j = MLP_n([X^n_j, fraction of j's edges still alive])
    c = MLP_c([mean h^e, max h^e, mean h^n, max h^n, g])
    type head from c; edge head from [h^e_i, c]; node head from [h^n_j, c]; value head from c

A batch cut picks its edges one after the other, re-scoring after each pick: before its p-th pick the agent stands in a state of its
own, the mask without the p − 1 edges picked so far (the fraction of edges present follows, the other globals stay). So an action's
log-probability is that of its type plus, for every pick, that of one edge in one such state, and replaying an update's
actions is evaluating all those states at once: no loop over picks, the order is part of the action.

Memory: an edge's embedding depends only on its behaviour and on whether it is alive, so there are two tables per behaviour and no
per-state embedding. The maximum is searched without gradients and read off the tables with them. Dead edges are masked out of the
edge head, whose first layer splits into a table (alive edges) and a vector (context) that are added.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mechrl.rl.env import ACTION_TYPES, BATCH_SIZES, MAX_PICKS, NODE, Actions, Task
from mechrl.rl.features import N_EDGE, N_GLOBAL, N_NODE

_STATES_PER_CHUNK = 2**28  # numbers in one [states, K, H] tensor


@dataclass(frozen=True)
class PolicyConfig:
    """width: H. The type head's bias at the start keeps an untrained agent from stopping at once."""

    width: int = 128
    stop_bias: float = -5.0
    cut_1_bias: float = 2.0


@dataclass(frozen=True)
class Tables:
    """The tasks' features on the device, padded to the widest: T tasks, K edges, M nodes."""

    edges: Tensor  # [T, K, 16]
    nodes: Tensor  # [T, M, 7]
    parent: Tensor  # [T, K] int64; padding points at node 0 and is never alive
    n_edges: Tensor  # [T]
    n_nodes: Tensor  # [T]
    degree: Tensor  # [T, M] candidate edges out of every node, at least 1

    @staticmethod
    def of(tasks: list[Task], device: torch.device | str = "cpu") -> Tables:
        T, K, M = len(tasks), max(t.K for t in tasks), max(t.M for t in tasks)
        edges, nodes = np.zeros((T, K, N_EDGE), np.float32), np.zeros((T, M, N_NODE), np.float32)
        parent, degree = np.zeros((T, K), np.int64), np.ones((T, M), np.float32)
        for i, task in enumerate(tasks):
            edges[i, : task.K], nodes[i, : task.M] = task.features.edges, task.features.nodes
            parent[i, : task.K] = task.features.parent
            degree[i, : task.M] = np.bincount(task.features.parent)
        arrays = (edges, nodes, parent, np.array([t.K for t in tasks]), np.array([t.M for t in tasks]), degree)
        return Tables(*(torch.from_numpy(a).to(device) for a in arrays))


@dataclass(frozen=True)
class States:
    """A batch of states."""

    task: Tensor  # [n] int64
    mask: Tensor  # [n, K] bool, False beyond the task's own edges
    globals: Tensor  # [n, 6]

    def __len__(self) -> int:
        return len(self.task)

    def __getitem__(self, index: Tensor | slice) -> States:
        return States(self.task[index], self.mask[index], self.globals[index])


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


class Perceptron(nn.Module):
    """[in, H, out] with a ReLU in between: and, without `gain`, one at the end. Orthogonal start; `gain` is that of an output."""

    def __init__(self, n_in: int, width: int, n_out: int, gain: float | None = None) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(n_in, width), nn.Linear(width, n_out)
        self.is_output = gain is not None
        for linear, scale in ((self.first, math.sqrt(2)), (self.second, math.sqrt(2) if gain is None else gain)):
            nn.init.orthogonal_(linear.weight, scale)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(torch.relu(self.first(x)))
        return x if self.is_output else torch.relu(x)


class Policy(nn.Module):
    """Policy and value function. Its parameters know nothing of K, M or the model."""

    def __init__(self, config: PolicyConfig = PolicyConfig()) -> None:  # noqa: B008 (frozen)
        super().__init__()
        self.config = config
        H = config.width
        self.edge_embedding = Perceptron(N_EDGE + 1, H, H)
        self.node_embedding = Perceptron(N_NODE + 1, H, H)
        self.context = Perceptron(4 * H + N_GLOBAL, H, H)
        self.type_head = Perceptron(H, H, len(ACTION_TYPES), gain=0.01)
        self.edge_head = Perceptron(2 * H, H, 1, gain=0.01)
        self.node_head = Perceptron(2 * H, H, 1, gain=0.01)
        self.value_head = Perceptron(H, H, 1, gain=1.0)
        with torch.no_grad():
            self.type_head.second.bias[0] = config.stop_bias
            self.type_head.second.bias[1] = config.cut_1_bias

    # ---- acting -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def act(self, tables: Tables, states: States, generator: torch.Generator | None = None, greedy: bool = False) -> Choice:
        """Draws an action for every state; `greedy` takes the likeliest type and picks instead."""

        def draw(log_probs: Tensor) -> Tensor:
            return log_probs.argmax(-1) if greedy else _gumbel_argmax(log_probs, generator)

        trunk = _Trunk(self, tables)
        context = trunk.context(states)
        type_log_probs = self._type_log_probs(context, states)
        kind = draw(type_log_probs)
        log_prob = type_log_probs.gather(1, kind[:, None])[:, 0]
        edges = torch.full((len(states), MAX_PICKS), -1, device=kind.device)
        node = torch.zeros_like(kind)

        cuts_node = (kind == NODE).nonzero()[:, 0]
        if len(cuts_node):
            of_nodes = trunk.node_log_probs(states[cuts_node], context[cuts_node])
            node[cuts_node] = draw(of_nodes)
            log_prob[cuts_node] += of_nodes.gather(1, node[cuts_node, None])[:, 0]

        n_picks = torch.tensor(BATCH_SIZES, device=kind.device)[kind]
        mask, present = states.mask.clone(), states.globals.clone()
        for p in range(int(n_picks.max())):
            rows = (n_picks > p).nonzero()[:, 0]
            here = States(states.task[rows], mask[rows], present[rows])
            of_edges = trunk.edge_log_probs(here, context[rows] if p == 0 else trunk.context(here))
            pick = draw(of_edges)
            log_prob[rows] += of_edges.gather(1, pick[:, None])[:, 0]
            edges[rows, p] = pick
            mask[rows, pick] = False
            present[rows, 2] -= 1 / tables.n_edges[here.task].float()
        value = self.value_head(context)[:, 0]
        return Choice(Actions(kind.cpu().numpy(), edges.cpu().numpy(), node.cpu().numpy()), log_prob, value)

    # ---- replaying --------------------------------------------------------------------------------------------------

    def evaluate(self, tables: Tables, states: States, kind: Tensor, edges: Tensor, node: Tensor) -> Evaluation:
        """Log-probability, entropy and value of given actions: type [n], ordered picks [n, 30], node [n]."""
        trunk = _Trunk(self, tables)
        context = trunk.context(states)
        type_log_probs = self._type_log_probs(context, states)
        log_prob = type_log_probs.gather(1, kind[:, None])[:, 0]
        entropy = _entropy(type_log_probs)

        cuts_node = (kind == NODE).nonzero()[:, 0]
        if len(cuts_node):
            of_nodes = trunk.node_log_probs(states[cuts_node], context[cuts_node])
            log_prob = log_prob.index_add(0, cuts_node, of_nodes.gather(1, node[cuts_node, None])[:, 0])
            entropy = entropy.index_add(0, cuts_node, _entropy(of_nodes))

        # every pick is an edge chosen in a state of its own: (sample, p) for p = 0 … N − 1
        n_picks = torch.tensor(BATCH_SIZES, device=kind.device)[kind]
        sample = torch.repeat_interleave(torch.arange(len(kind), device=kind.device), n_picks)
        if len(sample):
            first = n_picks.cumsum(0) - n_picks
            p = torch.arange(len(sample), device=kind.device) - first[sample]
            picked, pick_entropy = self._replay(trunk, states, context, sample, p, edges)
            log_prob = log_prob.index_add(0, sample, picked)
            entropy = entropy.index_add(0, sample, pick_entropy / n_picks[sample])
        return Evaluation(log_prob, entropy, self.value_head(context)[:, 0])

    def _replay(
        self, trunk: _Trunk, states: States, context: Tensor, sample: Tensor, p: Tensor, edges: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of pick `p` of `sample`, for many of them."""
        step = max(1, _STATES_PER_CHUNK // (states.mask.shape[1] * self.config.width))
        log_probs, entropies = [], []
        for i in range(0, len(sample), step):
            s, q = sample[i : i + step], p[i : i + step]
            mask, present = states.mask[s].clone(), states.globals[s].clone()
            earlier = torch.arange(MAX_PICKS, device=s.device) < q[:, None]  # [., 30]
            row, column = earlier.nonzero(as_tuple=True)
            mask[row, edges[s[row], column]] = False
            present[:, 2] -= q / trunk.tables.n_edges[states.task[s]].float()
            here = States(states.task[s], mask, present)
            first = (q == 0).nonzero()[:, 0]
            # the first pick's context is the state's own: reading it there keeps both in one graph
            c = trunk.context(here).index_copy(0, first, context[s[first]])
            of_edges = trunk.edge_log_probs(here, c)
            log_probs.append(of_edges.gather(1, edges[s, q][:, None])[:, 0])
            entropies.append(_entropy(of_edges))
        return torch.cat(log_probs), torch.cat(entropies)

    def _type_log_probs(self, context: Tensor, states: States) -> Tensor:
        """[n, 6] no batch larger than what is alive, no node cut when nothing is; stopping is always legal."""
        alive = states.mask.sum(1, keepdim=True)
        needs = torch.tensor([0, *BATCH_SIZES[1:NODE], 1], device=context.device)
        return self.type_head(context).masked_fill(alive < needs, -math.inf).log_softmax(-1)

    # ---- on disk ----------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """config.json and model.safetensors, in the hub's manner."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file({k: v.contiguous() for k, v in self.state_dict().items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(asdict(self.config), indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu") -> Policy:
        policy = cls(PolicyConfig(**json.loads((folder / "config.json").read_text())))
        policy.load_state_dict(load_file(folder / "model.safetensors"))
        return policy.to(device)


class _Trunk:
    """The tables of embeddings for the network as it is now, and what is read off them."""

    def __init__(self, policy: Policy, tables: Tables) -> None:
        self.policy, self.tables = policy, tables
        T, K, _ = tables.edges.shape
        flag = tables.edges.new_ones(T, K, 1)
        self.alive = policy.edge_embedding(torch.cat([tables.edges, flag], -1))  # [T, K, H]
        self.dead = policy.edge_embedding(torch.cat([tables.edges, 0 * flag], -1))
        self.real = torch.arange(K, device=flag.device) < tables.n_edges[:, None]  # [T, K]
        self.dead_sum = (self.dead * self.real[..., None]).sum(1)  # [T, H]
        H = policy.config.width
        self.edge_first = self.alive @ policy.edge_head.first.weight[:, :H].T  # [T, K, H] the edge head's first layer, without the context

    def context(self, states: States) -> Tensor:
        """[n, H]"""
        tables, task = self.tables, states.task
        mean, maximum = self._pool_edges(states)
        alive_of_node = torch.zeros(len(states), tables.nodes.shape[1], device=task.device)
        alive_of_node.scatter_add_(1, tables.parent[task], states.mask.float())
        nodes = self._nodes(states, alive_of_node)  # [n, M, H]
        real = (torch.arange(nodes.shape[1], device=task.device) < tables.n_nodes[task][:, None])[..., None]
        node_mean = (nodes * real).sum(1) / tables.n_nodes[task][:, None]
        node_max = nodes.masked_fill(~real, -math.inf).amax(1)
        return self.policy.context(torch.cat([mean, maximum, node_mean, node_max, states.globals], -1))

    def edge_log_probs(self, states: States, context: Tensor) -> Tensor:
        """[n, K] over the alive edges."""
        head, H = self.policy.edge_head, self.policy.config.width
        shift = context @ head.first.weight[:, H:].T + head.first.bias  # [n, H]

        def score(first: Tensor, shift: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            hidden = torch.relu(first[None] + shift[:, None])  # [n, K, H]
            return (hidden @ weight + bias).masked_fill(~mask, -math.inf).log_softmax(-1)

        result = context.new_zeros(len(states), states.mask.shape[1])
        for t, rows in self._by_task(states):
            arguments = (self.edge_first[t], shift[rows], states.mask[rows], head.second.weight[0], head.second.bias)
            # recomputed in the backward pass: [n, K, H] for every pick would not fit
            of_task = checkpoint(score, *arguments, use_reentrant=False) if torch.is_grad_enabled() else score(*arguments)
            result = result.index_copy(0, rows, of_task)
        return result

    def node_log_probs(self, states: States, context: Tensor) -> Tensor:
        """[n, M] over the components with an alive edge."""
        alive_of_node = torch.zeros(len(states), self.tables.nodes.shape[1], device=context.device)
        alive_of_node.scatter_add_(1, self.tables.parent[states.task], states.mask.float())
        nodes = self._nodes(states, alive_of_node)
        both = torch.cat([nodes, context[:, None].expand(-1, nodes.shape[1], -1)], -1)
        return self.policy.node_head(both)[..., 0].masked_fill(alive_of_node == 0, -math.inf).log_softmax(-1)

    def _nodes(self, states: States, alive_of_node: Tensor) -> Tensor:
        fraction = alive_of_node / self.tables.degree[states.task]
        return self.policy.node_embedding(torch.cat([self.tables.nodes[states.task], fraction[..., None]], -1))

    def _pool_edges(self, states: States) -> tuple[Tensor, Tensor]:
        """Mean and elementwise maximum [n, H] of the edge embeddings: alive rows where the mask is set, dead ones elsewhere."""
        mean = self.alive.new_zeros(len(states), self.alive.shape[2])
        maximum = torch.zeros_like(mean)
        for t, rows in self._by_task(states):
            mask = states.mask[rows]
            total = self.dead_sum[t] + mask.to(mean.dtype) @ (self.alive[t] - self.dead[t])
            mean = mean.index_copy(0, rows, total / self.tables.n_edges[t])
            with torch.no_grad():
                place = self._argmax(t, mask)  # [n, H]
            top = torch.where(mask.gather(1, place), self.alive[t].gather(0, place), self.dead[t].gather(0, place))
            maximum = maximum.index_copy(0, rows, top)
        return mean, maximum

    def _argmax(self, t: int, mask: Tensor) -> Tensor:
        """[n, H] where the maximum stands."""
        alive, dead = self.alive[t], self.dead[t].masked_fill(~self.real[t][:, None], -math.inf)
        step = max(1, _STATES_PER_CHUNK // alive.numel())
        return torch.cat([torch.where(m[..., None], alive, dead).argmax(1) for m in mask.split(step)])

    def _by_task(self, states: States) -> list[tuple[int, Tensor]]:
        return [(t, (states.task == t).nonzero()[:, 0]) for t in states.task.unique().tolist()]


def _gumbel_argmax(log_probs: Tensor, generator: torch.Generator | None) -> Tensor:
    """A draw from each row's distribution; the generator lives where the numbers are."""
    uniform = torch.rand(log_probs.shape, generator=generator, device=log_probs.device)
    exponential = (-torch.log(uniform.clamp_min(1e-20))).clamp_min(1e-20)
    return (log_probs - exponential.log()).argmax(-1)


def _entropy(log_probs: Tensor) -> Tensor:
    return -(log_probs.exp() * log_probs.masked_fill(log_probs == -math.inf, 0.0)).sum(-1)
