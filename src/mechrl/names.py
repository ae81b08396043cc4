"""The names that users type, and suggestions for typos. No heavy imports: a typo is reported before torch is loaded."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

from mechrl.errors import MechRLError

GPT2 = {"gpt2": "12 layers", "gpt2-medium": "24 layers", "gpt2-large": "36 layers", "gpt2-xl": "48 layers"}
MODELS = ("toy", "smollm2", *GPT2)

Prefilter = Literal["metric", "kl", "union"]  # scores edges by the behaviour's own metric, KL, or both
PREFILTERS: tuple[Prefilter, ...] = get_args(Prefilter)
Agent = Literal["planner", "paper"]
ReproducedAgent = Literal["paper"]  # the agent whose tables `reproduce` makes
ScoredBy = Literal["metric", "kl"]  # what ranks the paper's candidates
SearchMethod = Literal["top-n", "greedy", "acdc", "edge-pruning", "matryoshka", "blockwise"]
SEARCH_METHODS: tuple[SearchMethod, ...] = get_args(SearchMethod)
HoldsOn = Literal["fresh", "discovery"]  # pairs on which f ≥ tau must hold; `fresh`: validation pairs judge
Bos = Literal["auto", "yes", "no"]  # do prompts start with a first token? `auto`: the model's own convention


def close(name: str, known: Sequence[str], cutoff: float = 0.6) -> str:
    """`did you mean greedy?`, or an empty string."""
    found = difflib.get_close_matches(name.lower(), known, n=2, cutoff=cutoff)
    return f"did you mean {' or '.join(found)}?" if found else ""


def one_of(what: str, value: str, known: Sequence[str]) -> str:
    """`value` if it is known; else an error that lists the known ones."""
    if value in known:
        return value
    hint = close(value, known)
    raise MechRLError(
        f"unknown {what} {value!r}; {hint + ' ' if hint else ''}choose one of {', '.join(known)}"
    )


def check_model(name: str) -> str:
    """Refuses a name that is nearly one of ours. Anything else may be a hub id, which only the hub can check."""
    if name in MODELS or "/" in name or name.endswith(".gguf"):
        return name
    with suppress(OSError, RuntimeError):  # a name that is too long
        if Path(name).exists():
            return name
    if hint := close(name, MODELS, 0.72):
        raise MechRLError(f"no model is called {name!r}: {hint} A hub id is OWNER/NAME")
    return name
