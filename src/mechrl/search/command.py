"""`mechrl search`: one search, with progress, that can be interrupted at any time and resumed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mechrl import options
from mechrl.errors import MechRLError
from mechrl.one_writer import one_writer
from mechrl.ranges import MOST_COEFFICIENT, MOST_EDGES, MOST_PAIRS
from mechrl.saving import Saving, answer_kept, keep
from mechrl.terminal import Live, answer, answer_json, say, stop_signals, working

if TYPE_CHECKING:
    from mechrl.circuit import Circuit
    from mechrl.search.problem import State

_SAVE_EVERY = 10.0  # seconds


@one_writer
def search_command(
    method: Annotated[str, typer.Argument(help="`top-n`, `greedy`, `acdc`, `edge-pruning` or `blockwise`.", show_default=False)],
    behaviour: options.Behaviour,
    model: options.Model = "toy",
    tau: options.Tau = 0.9,
    out: Annotated[Path, typer.Option(help="Folder for circuit.json and, while it runs, the state to resume from.")] = Path(
        "runs/search"
    ),
    pairs: options.Pairs = 20,
    k: Annotated[
        int, typer.Option("--k", min=1, max=MOST_EDGES, help="Candidate edges by each score; doubled until they reach tau together.")
    ] = 3000,
    prefilter: options.Prefilter = "union",
    whole_graph: Annotated[bool, typer.Option("--whole-graph", help="Search among all edges, not among candidates.")] = False,
    threshold: Annotated[
        list[float] | None,
        typer.Option(
            min=0,
            max=MOST_COEFFICIENT,
            callback=options.all_finite,
            help="ACDC's threshold; repeatable. [default: 0.001, 0.003 and 0.01]",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        str, typer.Option(help="Reach tau on the `discovery` pairs, or on fresh ones as judged by validation pairs (`test`).")
    ] = "discovery",
    minibatch: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_PAIRS, help="Decide by so many pairs, drawn afresh while the search runs.", show_default=False
        ),
    ] = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    force: options.Force = False,
    resume: options.Resume = False,
    as_json: options.Json = False,
) -> None:
    """Find the circuit of one behaviour: the fewest edges that keep f ≥ tau.

    Examples:

    - `mechrl search blockwise ioi`
    - `mechrl search acdc greater-than --model smollm2 --threshold 0.01 --json`
    - `mechrl search blockwise acronyms --model smollm2 --pairs 100 --target test --out runs/acronyms`
    """
    from mechrl import gate
    from mechrl.behaviours import get_behaviour
    from mechrl.files import write_atomically
    from mechrl.models import load_model
    from mechrl.search.acdc import THRESHOLDS
    from mechrl.search.problem import Interrupted, State
    from mechrl.search.run import Settings, check_continues, prepare

    settings = Settings(
        method=method,  # type: ignore[arg-type]  # checked there, with a message for people
        tau=tau,
        pairs=pairs,
        k=k,
        whole_graph=whole_graph,
        prefilter=prefilter,  # type: ignore[arg-type]
        thresholds=tuple(threshold) if threshold else THRESHOLDS,
        target=target,  # type: ignore[arg-type]
        minibatch=minibatch,
        seed=seed,
    )
    circuit_path, state_path = out / "circuit.json", out / "state.safetensors"
    state, about = State.read(state_path) if resume else (None, None)
    chosen = get_behaviour(behaviour)
    with working(f"loading {model}"):
        loaded = load_model(model, device=device)
    with working(f"ranking the edges of {model} for {chosen.name}"):
        if about is not None:
            check_continues(loaded, chosen, settings, about)
        elif not force:
            gate.check(loaded, chosen)
        session = prepare(loaded, chosen, settings, about)
    if len(session.problem.pairs) < pairs:
        say(f"{chosen.name} has {len(session.problem.pairs)} discovery pairs, not {pairs}")

    last_saved = time.monotonic()
    last_state: State | None = state
    remaining, saving = _Remaining(), Saving()
    with Live(method, quiet=0) as live, stop_signals() as stopped:  # the first line comes at once: the search has begun

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
        if unsaved is not None:
            answer_kept(circuit, circuit_path, unsaved)
        else:
            say(f"interrupted; {circuit_path} holds what was reached. To go on, repeat the command with --resume")
        if saving.failed is not None:
            say(f"interrupted; the state could not be saved ({saving.failed}); --resume goes on from the last one that was")
        raise typer.Exit(128 + stopped[0])
    if unsaved is None:
        state_path.unlink(missing_ok=True)
    if as_json:
        answer_circuit(circuit, circuit_path, unsaved)
        return
    reached = circuit.faithfulness_validation if circuit.settings["target"] == "test" else circuit.faithfulness
    assert reached is not None
    answer(
        f"{circuit.behaviour} in {circuit.model} by {circuit.method}: {circuit.edges_pruned} edges ({circuit.edges} before pruning), "
        f"f = {circuit.faithfulness:.3f} on {circuit.pairs} discovery pairs and {circuit.faithfulness_test:.3f} on fresh ones; "
        f"{circuit.passes:,.0f} passes, {circuit.seconds:.1f} s"
    )
    if reached < circuit.tau:
        answer(f"f = {circuit.tau:g} was not reached ({circuit.settings['note']})")
    answer_kept(circuit, circuit_path, unsaved)
    if unsaved is not None:
        raise unsaved


def answer_circuit(circuit: Circuit, path: Path, unsaved: MechRLError | None = None) -> None:
    """What machines are told of a circuit, whichever command found it. One that could not be saved is told whole."""
    keys = ("behaviour", "model", "method", "tau", "faithfulness", "faithfulness_test", "edges", "edges_pruned")
    known = {key: getattr(circuit, key) for key in (*keys, "passes", "seconds")}
    answer_json(known | {"circuit": str(path)} if unsaved is None else known | {"circuit": None, "unsaved": circuit.to_json()})
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
        return f", about {(now - began) * (1 - fraction) / (fraction - then):.0f} s left" if fraction > then else ""
