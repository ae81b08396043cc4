"""The engine against the slow implementation, `transformers`, EAP-IG's own circuit logits, and finite differences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel

from mechrl.engine import Engine
from mechrl.engine.memory import fitting
from mechrl.engine.plan import make_plan
from mechrl.errors import MechRLError, OutOfMemory
from mechrl.models import gpt2, llama, load_model
from tests.slow import slow_logits
from tests.tiny import KINDS, TinyPairs, hugging_face, tiny, tiny_pairs

GOLDEN = Path(__file__).parent / "data" / "golden"


@pytest.mark.parametrize("kind", KINDS)
def test_whole_and_empty_circuit_are_transformers_own_logits(kind):
    module, model, pairs = hugging_face(kind), tiny(kind, dtype=torch.float32), tiny_pairs(5, 9)
    engine = Engine(model, pairs)
    masks = np.stack([np.ones(model.graph.n_edges, bool), np.zeros(model.graph.n_edges, bool)])
    logits = engine.logits(masks)
    with torch.no_grad():
        clean = module(torch.tensor(pairs.clean)).logits[:, -1]
        corrupt = module(torch.tensor(pairs.corrupt)).logits[:, -1]
    assert (logits[0] - clean).abs().max() < 1e-4
    assert (logits[1] - corrupt).abs().max() < 1e-4
    assert torch.allclose(engine.faithfulness(masks), torch.tensor([1.0, 0.0]), atol=1e-5)
    assert (engine.clean_logits - clean).abs().max() < 1e-4


def test_gpt2_smalls_full_shape_in_the_hubs_layout():
    """158 nodes, 32,491 edges; unprefixed keys and causal-mask buffers as in the hub's file."""
    torch.manual_seed(0)
    config = GPT2Config()
    module = GPT2LMHeadModel(config).eval()
    tensors = {
        k.removeprefix("transformer."): v for k, v in module.state_dict().items() if k != "lm_head.weight"
    }
    tensors |= {f"h.{l}.attn.bias": torch.ones(1, 1, 1024, 1024, dtype=torch.bool).tril() for l in range(12)}
    model = gpt2.from_checkpoint("gpt2", config, tensors)
    assert (model.graph.n_nodes, model.graph.n_edges) == (158, 32_491)
    pairs = tiny_pairs(2, 6)
    everything = np.ones(model.graph.n_edges, bool)
    with torch.no_grad():
        clean, corrupt = (module(torch.tensor(p)).logits[:, -1] for p in (pairs.clean, pairs.corrupt))
    logits = Engine(model, pairs).logits(np.stack([everything, ~everything]))
    assert (logits[0] - clean).abs().max() < 1e-4
    assert (logits[1] - corrupt).abs().max() < 1e-4


@pytest.mark.parametrize("seed", ["seed0", "seed1"])
def test_the_circuit_logits_of_eap_ig(seed):
    golden = np.load(GOLDEN / seed / "golden.npz")
    model = load_model(GOLDEN / seed, dtype=torch.float64)
    graph = model.graph
    clean, corrupt = golden["clean_tokens"], golden["corrupt_tokens"]
    engine = Engine(model, TinyPairs(clean.tolist(), corrupt.tolist()))
    for name in ("half", "fifth", "empty", "full"):
        for suffix in ("raw", "pruned"):
            mask = golden[f"mask_{name}_{suffix}"][graph.edge_source, graph.edge_receiver]
            expected = golden[f"circuit_{name}_logits_f64"][:, -1]
            assert np.abs(engine.logits(mask)[0].numpy() - expected).max() < 1e-9
        raw = golden[f"mask_{name}_raw"][graph.edge_source, graph.edge_receiver]
        pruned = golden[f"mask_{name}_pruned"][graph.edge_source, graph.edge_receiver]
        assert (graph.prune(raw) == pruned).all()


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(KINDS), st.integers(0, 10**6), st.booleans(), st.integers(1, 3))
def test_random_masks_equal_the_slow_twin(kind, seed, ragged, prefix):
    model, pairs = tiny(kind), tiny_pairs(3, 6, seed, ragged, prefix)
    rng = np.random.default_rng(seed)
    density = rng.choice([0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 0.95], 2)
    masks = rng.random((2, model.graph.n_edges)) < density[:, None]
    logits = Engine(model, pairs).logits(masks)
    for mask, ours in zip(masks, logits, strict=True):
        assert (ours - slow_logits(model, pairs, mask)).abs().max() < 1e-9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ragged", [False, True])
