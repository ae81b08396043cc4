"""Ships a trained policy: copies it from its run's folder into the package, deploys it, and writes card.md.

    python benchmarks/policy_card.py runs/toy toy --seeds 3
    python benchmarks/policy_card.py benchmarks/policy/smollm2 smollm2 --rows benchmarks/policy/smollm2/rows.jsonl

For every behaviour that the model exhibits, of the training and the held-out split: size, f on discovery and on fresh test pairs, and
passes, of one greedy rollout, and of 16 sampled ones besides, mean ± standard deviation over seeds. With --rows, what policy_smollm2.py
has measured of this policy is taken instead.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
from mechrl.rl.rollout import SHIPPED, load_policy
from mechrl.rl.tasks import task_of
from mechrl.rl.train import METRICS, RUN, file_checksum
from policy_smollm2 import TAU, Agent, Cell, Row, columns, deploy_rows, key, read, trading, zero_shot_table
from policy_smollm2 import deployments as asked

from mechrl import gate
from mechrl.behaviours import behaviours
from mechrl.models import load_model

_FILES = ("config.json", "model.safetensors")
_POINTS = 12  # rows of the curve


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of the run")
    parser.add_argument("name", help="of the policy: toy or smollm2")
    parser.add_argument("--model", help="to deploy it on; by default the one it was trained on")
    parser.add_argument("--seeds", type=int, default=5, help="of rollouts, per behaviour")
    parser.add_argument("--pairs", type=int, default=20, help="discovery pairs of the deployments")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", type=Path, help="deployments that policy_smollm2.py has measured")
    parser.add_argument(
        "--no-copy", action="store_true", help="write the card beside the run instead of shipping it"
    )
    arguments = parser.parse_args()

    about = json.loads((arguments.run / RUN).read_text())
    rows = [json.loads(line) for line in (arguments.run / METRICS).read_text().splitlines()]
    lines = [
        f"# The policy `{arguments.name}`",
        "",
        *provenance(about, rows),
        "",
        "## Training",
        "",
        *curve(rows),
        "",
    ]
    lines += ["f, edges and reached τ are those of the episodes' last circuits.", ""]
    lines += ["## What it finds", "", *deployments(arguments), ""]
    folder = arguments.run if arguments.no_copy else SHIPPED / arguments.name
    folder.mkdir(parents=True, exist_ok=True)
    if not arguments.no_copy:
        for name in _FILES:
            if (arguments.run / name).resolve() != (
                folder / name
            ).resolve():  # a link to what comes with MechRL already
                shutil.copyfile(arguments.run / name, folder / name)
        (folder / RUN).write_text(
            json.dumps(about | {"passes": rows[-1]["passes"]}, indent=1) + "\n"
        )  # its metrics stay behind
    (folder / "card.md").write_text("\n".join(lines))


def provenance(about: dict, rows: list[dict]) -> list[str]:
    ppo, task, last = about["ppo"], about["task"], rows[-1]
    done = (
        f"{last['iteration']} of {ppo['iterations']}"
        if last["iteration"] < ppo["iterations"]
        else f"{ppo['iterations']}"
    )
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
        for name, digits in (("return", 3), ("f", 3), ("edges", 0), ("reached", 2)):
            cells.append(
                f"{np.average([row[f'episode/{name}'] for row in ended], weights=n):.{digits}f}"
                if ended
                else "–"
            )
        cells.append(f"{np.mean([row['loss/entropy'] for row in part]):.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def deployments(arguments: argparse.Namespace) -> list[str]:
    rows = measured(arguments) if arguments.rows else deployed(arguments)
    names = [b.name for b in behaviours() if any(row["behaviour"] == b.name for row in rows)]
    seeds = Counter(
        len([row for row in rows if row["behaviour"] == name and row["rollouts"]]) for name in names
    )
    n = f"{min(seeds)} seeds" if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)} seeds"
    sampled = f"then of 16 sampled ones and the greedy one, mean ± standard deviation over {n} of rollouts"
    return [
        f"On `{rows[0]['model']}`: the smallest circuit with f ≥ {TAU:g} along the episodes, else the most faithful. First of one "
        f"greedy rollout; {sampled if max(seeds) else 'sampled ones were not run'}.",
        "",
        *zero_shot_table(names, rows),
    ]


def measured(arguments: argparse.Namespace) -> list[Row]:
    """The rows of this policy."""
    checksum = file_checksum(arguments.run / "model.safetensors")
    rows = {
        key(row): row
        for row in read(arguments.rows)
        if row["kind"] == "zero-shot" and row["policy"] == checksum
    }
    if not rows:
        raise SystemExit(f"{arguments.rows}: no row is of the policy in {arguments.run}")
    return trading(rows.values())


def deployed(arguments: argparse.Namespace) -> list[Row]:
    agent = Agent.read(arguments.run, arguments.pairs)
    model = load_model(arguments.model or agent.model, device=arguments.device)
    policy = load_policy(arguments.run, model.device)
    rows = []
    for behaviour in [*behaviours("train"), *behaviours("held-out")]:
        if not gate.judge(model, behaviour).exhibited:
            continue
        task = task_of(model, behaviour, agent.settings, agent.reward)
        cell = Cell("zero-shot", agent, model.name, behaviour.name, agent.settings)
        found = deploy_rows(model, task, policy, asked(16, arguments.seeds), agent.settings, agent.reward)
        rows += [cell.about | row for row in found]
        print(behaviour.name, *columns(found), sep=", ", flush=True)
    return rows


if __name__ == "__main__":
    main()
