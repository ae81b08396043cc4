"""Speed of acting and of a PPO update on synthetic tables: `python benchmarks/rl_update.py --device cuda`. Prints JSON.

Features, masks and rewards are random, so no model is needed. Updates are of two mixes of actions: "mean" has all types alike
often (about 8 picks an action), "worst" cuts 30 edges always. With `--looks` every state has scores, and so tables, of its own.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from mechrl.rl.env import BATCH_SIZES, MAX_PICKS, PAPERS_TYPES
from mechrl.rl.features import N_EDGE, N_NODE, look
from mechrl.rl.policy import Policy, PolicyConfig, Record, States, Tables
from mechrl.rl.ppo import PPOConfig, Rollout, Trainer


def synthetic_tables(T: int, K: int, M: int, device: str) -> Tables:
    """Behaviours with K to 0.6 K candidates, every node with at least one."""
    rng = np.random.default_rng(0)
    n_edges = np.linspace(0.6 * K, K, T).astype(int)[::-1].copy()
    parent, degree = np.zeros((T, K), np.int64), np.ones((T, M), np.float32)
    for t, n in enumerate(n_edges):
        parent[t, :n] = rng.permutation(np.concatenate([np.arange(M), rng.integers(0, M, n - M)]))
        degree[t] = np.bincount(parent[t, :n], minlength=M)
    edges, nodes = (rng.normal(size=shape).astype(np.float32) for shape in ((T, K, N_EDGE), (T, M, N_NODE)))
    arrays = (edges, nodes, parent, n_edges, np.full(T, M), degree)
    return Tables(*(torch.from_numpy(a).to(device) for a in arrays), n_rows=int((degree + 1).sum(1).max()))


def random_states(tables: Tables, n: int, rng: np.random.Generator, looks: bool) -> States:
    n_edges = tables.n_edges.cpu().numpy()
    task = rng.integers(0, len(n_edges), n)
    inside = np.arange(tables.edges.shape[1]) < n_edges[task][:, None]
    mask = inside & (rng.random(inside.shape) < rng.uniform(0.1, 1, (n, 1)))
    values = rng.random((n, 6), dtype=np.float32)
    states = States(*(torch.from_numpy(x).to(tables.edges.device) for x in (task, mask, values)))
    return (
        replace(states, looks=look(torch.randn(mask.shape, device=states.mask.device) * states.mask))
        if looks
        else states
    )


def random_rollout(trainer: Trainer, picks: str, rng: np.random.Generator, looks: bool) -> Rollout:
    """Legal actions in random states, with the log-probabilities that the policy gives them."""
    tables, n = trainer.tables, trainer.config.transitions
    states = random_states(tables, n, rng, looks)
    kind = rng.integers(0, PAPERS_TYPES, n) if picks == "mean" else np.full(n, 4)
    edges, node, mask = np.full((n, MAX_PICKS), -1), np.zeros(n, np.int64), states.mask.cpu().numpy()
    parent, task = tables.parent.cpu().numpy(), states.task.cpu().numpy()
    for i in range(n):
        alive = rng.permutation(np.flatnonzero(mask[i]))
        edges[i, : BATCH_SIZES[kind[i]]] = alive[: BATCH_SIZES[kind[i]]]
        node[i] = parent[task[i], alive[0]]
    actions = [torch.from_numpy(x).to(trainer.device) for x in (kind, edges, node)]
    with torch.no_grad():
        log_prob = trainer.policy.evaluate(tables, states, *actions).log_prob
    advantage, target = (
        torch.from_numpy(rng.normal(size=n).astype(np.float32)).to(trainer.device) for _ in range(2)
    )
    return Rollout(Record.of(tables, states, *actions), log_prob, advantage, target, task, kind)


def synthetic_trainer(tables: Tables, config: PPOConfig, width: int, device: str) -> Trainer:
    """A trainer without tasks and environments."""
    trainer = object.__new__(Trainer)
    trainer.tasks, trainer.config, trainer.device, trainer.group = (
        [None] * len(tables.edges),
        config,
        torch.device(device),
        None,
    )  # type: ignore[list-item]
    torch.manual_seed(0)
    trainer.policy = Policy(PolicyConfig(width)).to(device)
    trainer.parameters = list(trainer.policy.parameters())
    trainer.optimiser = torch.optim.Adam(
        trainer.parameters, lr=1e-6, eps=config.adam_eps, fused=device == "cuda"
    )
    trainer.rng, trainer.tables, trainer.iteration = np.random.default_rng(0), tables, 0
    return trainer


def milliseconds(work, n: int, device: str) -> dict[str, float]:
    times = []
    for _ in range(n + 1):  # the first compiles and captures
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began))
    return {"first": times[0], "median": float(np.median(times[1:])), "min": min(times[1:])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    for name, cuda, cpu in (
        ("tasks", 12, 3),
        ("edges", 5000, 600),
        ("nodes", 300, 60),
        ("width", 128, 64),
        ("envs", 64, 16),
    ):
        parser.add_argument(f"--{name}", type=int, default=cuda if on_gpu else cpu)
    parser.add_argument("--transitions", type=int, default=512 if on_gpu else 64)
    parser.add_argument("--repeats", type=int, default=10 if on_gpu else 2)
    parser.add_argument("--looks", action="store_true", help="States with tables of their own.")
    parser.add_argument("--profile", action="store_true", help="Also print where an update's time goes.")
    given = parser.parse_args()
    tables = synthetic_tables(given.tasks, given.edges, given.nodes, given.device)
    config = PPOConfig(transitions=given.transitions, envs=given.envs)
    trainer = synthetic_trainer(tables, config, given.width, given.device)
    rng = np.random.default_rng(1)
    generator = torch.Generator(given.device).manual_seed(0)
    states = random_states(tables, given.envs, rng, given.looks)
    result: dict[str, object] = vars(given) | {
        "act_ms": milliseconds(
            lambda: trainer.policy.act(tables, states, generator), given.repeats, given.device
        )
    }
    for picks in ("mean", "worst"):
        rollout = random_rollout(trainer, picks, rng, given.looks)
        if given.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        result[f"update_{picks}_ms"] = milliseconds(
            partial(trainer._update, rollout), given.repeats, given.device
        )
        if given.device == "cuda":
            result[f"update_{picks}_peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        if given.profile:
            activities = [torch.profiler.ProfilerActivity.CPU]
            if given.device == "cuda":
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            with torch.profiler.profile(activities=activities) as profile:
                trainer._update(rollout)
            print(profile.key_averages().table(sort_by=f"self_{given.device}_time_total", row_limit=25))
    if given.profile and given.device == "cuda":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            trainer.policy.act(tables, states, generator)
        print(profile.key_averages().table(sort_by="self_cuda_time_total", row_limit=25))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
