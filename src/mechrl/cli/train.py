"""`mechrl train`, `mechrl deploy` and `mechrl adapt`. Heavy imports wait until a command runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mechrl import hub
from mechrl.cli import options
from mechrl.cli.output import answer_kept, keep, one_writer
from mechrl.cli.search import answer_circuit
from mechrl.cli.terminal import Live, answer, answer_json, working
from mechrl.errors import MechRLError
from mechrl.messages import say
from mechrl.ranges import MOST_COEFFICIENT, MOST_EDGES, MOST_STEPS, MOST_WIDTH
from mechrl.signals import stop_signals

if TYPE_CHECKING:
    from mechrl.circuit import Circuit
    from mechrl.rl.env import RewardSettings
    from mechrl.rl.tasks import TaskSettings
    from mechrl.rl.train import Run

Rule = Annotated[
    str,
    typer.Option(
        help="`smallest`: the smallest circuit with f ≥ tau, else the most faithful; `paper`: the most faithful."
    ),
]
Judge = Annotated[
    str, typer.Option(help="The pairs by whose f the rule chooses: `discovery` or `validation`.")
]
Along = Annotated[
    bool | None,
    typer.Option(
        "--best-along-episode/--last-masks",
        help="Choose among all masks along the episodes, or their last ones alone. [default: all if trained with --best-so-far]",
        show_default=False,
    ),
]
Trades = Annotated[
    bool,
    typer.Option(
        "--trades/--no-trades",
        help="Exchange a few edges for more when cuts fail: smaller circuits for more passes. Only for agents trained with --take-back.",
    ),
]
K = Annotated[
    int | None,
    typer.Option(
        "--k",
        min=1,
        max=MOST_EDGES,
        help="Candidate edges by each score. [default: as in training]",
        show_default=False,
    ),
]
Prefilter = Annotated[
    str | None,
    typer.Option(
        "--prefilter",
        help="Candidates by `metric`, by `kl`, or by either (`union`). [default: as in training]",
        show_default=False,
    ),
]


@one_writer
def train_command(
    model: options.Model = "toy",
    behaviours: options.Behaviours = "train",
    out: Annotated[Path, typer.Option(help="The run's folder.")] = Path("runs/train"),
    iterations: Annotated[
        int, typer.Option(min=1, max=MOST_STEPS, help="Rollouts, each followed by an update.")
    ] = 1200,
    transitions: options.Transitions = 512,
    envs: options.Envs = 32,
    k: Annotated[
        int, typer.Option("--k", min=1, max=MOST_EDGES, help="Candidate edges by each score.")
    ] = 3000,
    prefilter: options.Prefilter = "metric",
    spare: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            callback=options.finite,
            help="Take the fewest candidates whose f is at most this much lower than that of all; 0: all.",
        ),
    ] = 0.0,
    pairs: options.Pairs = 20,
    margin: options.Margin = 0.0,
    tau_high: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            callback=options.finite,
            help="The agent's target is never higher than this: the f that circuits shall have.",
        ),
    ] = 0.98,
    best_so_far: Annotated[
        bool,
        typer.Option(
            "--best-so-far", help="Reward the best circuit of an episode so far, not the one it is at."
        ),
    ] = False,
    give_up: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=MOST_COEFFICIENT,
            callback=options.finite,
            help="End an episode whose f is this far below the agent's target.",
        ),
    ] = None,
    log_share: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            callback=options.finite,
            help="Share of the size's reward that goes by log k: small circuits count for more.",
        ),
    ] = 0.0,
    look_again: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            callback=options.finite,
            help="Score the edges anew, at the circuit itself, whenever it has shrunk to this part of what it was; below 1, 0: never.",
        ),
    ] = 0.0,
    prior: Annotated[
        float,
        typer.Option(
            min=0,
            max=MOST_COEFFICIENT,
            callback=options.finite,
            help="How strongly the untrained agent prefers to cut edges of low |score|; 0: uniformly.",
        ),
    ] = 0.0,
    take_back: Annotated[
        bool,
        typer.Option(
            "--take-back", help="Take back cuts that leave f below the agent's target. Needs --parts."
        ),
    ] = False,
    parts: Annotated[
        bool,
        typer.Option(
            "--parts",
            help="Six more actions: cut a tenth or a third, what ranks lowest in one of three orders.",
        ),
    ] = False,
    trades: Annotated[
        bool,
        typer.Option(
            "--trades",
            help="One more action: measure single edges, bring a few back, cut more. Needs --take-back.",
        ),
    ] = False,
    pass_cost: Annotated[
        float,
        typer.Option(
            min=0, max=MOST_COEFFICIENT, callback=options.finite, help="What every pass costs of the reward."
        ),
    ] = 0.0,
    max_steps: Annotated[int, typer.Option(min=1, max=MOST_STEPS, help="Decisions in an episode.")] = 150,
    learning_rate: options.LearningRate = 2.5e-4,
    entropy: options.Entropy = 0.01,
    gamma: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            callback=options.finite,
            help="Discount; with a small budget a smaller one learns sooner.",
        ),
    ] = 0.99,
    width: Annotated[
        int, typer.Option(min=1, max=MOST_WIDTH, help="Of the policy's hidden layers (H).")
    ] = 128,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    half: options.Half = False,
    init_from: Annotated[
        Path | None,
        typer.Option(help="Folder of a policy to start from: its weights only.", show_default=False),
    ] = None,
    save_every: options.SaveEvery = 20,
    seconds: options.SecondsThenResume = None,
    force: options.ForceAll = False,
    resume: options.Resume = False,
    as_json: options.Json = False,
) -> None:
    """Train a policy on many behaviours at once (PPO with PCGrad). The defaults are the paper's budget.

    Examples:

    - `mechrl train --model smollm2 --out runs/smollm2 --half`
    - `mechrl train --k 600 --iterations 100 --out runs/toy`
    - `mechrl train --behaviours ioi,greater-than --init-from runs/toy --out runs/two`
    """
    began = time.perf_counter()
    from dataclasses import replace

    import torch

    from mechrl.models import load_model
    from mechrl.rl.env import RewardSettings
    from mechrl.rl.policy import Policy, PolicyConfig
    from mechrl.rl.ppo import PPOConfig, Trainer
    from mechrl.rl.rollout import load_policy
    from mechrl.rl.tasks import TaskSettings, exhibited, task_of
    from mechrl.rl.train import Run, describe, file_checksum, join_ranks, leave_ranks

    config = PPOConfig(
        iterations=iterations,
        transitions=transitions,
        envs=envs,
        learning_rate=learning_rate,
        entropy=entropy,
        gamma=gamma,
        seed=seed,
    )
    settings = TaskSettings(pairs, k, prefilter, half, spare)
    if take_back and not parts:
        raise MechRLError(
            "--take-back needs --parts: with the paper's actions alone episodes would end too soon"
        )
    if trades and not take_back:
        raise MechRLError(
            "--trades needs --take-back: an exchange begins and ends with an f that reaches the target"
        )
    if not 0 <= look_again < 1:
        raise MechRLError(f"--look-again takes a number from 0 to below 1, not {look_again:g}")
    reward = RewardSettings(
        margin=margin,
        tau_high=tau_high,
        max_steps=max_steps,
        best_so_far=best_so_far,
        give_up=give_up,
        log_share=log_share,
        look_again=look_again,
        take_back=take_back,
        trades=trades,
        pass_cost=pass_cost,
    )
    torch.manual_seed(seed)
    fresh = PolicyConfig(width, parts=parts, trades=trades)
    if prior:  # an agent that has an idea of what to cut need not begin edge by edge
        fresh = replace(fresh, cut_1_bias=0.0, cut_30_bias=0.0 if parts else 1.0, prior=prior)
    start = load_policy(init_from) if init_from else Policy(fresh)
    _check_out(out, resume)
    group, device = join_ranks(device)
    with working(f"loading {model}"):
        loaded = load_model(model, device=device)
    tasks = []
    with working(f"which behaviours {model} exhibits"):
        chosen = exhibited(loaded, behaviours, force, say)
    for behaviour in chosen:
        with working(f"ranking the edges of {model} for {behaviour.name}"):
            task = task_of(loaded, behaviour, settings, reward)
        say(
            f"{task.name}: {task.K:,} candidates from {task.M} components, f = {task.ceiling:.3f}, target {task.tau:.3f}"
        )
        tasks.append(task)
    trainer = Trainer(tasks, config, reward, start, loaded.device, group)
    about = describe(
        loaded, trainer, settings, file_checksum(init_from / "model.safetensors") if init_from else None
    )
    run = Run(out, trainer, about, resume, save_every, began)
    try:
        _train(run, None if seconds is None else began + seconds, as_json)
        if as_json:
            answer_json(_state(run))
        if (unsaved := run.missing()) is not None:
            answer(f"trained to the end, {run.passes():,.0f} passes; the policy could not be saved")
            raise unsaved
        say(f"{out} holds the policy: `mechrl deploy BEHAVIOUR --model {model} --policy {out}`")
    except typer.Exit as left:  # asked to stop, or out of time: all ranks alike
        leave_ranks(group, left.exit_code)
        raise
    leave_ranks(group)


@one_writer
def deploy_command(
    behaviour: options.Behaviour,
    model: options.Model = "toy",
    policy: options.Policy = None,
    tau: options.Tau = 0.9,
    rollouts: options.Rollouts = 16,
    rule: Rule = "smallest",
    judge: Judge = "discovery",
    best_along_episode: Along = None,
    trades: Trades = True,
    pairs: options.Pairs = 20,
    k: K = None,
    prefilter: Prefilter = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    half: options.Half = False,
    out: Annotated[Path, typer.Option(help="Folder for circuit.json.")] = Path("runs/deploy"),
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Deploy a pruning policy, the paper's kind of agent, on a behaviour: 16 sampled rollouts and a greedy one.

    Examples:

    - `mechrl deploy ioi`
    - `mechrl deploy acronyms --model smollm2 --tau 0.8 --json`
    - `mechrl deploy mine.jsonl --policy runs/toy --judge validation --best-along-episode`
    """
    from mechrl import gate
    from mechrl.behaviours import get_behaviour
    from mechrl.models import load_model
    from mechrl.rl.rollout import Deployment, discover, load_policy, shipped_policy

    deployment = Deployment(tau, rollouts, rule, judge, best_along_episode, seed, trades)  # type: ignore[arg-type]  # checked there
    chosen = get_behaviour(behaviour)
    folder = hub.local(policy or shipped_policy(model), *hub.AGENT)
    agent = load_policy(folder)
    settings, reward = _settings(folder, tau, pairs, k, prefilter, half)
    with working(f"loading {model}"):
        loaded = load_model(model, device=device)
    if not force:
        gate.check(loaded, chosen)
    with Live("deploy", quiet=0) as live:
        live.show(f"ranking the edges of {model}")

        def report(step: int, line: str) -> None:
            live.show(line, step, max(step, reward.max_steps))

        circuit = discover(loaded, chosen, agent.to(loaded.device), deployment, settings, reward, report)
    _print(circuit, out / "circuit.json", as_json)


