"""Invariants of the pairs of every behaviour, for every seed and every kind of tokenizer."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechrl.behaviours import DISCOVERY_SEED, PARTS, TEST_SEED, VALIDATION_SEED, Behaviour, behaviours
from mechrl.errors import MechRLError
from mechrl.models.tokenizer import Tokenizer
from tests.behaviours import tokenizers

ALL = pytest.mark.parametrize(
    "behaviour", behaviours(with_relations=False), ids=lambda behaviour: behaviour.name
)
KINDS = ("word_level", "gpt2", pytest.param("smollm2", marks=pytest.mark.real))
CAPITALS_ARE_FEW = {"country-capital"}


@pytest.fixture(params=KINDS, scope="module")
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return getattr(tokenizers, request.param)()


@ALL
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**40), n=st.integers(1, 30), part=st.sampled_from(PARTS))
def test_pairs_are_sound(tokenizer: Tokenizer, behaviour: Behaviour, seed: int, n: int, part) -> None:
    pairs = behaviour.pairs(tokenizer, n, seed, part)
    assert pairs == behaviour.pairs(tokenizer, n, seed, part)
    assert len(pairs) == n
    assert len(set(pairs.texts)) == len(set(zip(pairs.clean, pairs.corrupt, strict=True))) == n
    unk = tokenizer.backend.token_to_id("<unk>")
    for clean, corrupt, answers, foils, texts in zip(
        pairs.clean, pairs.corrupt, pairs.answers, pairs.foils, pairs.texts, strict=True
    ):
        assert (list(clean), list(corrupt)) == tuple(tokenizer.prompt(text) for text in texts)
        assert len(clean) == len(corrupt) and clean != corrupt
        assert clean[0] == corrupt[0] == tokenizer.bos
        assert answers and foils and not set(answers) & set(foils)
        assert len(set(answers)) == len(answers) and len(set(foils)) == len(foils)
        assert unk is None or unk not in {*clean, *corrupt, *answers, *foils}
        assert all(0 <= token < tokenizer.vocab_size for token in (*answers, *foils))
        for token in (*answers, *foils):  # a single token, in a BPE with the space before it
            assert tokenizer.single(tokenizer.decode([token])) == token


@ALL
def test_parts_have_hundreds_and_share_nothing(tokenizer: Tokenizer, behaviour: Behaviour) -> None:
    """For any number of pairs and any seeds, no clean prompt of one part is in another."""
    cleans = []
    for part in PARTS:
        many, others = (
            behaviour.pairs(tokenizer, 200, part=part),
            behaviour.pairs(tokenizer, 50, TEST_SEED, part),
        )
        assert len(many) == 200 or (behaviour.name in CAPITALS_ARE_FEW and len(many) >= 100)
        cleans.append({text for text, _ in many.texts + others.texts})
    for one, other in itertools.combinations(cleans, 2):
        assert not one & other


@ALL
def test_named_seeds_stand_for_their_parts(tokenizer: Tokenizer, behaviour: Behaviour) -> None:
    for seed, part in (
        (DISCOVERY_SEED, "discovery"),
        (VALIDATION_SEED, "validation"),
        (TEST_SEED, "test"),
        (5, "discovery"),
    ):
        assert behaviour.pairs(tokenizer, 5, seed) == behaviour.pairs(tokenizer, 5, seed, part)
    assert behaviour.pairs(tokenizer, 20, 1).texts != behaviour.pairs(tokenizer, 20, 2).texts


@ALL
def test_twenty_clean_prompts_are_different(tokenizer: Tokenizer, behaviour: Behaviour) -> None:
    cleans = {text for text, _ in behaviour.pairs(tokenizer, 20).texts}
    assert len(cleans) == 20 or (behaviour.name in CAPITALS_ARE_FEW and len(cleans) >= 12)


def test_fewer_words_still_make_pairs() -> None:
    """A tokenizer that knows half of the names builds its pairs from those."""
    from mechrl.behaviours.lists import FEMALE_NAMES, MALE_NAMES

    unknown = frozenset((MALE_NAMES + FEMALE_NAMES)[::2])
    tokenizer = tokenizers.word_level(unknown)
    for behaviour in behaviours(with_relations=False):
        pairs = behaviour.pairs(tokenizer, 20)
        assert len(pairs) == 20
        assert not any(name in text.replace(",", "").split() for name in unknown for text, _ in pairs.texts)


@pytest.mark.parametrize(
    ("name", "unknown", "reason"),
    [
        (
            "greater-than",
            {str(i) for i in range(10)} | {f"{i:02}" for i in range(100)},
            "neither a two-digit nor a one-digit",
        ),
        ("acronyms", set("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), "last letter of an acronym"),
        ("ioi", {"When"}, "words that the tokenizer does not know"),
        ("gendered-pronoun", {"he"}, "does not know the (answer|foil) ' he'"),
    ],
)
def test_what_cannot_be_built_says_why(name: str, unknown: set[str], reason: str) -> None:
    behaviour = next(behaviour for behaviour in behaviours() if behaviour.name == name)
    with pytest.raises(
        MechRLError, match=f"behaviour '{name}' cannot be built for this tokenizer: .*{reason}"
    ):
        behaviour.pairs(tokenizers.word_level(frozenset(unknown)))


def test_too_few_fillers_are_an_error() -> None:
    from mechrl.behaviours.lists import FEMALE_NAMES, MALE_NAMES

    tokenizer = tokenizers.word_level(frozenset(MALE_NAMES + FEMALE_NAMES[3:]))
    with pytest.raises(MechRLError, match="it has 3 single-token names, 5 are needed"):
        behaviours()[0].pairs(tokenizer)


def test_context_and_number_are_checked() -> None:
    behaviour = behaviours()[0]
    with pytest.raises(MechRLError, match="the model's context is 8"):
        behaviour.pairs(tokenizers.gpt2(), n_ctx=8)
    with pytest.raises(MechRLError, match="at least 1, not 0"):
        behaviour.pairs(tokenizers.gpt2(), 0)


# ---- the tokenizers themselves, and what greater-than makes of them --------------------------------------------------


def test_gpt2_ids() -> None:
    tokenizer = tokenizers.gpt2()
    assert tokenizer.single(" Mary") == 5335
    assert tokenizer.single(" John") == 1757
    assert tokenizer.encode(" 1812") == [1248, 1065]
    assert tokenizer.bos == 50256


def greater_than(tokenizer: Tokenizer):
    behaviour = next(behaviour for behaviour in behaviours() if behaviour.name == "greater-than-3")
    pairs = behaviour.pairs(tokenizer, 100)
    for (clean, corrupt), answers, foils in zip(pairs.texts, pairs.answers, pairs.foils, strict=True):
        start, end, first = clean.split()[4], clean.split()[-1], corrupt.split()[4]
        yield (
            start,
            end,
            first,
            [tokenizer.decode([i]) for i in answers],
            [tokenizer.decode([i]) for i in foils],
        )


@pytest.mark.parametrize("kind", ["word_level", "gpt2"])
def test_greater_than_with_two_digit_tokens(kind: str) -> None:
    two_digits = [f"{i:02}" for i in range(100)]
    for start, end, first, answers, foils in greater_than(getattr(tokenizers, kind)()):
        assert start[:2] == end == first[:2] and first[2:] == "01" and "02" <= start[2:] <= "98"
        assert answers == [y for y in two_digits if y > start[2:]] and foils == [
            y for y in two_digits if y <= start[2:]
        ]


@pytest.mark.real
def test_greater_than_with_single_digits() -> None:
    for start, end, first, answers, foils in greater_than(tokenizers.smollm2()):
        assert start[:3] == end == first[:3] and first[3] == "0"
        assert answers == [d for d in "0123456789" if d > start[3]] and foils == [
            d for d in "0123456789" if d <= start[3]
        ]


@pytest.mark.parametrize("kind", KINDS)
def test_acronyms_end_in_a_letter_of_their_own(kind: str) -> None:
    tokenizer = getattr(tokenizers, kind)()
    behaviour = next(behaviour for behaviour in behaviours() if behaviour.name == "acronyms")
    pairs = behaviour.pairs(tokenizer, 100)
    for clean, (text, _), (answer,) in zip(pairs.clean, pairs.texts, pairs.answers, strict=True):
        letter = text.split()[3][0]
        assert tokenizer.decode([answer]) == letter
        assert tokenizer.prompt(text + letter) == [*clean, answer]
