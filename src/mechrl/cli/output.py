"""Where a command's result goes: a folder that it has for itself, and the circuit's file. No heavy imports."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer

from mechrl.cli.terminal import answer
from mechrl.files import REPEAT, CannotWrite, check_folder, check_replaceable
from mechrl.files.lock import only_writer
from mechrl.files.saving import Saving, not_saved
from mechrl.messages import say

if TYPE_CHECKING:
    from mechrl.circuit import Circuit

_OURS = (
    "circuit.json",
    "state.safetensors",
    "planner.safetensors",
    "rollouts.safetensors",
    "run.json",
    "metrics.jsonl",
    "checkpoint.safetensors",
    "config.json",
    "model.safetensors",
)
F = TypeVar("F", bound=Callable[..., Any])


def one_writer(command: F) -> F:
    """A command that has the folder `out` for itself while it runs."""
    signature = inspect.signature(command)

    @wraps(command)
    def alone(*args: Any, **options: Any) -> Any:
        given = signature.bind(*args, **options)
        given.apply_defaults()
        out = Path(given.arguments["out"])
        check_folder(out)
        for name in _OURS:
            check_replaceable(out / name)
        with only_writer(out):
            return command(*args, **options)

    return alone  # type: ignore[return-value]


def keep(circuit: Circuit, path: Path) -> CannotWrite | None:
    """Saves what a command has found; if that cannot be, says what becomes of it."""
    if failed := not_saved(lambda: circuit.save(path)):
        say(
            f'{path} could not be written; the circuit is printed: what begins with {{"format" is what would be in the file'
        )
    return failed


def leave(circuit: Circuit, path: Path, unsaved: CannotWrite | None, saving: Saving, number: int) -> NoReturn:
    """After an interruption: where the best so far is, and how to go on. `number`: the signal's."""
    if unsaved is not None:
        answer_kept(circuit, path, unsaved)
    interrupted(f"{path} holds the best so far" if unsaved is None else "", saving.failed, number)


def interrupted(kept: str, failed: CannotWrite | None, number: int) -> NoReturn:
    """Every command's words for it, and the exit code of the signal. `failed`: why the state could not be saved."""
    go_on = "to go on, repeat the command with --resume"
    if failed is not None:
        go_on = f"the state could not be saved ({str(failed).removesuffix(REPEAT)}): --resume goes on from the last one that was saved"
    say("; ".join(part for part in ("interrupted", kept, go_on) if part))
    raise typer.Exit(128 + number)


def answer_kept(circuit: Circuit, path: Path, failed: CannotWrite | None) -> None:
    """For people: where the circuit is, or the circuit itself (without the scores, of which there may be a million)."""
    answer(path if failed is None else json.dumps(replace(circuit, scores=None).to_json()))
