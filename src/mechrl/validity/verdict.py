"""What a circuit is, in one line of five checks, each with its number, its chance level and its direction.

faithful        f on fresh pairs ≥ τ. Chance: f of random circuits of the candidates, as large after pruning (on discovery pairs)
necessary       with the circuit ablated less than half of f is left (the whole model's is 1), and less than with as many random
                candidates outside it (with the next best edges, if these are few): p ≤ 0.05. Lower is better
specific        f on discovery pairs is above that of the random circuits, p ≤ 0.05, and these reach less than half of it
stable          of 1,000 bootstraps of the fresh pairs nine in ten have f ≥ τ − 0.05. Chance: those of the empty circuit, which is 0
                whatever the pairs, so none
minimal         of the circuit's edges, or of 24 drawn from them, at most one in ten can go by itself with f ≥ τ on the pairs that the
                circuit had to hold on. Chance: the same of a circuit of as many edges of highest attribution. Lower is better

p is the circuit's rank among n random ones, (1 + those at least as good) / (1 + n), whatever their distribution: mean and deviation
would not do, as f of random circuits is often near 0 or near 1 and seldom between. Half is asked for besides, since a small difference
may be certain. Where a check fails by p alone the line says "not shown": more draws (--random) may show it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from mechrl.circuit import Circuit
from mechrl.engine import Engine
from mechrl.search.select import top_n
from mechrl.validity.checks import Control, Validity, validate
from mechrl.validity.setting import Setting, f_of

N_BOOTSTRAPS = 1000
N_EDGES = 24  # edges cut one by one
SLACK = 0.05  # below τ, in a bootstrap
LEVEL = 0.05  # of p
ENOUGH_BOOTSTRAPS, FEW_EDGES, HALF = 0.9, 0.1, 0.5


@dataclass(frozen=True)
class Check:
    name: str
    holds: bool
    value: float
    chance: float | None
    better: Literal["higher", "lower"]
    text: str  # the number, in words
    p: float | None = None  # of a random circuit doing at least as well
    fails: Literal["not", "not shown"] = "not"  # the word, if it does

    @property
    def line(self) -> str:
        """`necessary: f 0.02 with it ablated (chance 0.91, p 0.048, lower is better)`"""
        chance = "" if self.chance is None else f"chance {_short(self.chance)}, "
        p = "" if self.p is None else f"p {self.p:.2g}, "
        return f"{'' if self.holds else f'{self.fails} '}{self.name}: {self.text} ({chance}{p}{self.better} is better)"


@dataclass(frozen=True)
class ValidityVerdict:
    checks: tuple[Check, ...]

    @property
    def line(self) -> str:
        return "; ".join(check.line for check in self.checks)

    def __getitem__(self, name: str) -> Check:
        return next(check for check in self.checks if check.name == name)

    def to_json(self) -> list[dict[str, Any]]:
        return [vars(check) for check in self.checks]


def judged(circuit: Circuit, setting: Setting, found: Validity, seed: int = 0) -> Validity:
    """The battery's result with a verdict. `setting`: the circuit's own."""
    tau, graph = circuit.tau, setting.model.graph
    mask = graph.prune(circuit.mask)
    hard = next(c for c in found.specificity if (c.drawn_from, c.matched) == ("candidates", "pruned"))
    rng = np.random.default_rng(seed)
    kl = setting.test.kl(np.stack([mask, np.zeros_like(mask)])).double().cpu().numpy()  # [2, B]
    f = bootstraps(kl[0], kl[1], rng)
    stable = float((f >= tau - SLACK).mean())
    low, high = np.quantile(f, [0.05, 0.95])
    ranking = np.zeros_like(mask)
    ranking[top_n(setting.scores, int(mask.sum()))] = True
    deciding = setting.had_to_hold_on(circuit)
    spare, spare_top = (_removable(m, deciding, tau, rng) for m in (mask, graph.prune(ranking)))
    checks = (
        Check(
            "faithful",
            found.faithfulness_test >= tau,
            found.faithfulness_test,
            hard.f.mean,
            "higher",
            _f(found.faithfulness_test, tau),
        ),
        _necessary(found),
        _specific(found, hard),
        Check(
            "stable",
            stable >= ENOUGH_BOOTSTRAPS,
            stable,
            0.0,
            "higher",
            f"f {_short(low)} to {_short(high)} in bootstraps of the fresh pairs, {stable:.0%} of them ≥ {tau - SLACK:g}",
        ),
        Check(
            "minimal",
            spare <= FEW_EDGES,
            spare,
            spare_top,
            "lower",
            f"{spare:.0%} of its edges can go one by one with f ≥ {tau:g}",
        ),
    )
    return replace(found, verdict=ValidityVerdict(checks))


def _necessary(found: Validity) -> Check:
    gone, others = found.necessity < HALF, found.necessity_others
    nothing = "" if others else ", and there are too few other edges to compare it with"
    return Check(
        "necessary",
        gone and found.necessity_p <= LEVEL,
        found.necessity,
        None if others is None else others.mean,
        "lower",
        f"f {_short(found.necessity)} with it ablated{nothing}",
        found.necessity_p,
        "not shown" if gone else "not",
    )


def _specific(found: Validity, random: Control) -> Check:
    apart = random.f.mean < HALF * found.faithfulness
    return Check(
        "specific",
        apart and random.p <= LEVEL,
        found.faithfulness,
        random.f.mean,
        "higher",
        f"f {_short(found.faithfulness)} on discovery pairs",
        random.p,
        "not shown" if apart else "not",
    )


def validate_and_judge(
    circuit: Circuit,
    setting: Setting,
    n_random: int,
    seed: int = 0,
    report: Callable[[str], None] = lambda line: None,
) -> Validity:
    found = validate(circuit, setting.model, setting.behaviour, n_random, seed, report, setting)
    report("bootstraps, single edges")
    return judged(circuit, setting, found, seed)


def bootstraps(
    kl: np.ndarray, kl_cut: np.ndarray, rng: np.random.Generator, n: int = N_BOOTSTRAPS
) -> np.ndarray:
    """[n] f on as many pairs drawn again with replacement, from each pair's KL of the circuit and of the empty circuit."""
    drawn = rng.integers(len(kl), size=(n, len(kl)))
    f: np.ndarray = 1 - kl[drawn].mean(1) / kl_cut[drawn].mean(1)
    return f


def _removable(mask: np.ndarray, engine: Engine, tau: float, rng: np.random.Generator) -> float:
    """The share of a circuit's edges that can go by themselves with f ≥ τ; of all of them, or of `N_EDGES` drawn from them."""
    edges = np.flatnonzero(mask)
    if not len(edges):
        return 0.0
    chosen = rng.permutation(edges)[:N_EDGES]
    without = np.tile(mask, (len(chosen), 1))
    without[np.arange(len(chosen)), chosen] = False
    return float((f_of(engine, without) >= tau).mean())


def _f(f: float, tau: float) -> str:
    return f"f {_short(f)} {'≥' if f >= tau else '<'} {tau:g} on fresh pairs"


def _short(x: float) -> str:
    return f"{x:.2f}" if abs(x) >= 0.005 else "0.00"
