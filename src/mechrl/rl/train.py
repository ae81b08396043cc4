"""A training run and its folder: what is written when, and how a run that was left goes on.

    run.json                            what the run is: command, settings, seed, versions, the model's checksum, its tasks
    metrics.jsonl                       one line per iteration; docs/training.md explains every number
    config.json, model.safetensors      the policy as of the last save
    checkpoint.safetensors              everything that the next iteration depends on
    tb/                                 the same numbers for TensorBoard, if it is installed

Every file but the last two appears whole or not at all. The checkpoint is the truth: going on from it, lines of metrics.jsonl that
are ahead of it are dropped, and the run that results is the run that was never left, bit for bit on the CPU.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

import mechrl
from mechrl.circuit import write_atomically
from mechrl.errors import MechRLError
from mechrl.models.base import Model
from mechrl.rl.policy import Policy
from mechrl.rl.ppo import Trainer
from mechrl.rl.tasks import TaskSettings

CHECKPOINT, METRICS, RUN = "checkpoint.safetensors", "metrics.jsonl", "run.json"
_FORMAT = 1


def describe(model: Model, trainer: Trainer, settings: TaskSettings, init_from: str | None = None) -> dict[str, Any]:
    """What a run is. Two runs with the same description are the same run. `init_from`: checksum of the first weights' file."""
    return {
        "model": model.name,
        "checksum": model.checksum,
        "device": trainer.device.type,
        "behaviours": [task.name for task in trainer.tasks],
        "task": settings.to_json(),
        "ppo": asdict(trainer.config),
        "reward": asdict(trainer.reward),
        "policy": asdict(trainer.policy.config),
        "init_from": init_from,
    }


class Run:
    """A trainer at work in a folder: iterate over it to train, one iteration's metrics at a time; `save` when leaving early.

    began: `time.perf_counter()` when the work for this run began, preparations included.
    """

    def __init__(
        self,
        folder: Path,
        trainer: Trainer,
        about: dict[str, Any],
        resume: bool = False,
        save_every: int = 20,
        began: float | None = None,
    ) -> None:
        self.folder, self.trainer, self.save_every = folder, trainer, save_every
        self._began = time.perf_counter() if began is None else began
        self.passes_before = self._seconds_before = 0.0  # spent before this process, less what it repeats
        if resume:
            _check_continues(folder, about)
            _load(trainer, folder / CHECKPOINT)
            lines = self._drop_lines_ahead()
            if lines:
                last = json.loads(lines[-1])
                self.passes_before, self._seconds_before = last["passes"] - self._passes_now, last["seconds"]
        else:
            if (folder / CHECKPOINT).exists():
                raise MechRLError(f"{folder} holds a run already; go on with it by --resume, or choose another folder")
            tasks = [{"name": t.name, "K": t.K, "M": t.M, "ceiling": t.ceiling, "tau": t.tau} for t in trainer.tasks]
            versions = {"mechrl": mechrl.__version__, "python": platform.python_version(), "torch": torch.__version__}
            command = shlex.join(["mechrl", *sys.argv[1:]])
            known = (
                {"format": _FORMAT, "command": command, "versions": versions | {"numpy": np.__version__}}
                | about
                | {"tasks": tasks}
            )
            write_atomically(folder / RUN, (json.dumps(known, indent=1) + "\n").encode())
            write_atomically(folder / METRICS, b"")

    @property
    def _passes_now(self) -> float:
        return sum(task.engine.passes for task in self.trainer.tasks)

    @property
    def passes(self) -> float:
        """Everything spent on this run: prefilters, ceilings, training. Multiples of a twentieth, whatever the order of adding."""
        return round(self.passes_before + self._passes_now, 6)

    @property
    def seconds(self) -> float:
        return self._seconds_before + time.perf_counter() - self._began

    @property
    def finished(self) -> bool:
        return self.trainer.iteration >= self.trainer.config.iterations

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Trains to the end; saves every `save_every` iterations and after the last."""
        writer = _tensorboard(self.folder / "tb", self.trainer.iteration)
        with open(self.folder / METRICS, "a", encoding="utf-8") as file:
            before = time.perf_counter()
            for scalars in self.trainer.run():
                now = time.perf_counter()
                row = scalars | {"passes": self.passes, "seconds": self.seconds}
                row["steps_per_second"] = self.trainer.config.transitions / (now - before)
                before = now
                file.write(json.dumps(row) + "\n")
                file.flush()
                if writer is not None:
                    for key, value in row.items():
                        if key != "iteration" and value is not None:
                            writer.add_scalar(key, value, row["iteration"])
                if self.trainer.iteration % self.save_every == 0 or self.finished:
                    self.save()
                yield row
        if writer is not None:
            writer.close()

    def save(self) -> None:
        """The policy and the checkpoint, as of now."""
        save_policy(self.trainer.policy, self.folder)
        self.trainer.save(self.folder / CHECKPOINT)

    def _drop_lines_ahead(self) -> list[str]:
        kept = []
        for line in (self.folder / METRICS).read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["iteration"] > self.trainer.iteration:
                    break
            except ValueError:  # cut off in the middle of a line, so beyond the last checkpoint
                break
            kept.append(line)
        write_atomically(self.folder / METRICS, "".join(f"{line}\n" for line in kept).encode())
        return kept


def file_checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def save_policy(policy: Policy, folder: Path) -> None:
    """`Policy.save`, aside and then into place."""
    aside = folder / f".policy.{os.getpid()}"
    policy.save(aside)
    for file in aside.iterdir():
        os.replace(file, folder / file.name)
    aside.rmdir()


def _check_continues(folder: Path, about: dict[str, Any]) -> None:
    """Refuses to go on with another run than the one that was left."""
    path = folder / RUN
    if not (folder / CHECKPOINT).exists():
        raise MechRLError(f"{folder}: no checkpoint to resume from; start without --resume")
    try:
        known = json.loads(path.read_bytes())
    except (OSError, ValueError) as exc:
        raise MechRLError(f"{path}: missing or damaged; start again in another folder") from exc
    other = list(_differences(known, json.loads(json.dumps(about))))
    if other:
        raise MechRLError(f"the run to resume had {', '.join(other)}; give the same options, or start in another folder")


def _differences(theirs: dict[str, Any], mine: dict[str, Any]) -> Iterator[str]:
    for key, value in mine.items():
        if isinstance(value, dict) and isinstance(theirs.get(key), dict):
            yield from _differences(theirs[key], value)
        elif theirs.get(key) != value:
            yield f"{key} {theirs.get(key)!r}"


def _load(trainer: Trainer, path: Path) -> None:
    try:
        trainer.load(path)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as exc:
        raise MechRLError(f"{path}: not a checkpoint, or damaged; start again in another folder") from exc


def _tensorboard(folder: Path, iteration: int) -> Any:
    """A writer that forgets what a run that was left wrote beyond its checkpoint; None without TensorBoard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=iteration + 1 if iteration else None)
