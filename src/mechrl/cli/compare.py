"""`mechrl compare` and `mechrl reproduce`. Heavy imports wait until a command runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mechrl import names
from mechrl.cli import options
from mechrl.cli.output import one_writer
from mechrl.cli.search import duration
from mechrl.cli.terminal import answer, answer_json, answer_table, working
from mechrl.errors import MechRLError
from mechrl.files.saving import not_saved
from mechrl.messages import say
from mechrl.ranges import MOST_EDGES, MOST_STEPS

if TYPE_CHECKING:
    from mechrl.experiments.experiment import Experiment

# ---- compare --------------------------------------------------------------------------------------------------------


@one_writer
def compare_command(
    model: options.Model = "toy",
    behaviours: options.Behaviours = "all",
    methods: Annotated[
        str | None,
        options.expert(
            help="Comma-separated; also `top-n-kl`, `greedy-kl`, `matryoshka` and, with --policy, `paper`, `paper-adapted` and "
            "`paper-from-scratch`. [default: all other searches, and with --policy `paper` and `paper-adapted`]",
            show_default=False,
        ),
    ] = None,
    targets: Annotated[
        str,
        options.basic(
            help="f ≥ tau on `discovery` pairs, on fresh ones as judged by validation pairs (`test`), or both."
        ),
    ] = "discovery,test",
    seeds: options.Seeds = "0,1,2",
    tau: options.Tau = 0.9,
    pairs: options.Pairs = 20,
    k: Annotated[
        int,
        options.budget(
            "--k",
            min=1,
            max=MOST_EDGES,
            help="Candidate edges of a search, by each score; a policy has its own.",
        ),
    ] = 3000,
    policy: options.PolicyOfPaper = None,
    iterations: Annotated[
        int, options.budget(min=1, max=MOST_STEPS, help="Iterations of the policy's adaptation.")
    ] = 80,
    out: Annotated[Path, options.basic(help="Folder for the cells, the circuits and the tables.")] = Path(
        "runs/compare"
    ),
    jobs: options.Jobs = 1,
    ray: options.Ray = None,
    seconds: options.SecondsThenRepeat = None,
    device: options.Device = "auto",
    force: options.ForceAll = False,
    as_json: options.Json = False,
) -> None:
    """All methods on all behaviours at matched faithfulness: size, f on discovery and on test pairs, passes, seconds.

    Every finished cell is a file: stop it at any time, and the same command goes on from there.

    Examples:

    - `mechrl compare --behaviours ioi,acronyms --methods greedy,acdc,blockwise`
    - `mechrl compare --model smollm2 --jobs 4 --seconds 500 --out runs/smollm2`
    """
    from mechrl.experiments import compare
    from mechrl.experiments.compare import Budget, circuit_cell, parse_list, parse_seeds
    from mechrl.experiments.compare_tables import comparison_tables
    from mechrl.experiments.experiment import Experiment

    if not 0 < tau < 1:
        raise MechRLError(f"tau must lie between 0 and 1, not be {tau:g}")
    numbers = parse_seeds(seeds)
    default = compare.DEFAULT_SEARCHES if policy is None else compare.DEFAULT_METHODS
    chosen = parse_list(methods or ",".join(default), "methods", compare.METHODS)
    aims = parse_list(targets, "targets", compare.TARGETS)
    budget = Budget(tau=tau, pairs=pairs, k=k, adapt_iterations=iterations)
    experiment = Experiment(model, out, policy, device, jobs, seconds, ray)
    agent = experiment.agent() if set(chosen) & set(compare.PAPERS) else None
    with _json_if_out_of_time(as_json, tables=[]), experiment:
        known = experiment.gate(behaviours, force)
        cells = [
            circuit_cell(known.model, name, method, aim, seed, budget, agent)  # type: ignore[arg-type]  # checked above
            for seed in numbers
            for aim in aims
            for name in known.names
            for method in chosen
            if aim == "discovery" or method not in compare.PAPERS  # which know these pairs alone
        ]
        finished = experiment.run(cells)
    tables = comparison_tables(
        compare.rows(cells, experiment.workspace, stability=True), budget, experiment.command, known
    )
    unsaved = not_saved(lambda: experiment.write_tables(tables))
    if as_json:
        answer_json({"finished": finished, "tables": [t.to_json() for t in tables]})
    else:
        for table in tables:
            answer(table.title)
            answer_table(table.headings, table.texts())
            for note in table.notes:
                answer(note)
        if unsaved is None:
            say(f"{out} holds the cells, the circuits and the tables")
    if unsaved is not None:
        raise unsaved
    experiment.leave(finished)
    records = filter(None, map(experiment.workspace.record, cells))
    _check_failed([record["reason"] for record in records if record["status"] == "failed"])


@contextmanager
def _json_if_out_of_time(as_json: bool, **nothing: object) -> Iterator[None]:
    """Machines are told something also when time ran out before there was anything to tell."""
    try:
        yield
    except typer.Exit as exc:
        if as_json and exc.exit_code == 0:
            answer_json({"finished": False} | nothing)
        raise


def _check_failed(reasons: list[str]) -> None:
    """What did not work is an error, although all the rest is there."""
    if reasons:
        raise MechRLError(
            f"{len(reasons)} cells failed, the first one: {reasons[0]}; the same command tries them again"
        )


# ---- reproduce ------------------------------------------------------------------------------------------------------


@one_writer
def reproduce_command(
    model: options.Model = "toy",
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A smoke run: two behaviours, tiny budgets. Its numbers mean nothing."),
    ] = False,
    out: Annotated[
        Path, options.basic(help="Folder for the cells, the tables, the figures and report.html.")
    ] = Path("runs/reproduce"),
    agent: Annotated[
        names.ReproducedAgent,
        options.basic(**options.choice("agent", names.ReproducedAgent), help="Whose tables these are."),
    ] = "paper",
    policy: Annotated[
        Path | None,
        options.basic(
            help="Folder of its policy, which `mechrl train` writes. [default: one is trained first]",
            show_default=False,
        ),
    ] = None,
    seeds: options.Seeds = "0,1,2",
    costly_seeds: Annotated[
        str,
        options.reproducible(
            help="Seeds of the costly cells: adaptation, training from scratch, ACDC over the whole graph."
        ),
    ] = "0",
    behaviours: Annotated[
        str | None,
        options.basic(help="Only these, comma-separated. [default: the paper's]", show_default=False),
    ] = None,
    methods: Annotated[
        str | None,
        options.expert(help="Only these at matched f, comma-separated. [default: all]", show_default=False),
    ] = None,
    jobs: options.Jobs = 1,
    ray: options.Ray = None,
    seconds: options.SecondsThenRepeat = None,
    device: options.Device = "auto",
    envs: options.Envs = 4,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Write the report from what is done; do nothing more.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Every table and figure of the paper for a model, in one report.html with CSV, JSON, PNG and SVG beside it.

    The paper's agent is trained, deployed and adapted; what that takes is said before it begins.
    Every finished cell is a file: stop it at any time, and the same command goes on from there. The report shows what is done so far;
    what was done for some behaviours or methods counts when all are asked for.

    Examples:

    - `mechrl reproduce --quick`
    - `mechrl reproduce --model gpt2 --out runs/gpt2`
    - `mechrl reproduce --model smollm2 --policy runs/policy --jobs 6 --seconds 540 --out runs/smollm2`
    """
    from dataclasses import replace

    from mechrl.agents.paper.tasks import choose_behaviours
    from mechrl.experiments.compare import METHODS, parse_list, parse_seeds
    from mechrl.experiments.experiment import Experiment
    from mechrl.experiments.reproduce import QUICK, Scope, View, agent_of, cells_of, choose, cost
    from mechrl.experiments.write import write_report

    if report_only and not (out / "cells").is_dir():
        raise MechRLError(
            f"{out}: nothing is done there yet; give the folder of a reproduction, or leave --report-only out"
        )
    scope = QUICK if quick else Scope(tuple(parse_seeds(seeds)), tuple(parse_seeds(costly_seeds)))
    scope = replace(scope, budget=replace(scope.budget, envs=scope.budget.envs if quick else envs))
    if behaviours is not None:
        scope = replace(scope, only=tuple(b.name for b in choose_behaviours(behaviours)))
    if methods is not None:
        scope = replace(scope, methods=tuple(parse_list(methods, "methods", METHODS)))
    experiment = Experiment(
        model,
        out,
        policy,
        device,
        jobs,
        0.0 if report_only else seconds,
        None if report_only else ray,
        report_only,
    )
    with _json_if_out_of_time(as_json, report=None), experiment:
        gated = experiment.gate(",".join(scope.only) or "every")
        chosen = choose(gated, scope.only)
        if not report_only:
            _forecast(
                experiment, cost(scope, chosen, trains=policy is None), gated.names[0], scope.budget.pairs
            )
        trained, training = agent_of(experiment, scope, gated)
        cells = cells_of(scope, gated, chosen, trained)
        finished = experiment.run(list(cells))
        command = experiment.command.replace(" --report-only", "")  # it made none of the numbers
        view = View(scope, gated, chosen, cells, experiment.workspace, trained, training, command)
        done, failed, total = view.count()
        say(
            f"{done} of {total} cells done, {failed} failed, {total - done - failed} to go; writing the report"
        )
        written = write_report(view, out)
    if as_json:
        cells_done = {"done": done, "failed": failed, "total": total}
        answer_json(
            {"finished": finished, "report": str(written.report), "cells": cells_done, "gist": written.lines}
        )
    else:
        answer(written.report)
        for line in written.lines:
            answer(line)
    experiment.leave(finished or report_only)
    _check_failed([reason for _, reason in view.failed()])


def _forecast(experiment: Experiment, passes: dict[str, int], behaviour: str, pairs: int) -> None:
    """What the paper's agent will take, in passes and in hours here: a circuit is run once to see how long that takes."""
    from mechrl.agents.paper.tasks import Scored, TaskSettings
    from mechrl.behaviours import get_behaviour
    from mechrl.candidates import candidate_set
    from mechrl.engine.estimate import estimate
    from mechrl.models import load_model

    total = sum(passes.values())
    parts = ", ".join(f"{what} {n:,}" for what, n in passes.items() if n)
    if experiment.executor is None:
        with working("how long a pass takes"):
            model = load_model(experiment.model, device=experiment.workspace.context["device"])
            scored = Scored.of(model, get_behaviour(behaviour), TaskSettings(pairs=pairs))
            seconds = estimate(scored.engine, candidate_set([scored.scores], 3000)).seconds(total)
        hours = f", at most {duration(seconds)} of forward passes by one worker on this device"
    else:
        hours = ""
    say(
        f"the paper's agent will take at most {total:,} passes ({parts}){hours}; the searches and ACDC come on top"
    )
