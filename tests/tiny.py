"""Small random models of both architectures, and random pairs for them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from mechrl.models import gpt2, llama
from mechrl.models.base import Model

KINDS = ("gpt2", "llama", "llama-gqa", "qwen2")


def hugging_face(kind: str, seed: int = 0) -> torch.nn.Module:
    """A random `transformers` model with every bias and gain away from 0 and 1."""
    torch.manual_seed(seed)
    common = dict(
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=4,
        vocab_size=50,
        max_position_embeddings=32,
        tie_word_embeddings=True,
    )
    if kind == "gpt2":
        shape = dict(
            n_embd=24, n_head=4, n_layer=3, n_positions=32, vocab_size=50, bos_token_id=0, eos_token_id=0
        )
        model: torch.nn.Module = GPT2LMHeadModel(GPT2Config(**shape))
    elif kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**common))
    elif kind == "llama-gqa":
        model = LlamaForCausalLM(
            LlamaConfig(**common, num_key_value_heads=2, head_dim=10, attention_bias=True)
        )
    else:
        model = Qwen2ForCausalLM(Qwen2Config(**common, num_key_value_heads=1))
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn_like(p)
            gain = "norm" in name or "ln_" in name
            p.copy_(
                1 + 0.3 * noise
                if gain and p.ndim == 1 and "bias" not in name
                else noise * (0.35 if p.ndim == 2 else 0.2)
            )
    return model.eval()


def tiny(kind: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> Model:
    module = hugging_face(kind, seed)
    build = gpt2.from_checkpoint if kind == "gpt2" else llama.from_checkpoint
    return build(kind, module.config, {k: v for k, v in module.state_dict().items()}).to(dtype=dtype)


@dataclass(frozen=True)
class TinyPairs:
    clean: list[list[int]]
    corrupt: list[list[int]]


def tiny_pairs(
    n: int = 4, length: int = 6, seed: int = 0, ragged: bool = False, prefix: int = 1
) -> TinyPairs:
    """Random pairs; `ragged`: of different lengths; the first `prefix` tokens agree, the next one differs, others mostly agree."""
    g = torch.Generator().manual_seed(seed)
    clean, corrupt = [], []
    for i in range(n):
        L = length - (i % 3 if ragged else 0)
        a = torch.randint(0, 50, (L,), generator=g).tolist()
        b = [
            t if torch.rand((), generator=g) < 0.6 else int(torch.randint(0, 50, (), generator=g)) for t in a
        ]
        p = prefix + (i % 2 if ragged else 0)
        b[:p] = a[:p]
        b[p] = (a[p] + 1) % 50
        clean.append(a)
        corrupt.append(b)
    return TinyPairs(clean, corrupt)
