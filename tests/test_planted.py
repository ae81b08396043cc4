"""The planted circuits are correct: measured edge by edge with the slow implementation, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.planted import planted_chain, planted_parallel, planted_qkv
from tests.slow import slow_circuit_logits

N = 4  # pairs are enough here


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
@pytest.mark.parametrize("plant", [planted_chain, planted_qkv, planted_parallel])
def test_the_circuit_is_sufficient_no_part_of_it_is_and_nothing_else_matters(plant, architecture):
    planted = plant(architecture)
    model, graph = planted.model.to(dtype=torch.float64), planted.model.graph
    clean, corrupt = planted.clean[:N], planted.corrupt[:N]

    def logits(masks: Tensor) -> Tensor:
        return torch.vmap(lambda mask: slow_circuit_logits(model, clean, corrupt, mask), chunk_size=128)(
            masks
        )

    everything = torch.ones(graph.n_edges, dtype=torch.bool)
    full, empty = logits(torch.stack([everything, ~everything]))
    assert (full.argmax(-1) == planted.answers[:N]).all() and (empty.argmax(-1) == planted.foils[:N]).all()
    assert (planted.answers != planted.foils).all()

    def kl(masks: Tensor) -> Tensor:
        """[C] mean over pairs of KL(full ‖ circuit)."""
        log_p, log_q = full.log_softmax(-1), logits(masks).log_softmax(-1)
        return (log_p.exp() * (log_p - log_q)).sum(-1).mean(-1)

    circuit = torch.tensor([name in planted.edges for name in graph.edge_names])
    assert circuit.sum() == len(planted.edges)
    kl_cut = kl(~everything[None])[0]
    assert kl_cut > 5
    assert 1 - kl(circuit[None])[0] / kl_cut > 0.999

    subsets = torch.cartesian_prod(*[torch.tensor([False, True])] * len(planted.edges))[
        :-1
    ]  # all edges but the circuit's
    smaller = torch.zeros(len(subsets), graph.n_edges, dtype=torch.bool)
    smaller[:, circuit] = subsets
    assert (1 - kl(smaller) / kl_cut).max() < 0.5  # so at tau = 0.9 only the circuit itself can be found

    cut_one = ~torch.eye(graph.n_edges, dtype=torch.bool)  # each circuit lacks one edge
    for whole in (everything, circuit):
        faithfulness = 1 - kl(whole & cut_one) / kl_cut
        assert faithfulness[circuit].max() < 0.3
    loss = kl(cut_one)[~circuit]
    assert 0 < loss.max() < 1e-5
