"""`mechrl validate`. Heavy imports wait until it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mechrl.cli import options
from mechrl.cli.terminal import Live, answer, answer_json, answer_table, working
from mechrl.errors import MechRLError
from mechrl.ranges import MOST_AT_ONCE


def validate_command(
    circuit: Annotated[Path, typer.Argument(help="A circuit.json.", show_default=False)],
    model: options.CircuitModel = None,
    behaviour: options.CircuitBehaviour = None,
    random: Annotated[
        int,
        typer.Option(
            min=20,
            max=MOST_AT_ONCE,
            rich_help_panel=options.BUDGET,
            help="Random circuits to compare with, of each kind.",
        ),
    ] = 20,
    bootstraps: Annotated[
        int,
        typer.Option(
            min=0,
            max=MOST_AT_ONCE,
            rich_help_panel=options.BUDGET,
            help="Find the circuit again on this many bootstraps of its pairs, and compare. Each costs what the circuit did.",
        ),
    ] = 0,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Is a circuit real? A verdict in one line, then necessity, specificity, recovery, generalisation; each with its chance level.

    Examples:

    - `mechrl validate runs/search/circuit.json`
    - `mechrl validate circuit.json --random 100 --json`
    - `mechrl validate circuit.json --bootstraps 5`
    - `mechrl validate circuit.json --behaviour mine.jsonl`
    """
    from dataclasses import replace

    from mechrl.circuit import Circuit
    from mechrl.models import load_model
    from mechrl.validity.setting import Setting
    from mechrl.validity.stability import bootstrapped
    from mechrl.validity.verdict import validate_and_judge

    found = Circuit.load(circuit)
    try:
        chosen = found.its_behaviour(behaviour)
    except MechRLError as exc:
        raise MechRLError(f"{circuit}: {exc}") from exc
    with working(f"loading {model or found.model}"):
        loaded = load_model(
            model or found.model, device=device, revision=found.revision if model is None else None
        )
    found.check_model(loaded)
    with Live("validate", quiet=0, every=0) as live:  # a line for each of the checks
        again = bootstrapped(found, loaded, chosen, bootstraps, seed, live.show) if bootstraps else None
        result = validate_and_judge(found, Setting.of(loaded, chosen, found), random, seed, report=live.show)
        result = replace(result, stability=again)
    if as_json:
        answer_json(result.to_json())
    else:
        answer(result.headline)
        assert result.verdict is not None
        answer(f"verdict: {result.verdict.line}")
        answer_table(["check", "what", "value"], result.rows())
