"""Rollouts on disk: a deployment that was stopped goes on from where it was.

A deployment rolls out once, and again for every higher aim, always in the same order. `rollouts-0.safetensors` holds what the next step
of the first ones depends on and the way that led there, `rollouts-1.safetensors` the same of the second, and so on; rollouts that have
ended are read, not run. What lies between them, candidates and judging, is cheap: it is done again, and charged as it was.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mechrl.engine import Engine
from mechrl.errors import MechRLError
from mechrl.files import write_atomically
from mechrl.files.reading import parse_json
from mechrl.files.saving import Saving
from mechrl.files.sealed import read_sealed, sealed
from mechrl.search.problem import Interrupted

_EVERY = 10.0  # seconds

Arrays = dict[str, np.ndarray]


class Journal:
    """Of one deployment, in a folder of its own. `engine` is the task's, whose passes from here on are the deployment's.

    stopping: whether it was asked to stop; the rollouts then raise `Interrupted`, when all is written.
    """

    def __init__(self, folder: Path, engine: Engine, stopping: Callable[[], bool] = lambda: False) -> None:
        self.folder, self.engine, self.stopping = folder, engine, stopping
        self.seconds_before = 0.0  # spent by the processes before this one, less what it repeats
        self._passes, self._began = engine.passes, time.perf_counter()
        self._number, self._written, self._saving = -1, self._began, Saving()

    @property
    def _path(self) -> Path:
        return self.folder / f"rollouts-{self._number}.safetensors"

    def next(self, task: Arrays) -> Arrays | None:
        """What the next rollouts have come to, if they are of the same `task`. A file that is damaged costs time only."""
        self._number += 1
        try:
            arrays, texts = read_sealed(self._path)
            facts = {key: float(value) for key, value in parse_json(texts["spent"]).items()}
            if not all(0 <= facts[key] < np.inf for key in ("passes", "seconds")):
                return None
        except (MechRLError, OSError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
            return None
        if not all(key in arrays and np.array_equal(arrays[key], value) for key, value in task.items()):
            return None
        self.engine.ledger.restore(self._passes + facts["passes"])
        self.seconds_before = facts["seconds"] - (time.perf_counter() - self._began)
        return arrays

    def write(self, arrays: Callable[[], Arrays], ended: bool) -> None:
        """Now and then, when the rollouts have ended, and when they are to stop."""
        asked, now = self.stopping(), time.perf_counter()  # asked once: it may become true between two looks
        if asked or ended or now - self._written > _EVERY:
            spent = {
                "passes": self.engine.passes - self._passes,
                "seconds": self.seconds_before + now - self._began,
            }
            content = arrays()
            self._saving.attempt(
                lambda: write_atomically(self._path, sealed(content, {"spent": json.dumps(spent)}))
            )
            self._written = now
        if asked:
            raise Interrupted

    def remove(self) -> None:
        """The circuit is saved: nobody needs it any more."""
        for path in self.folder.glob("rollouts-*.safetensors"):
            path.unlink()
        if self.folder.exists():
            self.folder.rmdir()