def test_mask_gradients_equal_the_slow_twins_and_finite_differences(kind, ragged):
    model, pairs = tiny(kind), tiny_pairs(3, 6, 5, ragged)
    engine = Engine(model, pairs)
    rng = np.random.default_rng(0)
    edges = np.sort(rng.choice(model.graph.n_edges, 60, replace=False))
    weights = rng.random((2, 60))
    weights[:, :5] = 0  # edges of weight 0 have a gradient too
    result = engine.gradient(weights, edges)
    for i in range(2):
        whole = torch.zeros(model.graph.n_edges, dtype=torch.float64)
        whole[edges] = torch.tensor(weights[i])
        whole.requires_grad_()
        value = engine.kl_objective(slow_logits(model, pairs, whole)[None])[0]
        (expected,) = torch.autograd.grad(value.mean(), whole)
        assert torch.allclose(result.value[i], value.detach(), atol=1e-10)
        assert torch.allclose(result.gradient[i], expected[edges], atol=1e-10)
    h = 1e-5
    for e in rng.choice(60, 5, replace=False):
        step = np.zeros(60)
        step[e] = h
        up, down = (engine.gradient(weights[:1] + s, edges).value.mean() for s in (step, -step))
        assert abs((up - down) / (2 * h) - result.gradient[0, e]) < 1e-6


