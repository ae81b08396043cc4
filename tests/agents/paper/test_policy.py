"""The policy: probabilities sum to one; the fast version agrees with the readable one; order, padding and batching change nothing."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from mechrl.agents.paper import kernels
from mechrl.agents.paper.env import BATCH_SIZES, MAX_PICKS, NODE, PRESENT, STOP, Actions, Task
from mechrl.agents.paper.policy import MLP, Action, Decision, Policy, State
from mechrl.agents.paper.policy_batched import Actor, Noise, act, new_trunk
from mechrl.agents.paper.policy_replay import Evaluation, evaluate
from mechrl.agents.paper.policy_tables import States, Tables
from tests.agents.paper.tasks import small_task

PARTS = ("log_prob", "type_entropy", "pick_entropy", "value")


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return [small_task("gpt2", 40), small_task("llama-gqa", 33, 1)]


def random_policy(seed: int = 0, all_types: bool = True) -> Policy:
    """A policy with perturbed weights, in double precision; all action types occur."""
    torch.manual_seed(seed)
    policy = Policy(16).double()
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.3 * torch.randn_like(p))
        if all_types:
            policy.type_head.second.bias.zero_()
            policy.type_head.second.weight.mul_(0.1)
    return policy


def tables_of(tasks: list[Task]) -> Tables:
    t = Tables.of(tasks)
    return replace(t, edges=t.edges.double(), nodes=t.nodes.double(), degree=t.degree.double())


def random_states(tables: Tables, n: int, seed: int = 0, density: float = 0.8) -> States:
    g = torch.Generator().manual_seed(seed)
    task = torch.randint(len(tables.edges), (n,), generator=g)
    mask = torch.rand(n, tables.K, generator=g) < density
    values = torch.rand(n, 6, generator=g, dtype=torch.float64)
    return States(task, mask & tables.real_edges[task], values)


def state_of(tables: Tables, states: States, i: int) -> State:
    """One state as the readable policy takes it, without padding."""
    t = int(states.task[i])
    K, M = int(tables.n_edges[t]), int(tables.n_nodes[t])
    mask = states.mask[i, :K]
    return State(tables.edges[t, :K], tables.nodes[t, :M], tables.parent[t, :K], mask, states.globals[i])


def slowly(policy: Policy, tables: Tables, states: States, actions: Actions) -> Evaluation:
    """`evaluate`, computed by the readable policy."""
    found: list[Decision] = []
    for i, kind in enumerate(actions.type.tolist()):
        action = Action(kind, tuple(actions.edges[i, : BATCH_SIZES[kind]].tolist()), int(actions.node[i]))
        found.append(policy.decide(state_of(tables, states, i), action))
    return Evaluation(*(torch.stack([getattr(d, part) for d in found]) for part in PARTS))


def acts(policy: Policy, tables: Tables, states: States, seed: int = 0) -> tuple[Actions, Evaluation]:
    """Sampled actions with their probabilities and values."""
    choice = Actor(policy, tables).act(states, torch.Generator().manual_seed(seed))
    none = torch.zeros(len(states))
    return choice.actions, Evaluation(choice.log_prob, none, none, choice.value)


def test_what_was_drawn_has_the_readable_policys_probability(tasks):
    policy, tables = random_policy(), tables_of(tasks)
    states = random_states(tables, 120)
    actions, drawn = acts(policy, tables, states)
    assert set(actions.type) == set(range(6))
    slow = slowly(policy, tables, states, actions)
    assert torch.allclose(drawn.log_prob, slow.log_prob, rtol=0, atol=1e-12)
    assert torch.allclose(drawn.value, slow.value, rtol=0, atol=1e-12)
    assert torch.allclose(Actor(policy, tables).value(states), slow.value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n", [1, 90])
def test_replay_is_the_readable_policy_with_its_gradients(tasks, n):
    policy, tables = random_policy(1), tables_of(tasks)
    states = random_states(tables, n, 3, density=0.85)
    actions, _ = acts(policy, tables, states, 2)
    assert n == 1 or set(actions.type) == set(range(6))
    fast, slow = evaluate(policy, tables, states, actions), slowly(policy, tables, states, actions)
    parameters = list(policy.parameters())
    weight = torch.rand(n, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    for part in PARTS:
        ours, expected = getattr(fast, part), getattr(slow, part)
        assert torch.allclose(ours, expected.double(), rtol=0, atol=1e-12), part
        if not expected.requires_grad:  # nothing was picked
            continue
        for g, h in zip(
            *(
                torch.autograd.grad(weight @ x.double(), parameters, retain_graph=True, allow_unused=True)
                for x in (ours, expected)
            ),
            strict=True,
        ):
            g, h = (torch.zeros(()) if x is None else x for x in (g, h))
            assert torch.allclose(g.double(), h.double(), rtol=0, atol=1e-10), part


def test_acting_step_by_step_or_on_recorded_noise_is_the_same(tasks):
    """The GPU's loop, which masks out finished rows, against the loop that drops them."""
    policy, tables = random_policy(1), tables_of(tasks)
    states = random_states(tables, 30, 5, density=0.5)
    states.mask[:3] = False
    noise, trunk = torch.zeros(MAX_PICKS + 2, 30, tables.K), new_trunk(policy, tables)
    greedy = Actor(policy, tables).act(states, greedy=True)
    with torch.no_grad():
        decided, log_prob, value = act(trunk, tables, states, Noise(recorded=noise))
    assert (decided[:, 2:].numpy() == greedy.actions.edges).all()
    assert (decided[:, 0].numpy() == greedy.actions.type).all()
    assert torch.allclose(log_prob, greedy.log_prob) and torch.allclose(value, greedy.value)
    with torch.no_grad():
        drawn, log_prob, _ = act(trunk, tables, states, Noise(recorded=noise.exponential_().log_().neg_()))
    actions = Actions(drawn[:, 0].numpy(), drawn[:, 2:].numpy(), drawn[:, 1].numpy())
    result = evaluate(policy, tables, states, actions)
    assert torch.allclose(result.log_prob, log_prob, rtol=0, atol=1e-12)
    assert len(drawn[:, 0].unique()) > 2


