"""What a trained policy finds: in its own model, after a warm start, from scratch, and in another model. One row a deployment.

    python benchmarks/policy_smollm2.py OUT --policy FOLDER [--other FOLDER] [--resume ROWS.jsonl] [--seconds S] [--jobs=N]
    python benchmarks/policy_smollm2.py OUT --policy FOLDER --found REPRODUCED     takes over greedy rollouts of `mechrl reproduce`
    python benchmarks/policy_smollm2.py OUT --table                prints OUT/rows.jsonl as Markdown
    python benchmarks/policy_smollm2.py OUT --figure CURVES.svg    draws its learning curves; CURVES.png and CURVES.csv beside it

gate       does the model exhibit the behaviour? If not, there is no other row of it
zero-shot  the policy as it is, on every behaviour that its model exhibits
untrained  its control: the same configuration with its first weights, so the same prior, looks and rollouts
fresh      as it is, but on five times as many pairs, and aiming higher until validation pairs find f ≥ 0.9
adapted    after 80 iterations on the behaviour itself, for held-out behaviours or those that stand in for them
scratch    after 200 iterations on it, from an untrained policy of the same configuration; both with the policy's own discount
transfer   the policy in the other policy's model and the other way round; in that model its own policy as well, to compare with

Deployed once greedily, and with 16 sampled rollouts besides for every seed, all in one batch: the smallest circuit with f ≥ 0.9 along the
episodes, else the most faithful. Deployments trade; rows of those that only cut, from before, are kept as a control. Candidates
are those of the model's own policy, episodes as the deployed policy knows them.

Cells come in order of importance; deployments with a row are skipped, and training goes on from OUT/work: it can be stopped at any
time and run again. With --jobs several processes share the work: seconds are then those of a shared device.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mechrl.rl.env import RewardSettings, Task
from mechrl.rl.policy import Policy
from mechrl.rl.ppo import PPOConfig, Trainer
from mechrl.rl.rollout import Deployment, Judge, deploy_together, learned_with, load_policy, trained_with
from mechrl.rl.tasks import TaskSettings, task_of
from mechrl.rl.train import CHECKPOINT, METRICS, RUN, Run, describe, file_checksum
from rows import Row, append, bring_together, claimed, done_cells, judged, keep_to_share, read, share

import mechrl
from mechrl import gate
from mechrl.behaviours import DISCOVERY_SEED, behaviours, get_behaviour
from mechrl.engine.memory import let_go
from mechrl.errors import MechRLError
from mechrl.experiments import paper_numbers as paper
from mechrl.experiments.compare import read_agent
from mechrl.experiments.experiment import GateResult
from mechrl.experiments.reproduce import choose
from mechrl.models import load_model
from mechrl.models.base import Model
from mechrl.models.loading import resolve_device
from mechrl.report.figures import BLUE, RED, draw
from mechrl.search.problem import Interrupted
from mechrl.stats import Spread

TAU = 0.9
KEY = (
    "kind",
    "policy",
    "model",
    "behaviour",
    "task",
    "training",
    "rollouts",
    "seed",
)  # what tells rows apart
TRAINED = ("adapted", "scratch")
UNTRAINED = ("untrained", "scratch")  # at the beginning
ENVS = {
    "cpu": 32,
    "cuda": 128,
}  # the paper's; a GPU is busy with more episodes side by side, of fewer steps per iteration
SMOOTH = 10  # iterations that a point of a curve is the mean of
LINE = "{edges} edges, f {f:.3f}, test {f_test:.3f}, {passes:.0f} passes"  # a row, for people
TAKEN = ("ceiling", "f_validation", "seconds", "note", "device")  # from the cells of a reproduction
NUMBERS = (("edges", 0), ("f", 3), ("f_test", 3), ("passes", 0))  # of a deployment, and their digits


def key(row: Row) -> str:
    """Of its settings only what is not as always: one that comes with a later version must not make other rows of these. Where a policy
    begins untrained, it does not matter what the weights became: its configuration tells. Deployments that trade are told from those
    that only cut, trainings are not."""
    usual = TaskSettings().to_json()
    known = row | {
        "task": {name: value for name, value in row.get("task", {}).items() if value != usual.get(name)}
    }
    if row["kind"] in UNTRAINED:
        known["policy"] = row["configuration"]
    return json.dumps(
        [known.get(name) for name in KEY] + ["trades"] * bool(row.get("trades")), sort_keys=True
    )


@dataclass(frozen=True)
class Agent:
    """A policy's folder and what it says."""

    folder: Path
    checksum: str
    configuration: str  # a checksum of what it is before any training: network and environment
    model: str  # it was trained in
    behaviours: tuple[str, ...]  # it was trained on
    iteration: int  # of its training
    settings: TaskSettings
    reward: RewardSettings
    ppo: dict[str, Any]  # what more training has of its own

    @staticmethod
    def read(folder: Path, pairs: int) -> Agent:
        settings, reward = trained_with(folder)
        about = json.loads((folder / RUN).read_text())
        metrics = read(folder / METRICS) if (folder / METRICS).exists() else []
        iteration = metrics[-1]["iteration"] if metrics else about["ppo"]["iterations"]
        checksum = file_checksum(folder / "model.safetensors")
        first = json.dumps(
            [json.loads((folder / "config.json").read_text()), read_agent(folder).reward], sort_keys=True
        )
        known = (
            hashlib.sha256(first.encode()).hexdigest(),
            about["model"],
            tuple(about["behaviours"]),
            iteration,
        )
        return Agent(folder, checksum, *known, replace(settings, pairs=pairs), reward, learned_with(folder))