def test_any_objective_and_any_order_of_edges():
    model, pairs = tiny("llama-gqa"), tiny_pairs()
    engine = Engine(model, pairs)
    rng = np.random.default_rng(1)
    edges = rng.permutation(model.graph.n_edges)[:80]
    weights = rng.random((1, 80))
    order = np.argsort(edges)

    def difference(logits):
        return logits[..., 3] - logits[..., 7]

    a = engine.gradient(weights, edges, difference).gradient[0]
    b = engine.gradient(weights[:, order], edges[order], difference).gradient[0]
    assert torch.equal(a[order], b)
    masks = rng.random((2, 80)) < 0.6
    assert torch.allclose(
        engine.measure(masks, difference, edges), engine.measure(masks[:, order], difference, edges[order])
    )
    whole = np.zeros((2, model.graph.n_edges), bool)
    whole[:, edges] = masks
    assert torch.allclose(engine.kl(whole), engine.kl(masks, edges), atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_results_do_not_depend_on_chunks_order_padding_or_company(kind):
    model, pairs = tiny(kind), tiny_pairs(4, 7, 3, ragged=True)
    engine, rng = Engine(model, pairs), np.random.default_rng(2)
    masks = rng.random((12, model.graph.n_edges)) < rng.random((12, 1))
    masks[5], masks[6] = masks[4], False
    kl = engine.kl(masks)
    assert torch.allclose(Engine(model, pairs, memory_bytes=1).kl(masks), kl, atol=1e-12)
    order = rng.permutation(12)
    assert torch.allclose(engine.kl(masks[order]), kl[order], atol=1e-12)
    for i in range(12):
        assert torch.allclose(engine.kl(masks[i])[0], kl[i], atol=1e-12)
    assert torch.allclose(engine.kl(model.graph.prune(masks)), kl, atol=1e-12)
    for p in range(4):  # a single pair needs no padding
        alone = Engine(model, TinyPairs([pairs.clean[p]], [pairs.corrupt[p]])).kl(masks)[:, 0]
        assert torch.allclose(alone, kl[:, p], atol=1e-12)
    weights = rng.random((5, model.graph.n_edges))
    whole, chunked = (
        engine.gradient(weights).gradient,
        Engine(model, pairs, memory_bytes=1).gradient(weights).gradient,
    )
    assert torch.allclose(whole, chunked, atol=1e-12)


def test_identical_pairs_count_but_are_run_once():
    model, pairs = tiny("gpt2"), tiny_pairs(3)
    twice = TinyPairs(
        [*pairs.clean, pairs.clean[0], pairs.clean[0]], [*pairs.corrupt, pairs.corrupt[0], pairs.corrupt[0]]
    )
    engine = Engine(model, twice)
    assert engine.cache.n_pairs == 3
    mask = np.random.default_rng(0).random(model.graph.n_edges) < 0.3
    kl, expected = engine.kl(mask)[0], Engine(model, pairs).kl(mask)[0]
    assert torch.allclose(kl, expected[[0, 1, 2, 0, 0]])
    cut = Engine(model, pairs).kl(np.zeros(model.graph.n_edges, bool))[0][[0, 1, 2, 0, 0]].mean()
    assert abs(engine.faithfulness(mask)[0] - (1 - expected[[0, 1, 2, 0, 0]].mean() / cut)) < 1e-12
    assert engine.logits(mask).shape == (1, 5, 50)
    gradient = engine.gradient(mask[None].astype(float)).gradient
    alone = [Engine(model, TinyPairs([pairs.clean[i]], [pairs.corrupt[i]])) for i in range(3)]
    parts = [one.gradient(mask[None].astype(float)).gradient for one in alone]
    assert torch.allclose(gradient, (3 * parts[0] + parts[1] + parts[2]) / 5, atol=1e-12)


def test_circuits_that_agree_below_a_layer_share_everything_below_it():
    graph, rng = tiny("gpt2").graph, np.random.default_rng(0)
    base = rng.random(graph.n_edges) < 0.5
    masks = np.repeat(base[None], 8, axis=0)
    top = np.flatnonzero(graph.edge_stage >= 2 * (graph.n_layers - 1))
    masks[:, top] = rng.random((8, len(top))) < 0.5
    plan = make_plan(graph.everything, masks)
    below = [stage for stage in plan.stages if stage.layer < graph.n_layers - 1]
    for stage in below:  # no head is computed twice
        heads = np.concatenate([stage.heads_full.head, stage.heads_last.head])
        assert len(np.unique(heads)) == len(heads)
    assert make_plan(graph.everything, np.repeat(base[None], 8, axis=0)).n_outputs == 1


def test_work_at_the_prediction_position_only_where_nothing_else_reads():
    """input -> m0 -> logits is read only at the last position; input -> m0 -> a1.h0<v> at all positions."""
    model = tiny("gpt2")
    graph = model.graph

    def plan(*names):
        mask = np.zeros((1, graph.n_edges), bool)
        mask[0, [graph.edge_of_name(n) for n in names]] = True
        return make_plan(graph.everything, mask)

    straight = plan("input->m0", "m0->logits")
    assert (straight.n_full_slots, straight.n_last_slots) == (1, 1)
    through = plan("input->m0", "m0->a1.h0<v>", "a1.h0->logits")
    assert (through.n_full_slots, through.n_last_slots) == (2, 1)
    as_query = plan("input->m0", "m0->a1.h0<q>", "a1.h0->logits")
    assert (as_query.n_full_slots, as_query.n_last_slots) == (1, 2)


def test_passes():
    model, pairs = tiny("gpt2"), tiny_pairs(10)
    engine = Engine(model, pairs)
    engine.faithfulness(np.ones((6, model.graph.n_edges), bool))
    assert engine.passes == 6 * 10 / 20
    engine.gradient(np.ones((2, model.graph.n_edges)))
    assert engine.passes == 3 + 2 * 3 * 10 / 20
    assert len(engine.kl(np.ones((0, model.graph.n_edges), bool))) == 0


def test_bad_input_says_what_is_wrong():
    model = tiny("gpt2")
    with pytest.raises(MechRLError, match="equally long"):
        Engine(model, TinyPairs([[1, 2]], [[1, 2, 3]]))
    with pytest.raises(MechRLError, match="at least one"):
        Engine(model, TinyPairs([], []))
    with pytest.raises(MechRLError, match="context of 32"):
        Engine(model, TinyPairs([[1] * 33], [[2] * 33]))
    with pytest.raises(MechRLError, match="vocabulary of 50"):
        Engine(model, TinyPairs([[1, 50]], [[1, 2]]))
    engine = Engine(model, tiny_pairs())
    with pytest.raises(MechRLError, match="boolean"):
        engine.faithfulness(np.ones(model.graph.n_edges))
    with pytest.raises(MechRLError, match="entries"):
        engine.faithfulness(np.ones(7, bool))


def test_scaled_rotary_positions_follow_transformers():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    rope = dict(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=16,
    )
    config = LlamaConfig(
        hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, vocab_size=50,
        max_position_embeddings=64, rope_parameters=rope | dict(rope_theta=10000.0), tie_word_embeddings=True,
    )  # fmt: skip
    module = LlamaForCausalLM(config).eval()
    model = llama.from_checkpoint("scaled", config, module.state_dict())
    pairs = tiny_pairs(3, 30)
    with torch.no_grad():
        expected = module(torch.tensor(pairs.clean)).logits[:, -1]
    assert (Engine(model, pairs).logits(np.ones(model.graph.n_edges, bool))[0] - expected).abs().max() < 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_starting_at_a_stage_changes_nothing(kind):
    model, pairs = tiny(kind), tiny_pairs(3, 6, 4, ragged=True)
    graph, engine, rng = model.graph, Engine(model, pairs), np.random.default_rng(3)
    for density in (0.3, 1.0):
        base = rng.random(graph.n_edges) < density
        prefix = engine.prefix(base)
        for stage in range(2 * graph.n_layers + 1):
            upper = np.flatnonzero(graph.edge_stage >= stage)
            masks = np.repeat(base[None], 4, axis=0)
            masks[:, upper] = rng.random((4, len(upper))) < 0.4
            assert torch.allclose(
                engine.kl(masks[:, upper], upper, prefix, stage), engine.kl(masks), atol=1e-12
            )
    with pytest.raises(MechRLError, match="before stage 2"):
        engine.kl(np.ones(graph.n_edges, bool), None, prefix, 2)


def test_runs_that_do_not_fit_are_halved_and_stay_in_order():
    """Every circuit runs once, in order, whatever fits; one that does not fit alone is an error."""
    for fits in range(1, 8):

        def run(some: slice, fits: int = fits) -> list[int]:
            if some.stop - some.start > fits:
                raise torch.cuda.OutOfMemoryError
            return list(range(some.start, some.stop))

        found = list(fitting([slice(0, 7), slice(7, 20), slice(20, 21)], run))
        assert [i for _, result in found for i in result] == list(range(21))
        assert all(list(range(some.start, some.stop)) == result for some, result in found)

    def nothing_fits(some: slice) -> None:
        raise torch.cuda.OutOfMemoryError

    with pytest.raises(OutOfMemory, match="fewer pairs"):
        list(fitting([slice(0, 4)], nothing_fits))


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(KINDS), st.integers(0, 10**6), st.sampled_from([None, 2]))
def test_gradients_at_sparse_masks_equal_the_slow_twins(kind, seed, groups):
    """Most weights are 0, and most edges are on no path of nonzero weights: the skipped edges have zero gradient."""
    model, pairs, rng = tiny(kind), tiny_pairs(2, 6, seed), np.random.default_rng(seed)
    engine, E = Engine(model, pairs), model.graph.n_edges
    weights = rng.random((2, E)) * (rng.random((2, E)) < rng.choice([0, 0.02, 0.05, 0.2], (2, 1)))
    result = engine.gradient(weights, groups=groups)
    found = result.gradient if groups is None else result.gradient.sum(1)
    for i in range(2):
        whole = torch.tensor(weights[i], requires_grad=True)
        value = engine.kl_objective(slow_logits(model, pairs, whole)[None])[0]
        (expected,) = torch.autograd.grad(value.mean(), whole)
        assert torch.allclose(result.value[i], value.detach(), atol=1e-10)
        assert torch.allclose(found[i], expected, atol=1e-10)
