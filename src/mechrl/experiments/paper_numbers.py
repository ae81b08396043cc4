"""The paper's numbers on GPT-2 small: what `mechrl reproduce --model gpt2` prints beside its own.

Source: Khadka, *MechRL: Reinforcement Learning Agents perform Circuit Discovery for Mechanistic Interpretability*: its tables, and for
ceilings, ACDC's sweep and the greedy curves the results stored with its published code. 20 pairs, K = 3000, f ≥ 0.9.
"""

from __future__ import annotations

from typing import Any

# c_i of the behaviours' table: one value, or the range over a family's variants
CEILING: dict[str, float | tuple[float, float]] = {
    "ioi": (0.93, 0.99),
    "greater-than": (0.95, 0.98),
    "docstring": (0.85, 0.92),
    "gendered-pronoun": 1.0,
    "subject-verb": 0.97,
    "acronyms": 0.99,
    "simple-syllogism": 0.93,
    "opposite-syllogism": 0.92,
    "country-capital": 0.92,
    "multiple-choice": 0.95,
}

# f of the 3000 best edges by the behaviour's own metric ...
CEILING_METRIC: dict[str, float] = {
    "ioi": 0.951,
    "greater-than": 0.98,
    "docstring": 0.917,
    "gendered-pronoun": 0.996,
    "subject-verb": 0.958,
    "acronyms": 0.98,
    "simple-syllogism": 0.898,
    "opposite-syllogism": 0.917,
    "country-capital": 0.893,
    "multiple-choice": 0.842,
}

# ... and by KL
CEILING_KL: dict[str, float] = {
    "ioi": 0.92,
    "greater-than": 0.977,
    "docstring": 0.873,
    "gendered-pronoun": 0.997,
    "subject-verb": 0.961,
    "acronyms": 0.982,
    "simple-syllogism": 0.811,
    "opposite-syllogism": 0.945,
    "country-capital": 0.925,
    "multiple-choice": 0.94,
}

# (f, |C|) zero-shot and warm, f of the controls, (recovered, known) components
TRANSFER: dict[str, dict[str, Any]] = {
    "gendered-pronoun": {
        "zero_shot": (0.997, 628),
        "warm": (0.995, 390),
        "necessity": 0.0,
        "specificity": 0.0,
        "components": (7, 7),
    },
    "subject-verb": {
        "zero_shot": (0.92, 480),
        "warm": (0.937, 440),
        "necessity": 0.0,
        "specificity": 0.0,
        "components": (11, 12),
    },
    "acronyms": {
        "zero_shot": (0.956, 491),
        "warm": (0.957, 445),
        "necessity": 0.0,
        "specificity": 0.0,
        "components": (7, 8),
    },
    "simple-syllogism": {
        "zero_shot": (0.826, 1175),
        "warm": (0.92, 290),
        "necessity": 0.04,
        "specificity": 0.0,
        "components": (5, 5),
    },
    "opposite-syllogism": {
        "zero_shot": (0.847, 779),
        "warm": (0.943, 700),
        "necessity": -0.05,
        "specificity": 0.0,
        "components": (9, 9),
    },
    "country-capital": {
        "zero_shot": (0.843, 753),
        "warm": (0.892, 650),
        "necessity": 0.0,
        "specificity": 0.0,
        "components": None,
    },
    "multiple-choice": {
        "zero_shot": (0.874, 819),
        "warm": (0.933, 700),
        "necessity": -0.01,
        "specificity": 0.0,
        "components": (3, 3),
    },
}

# ACDC and policy: (|C|, f, passes); EAP-IG greedy by logit difference and by KL: (|C|, f)
COMPARISON: dict[str, dict[str, tuple[Any, ...]]] = {
    "ioi": {
        "acdc": (211, 0.9, 11918),
        "greedy_ld": (1000, 0.91),
        "greedy_kl": (1500, 0.91),
        "policy": (1123, 0.96, 2528),
    },
    "greater-than": {
        "acdc": (84, 0.94, 4383),
        "greedy_ld": (100, 0.93),
        "greedy_kl": (100, 0.92),
        "policy": (464, 0.98, 2529),
    },
    "docstring": {
        "acdc": (502, 0.94, 19940),
        "greedy_ld": (2000, 0.9),
        "greedy_kl": (3000, 0.87),
        "policy": (725, 0.89, 2448),
    },
    "gendered-pronoun": {
        "acdc": (67, 0.94, 4155),
        "greedy_ld": (100, 0.98),
        "greedy_kl": (100, 0.98),
        "policy": (390, 0.99, 2422),
    },
    "subject-verb": {
        "acdc": (163, 0.91, 6590),
        "greedy_ld": (700, 0.92),
        "greedy_kl": (700, 0.92),
        "policy": (440, 0.94, 2539),
    },
    "acronyms": {
        "acdc": (103, 0.94, 3401),
        "greedy_ld": (100, 0.91),
        "greedy_kl": (100, 0.9),
        "policy": (445, 0.96, 2427),
    },
    "simple-syllogism": {
        "acdc": (108, 0.93, 7682),
        "greedy_ld": (3000, 0.9),
        "greedy_kl": (3000, 0.87),
        "policy": (290, 0.92, 2446),
    },
    "opposite-syllogism": {
        "acdc": (155, 0.92, 9782),
        "greedy_ld": (2000, 0.9),
        "greedy_kl": (3000, 0.95),
        "policy": (700, 0.94, 2494),
    },
    "country-capital": {
        "acdc": (113, 0.72, 5171),
        "greedy_ld": (3000, 0.89),
        "greedy_kl": (3000, 0.92),
        "policy": (650, 0.89, 2364),
    },
    "multiple-choice": {
        "acdc": (217, 0.94, 9599),
        "greedy_ld": (2000, 0.91),
        "greedy_kl": (2000, 0.91),
        "policy": (700, 0.93, 2551),
    },
}

ACDC_THRESHOLDS: tuple[float, ...] = (0.001, 0.003, 0.01)

# (|C|, f, passes) at each threshold
ACDC: dict[str, tuple[tuple[int, float, int], ...]] = {
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

GREEDY_SIZES: tuple[int, ...] = (50, 100, 200, 400, 700, 1000, 1500, 2000, 3000)

# f of EAP-IG greedy by the behaviour's own metric at those sizes
GREEDY_METRIC: dict[str, tuple[float, ...]] = {
    "ioi": (0.208, 0.416, 0.518, 0.662, 0.857, 0.91, 0.942, 0.953, 0.952),
    "greater-than": (0.743, 0.933, 0.96, 0.968, 0.973, 0.968, 0.976, 0.975, 0.979),
    "docstring": (0.341, 0.609, 0.727, 0.822, 0.861, 0.868, 0.893, 0.9, 0.918),
    "simple-syllogism": (0.129, 0.463, 0.466, 0.552, 0.648, 0.717, 0.784, 0.771, 0.897),
}

PASSES: dict[str, float] = {
    "policy_training_passes": 614400,
    "deployment_passes": 2528,
    "warm_start_passes": 40960,
}

# A deterministic row agrees if both hold: prompts differ, so it cannot be exact
TOLERANCE_F, TOLERANCE_SIZE = 0.03, 0.15
