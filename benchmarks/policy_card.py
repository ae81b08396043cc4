"""Ships a trained policy: copies it from its run's folder into the package, deploys it, and writes card.md.

    python benchmarks/policy_card.py runs/toy toy --seeds 3

For every behaviour that the model exhibits, of the training and the held-out split: size, f on discovery and on fresh test pairs, and
passes, of one greedy rollout, and of 16 sampled ones besides, mean ± standard deviation over seeds.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from mechrl import gate
from mechrl.behaviours import behaviours
from mechrl.models import load_model
from mechrl.rl.rollout import SHIPPED, Deployment, deploy, load_policy, trained_with
from mechrl.rl.tasks import task_of
from mechrl.rl.train import METRICS, RUN

_FILES = ("config.json", "model.safetensors", RUN)
_POINTS = 12  # rows of the curve
_COLUMNS = (("edges", 0), ("faithfulness", 3), ("faithfulness_test", 3), ("passes", 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of the run")
    parser.add_argument("name", help="of the policy: toy or smollm2")
    parser.add_argument("--model", help="to deploy it on; by default the one it was trained on")
    parser.add_argument("--seeds", type=int, default=5, help="of rollouts, per behaviour")
    parser.add_argument("--tau", type=float, default=0.9)
    parser.add_argument("--pairs", type=int, default=20, help="discovery pairs of the deployments")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--no-copy", action="store_true", help="write the card beside the run instead of shipping it")
    arguments = parser.parse_args()

    about = json.loads((arguments.run / RUN).read_text())
    rows = [json.loads(line) for line in (arguments.run / METRICS).read_text().splitlines()]
    lines = [f"# The policy `{arguments.name}`", "", *provenance(about, rows), "", "## Training", "", *curve(rows), ""]
    lines += ["f, edges and reached τ are those of the episodes' last circuits.", ""]
    lines += ["## What it finds", "", *deployments(arguments, about), ""]
    folder = arguments.run if arguments.no_copy else SHIPPED / arguments.name
    folder.mkdir(parents=True, exist_ok=True)
    if not arguments.no_copy:
        for name in _FILES:
            shutil.copyfile(arguments.run / name, folder / name)
    (folder / "card.md").write_text("\n".join(lines))


def provenance(about: dict, rows: list[dict]) -> list[str]:
    ppo, task, last = about["ppo"], about["task"], rows[-1]
    done = f"{last['iteration']} of {ppo['iterations']}" if last["iteration"] < ppo["iterations"] else f"{ppo['iterations']}"
    return [
        "```",
        about["command"],
        "```",
        "",
        f"Seed {ppo['seed']}, {done} iterations of {ppo['transitions']} transitions, on {about['device']}: {last['seconds'] / 60:.0f} "
        f"minutes, {last['passes']:,.0f} passes. Model `{about['model']}` (checksum {about['checksum'][:12]}…), {len(about['behaviours'])} "
        f"behaviours, {task['pairs']} pairs each, K {_size(about)} by {task['prefilter']}, margin {about['reward']['margin']:g}, "
        f"H = {about['policy']['width']}. MechRL {about['versions']['mechrl']}, torch {about['versions']['torch']}. "
        "Everything else is in `run.json`.",
    ]


def _size(about: dict) -> str:
    """Of the candidate sets, which may differ from behaviour to behaviour."""
    sizes = [task["K"] for task in about["tasks"]]
    return f"= {sizes[0]:,}" if min(sizes) == max(sizes) else f"from {min(sizes):,} to {max(sizes):,}"


def curve(rows: list[dict]) -> list[str]:
    """Means over stretches of the run, of the iterations in which episodes ended."""
    lines = [
        "| iterations | episodes | return | f | edges | reached τ | entropy |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for part in np.array_split(np.array(rows, dtype=object), min(_POINTS, len(rows))):
        ended = [row for row in part if row["episodes"]]
        n = [row["episodes"] for row in ended]
        cells = [f"{part[0]['iteration']}–{part[-1]['iteration']}", str(sum(n))]
        for key, digits in (("return", 3), ("f", 3), ("edges", 0), ("reached", 2)):
            cells.append(f"{np.average([row[f'episode/{key}'] for row in ended], weights=n):.{digits}f}" if ended else "–")
        cells.append(f"{np.mean([row['loss/entropy'] for row in part]):.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def deployments(arguments: argparse.Namespace, about: dict) -> list[str]:
    model = load_model(arguments.model or about["model"], device=arguments.device)
    policy = load_policy(arguments.run, model.device)
    settings, reward = trained_with(arguments.run)
    settings = replace(settings, pairs=arguments.pairs)
    lines = [
        f"On `{model.name}`: the smallest circuit with f ≥ {arguments.tau:g} along the episodes, else the most faithful. First of one "
        f"greedy rollout; then of 16 sampled ones and the greedy one, mean ± standard deviation over {arguments.seeds} seeds of rollouts.",
        "",
        "| behaviour | split | candidates | ceiling | greedy: edges | f | f, fresh pairs | passes "
        "| 16 + 1: edges | f | f, fresh pairs | passes |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for behaviour in [*behaviours("train"), *behaviours("held-out")]:
        if not gate.judge(model, behaviour).exhibited:
            continue
        task = task_of(model, behaviour, settings, reward)
        prepared = task.engine.passes  # part of every deployment's cost
        circuits = []
        for deployment in (
            Deployment(arguments.tau, rollouts=0, best_along_episode=True),
            *(Deployment(arguments.tau, seed=seed, best_along_episode=True) for seed in range(arguments.seeds)),
        ):
            task.engine.passes = prepared
            circuits.append(deploy(model, behaviour, task, policy, deployment, settings, reward))
        greedy, *sampled = circuits
        split = "train" if behaviour.name in about["behaviours"] and model.name == about["model"] else "held out"
        cells = [behaviour.name, split, f"{task.K:,}", f"{task.ceiling:.3f}"]
        cells += [f"{getattr(greedy, key):,.{digits}f}" for key, digits in _COLUMNS]
        cells += [spread([getattr(circuit, key) for circuit in sampled], digits) for key, digits in _COLUMNS]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


def spread(numbers: list[float], digits: int) -> str:
    return f"{np.mean(numbers):,.{digits}f} ± {np.std(numbers):,.{digits}f}"


if __name__ == "__main__":
    main()
