"""The three kinds of tokenizer that behaviours are built for."""

from __future__ import annotations

import gzip
import re
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Regex, decoders, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE, WordLevel

from mechrl.behaviours import words
from mechrl.errors import MechRLError
from mechrl.models import smollm2 as smollm2_files
from mechrl.models.tokenizer import Tokenizer

DATA = Path(__file__).parents[1] / "data"
# two digits, a capital in a run of capitals, a word with its apostrophe, any other character
PIECES = r"\d\d|\d|[A-Z](?=[A-Z])|[A-Za-z]+(?:'[a-z]+)?|[^\s\w]"


@cache
def all_words() -> list[str]:
    return words(re.compile(PIECES).findall)


@cache
def word_level(leave_out: frozenset[str] = frozenset()) -> Tokenizer:
    """Every word of the templates is a token, except for those left out, which are unknown."""
    vocabulary = ["<bos>", "<unk>", *(word for word in all_words() if word not in leave_out)]
    backend = Backend(WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(PIECES), behavior="removed", invert=True)
    return Tokenizer(backend, bos=0)


@cache
def gpt2() -> Tokenizer:
    lines = gzip.decompress((DATA / "gpt2" / "vocab.bpe.gz").read_bytes()).decode().split("\n")
    merges = [(left, right) for left, right in (line.split(" ") for line in lines[1:-1])]
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    byte_tokens = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    vocabulary = [*byte_tokens, *(left + right for left, right in merges), "<|endoftext|>"]
    backend = Backend(BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, bos=vocabulary.index("<|endoftext|>"))


@cache
def smollm2() -> Tokenizer:
    try:
        directory = smollm2_files.directory()
    except MechRLError as exc:
        pytest.skip(str(exc))
    backend = Backend.from_file(str(directory / "tokenizer.json"))
    return Tokenizer(backend, bos=backend.token_to_id("<|endoftext|>"))
