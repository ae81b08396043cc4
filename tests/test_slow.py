"""The slow implementation itself against references: `transformers` for whole runs, EAP-IG's code for circuits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from mechrl.models import gpt2, llama
from mechrl.models.base import Model
from tests.slow import slow_circuit_logits, slow_circuit_logits_everywhere

GOLDEN = Path(__file__).parent / "data" / "golden"


def random_gpt2() -> tuple[Model, torch.nn.Module]:
    config = GPT2Config(vocab_size=30, n_positions=16, n_embd=24, n_layer=3, n_head=3)
    return _random(GPT2LMHeadModel(config), gpt2.from_checkpoint)


def random_llama() -> tuple[Model, torch.nn.Module]:
    config = LlamaConfig(
        vocab_size=30,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
    )
    return _random(LlamaForCausalLM(config), llama.from_checkpoint)


def _random(reference: torch.nn.Module, from_checkpoint) -> tuple[Model, torch.nn.Module]:
    """Large weights, gains and biases included, so that no term is too small to be missed."""
    generator = torch.Generator().manual_seed(0)
    reference = reference.double().eval()
    for name, parameter in reference.named_parameters():
        gain = parameter.dim() == 1 and "weight" in name
        parameter.data = float(gain) + 0.3 * torch.randn(
            parameter.shape, generator=generator, dtype=torch.float64
        )
    model = from_checkpoint("random", reference.config, reference.state_dict())
    return model.to(dtype=torch.float64), reference


def token_pair(vocab: int, n: int = 3, length: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    clean, corrupt = torch.randint(vocab, (2, n, length), generator=generator)
    return clean, corrupt


@pytest.mark.parametrize("make", [random_gpt2, random_llama])
def test_the_full_and_the_empty_circuit_are_the_models_own_runs(make):
    model, reference = make()
    clean, corrupt = token_pair(model.spec.vocab_size)
    everything = torch.ones(model.graph.n_edges, dtype=torch.bool)
    with torch.no_grad():
        full = slow_circuit_logits_everywhere(model, clean, corrupt, everything)
        empty = slow_circuit_logits_everywhere(model, clean, corrupt, ~everything)
        # transformers computes rotary angles in float32 whatever the model's precision
        tolerance = 1e-10 if model.inverse_frequency is None else 1e-5
        torch.testing.assert_close(full, reference(clean).logits, atol=tolerance, rtol=0)
        torch.testing.assert_close(empty, reference(corrupt).logits, atol=tolerance, rtol=0)


@pytest.mark.parametrize("make", [random_gpt2, random_llama])
def test_the_gradient_of_a_fractional_mask_is_right(make):
    model, _ = make()
    clean, corrupt = token_pair(model.spec.vocab_size, n=1, length=4)
    graph = model.graph
    mask = torch.rand(graph.n_edges, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    edges = torch.tensor(
        [0, graph.edge(0, graph.receiver(1, "k", 1)), graph.edge(graph.mlp(0), graph.logits)]
    )

    def logits(some: torch.Tensor) -> torch.Tensor:
        return slow_circuit_logits(model, clean, corrupt, mask.index_put((edges,), some))

    assert torch.autograd.gradcheck(logits, mask[edges].clone().requires_grad_())


@pytest.mark.parametrize("seed", ["seed0", "seed1"])
@pytest.mark.parametrize("circuit", ["full", "half", "fifth", "empty"])
def test_circuits_equal_those_of_an_independent_implementation(seed, circuit):
    config = GPT2Config.from_pretrained(GOLDEN / seed)
    tensors = {key: value.double() for key, value in load_file(GOLDEN / seed / "model.safetensors").items()}
    model = gpt2.from_checkpoint(seed, config, tensors)
    golden = np.load(GOLDEN / seed / "golden.npz")
    graph = model.graph
    assert (
        graph.source_names == golden["src_names"].tolist()
        and graph.receiver_names == golden["dst_names"].tolist()
    )
    mask = torch.from_numpy(golden[f"mask_{circuit}_raw"][graph.edge_source, graph.edge_receiver])
    clean, corrupt = torch.from_numpy(golden["clean_tokens"]), torch.from_numpy(golden["corrupt_tokens"])
    logits = slow_circuit_logits_everywhere(model, clean, corrupt, mask)
    torch.testing.assert_close(
        logits, torch.from_numpy(golden[f"circuit_{circuit}_logits_f64"]), atol=1e-9, rtol=0
    )
