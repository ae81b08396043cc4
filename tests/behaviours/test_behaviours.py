"""The list of behaviours, their known components, and the metrics."""

from __future__ import annotations

import pytest
import torch

from mechrl.behaviours import Behaviour, Pairs, accuracy, behaviours, get_behaviour, metric_value
from mechrl.errors import MechRLError
from mechrl.graph import Graph

TRAIN = [
    f"{family}{variant}"
    for family in ("ioi", "greater-than", "docstring")
    for variant in ("", "-2", "-3", "-4")
]
HELD_OUT = [
    "gendered-pronoun",
    "subject-verb",
    "acronyms",
    "simple-syllogism",
    "opposite-syllogism",
    "country-capital",
    "multiple-choice",
]


def test_the_papers_nineteen_come_first() -> None:
    assert [b.name for b in behaviours("train")] == TRAIN
    assert [b.name for b in behaviours("held-out")] == HELD_OUT
    names = [b.name for b in behaviours(with_relations=False)]
    assert names[:19] == TRAIN + HELD_OUT and names[-1] == "induction" and len(names) == 23


def test_known_components_are_in_gpt2s_graph_and_counted_as_in_the_paper() -> None:
    sources = set(Graph(12, 12, 12).source_names)
    for behaviour in behaviours():
        components = [known.component for known in behaviour.known]
        assert len(set(components)) == len(components) and set(components) <= sources
    # the paper's Table 2; IOI's 26 heads are Wang et al.'s
    counts = {
        "gendered-pronoun": 7,
        "subject-verb": 12,
        "acronyms": 8,
        "simple-syllogism": 5,
        "opposite-syllogism": 9,
    }
    for name, count in {**counts, "multiple-choice": 3, "ioi": 26, "docstring": 0}.items():
        assert len(get_behaviour(name).known) == count


def test_names_are_looked_up() -> None:
    assert get_behaviour("ioi-3") is behaviours()[2]
    with pytest.raises(MechRLError, match="unknown behaviour 'greater-then': did you mean greater-than"):
        get_behaviour("greater-then")
    with pytest.raises(MechRLError, match="unknown behaviour 'xyzzy': `mechrl behaviours --list` shows"):
        get_behaviour("xyzzy")


# ---- measures -------------------------------------------------------------------------------------------------------


def some_pairs(answers: tuple[tuple[int, ...], ...], foils: tuple[tuple[int, ...], ...]) -> Pairs:
    n = len(answers)
    return Pairs(((0,),) * n, ((1,),) * n, answers, foils, (("a", "b"),) * n)


def test_measures_against_a_loop() -> None:
    pairs = some_pairs(((1,), (2, 3), (0, 4, 5)), ((0, 2), (5,), (1, 2, 3)))
    logits = torch.randn(2, 4, 3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    probabilities = logits.softmax(-1)
    difference = metric_value("logit-difference", logits, pairs)
    probability = metric_value("probability-difference", logits, pairs)
    right, more_probable = accuracy(logits, pairs), accuracy(logits, pairs, "probability-difference")
    assert difference.shape == probability.shape == (2, 4, 3) and right.shape == (2, 4)
    for i in range(2):
        for j in range(4):
            correct, heavier = [], []
            for b in range(3):
                answers, foils = list(pairs.answers[b]), list(pairs.foils[b])
                now, p = logits[i, j, b], probabilities[i, j, b]
                torch.testing.assert_close(difference[i, j, b], now[answers].mean() - now[foils].mean())
                torch.testing.assert_close(probability[i, j, b], p[answers].sum() - p[foils].sum())
                correct.append(float(now[answers].max() > now[foils].max()))
                heavier.append(float(p[answers].sum() > p[foils].sum()))
            assert right[i, j].item() == pytest.approx(sum(correct) / 3)
            assert more_probable[i, j].item() == pytest.approx(sum(heavier) / 3)


def test_kl_is_zero_for_the_clean_run_and_negative_otherwise() -> None:
    pairs = some_pairs(((1,), (2,)), ((0,), (0,)))
    clean, other = torch.randn(2, 2, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(metric_value("kl", clean, pairs, clean), torch.zeros(2, dtype=torch.float64))
    p, q = clean.softmax(-1), other.softmax(-1)
    torch.testing.assert_close(metric_value("kl", other, pairs, clean), -(p * (p / q).log()).sum(-1))
    with pytest.raises(ValueError, match="clean_logits"):
        metric_value("kl", other, pairs)


def test_measures_have_gradients() -> None:
    logits = torch.zeros(1, 3, requires_grad=True)
    metric_value("logit-difference", logits, some_pairs(((1,),), ((0, 2),))).sum().backward()
    assert logits.grad is not None and logits.grad.tolist() == [[-0.5, 1.0, -0.5]]


def test_some_of_the_pairs() -> None:
    pairs = some_pairs(((1,), (2,), (3,)), ((0,), (0,), (0,)))
    assert pairs.take(range(1, 3)).answers == ((2,), (3,)) and len(pairs.take(i for i in (2, 0))) == 2


def test_a_behaviour_in_a_few_lines() -> None:
    from tests.behaviours.tokenizers import gpt2

    rows = [
        {"clean": f"The {x} is", "corrupt": f"The {x} are", "answer": [" a", " the"], "foil": " not"}
        for x in ("cat", "dog", "cow", "hen")
    ]
    behaviour = Behaviour.from_pairs("articles", rows)
    assert (behaviour.name, behaviour.family, behaviour.metric) == ("articles", "custom", "logit-difference")
    pairs = behaviour.pairs(gpt2(), 2)
    assert len(pairs) == 2 and pairs.answers[0] == (257, 262)
