"""The gate: exhibited or not, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel

from mechrl import gate
from mechrl.behaviours import Behaviour, behaviours, get_behaviour
from mechrl.behaviours.base import metric_value
from mechrl.engine import Engine
from mechrl.errors import FileError, MechRLError
from mechrl.models import load_model
from mechrl.models.tokenizer import Tokenizer
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
    assert verdict.p_answer == pytest.approx(
        float(engine.clean_logits.softmax(-1)[rows, answer].mean()), rel=1e-5
    )


def test_toy_exhibits_every_behaviour(toy):
    for behaviour in behaviours(with_relations=False):
        gate.check(toy, behaviour)


def test_a_model_that_knows_nothing_exhibits_nothing(toy):
    shuffled = torch.randperm(toy.spec.vocab_size, generator=torch.Generator().manual_seed(0))
    ignorant = replace(toy, unembedding=toy.unembedding[shuffled])
    with pytest.raises(MechRLError, match=r"does not exhibit 'ioi' \(accuracy .* --force"):
        gate.check(ignorant, get_behaviour("ioi"))


NAMES = ["John", "Mary", "Paul", "Anna", "James", "Kate"]


def who(prefix: str = "When", end: str = "", wrong: bool = False) -> list[dict[str, str]]:
    """Rows that the toy model can do: who was given the book. `wrong`: answers that it never gives."""
    rows = []
    for a in NAMES:
        for b in NAMES:
            if a != b:
                rows.append(
                    {"clean": f"{prefix} {a} and {b} went to the store, {b} gave a book to{end}"}
                    | {"corrupt": f"{prefix} {a} and {b} went to the store, {a} gave a book to{end}"}
                    | (
                        {"answer": " store", "foil": " book"}
                        if wrong
                        else {"answer": f" {a}", "foil": f" {b}"}
                    )
                )
    return rows


def test_top1_and_the_probability_of_the_answer_are_measured(toy):
    behaviour = get_behaviour("greater-than")
    verdict = gate.judge(toy, behaviour, 12)
    pairs = behaviour.pairs(toy.tokenizer, 12, gate.TEST_SEED)
    best = Engine(toy, pairs).clean_logits.argmax(-1).tolist()
    assert verdict.top1 == sum(t in a for t, a in zip(best, pairs.answers, strict=True)) / 12
    assert verdict.opener == "<bos>" == toy.tokenizer.opening


def test_what_the_model_never_says_is_not_exhibited_however_it_ranks_the_foil(toy):
    """Accuracy only says that the answer beats the foil: of two tokens with next to no probability, one always does."""
    rows = who(wrong=True)
    pairs = Behaviour.from_pairs("mine", [row | {"part": "test"} for row in rows]).pairs(
        toy.tokenizer, 99, part="test"
    )
    ahead = (metric_value("logit-difference", Engine(toy, pairs).clean_logits, pairs) > 0).tolist()
    never = dict(zip((clean for clean, _ in pairs.texts), ahead, strict=True))
    rows = [
        row if never[row["clean"]] else row | {"answer": row["foil"], "foil": row["answer"]} for row in rows
    ]
    verdict = gate.judge(toy, Behaviour.from_pairs("mine", rows))
    assert verdict.accuracy == 1 and verdict.kl_cut >= gate.MIN_KL_CUT
    assert not verdict.exhibited and verdict.reason == "P(answer) 0.000 < 0.01" and verdict.top1 == 0


def test_a_space_at_the_end_is_warned_of(toy):
    assert any("ends with a space" in w for w in gate.of_rows(Behaviour.from_pairs("mine", who(end=" "))))
    assert not any("space" in w for w in gate.of_rows(Behaviour.from_pairs("mine", who())))


@pytest.mark.parametrize(("rows", "few"), [(6, True), (20, True), (40, False)])
def test_too_few_rows_are_warned_of(rows: int, few: bool):
    made = [{"clean": f"a {i}", "corrupt": f"b {i}", "answer": " x", "foil": " y"} for i in range(rows)]
    warnings = gate.of_rows(Behaviour.from_pairs("mine", made))
    assert any("forty rows" in w for w in warnings) == few


def test_rows_that_recur_are_said(toy):
    rows = who()
    mixed = [row | {"corrupt": other["clean"]} for row, other in zip(rows, rows[1:] + rows[:1], strict=True)]
    assert any(
        "share a corrupted prompt with another part" in w
        for w in gate.of_rows(Behaviour.from_pairs("mine", mixed))
    )


def test_a_broken_file_is_no_verdict_on_the_model(toy):
    rows = [*who()[:5], who()[5] | {"answer": " went to"}]
    with pytest.raises(FileError, match="mine, row 6: the answer ' went to' is not a single token"):
        gate.check(toy, Behaviour.from_pairs("mine", rows))


def test_a_template_that_cannot_be_built_is_not_offered_force(toy):
    mute = Backend(WordLevel({"<unk>": 0}, unk_token="<unk>"))
    with pytest.raises(MechRLError) as caught:
        gate.check(replace(toy, tokenizer=Tokenizer(mute, None)), get_behaviour("ioi"))
    assert "cannot be built" in str(caught.value) and "--force" not in str(caught.value)


def test_the_other_first_token_is_tried_where_the_model_fails(toy):
    """The toy model was trained on prompts that start with <bos>; with that token's embedding times −30, it does better without."""
    bare = gate.judge(replace(toy, tokenizer=toy.tokenizer.opened("no")), get_behaviour("ioi"))
    assert not bare.exhibited and bare.opener == ""
    assert any("with '<bos>' in front accuracy is 1.00" in w and "try --bos yes" in w for w in bare.warnings)
    turned = toy.embedding.clone()
    turned[toy.tokenizer.bos] *= -30
    worse = gate.judge(replace(toy, embedding=turned), get_behaviour("subject-verb"))
    assert any("try --bos no" in w for w in worse.warnings)
    with pytest.raises(
        MechRLError,
        match=r"does not exhibit 'ioi' .*try --bos yes; see `mechrl behaviours -b ioi --model toy`",
    ):
        gate.check(replace(toy, tokenizer=toy.tokenizer.opened("no")), get_behaviour("ioi"))


def test_no_tokenizer_no_question():
    with pytest.raises(MechRLError, match="no tokenizer"):
        gate.judge(tiny("gpt2"), get_behaviour("ioi"))
