"""`mechrl train`, `mechrl discover` and `mechrl adapt`. Heavy imports wait until a command runs."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mechrl.search.command import _print as print_circuit
from mechrl.search.command import _stop_signals

if TYPE_CHECKING:
    from rich.progress import Progress

    from mechrl.circuit import Circuit
    from mechrl.rl.env import RewardSettings
    from mechrl.rl.tasks import TaskSettings
    from mechrl.rl.train import Run

_LINE_EVERY = 5.0  # seconds

ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="`toy`, `smollm2`, a hub id such as `gpt2`, a directory or a .gguf file.")
]
DeviceOption = Annotated[str, typer.Option(help="`auto`, `cpu`, `cuda` or `cuda:1`.")]
PairsOption = Annotated[int, typer.Option(min=1, help="Discovery pairs per behaviour.")]
PrefilterOption = Annotated[
    str, typer.Option(help="Candidates by the behaviour's own `metric` (the paper), by `kl`, or by either (`union`).")
]
HalfOption = Annotated[bool, typer.Option(help="Rollouts in half precision on a GPU: faster, their f is off by less than 1e-3.")]
SecondsOption = Annotated[
    float | None, typer.Option(min=0, help="Save and end after so many seconds; go on later with --resume.")
]
PolicyOption = Annotated[Path | None, typer.Option(help="Folder of a policy; by default the one that comes with MechRL.")]
TauOption = Annotated[float, typer.Option(help="The faithfulness to reach.")]
RolloutsOption = Annotated[int, typer.Option(min=0, help="Sampled rollouts, besides the greedy one.")]
RuleOption = Annotated[
    str, typer.Option(help="`smallest`: the smallest circuit with f ≥ tau, else the most faithful; `paper`: the most faithful.")
]
JudgeOption = Annotated[str, typer.Option(help="The pairs by whose f the rule chooses: `discovery` or `validation`.")]
AlongOption = Annotated[
    bool, typer.Option("--best-along-episode", help="Choose among all masks along the episodes, not their last ones alone.")
]
KOption = Annotated[int | None, typer.Option("--k", min=1, help="Candidate edges by each score; by default as in training.")]
OptionalPrefilter = Annotated[
    str | None, typer.Option("--prefilter", help="`metric`, `kl` or `union` (either); by default as in training.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Go on even if the model does not exhibit the behaviour.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def train_command(
    model: ModelOption = "toy",
    behaviours: Annotated[str, typer.Option(help="`train`, `held-out`, `all`, or names and files, comma-separated.")] = "train",
    out: Annotated[Path, typer.Option(help="The run's folder.")] = Path("runs/train"),
    iterations: Annotated[int, typer.Option(min=1, help="Rollouts, each followed by an update.")] = 1200,
    transitions: Annotated[int, typer.Option(min=1, help="Environment steps per iteration.")] = 512,
    envs: Annotated[int, typer.Option(min=1, help="Episodes side by side.")] = 32,
    k: Annotated[int, typer.Option("--k", min=1, help="Candidate edges by each score.")] = 3000,
    prefilter: PrefilterOption = "metric",
    pairs: PairsOption = 20,
    margin: Annotated[float, typer.Option(help="The agent's target lies this far below the candidates' own f.")] = 0.0,
    max_steps: Annotated[int, typer.Option(min=1, help="Decisions in an episode.")] = 150,
    learning_rate: Annotated[float, typer.Option(min=0, help="At the start; it falls linearly to zero.")] = 2.5e-4,
    entropy: Annotated[float, typer.Option(min=0, help="Coefficient of the entropy bonus.")] = 0.01,
    gamma: Annotated[float, typer.Option(min=0, max=1, help="Discount; with a small budget a smaller one learns sooner.")] = 0.99,
    width: Annotated[int, typer.Option(min=1, help="Of the policy's hidden layers (H).")] = 128,
    seed: Annotated[int, typer.Option(min=0, help="Everything that is random.")] = 0,
    device: DeviceOption = "auto",
    half: HalfOption = False,
    init_from: Annotated[Path | None, typer.Option(help="Folder of a policy to start from: its weights only.")] = None,
    save_every: Annotated[int, typer.Option(min=1, help="Iterations between two saves.")] = 20,
    seconds: SecondsOption = None,
    force: Annotated[bool, typer.Option("--force", help="Train on behaviours that the model does not exhibit as well.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
) -> None:
    """Train a policy on many behaviours at once (PPO with PCGrad). The defaults are the paper's budget.

    Examples: `mechrl train --model smollm2 --out runs/smollm2 --half`, `mechrl train --k 600 --iterations 100 --out runs/toy`,
    `mechrl train --behaviours ioi,greater-than --init-from runs/toy --out runs/two`
    """
    began = time.perf_counter()
    import torch

    from mechrl.models import load_model
    from mechrl.rl.env import RewardSettings
    from mechrl.rl.policy import Policy, PolicyConfig
    from mechrl.rl.ppo import PPOConfig, Trainer
    from mechrl.rl.rollout import load_policy
    from mechrl.rl.tasks import TaskSettings, exhibited, task_of
    from mechrl.rl.train import Run, describe, file_checksum, join_ranks

    config = PPOConfig(
        iterations=iterations,
        transitions=transitions,
        envs=envs,
        learning_rate=learning_rate,
        entropy=entropy,
        gamma=gamma,
        seed=seed,
    )
    settings = TaskSettings(pairs, k, prefilter, half)  # type: ignore[arg-type]  # checked there, with a message for people
    reward = RewardSettings(margin=margin, max_steps=max_steps)
    torch.manual_seed(seed)
    start = load_policy(init_from) if init_from else Policy(PolicyConfig(width))
    group, device = join_ranks(device)
    loaded = load_model(model, device=device)
    tasks = []
    for behaviour in exhibited(loaded, behaviours, force, _say):
        task = task_of(loaded, behaviour, settings, reward)
        _say(f"{task.name}: {task.K:,} candidates from {task.M} components, f = {task.ceiling:.3f}, target {task.tau:.3f}")
        tasks.append(task)
    trainer = Trainer(tasks, config, reward, start, loaded.device, group)
    about = describe(loaded, trainer, settings, file_checksum(init_from / "model.safetensors") if init_from else None)
    run = Run(out, trainer, about, resume, save_every, began)
    _train(run, None if seconds is None else began + seconds)
    if run.finished:
        _say(f"{out} holds the policy: `mechrl discover BEHAVIOUR --model {model} --policy {out}`")


def discover_command(
    behaviour: Annotated[str, typer.Argument(help="A behaviour's name, or the file of your own.")],
    model: ModelOption = "toy",
    policy: PolicyOption = None,
    tau: TauOption = 0.9,
    rollouts: RolloutsOption = 16,
    rule: RuleOption = "smallest",
    judge: JudgeOption = "discovery",
    best_along_episode: AlongOption = False,
    pairs: PairsOption = 20,
    k: KOption = None,
    prefilter: OptionalPrefilter = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the rollouts.")] = 0,
    device: DeviceOption = "auto",
    half: HalfOption = False,
    out: Annotated[Path, typer.Option(help="Folder for circuit.json.")] = Path("runs/discover"),
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let a trained policy find the circuit of a behaviour: 16 sampled rollouts and a greedy one, no search, no training.

    Examples: `mechrl discover ioi`, `mechrl discover acronyms --model smollm2 --tau 0.8 --json`,
    `mechrl discover mine.jsonl --policy runs/toy --judge validation --best-along-episode`
    """
    from mechrl import gate
    from mechrl.behaviours import get_behaviour
    from mechrl.models import load_model
    from mechrl.rl.rollout import Deployment, discover, load_policy, shipped_policy

    deployment = Deployment(tau, rollouts, rule, judge, best_along_episode, seed)  # type: ignore[arg-type]  # checked there
    chosen = get_behaviour(behaviour)
    folder = policy or shipped_policy(model)
    agent = load_policy(folder)
    settings, reward = _settings(folder, pairs, k, prefilter, half)
    loaded = load_model(model, device=device)
    if not force:
        gate.check(loaded, chosen)
    with _Live("discover", reward.max_steps) as live:
        circuit = discover(loaded, chosen, agent.to(loaded.device), deployment, settings, reward, live.show)
    circuit.save(out / "circuit.json")
    _print(circuit, out / "circuit.json", as_json)


