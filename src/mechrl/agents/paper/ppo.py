"""Training: PPO with GAE and PCGrad on many behaviours at once (the paper's section 3.4 and its hyperparameters), from top to bottom.

1. A rollout of 512 transitions, from a few parallel environments. Each episode draws a random behaviour.
2. Advantages by GAE, whitened within each behaviour. The step limit counts as terminal: it is part of the task and visible in the state.
3. Four epochs of four minibatches. Each minibatch gives one gradient per behaviour in it, weighted by its share of the samples;
   PCGrad removes their conflicts and sums them. Without conflicts this is the ordinary PPO gradient.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechrl.agents.paper.env import STATE, STOP, EnvConfig, Task, VectorEnv
from mechrl.agents.paper.pcgrad import orders, pcgrad
from mechrl.agents.paper.policy import Policy
from mechrl.agents.paper.policy_batched import Actor, Choice, Weights, copies
from mechrl.agents.paper.policy_replay import Layout, Transitions, replay
from mechrl.agents.paper.policy_tables import States, Tables
from mechrl.errors import MechRLError
from mechrl.files.reading import parse_json
from mechrl.files.sealed import read_sealed, sealed
from mechrl.ranges import check_seed


@dataclass(frozen=True)
class PPOConfig:
    iterations: int = 1200
    transitions: int = 512  # per iteration
    envs: int = 4  # parallel episodes; a rollout is transitions / envs steps of each
    gamma: float = 0.99  # discount
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy: float = 0.01  # coefficient of the entropy bonus
    value: float = 0.5  # coefficient of the value loss, which is not clipped
    max_grad_norm: float = 0.5
    epochs: int = 4
    minibatches: int = 4
    learning_rate: float = 2.5e-4  # Adam's; falls linearly to zero
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if self.transitions % self.envs or self.transitions % self.minibatches:
            raise MechRLError(
                f"{self.transitions} transitions do not divide evenly among {self.envs} environments and {self.minibatches} minibatches"
            )


@dataclass(frozen=True)
class Rollout:
    """`transitions` states and actions, with what PPO needs of them."""

    transitions: Transitions
    log_prob: Tensor  # [N]
    advantage: Tensor  # [N] whitened per behaviour
    target: Tensor  # [N] of the value function
    task: np.ndarray  # [N] their tasks and types once more, on the host
    kind: np.ndarray  # [N]


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
    """Zero mean and unit deviation within each behaviour; zero for a behaviour with a single sample."""
    result = np.zeros_like(advantage)
    for t in np.unique(task):
        mine = advantage[task == t]
        result[task == t] = (mine - mine.mean()) / (mine.std() + 1e-8)
    return result


class Trainer:
    """The state of a training run: a checkpoint holds all of it, so that a resumed run gives the same bits."""

    def __init__(
        self,
        tasks: Sequence[Task],
        config: PPOConfig,
        env: EnvConfig = EnvConfig(),  # noqa: B008 (frozen)
        policy: Policy | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """Without a policy, one is initialised from the seed."""
        self.tasks, self.config, self.device = list(tasks), config, torch.device(device)
        torch.manual_seed(config.seed)
        self.policy = (policy or Policy()).to(self.device)
        self.parameters = list(self.policy.parameters())
        self.optimiser = torch.optim.Adam(
            self.parameters, lr=config.learning_rate, eps=1e-5, fused=self.device.type == "cuda"
        )
        self.rng = np.random.default_rng(config.seed)
        self.generator = torch.Generator(self.device).manual_seed(config.seed)
        self.tables = Tables.of(tasks, self.device)
        self.actor = Actor(self.policy, self.tables)
        self.env = VectorEnv(tasks, config.envs, env, self.rng)
        self.iteration = 0
        self.returns = np.zeros(config.envs)  # of the current episodes

    def run(self) -> Iterator[dict[str, Any]]:
        """Trains to the end, one iteration at a time; yields its metrics."""
        while self.iteration < self.config.iterations:
            rollout, scalars = self.collect()
            began = time.perf_counter()
            scalars |= self.update(rollout)  # ends by reading from the device, so the time is right
            scalars["time/update"] = time.perf_counter() - began
            self.iteration += 1
            yield {"iteration": self.iteration} | scalars

    # ---- 1. the rollout ---------------------------------------------------------------------------------------------

    def collect(self) -> tuple[Rollout, dict[str, Any]]:
        """A rollout and its metrics."""
        env, ended = self.env, _Ended(self)
        states: list[States] = []
        choices: list[Choice] = []
        rewards, dones = [], []
        clock = time.perf_counter
        seconds = {"act": 0.0, "engine": 0.0}
        self.actor.refresh()
        for _ in range(self.config.transitions // self.config.envs):
            began = clock()
            states.append(self._states())
            choices.append(self.actor.act(states[-1], self.generator))
            acted = clock()
            at, task = env.step_count.copy(), env.task.copy()
            step = env.step(choices[-1].actions)
            seconds["act"] += acted - began
            seconds["engine"] += clock() - acted
            rewards.append(step.reward)
            dones.append(step.done)
            ended.add(step, task, at + (choices[-1].actions.type != STOP))
        rollout, explained = self._rollout(states, choices, np.array(rewards), np.array(dones))
        scalars = ended.scalars() | {
            "rollout/reward": float(np.mean(rewards)),
            "rollout/stop_share": float((rollout.kind == STOP).mean()),
            "value/explained_variance": explained,
        }
        return rollout, scalars | {f"time/{part}": s for part, s in seconds.items()}

    def _states(self) -> States:
        return States.of(self.env.task, self.env.mask, self.env.globals(), self.device)

    # ---- 2. advantages ----------------------------------------------------------------------------------------------

    def _rollout(
        self, states: list[States], choices: list[Choice], reward: np.ndarray, done: np.ndarray
    ) -> tuple[Rollout, float]:
        """Also returns the share of the targets' variance that the value function explains."""
        config = self.config
        value = torch.stack([c.value for c in choices]).double().cpu().numpy()
        last_value = self.actor.value(self._states()).double().cpu().numpy()
        advantage = gae(reward, value, done, last_value, config.gamma, config.gae_lambda)
        together = States.cat(states)
        task = together.task.cpu().numpy()
        white = whiten(advantage, task.reshape(advantage.shape))

        def flat(x: np.ndarray) -> Tensor:
            return torch.from_numpy(x.reshape(-1, *x.shape[2:])).to(self.device)

        kind = np.array([c.actions.type for c in choices])
        picks = flat(np.array([c.actions.edges for c in choices]))
        node = flat(np.array([c.actions.node for c in choices]))
        rollout = Rollout(
            Transitions.of(self.tables, together, flat(kind), picks, node),
            torch.cat([c.log_prob for c in choices]),
            flat(white).float(),
            flat(advantage + value).float(),
            task,
            kind.flatten(),
        )
        return rollout, float(1 - np.var(advantage) / max(np.var(advantage + value), 1e-12))

    # ---- 3. the update ----------------------------------------------------------------------------------------------

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Reads only the final means off the device; the host prepares everything else beforehand."""
        config = self.config
        rate = config.learning_rate * (1 - self.iteration / config.iterations)
        self.optimiser.param_groups[0]["lr"] = rate
        batches: list[np.ndarray] = []
        for _ in range(config.epochs):
            batches += np.split(self.rng.permutation(len(rollout.kind)), config.minibatches)
        layouts = [Layout.of(rollout.task, rollout.kind, rows, self.device) for rows in batches]
        order = [torch.from_numpy(orders(len(x.groups), self.rng)).to(self.device) for x in layouts]
        sums = torch.zeros(7, device=self.device)
        for layout, how in zip(layouts, order, strict=True):
            gradients, scalars = self.gradients(rollout, layout)
            gradient = pcgrad(gradients, how) if len(gradients) > 1 else gradients[0]
            norm = gradient.norm()
            gradient = gradient * (config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
            for p, g in zip(
                self.parameters, gradient.split([p.numel() for p in self.parameters]), strict=True
            ):
                p.grad = g.view_as(p)
            self.optimiser.step()
            sums += torch.cat([scalars, norm[None]]) / len(layouts)
        names = ("policy", "value", "type_entropy", "pick_entropy", "kl", "clipped", "gradient_norm")
        losses = {f"loss/{key}": number for key, number in zip(names, sums.tolist(), strict=True)}
        return losses | {"learning_rate": rate}

    def gradients(self, rollout: Rollout, layout: Layout) -> tuple[Tensor, Tensor]:
        """[G, P] one gradient for each behaviour that occurs, and the means of the reported numbers [6]."""
        n = len(layout.groups)
        weights = {name: w.detach().requires_grad_() for name, w in copies(self.policy, n).items()}
        loss, scalars = self.loss(weights, rollout, layout)
        found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
        parts = [
            (torch.zeros_like(w) if g is None else g).flatten(1)
            for w, g in zip(weights.values(), found, strict=True)
        ]
        return torch.cat(parts, 1), scalars

    def loss(self, weights: Weights, rollout: Rollout, layout: Layout) -> tuple[Tensor, Tensor]:
        """L = −E[min(r A, clip(r, 1 − ε, 1 + ε) A)] + c_v E[½ (V − target)²] − c_H E[H],  r = π_new / π_old

        H is the entropy of the type plus the mean entropy of the picks.
        """
        config = self.config
        now = replay(weights, self.tables, rollout.transitions, layout)
        sample = layout.row[:, : layout.n_samples]
        advantage = rollout.advantage[sample]
        before = torch.where(layout.real > 0, rollout.log_prob[sample], now.log_prob.detach())
        log_ratio = now.log_prob - before
        ratio = log_ratio.exp()
        policy = -torch.minimum(ratio * advantage, ratio.clamp(1 - config.clip, 1 + config.clip) * advantage)
        value = 0.5 * (now.value - rollout.target[sample]).square()
        kl = (ratio - 1) - log_ratio  # KL(old policy ‖ new policy), an estimate that is never negative
        clipped = (ratio - 1).abs() > config.clip
        share = layout.real.to(ratio.dtype) / len(layout.place)  # 0 for padding
        parts = (policy, value, now.type_entropy, now.pick_entropy, kl, clipped)
        means = [(share * x).sum() for x in parts]
        loss = means[0] + config.value * means[1] - config.entropy * (means[2] + means[3])
        return loss, torch.stack(means).detach()

    # ---- checkpoints ------------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """The whole state, in one file with a checksum."""
        tensors = {f"policy.{k}": v for k, v in self.policy.state_dict().items()}
        for i, p in enumerate(self.parameters):
            tensors |= {f"adam.{i}.{k}": torch.as_tensor(v) for k, v in self.optimiser.state[p].items()}
        tensors |= {"generator": self.generator.get_state(), "returns": torch.from_numpy(self.returns)}
        tensors |= {f"env.{name}": torch.from_numpy(getattr(self.env, name)) for name in STATE}
        facts = self._facts() | {"iteration": self.iteration, "rng": self.rng.bit_generator.state}
        return sealed({k: v.detach().cpu().numpy() for k, v in tensors.items()}, {"facts": json.dumps(facts)})

    def _facts(self) -> dict[str, Any]:
        """What identifies this run."""
        names = [task.name for task in self.tasks]
        env = asdict(self.env.config)
        return {"ppo": asdict(self.config), "env": env, "width": self.policy.width, "tasks": names}

    def load(self, path: Path) -> None:
        """Restores the state in `path`; refuses another run's checkpoint. Damage raises a ValueError or KeyError."""
        arrays, texts = read_sealed(path)
        facts = parse_json(texts["facts"])
        tensors = {key: torch.from_numpy(array) for key, array in arrays.items()}
        for key, value in self._facts().items():
            if facts[key] != value:
                raise MechRLError(
                    f"{path}: was written with other settings ({key}); resume with the same, or start a new run"
                )
        self._check(facts, tensors)
        weights = {k.removeprefix("policy."): v for k, v in tensors.items() if k.startswith("policy.")}
        self.policy.load_state_dict(weights)
        for i, p in enumerate(self.parameters):
            moments = {k.split(".")[2]: v for k, v in tensors.items() if k.startswith(f"adam.{i}.")}
            self.optimiser.state[p] = {k: v.to(p.device) for k, v in moments.items()}
        self.generator.set_state(tensors["generator"])
        self.rng.bit_generator.state = facts["rng"]
        self.iteration, self.returns = facts["iteration"], tensors["returns"].numpy().copy()
        for name in STATE:
            setattr(self.env, name, tensors[f"env.{name}"].numpy().copy())

    def _check(self, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Checks that the loaded tensors have the expected shapes."""
        shapes = {f"env.{name}": getattr(self.env, name).shape for name in STATE}
        shapes["returns"] = self.returns.shape
        for i, p in enumerate(self.parameters):
            shapes |= {f"adam.{i}.{moment}": p.shape for moment in ("exp_avg", "exp_avg_sq")}
        wrong = [name for name, shape in shapes.items() if tuple(tensors[name].shape) != tuple(shape)]
        done = facts["iteration"]
        if wrong or type(done) is not int or not 0 <= done <= self.config.iterations:
            raise ValueError(f"{', '.join(wrong) or 'the iteration'}: not of this run")


class _Ended:
    """Statistics of the episodes that ended in a rollout: means over all, and over each behaviour's."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.found: dict[str, list[float]] = defaultdict(list)

    def add(self, step: Any, task: np.ndarray, length: np.ndarray) -> None:
        returns, tasks = self.trainer.returns, self.trainer.tasks
        returns += step.reward
        for i in np.flatnonzero(step.done):
            of = tasks[task[i]]
            ended = {"return": returns[i], "f": step.f[i], "edges": step.edges[i], "length": length[i]}
            for key, number in ended.items():
                self.found[f"episode/{key}"].append(float(number))
                self.found[f"behaviour/{of.name}/{key}"].append(float(number))
            self.found["episode/reached"].append(float(step.f[i] >= of.tau))
            returns[i] = 0.0

    def scalars(self) -> dict[str, Any]:
        """None where no episode ended."""
        keys = ("return", "f", "edges", "length", "reached")
        nothing: dict[str, Any] = {f"episode/{key}": None for key in keys}
        means = {key: float(np.mean(numbers)) for key, numbers in self.found.items()}
        return {"episodes": len(self.found["episode/return"])} | nothing | means
