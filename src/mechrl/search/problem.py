"""What a search takes and what it returns.

A search is a function `(problem, state=None, **settings) -> State`. It is deterministic, calls `problem.checkpoint(state)` after every
accepted step, and resumes from any such state with the result of an uninterrupted run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mechrl.behaviours.base import Behaviour, Pairs
from mechrl.engine import Engine
from mechrl.errors import MechRLError
from mechrl.files.reading import parse_json
from mechrl.files.sealed import read_sealed, sealed
from mechrl.models.base import Model

_CALLS_PER_MINIBATCH = (
    16  # new pairs often enough to matter, seldom enough that building their engine does not
)


class Interrupted(Exception):
    """Raised by `Problem.checkpoint` to stop a search, whose state has been saved by then."""


@dataclass
class State:
    """The state of a search. In `extra`, arrays are saved as arrays, everything else as JSON.

    `extra["progress"]`, from 0 to 1, is set by searches that know their progress; the remaining time is estimated from it.
    """

    mask: np.ndarray  # [n] bool over the problem's candidates: the circuit so far
    order: list[int]  # edges (of the graph) removed so far, first removed first
    faithfulness: float  # of `mask`, as the search last measured it
    extra: dict[str, Any] = field(default_factory=dict)  # what the search needs to continue
    done: bool = False
    note: str = ""  # shown to users: what the search is doing, or how it ended

    def to_bytes(self, **about: object) -> bytes:
        """The state and facts about it (JSON), as a safetensors file."""
        arrays = {
            f"extra.{k}": np.ascontiguousarray(v) for k, v in self.extra.items() if isinstance(v, np.ndarray)
        }
        rest = {k: v for k, v in self.extra.items() if not isinstance(v, np.ndarray)}
        arrays |= {"mask": np.ascontiguousarray(self.mask), "order": np.asarray(self.order, dtype=np.int64)}
        known = {
            "faithfulness": self.faithfulness,
            "extra": rest,
            "done": self.done,
            "note": self.note,
            "about": about,
        }
        return sealed(arrays, {"state": json.dumps(known)})

    @classmethod
    def read(cls, path: Path) -> tuple[State, dict[str, Any]]:
        """Reads a state and the facts saved with it."""
        try:
            arrays, texts = read_sealed(path)
            known = parse_json(texts["state"])
            extra = {
                key[len("extra.") :]: value for key, value in arrays.items() if key.startswith("extra.")
            } | known["extra"]
            mask, order = arrays["mask"], arrays["order"].tolist()
            right = (
                mask.dtype == bool
                and mask.ndim == 1
                and arrays["order"].dtype.kind == "i"
                and arrays["order"].ndim == 1
            )
            kinds: dict[str, Any] = {"faithfulness": (int, float), "done": bool, "note": str, "about": dict}
            if not right or not all(isinstance(known[key], kind) for key, kind in kinds.items()):
                raise ValueError("an array or a fact has an unexpected type")
            return cls(mask, order, known["faithfulness"], extra, known["done"], known["note"]), known[
                "about"
            ]
        except FileNotFoundError as exc:
            raise MechRLError(f"{path}: no such file; nothing to resume, start without --resume") from exc
        except (OSError, KeyError, TypeError, ValueError) as exc:
            raise MechRLError(
                f"{path}: not the state of a search, or damaged; start again without --resume"
            ) from exc


@dataclass
class Problem:
    """A behaviour of a model, the edges to choose from, and the f to reach."""

    model: Model
    behaviour: Behaviour
    engine: Engine  # on all discovery pairs
    pairs: Pairs  # the discovery pairs
    tau: float
    seed: int
    candidates: np.ndarray  # [n] ascending edges that the search may keep; all others are cut
    scores: np.ndarray | None = None  # [E] attribution by which the candidates were chosen
    checkpoint: Callable[[State], None] = lambda state: None  # progress, saving, and `Interrupted`
    minibatch: int | None = None  # judge on this many discovery pairs, redrawn from time to time
    calls: int = 0  # number of `judge` calls, saved with the state: it determines the current minibatch
    _batch: tuple[int, Engine] | None = field(default=None, repr=False)

    def judge(self, masks: np.ndarray) -> np.ndarray:
        """[C] float64: f, as the search sees it, of circuits [C, n] bool over the candidates."""
        engine = self.draw(self.calls // _CALLS_PER_MINIBATCH)
        self.calls += 1
        return engine.faithfulness(np.atleast_2d(masks), self.candidates).double().cpu().numpy()

    def draw(self, index: int) -> Engine:
        """The engine of minibatch `index`; without minibatches the engine of all discovery pairs."""
        if self.minibatch is None or self.minibatch >= len(self.pairs):
            return self.engine
        if self._batch is None or self._batch[0] != index:
            chosen = np.random.default_rng([self.seed, index]).choice(
                len(self.pairs), self.minibatch, replace=False
            )
            pairs, full = self.pairs.take(chosen.tolist()), self.engine
            self._batch = (index, Engine(self.model, pairs, tf32=full.tf32, ledger=full.ledger))
        return self._batch[1]

    @property
    def passes(self) -> float:
        """Passes spent so far: forward 1, backward 2, per circuit and 20 pairs."""
        return self.engine.passes