def test_actions_are_legal(tasks):
    policy, tables = random_policy(3), tables_of(tasks)
    states = random_states(tables, 80, 1, density=0.15)
    actions, _ = acts(policy, tables, states, 1)
    for i, kind in enumerate(actions.type):
        picks = actions.edges[i, : BATCH_SIZES[kind]]
        assert states.mask[i][picks].all() and len(set(picks.tolist())) == len(picks)
        if kind == NODE:
            assert actions.node[i] in tables.parent[states.task[i]][states.mask[i]].tolist()
    empty = replace(states, mask=torch.zeros_like(states.mask))
    assert (acts(policy, tables, empty)[0].type == STOP).all()


def test_probabilities_of_all_actions_add_up_to_one(tasks):
    """All actions on five edges: stop, each edge, three edges in every order, each component."""
    policy, tables = random_policy(), tables_of(tasks)
    states = random_states(tables, 1, 2)
    alive = states.mask[0].nonzero()[:5, 0].tolist()
    states.mask[0] = False
    states.mask[0, alive] = True
    s = state_of(tables, states, 0)
    actions = [Action(STOP), *(Action(1, (e,)) for e in alive)]
    actions += [Action(2, order) for order in itertools.permutations(alive, 3)]
    actions += [Action(NODE, node=j) for j in range(len(s.nodes))]
    with torch.no_grad():
        total = sum(policy.decide(s, action).log_prob.exp() for action in actions)
    assert abs(float(total) - 1) < 1e-12


def test_the_readable_policy_draws_what_it_says(tasks):
    policy, tables = random_policy(), tables_of(tasks)
    s = state_of(tables, random_states(tables, 1, 2), 0)
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        drawn = [policy.decide(s, generator=g).action.type for _ in range(400)]
        of_types = policy.type_log_probs(
            policy.pool(policy.embed_edges(s), policy.embed_nodes(s), s.globals), 30
        )
    assert np.bincount(drawn, minlength=6) / 400 == pytest.approx(of_types.exp().numpy(), abs=0.08)


def test_a_pick_changes_the_mask_and_the_fraction_present_alone(tasks):
    tables = tables_of(tasks)
    s = state_of(tables, random_states(tables, 1, 2), 0)
    edge = int(s.mask.nonzero()[3])
    after = s.without(edge)
    assert s.mask[edge] and not after.mask[edge] and after.mask.sum() == s.mask.sum() - 1
    change = after.globals - s.globals
    assert change[PRESENT] == pytest.approx(-1 / len(s.mask)) and change.count_nonzero() == 1


