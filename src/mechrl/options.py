"""The options that commands share: one name and one text for the same thing everywhere."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from mechrl.ranges import MOST_AT_ONCE, MOST_COEFFICIENT, MOST_JOBS, MOST_PAIRS, MOST_SECONDS, MOST_SEED, MOST_STEPS


def finite(value: float | None) -> float | None:
    """A range lets a number through that is none."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter("a finite number is needed")
    return value


def all_finite(values: list[float] | None) -> list[float] | None:
    for value in values or []:
        finite(value)
    return values


def _named(value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise typer.BadParameter("a model has a name")
    return value


# ---- the model, a behaviour, a circuit ------------------------------------------------------------------------------

Model = Annotated[
    str,
    typer.Option(
        "--model", "-m", callback=_named, help="`toy`, `smollm2`, a hub id such as `gpt2`, a directory or a .gguf file."
    ),
]
Device = Annotated[str, typer.Option(help="`auto`, `cpu`, `cuda` or `cuda:1`.")]
Behaviour = Annotated[str, typer.Argument(help="A behaviour's name, or the .jsonl or .csv file of your own.", show_default=False)]
Behaviours = Annotated[str, typer.Option(help="`train`, `held-out`, `all`, or names and files, comma-separated.")]
CircuitModel = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", callback=_named, help="Where the model is. [default: what the circuit names]", show_default=False
    ),
]
CircuitBehaviour = Annotated[
    str | None,
    typer.Option("--behaviour", "-b", help="The file of a behaviour of your own; built-in ones are found.", show_default=False),
]

# ---- what is asked for ----------------------------------------------------------------------------------------------

Tau = Annotated[float, typer.Option(min=0, max=1, callback=finite, help="The faithfulness to reach, between 0 and 1.")]
Pairs = Annotated[int, typer.Option(min=1, max=MOST_PAIRS, help="Discovery pairs per behaviour.")]
Prefilter = Annotated[
    str, typer.Option(help="Candidates by the behaviour's own `metric` (the paper), by `kl`, or by either (`union`).")
]
Seed = Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Of everything that is random.")]
Seeds = Annotated[str, typer.Option(help="Comma-separated; a seed picks the discovery pairs and all else that is random.")]
Force = Annotated[bool, typer.Option("--force", help="Go on even if the model does not exhibit the behaviour.")]
ForceAll = Annotated[bool, typer.Option("--force", help="Also behaviours that the model does not exhibit.")]

# ---- policies -------------------------------------------------------------------------------------------------------

Policy = Annotated[
    Path | None, typer.Option(help="Folder of a policy. [default: the one that comes with MechRL]", show_default=False)
]
Rollouts = Annotated[int, typer.Option(min=0, max=MOST_AT_ONCE, help="A policy's sampled rollouts, besides the greedy one.")]
Transitions = Annotated[int, typer.Option(min=1, max=MOST_STEPS, help="Environment steps per iteration.")]
Envs = Annotated[int, typer.Option(min=1, max=MOST_AT_ONCE, help="Episodes side by side.")]
Half = Annotated[
    bool, typer.Option("--half", help="Rollouts in half precision on a GPU: faster, their f is off by less than 1e-3.")
]
Margin = Annotated[
    float,
    typer.Option(min=-1, max=1, callback=finite, help="The agent's target lies this far below the candidates' own f."),
]
LearningRate = Annotated[float, typer.Option(min=0, max=1, callback=finite, help="At the start; it falls linearly to zero.")]
Entropy = Annotated[
    float, typer.Option(min=0, max=MOST_COEFFICIENT, callback=finite, help="Coefficient of the entropy bonus.")
]

# ---- the work and what becomes of it --------------------------------------------------------------------------------

Jobs = Annotated[int, typer.Option(min=1, max=MOST_JOBS, help="Worker processes; several can share one GPU.")]
Ray = Annotated[
    str | None,
    typer.Option(
        help="Workers on a Ray cluster: its address, `auto` for the one that this machine belongs to, `local` for one of its own.",
        show_default=False,
    ),
]
SaveEvery = Annotated[int, typer.Option(min=1, max=MOST_STEPS, help="Iterations between two saves.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what was left in --out.")]
SecondsThenResume = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=MOST_SECONDS,
        callback=finite,
        help="Save and end after so many seconds; go on with --resume.",
        show_default=False,
    ),
]
SecondsThenRepeat = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=MOST_SECONDS,
        callback=finite,
        help="Save and end after so many seconds; go on with the same command.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
