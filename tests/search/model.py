"""A small GPT-2 with random weights and a word-level tokenizer that knows all behaviours' words, as a directory."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from tests.behaviours.tokenizers import word_level


def write_model(folder: Path, layers: int = 3) -> Path:
    tokenizer = word_level().backend
    shape = dict(n_embd=32, n_head=4, n_layer=layers, n_positions=64, bos_token_id=0, eos_token_id=0)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**shape, vocab_size=tokenizer.get_vocab_size()))
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 2:
                p.normal_(std=0.35)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<bos>"}))
    return folder
