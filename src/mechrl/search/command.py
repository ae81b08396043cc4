"""`mechrl search`: one search, with progress, that can be interrupted at any time and resumed."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mechrl.circuit import Circuit
    from mechrl.search.problem import State
    from mechrl.search.run import Session

_SAVE_EVERY, _LINE_EVERY = 10.0, 5.0  # seconds


def search_command(
    method: Annotated[str, typer.Argument(help="`top-n`, `greedy`, `acdc`, `edge-pruning` or `blockwise`.")],
    behaviour: Annotated[str, typer.Argument(help="A behaviour's name, or the file of your own.")],
    model: Annotated[
        str, typer.Option("--model", "-m", help="`toy`, `smollm2`, a hub id such as `gpt2`, a directory or a .gguf file.")
    ] = "toy",
    tau: Annotated[float, typer.Option(help="The faithfulness to reach.")] = 0.9,
    out: Annotated[Path, typer.Option(help="Folder for circuit.json and, while it runs, the state to resume from.")] = Path(
        "runs/search"
    ),
    pairs: Annotated[int, typer.Option(min=1, help="Discovery pairs.")] = 20,
    k: Annotated[
        int, typer.Option("--k", min=1, help="Candidate edges by each score; doubled until they reach tau together.")
    ] = 3000,
    prefilter: Annotated[
        str, typer.Option(help="Rank edges by the behaviour's own `metric`, by `kl`, or take candidates by either (`union`).")
    ] = "union",
    whole_graph: Annotated[bool, typer.Option("--whole-graph", help="Search among all edges, not among candidates.")] = False,
    threshold: Annotated[
        list[float] | None, typer.Option(help="ACDC's threshold; repeatable. Default: .001, .003 and .01.")
    ] = None,
    target: Annotated[
        str, typer.Option(help="Reach tau on the `discovery` pairs, or on fresh ones as judged by validation pairs (`test`).")
    ] = "discovery",
    minibatch: Annotated[
        int | None, typer.Option(min=1, help="Decide by so many pairs, drawn afresh while the search runs.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Picks the discovery pairs, and everything else that is random.")] = 0,
    device: Annotated[str, typer.Option(help="`auto`, `cpu`, `cuda` or `cuda:1`.")] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Search even if the model does not exhibit the behaviour.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the search that was interrupted in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Find the circuit of one behaviour: the fewest edges that keep f ≥ tau.

    Examples: `mechrl search blockwise ioi`, `mechrl search acdc greater-than --model smollm2 --threshold 0.01 --json`,
    `mechrl search blockwise acronyms --model smollm2 --pairs 100 --target test --out runs/acronyms`
    """
    from mechrl import gate
    from mechrl.behaviours import get_behaviour
    from mechrl.circuit import write_atomically
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
    loaded = load_model(model, device=device)
    if about is not None:
        check_continues(loaded, chosen, settings, about)
    elif not force:
        gate.check(loaded, chosen)
    session = prepare(loaded, chosen, settings, about)
    if len(session.problem.pairs) < pairs:
        print(f"{chosen.name} has {len(session.problem.pairs)} discovery pairs, not {pairs}", file=sys.stderr)

    last_saved = time.monotonic()
    last_state: State | None = state
    with _Progress(session) as progress, _stop_signals() as stopped:

        def checkpoint(now: State) -> None:
            nonlocal last_saved, last_state
            last_state = now
            progress.show(now)
            if stopped or time.monotonic() - last_saved > _SAVE_EVERY:
                write_atomically(state_path, now.to_bytes(**session.about()))
                last_saved = time.monotonic()
            if stopped:
                raise Interrupted

        session.problem.checkpoint = checkpoint
        try:
            circuit = session.circuit(session.run(state))
        except Interrupted:
            assert last_state is not None
            circuit = session.circuit(last_state, complete=False)
    circuit.save(circuit_path)
    if not circuit.complete:
        print(f"interrupted; {circuit_path} holds what was reached. To go on, repeat the command with --resume", file=sys.stderr)
        raise typer.Exit(128 + stopped[0])
    state_path.unlink(missing_ok=True)
    _print(circuit, circuit_path, as_json)


def _print(circuit: Circuit, path: Path, as_json: bool) -> None:
    if as_json:
        keys = ("behaviour", "model", "method", "tau", "faithfulness", "faithfulness_test", "edges", "edges_pruned")
        result = {key: getattr(circuit, key) for key in (*keys, "passes", "seconds")} | {"circuit": str(path)}
        print(json.dumps(result))
        return
    reached = circuit.faithfulness_validation if circuit.settings["target"] == "test" else circuit.faithfulness
    assert reached is not None
    print(
        f"{circuit.behaviour} in {circuit.model} by {circuit.method}: {circuit.edges_pruned} edges ({circuit.edges} before pruning), "
        f"f = {circuit.faithfulness:.3f} on {circuit.pairs} discovery pairs and {circuit.faithfulness_test:.3f} on fresh ones; "
        f"{circuit.passes:,.0f} passes, {circuit.seconds:.1f} s"
    )
    if reached < circuit.tau:
        print(f"f = {circuit.tau:g} was not reached ({circuit.settings['note']})")
    print(path)


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM instead of dying at once; a second one is not collected but obeyed."""
    stopped: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        stopped.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, note)
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Progress:
    """f, size, passes and what remains, on stderr: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.first: tuple[float, float] | None = None  # time and fraction when this run began
        self.last_line = -_LINE_EVERY  # the first line comes at once: the search has begun

    def __enter__(self) -> _Progress:
        self.bar = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = TextColumn("{task.fields[name]}"), BarColumn(bar_width=24), TextColumn("{task.description}")
            self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self.task = self.bar.add_task("", total=None, name=self.session.settings.method)
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def show(self, state: State) -> None:
        fraction = state.extra.get("progress")
        line = f"f {state.faithfulness:.3f}, {int(state.mask.sum()):,} edges, {self.session.passes:,.0f} passes"
        line += f", {self._remaining(fraction)} · {state.note}"
        if self.bar is not None:
            self.bar.update(self.task, description=line, total=None if fraction is None else 1.0, completed=fraction or 0.0)
        elif time.monotonic() - self.last_line > _LINE_EVERY:
            print(f"{self.session.settings.method}: {line}", file=sys.stderr, flush=True)
            self.last_line = time.monotonic()

    def _remaining(self, fraction: float | None) -> str:
        spent = f"{self.session.seconds:.0f} s"
        if fraction is None:
            return spent
        now = time.monotonic()
        self.first = self.first or (now, fraction)
        began, then = self.first
        if fraction <= then:
            return spent
        return f"{spent}, about {(now - began) * (1 - fraction) / (fraction - then):.0f} s left"
