"""One interface to every tokenizer: text to ids and back, and the token that starts a prompt (BOS).

Models differ in whether a prompt starts with a special token, and a wrong choice fails silently: Qwen2 uses none, and does worse with one.
The first of these that is defined decides:

1. `add_bos_token`, in tokenizer_config.json or in the GGUF;
2. the tokenizer's post-processor, if it prepends a special token;
3. the family: Qwen2 uses none;
4. the default: <|endoftext|> if the vocabulary has it, else the declared BOS. GPT-2 and SmolLM2 separate documents with <|endoftext|>
   in pretraining (the <|im_start|> that SmolLM2 declares starts a chat turn), and position 0, an attention sink, needs the same token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self, get_args

from tokenizers import Tokenizer as Backend

from mechrl.errors import MechRLError
from mechrl.names import Bos

PROMPT_OPENER = "<|endoftext|>"
_WITHOUT = ("qwen2",)  # families whose prompts start with no special token


@dataclass(frozen=True)
class Tokenizer:
    """A fast tokenizer without its post-processing: `encode` adds nothing; `prompt` prepends `bos` unless that is None."""

    backend: Backend
    bos: int | None
    opener: int | None = None  # the token that `bos` would be if prompts started with one
    said: str = ""  # which of the rules decided

    @classmethod
    def of(
        cls, backend: Backend, named: str | int | None, add: object = None, family: str = "", where: str = ""
    ) -> Self:
        """Follows the model's convention. `named`: its declared BOS; `add`: its `add_bos_token`, if any, found in `where`."""
        declared = backend.token_to_id(named) if isinstance(named, str) else named
        usual = backend.token_to_id(PROMPT_OPENER)
        usual = declared if usual is None else usual
        own = _put_in_front(backend)
        if isinstance(add, bool):
            opener = (declared if own is None else own) if add else own
            opener = usual if opener is None else opener
            return cls(backend, opener if add else None, opener, f"add_bos_token in {where}")
        if own is not None:
            return cls(backend, own, own, "its tokenizer.json")
        if family in _WITHOUT:
            return cls(backend, None, usual, f"{family} models open with none")
        return cls(backend, usual, usual, "the model says nothing about it")

    def opened(self, choice: str) -> Self:
        """The same tokenizer with a first token (`yes`), without one (`no`), or following the model's convention (`auto`)."""
        if choice not in get_args(Bos):
            raise MechRLError(f"unknown --bos {choice!r}; choose auto, yes or no")
        if choice == "auto":
            return self
        if choice == "yes" and self.opener is None:
            raise MechRLError("the tokenizer has no token that could open a prompt; leave out --bos")
        return replace(self, bos=self.opener if choice == "yes" else None, said=f"--bos {choice}")

    def encode(self, text: str) -> list[int]:
        """Token ids of the text alone."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        """The text of token ids, special tokens included."""
        return self.backend.decode(ids, skip_special_tokens=False)

    def prompt(self, text: str) -> list[int]:
        """Token ids of a prompt: `bos`, unless that is None, then the text."""
        return [*([] if self.bos is None else [self.bos]), *self.encode(text)]

    @property
    def opening(self) -> str:
        """The token that starts prompts, as text; empty if none does."""
        return "" if self.bos is None else self.backend.id_to_token(self.bos) or ""

    @property
    def opener_text(self) -> str:
        """The token that could start prompts, as text; empty if there is none."""
        return "" if self.opener is None else self.backend.id_to_token(self.opener) or ""

    def single(self, text: str) -> int | None:
        """The id of `text` if it is exactly one token, else None."""
        ids = self.encode(text)
        return ids[0] if len(ids) == 1 else None

    @cached_property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return self.backend.get_vocab_size()


def _put_in_front(backend: Backend) -> int | None:
    """The special token that the tokenizer's post-processor prepends, if any."""
    try:
        encoded = backend.encode("a")
    # the library raises a plain Exception if the vocabulary has neither "a" nor an unknown token
    except Exception:
        return None
    return encoded.ids[0] if encoded.ids and encoded.special_tokens_mask[0] else None
