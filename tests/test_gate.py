"""The gate: exhibited or not, and why."""

from __future__ import annotations

import pytest
import torch

from mechrl import gate
from mechrl.behaviours import behaviours, get_behaviour
from mechrl.engine import Engine
from mechrl.errors import MechRLError
from mechrl.models import load_model
from tests.tiny import tiny


@pytest.fixture(scope="module")
def toy():
    return load_model("toy")


def test_the_numbers_are_those_of_the_plain_model(toy):
    behaviour = get_behaviour("gendered-pronoun")
    verdict = gate.judge(toy, behaviour, 10)
    pairs = behaviour.pairs(toy.tokenizer, 10, gate.TEST_SEED)
    engine = Engine(toy, pairs)
    answer = torch.tensor([a[0] for a in pairs.answers])
    foil = torch.tensor([f[0] for f in pairs.foils])
    rows = torch.arange(10)
    difference = engine.clean_logits[rows, answer] - engine.clean_logits[rows, foil]
    assert verdict.accuracy == pytest.approx(float((difference > 0).double().mean()))
    assert verdict.metric_clean == pytest.approx(float(difference.mean()), rel=1e-5)
    assert verdict.kl_cut == pytest.approx(engine.kl_cut)
    assert verdict.p_answer == pytest.approx(float(engine.clean_logits.softmax(-1)[rows, answer].mean()), rel=1e-5)


def test_toy_exhibits_every_behaviour(toy):
    for behaviour in behaviours(with_relations=False):
        gate.check(toy, behaviour)


def test_a_model_that_knows_nothing_exhibits_nothing(toy):
    shuffled = torch.randperm(toy.spec.vocab_size, generator=torch.Generator().manual_seed(0))
    from dataclasses import replace

    ignorant = replace(toy, unembedding=toy.unembedding[shuffled])
    with pytest.raises(MechRLError, match=r"does not exhibit 'ioi' \(accuracy .* --force"):
        gate.check(ignorant, get_behaviour("ioi"))


def test_no_tokenizer_no_question():
    with pytest.raises(MechRLError, match="no tokenizer"):
        gate.judge(tiny("gpt2"), get_behaviour("ioi"))
