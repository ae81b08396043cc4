"""The command line. Thin: parse, call, print. Heavy imports wait until a command needs them, so that `--help` is quick."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated

import typer

from mechrl import __version__
from mechrl.errors import MechRLError
from mechrl.evaluate.command import compare_command, reproduce_command, validate_command
from mechrl.rl.command import adapt_command, discover_command, train_command
from mechrl.search.command import search_command
from mechrl.viewer.command import export_command, view_command

app = typer.Typer(
    name="mechrl",
    help="Find the circuit behind a behaviour of a language model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="markdown",
)
bench_app = typer.Typer(help="Measure speed on this machine.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")

Model = Annotated[str, typer.Option("--model", "-m", help="`toy`, `smollm2`, a hub id such as `gpt2`, a directory or a .gguf file.")]
Device = Annotated[str, typer.Option(help="`auto`, `cpu`, `cuda` or `cuda:1`.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
_debug = False


def _version(value: bool) -> None:
    if value:
        print(f"mechrl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option(help="Show a traceback when something goes wrong.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    global _debug
    _debug = debug


@app.command()
def models(as_json: Json = False) -> None:
    """List the models that need no path, and whether they are on this machine.

    Examples: `mechrl models`, `mechrl models --json`
    """
    from mechrl.models import catalogue

    rows = catalogue()
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    _table(["name", "here", "what it is"], [[r["name"], "yes" if r["cached"] else "no", r["what"]] for r in rows])


@app.command()
def behaviours(
    model: Model = "toy",
    device: Device = "auto",
    pairs: Annotated[int, typer.Option(min=1, help="Test pairs per behaviour.")] = 50,
    only: Annotated[list[str] | None, typer.Option("--behaviour", "-b", help="Only these; a name or a file. Repeatable.")] = None,
    as_json: Json = False,
) -> None:
    """Check which behaviours a model exhibits: accuracy and KL_cut on test pairs, against stated thresholds.

    Examples: `mechrl behaviours`, `mechrl behaviours --model smollm2 --json`, `mechrl behaviours -b mine.jsonl`
    """
    from mechrl import gate
    from mechrl.behaviours import behaviours as all_behaviours
    from mechrl.behaviours import get_behaviour
    from mechrl.models import load_model

    chosen = [get_behaviour(name) for name in only] if only else list(all_behaviours())
    loaded = load_model(model, device=device)
    verdicts = []
    for behaviour in chosen:
        _status(f"{behaviour.name} …")
        verdicts.append(gate.judge(loaded, behaviour, pairs))
    _status("")
    if as_json:
        print(json.dumps([v.to_json() for v in verdicts], indent=1))
        return

    def number(x: float | None, digits: int = 2) -> str:
        return "–" if x is None else f"{x:.{digits}f}"

    rows = [
        [
            v.name,
            v.split,
            str(v.pairs),
            number(v.accuracy),
            v.metric,
            number(v.metric_clean),
            number(v.metric_corrupt),
            number(v.p_answer),
            number(v.kl_cut),
            "yes" if v.exhibited else f"no: {v.reason}",
        ]
        for v in verdicts
    ]
    header = ["behaviour", "split", "pairs", "accuracy", "metric", "clean", "corrupted", "P(answer)", "KL_cut", "exhibited"]
    _table(header, rows)
    print(
        f"{sum(v.exhibited for v in verdicts)} of {len(verdicts)} exhibited by {model}: accuracy ≥ {gate.MIN_ACCURACY}"
        f" and KL_cut ≥ {gate.MIN_KL_CUT} on test pairs"
    )


app.command("search")(search_command)
app.command("view")(view_command)
app.command("export")(export_command)
app.command("train")(train_command)
app.command("discover")(discover_command)
app.command("adapt")(adapt_command)
app.command("validate")(validate_command)
app.command("compare")(compare_command)
app.command("reproduce")(reproduce_command)


@bench_app.command("engine")
def bench_engine(
    model: Annotated[str, typer.Option("--model", "-m", help="As everywhere, or `gpt2-random`: GPT-2 small's shape.")] = "toy",
    device: Device = "auto",
    circuits: Annotated[str, typer.Option(help="Circuits per call, comma-separated.")] = "",
    repeats: Annotated[int, typer.Option(min=1, help="Runs per figure; the median is reported.")] = 3,
    tf32: Annotated[bool, typer.Option(help="Allow TF32 matrix products on a GPU.")] = True,
    as_json: Json = False,
) -> None:
    """Circuits per second, next to a plain `transformers` forward of the same 20 IOI prompts.

    Examples: `mechrl bench engine`, `mechrl bench engine --model smollm2 --json`,
    `mechrl bench engine --model gpt2-random --device cuda --circuits 128,2048`
    """
    from mechrl import bench
    from mechrl.models import load_model, resolve_device

    loaded = bench.random_gpt2_small().to(resolve_device(device)) if model == "gpt2-random" else load_model(model, device=device)
    try:
        default = "1,4" if loaded.device.type == "cpu" else "1,16,128,2048"
        batches = tuple(int(n) for n in (circuits or default).split(","))
        if min(batches) < 1:
            raise ValueError
    except ValueError:
        raise MechRLError(f"--circuits takes positive numbers such as 1,4,16; got {circuits!r}") from None
    result = bench.bench_engine(loaded, bench.prompts(loaded), batches, repeats, tf32, report=_status)
    _status("")
    if as_json:
        print(json.dumps(result, indent=1))
        return
    rows = [
        [f"{r['edges']:,}", str(r["circuits"]), *(f"{r[k]:,.3f}" for k in ("ms_per_circuit", "circuits_per_second", "of_yardstick"))]
        for r in result["rows"] + result["rows_by_score"]
    ]
    for row in rows[len(result["rows"]) :]:
        row[0] += " by score"
    _table(["edges", "circuits a call", "ms a circuit", "circuits/s", "of a plain forward"], rows)
    print(
        f"{result['model']} on {result['device']}: a plain transformers forward of {result['pairs']} prompts takes"
        f" {result['yardstick_ms']:.1f} ms; peak memory {result['peak_memory_mb']:,.0f} MB"
    )


def _table(header: list[str], rows: list[list[str]]) -> None:
    """A table that fits the terminal, or that a pipe can cut: no wrapping without a terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 200)
    table = Table(*header, box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*[str(cell).replace("[", "\\[") for cell in row])
    console.print(table)


def _status(line: str) -> None:
    """What is going on, on stderr: one line that replaces itself on a terminal, plain lines elsewhere."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[2K{line}")
    elif line:
        sys.stderr.write(line + "\n")
    sys.stderr.flush()


def main() -> None:
    # the hub's progress bars and advice are not ours to print
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        app()
    except MechRLError as exc:
        if _debug:
            raise
        sys.exit(f"mechrl: {exc}")
    except KeyboardInterrupt:
        if _debug:
            raise
        sys.stderr.write("\nmechrl: interrupted\n")
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
