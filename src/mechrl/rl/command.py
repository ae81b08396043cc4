"""`mechrl train`, `mechrl discover` and `mechrl adapt`. Heavy imports wait until a command runs."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mechrl.search.command import _stop_signals

if TYPE_CHECKING:
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
Tf32Option = Annotated[bool, typer.Option(help="Allow TF32 matrix products on a GPU.")]
SecondsOption = Annotated[
    float | None, typer.Option(min=0, help="Save and end after so many seconds; go on later with --resume.")
]


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
    learning_rate: Annotated[float, typer.Option(min=0, help="At the start; it falls linearly to zero.")] = 2.5e-4,
    entropy: Annotated[float, typer.Option(min=0, help="Coefficient of the entropy bonus.")] = 0.01,
    seed: Annotated[int, typer.Option(min=0, help="Everything that is random.")] = 0,
    device: DeviceOption = "auto",
    tf32: Tf32Option = False,
    init_from: Annotated[Path | None, typer.Option(help="Folder of a policy to start from: its weights only.")] = None,
    save_every: Annotated[int, typer.Option(min=1, help="Iterations between two saves.")] = 20,
    seconds: SecondsOption = None,
    force: Annotated[bool, typer.Option("--force", help="Train on behaviours that the model does not exhibit as well.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
) -> None:
    """Train a policy on many behaviours at once (PPO with PCGrad). The defaults are the paper's budget.

    Examples: `mechrl train --model smollm2 --out runs/smollm2 --tf32`, `mechrl train --k 600 --iterations 100 --out runs/toy`,
    `mechrl train --behaviours ioi,greater-than --init-from runs/toy --out runs/two`
    """
    began = time.perf_counter()
    from mechrl.models import load_model
    from mechrl.rl.env import RewardSettings
    from mechrl.rl.ppo import PPOConfig, Trainer
    from mechrl.rl.rollout import load_policy
    from mechrl.rl.tasks import TaskSettings, exhibited, task_of
    from mechrl.rl.train import Run, describe, file_checksum

    config = PPOConfig(
        iterations=iterations, transitions=transitions, envs=envs, learning_rate=learning_rate, entropy=entropy, seed=seed
    )
    settings = TaskSettings(pairs, k, prefilter, tf32)  # type: ignore[arg-type]  # checked there, with a message for people
    reward = RewardSettings(margin=margin)
    start = load_policy(init_from) if init_from else None
    loaded = load_model(model, device=device)
    tasks = []
    for behaviour in exhibited(loaded, behaviours, force, _say):
        task = task_of(loaded, behaviour, settings, reward)
        _say(f"{task.name}: {task.K:,} candidates from {task.M} components, f = {task.ceiling:.3f}, target {task.tau:.3f}")
        tasks.append(task)
    trainer = Trainer(tasks, config, reward, start, loaded.device)
    about = describe(loaded, trainer, settings, file_checksum(init_from / "model.safetensors") if init_from else None)
    run = Run(out, trainer, about, resume, save_every, began)
    _train(run, None if seconds is None else began + seconds)
    if run.finished:
        _say(f"{out} holds the policy: `mechrl discover BEHAVIOUR --model {model} --policy {out}`")


def _train(run: Run, until: float | None) -> None:
    """Trains to the end. Asked to stop, or out of time, it saves and leaves at the end of an iteration."""
    with _Progress(run) as progress, _stop_signals() as stopped:
        for row in run:
            progress.show(row)
            late = until is not None and time.perf_counter() > until
            if (stopped or late) and not run.finished:
                run.save()
                break
    if run.finished:
        return
    why = "interrupted" if stopped else "out of time"
    _say(f"{why} after {run.trainer.iteration} iterations, saved in {run.folder}. To go on, repeat the command with --resume")
    raise typer.Exit(128 + stopped[0] if stopped else 0)


class _Progress:
    """Return, f, size, speed and what remains, on stderr: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, run: Run) -> None:
        self.run, self.total = run, run.trainer.config.iterations
        self.first = run.trainer.iteration
        self.began, self.last_line = time.monotonic(), -_LINE_EVERY
        self.known: dict[str, Any] = {}

    def __enter__(self) -> _Progress:
        self.bar = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = BarColumn(bar_width=24), TextColumn("{task.description}")
            self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self.task = self.bar.add_task("", total=self.total)
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def show(self, row: dict[str, Any]) -> None:
        # episodes do not end in every iteration: until then the last ones stand
        self.known |= {key: value for key, value in row.items() if value is not None}
        done = row["iteration"]
        parts = [f"iteration {done}/{self.total}"]
        if "episode/return" in self.known:
            known = self.known
            parts += [
                f"return {known['episode/return']:+.3f}",
                f"f {known['episode/f']:.3f}",
                f"{known['episode/edges']:,.0f} edges",
            ]
        left = (time.monotonic() - self.began) / (done - self.first) * (self.total - done)
        parts += [f"{row['steps_per_second']:,.0f} steps/s", f"{_duration(left)} left"]
        line = ", ".join(parts)
        if self.bar is not None:
            self.bar.update(self.task, description=line, completed=done)
        elif time.monotonic() - self.last_line > _LINE_EVERY or done == self.total:
            _say(f"train: {line}")
            self.last_line = time.monotonic()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
