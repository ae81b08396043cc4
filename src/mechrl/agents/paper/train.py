"""A training run and its folder: what is written when, and how an interrupted run resumes.

    run.json                            what the run is: command, settings, seed, versions, the model's checksum, its tasks
    metrics.jsonl                       one line per iteration; docs/training.md explains every number
    config.json, model.safetensors      the policy as of the last save
    checkpoint.safetensors              everything that the next iteration depends on
    tb/                                 the same numbers for TensorBoard, if it is installed

All but metrics.jsonl and tb/ are replaced as a whole. The checkpoint is authoritative: a resumed run drops the lines of metrics.jsonl
beyond it, and then gives the results of an uninterrupted run, on the CPU bit for bit.
"""

from __future__ import annotations

import json
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

import mechrl
from mechrl.agents.paper.checkpoint import RUN, save_policy
from mechrl.agents.paper.log import METRICS, Log
from mechrl.agents.paper.ppo import Trainer
from mechrl.agents.paper.tasks import TaskSettings
from mechrl.errors import MechRLError
from mechrl.files import CannotWrite, write_atomically
from mechrl.files.reading import parse_json, read_bytes, read_json
from mechrl.files.saving import Saving
from mechrl.models.base import Model

CHECKPOINT = "checkpoint.safetensors"
_FORMAT = 2


def describe(
    model: Model, trainer: Trainer, settings: TaskSettings, init_from: str | None = None
) -> dict[str, Any]:
    """The description of a run; two runs with the same description are the same run. `init_from`: checksum of the initial weights' file."""
    return {
        "agent": "paper",
        "model": model.name,
        "checksum": model.checksum,
        "device": trainer.device.type,
        "behaviours": [task.name for task in trainer.tasks],
        "task": settings.to_json(),
        "ppo": asdict(trainer.config),
        "env": asdict(trainer.env.config),
        "width": trainer.policy.width,
        "init_from": init_from,
    }


class Run:
    """A trainer with a folder. Iterate over it to train; each item is one iteration's metrics. Call `save` before leaving early.

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
        self._saving, self._log = Saving(), Log(folder)
        self._began = time.perf_counter() if began is None else began
        self._passes_at_first = sum(task.engine.passes for task in trainer.tasks)  # for setup
        self.passes_before = self._seconds_before = 0.0  # spent before this process, without what it repeats
        if resume:
            _check_continues(folder, about)
            _load(trainer, folder / CHECKPOINT)
            lines = self._lines()
            write_atomically(folder / METRICS, "".join(f"{line}\n" for line in lines).encode())
            if lines:
                last = parse_json(lines[-1])
                self.passes_before, self._seconds_before = (
                    last["passes"] - self._passes_at_first,
                    last["seconds"],
                )
        else:
            if (folder / CHECKPOINT).exists():
                raise MechRLError(
                    f"{folder} holds a run already; add --resume to continue it, or choose another folder"
                )
            write_atomically(folder / RUN, (json.dumps(self._about(about), indent=1) + "\n").encode())
            write_atomically(folder / METRICS, b"")

    def _about(self, about: dict[str, Any]) -> dict[str, Any]:
        tasks = [
            {"name": t.name, "K": t.K, "M": t.M, "ceiling": t.ceiling, "tau": t.tau}
            for t in self.trainer.tasks
        ]
        versions = {"mechrl": mechrl.__version__, "python": platform.python_version()}
        versions |= {"torch": torch.__version__, "numpy": np.__version__}
        return (
            {"format": _FORMAT, "command": shlex.join(["mechrl", *sys.argv[1:]]), "versions": versions}
            | about
            | {"tasks": tasks}
        )

    def passes(self) -> float:
        """Passes spent on this run: prefilters, ceilings, training. (Rounded to a twentieth, so the order of adding does not matter.)"""
        return round(self.passes_before + sum(task.engine.passes for task in self.trainer.tasks), 6)

    @property
    def seconds(self) -> float:
        return self._seconds_before + time.perf_counter() - self._began

    @property
    def finished(self) -> bool:
        return self.trainer.iteration >= self.trainer.config.iterations

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Trains to the end; saves every `save_every` iterations and after the last."""
        with self._log.after(self.trainer.iteration) as log:
            before = time.perf_counter()
            for scalars in self.trainer.run():
                now = time.perf_counter()
                row = scalars | {"passes": self.passes(), "seconds": self.seconds}
                row["steps_per_second"] = self.trainer.config.transitions / (now - before)
                row |= self._memory()
                before = now
                log.write(row)
                if self.trainer.iteration % self.save_every == 0 or self.finished:
                    self.save()
                yield row

    def _memory(self) -> dict[str, float]:
        """Peak GPU memory of this process so far, in gigabytes."""
        if self.trainer.device.type != "cuda":
            return {}
        return {"gpu_memory": torch.cuda.max_memory_reserved() / 2**30}

    def save(self) -> bool:
        """Writes the policy and the checkpoint. False if that failed; the failure was reported, and a later attempt may succeed."""
        content = self.trainer.to_bytes()

        def write() -> None:
            self._log.flush()  # a checkpoint is never ahead of its metrics
            save_policy(self.trainer.policy, self.folder)
            write_atomically(self.folder / CHECKPOINT, content)

        self._write = write
        return self._saving.attempt(write)

    def missing(self) -> CannotWrite | None:
        """Tries to save once more. Returns the reason if the current state is still not saved, else None."""
        if self._saving.failed is not None:
            self._saving.attempt(self._write)
        return self._saving.failed

    def _lines(self) -> list[str]:
        """The lines of metrics.jsonl up to the checkpoint."""
        try:
            lines = read_bytes(self.folder / METRICS).decode().split("\n")[: self.trainer.iteration]
            rows = [parse_json(line) for line in lines if line]
            if not all(
                isinstance(row[key], int | float) and 0 <= row[key] < 2**63
                for row in rows
                for key in ("passes", "seconds")
            ):
                raise ValueError("a line has no passes or no seconds")
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise MechRLError(
                f"{self.folder / METRICS}: missing or damaged; start again in another folder"
            ) from exc
        return [line for line in lines if line]


def _check_continues(folder: Path, about: dict[str, Any]) -> None:
    """Refuses to resume a different run."""
    path = folder / RUN
    if not (folder / CHECKPOINT).exists():
        raise MechRLError(f"{folder}: no checkpoint to resume from; start without --resume")
    try:
        known = read_json(path)
        if not isinstance(known, dict):
            raise ValueError("not written by a run")
    except (OSError, ValueError, TypeError, KeyError) as exc:
        raise MechRLError(f"{path}: missing or damaged; start again in another folder") from exc
    if known.get("agent") != about["agent"]:
        raise MechRLError(f"{folder} holds a run of a retired agent; start again in another folder")
    other = list(_differences(known, json.loads(json.dumps(about))))
    if other:
        raise MechRLError(
            f"the run to resume had {', '.join(other)}; give the same options, or start in another folder"
        )


def _differences(theirs: dict[str, Any], mine: dict[str, Any]) -> Iterator[str]:
    for key, value in mine.items():
        if isinstance(value, dict) and isinstance(theirs.get(key), dict):
            yield from _differences(theirs[key], value)
        elif theirs.get(key) != value:
            yield f"{key} {theirs.get(key)!r}"


def _load(trainer: Trainer, path: Path) -> None:
    try:
        trainer.load(path)
    except (
        OSError,
        KeyError,
        TypeError,
        ValueError,
        OverflowError,
        RuntimeError,
        AttributeError,
        IndexError,
    ) as exc:
        raise MechRLError(f"{path}: not a checkpoint, or damaged; start again in another folder") from exc
