"""`mechrl planner`: collect, fit, and both in turns. Heavy imports wait until a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mechrl.cli import options
from mechrl.cli.output import one_writer
from mechrl.cli.terminal import Live, answer, working
from mechrl.errors import MechRLError
from mechrl.ranges import MOST_STEPS
from mechrl.signals import stop_signals

if TYPE_CHECKING:
    from mechrl.agents.planner.fit import FitSettings
    from mechrl.experiments.experiment import Experiment

app = typer.Typer(
    help="Train the planner: a learned model of what an edit does to faithfulness.", no_args_is_help=True
)

Draws = Annotated[str, typer.Option(help="Comma-separated seeds; each is another draw of discovery pairs.")]
Without = Annotated[
    str | None,
    typer.Option(
        help="Families to leave out, comma-separated: what is found for them then is transfer.",
        show_default=False,
    ),
]
Behaviours = Annotated[
    str,
    typer.Option(
        help="`built-in` (all that the model exhibits), `train`, `held-out`, or names and files, comma-separated."
    ),
]
States = Annotated[int, typer.Option(min=1, max=100, help="Circuits of a walk.")]
Epochs = Annotated[int, typer.Option(min=1, max=MOST_STEPS, help="How often every circuit is seen.")]


@app.command("collect")
@one_writer
def collect_command(
    model: options.Model = "toy",
    behaviours: Behaviours = "built-in",
    draws: Draws = "0,1",
    out: Annotated[
        Path, typer.Option(help="Folder for records; what it has already is not collected again.")
    ] = Path("runs/records"),
    network: Annotated[
        Path | None,
        typer.Option(help="A planner whose costs order the edits: a later round.", show_default=False),
    ] = None,
    states: States = 8,
    jobs: options.Jobs = 1,
    ray: options.Ray = None,
    device: options.Device = "auto",
    seconds: options.SecondsThenRepeat = None,
) -> None:
    """Walk from large circuits to small ones, try edits on the way, and record what they do.

    Examples:

    - `mechrl planner collect --out runs/records`
    - `mechrl planner collect --model smollm2 --jobs 2 --out runs/records`
    """
    from mechrl.experiments.experiment import Experiment

    experiment = Experiment(model, out, None, device, jobs, seconds, ray)
    collect(experiment, behaviours, draws, network, states)
    answer(out)


@app.command("fit")
@one_writer
def fit_command(
    records: Annotated[
        list[Path], typer.Argument(help="Folders that `mechrl planner collect` filled.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="The planner's folder.")] = Path("runs/planner"),
    without: Without = None,
    epochs: Epochs = 24,
    seed: options.Seed = 0,
    device: options.Device = "auto",
) -> None:
    """Fit the planner's network to what was collected.

    Examples:

    - `mechrl planner fit runs/records --out runs/planner`
    - `mechrl planner fit runs/records --without ioi,greater-than`
    """
    from mechrl.agents.planner.fit import FitSettings

    answer(fit(records, out, without, FitSettings(epochs=epochs, seed=seed), device))


@app.command("train")
@one_writer
def train_command(
    model: options.Model = "toy",
    behaviours: Behaviours = "built-in",
    draws: Draws = "0,1",
    out: Annotated[Path, typer.Option(help="The planner's folder; records lie in it.")] = Path(
        "runs/planner"
    ),
    rounds: Annotated[
        int,
        typer.Option(min=1, max=10, help="After the first, edits are ordered by the network fitted so far."),
    ] = 2,
    states: States = 8,
    epochs: Epochs = 24,
    seed: options.Seed = 0,
    jobs: options.Jobs = 1,
    ray: options.Ray = None,
    device: options.Device = "auto",
    seconds: options.SecondsThenRepeat = None,
) -> None:
    """Collect and fit in turns: everything that a planner of your own model and behaviours needs.

    Examples:

    - `mechrl planner train --out runs/planner`
    - `mechrl planner train --model smollm2 --jobs 2 --out runs/planner`
    - `mechrl planner train --behaviours ioi,mine.jsonl --out runs/planner`
    """
    import time

    from mechrl.agents.planner.fit import FitSettings
    from mechrl.experiments.experiment import Experiment

    until = None if seconds is None else time.monotonic() + seconds
    folders: list[Path] = []
    network: Path | None = None
    for r in range(rounds):
        folders.append(out / f"round-{r + 1}")
        left = None if until is None else max(0.0, until - time.monotonic())
        experiment = Experiment(model, folders[-1], None, device, jobs, left, ray)
        collect(experiment, behaviours, draws, network, states)
        target = out if r == rounds - 1 else out / f"after-{r + 1}"
        network = target / "model.safetensors"
        if r == rounds - 1 or not network.exists():
            fit(folders, target, None, FitSettings(epochs=epochs, seed=seed), device)
    answer(out)


def collect(experiment: Experiment, behaviours: str, draws: str, network: Path | None, states: int) -> None:
    """Walks of one round. Leaves the command if they could not all be done."""
    from mechrl.agents.planner.collect import CollectSettings
    from mechrl.agents.planner.network import load_model
    from mechrl.experiments import collect as collecting
    from mechrl.experiments.compare import parse_seeds
    from mechrl.files.reading import file_checksum

    seeds, settings = parse_seeds(draws), CollectSettings(states=states)
    if network is not None:
        load_model(network)  # it can be read, before anything is done
    with experiment:
        gated = experiment.gate(behaviours)
        known = None if network is None else file_checksum(network)
        experiment.workspace.context["network"] = None if network is None else str(network)
        model, checksum = gated.model["model"], gated.model["checksum"]
        cells = [
            collecting.collect_cell(model, checksum, name, draw, settings, known)
            for draw in seeds
            for name in gated.names
        ]
        for cell in cells:  # a walk whose records are gone is walked again
            if not collecting.records_of(experiment.workspace, cell).exists():
                experiment.workspace.path(cell).unlink(missing_ok=True)
        finished = experiment.run(cells)
    experiment.leave(finished)


def fit(
    folders: list[Path],
    out: Path,
    without: str | None,
    settings: FitSettings,
    device: str,
) -> Path:
    """Writes the planner's folder."""
    from mechrl.agents.planner import records
    from mechrl.agents.planner.fit import fit as fit_network
    from mechrl.agents.planner.network import save_model
    from mechrl.files.lock import only_writer
    from mechrl.files.saving import patiently
    from mechrl.models import resolve_device

    with working("reading records"):
        found = [record for folder in folders for record in records.read_all(folder / "records")]
    families = records.families(found)
    left_out = [name.strip() for name in (without or "").split(",") if name.strip()]
    if unknown := sorted(set(left_out) - set(families)):
        raise MechRLError(f"no records of the families {', '.join(unknown)}; there are {', '.join(families)}")
    kept = [record for record in found if record.family not in left_out]
    with Live("fit", quiet=0) as live:
        network = fit_network(
            kept,
            settings,
            resolve_device(device),
            lambda epoch, line: live.show(line, epoch, settings.epochs),
        )
    about: dict[str, Any] = {
        "behaviours": sorted({record.behaviour for record in kept}),
        "families": records.families(kept),
        "circuits": len(kept),
        "edits": sum(len(record.f) for record in kept),
        "settings": settings.to_json(),
    }
    with only_writer(out), stop_signals() as stopped:
        patiently(lambda: save_model(out / "model.safetensors", network, about), lambda: bool(stopped))
    return out
