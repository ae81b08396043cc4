"""`mechrl validate`, `mechrl compare` and `mechrl reproduce`. Heavy imports wait until a command runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mechrl.evaluate.validity import Validity

ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="`toy`, `smollm2`, a hub id such as `gpt2`, a directory or a .gguf file.")
]
DeviceOption = Annotated[str, typer.Option(help="`auto`, `cpu`, `cuda` or `cuda:1`.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def validate_command(
    circuit: Annotated[Path, typer.Argument(help="A circuit's file: circuit.json of a search or a discovery.")],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Where the model is now, if not where it was for the search.")
    ] = None,
    behaviour: Annotated[str | None, typer.Option("--behaviour", "-b", help="The file of a behaviour of your own.")] = None,
    random: Annotated[int, typer.Option(min=1, help="Random circuits of each kind, 20 at least.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Of the random circuits.")] = 0,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Is a circuit real? Necessity, specificity, recovery of known components, generalisation; each with its chance level.

    Examples: `mechrl validate runs/search/circuit.json`, `mechrl validate circuit.json --random 100 --json`,
    `mechrl validate circuit.json --behaviour mine.jsonl`
    """
    from mechrl.behaviours import get_behaviour
    from mechrl.circuit import Circuit
    from mechrl.errors import MechRLError
    from mechrl.evaluate.validity import validate
    from mechrl.models import load_model

    found = Circuit.load(circuit)
    try:
        chosen = get_behaviour(behaviour or found.behaviour)
    except MechRLError as exc:
        if behaviour is None:
            raise MechRLError(
                f"{circuit}: the behaviour {found.behaviour!r} is not built in; give its file by --behaviour"
            ) from exc
        raise
    loaded = load_model(model or found.model, device=device)
    found.check_model(loaded)
    result = validate(found, loaded, chosen, random, seed, report=lambda line: say(f"validate: {line}"))
    if as_json:
        print(json.dumps(result.to_json(), indent=1))
    else:
        _print_validity(result)


def _print_validity(v: Validity) -> None:
    print(
        f"{v.behaviour} in {v.model} by {v.method}: {v.edges_pruned} edges ({v.edges} before pruning), "
        f"f = {v.faithfulness:.3f} on its discovery pairs"
    )
    rows = [
        ["necessity", "f with the circuit ablated", f"{v.necessity:.3f}"],
        ["", "f with as many random candidates ablated", v.necessity_random.text()],
    ]
    for i, c in enumerate(v.specificity):
        where = f"of the {v.candidates:,} candidates" if c.drawn_from == "candidates" else "of the whole graph"
        size = f"{v.edges_pruned} edges" if c.matched == "raw" else f"{c.edges_pruned.mean:,.0f} edges after pruning"
        rows.append(["specificity" if i == 0 else "", f"f of random circuits {where}, {size}", c.f.text()])
    r = v.recovery
    if r is None:
        rows.append(["recovery", v.recovery_reason, "–"])
    else:
        chance = f"{r.expected:.1f} expected by chance among {r.in_circuit} of {r.population} components, p = {r.p_value:.2g}"
        precision = "–" if r.precision is None else f"{r.precision:.2f}"
        rows.append(["recovery", f"known components; {chance}", r.text])
        rows.append(["", "precision: known ones among the circuit's components", precision])
        rows.append(["", "by random circuits of the candidates, same pruned size", r.recovered_random.text(1)])
        if r.missed:
            rows.append(["", f"missed: {', '.join(r.missed)}", ""])
    rows.append(["generalisation", "f on fresh pairs", f"{v.faithfulness_test:.3f}"])
    rows += [["", f"f on fresh pairs of {e.behaviour}{e.reason and f' ({e.reason})'}", _f(e.f)] for e in v.variants]
    print_table(["check", "what", "value"], rows)


def _f(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """A table that fits the terminal, or that a pipe can cut: no wrapping without a terminal."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(*header, box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*[escape(cell) for cell in row])
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