@one_writer
def adapt_command(
    behaviour: options.Behaviour,
    model: options.Model = "toy",
    policy: options.Policy = None,
    iterations: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_STEPS, help="Of training. [default: 80, from scratch 200]", show_default=False
        ),
    ] = None,
    from_scratch: Annotated[
        bool,
        typer.Option(
            "--from-scratch", help="The control: start from an untrained policy of the same width and prior."
        ),
    ] = False,
    transitions: options.Transitions = 512,
    envs: options.Envs = 32,
    tau: options.Tau = 0.9,
    rollouts: options.Rollouts = 16,
    rule: Rule = "smallest",
    judge: Judge = "discovery",
    best_along_episode: Along = None,
    trades: Trades = True,
    pairs: options.Pairs = 20,
    k: K = None,
    prefilter: Prefilter = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    half: options.Half = False,
    out: Annotated[
        Path, typer.Option(help="Folder for circuit.json, the adapted policy and metrics.jsonl.")
    ] = Path("runs/adapt"),
    save_every: options.SaveEvery = 20,
    seconds: options.SecondsThenResume = None,
    force: options.Force = False,
    resume: options.Resume = False,
    as_json: options.Json = False,
) -> None:
    """Train a policy a little more on one behaviour (the paper's warm start: its weights, all else fresh), then deploy it on that.

    Examples:

    - `mechrl adapt ioi --iterations 20`
    - `mechrl adapt acronyms --model smollm2 --out runs/acronyms`
    - `mechrl adapt acronyms --model smollm2 --from-scratch --out runs/acronyms-scratch`
    """
    began = time.perf_counter()
    import torch

    from mechrl import gate
    from mechrl.behaviours import get_behaviour
    from mechrl.models import load_model
    from mechrl.rl.policy import Policy
    from mechrl.rl.ppo import PPOConfig, Trainer
    from mechrl.rl.rollout import Deployment, deploy, learned_with, load_policy, shipped_policy
    from mechrl.rl.tasks import task_of
    from mechrl.rl.train import Run, describe, file_checksum

    deployment = Deployment(tau, rollouts, rule, judge, best_along_episode, seed, trades)  # type: ignore[arg-type]  # checked there
    chosen = get_behaviour(behaviour)
    folder = hub.local(policy or shipped_policy(model), *hub.AGENT)
    start = load_policy(folder)
    n = iterations or (200 if from_scratch else 80)
    config = PPOConfig(n, transitions, envs, deconflict=False, seed=seed, **learned_with(folder))
    if (
        from_scratch
    ):  # all but the weights is the policy's: what it was before training, candidates, episodes, discount
        torch.manual_seed(seed)
        start = Policy(start.config)
    settings, reward = _settings(folder, tau, pairs, k, prefilter, half)
    _check_out(out, resume)
    with working(f"loading {model}"):
        loaded = load_model(model, device=device)
    with working(f"ranking the edges of {model} for {chosen.name}"):
        if not force and not resume:
            gate.check(loaded, chosen)
        task = task_of(loaded, chosen, settings, reward)
    trainer = Trainer([task], config, reward, start, loaded.device)
    about = describe(
        loaded, trainer, settings, None if from_scratch else file_checksum(folder / "model.safetensors")
    )
    run = Run(out, trainer, about, resume, save_every, began)
    _train(run, None if seconds is None else began + seconds, as_json)
    with Live("deploy", quiet=0) as live:
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
            report=lambda step, line: live.show(line, step, max(step, reward.max_steps)),
        )
    _print(circuit, out / "circuit.json", as_json)
    if (unsaved := run.missing()) is not None:  # the circuit is there, the policy that found it is not
        raise unsaved


