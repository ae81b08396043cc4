"""The ranges of numbers, for every command and for everything read from files. Beyond these nothing can be computed."""

from __future__ import annotations

from mechrl.errors import MechRLError

MOST_SEED = 2**32 - 1  # the limit of numpy's old generators and of torch
MOST_PAIRS = 100_000  # of one behaviour
MOST_EDGES = 100_000_000  # candidates
MOST_STEPS = 100_000_000  # iterations, transitions and decisions
MOST_AT_ONCE = 100_000  # parallel episodes, rollouts and circuits
MOST_WIDTH = 4096  # of a policy's hidden layers
MOST_JOBS = 4096
MOST_SECONDS = 1e9  # thirty years
MOST_COEFFICIENT = 1e6  # for weights and coefficients


def check_seed(seed: int) -> int:
    if not 0 <= seed <= MOST_SEED:
        raise MechRLError(f"a seed lies between 0 and 2**32 - 1, and is not {seed}")
    return seed