@dataclass(frozen=True)
class Cell:
    kind: str
    agent: Agent
    model: str
    behaviour: str
    settings: TaskSettings
    training: dict[str, Any] | None = None

    @property
    def about(self) -> Row:
        """What all rows of the cell say."""
        return {
            "kind": self.kind,
            "policy": self.agent.checksum,
            "configuration": self.agent.configuration,
            "policy_model": self.agent.model,
            "iteration": self.agent.iteration,
            "model": self.model,
            "behaviour": self.behaviour,
            "split": split(self.agent, self.model, self.behaviour),
            "task": self.settings.to_json(),
            "training": self.training,
        }

    @property
    def label(self) -> str:
        return f"{self.kind} {self.behaviour} in {self.model} by the policy of {self.agent.model}"

    @property
    def name(self) -> str:
        """Of its files, and its own."""
        return f"{self.kind}-{self.behaviour}-{hashlib.sha256(key(self.about).encode()).hexdigest()[:10]}"


def split(agent: Agent, model: str, behaviour: str) -> str:
    """As this policy sees it: what it was not trained on is held out, of the paper's behaviours."""
    if behaviour in agent.behaviours and model == agent.model:
        return "train"
    own = get_behaviour(behaviour).split
    return "held-out" if own == "train" else own


def cells(
    agent: Agent, other: Agent | None, shown: dict[str, GateResult], budget: argparse.Namespace
) -> list[Cell]:
    """All cells, the most important first."""
    names = shown[agent.model].names
    ordered = [b.name for part in ("held-out", "extra", "train") for b in behaviours(part) if b.name in names]  # type: ignore[arg-type]
    held_out = choose(shown[agent.model]).held_out
    own, ppo = agent.settings, {"transitions": budget.transitions, "envs": budget.envs, "seed": 0} | agent.ppo

    def trained(kind: str, iterations: int) -> list[Cell]:
        return [
            Cell(kind, agent, agent.model, name, own, {"iterations": iterations} | ppo) for name in held_out
        ]

    found = [
        Cell(kind, agent, agent.model, name, own) for kind in ("zero-shot", "untrained") for name in ordered
    ]
    found += [Cell("fresh", agent, agent.model, name, replace(own, pairs=5 * own.pairs)) for name in ordered]
    found += trained("adapted", budget.adapt_iterations)
    if other is not None:
        for name in choose(shown[other.model]).held_out:
            found += [Cell("transfer", a, other.model, name, other.settings) for a in (agent, other)]
        found += [Cell("transfer", other, agent.model, name, own) for name in held_out]
    return found + trained("scratch", budget.scratch_iterations)


# ---- measuring ------------------------------------------------------------------------------------------------------


def deployments(rollouts: int, seeds: int, judge: Judge = "discovery") -> list[Deployment]:
    """One greedy rollout; sampled ones besides, for every seed."""
    sampled = [
        Deployment(TAU, rollouts, judge=judge, best_along_episode=True, seed=seed) for seed in range(seeds)
    ]
    return [Deployment(TAU, rollouts=0, judge=judge, best_along_episode=True), *sampled]


