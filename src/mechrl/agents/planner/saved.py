"""An interrupted session on disk: one file, checked before anything is made of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mechrl.agents.planner.episode import Episode
from mechrl.agents.planner.features import First
from mechrl.agents.planner.look import GROUPS
from mechrl.errors import MechRLError
from mechrl.files import write_atomically
from mechrl.files.reading import parse_json
from mechrl.files.sealed import read_sealed, sealed

_NUMBERS = ("first_f", "offset", "judged", "again", "passes", "seconds")
_EPISODE = ("f", "gap", "bias", "excess", "measured_at", "rounds", "done", "note")


@dataclass(frozen=True)
class SavedSession:
    """Masks are over the candidates, as everywhere."""

    of: dict[str, Any]  # the model, the behaviour and the settings
    first: First  # [E] what the look at the whole graph has seen
    candidates: np.ndarray  # [n]
    first_mask: np.ndarray  # [n] the first circuit
    first_f: float
    episode: Episode
    best: tuple[np.ndarray, float] | None  # what validation pairs have said: see `Fresh`
    offset: float
    judged: int
    again: bool
    passes: float
    seconds: float

    def write(self, path: Path) -> None:
        n, episode = len(self.candidates), self.episode
        arrays = {
            "first": np.stack([self.first.mean, self.first.rms]),
            "candidates": self.candidates,
            "first_mask": np.packbits(self.first_mask),
            "mask": np.packbits(episode.mask),
            "measured": episode.measured,
            "path": np.packbits(np.array(episode.path, dtype=bool).reshape(-1, n), axis=1),
        }
        if episode.path_mask is not None and episode.path_gains is not None:
            arrays |= {"path_mask": np.packbits(episode.path_mask), "path_gains": episode.path_gains}
        if self.best is not None:
            arrays["best"] = np.packbits(self.best[0])
        known = {name: getattr(episode, name) for name in _EPISODE} | {"of": self.of}
        known |= {name: getattr(self, name) for name in _NUMBERS}
        known["best_f"] = None if self.best is None else self.best[1]
        write_atomically(path, sealed(arrays, {"planner": json.dumps(known)}))

    @classmethod
    def read(cls, path: Path, of: dict[str, Any], n_edges: int) -> SavedSession:
        """Refuses a damaged file, and one of another model, behaviour or settings."""
        try:
            arrays, texts = read_sealed(path)
            known = parse_json(texts["planner"])
            if known["of"] != of:
                raise MechRLError(
                    f"{path}: of another model, behaviour or settings; give the same options, or start without --resume"
                )
            return _session(arrays, known, n_edges)
        except FileNotFoundError as exc:
            raise MechRLError(f"{path}: no such file; nothing to resume, start without --resume") from exc
        except (OSError, KeyError, TypeError, ValueError) as exc:
            raise MechRLError(
                f"{path}: not the state of a planner, or damaged; start again without --resume"
            ) from exc


def _session(arrays: dict[str, np.ndarray], known: dict[str, Any], n_edges: int) -> SavedSession:
    """The checksum says that it is what was written; what remains to check is whether it fits this model."""
    first, candidates = arrays["first"], arrays["candidates"]
    if first.shape != (2, n_edges):
        raise ValueError("of another graph")
    if arrays["measured"].shape not in ((0,), candidates.shape):
        raise ValueError("of other candidates")
    path_gains = arrays.get("path_gains")
    if path_gains is not None and path_gains.shape != (GROUPS, len(candidates)):
        raise ValueError("gradients of other candidates")
    masks = {
        name: np.unpackbits(arrays[name], axis=-1, count=len(candidates)).astype(bool)
        for name in arrays.keys() - {"first", "candidates", "measured", "path_gains"}
    }
    episode = {name: known[name] for name in _EPISODE}
    return SavedSession(
        of=known["of"],
        first=First(*first),
        candidates=candidates,
        first_mask=masks["first_mask"],
        episode=Episode(
            mask=masks["mask"],
            path=list(masks["path"]),
            measured=arrays["measured"],
            path_mask=masks.get("path_mask"),
            path_gains=path_gains,
            **episode,
        ),
        best=(masks["best"], known["best_f"]) if "best" in masks else None,
        **{name: known[name] for name in _NUMBERS},
    )
