"""Attribution against EAP-IG's own scores, a slow per-edge computation and finite differences; and its cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mechrl import attribution
from mechrl.attribution import (
    cached,
    cached_by,
    eap,
    eap_ig_activations,
    eap_ig_inputs,
    exact,
    integrated_mask_gradients,
    loss,
)
from mechrl.behaviours import Pairs
from mechrl.engine import Engine
from mechrl.errors import MechRLError
from mechrl.models import load_model
from tests.slow import Parts, slow_circuit_logits, slow_run
from tests.tiny import tiny, tiny_pairs

GOLDEN = Path(__file__).parent / "data" / "golden"
METRICS = ("logit-difference", "probability-difference", "kl")


def with_answers(clean, corrupt, answers=(7,), foils=(11,)) -> Pairs:
    n = len(clean)
    as_ids = [tuple(tuple(int(t) for t in row) for row in tokens) for tokens in (clean, corrupt)]
    return Pairs(*as_ids, (answers,) * n, (foils,) * n, (("", ""),) * n)


def tiny_case(kind: str, n: int = 3) -> tuple[Engine, Pairs]:
    tokens = tiny_pairs(n, 5)
    pairs = with_answers(tokens.clean, tokens.corrupt, (7, 8), (11,))
    return Engine(tiny(kind), pairs), pairs


# ---- EAP-IG's own scores --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_scores_equal_those_of_eap_ig(seed):
    golden = np.load(GOLDEN / f"seed{seed}" / "golden.npz")
    model = load_model(GOLDEN / f"seed{seed}", dtype=torch.float64)
    pairs = with_answers(golden["clean_tokens"], golden["corrupt_tokens"])
    engine = Engine(model, pairs)
    objective = loss("logit-difference", pairs, engine)
    edges = [model.graph.edge_of_name(name) for name in golden["edge_names"]]
    assert sorted(edges) == list(range(model.graph.n_edges))

    def theirs(name: str) -> np.ndarray:
        scores = np.empty(len(edges))
        scores[edges] = golden[f"scores_{name}_f64"][golden["edge_src"], golden["edge_dst"]]
        return scores

    n = len(pairs)  # their gradient scores are divided by the number of pairs a second time
    np.testing.assert_allclose(eap(engine, objective), n * theirs("eap"), atol=1e-9, rtol=0)
    np.testing.assert_allclose(
        eap_ig_inputs(engine, objective, 5, "from-corrupt"), n * theirs("eap_ig5"), atol=1e-9, rtol=0
    )
    np.testing.assert_allclose(exact(engine, objective), theirs("exact"), atol=1e-9, rtol=0)


# ---- the definitions, edge by edge ----------------------------------------------------------------------------------


class Slow:
    """Computes everything from activations and one autograd gradient per receiver, without masks."""

    def __init__(self, engine: Engine, pairs: Pairs, metric: str, parts: Parts | None = None) -> None:
        self.model, self.graph, self.parts = engine.model, engine.graph, parts
        self.objective = loss(metric, pairs, engine)
        self.tokens = torch.tensor(pairs.clean)
        self.clean, _ = slow_run(self.model, self.tokens, lambda u, v, now: now)
        self.corrupt, _ = slow_run(self.model, torch.tensor(pairs.corrupt), lambda u, v, now: now)

    def gradients(self, position: float, group: set[int]) -> list[torch.Tensor]:
        """∂L/∂x_v of every receiver v when the sources of `group` write a_corr + position · (a_clean − a_corr)."""
        probes = [torch.zeros_like(self.clean[0], requires_grad=True) for _ in range(self.graph.n_receivers)]

        def carried(source, receiver, now):
            if source in group:
                now = self.corrupt[source] + position * (self.clean[source] - self.corrupt[source])
            return now + probes[receiver] if source == 0 else now

        logits = slow_run(self.model, self.tokens, carried, self.parts)[1][:, -1]
        return torch.autograd.grad(self.objective(logits[None])[0].mean(), probes, materialize_grads=True)

    def scores(self, positions, group: set[int], sources: set[int]) -> np.ndarray:
        total = np.zeros(self.graph.n_edges)
        for position in positions:
            gradients = self.gradients(position, group)
            for edge in range(self.graph.n_edges):
                u, v = int(self.graph.edge_source[edge]), int(self.graph.edge_receiver[edge])
                if u in sources:
                    total[edge] += float(((self.corrupt[u] - self.clean[u]) * gradients[v]).sum()) / len(
                        positions
                    )
        return total


POSITIONS = {"from-corrupt": (0, 1 / 3, 2 / 3), "to-clean": (1 / 3, 2 / 3, 1)}


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa"])
def test_every_method_equals_its_definition(kind, metric):
    engine, pairs = tiny_case(kind, n=2)
    graph, slow = engine.graph, Slow(engine, pairs, metric)
    objective, everyone = loss(metric, pairs, engine), set(range(graph.n_sources))

    def same(ours, theirs):
        np.testing.assert_allclose(ours, theirs, atol=1e-9, rtol=1e-9)

    same(eap(engine, objective), slow.scores([1.0], set(), everyone))
    layers = range(graph.n_layers)
    groups = [
        {0},
        *({graph.head(l, h) for h in range(graph.n_heads)} for l in layers),
        *({graph.mlp(l)} for l in layers),
    ]
    for convention, positions in POSITIONS.items():
        same(eap_ig_inputs(engine, objective, 3, convention), slow.scores(positions, {0}, everyone))
        same(
            eap_ig_activations(engine, objective, 3, convention),
            sum(slow.scores(positions, g, g) for g in groups),
        )


@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa"])
def test_exact_effects_and_mask_gradients_equal_a_slow_computation(kind):
    engine, pairs = tiny_case(kind)
    graph, objective = engine.graph, loss("logit-difference", pairs, engine)
    tokens = torch.tensor(pairs.clean), torch.tensor(pairs.corrupt)

    def slow(mask: torch.Tensor, of=objective) -> torch.Tensor:
        return of(slow_circuit_logits(engine.model, *tokens, mask)[None])[0].mean()

    rng = np.random.default_rng(0)
    whole = torch.ones(graph.n_edges, dtype=torch.float64)
    some = rng.choice(graph.n_edges, 6, replace=False)
    cut = [float(slow(whole.index_fill(0, torch.tensor([int(e)]), 0.0)) - slow(whole)) for e in some]
    np.testing.assert_allclose(exact(engine, objective, some), cut, atol=1e-9)

    edges = np.flatnonzero(rng.random(graph.n_edges) < 0.6)
    mask = rng.random(len(edges)) < 0.7
    expected = np.zeros(len(edges))
    for alpha in (0.25, 0.75):
        weights = torch.zeros(graph.n_edges, dtype=torch.float64)
        weights[edges[mask]] = alpha
        weights.requires_grad_()
        (gradient,) = torch.autograd.grad(slow(weights, engine.kl_objective), weights)
        expected -= np.where(mask, gradient[edges].numpy(), 0) / 2
    np.testing.assert_allclose(integrated_mask_gradients(engine, edges, mask, steps=2), expected, atol=1e-9)


def test_mask_gradients_add_up_to_the_faithfulness():
    engine, _ = tiny_case("gpt2")
    rng = np.random.default_rng(1)
    edges = np.arange(engine.graph.n_edges)
    for mask in (np.ones(len(edges), bool), rng.random(len(edges)) < 0.7, np.zeros(len(edges), bool)):
        scores = integrated_mask_gradients(engine, edges, mask, steps=200)
        f = float(engine.faithfulness(mask[None])[0])
        assert scores.sum() == pytest.approx(f * engine.kl_cut, abs=0.02 * engine.kl_cut)
    np.testing.assert_array_equal(scores, 0)


@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa"])
def test_exact_effects_correlate_with_eap_ig(kind):
    engine, pairs = tiny_case(kind, n=4)
    objective = loss("logit-difference", pairs, engine)
    effects = exact(engine, objective)
    for name, scores in {
        "EAP": eap(engine, objective),
        "EAP-IG inputs": eap_ig_inputs(engine, objective),
        "EAP-IG activations": eap_ig_activations(engine, objective),
    }.items():
        correlation = np.corrcoef(effects, scores)[0, 1]
        print(f"{kind}: correlation of exact effects with {name} {correlation:.3f}")
        assert correlation > 0


def test_corrupting_an_edge_of_positive_score_raises_the_loss():
    """The sign of scores: for edges into the logits the first-order estimate is nearly exact."""
    engine, pairs = tiny_case("gpt2")
    for metric in METRICS[:2]:
        objective = loss(metric, pairs, engine)
        edge = int(
            np.argmax(
                np.where(engine.graph.edge_receiver == engine.graph.logits, exact(engine, objective), 0)
            )
        )
        mask = np.ones((1, engine.graph.n_edges), bool)
        mask[0, edge] = False
        assert eap(engine, objective)[edge] > 0
        assert engine.measure(mask, objective).mean() > engine.measure(~mask | mask, objective).mean()


def test_what_makes_no_sense_is_refused():
    engine, pairs = tiny_case("gpt2")
    objective = loss("kl", pairs, engine)
    with pytest.raises(MechRLError, match="at least one step"):
        eap_ig_inputs(engine, objective, steps=0)
    with pytest.raises(MechRLError, match="unknown convention"):
        eap_ig_inputs(engine, objective, convention="sideways")
    with pytest.raises(MechRLError, match="unknown attribution"):
        attribution.attribute(engine, pairs, "kl", "guess")


# ---- cache ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MECHRL_CACHE", str(tmp_path))
    return tmp_path / "scores"


def test_a_hit_returns_the_same_scores_and_charges_the_same_passes(cache, monkeypatch):
    engine, pairs = tiny_case("gpt2")
    first = cached(engine, pairs, "kl")
    cost = engine.passes
    assert cost == pytest.approx(5 * 3 * 3 / 20)  # five steps, forward and backward, 3 pairs of 20
    monkeypatch.setattr(attribution, "_eap_ig_inputs", lambda *a: pytest.fail("computed again"))
    again, _ = tiny_case("gpt2")
    np.testing.assert_array_equal(cached(again, pairs, "kl"), first)
    assert again.passes == cost
    assert [path.suffix for path in cache.iterdir()] == [".safetensors"]


def test_scores_by_several_metrics_are_those_by_each_and_cost_as_much(cache, tmp_path, monkeypatch):
    engine, pairs = tiny_case("llama-gqa")
    together = cached_by(engine, pairs, METRICS)
    monkeypatch.setenv("MECHRL_CACHE", str(tmp_path / "other"))
    again, _ = tiny_case("llama-gqa")
    for metric, scores in zip(METRICS, together, strict=True):
        np.testing.assert_array_equal(cached(again, pairs, metric), scores)
    assert engine.passes == again.passes
    hits, _ = tiny_case("llama-gqa")
    for scores, known in zip(cached_by(hits, pairs, METRICS), together, strict=True):
        np.testing.assert_array_equal(scores, known)
    assert hits.passes == engine.passes


def test_whatever_determines_the_scores_misses(cache):
    engine, pairs = tiny_case("gpt2")
    other = replace(pairs, answers=((9,),) * 3)
    cases = [
        lambda: cached(engine, pairs, "logit-difference"),
        lambda: cached(engine, pairs, "probability-difference"),
        lambda: cached(engine, other, "logit-difference"),
        lambda: cached(Engine(tiny("gpt2", dtype=torch.float32), pairs), pairs, "logit-difference"),
        lambda: cached(Engine(tiny("gpt2", seed=1), pairs), pairs, "logit-difference"),
        lambda: cached(Engine(tiny("gpt2"), other.take([0, 1])), pairs.take([0, 1]), "logit-difference"),
    ]
    for i, case in enumerate(cases, 1):
        case()
        assert len(list(cache.iterdir())) == i
    cached(engine, pairs, "kl")
    cached(engine, other, "kl")  # KL does not look at the answers
    assert len(list(cache.iterdir())) == len(cases) + 1


@pytest.mark.parametrize("damage", [b"", b"garbage", "truncated", "another's"])
def test_a_damaged_file_is_computed_again(cache, damage, monkeypatch):
    engine, pairs = tiny_case("gpt2")
    scores = cached(engine, pairs, "logit-difference")
    (path,) = cache.iterdir()
    sound = path.read_bytes()
    if damage == "another's":
        cached(engine, pairs, "kl")
        (other,) = set(cache.iterdir()) - {path}
        damage = other.read_bytes()
        other.unlink()
    path.write_bytes(sound[: len(sound) // 2] if damage == "truncated" else damage)
    np.testing.assert_array_equal(cached(engine, pairs, "logit-difference"), scores)
    monkeypatch.setattr(attribution, "_eap_ig_inputs", lambda *a: pytest.fail("not mended"))
    np.testing.assert_array_equal(cached(engine, pairs, "logit-difference"), scores)


def test_without_a_writable_cache_scores_are_computed(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MECHRL_CACHE", str(tmp_path / "file"))
    engine, pairs = tiny_case("gpt2")
    assert cached(engine, pairs, "kl").shape == (engine.graph.n_edges,)