def deploy_rows(
    model: Model,
    task: Task,
    policy: Policy,
    asked: list[Deployment],
    settings: TaskSettings,
    reward: RewardSettings,
    **more: Any,
) -> list[Row]:
    behaviour = get_behaviour(task.name)
    circuits = deploy_together(model, behaviour, task, policy, asked, settings, reward, **more)
    device = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else "cpu"
    return [
        {
            "rollouts": deployment.rollouts,
            "seed": deployment.seed,
            "trades": deployment.trades,
            "K": task.K,
            "ceiling": task.ceiling,
            "edges": len(circuit),
            "f": circuit.faithfulness,
            "f_validation": circuit.faithfulness_validation,
            "f_test": circuit.faithfulness_test,
            "passes": circuit.passes,
            "seconds": circuit.seconds,
            "together": len(asked),
            "note": circuit.settings["note"],
            "device": device,
            "version": mechrl.__version__,
            "torch": torch.__version__,
        }
        for deployment, circuit in zip(asked, circuits, strict=True)
    ]


class Bench:
    """What a process needs for all of its cells: rows, policies, models and tasks, each loaded once."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.deadline = time.monotonic() + arguments.seconds
        self.path = arguments.out / "rows.jsonl"
        self.rows = {key(row): row for row in read(self.path)}
        self.agent = Agent.read(arguments.policy, arguments.pairs)
        self.other = Agent.read(arguments.other, arguments.pairs) if arguments.other else None
        arguments.envs = arguments.envs or ENVS[self.device(self.agent.model).type]
        self._models: dict[str, Model] = {}
        self._tasks: dict[tuple[str, str, TaskSettings, RewardSettings], tuple[Task, float]] = {}

    def device(self, model: str) -> torch.device:
        return resolve_device("cpu" if model == "toy" else self.arguments.device)

    def model(self, name: str) -> Model:
        if name not in self._models:
            self._models[name] = load_model(name, device=self.device(name))
        return self._models[name]

    def task(self, cell: Cell) -> Task:
        """Its engine charged for the preparations, and nothing else."""
        place = (cell.model, cell.behaviour, cell.settings, cell.agent.reward)
        if place not in self._tasks:
            task = task_of(
                self.model(cell.model), get_behaviour(cell.behaviour), cell.settings, cell.agent.reward
            )
            self._tasks[place] = task, task.engine.passes
        task, prepared = self._tasks[place]
        task.engine.ledger.restore(prepared)
        return task

    def claim(self, name: str) -> bool:
        """Does this process have it? The first to ask has."""
        return self.arguments.claims is None or claimed(self.arguments.claims, name)

    def add(self, rows: Iterable[Row]) -> None:
        rows = list(rows)
        self.rows |= {key(row): row for row in rows}
        append(self.path, rows)

    @cached_property
    def shown(self) -> dict[str, GateResult]:
        """The behaviours that the models exhibit, of those asked for."""
        models = [agent.model for agent in (self.agent, self.other) if agent is not None]
        asked = [get_behaviour(name) for name in self.arguments.behaviours.split(",") if name] or behaviours(
            with_relations=False
        )
        for name in models:
            for behaviour in asked:
                row: Row = {
                    "kind": "gate",
                    "model": name,
                    "behaviour": behaviour.name,
                    "split": behaviour.split,
                }
                if key(row) in self.rows:
                    continue
                verdict = gate.judge(self.model(name), behaviour)
                row |= {
                    "exhibited": verdict.exhibited,
                    "reason": verdict.reason,
                    "version": mechrl.__version__,
                }
                self.rows[key(row)] = row
                if self.claim(f"gate {name} {behaviour.name}"):
                    self.add([row])
        return {name: gated(self.rows.values(), name, [b.name for b in asked]) for name in models}

    def run(self) -> None:
        arguments = self.arguments

        def missing(cell: Cell) -> list[Deployment]:
            asked = deployments(
                arguments.rollouts, arguments.seeds, "validation" if cell.kind == "fresh" else "discovery"
            )
            known = {
                d: cell.about | {"rollouts": d.rollouts, "seed": d.seed, "trades": d.trades} for d in asked
            }
            return [d for d, row in known.items() if key(row) not in self.rows]

        every = cells(self.agent, self.other, self.shown, arguments)
        wanted = [(cell, missing(cell)) for cell in every if re.search(arguments.only, cell.label)]
        todo = [(cell, some) for cell, some in wanted if some]
        print(f"{len(self.rows)} rows, {len(todo)} cells to go", flush=True)
        for i, (cell, some) in enumerate(todo):
            if not self.claim(cell.name):
                continue
            begin = time.monotonic()
            try:
                self.check()
                rows = self.measure(cell, some)
            except Interrupted:
                print(f"time is up at {cell.label}, {len(todo) - i} cells to go", flush=True)
                return
            except MechRLError as exc:
                print(f"{cell.label}: {exc}", flush=True)
                continue
            self.add(rows)
            print(
                f"[{i + 1}/{len(todo)}, {time.monotonic() - begin:.1f} s] {cell.label}: {LINE.format(**rows[-1])}",
                flush=True,
            )

    def check(self) -> None:
        if time.monotonic() > self.deadline:
            raise Interrupted

    def measure(self, cell: Cell, asked: list[Deployment]) -> list[Row]:
        model, task = self.model(cell.model), self.task(cell)
        policy = load_policy(cell.agent.folder, model.device)
        if cell.kind in UNTRAINED:
            torch.manual_seed(0)
            policy = Policy(policy.config).to(model.device)
        before: Row = {}
        extra: Row = {}
        try:
            if cell.training is not None:
                run = self.train(cell, model, task, policy)
                policy = run.trainer.policy
                before = {"passes_before": run.passes_before, "seconds_before": run.seconds}
                extra = {"passes_training": run.passes(), "seconds_training": run.seconds}
            rows = deploy_rows(
                model,
                task,
                policy,
                asked,
                cell.settings,
                cell.agent.reward,
                report=lambda step, line: self.check(),
                **before,
            )
        finally:
            let_go()
        rows = [cell.about | row | extra for row in rows]
        if cell.training is not None and rows[0]["rollouts"] == 0:  # once is enough
            rows[0]["learning"] = learning(run)
        return rows

    def train(self, cell: Cell, model: Model, task: Task, policy: Policy) -> Run:
        """To the end, from where it was left; out of time it is saved and left again."""
        assert cell.training is not None
        began = time.perf_counter()
        config = PPOConfig(**cell.training, deconflict=False)
        checksum = None if cell.kind in UNTRAINED else cell.agent.checksum
        trainer = Trainer([task], config, cell.agent.reward, policy, model.device)
        folder = self.arguments.out / "work" / cell.name
        about = describe(model, trainer, cell.settings, checksum)
        run = Run(folder, trainer, about, resume=(folder / CHECKPOINT).exists(), began=began)
        for _ in run:
            if time.monotonic() > self.deadline and not run.finished:
                run.save()
                raise Interrupted
        return run


def take_over(arguments: argparse.Namespace) -> None:
    """Greedy rollouts that a reproduction has deployed with the same policy and settings, in place of those at hand."""
    bench = Bench(arguments)
    every = cells(bench.agent, bench.other, bench.shown, arguments)
    wanted = {c.behaviour: c for c in every if c.kind == "zero-shot" and re.search(arguments.only, c.label)}
    for known in done_cells(arguments.found):
        asked, result = known["arguments"], known["result"]
        cell = wanted.get(asked["behaviour"])
        if cell is None or (asked["method"], asked["target"]) != ("policy-greedy", "discovery"):
            continue
        if (
            asked["seed"] != DISCOVERY_SEED
        ):  # other pairs; here a seed is that of the rollouts, and the pairs are always these
            continue
        if not cell.agent.checksum.startswith(asked["policy"]["checksum"]):
            continue
        if asked["setting"] | {"half": asked["policy"]["half"]} != cell.settings.to_json():
            continue
        row = cell.about | {
            "rollouts": 0,
            "seed": asked["seed"],
            "trades": asked["deployment"]["trades"],
            "together": 1,
        }
        row |= {"K": result["candidates"], "edges": result["edges_pruned"], "version": known["version"]}
        row |= {name: result[name] for name in (*TAKEN, *(name for name, _ in NUMBERS[1:]))}
        bench.add([row])
        print(f"{cell.label}: {LINE.format(**row)}", flush=True)
    bring_together(bench.path, None, key)


def learning(run: Run) -> dict[str, list[float]]:
    """Of the episodes that ended in each iteration."""
    rows = [row for row in read(run.folder / METRICS) if row["episodes"]]
    names = {"iteration": "iteration", "return": "episode/return", "f": "episode/f", "edges": "episode/edges"}
    return {name: [row[column] for row in rows] for name, column in names.items()}


def gated(rows: Iterable[Row], model: str, asked: list[str]) -> GateResult:
    """What the rows say about a model."""
    verdicts = {row["behaviour"]: row for row in rows if row["kind"] == "gate" and row["model"] == model}
    verdicts = {name: verdicts[name] for name in asked if name in verdicts}
    return GateResult(
        {"model": model}, {}, [name for name, row in verdicts.items() if row["exhibited"]], verdicts, {}
    )


# ---- tables ---------------------------------------------------------------------------------------------------------


def spread(rows: list[Row], name: str, digits: int) -> str:
    return Spread.of(row[name] for row in rows).text(digits) if rows else "–"


HEAD = [
    "K",
    "ceiling",
    *("greedy: edges", "f", "f, fresh pairs", "passes"),
    *("16 + 1: edges", "f", "f, fresh pairs", "passes", f"f ≥ {TAU:g}"),
]


def columns(rows: list[Row]) -> list[str]:
    """One greedy rollout, then the sampled ones over seeds, of one behaviour."""
    if not rows:
        return ["not run", *["–"] * (len(HEAD) - 1)]
    greedy, sampled = ([row for row in rows if (row["rollouts"] > 0) == drawn] for drawn in (False, True))
    found = [f"{rows[0]['K']:,}", f"{rows[0]['ceiling']:.3f}"]
    found += [spread(part, name, digits) for part in (greedy, sampled) for name, digits in NUMBERS]
    return [
        *found,
        f"{sum(judged(row) >= TAU for row in sampled)} of {len(sampled)} seeds" if sampled else "–",
    ]


def table(head: list[str], lines: Iterable[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines)]


def zero_shot_table(
    names: Iterable[str], rows: list[Row], theirs: Callable[[str], str] | None = None
) -> list[str]:
    """One line a behaviour; `theirs`: the paper's figures for it."""
    lines = []
    for name in names:
        mine = [row for row in rows if row["behaviour"] == name]
        part = mine[0]["split"] if mine else get_behaviour(name).split
        lines.append([name, part, *columns(mine), *([theirs(name)] if theirs else [])])
    return table(["behaviour", "split", *HEAD, *(["GPT-2 in the paper: edges, f"] if theirs else [])], lines)


