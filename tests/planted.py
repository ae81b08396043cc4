"""Planted circuits: transformers with hand-set weights, whose circuit is known edge by edge by construction.

The stream is divided into subspaces, each holding one token as a one-hot vector: TOKEN is the input; A, B and C are free
for components to write. A component of the circuit reads one subspace and writes another. Every other weight is small
noise, so every other edge has an effect, but one far below any threshold (tests/test_planted.py measures both).

Norms would couple everything to everything. Every token therefore carries a large constant (+K, −K), beside which
one-hot vectors hardly change the stream's length, and the norms' gain undoes the division by it. A component that writes
a one also subtracts a one from BALANCE, which nothing reads, so that the mean that LayerNorm subtracts is zero.

Each circuit comes as GPT-2 (LayerNorm, learned positions, plain MLP) and as Llama (RMSNorm, rotary positions, gated
MLP, grouped-query attention). Every prompt starts with token 0; after it a clean and a corrupted prompt differ everywhere.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import GPT2Config, LlamaConfig

from mechrl.models import gpt2, llama
from mechrl.models.base import Model

LAYERS, HEADS, KV_HEADS = 3, 4, 2  # KV heads of the Llama; the GPT-2 has one for every head
VOCAB, LENGTH, PAIRS = 16, 7, 16
WIDTH, HIDDEN = 88, 64
K = 30.0  # the constant
GAIN = K * (2 / WIDTH) ** 0.5  # what a norm divides by
NOISE = 3e-4
STEEP = 8.0  # slope of the MLPs' thresholds
SCORE = 30.0  # score of an attended position minus that of the others
LOGIT = 10.0  # logit of the answer minus that of the others
# rotary frequencies that distinguish positions; the others turn too slowly to matter over so few tokens
FAST = 6
ROTARY_BASE = 1e8

TOKEN, A, B, C = (slice(i * VOCAB, (i + 1) * VOCAB) for i in range(4))
POSITION = slice(4 * VOCAB, 4 * VOCAB + LENGTH)
BALANCE, CONSTANT = WIDTH - 3, WIDTH - 2


class Planted(NamedTuple):
    model: Model
    clean: Tensor  # [N, T]
    corrupt: Tensor  # [N, T]
    answers: Tensor  # [N]
    foils: Tensor  # [N] the corrupted prompt's answers
    edges: set[str]


def planted_chain(architecture: str = "gpt2") -> Planted:
    """One path. The answer is the token two positions before the last, mapped through a table on the way."""
    table = _permutation()
    plan = Plan(architecture)
    plan.look_back(0, 1)
    plan.move(0, 1, TOKEN, A)
    plan.look_up(1, A, B, table)
    plan.look_back(2, 2)
    plan.move(2, 2, B, C)
    edges = ["input->a0.h1<v>", "a0.h1->m1", "m1->a2.h2<v>", "a2.h2->logits"]
    clean, corrupt = _distinct_tokens()
    return plan.planted(C, clean, corrupt, table[clean[:, -3]], table[corrupt[:, -3]], edges)


def planted_qkv(architecture: str = "gpt2") -> Planted:
    """Induction: … a b … a → b, then a table. The second head needs its q, its k and its v, each from a different node."""
    table = _permutation()
    plan = Plan(architecture)
    plan.look_back(0, 3)
    plan.move(0, 3, TOKEN, A)
    plan.match(1, 1, TOKEN, A)
    plan.move(1, 1, TOKEN, B)
    plan.look_up(2, B, C, table)
    edges = [
        "input->a0.h3<v>",
        "input->a1.h1<q>",
        "a0.h3->a1.h1<k>",
        "input->a1.h1<v>",
        "a1.h1->m2",
        "m2->logits",
    ]
    clean, corrupt = _distinct_tokens()
    # the position differs between the prompts of a pair; were it the same, v alone would suffice, and q and k could be corrupted
    row = torch.arange(PAIRS)
    place, other = 1 + row % (LENGTH - 3), 1 + (row + 1) % (LENGTH - 3)
    clean[:, -1], corrupt[:, -1] = clean[row, place], corrupt[row, other]
    return plan.planted(
        C, clean, corrupt, table[clean[row, place + 1]], table[corrupt[row, other + 1]], edges
    )


def planted_parallel(architecture: str = "gpt2") -> Planted:
    """Two paths, both necessary: one brings the row of the answer in a 4 × 4 table, the other its column."""
    rows, columns = torch.arange(VOCAB) // 4, torch.arange(VOCAB) % 4
    row, column, final_row = (slice(A.start + 4 * i, A.start + 4 * (i + 1)) for i in range(3))
    plan = Plan(architecture)
    plan.look_back(0, 0)
    plan.move(0, 0, TOKEN, row, rows)
    plan.look_up(1, row, final_row, torch.arange(4).flip(0))
    plan.look_back(0, 2)
    plan.move(0, 2, TOKEN, B)
    plan.look_back(1, 3)
    plan.move(1, 3, B, column, columns)
    plan.look_up_pair(2, final_row, column, C)
    edges = [
        "input->a0.h0<v>",
        "a0.h0->m1",
        "m1->m2",
        "input->a0.h2<v>",
        "a0.h2->a1.h3<v>",
        "a1.h3->m2",
        "m2->logits",
    ]
    clean, corrupt = _distinct_tokens()
    # rows and columns of the corrupted prompt are shifted by one: both paths differ in every pair
    corrupt[:, 1:] = 4 * ((rows[clean[:, 1:]] + 1) % 4) + (columns[clean[:, 1:]] + 1) % 4

    def answer(tokens: Tensor) -> Tensor:
        return 4 * (3 - rows[tokens[:, -2]]) + columns[tokens[:, -3]]

    return plan.planted(C, clean, corrupt, answer(clean), answer(corrupt), edges)


class Plan:
    """The weights while they are being set, shaped as in `Attention` and `MLP`."""

    def __init__(self, architecture: str) -> None:
        self.architecture = architecture
        self.generator = torch.Generator().manual_seed(0)
        G = HEADS if architecture == "gpt2" else KV_HEADS
        self.shared = HEADS // G  # heads that share a KV head
        # a rotary head needs two dimensions per frequency; in GPT-2 the width is fixed
        self.head_width = e = WIDTH // HEADS if architecture == "gpt2" else 2 * (FAST + VOCAB)
        self.W_q = self.noise(LAYERS, HEADS, WIDTH, e)
        self.W_k, self.W_v = self.noise(LAYERS, G, WIDTH, e), self.noise(LAYERS, G, WIDTH, e)
        self.W_o = self.noise(LAYERS, HEADS, e, WIDTH)
        self.W_in, self.W_out = self.noise(LAYERS, WIDTH, HIDDEN), self.noise(LAYERS, HIDDEN, WIDTH)
        self.embedding = self.noise(VOCAB, WIDTH)
        self.embedding[:, TOKEN] += torch.eye(VOCAB)
        self.embedding[:, BALANCE] -= 1.0
        self.embedding[:, CONSTANT] += K
        self.embedding[:, CONSTANT + 1] -= K

    def noise(self, *shape: int) -> Tensor:
        return NOISE * torch.randn(shape, generator=self.generator)

    def look_back(self, layer: int, head: int) -> None:
        """Attend to the previous position."""
        W_q, W_k = self.W_q[layer, head], self.W_k[layer, head // self.shared]
        n = torch.arange(LENGTH)
        if self.architecture == "gpt2":
            W_q[POSITION.start + n[1:], n[:-1]] += self.score
            W_k[POSITION.start + n, n] += 1.0
        else:
            # a constant key and a query rotated by one position: the score Σ cos(ω(distance − 1)) has its peak at 1
            omega = ROTARY_BASE ** -(torch.arange(FAST) / (self.head_width // 2))
            W_k[CONSTANT, :FAST] += 1 / K
            W_q[CONSTANT, :FAST] += 2 * self.score / K * omega.cos()
            W_q[CONSTANT, self.head_width // 2 :][:FAST] -= 2 * self.score / K * omega.sin()

    def match(self, layer: int, head: int, query: slice, key: slice) -> None:
        """Attend to where the key subspace holds the token of the query subspace; otherwise to the first token, 0."""
        W_q, W_k = self.W_q[layer, head], self.W_k[layer, head // self.shared]
        n = torch.arange(VOCAB)
        W_q[query.start + n, FAST + n] += self.score
        W_k[key.start + n, FAST + n] += 1.0
        W_k[TOKEN.start, FAST + n] += 0.5  # token 0 half matches every query

    @property
    def score(self) -> float:
        return SCORE * self.head_width**0.5  # cancels attention's division by the root

    def move(self, layer: int, head: int, read: slice, write: slice, table: Tensor | None = None) -> None:
        """Copy a subspace from the attended position, token i becoming table[i]."""
        n = torch.arange(read.stop - read.start)
        self.W_v[layer, head // self.shared][read.start + n, n] += 1.0
        self.W_o[layer, head, n, write.start + (n if table is None else table)] += 1.0
        self.W_o[layer, head, n, BALANCE] -= 1.0

    def look_up(self, layer: int, read: slice, write: slice, table: Tensor) -> None:
        """An MLP that maps token i to token table[i]: one hidden unit per token, active above one half."""
        n = torch.arange(read.stop - read.start)
        self.W_in[layer, read.start + n, n] += STEEP
        self.W_in[layer, CONSTANT, n] -= 0.5 * STEEP / K
        self.W_out[layer, n, write.start + table] += 2 / STEEP
        self.W_out[layer, n, BALANCE] -= 2 / STEEP

    def look_up_pair(self, layer: int, row: slice, column: slice, write: slice) -> None:
        """An MLP with one hidden unit per cell of the table, active when row and column are both present."""
        n = torch.arange(VOCAB)
        self.W_in[layer, row.start + n // 4, n] += STEEP
        self.W_in[layer, column.start + n % 4, n] += STEEP
        self.W_in[layer, CONSTANT, n] -= 1.5 * STEEP / K
        self.W_out[layer, n, write.start + n] += 2 / STEEP
        self.W_out[layer, n, BALANCE] -= 2 / STEEP

    def planted(
        self, read: slice, clean: Tensor, corrupt: Tensor, answers: Tensor, foils: Tensor, edges: list[str]
    ) -> Planted:
        """The model whose logits read the subspace `read`, and its circuit."""
        unembedding = self.noise(VOCAB, WIDTH)
        unembedding[:, read] += LOGIT * torch.eye(VOCAB)
        model = self._gpt2(unembedding) if self.architecture == "gpt2" else self._llama(unembedding)
        # with grouped-query attention k and v belong to the KV head
        if self.shared > 1:
            edges = [
                re.sub(r"h(\d)(<[kv]>)", lambda m: f"kv{int(m[1]) // self.shared}{m[2]}", edge)
                for edge in edges
            ]
        return Planted(model, clean, corrupt, answers, foils, set(edges))

    def _gpt2(self, unembedding: Tensor) -> Model:
        config = GPT2Config(
            vocab_size=VOCAB,
            n_positions=LENGTH,
            n_embd=WIDTH,
            n_layer=LAYERS,
            n_head=HEADS,
            n_inner=HIDDEN,
            bos_token_id=0,
            eos_token_id=0,
            tie_word_embeddings=False,
        )
        position = torch.zeros(LENGTH, WIDTH)
        position[:, POSITION] = torch.eye(LENGTH)
        position[:, BALANCE] = -1.0
        gain, zero = torch.full((WIDTH,), GAIN), torch.zeros(WIDTH)
        tensors = {"wte.weight": self.embedding, "wpe.weight": position, "lm_head.weight": unembedding}
        tensors |= {"ln_f.weight": gain, "ln_f.bias": zero}
        for layer in range(LAYERS):
            readers = [W[layer].transpose(0, 1).reshape(WIDTH, WIDTH) for W in (self.W_q, self.W_k, self.W_v)]
            parts = {
                "ln_1.weight": gain,
                "ln_1.bias": zero,
                "attn.c_attn.weight": torch.cat(readers, dim=1),
                "attn.c_attn.bias": torch.zeros(3 * WIDTH),
                "attn.c_proj.weight": self.W_o[layer].reshape(WIDTH, WIDTH),
                "attn.c_proj.bias": zero,
                "ln_2.weight": gain,
                "ln_2.bias": zero,
                "mlp.c_fc.weight": self.W_in[layer],
                "mlp.c_fc.bias": torch.zeros(HIDDEN),
                "mlp.c_proj.weight": self.W_out[layer],
                "mlp.c_proj.bias": zero,
            }
            tensors |= {f"h.{layer}.{key}": value for key, value in parts.items()}
        return gpt2.from_checkpoint("planted-gpt2", config, tensors)

    def _llama(self, unembedding: Tensor) -> Model:
        config = LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=WIDTH,
            intermediate_size=HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            head_dim=self.head_width,
            max_position_embeddings=LENGTH,
            rope_parameters={"rope_type": "default", "rope_theta": ROTARY_BASE},
            tie_word_embeddings=False,
        )
        gain = torch.full((WIDTH,), GAIN)
        tensors = {"embed_tokens.weight": self.embedding, "norm.weight": gain, "lm_head.weight": unembedding}
        for layer in range(LAYERS):
            W_up = self.noise(WIDTH, HIDDEN)
            W_up[CONSTANT] += 1 / K  # one, so that the gate's output passes through unchanged
            readers = {"q": self.W_q[layer], "k": self.W_k[layer], "v": self.W_v[layer]}
            parts = {
                f"self_attn.{key}_proj": W.transpose(1, 2).reshape(-1, WIDTH) for key, W in readers.items()
            }
            parts |= {
                "self_attn.o_proj": self.W_o[layer].reshape(-1, WIDTH).T,
                "mlp.gate_proj": self.W_in[layer].T,
                "mlp.up_proj": W_up.T,
                "mlp.down_proj": self.W_out[layer].T,
                "input_layernorm": gain,
                "post_attention_layernorm": gain,
            }
            tensors |= {f"layers.{layer}.{key}.weight": value for key, value in parts.items()}
        return llama.from_checkpoint("planted-llama", config, tensors)


def _permutation() -> Tensor:
    return torch.randperm(VOCAB, generator=torch.Generator().manual_seed(1))


def _distinct_tokens() -> tuple[Tensor, Tensor]:
    """Clean and corrupted prompts [N, T]: token 0, then tokens that are all different within a pair."""
    generator = torch.Generator().manual_seed(2)
    shuffled = torch.stack([1 + torch.randperm(VOCAB - 1, generator=generator) for _ in range(PAIRS)])
    opening = torch.zeros(PAIRS, 1, dtype=torch.long)
    clean, corrupt = shuffled[:, : LENGTH - 1], shuffled[:, LENGTH - 1 : 2 * (LENGTH - 1)]
    return torch.cat([opening, clean], 1), torch.cat([opening, corrupt], 1)