def test_the_order_of_candidates_does_not_matter(tasks):
    policy, tables = random_policy(), tables_of(tasks[:1])
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    shuffled = replace(tables, edges=tables.edges[:, order], parent=tables.parent[:, order])
    states = random_states(tables, 12)
    moved = replace(states, mask=states.mask[:, order])
    actions, drawn = acts(policy, tables, states)
    place = torch.argsort(order).numpy()
    there = replace(actions, edges=np.where(actions.edges >= 0, place[actions.edges.clip(0)], -1))
    result = evaluate(policy, shuffled, moved, there)
    assert torch.allclose(result.log_prob, drawn.log_prob, atol=1e-12)


def test_padding_and_company_do_not_matter(tasks):
    policy, both, alone = random_policy(), tables_of(tasks), tables_of(tasks[1:])
    states = random_states(both, 20, 4)
    second = (states.task == 1).nonzero()[:, 0]
    a, drawn = acts(policy, both, states)
    narrow = States(torch.zeros_like(second), states.mask[second, : alone.K], states.globals[second])
    actions = Actions(*(x[second.numpy()] for x in (a.type, a.edges, a.node)))
    result = evaluate(policy, alone, narrow, actions)
    assert torch.allclose(result.log_prob, drawn.log_prob[second], atol=1e-12)


def test_chunks_do_not_matter(tasks, monkeypatch):
    policy, tables = random_policy(), tables_of(tasks)
    states = random_states(tables, 20, 5)
    actions, _ = acts(policy, tables, states)
    whole = evaluate(policy, tables, states, actions)
    (g,) = torch.autograd.grad(whole.log_prob.sum(), policy.edge_embedding.first.weight)
    monkeypatch.setattr(kernels, "_CHUNK", 1)
    parts = evaluate(policy, tables, states, actions)
    (h,) = torch.autograd.grad(parts.log_prob.sum(), policy.edge_embedding.first.weight)
    assert torch.allclose(whole.log_prob, parts.log_prob, atol=1e-12) and torch.allclose(g, h, atol=1e-12)


def test_an_actor_follows_the_weights(tasks):
    policy, tables = random_policy(), tables_of(tasks)
    actor, states = Actor(policy, tables), random_states(tables, 6)
    before = actor.value(states)
    with torch.no_grad():
        policy.value_head.second.bias.add_(1.0)
        policy.edge_embedding.first.weight.mul_(0.5)
    actor.refresh()
    after = actor.value(states)
    assert torch.equal(after, Actor(policy, tables).value(states)) and (after != before).all()


def test_greedy_takes_the_likeliest(tasks):
    policy, tables = random_policy(), tables_of(tasks)
    states = random_states(tables, 5, 7)
    a, b = (Actor(policy, tables).act(states, greedy=True).actions for _ in range(2))
    assert (a.type == b.type).all() and (a.edges == b.edges).all()
    for i in range(5):
        s = state_of(tables, states, i)
        c = policy.pool(policy.embed_edges(s), policy.embed_nodes(s), s.globals)
        assert a.type[i] == int(policy.type_log_probs(c, int(s.mask.sum())).argmax())


def test_an_untrained_agent_does_not_stop_at_once():
    torch.manual_seed(0)
    task = small_task()
    policy, tables = Policy(), Tables.of([task])
    mask = torch.ones(200, task.K, dtype=torch.bool)
    states = States(torch.zeros(200, dtype=torch.int64), mask, torch.rand(200, 6))
    kinds = Actor(policy, tables).act(states, torch.Generator().manual_seed(0)).actions.type
    assert (kinds == STOP).mean() < 0.02 and np.bincount(kinds, minlength=6).argmax() == 1
    assert sum(p.numel() for p in policy.parameters()) * 4 < 2_000_000


def test_a_perceptron_has_nothing_after_its_second_layer():
    torch.manual_seed(0)
    assert (MLP(3, 8, 8)(torch.randn(50, 3)) < 0).any()


def test_draws_follow_their_probabilities():
    p = torch.tensor([0.5, 0.3, 0.15, 0.05, 0.0])
    draws = Noise(torch.Generator().manual_seed(0)).draw(p.log().repeat(40_000, 1), 0)
    assert torch.bincount(draws, minlength=5) / 40_000 == pytest.approx(p.numpy(), abs=0.01)