def of_paper(kind: str) -> Callable[[str], str]:
    """The policy's figures in the paper; of another wording those of the paper's own."""

    def figures(name: str) -> str:
        family = get_behaviour(name).family
        if family in paper.TRANSFER:
            f, edges = paper.TRANSFER[family][kind]
        elif name in paper.COMPARISON:
            edges, f, _ = paper.COMPARISON[name]["policy"]
        else:
            return "–"
        return f"{edges:,}, {f:g}"

    return figures


def trading(rows: Iterable[Row]) -> list[Row]:
    """Without those that only cut, which came before deployments traded; these, if there are no others."""
    rows = list(rows)
    return [row for row in rows if row.get("trades")] or rows


def tables(rows: list[Row]) -> list[str]:
    """Every behaviour that the models exhibit: what was not run says so."""
    rows = list({key(row): row for row in rows}.values())
    lines = []
    for policy in dict.fromkeys(row["policy"] for row in rows if row["kind"] == "zero-shot"):
        first = next(row for row in rows if row.get("policy") == policy and row["kind"] == "zero-shot")
        mine = [
            row
            for row in rows
            if row.get("policy") == policy
            or (row["kind"] in UNTRAINED and row["configuration"] == first["configuration"])
        ]
        shown = gated(rows, first["model"], [b.name for b in behaviours(with_relations=False)])
        chosen = choose(shown)
        title = (
            f"# The policy {policy[:12]}, trained in {first['policy_model']}, {first['iteration']} iterations"
        )
        lines += [
            title,
            "",
            *(note + "\n" for note in chosen.notes),
            *_of_policy(mine, shown, chosen.held_out),
        ]
    transfer = trading(row for row in rows if row["kind"] == "transfer")
    if transfer:
        zero = trading(row for row in rows if row["kind"] == "zero-shot")
        lines += ["# Across models", "", *_across(transfer, zero), ""]
    return lines


