"""The estimated cost of work."""

from __future__ import annotations

import numpy as np

from mechrl.engine import Engine
from mechrl.engine.estimate import estimate
from tests.tiny import tiny, tiny_pairs


def test_an_estimate_costs_nothing_and_follows_the_shapes():
    model, pairs = tiny("llama-gqa"), tiny_pairs(4, 7)
    engine, edges = Engine(model, pairs), np.arange(40)
    some, whole = estimate(engine, edges), estimate(engine)
    assert engine.passes == 0
    assert (some.edges, whole.edges, whole.pairs) == (40, model.graph.n_edges, 4)
    assert 0 < some.circuit_bytes <= whole.circuit_bytes
    assert some.at_once >= whole.at_once >= 1
    assert whole.seconds(10) == 10 * whole.seconds_per_pass > 0
    assert whole.model_bytes >= model.embedding.nbytes  # the tied embedding counts once
    assert estimate(Engine(model, pairs, memory_bytes=1)).at_once == 0
    twice = estimate(Engine(model, tiny_pairs(8, 7)))
    assert twice.circuit_bytes / whole.circuit_bytes == twice.active_tokens / whole.active_tokens


def test_a_circuit_that_exceeds_the_memory_given_is_run_all_the_same():
    model, pairs = tiny("gpt2"), tiny_pairs(4, 7)
    masks = np.random.default_rng(0).random((5, model.graph.n_edges)) < 0.5
    small = Engine(model, pairs, memory_bytes=1)
    np.testing.assert_allclose(small.kl(masks), Engine(model, pairs).kl(masks), atol=1e-12)
