"""GIM and RelP against hand-written derivatives, and the conservation property of relevance propagation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mechrl.attribution import attribute, eap, loss
from mechrl.engine import Engine
from mechrl.engine.rules import GIM, RELP, Rules
from tests.slow import Parts, slow_run
from tests.test_attribution import Slow, tiny_case, with_answers
from tests.tiny import tiny


class _Norm(torch.autograd.Function):
    """x̂ = (x − mean) · s, or x · s; s is held constant."""

    @staticmethod
    def forward(ctx, x, centre: bool, eps: float):
        ctx.centre = centre
        centred = x - x.mean(-1, keepdim=True) if centre else x
        scale = 1 / torch.sqrt((centred**2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(scale)
        return centred * scale

    @staticmethod
    def backward(ctx, grad):
        (scale,) = ctx.saved_tensors
        grad = grad * scale
        return grad - grad.mean(-1, keepdim=True) if ctx.centre else grad, None, None


class _Softmax(torch.autograd.Function):
    """diag(p) − p pᵀ at p = softmax(scores / T)."""

    @staticmethod
    def forward(ctx, scores, temperature: float):
        ctx.save_for_backward((scores / temperature).softmax(-1))
        return scores.softmax(-1)

    @staticmethod
    def backward(ctx, grad):
        (p,) = ctx.saved_tensors
        jacobian = torch.diag_embed(p) - p[..., :, None] * p[..., None, :]
        return (jacobian @ grad[..., None])[..., 0], None


class _Linear(torch.autograd.Function):
    """A value with derivative `slope`."""

    @staticmethod
    def forward(ctx, x, value, slope):
        ctx.save_for_backward(slope)
        return value.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0], None, None


class ByHand(Parts):
    def __init__(self, model, rules: Rules) -> None:
        super().__init__(model)
        self.rules = rules

    def normalise(self, x):
        return _Norm.apply(x, self.model.spec.norm == "layer", self.model.spec.eps)

    def query_or_key(self, x):
        return _Linear.apply(x, x, torch.full_like(x, self.rules.query_key))

    def value(self, x):
        return _Linear.apply(x, x, torch.full_like(x, self.rules.value))

    def softmax(self, scores):
        return _Softmax.apply(scores, self.rules.temperature)

    def mlp(self, layer, x):
        mlp = self.model.mlp[layer]

        def act(h):
            value = mlp.activate(h.detach())
            return _Linear.apply(h, value, value / h.detach()) if self.rules.secant else mlp.activate(h)

        hidden = x @ mlp.W_in + mlp.b_in
        if mlp.W_gate is None:
            return act(hidden) @ mlp.W_out + mlp.b_out
        gate = act(x @ mlp.W_gate + mlp.b_gate)
        product = self.rules.product * (gate * hidden)
        return (product + (1 - self.rules.product) * (gate * hidden).detach()) @ mlp.W_out + mlp.b_out


@pytest.mark.parametrize("rules", [GIM, RELP, replace(RELP, query_key=0.25, temperature=3.0)])
@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa", "qwen2"])
def test_scores_are_those_of_derivatives_written_out(kind: str, rules: Rules) -> None:
    engine, pairs = tiny_case(kind, n=2)
    objective = loss("logit-difference", pairs, engine)
    everyone = set(range(engine.graph.n_sources))
    slow = Slow(engine, pairs, "logit-difference", ByHand(engine.model, rules))
    ours = eap(engine, objective, rules)
    np.testing.assert_allclose(ours, slow.scores([1.0], set(), everyone), atol=1e-9, rtol=1e-9)
    assert not np.allclose(ours, eap(engine, objective))


@pytest.mark.parametrize("rules", [GIM, RELP])
@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa"])
def test_values_are_the_models_own(kind: str, rules: Rules) -> None:
    engine, pairs = tiny_case(kind)
    model, tokens = engine.model, torch.tensor(pairs.clean)

    class Ours(Parts):
        def normalise(self, x):
            return rules.normalise(model, x)

        def mlp(self, layer, x):
            return rules.mlp(model.mlp[layer], x)

    plain = slow_run(model, tokens, lambda source, receiver, now: now)[1]
    assert torch.allclose(slow_run(model, tokens, lambda u, v, now: now, Ours(model))[1], plain, atol=1e-10)
    whole = np.ones((1, engine.graph.n_edges))
    objective = loss("logit-difference", pairs, engine)
    values = [engine.gradient(whole, objective=objective, rules=r).value for r in (None, rules)]
    assert torch.allclose(*values)


def test_relevance_is_conserved() -> None:
    """Without biases, and with a corrupted run of zeros, the relevance out of the input equals the logit difference, and so does the
    relevance into the logits. Each side of a gated product gets half of it."""
    model = tiny("llama")
    silent = model.embedding.clone()
    silent[0] = 0
    model = replace(model, embedding=silent)
    clean = [[3, 9, 4, 1, 22], [8, 2, 30, 17, 5]]
    pairs = with_answers(torch.tensor(clean), torch.zeros(2, 5, dtype=torch.long))
    engine = Engine(model, pairs)
    difference = -float(loss("logit-difference", pairs, engine)(engine.clean_logits[None]).mean())
    scores, graph = attribute(engine, pairs, "logit-difference", "relp"), engine.graph
    assert scores[graph.edge_source == 0].sum() == pytest.approx(difference)
    assert scores[graph.edge_receiver == graph.logits].sum() == pytest.approx(difference)
    assert abs(difference) > 0.1


def test_they_cost_what_eap_costs() -> None:
    engine, pairs = tiny_case("gpt2")
    costs = []
    for method in ("eap", "gim", "relp"):
        before = engine.passes
        attribute(engine, pairs, "logit-difference", method)
        costs.append(engine.passes - before)
    assert costs == pytest.approx(3 * [3 * len(pairs) / 20])
