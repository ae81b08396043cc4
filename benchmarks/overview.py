"""Draws a real episode of the paper's agent, from a policy's folder.

    python benchmarks/overview.py [--policy runs/toy] [--behaviour acronyms] [--out docs/images/paper-overview.svg]

A greedy episode on one behaviour of the embedded model: f, size and potential after every action, and the remaining edges at four
points. Without --policy, a policy is first trained for minutes instead of hours: on this behaviour alone, with fewer candidates, shorter
episodes and ten times the paper's learning rate.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from mechrl.agents.paper.checkpoint import load_policy, trained_with
from mechrl.agents.paper.deploy import Episode, Rollouts
from mechrl.agents.paper.env import EnvConfig, Task
from mechrl.agents.paper.policy import Policy
from mechrl.agents.paper.ppo import PPOConfig, Trainer
from mechrl.agents.paper.tasks import TaskSettings, task_of
from mechrl.behaviours import get_behaviour
from mechrl.files import write_atomically
from mechrl.models import load_model
from mechrl.report.figures import BLACK, BLUE, GREEN, GREY, ORANGE, RED, Figure, draw

SMALL = TaskSettings(pairs=4, k=60)
SHORT = EnvConfig(max_steps=30)
QUICK = PPOConfig(iterations=24, transitions=256, envs=32, learning_rate=3e-3, entropy=0.003, gamma=0.8)
OUT = Path(__file__).parents[1] / "docs/images/paper-overview.svg"
MOMENTS = 4


def masks_of(episode: Episode, K: int) -> np.ndarray:
    """[steps + 1, K] before the first action and after every one."""
    masks = np.ones((len(episode.cuts) + 1, K), dtype=bool)
    for step, cut in enumerate(episode.cuts):
        masks[step + 1 :, list(cut)] = False
    return masks


def paint_graph(ax: Any, task: Task, mask: np.ndarray) -> None:
    """Candidate edges between components, by layer; what is cut is gone."""
    graph = task.engine.graph
    source, receiver = graph.edge_source[task.candidates], graph.edge_receiver[task.candidates]
    seen: dict[float, int] = {}

    def place(layer: float, name: str) -> tuple[float, float]:
        if name not in spots:
            spots[name] = (seen.get(layer, 0), layer)
            seen[layer] = seen.get(layer, 0) + 1
        return spots[name]

    spots: dict[str, tuple[float, float]] = {}
    lines = []
    for s, r, kept in zip(source, receiver, mask, strict=True):
        parent, child = graph.source_names[s], graph.receiver_names[r].split("<")[0]
        low = place(-1 if s == 0 else graph.source_layer[s] + 0.5 * parent.startswith("m"), parent)
        top = graph.n_layers if child == "logits" else graph.receiver_layer[r] + 0.5 * child.startswith("m")
        high = place(top, child)
        if kept:
            lines.append((low, high))
    widest = max(seen.values())

    def centred(spot: tuple[float, float]) -> tuple[float, float]:
        return spot[0] + (widest - seen[spot[1]]) / 2, spot[1]

    for low, high in lines:
        (x0, y0), (x1, y1) = centred(low), centred(high)
        ax.plot([x0, x1], [y0, y1], color=BLUE, lw=0.4, alpha=0.5)
    points = np.array([centred(spot) for spot in spots.values()])
    ax.plot(points[:, 0], points[:, 1], "o", color=GREY, ms=2.5)
    ax.axis("off")


def overview(policy: Path | None, name: str) -> Figure:
    model, behaviour = load_model("toy", device="cpu"), get_behaviour(name)
    settings, env = (SMALL, SHORT) if policy is None else trained_with(policy)
    task = task_of(model, behaviour, settings, env)
    agent = trained(task) if policy is None else load_policy(policy)
    (episode,) = Rollouts(agent, task, env, 0, 0).run()
    return picture(task, env, episode, name)


def trained(task: Task) -> Policy:
    trainer = Trainer([task], QUICK, SHORT)
    for row in trainer.run():
        known = {key: row[key] for key in ("iteration", "episode/return", "episode/f", "episode/edges")}
        print(known, file=sys.stderr, flush=True)
    return trainer.policy


def picture(task: Task, env: EnvConfig, episode: Episode, name: str) -> Figure:
    masks = masks_of(episode, task.K)
    steps = np.arange(len(masks))
    potential = env.potential(episode.f, episode.size, task.K, task.tau)
    moments = np.linspace(0, steps[-1], MOMENTS).round().astype(int)

    def paint(canvas: Any) -> None:
        grid = canvas.add_gridspec(2, 2 * MOMENTS, height_ratios=(1.25, 1))
        for i, step in enumerate(moments):
            ax = canvas.add_subplot(grid[0, 2 * i : 2 * i + 2])
            paint_graph(ax, task, masks[step])
            ax.set_title(
                f"after {step} actions: {episode.size[step]} edges, f {episode.f[step]:.2f}", fontsize=8
            )
        left = canvas.add_subplot(grid[1, :MOMENTS])
        left.plot(steps, episode.f, color=GREEN, label="f")
        left.plot(steps, episode.size / task.K, color=BLACK, label="edges present, k/K")
        left.axhline(task.tau, color=GREY, lw=0.8, ls=":", label="target τ")
        right = canvas.add_subplot(grid[1, MOMENTS:])
        right.plot(steps, potential, color=ORANGE, label="potential Φ")
        right.bar(steps[1:], np.diff(potential), color=RED, width=0.8, label="reward r")
        for ax in (left, right):
            ax.set_xlabel("actions")
            ax.legend()

    return draw(
        name="paper-overview",
        title="An episode of the paper's agent",
        caption=f"{name} in the embedded model.",
        alt="Candidate edges disappear as the agent acts; f, size, potential and reward along the way.",
        data={"f": episode.f.tolist(), "size": episode.size.tolist(), "potential": potential.tolist()},
        command="python benchmarks/overview.py",
        size=(10.0, 5.4),
        paint=paint,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--policy", type=Path)
    parser.add_argument("--behaviour", default="acronyms")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    write_atomically(given.out, overview(given.policy, given.behaviour).svg)
    print(given.out)


if __name__ == "__main__":
    main()
