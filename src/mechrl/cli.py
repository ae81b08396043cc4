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
from typing import Annotated

import typer
from typer.main import get_command

from mechrl import __version__, options
from mechrl.agents.planner.command import app as planner_app
from mechrl.agents.planner.discover_command import discover_command
from mechrl.behaviours_command import behaviours_command, check_command
from mechrl.errors import MechRLError
from mechrl.evaluate.command import compare_command, reproduce_command, validate_command
from mechrl.evaluate.metrics_command import metrics_command
from mechrl.files import advice
from mechrl.ranges import MOST_AT_ONCE
from mechrl.rl.command import adapt_command, deploy_command, train_command
from mechrl.search.command import search_command
from mechrl.terminal import Live, answer, answer_json, answer_table, say, working
from mechrl.viewer.command import export_command, view_command

app = typer.Typer(
    name="mechrl",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="markdown",
)
bench_app = typer.Typer(help="Measure speed on this machine.", no_args_is_help=True)
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
    """List the models that need no path, and whether they are on this machine.

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
            ["name", "here", "what it is"],
            [[r["name"], "yes" if r["cached"] else "no", r["what"]] for r in rows],
        )


app.command("behaviours")(behaviours_command)
app.command("check")(check_command)
app.command("discover")(discover_command)
app.command("deploy")(deploy_command)
app.command("adapt")(adapt_command)
app.command("search")(search_command)
app.command("validate")(validate_command)
app.command("metrics")(metrics_command)
app.command("compare")(compare_command)
app.command("reproduce")(reproduce_command)
app.command("train")(train_command)
app.command("export")(export_command)
app.command("view")(view_command)
app.add_typer(bench_app, name="bench")
app.add_typer(planner_app, name="planner")


@bench_app.command("engine")
def bench_engine(
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            rich_help_panel=options.BASICS,
            help="As everywhere, or `gpt2-random`: GPT-2 small's shape.",
        ),
    ] = "toy",
    device: options.Device = "auto",
    circuits: Annotated[
        str,
        typer.Option(
            rich_help_panel=options.BUDGET,
            help="Circuits per call, comma-separated. [default: 1,4; on a GPU 1,16,128,2048]",
            show_default=False,
        ),
    ] = "",
    repeats: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST_AT_ONCE,
            rich_help_panel=options.BUDGET,
            help="Runs per figure; the median is reported.",
        ),
    ] = 3,
    tf32: Annotated[
        bool, typer.Option(rich_help_panel=options.EXPERT, help="Allow TF32 matrix products on a GPU.")
    ] = True,
    as_json: options.Json = False,
) -> None:
    """Circuits per second, next to a plain `transformers` forward of the same 20 IOI prompts.

    Examples:

    - `mechrl bench engine`
    - `mechrl bench engine --model smollm2 --json`
    - `mechrl bench engine --model gpt2-random --device cuda --circuits 128,2048`
    """
    from mechrl import bench
    from mechrl.models import load_model, resolve_device

    try:
        batches = tuple(int(n) for n in circuits.split(",")) if circuits else ()
        if not all(1 <= n <= MOST_AT_ONCE for n in batches):
            raise ValueError
    except ValueError:
        raise MechRLError(
            f"--circuits takes numbers from 1 to {MOST_AT_ONCE:,} such as 1,4,16; got {circuits!r}"
        ) from None
    where = resolve_device(device)
    batches = batches or ((1, 4) if where.type == "cpu" else (1, 16, 128, 2048))
    with working(f"loading {model}"):
        loaded = (
            bench.random_gpt2_small().to(where) if model == "gpt2-random" else load_model(model, device=where)
        )
    with Live("bench") as live:
        result = bench.bench_engine(loaded, bench.prompts(loaded), batches, repeats, tf32, report=live.show)
    if as_json:
        answer_json(result)
        return
    rows = [
        [
            f"{r['edges']:,}",
            str(r["circuits"]),
            *(f"{r[k]:,.3f}" for k in ("ms_per_circuit", "circuits_per_second", "of_yardstick")),
        ]
        for r in result["rows"] + result["rows_by_score"]
    ]
    for row in rows[len(result["rows"]) :]:
        row[0] += " by score"
    answer_table(["edges", "circuits a call", "ms a circuit", "circuits/s", "of a plain forward"], rows)
    answer(
        f"{result['model']} on {result['device']}: a plain transformers forward of {result['pairs']} prompts takes"
        f" {result['yardstick_ms']:.1f} ms; peak memory {result['peak_memory_mb']:,.0f} MB"
    )


@bench_app.command("search")
def bench_search(
    method: Annotated[str, typer.Argument(help="As for `mechrl search`.", show_default=False)],
    behaviour: options.Behaviour,
    model: options.Model = "toy",
    tau: options.Tau = 0.9,
    device: options.Device = "auto",
    seed: options.Seed = 0,
    as_json: options.Json = False,
) -> None:
    """Seconds, passes and milliseconds a pass from start to circuit, split into phases.

    The circuit holds on discovery pairs. Scores of earlier runs are not used.

    Examples:

    - `mechrl bench search blockwise ioi`
    - `mechrl bench search blockwise gendered-pronoun --model smollm2 --json`
    """
    from mechrl import bench_search as bench
    from mechrl.behaviours import get_behaviour
    from mechrl.models import load_model, resolve_device
    from mechrl.search.run import Settings

    where = resolve_device(device)
    chosen = Settings(method, tau=tau, seed=seed)  # type: ignore[arg-type]  # checked there
    subject = get_behaviour(behaviour)
    with Live("bench") as live:
        result = bench.bench_search(
            lambda: load_model(model, device=where), subject, chosen, where, live.show
        )
    if as_json:
        answer_json(result)
        return
    rows = [
        [
            r["name"],
            *(f"{r[key]:.2f}" for key in ("seconds", "cpu")),
            f"{r['passes']:,.0f}",
            str(r["calls"] or ""),
            "" if r["ms_per_pass"] is None else f"{r['ms_per_pass']:,.1f}",
        ]
        for r in result["phases"]
    ]
    rows += [[r["what"], "", "", "", "", f"{r['ms_per_circuit']:,.1f}"] for r in result["circuits"]]
    answer_table(["phase", "seconds", "CPU seconds", "passes", "calls", "ms a pass"], rows)
    total = sum(r["seconds"] for r in result["phases"])
    answer(
        f"{result['behaviour']} in {result['model']} by {result['method']} on {result['device']}: {result['edges']} edges,"
        f" f {result['faithfulness']:.3f}, {result['passes']:,.0f} passes, {total:.1f} s from start to circuit"
    )


# ---- the process ----------------------------------------------------------------------------------------------------

_LONGEST = 1000  # characters of an error: a name may be of any length
_UsageError: type[Exception] = typer.BadParameter.__mro__[
    1
]  # typer keeps its own copy of click, and does not show this class


def run(arguments: Sequence[str]) -> int:
    """One command, as a shell sees it: its exit code. Whatever goes wrong is one line on stderr, with `--debug` a traceback."""
    global _debug
    _debug = False
    command = get_command(app)
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
            "out of memory; take a smaller model, fewer --pairs, --envs or --rollouts, or another --device",
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
        sys.stdout.reconfigure(
            errors="backslashreplace"
        )  # a terminal that cannot show ≥ is no reason to fail
    # an orderly end: half-written files are removed and the terminal gets its cursor back
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
