"""A trained policy on disk: config.json and model.safetensors, as on the hub, and run.json, which says what it was trained on."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from mechrl.agents.paper.env import EnvConfig
from mechrl.agents.paper.policy import Policy
from mechrl.agents.paper.tasks import TaskSettings
from mechrl.errors import MechRLError
from mechrl.files import write_atomically
from mechrl.files.reading import made_of, read_json
from mechrl.ranges import MOST_WIDTH

CONFIG, WEIGHTS, RUN = "config.json", "model.safetensors", "run.json"
_AGENT = "paper"


def save_policy(policy: Policy, folder: Path) -> None:
    weights = {k: v.detach().cpu().contiguous() for k, v in policy.state_dict().items()}
    write_atomically(folder / WEIGHTS, save(weights))
    config = {"agent": _AGENT, "width": policy.width}
    write_atomically(folder / CONFIG, (json.dumps(config, indent=1) + "\n").encode())


def load_policy(folder: Path, device: torch.device | str = "cpu") -> Policy:
    """The policy in a folder. A folder that holds none, or a damaged one, raises a one-line error."""
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise MechRLError(
                f"{folder}: not the folder of a policy, {name} is missing; `mechrl train` writes one"
            )
    try:
        config = read_json(folder / CONFIG)
        if "stop_bias" in config:  # written by older versions
            raise MechRLError(
                f"{folder}: a policy of a retired kind; use `mechrl discover`, or train a new one with `mechrl train`"
            )
        width = config["width"]
        if config["agent"] != _AGENT or type(width) is not int or not 1 <= width <= MOST_WIDTH:
            raise ValueError("not this agent's configuration")
        policy = Policy(width)
        policy.load_state_dict(load_file(folder / WEIGHTS))
        if not all(weights.isfinite().all() for weights in policy.state_dict().values()):
            raise ValueError("a weight is not a number")
        return policy.to(device)
    except RuntimeError as exc:
        raise MechRLError(
            f"{folder}: {WEIGHTS} does not fit {CONFIG}; they are not of the same policy"
        ) from exc
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError) as exc:
        raise MechRLError(
            f"{folder}: the policy's files are damaged or cut short; copy or train them again"
        ) from exc


def trained_with(folder: Path) -> tuple[TaskSettings, EnvConfig]:
    """The candidate sets and episodes that a policy was trained on; the paper's if there is no run.json."""
    try:
        known = read_json(folder / RUN)
        return made_of(TaskSettings, known["task"]), made_of(EnvConfig, known["env"])
    except FileNotFoundError:
        return TaskSettings(), EnvConfig()
    except (OSError, KeyError, TypeError, ValueError) as exc:
        raise MechRLError(f"{folder / RUN}: damaged; remove it to use the paper's settings") from exc
