"""Deployment: a frozen policy finds a circuit (the paper's section 4), seeded."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError

from mechrl.errors import MechRLError
from mechrl.rl.policy import Policy

SHIPPED = Path(__file__).parent / "policies"


def shipped_policy(model: str) -> Path:
    """The folder of the policy that comes with the package for a model: `toy` has its own, others take that of SmolLM2."""
    folder = SHIPPED / ("toy" if model == "toy" else "smollm2")
    if not (folder / "model.safetensors").is_file():
        raise MechRLError(
            f"no policy for {model!r} comes with this version; train one with `mechrl train` and give its folder by --policy"
        )
    return folder


def load_policy(folder: Path, device: torch.device | str = "cpu") -> Policy:
    """`Policy.load`, with a line for people when the folder is not what it should be."""
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise MechRLError(f"{folder}: not the folder of a policy, {name} is missing; `mechrl train` writes them")
    try:
        return Policy.load(folder, device)
    except RuntimeError as exc:
        raise MechRLError(f"{folder}: model.safetensors does not fit config.json; they are not of the same policy") from exc
    except (SafetensorError, OSError, TypeError, ValueError, json.JSONDecodeError) as exc:
        raise MechRLError(f"{folder}: the policy's files are damaged or cut short; copy or train them again") from exc