def _of_policy(mine: list[Row], shown: GateResult, held_out: list[str]) -> list[str]:
    ordered = [
        b.name for part in ("held-out", "extra", "train") for b in behaviours(part) if b.name in shown.names
    ]  # type: ignore[arg-type]
    kinds = {
        kind: [row for row in mine if row["kind"] == kind]
        for kind in ("zero-shot", "untrained", "fresh", *TRAINED)
    }
    zero = trading(kinds["zero-shot"])
    cutting = [row for row in kinds["zero-shot"] if row not in zero]
    untrained, adapted, scratch = (trading(kinds[kind]) for kind in ("untrained", *TRAINED))
    run = {row["behaviour"] for row in zero}

    def title(text: str, rows: list[Row]) -> list[str]:
        return [f"## {text}" + (", without exchanges" if cutting and not rows[0].get("trades") else ""), ""]

    lines = ["## Zero-shot", "", *zero_shot_table(ordered, zero, of_paper("zero_shot")), ""]
    lines += [f"{len(run)} of {len(ordered)} behaviours were run. The paper's deployments take "]
    lines[-1] += f"{paper.PASSES['deployment_passes']:,.0f} passes each.\n"
    if cutting:
        lines += [*title("Zero-shot", cutting), *zero_shot_table(ordered, cutting), ""]
        lines += [*_against(zero, cutting, "with", "without"), ""]
    if untrained:
        lines += [*title("Untrained, the control", untrained), *zero_shot_table(ordered, untrained), ""]
        ours = zero if untrained[0].get("trades") == zero[0].get("trades") else cutting
        lines += [*_against(ours, untrained, "trained", "untrained"), ""]
    if kinds["fresh"]:
        n = kinds["fresh"][0]["task"]["pairs"]
        lines += [f"## At f ≥ {TAU:g} on fresh pairs: {n} discovery pairs, validation pairs decide", ""]
        lines += [*zero_shot_table(ordered, kinds["fresh"]), ""]
    if adapted:
        n = adapted[0]["training"]["iterations"]
        lines += title(f"After a warm start, {n} iterations on the behaviour", adapted)
        lines += [*zero_shot_table(held_out, adapted, of_paper("warm")), ""]
        lines += ["Passes include those of the training. The paper's warm starts take "]
        lines[-1] += f"{paper.PASSES['warm_start_passes']:,.0f} passes besides the deployment.\n"
    if scratch:
        n = scratch[0]["training"]["iterations"]
        lines += [
            *title(f"From scratch, {n} iterations on the behaviour", scratch),
            *zero_shot_table(held_out, scratch),
            "",
        ]
    return lines


