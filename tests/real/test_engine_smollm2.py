"""The engine on a real pretrained model: whole and empty circuit equal the model's own runs, a random circuit the slow implementation's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from mechrl.behaviours import get_behaviour
from mechrl.engine import Engine
from mechrl.models import load_model, smollm2
from tests.slow import slow_circuit_logits

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def model():
    return load_model("smollm2")


def test_whole_and_empty_circuit_are_transformers_own_logits(model):
    assert (model.graph.n_nodes, model.graph.n_edges) == (302, 70_651)
    pairs = get_behaviour("ioi").pairs(model.tokenizer, 4)
    module = LlamaForCausalLM.from_pretrained(smollm2.directory(), dtype=torch.float32).eval()
    with torch.no_grad():
        clean = module(torch.tensor(pairs.clean)).logits[:, -1]
        corrupt = module(torch.tensor(pairs.corrupt)).logits[:, -1]
    everything = np.ones(model.graph.n_edges, bool)
    logits = Engine(model, pairs).logits(np.stack([everything, ~everything]))
    assert (logits[0] - clean).abs().max() < 1e-4
    assert (logits[1] - corrupt).abs().max() < 1e-4


def test_a_random_circuit_equals_the_slow_twin(model):
    pairs = get_behaviour("gendered-pronoun").pairs(model.tokenizer, 1)
    mask = np.random.default_rng(0).random(model.graph.n_edges) < 0.3
    wide = load_model("smollm2", dtype=torch.float64)
    with torch.no_grad():
        expected = slow_circuit_logits(
            wide, torch.tensor(pairs.clean), torch.tensor(pairs.corrupt), torch.from_numpy(mask)
        )
    assert (Engine(wide, pairs).logits(mask)[0] - expected).abs().max() < 1e-9
    assert (Engine(model, pairs).logits(mask)[0] - expected).abs().max() < 1e-3
