"""`mechrl discover`: an agent finds a circuit, with progress; it can be interrupted at any time and resumed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mechrl import names
from mechrl.cli import options
from mechrl.cli.output import interrupted, keep, leave, one_writer
from mechrl.cli.search import answer_found, duration, on_which_pairs, warn_of
from mechrl.cli.terminal import Live, working
from mechrl.cli.train import tell
from mechrl.errors import MechRLError
from mechrl.files.saving import Saving
from mechrl.messages import say
from mechrl.ranges import MOST_STEPS
from mechrl.signals import stop_signals

if TYPE_CHECKING:
    from mechrl.agents.planner.session import Session


@one_writer
def discover_command(
    behaviour: options.Behaviour,
    model: options.Model = "toy",
    agent: Annotated[
        names.Agent,
        typer.Option(
            **options.choice("agent", names.Agent),
            rich_help_panel=options.BASICS,
            help="Who finds it: the `planner`, or the `paper`'s agent with a --policy that you have trained.",
        ),
    ] = "planner",
    tau: options.Tau = 0.9,
    holds_on: options.HoldsOn = None,
    out: options.OutToResume = Path("runs/discover"),
    pairs: options.Pairs = 20,
    budget: Annotated[
        int,
        options.budget(
            min=1, max=MOST_STEPS, help="Most passes to spend; the answer is then the best circuit so far."
        ),
    ] = 1000,
    planner: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=options.EXPERT,
            help="Folder of a planner. [default: the one that comes with MechRL]",
            show_default=False,
        ),
    ] = None,
    policy: options.PolicyOfPaper = None,
    seed: options.Seed = 0,
    bos: options.Bos = "auto",
    device: options.Device = "auto",
    force: options.Force = False,
    resume: options.Resume = False,
    as_json: options.Json = False,
) -> None:
    """Find the circuit behind a behaviour, with a planner that has learned what edits do: small, and cheaper than a search.

    `--agent paper` asks the paper's agent instead: of 16 sampled episodes and a greedy one, the most faithful circuit wins.

    Examples:

    - `mechrl discover ioi`
    - `mechrl discover acronyms --model smollm2 --out runs/acronyms`
    - `mechrl discover mine.jsonl --model smollm2 --holds-on discovery --json`
    - `mechrl discover ioi --agent paper --policy runs/toy`
    """
    if agent == "paper":
        if holds_on == "fresh" or planner is not None:
            raise MechRLError(
                "--holds-on fresh and --planner are the planner's; the paper's agent knows the discovery pairs alone"
            )
        asked = _Asked(behaviour, model, policy, tau, pairs, out, seed, bos, device, force, resume, as_json)
        _by_paper(asked)
        return
    if policy is not None:
        raise MechRLError("--policy is the paper's agent's; give --agent paper as well")
    from mechrl import gate
    from mechrl.agents.planner.session import DiscoverSettings, Session
    from mechrl.agents.planner.shipped import load_planner, shipped
    from mechrl.behaviours import get_behaviour
    from mechrl.engine.estimate import estimate
    from mechrl.models import load_model
    from mechrl.search.problem import Interrupted

    chosen = get_behaviour(behaviour)
    settings = DiscoverSettings(tau, pairs, on_which_pairs(chosen, holds_on), budget=budget, seed=seed)
    network = load_planner(planner or shipped(model))
    circuit_path, state_path = out / "circuit.json", out / "planner.safetensors"
    with working(f"loading {model}"):
        loaded = load_model(model, device=device, bos=bos)
    warnings: tuple[str, ...] = ()
    if resume:
        session = Session.resume(state_path, loaded, chosen, network, settings)
    else:
        if not force:
            warnings = gate.check(loaded, chosen).warnings
        with working(f"looking at all {loaded.graph.n_edges:,} edges of {model}"):
            session = Session(loaded, chosen, network, settings)
    warn_of(chosen, warnings, session.start.engine.n_pairs, pairs)
    if not resume:
        say(f"{estimate(session.start.engine).line()}; at most {budget:,} passes")

    saving = Saving()
    with Live("discover", quiet=0) as live, stop_signals() as stopped:

        def watch() -> None:
            live.show(_line(session), min(session.passes, budget), budget)
            if stopped:
                raise Interrupted

        def checkpoint(session: Session) -> None:
            saving.attempt(lambda: session.save(state_path))
            watch()

        try:
            checkpoint(session)
            session.run(checkpoint, watch)
        except Interrupted:
            circuit = session.circuit(complete=False)
        else:
            circuit = session.circuit()
    unsaved = keep(circuit, circuit_path)
    if not circuit.complete:
        leave(circuit, circuit_path, unsaved, saving, stopped[0])
    headline = (
        f"{circuit.behaviour} in {circuit.model} by the planner: {circuit.size} edges, f = {circuit.faithfulness:.3f} on "
        f"{circuit.pairs} discovery pairs and {circuit.faithfulness_test:.3f} on fresh ones; {circuit.passes:,.0f} passes, "
        f"{circuit.seconds:.1f} s"
    )
    if unsaved is None:
        state_path.unlink(missing_ok=True)
    answer_found(circuit, circuit_path, unsaved, headline, as_json)


def _line(session: Session) -> str:
    """Where it stands, and how long it can take at most."""
    now = session.progress
    left = now.seconds / max(now.passes, 1) * max(now.budget - now.passes, 0)
    return (
        f"{now.edges:,} edges, f {now.f:.3f}, {now.passes:,.0f} of at most {now.budget:,} passes, "
        f"{duration(now.seconds)}, at most {duration(left)} left"
    )


@dataclass(frozen=True)
class _Asked:
    """The options of `mechrl discover` that the paper's agent has a use for."""

    behaviour: str
    model: str
    policy: Path | None
    tau: float
    pairs: int
    out: Path
    seed: int
    bos: str
    device: str
    force: bool
    resume: bool
    as_json: bool


