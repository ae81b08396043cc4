"""`mechrl bench`: how fast the engine and the searches are on this machine. Heavy imports wait."""

from __future__ import annotations

from typing import Annotated

import typer

from mechrl.cli import options
from mechrl.cli.terminal import Live, answer, answer_json, answer_table, working
from mechrl.errors import MechRLError
from mechrl.ranges import MOST_AT_ONCE

app = typer.Typer(help="Measure speed on this machine.", no_args_is_help=True)


@app.command("engine")
def bench_engine(
    model: Annotated[
        str, options.basic("--model", "-m", help="As everywhere, or `gpt2-random`: GPT-2 small's shape.")
    ] = "toy",
    device: options.Device = "auto",
    circuits: Annotated[
        str,
        options.budget(
            help="Circuits per call, comma-separated. [default: 1,4; on a GPU 1,16,128,2048]",
            show_default=False,
        ),
    ] = "",
    repeats: Annotated[
        int, options.budget(min=1, max=MOST_AT_ONCE, help="Runs per figure; the median is reported.")
    ] = 3,
    tf32: Annotated[bool, options.expert(help="Allow TF32 matrix products on a GPU.")] = True,
    as_json: options.Json = False,
) -> None:
    """Circuits per second, next to a plain `transformers` forward of the same 20 IOI prompts.

    Examples:

    - `mechrl bench engine`
    - `mechrl bench engine --model smollm2 --json`
    - `mechrl bench engine --model gpt2-random --device cuda --circuits 128,2048`
    """
    from mechrl.bench import engine as bench
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


@app.command("search")
def bench_search(
    method: options.SearchMethod,
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
    from mechrl.behaviours import get_behaviour
    from mechrl.bench import search as bench
    from mechrl.models import load_model, resolve_device
    from mechrl.search.session import SearchSettings

    where = resolve_device(device)
    chosen = SearchSettings(method, tau=tau, seed=seed)
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
