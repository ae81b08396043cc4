"""States as rows of tables, for which `policy_batched.py` computes embeddings.

An edge is alive or dead, a component has 0 … degree edges left; no other input of either changes. So each behaviour has one table, with 2K
rows for edges and K + M for components, and a state selects some of these rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from mechrl.agents.paper.env import Task
from mechrl.agents.paper.features import N_EDGE, N_NODE


@dataclass(frozen=True)
class Tables:
    """The tasks' features on the device, padded to the largest task: T tasks, K edges, M components."""

    edges: Tensor  # [T, K, 16]
    nodes: Tensor  # [T, M, 7]
    parent: Tensor  # [T, K] int64; padding has component 0 and is never alive
    n_edges: Tensor  # [T]
    n_nodes: Tensor  # [T]
    degree: Tensor  # [T, M] candidate edges out of each component, at least 1
    n_rows: int  # rows of the components' table: K + M of the largest task

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
        """[..., K] for masks [..., K]; `task` has the leading dimensions."""
        each = torch.arange(self.K, device=mask.device)
        return torch.where(mask, each, torch.where(self.real_edges[task], each + self.K, 2 * self.K))

    def node_rows(self, task: Tensor, alive: Tensor) -> Tensor:
        """[n, M] for states with `alive` [n, M] edges left in each component."""
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