def _by_paper(asked: _Asked) -> None:
    from mechrl import gate, hub
    from mechrl.agents.paper.checkpoint import load_policy, trained_with
    from mechrl.agents.paper.deploy import Deployment, Watch, discover
    from mechrl.behaviours import get_behaviour
    from mechrl.models import load_model
    from mechrl.search.problem import Interrupted

    chosen = get_behaviour(asked.behaviour)
    if asked.policy is None:
        raise MechRLError(
            "the paper's agent needs a policy: train one with `mechrl train` and give it by --policy"
        )
    folder = hub.local(asked.policy, *hub.AGENT)
    network = load_policy(folder)
    settings, env = trained_with(folder)
    settings, deployment = replace(settings, pairs=asked.pairs), Deployment(asked.tau, seed=asked.seed)
    path = asked.out / "rollouts.safetensors"
    if asked.resume and not path.exists():
        raise MechRLError(f"{asked.out}: no rollouts to resume; start without --resume")
    with working(f"loading {asked.model}"):
        loaded = load_model(asked.model, device=asked.device, bos=asked.bos)  # type: ignore[arg-type]  # checked there
    if not asked.force:
        gate.check(loaded, chosen)
    if not asked.resume:
        path.unlink(missing_ok=True)
    with Live("discover", quiet=0) as live, stop_signals() as stopped:
        live.show(f"ranking the edges of {asked.model}")
        watch = Watch(lambda step, line: live.show(line, step, env.max_steps), path, lambda: bool(stopped))
        try:
            circuit = discover(loaded, chosen, network.to(loaded.device), settings, env, deployment, watch)
        except Interrupted:
            interrupted(f"{path} holds how far it came", None, stopped[0])
    tell(circuit, asked.out / "circuit.json", asked.as_json)
    path.unlink(missing_ok=True)