def _against(zero: list[Row], control: list[Row], ours: str, theirs: str) -> list[str]:
    """What training, or exchanges, are worth: sizes and passes over those of the control, where both reach f ≥ 0.9."""
    lines = []
    for drawn, deployed in ((False, "greedy"), (True, "16 + 1")):
        for seen, what in ((True, "trained on"), (False, "never seen")):
            ratios = []
            for name in dict.fromkeys(row["behaviour"] for row in zero if (row["split"] == "train") == seen):
                both = [
                    [row for row in rows if row["behaviour"] == name and (row["rollouts"] > 0) == drawn]
                    for rows in (zero, control)
                ]
                if all(rows and all(row["f"] >= TAU for row in rows) for rows in both):
                    ratios.append(
                        [
                            np.mean([r[k] for r in both[0]]) / np.mean([r[k] for r in both[1]])
                            for k in ("edges", "passes")
                        ]
                    )
            if ratios:
                edges, passes = np.exp(np.log(ratios).mean(0))
                smaller = sum(r[0] < 1 for r in ratios)
                counts = [f"{edges:.2f}", f"{passes:.2f}", f"{smaller} of {len(ratios)}"]
                lines.append([what, deployed, *counts])
    head = [
        "behaviours",
        "rollouts",
        f"edges, {ours} / {theirs}",
        f"passes, {ours} / {theirs}",
        f"smaller {ours}",
    ]
    return [
        *table(head, lines),
        "",
        "Geometric means over the behaviours on which both reach f ≥ 0.9 with every seed.",
    ]