def _check_out(out: Path, resume: bool) -> None:
    """What the run would refuse after its preparations, which may take long, is refused before them."""
    from mechrl.rl.train import CHECKPOINT

    left = (out / CHECKPOINT).exists()
    if resume and not left:
        raise MechRLError(f"{out}: no checkpoint to resume from; start without --resume")
    if left and not resume:
        raise MechRLError(f"{out} holds a run already; go on with it by --resume, or choose another folder")


def _settings(
    folder: Path, tau: float, pairs: int, k: int | None, prefilter: str | None, half: bool
) -> tuple[TaskSettings, RewardSettings]:
    """The candidate sets and episodes that a policy was trained on, where no option says otherwise."""
    from dataclasses import replace

    from mechrl.rl.rollout import trained_with

    settings, reward = trained_with(folder, tau)
    by = prefilter or settings.prefilter
    return replace(settings, pairs=pairs, k=k or settings.k, prefilter=by, half=half), reward  # type: ignore[arg-type]  # checked there


def _train(run: Run, until: float | None, as_json: bool) -> None:
    """Trains to the end. Asked to stop, or out of time, it saves and leaves at the end of an iteration."""
    line = _TrainingLine(run)
    with Live("train", quiet=0) as live, stop_signals() as stopped:
        for row in run:
            live.show(line.of(row), row["iteration"], run.trainer.config.iterations)
            late = until is not None and time.perf_counter() > until
            reason = run.agree(128 + stopped[0] if stopped else int(late))
            if reason and not run.finished:
                run.save()
                break
    if run.finished:
        return
    signalled = reason > 1
    why = f"{'interrupted' if signalled else 'out of time'} after {run.trainer.iteration} iterations"
    if (unsaved := run.missing()) is None:
        say(f"{why}, saved in {run.folder}. To go on, repeat the command with --resume")
    else:
        say(f"{why}, the last of which could not be saved ({unsaved}); --resume goes on from the last save")
    if signalled:
        raise typer.Exit(reason)
    if as_json:
        answer_json(_state(run))
    raise typer.Exit


