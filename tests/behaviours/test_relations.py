"""Few-shot relations: invariants of their words and pairs, and SmolLM2 exhibits each of them."""

from __future__ import annotations

import itertools
import json
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechrl import gate
from mechrl.behaviours import PARTS, Behaviour, behaviours, get_behaviour, relations, words
from mechrl.errors import MechRLError
from mechrl.models import load_model
from mechrl.models.tokenizer import Tokenizer
from tests.behaviours import tokenizers

RELATIONS = relations.BEHAVIOURS
ALL = pytest.mark.parametrize("behaviour", RELATIONS, ids=lambda behaviour: behaviour.name)


def words_of(behaviour: Behaviour) -> dict[str, str]:
    assert isinstance(behaviour.source, partial)
    return dict(behaviour.source.args[0])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tokenizers.smollm2()


def test_they_are_behaviours_like_any_other() -> None:
    assert behaviours()[-len(RELATIONS) :] == RELATIONS
    assert behaviours(with_relations=False) + RELATIONS == behaviours()
    assert get_behaviour("comparative") is RELATIONS[0]
    assert not {b.family for b in RELATIONS} & {b.family for b in behaviours(with_relations=False)}
    names = [b.name for b in behaviours()]
    assert len(set(names)) == len(names)


def test_the_embedded_models_words_are_those_it_was_trained_on() -> None:
    tokenizer = load_model("toy").tokenizer
    assert tokenizer is not None
    split = tokenizer.backend.pre_tokenizer.pre_tokenize_str
    asked = set(words(lambda text: [piece for piece, _ in split(text)]))
    assert asked - {"00"} <= set(tokenizer.backend.get_vocab())  # no year of the templates ends in 00


@ALL
def test_words_are_asked_about_once(behaviour: Behaviour) -> None:
    assert isinstance(behaviour.source, partial)
    pairs = behaviour.source.args[0]
    assert len(words_of(behaviour)) == len(pairs) and 12 <= len(pairs) <= 46
    assert all(word == word.strip() and word.isalnum() for pair in pairs for word in pair)


@pytest.mark.real
@ALL
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**40), part=st.sampled_from(PARTS))
def test_pairs_are_sound(tokenizer: Tokenizer, behaviour: Behaviour, seed: int, part) -> None:
    answer_of = words_of(behaviour)
    pairs = behaviour.pairs(tokenizer, 20, seed, part)
    assert pairs == behaviour.pairs(tokenizer, 20, seed, part) and len(set(pairs.texts)) == 20
    for clean, corrupt, (answer,), (foil,), texts in zip(
        pairs.clean, pairs.corrupt, pairs.answers, pairs.foils, pairs.texts, strict=True
    ):
        assert len(clean) == len(corrupt) and answer != foil
        (*shots, query), (*same, other) = (text.split("\n") for text in texts)
        assert shots == same and len(set(shots)) == relations.SHOTS
        assert all(answer_of[first] == second for first, second in (shot.split(" -> ") for shot in shots))
        query, other = query.removesuffix(" ->"), other.removesuffix(" ->")
        assert not {query, other} & {word for shot in shots for word in shot.split(" -> ")}
        assert (
            tokenizer.decode([answer]) == f" {answer_of[query]}"
            and tokenizer.decode([foil]) == f" {answer_of[other]}"
        )


@pytest.mark.real
@ALL
def test_parts_have_hundreds_and_share_nothing(tokenizer: Tokenizer, behaviour: Behaviour) -> None:
    prompts = []
    for part in PARTS:
        pairs = behaviour.pairs(tokenizer, 200, part=part)
        assert len(set(pairs.texts)) == 200
        prompts.append({prompt for text in pairs.texts for prompt in text})
    for one, other in itertools.combinations(prompts, 2):
        assert not one & other


@ALL
def test_without_the_words_there_are_no_pairs(behaviour: Behaviour) -> None:
    with pytest.raises(MechRLError, match=f"'{behaviour.name}' cannot be built for this tokenizer: .*words"):
        behaviour.pairs(tokenizers.word_level())


def test_toy_exhibits_none_and_says_why() -> None:
    toy = load_model("toy")
    for behaviour in RELATIONS:
        verdict = gate.judge(toy, behaviour)
        assert not verdict.exhibited and "cannot be built for this tokenizer" in verdict.reason


@ALL
def test_gpt2_has_the_words(behaviour: Behaviour) -> None:
    for part in PARTS:
        assert len(behaviour.pairs(tokenizers.gpt2(), 50, part=part)) == 50


@pytest.fixture(scope="module")
def table() -> dict[str, dict]:
    """Stored output of `mechrl behaviours --model smollm2 --json`."""
    path = Path(__file__).parents[2] / "benchmarks" / "gate" / "smollm2.json"
    return {row["name"]: row for row in json.loads(path.read_text())}


def test_smollm2_exhibits_every_one(table: dict[str, dict]) -> None:
    assert set(table) == {behaviour.name for behaviour in behaviours()}
    for row in (table[behaviour.name] for behaviour in RELATIONS):
        assert row["exhibited"] and row["pairs"] == gate.N_PAIRS
        assert row["accuracy"] >= gate.MIN_ACCURACY and row["p_answer"] >= gate.MIN_P_ANSWER
        assert row["kl_cut"] >= gate.MIN_KL_CUT


@pytest.mark.real
@pytest.mark.slow
def test_the_table_says_what_smollm2_does(table: dict[str, dict]) -> None:
    """Three of them are measured again; all would take minutes."""
    model = load_model("smollm2")
    for behaviour in RELATIONS[::12]:
        verdict = gate.judge(model, behaviour).to_json()
        for name, value in table[behaviour.name].items():
            assert verdict[name] == (pytest.approx(value, rel=1e-3) if isinstance(value, float) else value)