def adapt_command(
    behaviour: Annotated[str, typer.Argument(help="A behaviour's name, or the file of your own.")],
    model: ModelOption = "toy",
    policy: PolicyOption = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="Of training; by default 80, or 200 from scratch.")] = None,
    from_scratch: Annotated[bool, typer.Option("--from-scratch", help="The control: start from an untrained policy.")] = False,
    transitions: Annotated[int, typer.Option(min=1, help="Environment steps per iteration.")] = 512,
    envs: Annotated[int, typer.Option(min=1, help="Episodes side by side.")] = 32,
    tau: TauOption = 0.9,
    rollouts: RolloutsOption = 16,
    rule: RuleOption = "smallest",
    judge: JudgeOption = "discovery",
    best_along_episode: AlongOption = False,
    pairs: PairsOption = 20,
    k: KOption = None,
    prefilter: OptionalPrefilter = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the training and the rollouts.")] = 0,
    device: DeviceOption = "auto",
    half: HalfOption = False,
    out: Annotated[Path, typer.Option(help="Folder for circuit.json, the adapted policy and metrics.jsonl.")] = Path(
        "runs/adapt"
    ),
    save_every: Annotated[int, typer.Option(min=1, help="Iterations between two saves.")] = 20,
    seconds: SecondsOption = None,
    force: ForceOption = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a policy a little more on one behaviour (the paper's warm start: its weights, all else fresh), then deploy it on that.

    Examples: `mechrl adapt acronyms --model smollm2 --out runs/acronyms`, `mechrl adapt ioi --iterations 20`,
    `mechrl adapt acronyms --model smollm2 --from-scratch --out runs/acronyms-scratch`
    """
    began = time.perf_counter()
    from mechrl import gate
    from mechrl.behaviours import get_behaviour
    from mechrl.models import load_model
    from mechrl.rl.ppo import PPOConfig, Trainer
    from mechrl.rl.rollout import Deployment, deploy, load_policy, shipped_policy
    from mechrl.rl.tasks import task_of
    from mechrl.rl.train import Run, describe, file_checksum

    deployment = Deployment(tau, rollouts, rule, judge, best_along_episode, seed)  # type: ignore[arg-type]  # checked there
    config = PPOConfig(iterations or (200 if from_scratch else 80), transitions, envs, deconflict=False, seed=seed)
    chosen = get_behaviour(behaviour)
    folder = policy or shipped_policy(model)  # from scratch, its candidate sets and episodes alone are taken over
    start = None if from_scratch else load_policy(folder)
    settings, reward = _settings(folder, pairs, k, prefilter, half)
    loaded = load_model(model, device=device)
    if not force and not resume:
        gate.check(loaded, chosen)
    task = task_of(loaded, chosen, settings, reward)
    trainer = Trainer([task], config, reward, start, loaded.device)
    about = describe(loaded, trainer, settings, None if from_scratch else file_checksum(folder / "model.safetensors"))
    run = Run(out, trainer, about, resume, save_every, began)
    _train(run, None if seconds is None else began + seconds)
    with _Live("deploy", reward.max_steps) as live:
        circuit = deploy(
            loaded,
            chosen,
            task,
            trainer.policy,
            deployment,
            settings,
            reward,
            method="policy-from-scratch" if from_scratch else "policy-adapted",
            about={"iterations": config.iterations, "transitions": config.transitions},
            passes_before=run.passes_before,
            seconds_before=run.seconds,
            report=live.show,
        )
    circuit.save(out / "circuit.json")
    _print(circuit, out / "circuit.json", as_json)


def _settings(folder: Path, pairs: int, k: int | None, prefilter: str | None, half: bool) -> tuple[TaskSettings, RewardSettings]:
    """The candidate sets and episodes that a policy was trained on, where no option says otherwise."""
    from dataclasses import replace

    from mechrl.rl.rollout import trained_with

    settings, reward = trained_with(folder)
    by = prefilter or settings.prefilter
    return replace(settings, pairs=pairs, k=k or settings.k, prefilter=by, half=half), reward  # type: ignore[arg-type]  # checked there


def _train(run: Run, until: float | None) -> None:
    """Trains to the end. Asked to stop, or out of time, it saves and leaves at the end of an iteration."""
    line = _TrainingLine(run)
    with _Live("train", run.trainer.config.iterations) as live, _stop_signals() as stopped:
        for row in run:
            live.show(row["iteration"], line.of(row))
            late = until is not None and time.perf_counter() > until
            reason = run.agree(128 + stopped[0] if stopped else int(late))
            if reason and not run.finished:
                run.save()
                break
    if run.finished:
        return
    signalled = reason > 1
    why = "interrupted" if signalled else "out of time"
    _say(f"{why} after {run.trainer.iteration} iterations, saved in {run.folder}. To go on, repeat the command with --resume")
    raise typer.Exit(reason if signalled else 0)


class _TrainingLine:
    """Return, f and size of the last episodes that ended, speed and what remains."""

    def __init__(self, run: Run) -> None:
        self.total, self.first, self.began = run.trainer.config.iterations, run.trainer.iteration, time.monotonic()
        self.known: dict[str, Any] = {}

    def of(self, row: dict[str, Any]) -> str:
        self.known |= {key: value for key, value in row.items() if value is not None}  # episodes do not end in every iteration
        known, done = self.known, row["iteration"]
        parts = [f"iteration {done:,} of {self.total:,}"]
        if "episode/return" in known:
            parts += [f"return {known['episode/return']:+.3f}", f"f {known['episode/f']:.3f}"]
            parts += [f"{known['episode/edges']:,.0f} edges"]
        left = (time.monotonic() - self.began) / (done - self.first) * (self.total - done)
        return ", ".join([*parts, f"{row['steps_per_second']:,.0f} steps/s", f"{_duration(left)} left"])


class _Live:
    """What is going on, on stderr: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, name: str, total: int) -> None:
        self.name, self.total, self.last_line = name, total, -_LINE_EVERY
        self.bar: Progress | None = None

    def __enter__(self) -> _Live:
        if sys.stderr.isatty() and _speaks():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = TextColumn(self.name), BarColumn(bar_width=24), TextColumn("{task.description}")
            self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self.task = self.bar.add_task("", total=self.total)
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def show(self, done: int, line: str) -> None:
        if self.bar is not None:
            self.bar.update(self.task, description=line, completed=done)
        elif time.monotonic() - self.last_line > _LINE_EVERY or done == self.total:
            _say(f"{self.name}: {line}")
            self.last_line = time.monotonic()


