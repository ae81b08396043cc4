"""Whether a prompt starts with a special first token is read from the model's own files, unless the user overrides it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers
from tokenizers import Tokenizer as Backend
from tokenizers import models, processors

from mechrl.errors import MechRLError
from mechrl.models import load_model
from mechrl.models.tokenizer import Tokenizer
from tests.models.test_gguf import write
from tests.models.test_loading import SIZES, random_model

VOCAB = {"a": 0, "<s>": 1, "<|endoftext|>": 2}


def backend(vocab: dict[str, int] = VOCAB, in_front: str = "") -> Backend:
    made = Backend(models.WordLevel(vocab, unk_token="a"))
    if in_front:
        made.add_special_tokens([in_front])
        made.post_processor = processors.TemplateProcessing(
            single=f"{in_front} $A", special_tokens=[(in_front, made.token_to_id(in_front))]
        )
    return made


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen2"])
@pytest.mark.parametrize("in_front", ["", "<s>"])
@pytest.mark.parametrize("add", [None, True, False])
@pytest.mark.parametrize("choice", ["auto", "yes", "no"])
def test_who_decides(family: str, in_front: str, add: bool | None, choice: str) -> None:
    tokenizer = Tokenizer.of(backend(in_front=in_front), "<s>", add, family, "x.json")
    by_model = add if add is not None else bool(in_front) or family != "qwen2"
    opens = {"auto": by_model, "yes": True, "no": False}[choice]
    now = tokenizer.opened(choice)
    assert (now.bos is not None) == opens and now.prompt("a") == [*([now.opener] if opens else []), 0]
    if add:
        assert now.opener == 1  # the model says yes, so its own declared token
    elif in_front:
        assert now.opener == 1
    else:
        assert now.opener == 2  # undeclared, so the token that separates documents
    assert ("x.json" in tokenizer.said) == (add is not None) and ("--bos" in now.said) == (choice != "auto")


def test_the_files_are_read(tmp_path: Path) -> None:
    random_model(transformers.LlamaConfig(**SIZES, bos_token_id=1)).save_pretrained(tmp_path)
    backend().save(str(tmp_path / "tokenizer.json"))
    for add in (True, False):
        (tmp_path / "tokenizer_config.json").write_text(
            json.dumps({"add_bos_token": add, "bos_token": "<s>"})
        )
        tokenizer = load_model(tmp_path).tokenizer
        assert tokenizer is not None and tokenizer.bos == (1 if add else None)
        assert load_model(tmp_path, bos="yes").tokenizer.prompt("a")[1:] == [0]  # type: ignore[union-attr]
        assert load_model(tmp_path, bos="no").tokenizer.prompt("a") == [0]  # type: ignore[union-attr]


@pytest.mark.parametrize("add", [True, False])
def test_the_gguf_field_is_read(add: bool, tmp_path: Path) -> None:
    reference = random_model(transformers.LlamaConfig(**SIZES))
    tokenizer = load_model(
        write(tmp_path / "m.gguf", reference, "smollm", tokenizer__ggml__add_bos_token=add)
    ).tokenizer
    assert (
        tokenizer is not None
        and (tokenizer.bos is not None) == add
        and tokenizer.said == "add_bos_token in the GGUF"
    )


def test_mistakes() -> None:
    bare = Tokenizer.of(backend({"a": 0}), None)
    assert bare.opener is None
    with pytest.raises(MechRLError, match="no token that could open a prompt"):
        bare.opened("yes")
    with pytest.raises(MechRLError, match="choose auto, yes or no"):
        bare.opened("maybe")
