"""`mechrl search`: one search, with progress, that can be interrupted at any time and resumed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mechrl import names
from mechrl.cli import options
from mechrl.cli.output import answer_kept, keep, leave, one_writer
from mechrl.cli.terminal import Live, answer, answer_json, working
from mechrl.errors import MechRLError
from mechrl.files import CannotWrite
from mechrl.files.saving import Saving
from mechrl.messages import say
from mechrl.ranges import MOST_COEFFICIENT, MOST_EDGES, MOST_PAIRS, MOST_STEPS
from mechrl.signals import stop_signals

if TYPE_CHECKING:
    from mechrl.behaviours import Behaviour
    from mechrl.circuit import Circuit
    from mechrl.search.problem import State
    from mechrl.search.session import SearchSession

_SAVE_EVERY = 10.0  # seconds


@one_writer
def search_command(
    method: options.SearchMethod,
    behaviour: options.Behaviour,
    model: options.Model = "toy",
    tau: options.Tau = 0.9,
    holds_on: options.HoldsOn = None,
    out: options.OutToResume = Path("runs/search"),
    pairs: options.Pairs = 20,
    k: Annotated[
        int,
        options.budget(
            "--k",
            min=1,
            max=MOST_EDGES,
            help="Candidate edges per score; doubled until all of them together reach tau.",
        ),
    ] = 3000,
    attempts: Annotated[
        int | None,
        options.budget(
            min=1,
            max=MOST_STEPS,
            help="Most searches in a row, each aiming higher, until f holds on fresh pairs. "
            "[default: 6; 1 for `blockwise` on a CPU]",
            show_default=False,
        ),
    ] = None,
    seed: options.Seed = 0,
    prefilter: options.Prefilter = "union",
    whole_graph: Annotated[
        bool, options.expert("--whole-graph", help="Search among all edges, not among candidates.")
    ] = False,
    threshold: Annotated[
        list[float] | None,
        options.expert(
            min=0,
            max=MOST_COEFFICIENT,
            callback=options.all_finite,
            help="ACDC's threshold; repeatable. [default: 0.001, 0.003 and 0.01]",
            show_default=False,
        ),
    ] = None,
    minibatch: Annotated[
        int | None,
        options.expert(
            min=1,
            max=MOST_PAIRS,
            help="Decide by this many pairs at a time, drawn anew as the search goes on.",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        options.expert(
            min=1,
            max=MOST_STEPS,
            help="Steps of Matryoshka attribution, three passes each. [default: 500]",
            show_default=False,
        ),
    ] = None,
    bos: options.Bos = "auto",
    device: options.Device = "auto",
    force: options.Force = False,
    resume: options.Resume = False,
    as_json: options.Json = False,
) -> None:
    """Find the circuit behind one behaviour by search: the fewest edges that keep f ≥ tau.

    Examples:

    - `mechrl search blockwise ioi`
    - `mechrl search acdc greater-than --model smollm2 --threshold 0.01 --json`
    - `mechrl search blockwise acronyms --model smollm2 --pairs 100 --holds-on fresh --out runs/acronyms`
    """
    from mechrl import gate
    from mechrl.behaviours import get_behaviour
    from mechrl.files import write_atomically
    from mechrl.models import load_model, resolve_device
    from mechrl.search.acdc import THRESHOLDS
    from mechrl.search.matryoshka import STEPS
    from mechrl.search.problem import Interrupted, State
    from mechrl.search.session import ATTEMPTS, SearchSettings, check_continues, prepare

    chosen = get_behaviour(behaviour)
    where = resolve_device(device)
    if (
        attempts is None
    ):  # a blockwise search is read back to where validation pairs agree: one is enough to hold on them
        attempts = 1 if method == "blockwise" and where.type == "cpu" else ATTEMPTS
    settings = SearchSettings(
        method=method,
        tau=tau,
        pairs=pairs,
        k=k,
        whole_graph=whole_graph,
        prefilter=prefilter,
        thresholds=tuple(threshold) if threshold else THRESHOLDS,
        holds_on=on_which_pairs(chosen, holds_on),
        minibatch=minibatch,
        seed=seed,
        attempts=attempts,
        steps=steps or STEPS,
    )
    circuit_path, state_path = out / "circuit.json", out / "state.safetensors"
    state, about = State.read(state_path) if resume else (None, None)
    with working(f"loading {model}"):
        loaded = load_model(model, device=where, bos=bos)
    warnings: tuple[str, ...] = ()
    with working(f"ranking the edges of {model} for {chosen.name}"):
        if about is not None:
            check_continues(loaded, chosen, settings, about)
        elif not force:
            warnings = gate.check(loaded, chosen).warnings
        session = prepare(loaded, chosen, settings, about)
    warn_of(chosen, warnings, len(session.problem.pairs), pairs)
    if state is None:
        say(forecast(session))

    last_saved = time.monotonic()
    last_state: State | None = state
    remaining, saving = _Remaining(), Saving()
    with (
        Live(method, quiet=0) as live,
        stop_signals() as stopped,
    ):  # the first line comes at once: the search has begun

        def checkpoint(now: State) -> None:
            nonlocal last_saved, last_state
            last_state = now
            fraction = now.extra.get("progress")
            line = f"f {now.faithfulness:.3f}, {int(now.mask.sum()):,} edges, {session.passes:,.0f} passes"
            line += f", {session.seconds:.0f} s{remaining.text(fraction)} · {now.note}"
            live.show(line, fraction or 0.0, None if fraction is None else 1.0)
            if stopped or time.monotonic() - last_saved > _SAVE_EVERY:
                saving.attempt(lambda: write_atomically(state_path, now.to_bytes(**session.about())))
                last_saved = time.monotonic()
            if stopped:
                raise Interrupted

        session.problem.checkpoint = checkpoint
        try:
            circuit = session.circuit(session.run(state))
        except Interrupted:
            assert last_state is not None
            circuit = session.circuit(last_state, complete=False)
    unsaved = keep(circuit, circuit_path)
    if not circuit.complete:
        leave(circuit, circuit_path, unsaved, saving, stopped[0])
    headline = (
        f"{circuit.behaviour} in {circuit.model} by {circuit.method}: {circuit.size} edges ({len(circuit)} before pruning), "
        f"f = {circuit.faithfulness:.3f} on {circuit.pairs} discovery pairs and {circuit.faithfulness_test:.3f} on fresh ones; "
        f"{circuit.passes:,.0f} passes, {circuit.seconds:.1f} s"
    )
    if unsaved is None:
        state_path.unlink(missing_ok=True)
    answer_found(circuit, circuit_path, unsaved, headline, as_json)


def on_which_pairs(behaviour: Behaviour, asked: names.HoldsOn | None) -> names.HoldsOn:
    """Those on which f ≥ tau must hold: fresh ones, unless others were asked for or there are too few."""
    if asked is None and not behaviour.has_fresh:
        say(
            f"{behaviour.name} has fewer than ten validation or test pairs: f ≥ tau will hold on the discovery pairs alone"
        )
    return asked or ("fresh" if behaviour.has_fresh else "discovery")


def warn_of(behaviour: Behaviour, warnings: Sequence[str], got: int, wanted: int) -> None:
    """What the gate thinks of a behaviour that it lets pass, and a lack of pairs."""
    for warning in warnings:
        say(f"{behaviour.name}: warning: {warning}")
    if got < wanted:
        say(f"{behaviour.name} has {got} discovery pairs, not {wanted}")


def answer_found(
    circuit: Circuit, path: Path, unsaved: CannotWrite | None, headline: str, as_json: bool
) -> None:
    """The answer of a command that found a circuit: JSON, or a headline and where f falls short. Raises `unsaved` at the end."""
    if as_json:
        answer_circuit(circuit, path, unsaved)
        return
    answer(headline)
    for line in shortfalls(circuit):
        answer(line)
    answer_kept(circuit, path, unsaved)
    if unsaved is not None:
        raise unsaved


def shortfalls(circuit: Circuit) -> list[str]:
    """What people must know before they quote f: where it falls short of tau. Nothing if it does not."""
    lines = []
    on_fresh = circuit.settings.get("target") == "test"
    reached = circuit.faithfulness_validation if on_fresh else circuit.faithfulness
    if reached is not None and reached < circuit.tau:
        lines.append(f"f = {circuit.tau:g} was not reached ({circuit.settings.get('note', '')})")
    fresh = circuit.faithfulness_test
    if fresh is not None and fresh < circuit.tau:
        advice = (
            "more rows or more --pairs bring them closer" if on_fresh else "--holds-on fresh aims at them"
        )
        lines.append(
            f"warning: on fresh pairs f = {fresh:.3f} falls short of {circuit.tau:g}: this is the one to quote; {advice}"
        )
    return lines


# Passes that a search for f ≥ 0.9 on 20 discovery pairs took on SmolLM2, from the easiest behaviour to the one before the hardest
# (benchmarks/search/tables.md); where f must hold on fresh pairs a search may begin again up to six times.
_PASSES = {
    "top-n": (20, 50),
    "greedy": (25, 50),
    "acdc": (1600, 3800),
    "edge-pruning": (3000, 3700),
    "matryoshka": (1500, 1600),
    "blockwise": (150, 900),
}


def forecast(session: SearchSession) -> str:
    """What the search is going to take: passes from experience, memory and seconds of this model on this device."""
    from mechrl.engine.estimate import estimate
    from mechrl.search.matryoshka import STEPS

    problem, settings = session.problem, session.settings
    expected = estimate(problem.engine, problem.candidates)
    low, high = (n * problem.engine.price for n in _PASSES[settings.method])
    if settings.method == "matryoshka":
        low, high = (n * settings.steps / STEPS for n in (low, high))
    if settings.holds_on == "fresh":
        high *= min(3, settings.attempts)
    seconds = [duration(expected.seconds(passes)) for passes in (low, high)]
    return f"{expected.line()}; about {low:,.0f} to {high:,.0f} passes: {seconds[0]} to {seconds[1]}"


def duration(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 90
        else f"{seconds / 60:.0f} min"
        if seconds < 5400
        else f"{seconds / 3600:.1f} h"
    )


def answer_circuit(circuit: Circuit, path: Path, unsaved: MechRLError | None = None) -> None:
    """What machines are told of a circuit, whichever command found it. One that could not be saved is told whole."""
    keys = ("behaviour", "model", "method", "tau", "faithfulness", "faithfulness_test")
    sizes = {
        "edges": len(circuit),
        "edges_pruned": circuit.size,
        "passes": circuit.passes,
        "seconds": circuit.seconds,
    }
    known = {key: getattr(circuit, key) for key in keys} | sizes
    answer_json(
        known | {"circuit": str(path)}
        if unsaved is None
        else known | {"circuit": None, "unsaved": circuit.to_json()}
    )
    if unsaved is not None:
        raise unsaved


class _Remaining:
    """A guess of the time that is left, from how far a search has come since it began or was resumed."""

    def __init__(self) -> None:
        self.first: tuple[float, float] | None = None  # time and fraction

    def text(self, fraction: float | None) -> str:
        if fraction is None:
            return ""
        now = time.monotonic()
        self.first = self.first or (now, fraction)
        began, then = self.first
        return (
            f", about {(now - began) * (1 - fraction) / (fraction - then):.0f} s left"
            if fraction > then
            else ""
        )
