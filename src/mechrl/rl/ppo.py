"""Training: PPO with GAE and PCGrad over many behaviours at once (the paper's section 3.4), from top to bottom.

The paper's hyperparameters are the defaults; what it leaves unsaid follows its published code or CleanRL, and has a name here.
A rollout is `transitions` steps shared by `envs` environments; each episode draws its behaviour. Running out of steps is part of the
task and visible in the state, so it is terminal for GAE. Advantages are whitened per behaviour. Every minibatch gives one
gradient per behaviour in it, weighted by its share of the samples, so that without conflicts PCGrad's result is the
ordinary PPO gradient.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from mechrl.errors import MechRLError
from mechrl.rl.env import RewardSettings, Task, VectorEnv
from mechrl.rl.pcgrad import pcgrad
from mechrl.rl.policy import Policy, PolicyConfig, States, Tables


@dataclass(frozen=True)
class PPOConfig:
    iterations: int = 1200
    transitions: int = 512  # per iteration
    envs: int = 32  # episodes side by side; a rollout is transitions / envs steps of each
    gamma: float = 0.99  # discount
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy: float = 0.01  # coefficient of the entropy bonus
    value: float = 0.5  # coefficient of the (unclipped) value loss
    max_grad_norm: float = 0.5
    epochs: int = 4
    minibatches: int = 4
    learning_rate: float = 2.5e-4
    anneal: bool = True  # linearly to zero over all iterations
    adam_eps: float = 1e-5
    deconflict: bool = True  # PCGrad; with one behaviour there is nothing to do
    seed: int = 0

    def __post_init__(self) -> None:
        if self.transitions % self.envs or self.transitions % self.minibatches:
            raise MechRLError(
                f"{self.transitions} transitions do not divide evenly among {self.envs} environments and {self.minibatches} minibatches"
            )


@dataclass(frozen=True)
class Rollout:
    """T steps of n environments, flattened to T · n transitions where a dimension is named N."""

    states: States  # [N]
    kind: Tensor  # [N]
    edges: Tensor  # [N, 30]
    node: Tensor  # [N]
    log_prob: Tensor  # [N]
    advantage: Tensor  # [N] whitened per behaviour
    target: Tensor  # [N] of the value function


def gae(
    reward: np.ndarray, value: np.ndarray, done: np.ndarray, last_value: np.ndarray, gamma: float, lam: float
) -> np.ndarray:
    """[T, n] generalised advantages: A_t = δ_t + γλ (1 − done_t) A_{t+1}, δ_t = r_t + γ (1 − done_t) V_{t+1} − V_t."""
    advantage, following = np.zeros_like(reward), np.zeros(reward.shape[1])
    for t in reversed(range(len(reward))):
        after = last_value if t == len(reward) - 1 else value[t + 1]
        goes_on = 1.0 - done[t]
        following = reward[t] + gamma * goes_on * after - value[t] + gamma * lam * goes_on * following
        advantage[t] = following
    return advantage


def whiten(advantage: np.ndarray, task: np.ndarray) -> np.ndarray:
    """Zero mean and unit deviation within each behaviour. A behaviour seen once has nothing to compare with: zero."""
    result = np.zeros_like(advantage)
    for t in np.unique(task):
        mine = advantage[task == t]
        result[task == t] = (mine - mine.mean()) / (mine.std() + 1e-8)
    return result


class Trainer:
    """The state of a training run: everything that a checkpoint must hold for the run to go on bit for bit."""

    def __init__(
        self,
        tasks: list[Task],
        config: PPOConfig,
        reward: RewardSettings = RewardSettings(),  # noqa: B008 (frozen)
        policy: Policy | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.tasks, self.config, self.reward, self.device = tasks, config, reward, torch.device(device)
        torch.manual_seed(config.seed)
        self.policy = (policy or Policy(PolicyConfig())).to(self.device)
        self.parameters = list(self.policy.parameters())
        self.optimiser = torch.optim.Adam(self.parameters, lr=config.learning_rate, eps=config.adam_eps)
        self.rng = np.random.default_rng(config.seed)
        self.generator = torch.Generator(self.device).manual_seed(config.seed)
        self.tables = Tables.of(tasks, self.device)
        self.env = VectorEnv(tasks, config.envs, reward, self.rng)
        self.iteration = 0
        self.returns = np.zeros(config.envs)  # of the running episodes

    def run(self) -> Iterator[dict[str, Any]]:
        """Trains to the end, one iteration at a time; yields its scalars."""
        while self.iteration < self.config.iterations:
            rollout, scalars = self._collect()
            scalars |= self._update(rollout)
            self.iteration += 1
            yield {"iteration": self.iteration} | scalars

    # ---- rollout ----------------------------------------------------------------------------------------------------

    def _states(self) -> States:
        as_tensor = torch.from_numpy
        env = self.env
        return States(
            as_tensor(env.task.copy()).to(self.device),
            as_tensor(env.mask.copy()).to(self.device),
            as_tensor(env.globals()).to(self.device),
        )

    def _collect(self) -> tuple[Rollout, dict[str, Any]]:
        config, env = self.config, self.env
        steps = config.transitions // config.envs
        states, choices, rewards, dones, tasks = [], [], [], [], []
        ended: list[dict[str, float]] = []
        for _ in range(steps):
            here = self._states()
            choice = self.policy.act(self.tables, here, self.generator)
            tasks.append(env.task.copy())
            before = env.task.copy()
            step = env.step(choice.actions)
            self.returns += step.reward
            for i in np.flatnonzero(step.done):
                reached = step.f[i] >= self.tasks[before[i]].tau
                ended.append({"return": self.returns[i], "f": step.f[i], "edges": step.edges[i], "reached": reached})
                self.returns[i] = 0.0
            states.append(here)
            choices.append(choice)
            rewards.append(step.reward)
            dones.append(step.done)
        with torch.no_grad():
            last_value = self.policy.act(self.tables, self._states(), greedy=True).value.double().cpu().numpy()
        value = torch.stack([c.value for c in choices]).double().cpu().numpy()
        reward, done, task = np.array(rewards), np.array(dones), np.array(tasks)
        advantage = gae(reward, value, done.astype(float), last_value, config.gamma, config.gae_lambda)

        def flat(x: np.ndarray) -> Tensor:
            return torch.from_numpy(x.reshape(-1, *x.shape[2:])).to(self.device)

        rollout = Rollout(
            States(*(torch.cat([getattr(s, name) for s in states]) for name in ("task", "mask", "globals"))),
            flat(np.array([c.actions.type for c in choices])),
            flat(np.array([c.actions.edges for c in choices])),
            flat(np.array([c.actions.node for c in choices])),
            torch.cat([c.log_prob for c in choices]),
            flat(whiten(advantage, task)).float(),
            flat(advantage + value).float(),
        )
        scalars: dict[str, Any] = {"episodes": len(ended)}
        for key in ("return", "f", "edges", "reached"):
            scalars[f"episode/{key}"] = float(np.mean([e[key] for e in ended])) if ended else None
        explained = 1 - np.var(advantage) / max(np.var(advantage + value), 1e-12)
        return rollout, scalars | {"rollout/reward": float(reward.mean()), "value/explained_variance": float(explained)}

    # ---- update -----------------------------------------------------------------------------------------------------

    def _update(self, rollout: Rollout) -> dict[str, float]:
        config = self.config
        rate = config.learning_rate * (1 - self.iteration / config.iterations if config.anneal else 1.0)
        self.optimiser.param_groups[0]["lr"] = rate
        N = len(rollout.kind)
        sums: dict[str, float] = {}
        for _ in range(config.epochs):
            order = torch.from_numpy(self.rng.permutation(N)).to(self.device)
            for rows in order.chunk(config.minibatches):
                gradient, scalars = self._gradient(rollout, rows)
                norm = gradient.norm()
                gradient = gradient * (config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
                offset = 0
                for p in self.parameters:
                    p.grad = gradient[offset : offset + p.numel()].view_as(p)
                    offset += p.numel()
                self.optimiser.step()
                for key, number in (scalars | {"gradient_norm": norm.item()}).items():
                    sums[key] = sums.get(key, 0.0) + number / (config.epochs * config.minibatches)
        return {f"loss/{key}": number for key, number in sums.items()} | {"learning_rate": rate}

    def _gradient(self, rollout: Rollout, rows: Tensor) -> tuple[Tensor, dict[str, float]]:
        """[P] the gradient of a minibatch: one per behaviour, weighted by its share, de-conflicted."""
        of_task = rollout.states.task[rows]
        groups = [rows[of_task == t] for t in of_task.unique()] if self.config.deconflict else [rows]
        gradients, sums = [], {"policy": 0.0, "value": 0.0, "entropy": 0.0, "kl": 0.0, "clipped": 0.0}
        for group in groups:
            share = len(group) / len(rows)
            loss, scalars = self._loss(rollout, group)
            parts = torch.autograd.grad(share * loss, self.parameters, allow_unused=True)
            flat = [torch.zeros_like(p).flatten() if g is None else g.flatten() for p, g in zip(self.parameters, parts, strict=True)]
            gradients.append(torch.cat(flat))
            for key in sums:
                sums[key] += share * scalars[key]
        stacked = torch.stack(gradients)
        return (pcgrad(stacked, self.rng) if len(groups) > 1 else stacked[0]), sums

    def _loss(self, rollout: Rollout, rows: Tensor) -> tuple[Tensor, dict[str, float]]:
        config = self.config
        actions = rollout.kind[rows], rollout.edges[rows], rollout.node[rows]
        now = self.policy.evaluate(self.tables, rollout.states[rows], *actions)
        log_ratio = now.log_prob - rollout.log_prob[rows]
        ratio = log_ratio.exp()
        advantage = rollout.advantage[rows]
        policy = -torch.minimum(ratio * advantage, ratio.clamp(1 - config.clip, 1 + config.clip) * advantage).mean()
        value = 0.5 * (now.value - rollout.target[rows]).square().mean()
        entropy = now.entropy.mean()
        with torch.no_grad():
            kl = ((ratio - 1) - log_ratio).mean()  # of the old policy from the new, an estimate that cannot be negative
            clipped = ((ratio - 1).abs() > config.clip).float().mean()
        scalars = {"policy": policy, "value": value, "entropy": entropy, "kl": kl, "clipped": clipped}
        return policy + config.value * value - config.entropy * entropy, {k: float(v.detach()) for k, v in scalars.items()}

    # ---- checkpoints ------------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Everything, in one safetensors file, written aside and moved into place."""
        env = self.env
        tensors = {f"policy.{k}": v for k, v in self.policy.state_dict().items()}
        for i, p in enumerate(self.parameters):
            tensors |= {f"adam.{i}.{k}": torch.as_tensor(v) for k, v in self.optimiser.state[p].items()}
        tensors |= {"generator": self.generator.get_state(), "returns": torch.from_numpy(self.returns)}
        for name in ("task", "mask", "f", "f_before", "step_count", "episode"):
            tensors[f"env.{name}"] = torch.from_numpy(getattr(env, name))
        facts = {
            "iteration": self.iteration,
            "rng": self.rng.bit_generator.state,
            "ppo": asdict(self.config),
            "reward": asdict(self.reward),
            "policy": asdict(self.policy.config),
            "tasks": [task.name for task in self.tasks],
        }
        temporary = path.with_name(path.name + ".tmp")
        save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, temporary, {"facts": json.dumps(facts)})
        os.replace(temporary, path)

    def load(self, path: Path) -> None:
        """Goes on where the run that wrote `path` was; refuses another run's checkpoint."""
        with safe_open(path, framework="pt") as file:
            facts = json.loads(file.metadata()["facts"])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
        ours = {"ppo": asdict(self.config), "reward": asdict(self.reward), "tasks": [task.name for task in self.tasks]}
        for key, value in ours.items():
            if facts[key] != value:
                raise MechRLError(f"{path}: was written with other settings ({key}); resume with the same, or start anew")
        self.policy.load_state_dict({k.removeprefix("policy."): v for k, v in tensors.items() if k.startswith("policy.")})
        for i, p in enumerate(self.parameters):
            moments = {k.split(".")[2]: v for k, v in tensors.items() if k.startswith(f"adam.{i}.")}
            self.optimiser.state[p] = {k: v.to(p.device if v.ndim else "cpu") for k, v in moments.items()}
        self.generator.set_state(tensors["generator"])
        self.rng.bit_generator.state = facts["rng"]
        self.iteration, self.returns = facts["iteration"], tensors["returns"].numpy().copy()
        for name in ("task", "mask", "f", "f_before", "step_count", "episode"):
            setattr(self.env, name, tensors[f"env.{name}"].numpy().copy())

