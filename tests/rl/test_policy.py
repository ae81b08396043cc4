"""The policy: probabilities that add up, replay that agrees, indifference to order, padding and company."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from mechrl.rl import kernels
from mechrl.rl.env import BATCH_SIZES, MAX_PICKS, NODE, STOP, TRADE, Task
from mechrl.rl.features import RANK, after_look, look
from mechrl.rl.policy import Policy, PolicyConfig, States, Tables, _Noise
from tests.rl import slow_policy
from tests.rl.tasks import small_task


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return [small_task("gpt2", 40), small_task("llama-gqa", 33, 1)]


def random_policy(seed: int = 0, types: int = 6) -> Policy:
    """Away from its start, where all picks are nearly equally likely."""
    torch.manual_seed(seed)
    policy = Policy(PolicyConfig(width=16, parts=types > 6, trades=types > 12)).double()
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.15 * torch.randn_like(p))
    return policy


def test_with_trades_is_the_same_policy_but_for_them(tasks):
    """Given that no exchange is chosen all types are as likely as before; its own logit is the same in every state."""
    policy, tables = random_policy(types=12), tables_of(tasks)
    grown, states = policy.with_trades(), random_states(tables, 30, looks=True)
    assert grown.config == replace(policy.config, trades=True) and grown.with_trades() is grown
    assert (
        not grown.type_head.second.weight[TRADE].any()
        and grown.type_head.second.bias[TRADE] == policy.config.part_bias - 1
    )

    def evaluate(agent: Policy, kind: int, states: States):
        return agent.evaluate(
            tables,
            states,
            torch.full((30,), kind),
            torch.full((30, MAX_PICKS), -1),
            torch.zeros(30, dtype=torch.int64),
        )

    never = replace(states, closed=states.closed | (torch.arange(13) == TRADE))
    before, closed = evaluate(policy, STOP, states), evaluate(grown, STOP, never)
    assert torch.allclose(before.value, closed.value) and torch.allclose(
        before.log_prob, closed.log_prob, atol=1e-12
    )
    trade, stop = evaluate(grown, TRADE, states).log_prob.exp(), evaluate(grown, STOP, states).log_prob.exp()
    assert ((trade > 0) == ~states.closed[:, TRADE]).all() and (trade > 0).any()
    assert torch.allclose(stop, before.log_prob.exp() * (1 - trade), atol=1e-12)


def tables_of(tasks: list[Task]) -> Tables:
    t = Tables.of(tasks)
    return replace(t, edges=t.edges.double(), nodes=t.nodes.double(), degree=t.degree.double())


def random_states(tables: Tables, n: int, seed: int = 0, density: float = 0.7, looks: bool = False) -> States:
    g = torch.Generator().manual_seed(seed)
    task = torch.randint(0, len(tables.edges), (n,), generator=g)
    inside = torch.arange(tables.edges.shape[1]) < tables.n_edges[task][:, None]
    mask = (torch.rand(inside.shape, generator=g) < density) & inside
    values = torch.rand(n, 6, generator=g, dtype=torch.float64)
    values[:, 2] = mask.sum(1) / tables.n_edges[task]
    scores = (
        torch.randn(mask.shape, generator=g, dtype=torch.float64)
        * mask
        * (torch.rand(mask.shape, generator=g) < 0.8)
    )
    closed = (
        (torch.rand(n, 13, generator=g) < 0.3) & (torch.arange(13) > 0) if looks else None
    )  # what was tried in vain since the look
    return States(task, mask, values, look(scores) if looks else None, closed)


def replay(policy, tables, states, choice):
    a = choice.actions
    return policy.evaluate(tables, states, *(torch.from_numpy(x) for x in (a.type, a.edges, a.node)))


@pytest.mark.parametrize(("looks", "types"), [(False, 6), (True, 6), (False, 12), (True, 12), (True, 13)])
def test_replayed_log_probabilities_are_the_stored_ones(tasks, looks, types):
    policy, tables = random_policy(types=types), tables_of(tasks)
    with torch.no_grad():
        policy.type_head.second.bias.zero_()  # all types occur
        policy.type_head.second.weight.mul_(0.1)
    states = random_states(tables, 120, looks=looks)
    choice = policy.act(tables, states, torch.Generator().manual_seed(0))
    assert set(choice.actions.type) == set(range(types))
    result = replay(policy, tables, states, choice)
    assert torch.allclose(result.log_prob, choice.log_prob, atol=1e-12)
    assert torch.allclose(result.value, choice.value, atol=1e-12)
    assert (result.entropy >= 0).all()


@pytest.mark.parametrize(("looks", "types"), [(False, 6), (True, 6), (True, 12), (True, 13)])
def test_replay_is_the_slow_twin_with_its_gradients(tasks, looks, types):
    policy, tables = random_policy(1, types), tables_of(tasks)
    with torch.no_grad():
        policy.type_head.second.bias.zero_()
        policy.type_head.second.weight.mul_(0.1)
    states = random_states(tables, 90, 3, density=0.85, looks=looks)
    choice = policy.act(tables, states, torch.Generator().manual_seed(2))
    assert set(choice.actions.type) == set(range(types))
    fast, slow = (
        replay(policy, tables, states, choice),
        slow_policy.evaluate(policy, tables, states, choice.actions),
    )
    for name in ("log_prob", "entropy", "value"):
        ours, expected = getattr(fast, name), getattr(slow, name)
        assert torch.allclose(ours, expected, rtol=0, atol=1e-12), name
        weight = torch.rand(90, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        parameters = list(policy.parameters())
        for g, h in zip(
            *(
                torch.autograd.grad(weight @ x, parameters, retain_graph=True, allow_unused=True)
                for x in (ours, expected)
            ),
            strict=True,
        ):
            assert (g is None or torch.allclose(g, g * 0 if h is None else h, rtol=0, atol=1e-10)) and (
                g is not None or not h.abs().max() > 1e-12
            )


@pytest.mark.parametrize("edges", [1, 500])
def test_states_with_tables_of_their_own_act_in_parts_as_all_together(tasks, edges, monkeypatch):
    policy, tables = random_policy(1), tables_of(tasks)
    states = random_states(tables, 30, 5, density=0.5, looks=True)
    whole, value = policy.act(tables, states, greedy=True), policy.value(tables, states)
    monkeypatch.setattr("mechrl.rl.policy._EDGES_AT_ONCE", edges)
    parts = [len(part) for part in states.parts()]
    assert sum(parts) == 30 and max(parts) * states.mask.shape[1] <= max(edges, states.mask.shape[1])
    part = policy.act(tables, states, greedy=True)
    assert (part.actions.type == whole.actions.type).all() and (
        part.actions.edges == whole.actions.edges
    ).all()
    assert torch.allclose(part.log_prob, whole.log_prob) and torch.allclose(part.value, whole.value)
    assert torch.allclose(policy.value(tables, states), value)
    drawn = policy.act(tables, states, torch.Generator().manual_seed(0))
    assert torch.allclose(replay(policy, tables, states, drawn).log_prob, drawn.log_prob, atol=1e-12)


@pytest.mark.parametrize("looks", [False, True])
def test_acting_step_by_step_or_on_recorded_noise_is_the_same(tasks, looks):
    """The loop that a GPU runs, in which rows that are done look on, against the one that leaves them out."""
    policy, tables = random_policy(1), tables_of(tasks)
    with torch.no_grad():
        policy.type_head.second.bias.zero_()
    states = random_states(tables, 30, 5, density=0.5, looks=looks)
    states.mask[:3] = False
    noise = torch.zeros(32, 30, tables.edges.shape[1])
    greedy = policy.act(tables, states, greedy=True)
    with torch.no_grad():
        decided, log_prob, value = policy._act(tables, states, _Noise(recorded=noise))
    assert (decided[:, 2:].numpy() == greedy.actions.edges).all() and (
        decided[:, 0].numpy() == greedy.actions.type
    ).all()
    assert torch.allclose(log_prob, greedy.log_prob) and torch.allclose(value, greedy.value)
    with torch.no_grad():
        drawn, log_prob, _ = policy._act(tables, states, _Noise(recorded=noise.exponential_().log_().neg_()))
    result = policy.evaluate(tables, states, drawn[:, 0], drawn[:, 2:], drawn[:, 1])
    assert torch.allclose(result.log_prob, log_prob, rtol=0, atol=1e-12)
    assert len(drawn[:, 0].unique()) > 2


@pytest.mark.parametrize("looks", [False, True])
def test_actions_are_legal(tasks, looks):
    policy, tables = random_policy(3), tables_of(tasks)
    states = random_states(tables, 80, 1, density=0.15, looks=looks)
    choice = policy.act(tables, states, torch.Generator().manual_seed(1))
    for i, kind in enumerate(choice.actions.type):
        assert states.closed is None or not states.closed[i, kind]
        picks = choice.actions.edges[i, : BATCH_SIZES[kind]]
        assert states.mask[i][picks].all() and len(set(picks.tolist())) == len(picks)
        if kind == NODE:
            parents = tables.parent[states.task[i]][states.mask[i]]
            assert choice.actions.node[i] in parents.tolist()
    empty = States(states.task, torch.zeros_like(states.mask), states.globals)
    assert (policy.act(tables, empty, torch.Generator()).actions.type == 0).all()


def test_probabilities_of_all_ordered_picks_add_up_to_one(tasks):
    policy, tables = random_policy(), tables_of(tasks)
    states = random_states(tables, 1, 2)
    alive = states.mask[0].nonzero()[:5, 0]
    mask = torch.zeros_like(states.mask)
    mask[0, alive] = True
    total = 0.0
    orders = list(itertools.permutations(alive.tolist(), 3))
    edges = torch.full((len(orders), 30), -1)
    edges[:, :3] = torch.tensor(orders)
    many = States(
        states.task.repeat(len(orders)), mask.repeat(len(orders), 1), states.globals.repeat(len(orders), 1)
    )
    with torch.no_grad():
        kind = torch.full((len(orders),), 2)
        log_prob = policy.evaluate(tables, many, kind, edges, torch.zeros_like(kind)).log_prob
        of_type = slow_policy.type_log_probs(
            policy, tables, States(many.task[:1], many.mask[:1], many.globals[:1])
        )[2]
        total = (log_prob - of_type).exp().sum()
        assert abs(total - 1) < 1e-12
        # and over everything: stop, one edge, three edges, a component
        singles = torch.full((5, 30), -1)
        singles[:, 0] = alive
        ones = States(states.task.repeat(5), mask.repeat(5, 1), states.globals.repeat(5, 1))
        p_one = policy.evaluate(
            tables, ones, torch.ones(5, dtype=torch.int64), singles, torch.zeros(5, dtype=torch.int64)
        ).log_prob
        M = int(tables.n_nodes[states.task[0]])
        nodes = States(states.task.repeat(M), mask.repeat(M, 1), states.globals.repeat(M, 1))
        nothing = torch.full((M, 30), -1)
        p_node = policy.evaluate(tables, nodes, torch.full((M,), NODE), nothing, torch.arange(M)).log_prob
        stop = States(states.task, mask, states.globals)
        p_stop = policy.evaluate(
            tables, stop, torch.zeros(1, dtype=torch.int64), nothing[:1], torch.zeros(1, dtype=torch.int64)
        ).log_prob
        whole = log_prob.exp().sum() + p_one.exp().sum() + p_node.exp().sum() + p_stop.exp().sum()
        assert abs(whole - 1) < 1e-12


def test_the_order_of_candidates_does_not_matter(tasks):
    policy, tables = random_policy(), tables_of(tasks[:1])
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    shuffled = replace(tables, edges=tables.edges[:, order], parent=tables.parent[:, order])
    states = random_states(tables, 12)
    moved = States(states.task, states.mask[:, order], states.globals)
    choice = policy.act(tables, states, torch.Generator().manual_seed(0))
    place = torch.argsort(order)
    edges = torch.from_numpy(choice.actions.edges)
    there = torch.where(edges >= 0, place[edges.clamp_min(0)], -1)
    kind, node = torch.from_numpy(choice.actions.type), torch.from_numpy(choice.actions.node)
    assert torch.allclose(
        policy.evaluate(shuffled, moved, kind, there, node).log_prob, choice.log_prob, atol=1e-12
    )


def test_padding_and_company_do_not_matter(tasks):
    policy, both, alone = random_policy(), tables_of(tasks), tables_of(tasks[1:])
    states = random_states(both, 20, 4)
    second = (states.task == 1).nonzero()[:, 0]
    choice = policy.act(both, states, torch.Generator().manual_seed(0))
    width = alone.edges.shape[1]
    narrow = States(torch.zeros_like(second), states.mask[second, :width], states.globals[second])
    a = choice.actions
    kind, edges, node = (torch.from_numpy(x)[second] for x in (a.type, a.edges, a.node))
    assert torch.allclose(
        policy.evaluate(alone, narrow, kind, edges, node).log_prob, choice.log_prob[second], atol=1e-12
    )


def test_chunks_do_not_matter(tasks, monkeypatch):
    policy, tables = random_policy(), tables_of(tasks)
    states = random_states(tables, 20, 5)
    choice = policy.act(tables, states, torch.Generator().manual_seed(0))
    whole = replay(policy, tables, states, choice)
    (g,) = torch.autograd.grad(whole.log_prob.sum(), policy.edge_embedding.first.weight)
    monkeypatch.setattr(kernels, "_CHUNK", 1)
    parts = replay(policy, tables, states, choice)
    (h,) = torch.autograd.grad(parts.log_prob.sum(), policy.edge_embedding.first.weight)
    assert torch.allclose(whole.log_prob, parts.log_prob, atol=1e-12) and torch.allclose(g, h, atol=1e-12)


def test_gradients_agree_with_finite_differences(tasks):
    policy, tables = random_policy(), tables_of(tasks)
    with torch.no_grad():
        policy.type_head.second.bias.copy_(
            torch.tensor([-5.0, 1, 0, 0, -5, 1])
        )  # components and edges are both chosen
    states = random_states(tables, 12, 6)
    choice = policy.act(tables, states, torch.Generator().manual_seed(0))
    assert NODE in choice.actions.type and len(set(choice.actions.type)) > 2

    def total() -> torch.Tensor:
        e = replay(policy, tables, states, choice)
        return e.log_prob.sum() + e.entropy.sum() + e.value.sum()

    total().backward()
    for parameter in policy.parameters():
        grad = (
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        )  # a bias that raises all scores alike
        flat, grad = parameter.data.view(-1), grad.view(-1)
        i = int(grad.abs().argmax())
        before, h = flat[i].item(), 1e-6
        with torch.no_grad():
            flat[i] = before + h
            up = total()
            flat[i] = before - h
            down = total()
            flat[i] = before
        assert abs((up - down) / (2 * h) - grad[i]) < 1e-5 * max(1, abs(grad[i]))


def test_greedy_takes_the_likeliest_and_files_round_trip(tasks, tmp_path):
    policy, tables = random_policy(), tables_of(tasks)
    states = random_states(tables, 5, 7)
    a, b = (policy.act(tables, states, greedy=True).actions for _ in range(2))
    assert (a.type == b.type).all() and (a.edges == b.edges).all()
    policy.float().save(tmp_path)
    again = Policy.load(tmp_path)
    assert again.config == policy.config
    for x, y in zip(policy.parameters(), again.parameters(), strict=True):
        assert torch.equal(x, y)


def test_an_untrained_agent_does_not_stop_at_once():
    torch.manual_seed(0)
    task = small_task()
    policy, tables = Policy(), Tables.of([task])
    mask = torch.ones(200, task.K, dtype=torch.bool)
    states = States(torch.zeros(200, dtype=torch.int64), mask, torch.rand(200, 6))
    kinds = policy.act(tables, states, torch.Generator().manual_seed(0)).actions.type
    assert (kinds == 0).mean() < 0.02 and np.bincount(kinds, minlength=6).argmax() == 1
    assert sum(p.numel() for p in policy.parameters()) * 4 < 2_000_000


def test_draws_follow_their_probabilities():
    p = torch.tensor([0.5, 0.3, 0.15, 0.05, 0.0])
    draws = _Noise(torch.Generator().manual_seed(0)).draw(p.log().repeat(40_000, 1), 0)
    assert torch.bincount(draws, minlength=5) / 40_000 == pytest.approx(p.numpy(), abs=0.01)


def test_a_look_puts_its_scores_into_the_features(tasks):
    """Tables after a look are those of tasks that had these features from the beginning, and so are the actions."""
    g, tables = torch.Generator().manual_seed(0), Tables.of(tasks)
    task = torch.tensor([0, 1, 1, 0, 1])
    scores = (
        torch.randn(5, 40, generator=g)
        * (torch.arange(40) < tables.n_edges[task][:, None])
        * (torch.rand(5, 40, generator=g) < 0.7)
    )
    seen = [
        replace(tasks[t], features=after_look(tasks[t].features, s[: tasks[t].K].numpy()))
        for t, s in zip(task, scores, strict=True)
    ]
    ours, expected = tables.after_look(task, look(scores)), Tables.of(seen)
    for i, t in enumerate(task):
        K, M = tasks[t].K, tasks[t].M
        assert torch.allclose(ours.edges[i, :K], expected.edges[i, :K], atol=1e-6)
        assert torch.allclose(ours.nodes[i, :M], expected.nodes[i, :M], atol=1e-6)
        assert not torch.equal(ours.edges[i, :K], tables.edges[t, :K])
    for name in ("parent", "n_edges", "n_nodes", "degree", "node_start"):
        assert torch.equal(getattr(ours, name), getattr(expected, name))
    assert tables.edges[0, :, RANK].equal(
        Tables.of(tasks).edges[0, :, RANK]
    )  # the behaviours' own are left alone

    policy, one_each = random_policy(), torch.arange(5)
    states = random_states(expected, 5, 1)
    mine = States(task, states.mask & ours.real_edges, states.globals, look(scores).double())
    choice = policy.act(tables_of(tasks), mine, torch.Generator().manual_seed(0))
    own = replace(
        expected,
        edges=expected.edges.double(),
        nodes=expected.nodes.double(),
        degree=expected.degree.double(),
    )
    there = replay(policy, own, States(one_each, mine.mask, mine.globals), choice)
    assert torch.allclose(there.log_prob, choice.log_prob, atol=1e-4) and torch.allclose(
        there.value, choice.value, atol=1e-5
    )


def test_an_untrained_agent_with_a_prior_cuts_what_attribution_ranks_lowest(tasks):
    torch.manual_seed(0)
    policy = Policy(PolicyConfig(16, prior=1000.0, cut_1_bias=0.0, cut_30_bias=9.0)).double()
    tables = tables_of(tasks)
    states = random_states(tables, 6)
    actions = policy.act(tables, states, greedy=True).actions
    for i in range(6):
        task, alive = tasks[int(states.task[i])], np.flatnonzero(states.mask[i].numpy())
        n = BATCH_SIZES[actions.type[i]]
        lowest = alive[np.argsort(-task.features.edges[alive, RANK])][:n]
        assert set(actions.edges[i, :n]) == set(lowest) and (n == 30 or len(alive) < 30)
    assert policy.node_head.second.weight[0, 0] == -1000
