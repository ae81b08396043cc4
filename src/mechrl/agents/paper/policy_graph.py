"""Acting as one CUDA graph: its 30 picks are thousands of small kernels, which take longer to launch than to run."""

from __future__ import annotations

import torch
from torch import Tensor

from mechrl.agents.paper.env import ACTION_TYPES, MAX_PICKS
from mechrl.agents.paper.policy import Policy
from mechrl.agents.paper.policy_batched import Noise, act, new_trunk
from mechrl.agents.paper.policy_tables import States, Tables


class ActGraph:
    """`act` for a fixed number of states on given tables. It reads the weights in place, so it always uses the current ones."""

    def __init__(self, policy: Policy, tables: Tables, states: States) -> None:
        self.policy, self.tables = policy, tables
        self.states = States(states.task.clone(), states.mask.clone(), states.globals.clone())
        width = max(states.mask.shape[1], tables.nodes.shape[1], len(ACTION_TYPES))
        self.noise = torch.zeros(MAX_PICKS + 2, len(states), width, device=states.mask.device)
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # compiles the kernels
            self._act()
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = self._act()

    def _act(self) -> tuple[Tensor, Tensor, Tensor]:
        trunk = new_trunk(self.policy, self.tables)
        return act(trunk, self.tables, self.states, Noise(recorded=self.noise))

    def __call__(
        self, states: States, generator: torch.Generator | None, greedy: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        for mine, theirs in (
            (self.states.task, states.task),
            (self.states.mask, states.mask),
            (self.states.globals, states.globals),
        ):
            mine.copy_(theirs)
        if greedy:
            self.noise.zero_()
        else:
            self.noise.exponential_(generator=generator).log_().neg_()
        self.graph.replay()
        decided, log_prob, value = self.result
        return decided.clone(), log_prob.clone(), value.clone()
