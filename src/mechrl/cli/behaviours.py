"""`mechrl behaviours` and `mechrl check`: what a model does, and whether a file of one's own is in order. Heavy imports wait."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mechrl.cli import options
from mechrl.cli.terminal import Live, answer, answer_json, answer_table, working
from mechrl.errors import FileError
from mechrl.messages import say
from mechrl.ranges import MOST_PAIRS

if TYPE_CHECKING:
    from mechrl.behaviours import Behaviour
    from mechrl.gate import Verdict
    from mechrl.inspection import Inspection

_LISTED = 10  # problems and answers


def behaviours_command(
    model: options.Model = "toy",
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--behaviour",
            "-b",
            rich_help_panel=options.BASICS,
            help="Only these; a name or a file. Repeatable.",
        ),
    ] = None,
    listed: Annotated[
        bool,
        typer.Option("--list", rich_help_panel=options.BASICS, help="List them and run no model."),
    ] = False,
    pairs: Annotated[int, options.budget(min=1, max=MOST_PAIRS, help="Test pairs per behaviour.")] = 50,
    bos: options.Bos = "auto",
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """See which behaviours a model exhibits: accuracy, top-1, P(answer) and KL_cut on test pairs, against fixed thresholds.

    `mechrl check FILE` looks at a file of your own row by row.

    Examples:

    - `mechrl behaviours --list`
    - `mechrl behaviours --model smollm2 --json`
    - `mechrl behaviours -b ioi -b mine.jsonl`
    """
    from mechrl import gate
    from mechrl.behaviours import behaviours as all_behaviours
    from mechrl.behaviours import get_behaviour
    from mechrl.models import load_model

    chosen = [get_behaviour(name) for name in only] if only else list(all_behaviours())
    if listed:
        _answer_list(chosen, as_json)
        return
    with working(f"loading {model}"):
        loaded = load_model(model, device=device, bos=bos)
    verdicts: list[Verdict] = []
    broken: list[FileError] = []
    with Live("behaviours") as live:
        for i, behaviour in enumerate(chosen):
            live.show(behaviour.name, i, len(chosen))
            try:
                verdicts.append(gate.judge(loaded, behaviour, pairs))
            except FileError as exc:
                broken.append(exc)
    if as_json:
        answer_json([v.to_json() for v in verdicts])
    elif verdicts:
        _answer_verdicts(verdicts)
        assert loaded.tokenizer is not None
        opening = loaded.tokenizer.opening
        how = f"open with {opening}" if opening else "open with no token of their own"
        answer(
            f"{sum(v.exhibited for v in verdicts)} of {len(verdicts)} exhibited by {model}: accuracy ≥ {gate.MIN_ACCURACY}, "
            f"P(answer) ≥ {gate.MIN_P_ANSWER} and KL_cut ≥ {gate.MIN_KL_CUT} on test pairs"
        )
        answer(f"prompts {how}: {loaded.tokenizer.said}")
    for other in broken[:-1]:
        say(f"mechrl: {other}")
    if broken:
        raise broken[-1]


def _answer_list(chosen: list[Behaviour], as_json: bool) -> None:
    keys = ("name", "family", "split", "metric", "description")
    rows = [{key: getattr(behaviour, key) for key in keys} for behaviour in chosen]
    if as_json:
        answer_json(rows)
    else:
        answer_table(
            ["behaviour", "family", "what it is"], [[r["name"], r["family"], r["description"]] for r in rows]
        )


def _answer_verdicts(verdicts: list[Verdict]) -> None:
    header = [
        "behaviour",
        "pairs",
        "accuracy",
        "top-1",
        "P(answer)",
        "KL_cut",
        "metric",
        "clean",
        "corrupted",
        "exhibited",
    ]

    def number(x: float | None) -> str:
        return "–" if x is None else f"{x:.2f}"

    rows = []
    for v in verdicts:
        numbers = [number(x) for x in (v.accuracy, v.top1, v.p_answer, v.kl_cut)]
        measured = [number(x) for x in (v.metric_clean, v.metric_corrupt)]
        rows.append([v.name, str(v.pairs), *numbers, v.metric, *measured, "yes" if v.exhibited else "no"])
    answer_table(header, rows)
    for v in verdicts:
        if not v.exhibited:
            answer(f"{v.name}: no, {v.reason}")
        for warning in v.warnings:
            answer(f"{v.name}: warning: {warning}")


def check_command(
    file: Annotated[
        Path, typer.Argument(help="The .jsonl or .csv file of a behaviour of your own.", show_default=False)
    ],
    model: options.Model = "toy",
    bos: options.Bos = "auto",
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Check a file of your own: its parts, lengths and answers, what is wrong with which line, and what the model says.

    Exits with 1 if a row is broken.

    Examples:

    - `mechrl check mine.jsonl --model smollm2`
    """
    from mechrl.behaviours import load_behaviour
    from mechrl.inspection import inspect
    from mechrl.models import load_model

    behaviour = load_behaviour(file)
    with working(f"loading {model}"):
        loaded = load_model(model, device=device, bos=bos)
    with working(f"asking {model}"):
        seen = inspect(loaded, behaviour)
    if as_json:
        answer_json(seen.to_json())
    else:
        _answer_inspection(seen, file, model)
    if seen.problems:
        n = len(seen.problems)
        raise FileError(
            f"{file}: {n} problem{'s' * (n > 1)}; correct {'them' if n > 1 else 'it'} and check again"
        )


def _answer_inspection(seen: Inspection, file: Path, model: str) -> None:
    parts = ", ".join(f"{n} {part}" for part, n in seen.parts.items())
    answer(f"{seen.name}: {seen.rows} rows, judged by {seen.metric}")
    answer(f"parts      {parts}")
    answer(f"tokens     {', '.join(f'{n} rows of {length}' for length, n in seen.lengths.items())}")
    answer(f"answers    {_some(seen.answers)}")
    answer(f"foils      {_some(seen.foils)}")
    for problem in seen.problems[:_LISTED]:
        answer(f"problem: {problem}")
    if len(seen.problems) > _LISTED:
        answer(f"and {len(seen.problems) - _LISTED} more")
    if seen.verdict is None:
        return
    header = ["prompt", "answer", "P", "foil", "P", f"{model} says", "P", "right"]
    rows = []
    for s in seen.said:
        prompt = s.clean if len(s.clean) <= 44 else f"…{s.clean[-43:]}"
        p = [f"{x:.2f}" for x in (s.p_answer, s.p_foil, s.p_top)]
        rows.append([prompt, s.answer, p[0], s.foil, p[1], repr(s.top), p[2], "yes" if s.right else "no"])
    answer_table(header, rows)
    v = seen.verdict
    for warning in v.warnings:
        answer(f"warning: {warning}")
    numbers = f"accuracy {v.accuracy:.2f}, top-1 {v.top1:.2f}, P(answer) {v.p_answer:.2f}, KL_cut {v.kl_cut:.2f} on {v.pairs} test pairs"
    answer(
        f"{model} {'exhibits' if v.exhibited else 'does not exhibit'} it: {numbers}{'' if v.exhibited else f' ({v.reason})'}"
    )
    if v.exhibited:
        answer(f"next: mechrl discover {file} --model {model} --out runs/{seen.name}")


def _some(texts: tuple[str, ...]) -> str:
    more = f" and {len(texts) - _LISTED} more" if len(texts) > _LISTED else ""
    return ", ".join(map(repr, texts[:_LISTED])) + more
