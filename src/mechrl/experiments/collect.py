"""What a worker process collects: one walk a cell. Records lie in files of their own, beside the cells."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from mechrl.agents.planner import records
from mechrl.agents.planner.collect import CollectSettings, walk
from mechrl.agents.planner.network import EditModel, load_model
from mechrl.behaviours import get_behaviour
from mechrl.experiments.cells import Cell, Workspace
from mechrl.experiments.worker import check_stop, stopping, tell
from mechrl.files.saving import patiently
from mechrl.models.base import Model


def collect_cell(
    model: str, checksum: str, behaviour: str, draw: int, settings: CollectSettings, network: str | None
) -> Cell:
    """`network`: the checksum of the one whose costs order the edits, if any."""
    arguments = {
        "model": model,
        "checksum": checksum,
        "behaviour": behaviour,
        "seed": draw,
        "network": network,
    }
    return Cell("collect", arguments | {"settings": settings.to_json()})


def records_of(workspace: Workspace, cell: Cell) -> Path:
    return workspace.folder / "records" / f"{cell.name}.safetensors"


def collect(
    model: Model,
    workspace: Workspace,
    cell: Cell,
    behaviour: str,
    seed: int,
    network: str | None,
    settings: dict[str, Any],
) -> dict[str, Any]:
    def report(line: str) -> None:
        tell(line)
        check_stop()

    by = None if network is None else _network(workspace.context["network"], workspace.context["device"])
    found = walk(model, get_behaviour(behaviour), seed, CollectSettings(**settings), by, report)
    about = {"model": model.name, "checksum": model.checksum, "passes": found.passes}
    patiently(lambda: records.write(records_of(workspace, cell), found.records, about), stopping)
    edits = sum(len(record.f) for record in found.records)
    return {"states": len(found.records), "edits": edits, "passes": found.passes, "seconds": found.seconds}


@cache
def _network(path: str, device: str) -> EditModel:
    return load_model(Path(path), device)[0]
