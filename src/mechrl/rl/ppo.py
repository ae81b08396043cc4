"""Training: PPO with GAE and PCGrad over many behaviours at once (the paper's section 3.4), from top to bottom.

The paper's hyperparameters are the defaults; what it leaves unsaid follows its published code or CleanRL, and has a name here.
A rollout is `transitions` steps shared by `envs` environments; each episode draws its behaviour. Running out of steps is part of the
task and visible in the state, so it is terminal for GAE. Advantages are whitened per behaviour. Every minibatch gives one
gradient per behaviour in it, weighted by its share of the samples, so that without conflicts PCGrad's result is the
ordinary PPO gradient.

With a process group every rank runs its share of the environments, whose forward passes are what takes time. All else is done by rank 0,
on the gathered states and outcomes: it is bound by launches, of which sharing saves none, and so the number of ranks changes
nothing in the result. It hands round the actions; the others' policies stay as they were and decide nothing.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from mechrl.errors import MechRLError
from mechrl.files import write_atomically
from mechrl.files.reading import parse_json
from mechrl.files.sealed import read_sealed, sealed
from mechrl.ranges import check_seed
from mechrl.rl.env import MAX_PICKS, STATE, Actions, RewardSettings, Task, VectorEnv
from mechrl.rl.pcgrad import orders, pcgrad
from mechrl.rl.policy import (
    Choice,
    Layout,
    Policy,
    PolicyConfig,
    Record,
    States,
    Tables,
    Weights,
    apart,
    replay,
)


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
        check_seed(self.seed)
        if self.transitions % self.envs or self.transitions % self.minibatches:
            raise MechRLError(
                f"{self.transitions} transitions do not divide evenly among {self.envs} environments and {self.minibatches} minibatches"
            )


@dataclass(frozen=True)
class Rollout:
    """`transitions` states and actions, and what came of them."""

    record: Record
    log_prob: Tensor  # [N]
    advantage: Tensor  # [N] whitened per behaviour
    target: Tensor  # [N] of the value function
    task: np.ndarray  # [N] the record's tasks and types once more, on the host
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
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.tasks, self.config, self.reward, self.device, self.group = (
            tasks,
            config,
            reward,
            torch.device(device),
            group,
        )
        self.rank, self.world = (
            (dist.get_rank(group), dist.get_world_size(group)) if group is not None else (0, 1)
        )
        if config.envs % self.world:
            raise MechRLError(f"{config.envs} environments do not divide evenly among {self.world} processes")
        torch.manual_seed(config.seed)
        self.policy = (policy or Policy(PolicyConfig())).to(self.device)
        self.parameters = list(self.policy.parameters())
        on_device = self.device.type == "cuda"
        self.optimiser = torch.optim.Adam(
            self.parameters, lr=config.learning_rate, eps=config.adam_eps, fused=on_device
        )
        self.rng = np.random.default_rng(config.seed)
        self.generator = torch.Generator(self.device).manual_seed(config.seed)
        self.tables = Tables.of(tasks, self.device)
        n = config.envs // self.world
        self.mine = slice(self.rank * n, (self.rank + 1) * n)  # of the environments
        self.env = VectorEnv(tasks, n, reward, self.rng, first=self.mine.start)
        self.iteration = 0
        self.returns = np.zeros(config.envs)  # of the running episodes

    def run(self) -> Iterator[dict[str, Any]]:
        """Trains to the end, one iteration at a time; yields its scalars."""
        while self.iteration < self.config.iterations:
            scalars: dict[str, Any] = {}
            if (rollout := self._collect(scalars)) is not None:
                began = time.perf_counter()
                scalars |= self._update(
                    rollout
                )  # ends with reading numbers off the device, so the clock is right
                scalars["time/update"] = time.perf_counter() - began
            self.iteration += 1
            yield {"iteration": self.iteration} | scalars

    # ---- rollout ----------------------------------------------------------------------------------------------------

    def _gather(self, mine: np.ndarray) -> np.ndarray:
        """All ranks' environments [n / world, ...] as one array [n, ...]."""
        if self.group is None:
            return mine.copy()
        if not mine.size:
            return np.zeros((self.world * len(mine), *mine.shape[1:]), mine.dtype)
        device = "cpu" if dist.get_backend(self.group) == "gloo" else self.device
        sent = torch.from_numpy(np.frombuffer(bytearray(mine.tobytes()), np.uint8)).to(device)
        received = torch.empty(self.world * len(sent), dtype=torch.uint8, device=device)
        dist.all_gather_into_tensor(received, sent, group=self.group)
        return np.frombuffer(bytearray(received.cpu().numpy().tobytes()), mine.dtype).reshape(
            -1, *mine.shape[1:]
        )

    def _states(self) -> States | None:
        """Of all environments, on rank 0. Waits for the slowest rank's engine."""
        env = self.env
        arrays = (env.task, env.mask, env.globals(), env.scores, env.closed)
        task, mask, values, scores, closed = (self._gather(x) for x in arrays)
        return States.of(task, mask, values, scores, closed, self.device) if self.rank == 0 else None

    def _act(self, here: States | None, choices: list[Choice]) -> Actions:
        """Rank 0 decides, and keeps its choice; everybody learns what to do in its environments."""
        device = "cpu" if self.group is None or dist.get_backend(self.group) == "gloo" else self.device
        decided = torch.zeros(self.config.envs, 2 + MAX_PICKS, dtype=torch.int64, device=device)
        if here is not None:
            choices.append(self.policy.act(self.tables, here, self.generator))
            actions = choices[-1].actions
            decided.copy_(torch.from_numpy(np.column_stack([actions.type, actions.node, actions.edges])))
        if self.group is not None:
            dist.broadcast(decided, dist.get_global_rank(self.group, 0), group=self.group)
        mine = decided[self.mine].cpu().numpy()
        return Actions(mine[:, 0], mine[:, 2:], mine[:, 1])

    def _collect(self, scalars: dict[str, Any]) -> Rollout | None:
        """A rollout of all environments, on rank 0; adds what there is to say about it."""
        config, env = self.config, self.env
        steps = config.transitions // config.envs
        states: list[States] = []
        choices: list[Choice] = []
        outcomes = []
        seconds = {"act": 0.0, "engine": 0.0}
        for _ in range(steps):
            clock = [time.perf_counter()]
            here = self._states()
            clock.append(time.perf_counter())
            actions = self._act(here, choices)
            clock.append(time.perf_counter())
            step = env.step(actions)
            clock.append(time.perf_counter())
            seconds["act"] += clock[2] - clock[1]
            seconds["engine"] += clock[3] - clock[2] + clock[1] - clock[0]
            states += [] if here is None else [here]
            outcomes.append(np.stack([step.reward, step.f, step.edges, step.done], 1))
        last = self._states()
        reward, f, edges, done = self._gather(np.stack(outcomes, 1)).transpose(2, 1, 0)  # each [steps, envs]
        if last is None:
            return None
        last_value = self.policy.value(self.tables, last).double().cpu().numpy()
        value = torch.stack([c.value for c in choices]).double().cpu().numpy()
        advantage = gae(reward, value, done, last_value, config.gamma, config.gae_lambda)
        together = States.cat(states)
        task = together.task.cpu().numpy()
        white = whiten(advantage, task.reshape(advantage.shape))

        def flat(x: np.ndarray) -> Tensor:
            return torch.from_numpy(x.reshape(-1, *x.shape[2:])).to(self.device)

        kind = np.array([c.actions.type for c in choices])
        picks, node = (
            np.array([c.actions.edges for c in choices]),
            np.array([c.actions.node for c in choices]),
        )
        rollout = Rollout(
            Record.of(self.tables, together, flat(kind), flat(picks), flat(node)),
            torch.cat([c.log_prob for c in choices]),
            flat(white).float(),
            flat(advantage + value).float(),
            task,
            kind.flatten(),
        )
        explained = 1 - np.var(advantage) / max(np.var(advantage + value), 1e-12)
        scalars |= self._ended(reward, f, edges, done, task.reshape(done.shape))
        scalars |= {"rollout/reward": float(reward.mean()), "value/explained_variance": float(explained)}
        scalars |= {f"time/{part}": s for part, s in seconds.items()}
        return rollout

    def _ended(
        self, reward: np.ndarray, f: np.ndarray, edges: np.ndarray, done: np.ndarray, task: np.ndarray
    ) -> dict[str, Any]:
        """Means over the episodes that ended, of all behaviours and of each."""
        found: dict[str, list[float]] = defaultdict(list)
        for step in range(len(reward)):
            self.returns += reward[step]
            for i in np.flatnonzero(done[step]):
                of_task = self.tasks[task[step, i]]
                ended = {"return": self.returns[i], "f": f[step, i], "edges": edges[step, i]}
                for key, number in ended.items():
                    found[f"episode/{key}"].append(number)
                    found[f"behaviour/{of_task.name}/{key}"].append(number)
                found["episode/reached"].append(f[step, i] >= of_task.tau)
                self.returns[i] = 0.0
        scalars: dict[str, Any] = {"episodes": int(done.sum())}
        scalars |= {f"episode/{key}": None for key in ("return", "f", "edges", "reached")}
        return scalars | {key: float(np.mean(numbers)) for key, numbers in found.items()}

    # ---- update -----------------------------------------------------------------------------------------------------

    def _update(self, rollout: Rollout) -> dict[str, float]:
        """Nothing but the means at the end is read off the device: the host prepares everything else beforehand."""
        config, T = self.config, len(self.tasks)
        rate = config.learning_rate * (1 - self.iteration / config.iterations if config.anneal else 1.0)
        self.optimiser.param_groups[0]["lr"] = rate
        batches: list[np.ndarray] = []
        for _ in range(config.epochs):
            batches += np.split(self.rng.permutation(len(rollout.kind)), config.minibatches)
        layouts = [self._layouts(rollout, rows) for rows in batches]
        order = torch.from_numpy(np.stack([orders(T, self.rng) for _ in batches])).to(self.device)
        sums = torch.zeros(6, device=self.device)
        for i, parts in enumerate(layouts):
            gradients, scalars = self._gradients(rollout, parts)
            gradient = pcgrad(gradients, order[i]) if config.deconflict and T > 1 else gradients.sum(0)
            norm = gradient.norm()
            gradient = gradient * (config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
            for p, g in zip(
                self.parameters, gradient.split([p.numel() for p in self.parameters]), strict=True
            ):
                p.grad = g.view_as(p)
            self.optimiser.step()
            sums += torch.cat([scalars, norm[None]]) / len(layouts)
        names = ("policy", "value", "entropy", "kl", "clipped", "gradient_norm")
        return {f"loss/{key}": number for key, number in zip(names, sums.tolist(), strict=True)} | {
            "learning_rate": rate
        }

    def _gradients(self, rollout: Rollout, parts: list[Layout]) -> tuple[Tensor, Tensor]:
        """[T, P] one gradient per behaviour, weighted by its share of the minibatch, and the means of what is reported [5]."""
        n = sum(len(layout.place) for layout in parts)
        found = [
            [x * (len(layout.place) / n) for x in self._part_gradients(rollout, layout)] for layout in parts
        ]
        gradients, scalars = (sum(xs[1:], start=xs[0]) for xs in zip(*found, strict=True))
        return gradients, scalars

    def _part_gradients(self, rollout: Rollout, layout: Layout) -> tuple[Tensor, Tensor]:
        """As if the minibatch were this part."""
        states, tables = rollout.record.states, self.tables
        if states.looks is not None:
            rows = layout.row[:, 0]
            tables, _ = states[rows].own_tables(tables)
        weights = {
            name: w.detach().requires_grad_() for name, w in self.policy.weights(len(tables.edges)).items()
        }
        loss, scalars = self._loss(weights, tables, rollout, layout)
        parts = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
        flat = torch.cat(
            [
                (torch.zeros_like(w) if g is None else g).flatten(1)
                for w, g in zip(weights.values(), parts, strict=True)
            ],
            1,
        )
        if states.looks is not None:
            flat = flat.new_zeros(len(self.tasks), flat.shape[1]).index_add_(0, states.task[rows], flat)
        return flat, scalars

    def _layouts(self, rollout: Rollout, rows: np.ndarray) -> list[Layout]:
        """By behaviour; after a look every sample is a group of its own, since its tables are, and not all may fit at once."""
        if rollout.record.states.looks is None:
            return [Layout.of(rollout.task, rollout.kind, rows, len(self.tasks), self.device)]
        found = []
        for part in (rows[some] for some in apart(len(rows), rollout.record.states.mask.shape[1])):
            group = np.zeros_like(rollout.task)
            group[part] = np.arange(len(part))
            found.append(Layout.of(group, rollout.kind, part, len(part), self.device))
        return found

    def _loss(
        self, weights: Weights, tables: Tables, rollout: Rollout, layout: Layout
    ) -> tuple[Tensor, Tensor]:
        config = self.config
        now = replay(weights, tables, rollout.record, layout)
        sample = layout.row[:, : layout.n_samples]
        advantage = rollout.advantage[sample]
        log_ratio = now.log_prob - torch.where(
            layout.real > 0, rollout.log_prob[sample], now.log_prob.detach()
        )
        ratio = log_ratio.exp()
        policy = -torch.minimum(ratio * advantage, ratio.clamp(1 - config.clip, 1 + config.clip) * advantage)
        value = 0.5 * (now.value - rollout.target[sample]).square()
        kl = (ratio - 1) - log_ratio  # of the old policy from the new, an estimate that cannot be negative
        clipped = (ratio - 1).abs() > config.clip
        share = layout.real.to(ratio.dtype) / len(layout.place)  # 0 for padding
        means = [(share * x).sum() for x in (policy, value, now.entropy, kl, clipped)]
        loss = means[0] + config.value * means[1] - config.entropy * means[2]
        return loss, torch.stack(means).detach()

    # ---- checkpoints ------------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Everything, in one safetensors file, written aside and moved into place. All ranks call it, the first writes."""
        if (content := self.to_bytes()) is not None:
            write_atomically(path, content)

    def to_bytes(self) -> bytes | None:
        """What is saved, on the first rank. All ranks call it."""
        state = {name: self._gather(getattr(self.env, name)) for name in STATE}
        if self.rank:
            return None
        tensors = {f"policy.{k}": v for k, v in self.policy.state_dict().items()}
        for i, p in enumerate(self.parameters):
            tensors |= {f"adam.{i}.{k}": torch.as_tensor(v) for k, v in self.optimiser.state[p].items()}
        tensors |= {"generator": self.generator.get_state(), "returns": torch.from_numpy(self.returns)}
        tensors |= {f"env.{name}": torch.from_numpy(array) for name, array in state.items()}
        facts = {
            "iteration": self.iteration,
            "rng": self.rng.bit_generator.state,
            "ppo": asdict(self.config),
            "reward": asdict(self.reward),
            "policy": asdict(self.policy.config),
            "tasks": [task.name for task in self.tasks],
        }
        return sealed({k: v.detach().cpu().numpy() for k, v in tensors.items()}, {"facts": json.dumps(facts)})

    def load(self, path: Path) -> None:
        """Goes on where the run that wrote `path` was, with any number of ranks; refuses another run's checkpoint."""
        arrays, texts = read_sealed(path)
        facts, tensors = (
            parse_json(texts["facts"]),
            {key: torch.from_numpy(array) for key, array in arrays.items()},
        )
        ours = {
            "ppo": asdict(self.config),
            "reward": asdict(self.reward),
            "tasks": [task.name for task in self.tasks],
        }
        for key, value in ours.items():
            if facts[key] != value:
                raise MechRLError(
                    f"{path}: was written with other settings ({key}); resume with the same, or start anew"
                )
        if any(f"env.{name}" not in tensors for name in STATE):
            raise MechRLError(f"{path}: was written by an older version of MechRL; start anew")
        self._check_shapes(facts, tensors)
        self.policy.load_state_dict(
            {k.removeprefix("policy."): v for k, v in tensors.items() if k.startswith("policy.")}
        )
        for i, p in enumerate(self.parameters):
            moments = {k.split(".")[2]: v for k, v in tensors.items() if k.startswith(f"adam.{i}.")}
            self.optimiser.state[p] = {k: v.to(p.device) for k, v in moments.items()}
        self.generator.set_state(tensors["generator"])
        self.rng.bit_generator.state = facts["rng"]
        self.iteration, self.returns = facts["iteration"], tensors["returns"].numpy().copy()
        for name in STATE:
            setattr(self.env, name, tensors[f"env.{name}"].numpy()[self.mine].copy())

    def _check_shapes(self, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """What is loaded must be what is there now, of the same shape and kind; a ValueError if it is not."""
        there = {f"env.{name}": getattr(self.env, name) for name in STATE}
        there = {name: (self.world * len(now), *now.shape[1:]) for name, now in there.items()} | {
            "returns": self.returns.shape
        }
        wrong = [name for name, shape in there.items() if tuple(tensors[name].shape) != shape]
        wrong += [
            f"adam.{i}"
            for i, p in enumerate(self.parameters)
            for k, v in tensors.items()
            if k.startswith(f"adam.{i}.exp_avg") and v.shape != p.shape
        ]
        if (
            wrong
            or type(facts["iteration"]) is not int
            or not 0 <= facts["iteration"] <= self.config.iterations
        ):
            raise ValueError(f"{', '.join(wrong) or 'the iteration'}: not of this run")