def _print(circuit: Circuit, path: Path, as_json: bool) -> None:
    if as_json:
        print_circuit(circuit, path, as_json)
        return
    known = circuit.settings
    print(
        f"{circuit.behaviour} in {circuit.model} by {circuit.method}: {circuit.edges} edges ({known['edges_before_pruning']} before "
        f"pruning, {known['candidates']:,} candidates), f = {circuit.faithfulness:.3f} on {circuit.pairs} discovery pairs and "
        f"{circuit.faithfulness_test:.3f} on fresh ones; {circuit.passes:,.0f} passes, {circuit.seconds:.1f} s"
    )
    print(f"chosen: {known['note']}")
    if known["best_along_episode"]:
        last = known["last_masks"]
        print(f"the episodes' last masks alone would have given {last['edges']} edges with f = {last['faithfulness']:.3f}")
    judged = circuit.faithfulness if circuit.faithfulness_validation is None else circuit.faithfulness_validation
    if judged < circuit.tau:
        print(
            f"f = {circuit.tau:g} was not reached on the {known['judge']} pairs; all candidates together have f = {known['ceiling']:.3f}"
        )
    print(path)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _speaks() -> bool:
    """Of the processes that `torchrun` starts the first."""
    return os.environ.get("RANK", "0") == "0"


def _say(line: str) -> None:
    if _speaks():
        print(line, file=sys.stderr, flush=True)
