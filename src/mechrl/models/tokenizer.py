"""One small face for every tokenizer: text to ids and back, and the token that opens a prompt.

Whether a prompt opens with a token is the model's own convention, and getting it wrong is silent: Qwen2 opens with none, and with one
forced in front of it it fails at what it does without. Asked in this order, the first that says something decides:

1. `add_bos_token`, in tokenizer_config.json or in the GGUF;
2. the tokenizer's own post-processor, if it puts a special token in front;
3. the family: Qwen2 opens with none;
4. nobody: <|endoftext|> where the vocabulary has it (GPT-2 and SmolLM2 separate documents with it in pretraining; the <|im_start|>
   that SmolLM2 declares opens a chat turn), else the declared token. Position 0 is an attention sink, and wants the same token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Self, get_args

from tokenizers import Tokenizer as Backend

from mechrl.errors import MechRLError

Bos = Literal["auto", "yes", "no"]
PROMPT_OPENER = "<|endoftext|>"
_WITHOUT = ("qwen2",)  # families whose prompts open with no token


@dataclass(frozen=True)
class Tokenizer:
    """A fast tokenizer without its post-processing: `encode` adds nothing, a prompt's first token is `bos` (None: none)."""

    backend: Backend
    bos: int | None
    opener: int | None = None  # what `bos` is if a prompt opens with a token at all
    said: str = ""  # who decided whether it does

    @classmethod
    def of(
        cls, backend: Backend, named: str | int | None, add: object = None, family: str = "", where: str = ""
    ) -> Self:
        """By the model's convention. `named`: its declared BOS; `add`: its `add_bos_token`, if any; `where` that was said."""
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
        """The same with a first token, without one, or as the model's convention has it (`auto`)."""
        if choice not in get_args(Bos):
            raise MechRLError(f"unknown --bos {choice!r}; choose auto, yes or no")
        if choice == "auto":
            return self
        if choice == "yes" and self.opener is None:
            raise MechRLError("the tokenizer has no token that could open a prompt; leave --bos away")
        return replace(self, bos=self.opener if choice == "yes" else None, said=f"--bos {choice}")

    def encode(self, text: str) -> list[int]:
        """Token ids of the text, with nothing in front."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        """The text of token ids, special tokens included."""
        return self.backend.decode(ids, skip_special_tokens=False)

    def prompt(self, text: str) -> list[int]:
        """The ids of a prompt: `bos` where the model wants one, then the text."""
        return [*([] if self.bos is None else [self.bos]), *self.encode(text)]

    @property
    def opening(self) -> str:
        """The token that opens a prompt, as text; empty if none does."""
        return "" if self.bos is None else self.backend.id_to_token(self.bos) or ""

    @property
    def opener_text(self) -> str:
        """The token that could open a prompt, as text; empty if there is none."""
        return "" if self.opener is None else self.backend.id_to_token(self.opener) or ""

    def single(self, text: str) -> int | None:
        """The id of `text` if it is exactly one token, else None."""
        ids = self.encode(text)
        return ids[0] if len(ids) == 1 else None

    @cached_property
    def vocab_size(self) -> int:
        """Tokens that there are."""
        return self.backend.get_vocab_size()


def _put_in_front(backend: Backend) -> int | None:
    """The special token that the tokenizer's own post-processor puts before a text, if it does."""
    try:
        encoded = backend.encode("a")
    except (
        Exception
    ):  # the library has no narrower class for a vocabulary that has neither the text nor an unknown token
        return None
    return encoded.ids[0] if encoded.ids and encoded.special_tokens_mask[0] else None
