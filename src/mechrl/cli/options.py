"""The options that commands share: one name and one text for the same thing everywhere."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from mechrl import names
from mechrl.names import check_model, one_of
from mechrl.ranges import MOST_AT_ONCE, MOST_JOBS, MOST_PAIRS, MOST_SECONDS, MOST_SEED, MOST_STEPS


def finite(value: float | None) -> float | None:
    """A range lets a number through that is none."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter("a finite number is needed")
    return value


def _tau(value: float | None) -> float | None:
    if value is not None and not 0 < value < 1:
        raise typer.BadParameter(f"tau must lie between 0 and 1, not be {value:g}")
    return value


def all_finite(values: list[float] | None) -> list[float] | None:
    for value in values or []:
        finite(value)
    return values


def choice(name: str, kind: Any) -> dict[str, Any]:
    """An option, or an argument, that is one of a `Literal`'s words: a typo is answered at once, with what was meant."""
    known = get_args(kind)
    return {"parser": lambda value: one_of(name, value, known), "metavar": f"[{'|'.join(known)}]"}


def _model(value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise typer.BadParameter("a model has a name")
    return value if value is None else check_model(value)


# ---- the groups of --help -----------------------------------------------------------------------------------------------

BASICS, BUDGET, REPRODUCIBILITY, EXPERT = "Basics", "Budget", "Reproducibility", "Expert"
basic, budget, reproducible, expert = (
    partial(typer.Option, rich_help_panel=panel) for panel in (BASICS, BUDGET, REPRODUCIBILITY, EXPERT)
)


# ---- the model, a behaviour, a circuit ------------------------------------------------------------------------------

_a_model = partial(basic, "--model", "-m", callback=_model)
Model = Annotated[
    str, _a_model(help="`toy`, `smollm2`, a hub id such as `gpt2`, a directory or a .gguf file.")
]
Bos = Annotated[
    names.Bos,
    expert(
        **choice("bos", names.Bos),
        help="Whether prompts open with a first token (BOS); `auto` is the model's own convention.",
    ),
]
Device = Annotated[str, budget(help="`auto`, `cpu`, `cuda` or `cuda:1`.")]
Behaviour = Annotated[
    str,
    typer.Argument(help="A behaviour's name, or the .jsonl or .csv file of your own.", show_default=False),
]
Behaviours = Annotated[str, basic(help="`train`, `held-out`, `all`, or names and files, comma-separated.")]
CircuitModel = Annotated[
    str | None, _a_model(help="Where the model is. [default: what the circuit names]", show_default=False)
]
CircuitBehaviour = Annotated[
    str | None,
    basic(
        "--behaviour",
        "-b",
        help="File of your own behaviour, for an old circuit that does not hold its rows.",
        show_default=False,
    ),
]

SearchMethod = Annotated[
    names.SearchMethod,
    typer.Argument(
        help=", ".join(f"`{name}`" for name in names.SEARCH_METHODS) + ".",
        show_default=False,
        parser=choice("method", names.SearchMethod)["parser"],
    ),
]

# ---- what is asked for ----------------------------------------------------------------------------------------------

OutToResume = Annotated[
    Path,
    basic(help="Folder for circuit.json and, while it runs, the state to resume from."),
]
HoldsOn = Annotated[
    names.HoldsOn | None,
    basic(
        "--holds-on",
        **choice("holds-on", names.HoldsOn),
        help="Where f ≥ tau must hold: on `fresh` pairs (validation pairs decide), or on the `discovery` pairs alone. "
        "[default: fresh, given ten validation and ten test pairs]",
        show_default=False,
    ),
]
Tau = Annotated[float, basic(callback=_tau, help="The faithfulness to reach, between 0 and 1.")]
Pairs = Annotated[int, budget(min=1, max=MOST_PAIRS, help="Discovery pairs per behaviour.")]
Prefilter = Annotated[
    names.Prefilter,
    expert(
        **choice("prefilter", names.Prefilter),
        help="Choose candidates by the behaviour's own `metric` (as the paper does), by `kl`, or by both (`union`).",
    ),
]
Seed = Annotated[
    int,
    reproducible(
        min=0, max=MOST_SEED, help="Random seed; it picks the discovery pairs and every random draw."
    ),
]
Seeds = Annotated[
    str, reproducible(help="Comma-separated; a seed picks the discovery pairs and all else that is random.")
]
Force = Annotated[bool, expert("--force", help="Go on even if the model does not exhibit the behaviour.")]
ForceAll = Annotated[bool, expert("--force", help="Also behaviours that the model does not exhibit.")]

# ---- the paper's agent ----------------------------------------------------------------------------------------------

Policy = Annotated[Path, basic(help="Folder of a policy, which `mechrl train` writes.", show_default=False)]
PolicyOfPaper = Annotated[
    Path | None,
    basic(help="Folder of a policy for the paper's agent, which `mechrl train` writes.", show_default=False),
]
Envs = Annotated[int, budget(min=1, max=MOST_AT_ONCE, help="Episodes side by side, of 512 steps in all.")]
ScoredBy = Annotated[
    names.ScoredBy,
    expert(
        **choice("prefilter", names.ScoredBy),
        help="What candidates are chosen by: the behaviour's own `metric` (the paper), or `kl`.",
    ),
]

# ---- the work and what becomes of it --------------------------------------------------------------------------------

Jobs = Annotated[int, budget(min=1, max=MOST_JOBS, help="Worker processes; several can share one GPU.")]
Ray = Annotated[
    str | None,
    budget(
        help="Workers on a Ray cluster: its address, `auto` for the one that this machine belongs to, `local` for one of its own.",
        show_default=False,
    ),
]
SaveEvery = Annotated[int, budget(min=1, max=MOST_STEPS, help="Iterations between two saves.")]
Resume = Annotated[bool, budget("--resume", help="Go on from the state saved in --out.")]
_seconds = partial(budget, min=0, max=MOST_SECONDS, callback=finite, show_default=False)
SecondsThenResume = Annotated[
    float | None, _seconds(help="Save and end after so many seconds; go on with --resume.")
]
SecondsThenRepeat = Annotated[
    float | None, _seconds(help="Save and end after so many seconds; go on with the same command.")
]
Json = Annotated[bool, basic("--json", help="Print JSON for machines.")]
