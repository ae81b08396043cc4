"""How large numbers may be: one definition for every command, and for what is read from files. Beyond these nothing can be computed."""

from __future__ import annotations

MOST_SEED = 2**32 - 1  # numpy's old generators and torch take no more
MOST_PAIRS = 100_000  # of one behaviour
