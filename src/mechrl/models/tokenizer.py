"""One small face for every tokenizer: text to ids and back, and the token that opens a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tokenizers import Tokenizer as Backend


@dataclass(frozen=True)
class Tokenizer:
    """A fast tokenizer without its post-processing: `encode` adds nothing, a prompt's first token is `bos` (None: none)."""

    backend: Backend
    bos: int | None

    def encode(self, text: str) -> list[int]:
        return self.backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        return self.backend.decode(ids, skip_special_tokens=False)

    def prompt(self, text: str) -> list[int]:
        """The ids of a prompt: `bos` where the model wants one, then the text."""
        return [*([] if self.bos is None else [self.bos]), *self.encode(text)]

    def single(self, text: str) -> int | None:
        """The id of `text` if it is exactly one token, else None."""
        ids = self.encode(text)
        return ids[0] if len(ids) == 1 else None

    @cached_property
    def vocab_size(self) -> int:
        return self.backend.get_vocab_size()
