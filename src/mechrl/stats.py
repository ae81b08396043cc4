"""A mean and its spread. Tables never show one without the other."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (n − 1 in the denominator) of n values. A single value has no deviation."""

    mean: float
    sd: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        values = [float(v) for v in values]
        if not values:
            raise ValueError("a spread needs at least one value")
        mean = math.fsum(values) / len(values)
        if len(values) == 1:
            return cls(mean, None, 1)
        return cls(
            mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)), len(values)
        )

    def text(self, digits: int = 3) -> str:
        """`0.912 ± 0.004`; only the mean if there is no deviation."""
        return number(self.mean, digits) + ("" if self.sd is None else f" ± {number(self.sd, digits)}")


def number(value: float, digits: int) -> str:
    """Formats with thousands separators, and never as `-0.000`."""
    text = f"{value:,.{digits}f}"
    return text.removeprefix("-") if float(text.replace(",", "")) == 0 else text


def rank_p(value: float, draws: Iterable[float], tie: float = 1e-5) -> float:
    """(1 + draws ≤ value) / (1 + draws): P of a value so low, were it a draw like the others. Exact for any distribution.

    What differs by no more than `tie`, which is rounding, counts against it.
    """
    values = [float(draw) for draw in draws]
    return (1 + sum(draw <= value + tie for draw in values)) / (1 + len(values))


def hypergeometric_at_least(k: int, population: int, marked: int, drawn: int) -> float:
    """P(X ≥ k) for the number X of marked items among `drawn`, drawn at random without replacement."""
    ways = sum(
        math.comb(marked, i) * math.comb(population - marked, drawn - i)
        for i in range(max(k, 0), min(marked, drawn) + 1)
    )
    return ways / math.comb(population, drawn)