def _across(transfer: list[Row], zero: list[Row]) -> list[str]:
    """Every behaviour by the policy of either model; in the first model its own policy's rows are the zero-shot ones."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    there = {(row["model"], row["behaviour"]) for row in transfer}
    for row in (*zero, *transfer):
        if (row["model"], row["behaviour"]) in there:
            groups.setdefault((row["model"], row["behaviour"], row["policy_model"]), []).append(row)
    lines = [[model, name, by, *columns(rows)] for (model, name, by), rows in sorted(groups.items())]
    return table(["model", "behaviour", "policy of", *HEAD], lines)


# ---- curves ---------------------------------------------------------------------------------------------------------


def smooth(values: list[float]) -> list[float]:
    """Means of the last `SMOOTH` values, at the beginning of those there are."""
    return [float(np.mean(values[max(0, i + 1 - SMOOTH) : i + 1])) for i in range(len(values))]


def figure(rows: list[Row], path: Path) -> None:
    """Return per iteration after a warm start and from scratch: SVG, PNG and the numbers as CSV."""
    rows = list(
        {key(row | {"trades": False}): row for row in rows if "learning" in row}.values()
    )  # training knows no deployment
    names = list(dict.fromkeys(row["behaviour"] for row in rows))
    if not names:
        raise SystemExit("no row has a learning curve yet")
    labels = {"adapted": ("warm start", BLUE), "scratch": ("from scratch", RED)}

    def paint(canvas: Any) -> None:
        width = min(4, len(names))
        axes = canvas.subplots(-(-len(names) // width), width, squeeze=False, sharey=True).flatten()
        for ax in axes[len(names) :]:
            ax.set_visible(False)
        for ax, name in zip(axes, names, strict=False):
            for row in (row for row in rows if row["behaviour"] == name):
                label, colour = labels[row["kind"]]
                known = row["learning"]
                ax.plot(known["iteration"], known["return"], color=colour, alpha=0.2, linewidth=0.6)
                ax.plot(known["iteration"], smooth(known["return"]), color=colour, label=label)
            ax.set_title(name)
            ax.set_xlabel("iteration")
        axes[0].set_ylabel("return")
        axes[0].legend()

    size = (2.6 * min(4, len(names)) + 0.4, 2.3 * -(-len(names) // 4))
    drawn = draw(path.stem, "", "", "", {}, "", size, paint)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".svg").write_bytes(drawn.svg)
    path.with_suffix(".png").write_bytes(drawn.png)
    with open(path.with_suffix(".csv"), "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["behaviour", "kind", "iteration", "return", "return_smoothed", "f", "edges"])
        for row in rows:
            known = row["learning"]
            smoothed = smooth(known["return"])
            for i, values in enumerate(
                zip(known["iteration"], known["return"], known["f"], known["edges"], strict=True)
            ):
                iteration, reward, f, edges = values
                writer.writerow(
                    [
                        row["behaviour"],
                        row["kind"],
                        iteration,
                        *(f"{x:.6g}" for x in (reward, smoothed[i], f, edges)),
                    ]
                )


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--policy", type=Path, help="folder of the policy")
    parser.add_argument("--other", type=Path, help="folder of a policy that was trained in another model")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--behaviours", default="", help="comma-separated; default: all that the model exhibits"
    )
    parser.add_argument(
        "--only", default="", help="only cells whose line matches this, like 'transfer .* in toy'"
    )
    parser.add_argument("--seeds", type=int, default=5, help="of sampled rollouts")
    parser.add_argument("--rollouts", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=20, help="discovery pairs")
    parser.add_argument("--adapt-iterations", type=int, default=80)
    parser.add_argument("--scratch-iterations", type=int, default=200)
    parser.add_argument("--transitions", type=int, default=512, help="per iteration")
    parser.add_argument(
        "--envs", type=int, help="episodes side by side; default: {cuda} on a GPU, else {cpu}".format(**ENVS)
    )
    parser.add_argument("--resume", type=Path, help="rows of an earlier run")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop cleanly after so long")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the work, as --jobs=N")
    parser.add_argument(
        "--found", type=Path, help="folder of `mechrl reproduce`, of which greedy rollouts are taken over"
    )
    parser.add_argument("--claims", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args(words)
    if not (arguments.table or arguments.figure or arguments.policy):
        parser.error("--policy is missing")
    return arguments


def main() -> None:
    arguments = parse()
    if arguments.table:
        print("\n".join(tables(read(arguments.out / "rows.jsonl"))))
    elif arguments.figure:
        figure(read(arguments.out / "rows.jsonl"), arguments.figure)
    elif arguments.found:
        take_over(arguments)
    elif arguments.claims:
        keep_to_share()
        Bench(arguments).run()
    else:
        bring_together(arguments.out / "rows.jsonl", arguments.resume, key)
        if arguments.jobs > 1:
            share(arguments.jobs)
        else:
            Bench(arguments).run()


if __name__ == "__main__":
    main()
