"""What an interrupted episode leaves behind, and goes on from: one file, checked before anything is made of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mechrl.agents.planner.features import First
from mechrl.agents.planner.plan import Episode
from mechrl.errors import MechRLError
from mechrl.files import write_atomically
from mechrl.reading import count, number, parse_json
from mechrl.sealed import read_sealed, sealed


def _of_kind(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{str(value)[:40]!r} is of another kind")
    return value


_NUMBERS = ("first_f", "offset", "passes", "seconds")
_EPISODE: dict[str, Callable[[Any], Any]] = {
    **{name: number for name in ("f", "gap", "bias")},
    "rounds": count,
    "done": partial(_of_kind, kind=bool),
    "note": partial(_of_kind, kind=str),
}


@dataclass(frozen=True)
class Left:
    """Masks are over the candidates, as everywhere."""

    of: dict[str, Any]  # the model, the behaviour and the settings
    first: First  # [E] what the look at the whole graph has seen
    candidates: np.ndarray  # [n]
    first_mask: np.ndarray  # [n] the first circuit
    first_f: float
    episode: Episode
    best: tuple[np.ndarray, float] | None  # the smallest circuit that validation pairs accept, and f on them
    offset: float
    checked: int
    passes: float
    seconds: float

    def write(self, path: Path) -> None:
        n, episode = len(self.candidates), self.episode
        arrays = {
            "first": np.stack([self.first.mean, self.first.rms]),
            "candidates": self.candidates,
            "first_mask": np.packbits(self.first_mask),
            "mask": np.packbits(episode.mask),
            "path": np.packbits(np.array(episode.path, dtype=bool).reshape(-1, n), axis=1),
        }
        if self.best is not None:
            arrays["best"] = np.packbits(self.best[0])
        known = {name: getattr(episode, name) for name in _EPISODE} | {"of": self.of, "checked": self.checked}
        known |= {name: getattr(self, name) for name in _NUMBERS}
        known["best_f"] = None if self.best is None else self.best[1]
        write_atomically(path, sealed(arrays, {"planner": json.dumps(known)}))

    @classmethod
    def read(cls, path: Path, of: dict[str, Any], n_edges: int) -> Left:
        """Refuses what is damaged, and what another model, behaviour or settings have left."""
        try:
            arrays, texts = read_sealed(path)
            known = parse_json(texts["planner"])
            if known["of"] != of:
                raise MechRLError(
                    f"{path}: of another model, behaviour or settings; give the same options, or start without --resume"
                )
            return _left(arrays, known, n_edges)
        except FileNotFoundError as exc:
            raise MechRLError(f"{path}: no such file; nothing to resume, start without --resume") from exc
        except (OSError, KeyError, TypeError, ValueError) as exc:
            raise MechRLError(
                f"{path}: not the state of a planner, or damaged; start again without --resume"
            ) from exc


def _left(arrays: dict[str, np.ndarray], known: dict[str, Any], n_edges: int) -> Left:
    first, candidates = arrays["first"], arrays["candidates"]
    right = (
        first.shape == (2, n_edges)
        and first.dtype.kind == "f"
        and np.isfinite(first).all()
        and candidates.dtype == np.int64
        and candidates.ndim == 1
        and len(candidates) >= 1
        and (np.diff(candidates, prepend=-1) > 0).all()
        and candidates[-1] < n_edges
    )
    if not right:
        raise ValueError("the candidates, or what was seen of them first, are none")
    masks = {
        name: _unpacked(arrays[name], len(candidates)) for name in arrays.keys() - {"first", "candidates"}
    }
    episode = {name: kind(known[name]) for name, kind in _EPISODE.items()}
    numbers = {name: number(known[name]) for name in _NUMBERS}
    if min(numbers["passes"], numbers["seconds"]) < 0:
        raise ValueError("what it has cost is negative")
    for name in ("mask", "first_mask"):
        if masks[name].ndim != 1:
            raise ValueError(f"{name} is not one circuit")
    best = None
    if "best" in masks:
        if masks["best"].ndim != 1:
            raise ValueError("best is not one circuit")
        best = masks["best"], number(known["best_f"])
    if masks["path"].ndim != 2:
        raise ValueError("path is no list of circuits")
    whole = Episode(mask=masks["mask"], path=list(masks["path"]), **episode)
    return Left(
        of=known["of"],
        first=First(*first),
        candidates=candidates,
        first_mask=masks["first_mask"],
        episode=whole,
        best=best,
        checked=count(known["checked"]),
        **numbers,
    )


def _unpacked(bits: np.ndarray, n: int) -> np.ndarray:
    if bits.dtype != np.uint8 or bits.ndim not in (1, 2) or bits.shape[-1] != -(-n // 8):
        raise ValueError("a circuit is over other candidates")
    return np.unpackbits(bits, axis=-1, count=n).astype(bool)
