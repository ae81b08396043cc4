"""The command line. Thin: parse, call, print. Heavy imports wait until a command needs them, so that `--help` is quick.

Exit codes: 0, also for work that ran out of its `--seconds`; 1 for an error, which is one line on stderr; 2 for a command that is not
understood; 130 and 143 for SIGINT and SIGTERM.
"""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.main import get_command

from mechrl import __version__
from mechrl.cli import options
from mechrl.cli.behaviours import behaviours_command, check_command
from mechrl.cli.bench import app as bench_app
from mechrl.cli.compare import compare_command, reproduce_command
from mechrl.cli.discover import discover_command
from mechrl.cli.metrics import metrics_command
from mechrl.cli.planner import app as planner_app
from mechrl.cli.search import search_command
from mechrl.cli.terminal import answer_json, answer_table
from mechrl.cli.train import adapt_command, curves_command, train_command
from mechrl.cli.validate import validate_command
from mechrl.cli.view import export_command, view_command
from mechrl.errors import MechRLError
from mechrl.files import advice
from mechrl.messages import say

app = typer.Typer(
    name="mechrl",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="markdown",
)
_debug = False


def _version(value: bool) -> None:
    if value:
        print(f"mechrl {__version__}")
        raise typer.Exit


@app.callback()
def global_options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback when something goes wrong.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Find the circuit behind a behaviour of a language model.

    Examples:

    - `mechrl behaviours`
    - `mechrl discover ioi --out runs/ioi`
    - `mechrl view runs/ioi/circuit.json`
    """
    global _debug
    _debug = debug


@app.command()
def models(as_json: options.Json = False) -> None:
    """List the models that have a name, and what they take on this machine's disk.

    Examples:

    - `mechrl models`
    - `mechrl models --json`
    """
    from mechrl.models import catalogue

    rows = catalogue()
    if as_json:
        answer_json(rows)
    else:
        answer_table(
            ["name", "on disk", "what it is"],
            [[r["name"], f"{r['bytes'] / 1e6:,.1f} MB" if r["cached"] else "no", r["what"]] for r in rows],
        )


for _command in (
    *(behaviours_command, check_command, discover_command, adapt_command, search_command, validate_command),
    *(metrics_command, compare_command, reproduce_command, train_command, curves_command),
    *(export_command, view_command),
):
    app.command(_command.__name__.removesuffix("_command"))(_command)
app.add_typer(bench_app, name="bench")
app.add_typer(planner_app, name="planner")


# ---- help -----------------------------------------------------------------------------------------------------------

_NO_LIMIT = 10_000  # a bound so high is there against mistakes


def _plain(command: Any) -> Any:
    """The command with help that leaves out what is plain: that a flag is a `<bool>`, and bounds that nobody comes near."""
    for parameter in command.params:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
        elif parameter.min is not None:
            parameter.metavar = "<number>"
            if parameter.min <= 1 and parameter.max >= _NO_LIMIT:
                parameter.min = None
            parameter.max = None if parameter.max >= _NO_LIMIT else parameter.max
    for below in getattr(command, "commands", {}).values():
        _plain(below)
    return command


# ---- the process ----------------------------------------------------------------------------------------------------

_LONGEST = 1000  # characters of an error: a name may be of any length
# typer keeps its own copy of click, and does not show this class
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def run(arguments: Sequence[str]) -> int:
    """One command, as a shell sees it: its exit code. Whatever goes wrong is one line on stderr, with `--debug` a traceback."""
    global _debug
    _debug = False
    command = _plain(get_command(app))
    try:
        with command.make_context("mechrl", list(arguments)) as context:
            command.invoke(context)
        sys.stdout.flush()  # a full disk is our error, not the interpreter's
        return 0
    except typer.Exit as exc:
        return exc.exit_code
    except (Exception, KeyboardInterrupt) as exc:
        if isinstance(exc, OSError):
            _give_up_stdout()
        if isinstance(exc, BrokenPipeError):  # the reader of our output went away, and knows
            return 1
        if _debug:
            import traceback

            traceback.print_exception(exc)
        if isinstance(exc, KeyboardInterrupt):
            sys.stderr.write("\n")  # the terminal has echoed ^C
        line, code = _explain(exc)
        if len(line) > _LONGEST:
            line = f"{line[: _LONGEST // 2]} … {line[-_LONGEST // 2 :]}"
        if line:
            say(f"mechrl: {line}")
        return code


def _explain(exc: BaseException) -> tuple[str, int]:
    """What to tell people about an exception, and the exit code."""
    if isinstance(exc, MechRLError):
        return str(exc), 1
    if isinstance(exc, KeyboardInterrupt):
        return "interrupted", 128 + signal.SIGINT
    if isinstance(exc, _UsageError):
        context = exc.ctx  # type: ignore[attr-defined]
        what = exc.format_message().rstrip(".")  # type: ignore[attr-defined]
        # nothing to say: the help was asked for by giving no arguments, and has been printed
        return f"{what}; see `{context.command_path if context else 'mechrl'} --help`" if what else "", 2
    text = str(exc)
    if told := re.search(
        r"\(os error (\d+)\)", text
    ):  # how safetensors and tokenizers pass on what the system said
        number = int(told[1])
        exc = OSError(number, os.strerror(number))
    if isinstance(exc, OSError) and exc.strerror:
        where = (
            f"{os.fsdecode(exc.filename)}: "
            if isinstance(exc.filename, str | bytes)
            else "cannot read or write: "
        )
        return f"{where}{exc.strerror}; {advice(exc.errno)}", 1
    if isinstance(exc, MemoryError) or "out of memory" in text.lower() or "can't allocate memory" in text:
        return (
            "out of memory; take a smaller model, fewer --pairs or --envs, or another --device",
            1,
        )
    what = f"{type(exc).__name__}: {text}" if text else type(exc).__name__
    return (
        f"unexpected {what.strip().splitlines()[0]}; a bug, please report it with what `mechrl --debug …` shows",
        1,
    )


def _give_up_stdout() -> None:
    """What cannot be written now cannot be when the interpreter ends and tries again either."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    # the hub's progress bars and advice are not ours to print
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # a terminal that cannot show ≥ is no reason to fail
        sys.stdout.reconfigure(errors="backslashreplace")
    # an orderly end: half-written files are removed and the terminal gets its cursor back
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