def _state(run: Run) -> dict[str, Any]:
    """What machines are told of a training run, or of one that ran out of time."""
    done = {"folder": str(run.folder), "finished": run.finished, "iterations": run.trainer.iteration}
    return done | {"passes": run.passes(), "seconds": run.seconds}


class _TrainingLine:
    """Return, f and size of the last episodes that ended, speed and what remains."""

    def __init__(self, run: Run) -> None:
        self.total, self.first, self.began = (
            run.trainer.config.iterations,
            run.trainer.iteration,
            time.monotonic(),
        )
        self.known: dict[str, Any] = {}

    def of(self, row: dict[str, Any]) -> str:
        self.known |= {
            key: value for key, value in row.items() if value is not None
        }  # episodes do not end in every iteration
        known, done = self.known, row["iteration"]
        parts = [f"iteration {done:,} of {self.total:,}"]
        if "episode/return" in known:
            parts += [f"return {known['episode/return']:+.3f}", f"f {known['episode/f']:.3f}"]
            parts += [f"{known['episode/edges']:,.0f} edges"]
        left = (time.monotonic() - self.began) / (done - self.first) * (self.total - done)
        return ", ".join([*parts, f"{row['steps_per_second']:,.0f} steps/s", f"{_duration(left)} left"])


def _print(circuit: Circuit, path: Path, as_json: bool) -> None:
    """Saves and tells a circuit."""
    unsaved = keep(circuit, path)
    if as_json:
        answer_circuit(circuit, path, unsaved)
        return
    known = circuit.settings
    answer(
        f"{circuit.behaviour} in {circuit.model} by {circuit.method}: {len(circuit)} edges ({known['edges_before_pruning']} before "
        f"pruning, {known['candidates']:,} candidates), f = {circuit.faithfulness:.3f} on {circuit.pairs} discovery pairs and "
        f"{circuit.faithfulness_test:.3f} on fresh ones; {circuit.passes:,.0f} passes, {circuit.seconds:.1f} s"
    )
    answer(f"chosen: {known['note']}")
    if known["best_along_episode"]:
        last = known["last_masks"]
        answer(
            f"the episodes' last masks alone would have given {last['edges']} edges with f = {last['faithfulness']:.3f}"
        )
    judged = (
        circuit.faithfulness if circuit.faithfulness_validation is None else circuit.faithfulness_validation
    )
    if judged < circuit.tau:
        answer(
            f"f = {circuit.tau:g} was not reached on the {known['judge']} pairs; all candidates together have f = {known['ceiling']:.3f}"
        )
    answer_kept(circuit, path, unsaved)
    if unsaved is not None:
        raise unsaved


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
