"""The paper's numbers on GPT-2 small: what `mechrl reproduce --model gpt2` prints beside its own.

Source: Khadka, *MechRL: Reinforcement Learning Agents perform Circuit Discovery for Mechanistic Interpretability*: its tables, and for
ceilings and ACDC's sweep the results stored with its published code. 20 pairs, K = 3000, f ≥ 0.9.
"""

from __future__ import annotations

from typing import NamedTuple

Size = tuple[int, float]  # |C|, f
Cost = tuple[int, float, int]  # |C|, f, passes


class Ceilings(NamedTuple):
    """c_i of the behaviours' table, one value or the range over a family's variants; f of the 3000 best edges by metric and by KL."""

    stated: float | tuple[float, float]
    metric: float
    kl: float


class Transfer(NamedTuple):
    zero_shot: tuple[float, int]  # f, |C|
    warm: tuple[float, int]
    components: tuple[int, int] | None  # recovered, known


class Comparison(NamedTuple):
    acdc: Cost
    greedy_metric: Size  # EAP-IG greedy
    greedy_kl: Size
    policy: Cost


CEILINGS = {
    "ioi": Ceilings((0.93, 0.99), 0.951, 0.92),
    "greater-than": Ceilings((0.95, 0.98), 0.98, 0.977),
    "docstring": Ceilings((0.85, 0.92), 0.917, 0.873),
    "gendered-pronoun": Ceilings(1.0, 0.996, 0.997),
    "subject-verb": Ceilings(0.97, 0.958, 0.961),
    "acronyms": Ceilings(0.99, 0.98, 0.982),
    "simple-syllogism": Ceilings(0.93, 0.898, 0.811),
    "opposite-syllogism": Ceilings(0.92, 0.917, 0.945),
    "country-capital": Ceilings(0.92, 0.893, 0.925),
    "multiple-choice": Ceilings(0.95, 0.842, 0.94),
}

TRANSFER = {
    "gendered-pronoun": Transfer((0.997, 628), (0.995, 390), (7, 7)),
    "subject-verb": Transfer((0.92, 480), (0.937, 440), (11, 12)),
    "acronyms": Transfer((0.956, 491), (0.957, 445), (7, 8)),
    "simple-syllogism": Transfer((0.826, 1175), (0.92, 290), (5, 5)),
    "opposite-syllogism": Transfer((0.847, 779), (0.943, 700), (9, 9)),
    "country-capital": Transfer((0.843, 753), (0.892, 650), None),
    "multiple-choice": Transfer((0.874, 819), (0.933, 700), (3, 3)),
}

COMPARISON = {
    "ioi": Comparison((211, 0.9, 11918), (1000, 0.91), (1500, 0.91), (1123, 0.96, 2528)),
    "greater-than": Comparison((84, 0.94, 4383), (100, 0.93), (100, 0.92), (464, 0.98, 2529)),
    "docstring": Comparison((502, 0.94, 19940), (2000, 0.9), (3000, 0.87), (725, 0.89, 2448)),
    "gendered-pronoun": Comparison((67, 0.94, 4155), (100, 0.98), (100, 0.98), (390, 0.99, 2422)),
    "subject-verb": Comparison((163, 0.91, 6590), (700, 0.92), (700, 0.92), (440, 0.94, 2539)),
    "acronyms": Comparison((103, 0.94, 3401), (100, 0.91), (100, 0.9), (445, 0.96, 2427)),
    "simple-syllogism": Comparison((108, 0.93, 7682), (3000, 0.9), (3000, 0.87), (290, 0.92, 2446)),
    "opposite-syllogism": Comparison((155, 0.92, 9782), (2000, 0.9), (3000, 0.95), (700, 0.94, 2494)),
    "country-capital": Comparison((113, 0.72, 5171), (3000, 0.89), (3000, 0.92), (650, 0.89, 2364)),
    "multiple-choice": Comparison((217, 0.94, 9599), (2000, 0.91), (2000, 0.91), (700, 0.93, 2551)),
}

ACDC_THRESHOLDS: tuple[float, ...] = (0.001, 0.003, 0.01)

# at each threshold
ACDC: dict[str, tuple[Cost, ...]] = {
    "ioi": ((561, 0.979, 16886), (359, 0.956, 15428), (211, 0.9, 11918)),
    "greater-than": ((147, 0.97, 6866), (84, 0.942, 4383), (52, 0.849, 2886)),
    "docstring": ((502, 0.936, 19940), (242, 0.866, 14912), (95, 0.681, 8323)),
    "gendered-pronoun": ((110, 0.993, 5330), (79, 0.98, 4629), (67, 0.937, 4155)),
    "subject-verb": ((163, 0.906, 6590), (123, 0.812, 4928), (70, 0.547, 3249)),
    "acronyms": ((328, 0.982, 12896), (194, 0.969, 7835), (103, 0.938, 3401)),
    "simple-syllogism": ((224, 0.966, 13688), (108, 0.925, 7682), (28, 0.724, 3968)),
    "opposite-syllogism": ((280, 0.964, 13310), (155, 0.919, 9782), (58, 0.665, 5617)),
    "country-capital": ((113, 0.725, 5171), (38, 0.485, 3094), (11, 0.293, 1347)),
    "multiple-choice": ((475, 0.995, 13721), (308, 0.991, 12404), (217, 0.943, 9599)),
}

# A deterministic row agrees if both hold: prompts differ, so it cannot be exact
TOLERANCE_F, TOLERANCE_SIZE = 0.03, 0.15
