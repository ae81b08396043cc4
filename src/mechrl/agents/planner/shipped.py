"""The planners that come with MechRL."""

from __future__ import annotations

from pathlib import Path

from mechrl import hub
from mechrl.agents.planner.network import EditModel, load_model

FOLDER = Path(__file__).parent / "networks"
MODEL = "model.safetensors"


def shipped(model: str) -> Path:
    """The folder of the planner for a language model: its own, or the one fitted on SmolLM2, which knows no model's names or size."""
    own = FOLDER / model
    return own if own.is_dir() else FOLDER / "smollm2"


def load_planner(folder: Path | str) -> EditModel:
    """From a folder or an address on the hub, on the CPU: a network this small gains nothing from a GPU."""
    return load_model(hub.local(folder, *hub.AGENT) / MODEL)[0]
