"""The embedded model exhibits every behaviour on pairs it was not trained on, within its size limit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import GPT2LMHeadModel

import mechrl.models
from mechrl.behaviours import TEST_SEED, Behaviour, accuracy, behaviours
from mechrl.models import load_model
from mechrl.models.tokenizer import Tokenizer

DIRECTORY = Path(mechrl.models.__file__).parent / "toy"


@pytest.fixture(scope="module")
def reference() -> GPT2LMHeadModel:
    return GPT2LMHeadModel.from_pretrained(DIRECTORY).eval()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    tokenizer = load_model("toy").tokenizer
    assert tokenizer is not None
    return tokenizer


@torch.no_grad()
def last_logits(model: GPT2LMHeadModel, prompts: tuple[tuple[int, ...], ...]) -> torch.Tensor:
    width = max(map(len, prompts))
    tokens = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in prompts])
    return model(tokens).logits[torch.arange(len(prompts)), torch.tensor([len(ids) - 1 for ids in prompts])]


@pytest.mark.parametrize("behaviour", behaviours(with_relations=False), ids=lambda behaviour: behaviour.name)
def test_it_shows_every_behaviour_on_test_pairs(
    reference: GPT2LMHeadModel, tokenizer: Tokenizer, behaviour: Behaviour
) -> None:
    pairs = behaviour.pairs(tokenizer, 40, TEST_SEED, n_ctx=reference.config.n_positions)
    assert len(pairs) == 40
    clean, corrupt = last_logits(reference, pairs.clean), last_logits(reference, pairs.corrupt)
    assert accuracy(clean, pairs, behaviour.metric) >= 0.95
    log_p, log_q = clean.log_softmax(-1), corrupt.log_softmax(-1)
    assert (log_p.exp() * (log_p - log_q)).sum(-1).mean() > 0.5


@pytest.mark.parametrize("behaviour", behaviours(with_relations=False), ids=lambda behaviour: behaviour.name)
def test_there_are_enough_pairs_to_discover_and_validate_on(
    tokenizer: Tokenizer, behaviour: Behaviour
) -> None:
    assert len(behaviour.pairs(tokenizer, 100)) == 100
    assert len(behaviour.pairs(tokenizer, 40, part="validation")) == 40


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in DIRECTORY.iterdir()) <= 8e6
    with safe_open(DIRECTORY / "model.safetensors", framework="pt") as file:
        tensors = [file.get_tensor(key) for key in file.keys()]  # noqa: SIM118 (not a mapping)
    assert sum(tensor.numel() for tensor in tensors) <= 3e6


def test_it_loads_like_any_gpt2(reference: GPT2LMHeadModel) -> None:
    model = load_model("toy")
    assert model.name == "toy" and model.spec.architecture == "gpt2"
    torch.testing.assert_close(model.embedding, reference.transformer.wte.weight)
    assert model.spec.n_layers == reference.config.n_layer and model.tokenizer is not None
    assert model.spec.vocab_size == model.tokenizer.vocab_size


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (" Mary", ["Mary"]),
        ("Mary", ["Mary"]),
        ("from the year 1732 to", ["from", "the", "year", "17", "32", "to"]),
        ("Federal Reserve Board (FR", ["Federal", "Reserve", "Board", "(", "F", "R"]),
        ("friend, isn't", ["friend", ",", "isn't"]),
        ('def f(self):\n    """summary', ["def", "f", "(", "self", ")", ":", "\n", '"""', "summary"]),
        ("Zanzibar", ["<unk>"]),
    ],
)
def test_the_tokenizer_splits_years_acronyms_and_lines(
    tokenizer: Tokenizer, text: str, pieces: list[str]
) -> None:
    ids = tokenizer.encode(text)
    assert [tokenizer.backend.id_to_token(i) for i in ids] == pieces
    assert tokenizer.encode(tokenizer.decode(ids)) == ids
    assert tokenizer.prompt(text) == [tokenizer.backend.token_to_id("<bos>"), *ids]
