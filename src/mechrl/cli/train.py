"""`mechrl train`, `mechrl adapt` and `mechrl curves`: the paper's agent. Heavy imports wait until a command runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mechrl import hub
from mechrl.cli import options
from mechrl.cli.output import answer_kept, keep, one_writer
from mechrl.cli.search import answer_circuit, duration
from mechrl.cli.terminal import Live, answer, answer_json, working
from mechrl.errors import MechRLError
from mechrl.messages import say
from mechrl.ranges import MOST_EDGES, MOST_STEPS
from mechrl.signals import stop_signals

if TYPE_CHECKING:
    from mechrl.agents.paper.train import Run
    from mechrl.circuit import Circuit

_CHECKPOINT = "checkpoint.safetensors"


@one_writer
def train_command(
    model: options.Model = "toy",
    behaviours: options.Behaviours = "train",
    out: Annotated[Path, options.basic(help="The run's folder.")] = Path("runs/train"),
    iterations: Annotated[
        int, options.budget(min=1, max=MOST_STEPS, help="Rollouts of 512 steps, each followed by an update.")
    ] = 1200,
    envs: options.Envs = 4,
    k: Annotated[
        int | None,
        options.expert(
            "--k",
            min=1,
            max=MOST_EDGES,
            help="Candidate edges. [default: the fewest whose ceiling reaches 0.9 for every behaviour]",
            show_default=False,
        ),
    ] = None,
    prefilter: options.ScoredBy = "metric",
    seed: options.Seed = 0,
    device: options.Device = "auto",
    save_every: options.SaveEvery = 20,
    seconds: options.SecondsThenResume = None,
    force: options.ForceAll = False,
    resume: options.Resume = False,
    as_json: options.Json = False,
) -> None:
    """Train the paper's agent: one policy for many behaviours, by PPO with PCGrad, with the paper's settings.

    Examples:

    - `mechrl train --out runs/toy`
    - `mechrl train --model gpt2 --seconds 3600 --out runs/gpt2`
    - `mechrl train --behaviours ioi,greater-than --k 300 --iterations 100 --out runs/two`
    """
    began = time.perf_counter()
    from mechrl.agents.paper.env import EnvConfig
    from mechrl.agents.paper.ppo import PPOConfig, Trainer
    from mechrl.agents.paper.tasks import TaskSettings, exhibited, training_tasks
    from mechrl.agents.paper.train import Run, describe
    from mechrl.models import load_model

    config = PPOConfig(iterations=iterations, envs=envs, seed=seed)
    settings = TaskSettings(prefilter=prefilter)
    _check_out(out, resume)
    with working(f"loading {model}"):
        loaded = load_model(model, device=device)
    with working(f"which behaviours {model} exhibits"):
        chosen = exhibited(loaded, behaviours, force, say)
    tasks, settings = training_tasks(loaded, chosen, settings, EnvConfig(), k, say)
    trainer = Trainer(tasks, config, EnvConfig(), device=loaded.device)
    run = Run(out, trainer, describe(loaded, trainer, settings), resume, save_every, began)
    _train(run, None if seconds is None else began + seconds, as_json)
    if as_json:
        answer_json(_state(run))
    if (unsaved := run.missing()) is not None:
        answer(f"trained to the end, {run.passes():,.0f} passes; the policy could not be saved")
        raise unsaved
    say(f"{out} holds the policy: `mechrl discover BEHAVIOUR --agent paper --model {model} --policy {out}`")


@one_writer
def adapt_command(
    behaviour: options.Behaviour,
    policy: options.Policy,
    model: options.Model = "toy",
    iterations: Annotated[
        int | None,
        options.budget(
            min=1,
            max=MOST_STEPS,
            help="Iterations of training. [default: 80, from scratch 200]",
            show_default=False,
        ),
    ] = None,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="The control: start from an untrained policy.")
    ] = False,
    envs: options.Envs = 4,
    tau: options.Tau = 0.9,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    out: Annotated[
        Path, options.basic(help="Folder for circuit.json, the adapted policy and metrics.jsonl.")
    ] = Path("runs/adapt"),
    save_every: options.SaveEvery = 20,
    seconds: options.SecondsThenResume = None,
    force: options.Force = False,
    resume: options.Resume = False,
    as_json: options.Json = False,
) -> None:
    """Train the paper's policy a little more on one behaviour (a warm start), then let it find the circuit.

    Only the weights are taken over; the optimiser and the schedule are fresh.

    Examples:

    - `mechrl adapt acronyms --policy runs/toy --out runs/acronyms`
    - `mechrl adapt acronyms --policy runs/toy --from-scratch --out runs/acronyms-scratch`
    """
    began = time.perf_counter()
    from mechrl import gate
    from mechrl.agents.paper.adapt import adaptation, method_of, trainer_of
    from mechrl.agents.paper.checkpoint import load_policy, trained_with
    from mechrl.agents.paper.deploy import Deployment, Watch, deploy
    from mechrl.agents.paper.tasks import task_of
    from mechrl.agents.paper.train import Run
    from mechrl.behaviours import get_behaviour
    from mechrl.models import load_model

    chosen = get_behaviour(behaviour)
    policy = hub.local(policy, *hub.AGENT)
    start = load_policy(policy)
    settings, env = trained_with(policy)
    config = adaptation(from_scratch, iterations, envs, seed)
    _check_out(out, resume)
    with working(f"loading {model}"):
        loaded = load_model(model, device=device)
    with working(f"ranking the edges of {model} for {chosen.name}"):
        if not force and not resume:
            gate.check(loaded, chosen)
        task = task_of(loaded, chosen, settings, env)
    trainer, about = trainer_of(loaded, task, config, settings, env, start, policy, from_scratch)
    run = Run(out, trainer, about, resume, save_every, began)
    _train(run, None if seconds is None else began + seconds, as_json)
    with Live("deploy", quiet=0) as live:
        asked = Deployment(
            tau=tau,
            seed=seed,
            method=method_of(from_scratch),
            about={"iterations": config.iterations, "transitions": config.transitions},
            passes_before=run.passes_before,
            seconds_before=run.seconds,
        )
        watch = Watch(lambda step, line: live.show(line, step, env.max_steps))
        circuit = deploy(loaded, chosen, task, trainer.policy, settings, env, asked, watch)
    tell(circuit, out / "circuit.json", as_json)
    if (unsaved := run.missing()) is not None:  # the circuit is there, the policy that found it is not
        raise unsaved


def curves_command(
    run: Annotated[
        Path, typer.Argument(help="A folder that `mechrl train` or `adapt` filled.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The picture, .svg or .png. [default: curves.svg in the folder]", show_default=False
        ),
    ] = None,
) -> None:
    """Draw a training run: returns by behaviour, f and size, stop share and episode length, entropies.

    Examples:

    - `mechrl curves runs/toy`
    - `mechrl curves runs/toy --out toy.png`
    """
    from mechrl.files import write_atomically
    from mechrl.report.training import draw_run

    path = out or run / "curves.svg"
    if path.suffix not in (".svg", ".png"):
        raise MechRLError(f"{path}: a picture's name ends in .svg or .png")
    figure = draw_run(run)
    write_atomically(path, figure.svg if path.suffix == ".svg" else figure.png)
    answer(path)


def _check_out(out: Path, resume: bool) -> None:
    """What the run would refuse after its preparations, which may take long, is refused before them."""
    left = (out / _CHECKPOINT).exists()
    if resume and not left:
        raise MechRLError(f"{out}: no checkpoint to resume from; start without --resume")
    if left and not resume:
        raise MechRLError(f"{out} holds a run already; go on with it by --resume, or choose another folder")


def _train(run: Run, until: float | None, as_json: bool) -> None:
    """Trains to the end. Asked to stop, or out of time, it saves and leaves at the end of an iteration."""
    line, reason, why = _TrainingLine(run), 0, ""
    with Live("train", quiet=0) as live, stop_signals() as stopped:
        for row in run:
            line.forecast(row)
            live.show(line.of(row), row["iteration"], run.trainer.config.iterations)
            if (stopped or (until is not None and time.perf_counter() > until)) and not run.finished:
                run.save()
                reason, why = (128 + stopped[0], "interrupted") if stopped else (0, "out of time")
                break
    if run.finished:
        return
    why += f" after {run.trainer.iteration} iterations"
    if (unsaved := run.missing()) is None:
        say(f"{why}, saved in {run.folder}. To go on, repeat the command with --resume")
    else:
        say(f"{why}, the last of which could not be saved ({unsaved}); --resume goes on from the last save")
    if as_json and not reason:
        answer_json(_state(run))
    raise typer.Exit(reason)


def _state(run: Run) -> dict[str, Any]:
    """What machines are told of a training run, or of one that ran out of time."""
    done = {"folder": str(run.folder), "finished": run.finished, "iterations": run.trainer.iteration}
    return done | {"passes": run.passes(), "seconds": run.seconds}


class _TrainingLine:
    """What the run will cost, after its first iteration; then return, f and size of the last episodes, and what remains."""

    def __init__(self, run: Run) -> None:
        config = run.trainer.config
        self.total, self.first, self.passes = config.iterations, run.trainer.iteration, run.passes()
        self.began = time.monotonic()
        self.known: dict[str, Any] = {}

    def _left(self, done: int) -> float:
        return (time.monotonic() - self.began) / (done - self.first) * (self.total - done)

    def forecast(self, row: dict[str, Any]) -> None:
        if row["iteration"] == self.first + 1 < self.total:
            n = self.total - self.first
            passes = n * (row["passes"] - self.passes)
            hours = duration(self._left(row["iteration"]))
            say(
                f"{n:,} iterations: about {passes:,.0f} passes and, at the pace of the first, {hours} on this device"
            )

    def of(self, row: dict[str, Any]) -> str:
        self.known |= {key: value for key, value in row.items() if value is not None}  # few episodes end
        known, done = self.known, row["iteration"]
        parts = [f"iteration {done:,} of {self.total:,}", f"stop {known['rollout/stop_share']:.1%}"]
        if "episode/return" in known:
            parts += [f"return {known['episode/return']:+.3f}", f"f {known['episode/f']:.3f}"]
            parts += [f"{known['episode/edges']:,.0f} edges"]
        parts += [f"{row['steps_per_second']:,.0f} steps/s", f"{duration(self._left(done))} left"]
        return ", ".join(parts)


def tell(circuit: Circuit, path: Path, as_json: bool) -> None:
    """Saves and tells a circuit of the paper's agent."""
    unsaved = keep(circuit, path)
    if as_json:
        answer_circuit(circuit, path, unsaved)
        return
    known = circuit.settings
    answer(
        f"{circuit.behaviour} in {circuit.model} by {circuit.method}: {len(circuit)} of {known['candidates']:,} candidate edges, "
        f"{circuit.size} of them on a path, f = {circuit.faithfulness:.3f} on {circuit.pairs} discovery pairs and "
        f"{circuit.faithfulness_test:.3f} on fresh ones; {circuit.passes:,.0f} passes, {circuit.seconds:.1f} s"
    )
    answer(f"chosen: {known['note']}; all candidates together have f = {known['ceiling']:.3f}")
    if circuit.faithfulness < circuit.tau:
        answer(f"f = {circuit.tau:g} was not reached")
    answer_kept(circuit, path, unsaved)
    if unsaved is not None:
        raise unsaved
