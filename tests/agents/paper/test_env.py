"""The environment: features against their definitions, rewards that telescope, Gymnasium's own checker."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from mechrl.attribution import NEGATIVE
from mechrl.rl.env import (
    ACTION_TYPES,
    BATCH_SIZES,
    NEEDS,
    NODE,
    PART,
    STOP,
    TRADE,
    Actions,
    RewardSettings,
    Task,
    VectorEnv,
)
from mechrl.rl.features import features, look, totals
from mechrl.rl.gym_env import CircuitEnv
from mechrl.search.exchange import Trade, exchange, size_of_groups
from tests.rl.tasks import small_task

SETTINGS = RewardSettings(max_steps=12, tau_low=0.0)
LOOKS_AGAIN = replace(SETTINGS, look_again=0.8)


@pytest.fixture(scope="module")
def tasks():
    return [small_task("gpt2", 40, settings=SETTINGS), small_task("llama-gqa", 33, 1, SETTINGS)]


def random_actions(env: VectorEnv, rng: np.random.Generator, legal: bool = True) -> Actions:
    kind = rng.integers(0, len(ACTION_TYPES) if env.settings.trades else TRADE, env.n)
    edges, node = np.full((env.n, 30), -1), np.zeros(env.n, dtype=np.int64)
    for i in range(env.n):
        alive = np.flatnonzero(env.mask[i])
        if legal and len(alive) < max(NEEDS[kind[i]], 1):
            kind[i] = STOP
        n = BATCH_SIZES[kind[i]]
        edges[i, :n] = rng.permutation(alive)[:n] if legal else rng.integers(0, env.tasks[env.task[i]].K, n)
        parents = env.tasks[env.task[i]].features.parent
        node[i] = rng.choice(parents[alive]) if len(alive) else 0
    return Actions(kind, edges, node)


def anything_but_stopping(env: VectorEnv, rng: np.random.Generator, running: np.ndarray) -> Actions:
    """Of what is open, in the environments that are `running`."""
    kind, edges, node = np.full(env.n, STOP), np.full((env.n, 30), -1), np.zeros(env.n, dtype=np.int64)
    for i in np.flatnonzero(running):
        alive = np.flatnonzero(env.mask[i])
        possible = np.flatnonzero(~env.closed[i] & (len(alive) >= np.array(NEEDS)))
        kind[i] = rng.choice(possible[possible != STOP])
        edges[i, : BATCH_SIZES[kind[i]]] = rng.permutation(alive)[: BATCH_SIZES[kind[i]]]
        node[i] = rng.choice(env.tasks[env.task[i]].features.parent[alive])
    return Actions(kind, edges, node)


def test_features_follow_their_definitions():
    task = small_task("llama-gqa", 60)
    graph, engine = task.engine.graph, task.engine
    scores = np.random.default_rng(0).normal(size=graph.n_edges)
    got = features(graph, task.candidates, scores[task.candidates])
    order = sorted(range(60), key=lambda i: -abs(scores[task.candidates[i]]))
    for i, edge in enumerate(task.candidates):
        name = graph.edge_name(int(edge))
        parent, child = name.split("->")
        row = got.edges[i]
        layer = [0 if parent == "input" else int(parent[1:].split(".")[0])]
        layer.append(graph.n_layers - 1 if child == "logits" else int(child[1:].split(".")[0]))
        assert row[0] == pytest.approx(scores[edge] / np.abs(scores[task.candidates]).max(), rel=1e-6)
        assert row[1] == pytest.approx(order.index(i) / 59)
        assert row[2:5] == pytest.approx([layer[0] / 2, layer[1] / 2, (layer[1] - layer[0]) / 2])
        kinds = ["a", "m", "i", "l"]
        assert row[5:9].tolist() == [float(parent[0] == k) for k in kinds]
        assert row[9:13].tolist() == [float(child[0] == k) for k in kinds]
        assert row[13:].tolist() == [float(child.endswith(f"<{c}>")) for c in "qkv"]
        assert graph.source_names[got.node_sources[got.parent[i]]] == parent
    degree = np.bincount(got.parent)
    summed = np.bincount(got.parent, weights=np.abs(scores[task.candidates]))
    assert got.nodes[:, 5] == pytest.approx(degree / degree.max()) and got.nodes[:, 6] == pytest.approx(
        summed / summed.max()
    )
    assert engine.faithfulness(np.ones((1, 60), bool), task.candidates)[0].item() == pytest.approx(
        task.ceiling
    )


@pytest.mark.parametrize("settings", [SETTINGS, LOOKS_AGAIN], ids=["papers", "looks again"])
def test_rewards_telescope_and_states_are_measured(tasks, settings):
    rng = np.random.default_rng(1)
    env = VectorEnv(tasks, 10, settings, rng)
    total, start = np.zeros(10), env.task.copy()
    running = np.ones(10, dtype=bool)
    for _ in range(SETTINGS.max_steps):
        actions = random_actions(env, rng)
        actions.type[~running] = STOP
        steps = env.step(actions, restart=False)
        total += steps.reward
        running &= ~steps.done
    assert not running.any() and (env.task == start).all()
    for i, t in enumerate(env.task):
        task = tasks[t]
        f = float(task.engine.faithfulness(env.mask[i, : task.K], task.candidates)[0])
        assert env.f[i] == pytest.approx(f, abs=1e-9)
        start, end = (
            SETTINGS.w * (1 - k / task.K) - SETTINGS.lam * max(0.0, task.tau - x)
            for x, k in ((task.ceiling, task.K), (f, env.mask[i].sum()))
        )
        assert total[i] == pytest.approx(end - start, abs=1e-9)


def test_cutting_what_is_cut_costs_a_little_and_changes_nothing(tasks):
    env = VectorEnv(tasks[:1], 2, SETTINGS, np.random.default_rng(0))
    edges = np.full((2, 30), -1)
    edges[:, 0] = 5
    cut = Actions(np.array([1, STOP]), edges, np.zeros(2, dtype=np.int64))
    env.step(cut, restart=False)
    before, passes = env.f.copy(), tasks[0].engine.passes
    again = env.step(cut, restart=False)
    assert again.reward.tolist() == [-0.01, 0.0] and (env.f == before).all()
    assert tasks[0].engine.passes == passes  # nothing new to measure
    assert again.done.tolist() == [False, True]


def test_a_node_cut_takes_all_edges_out_of_a_component(tasks):
    env = VectorEnv(tasks[:1], 1, SETTINGS, np.random.default_rng(0))
    parent = tasks[0].features.parent
    env.step(Actions(np.array([NODE]), np.full((1, 30), -1), np.array([2])), restart=False)
    assert (env.mask[0] == (parent != 2)).all()


def test_globals_and_restart(tasks):
    env = VectorEnv(tasks, 6, SETTINGS, np.random.default_rng(3))
    g = env.globals()
    ceiling = np.array([tasks[t].ceiling for t in env.task])
    assert (
        g[:, 0].tolist() == [0] * 6
        and g[:, 1] == pytest.approx(ceiling)
        and g[:, 2] == pytest.approx(np.ones(6))
    )
    assert g[:, 4] == pytest.approx(ceiling) and g[:, 5] == pytest.approx(
        [tasks[t].ceiling - tasks[t].tau for t in env.task], abs=1e-6
    )
    steps = env.step(Actions(np.zeros(6, dtype=np.int64), np.full((6, 30), -1), np.zeros(6, dtype=np.int64)))
    assert (
        steps.done.all() and (env.step_count == 0).all() and env.globals()[:, 2] == pytest.approx(np.ones(6))
    )


@pytest.mark.filterwarnings("ignore:.*infinity.*")  # f has no lower bound, and the space says so
@pytest.mark.parametrize("settings", [SETTINGS, LOOKS_AGAIN], ids=["papers", "looks again"])
def test_gymnasiums_own_checker(tasks, settings):
    env = CircuitEnv(tasks[0], settings)
    check_env(env, skip_render_check=True)
    env.reset(seed=0)
    for _ in range(SETTINGS.max_steps):
        action = {"type": 1, "edges": np.zeros(30, dtype=np.int64), "node": 0}
        _, _, terminated, truncated, info = env.step(action)
    assert (
        truncated and not terminated and (info["edges"] == tasks[0].K - 1 or settings.look_again)
    )  # dead edges go too
    env.reset()
    assert env.step({"type": STOP, "edges": np.zeros(30, dtype=np.int64), "node": 0})[2]


@pytest.mark.parametrize("log_share", [0.0, 0.5])
def test_the_best_so_far_is_what_an_episode_is_paid_for(tasks, log_share):
    """Rewards are never negative and add up to max Φ − Φ(start), whatever the agent does; hopeless episodes end."""
    settings = RewardSettings(max_steps=12, tau_low=0.0, best_so_far=True, give_up=0.3, log_share=log_share)
    rng = np.random.default_rng(3)
    env = VectorEnv(tasks, 10, settings, rng)
    K, tau = np.array([tasks[t].K for t in env.task]), np.array([tasks[t].tau for t in env.task])
    start = settings.potential(env.f, env.mask.sum(1), K, tau)
    total, best, running = np.zeros(10), start.copy(), np.ones(10, dtype=bool)
    for _ in range(settings.max_steps):
        actions = random_actions(env, rng)
        actions.type[~running] = STOP
        steps = env.step(actions, restart=False)
        assert (steps.reward >= 0).all()
        assert (steps.done | ~(steps.f < tau - 0.3)).all()
        total += steps.reward
        best = np.maximum(best, settings.potential(steps.f, steps.edges, K, tau))
        running &= ~steps.done
    assert total == pytest.approx(best - start)


def test_by_logarithm_halving_is_worth_the_same_at_every_size():
    settings = RewardSettings(log_share=1.0)
    size = np.array([1000, 500, 100, 50]) - 1  # log(1 + k)
    phi = settings.potential(np.ones(4), size, 3000, 0.9)
    assert phi[1] - phi[0] == pytest.approx(phi[3] - phi[2])
    assert settings.potential(np.ones(2), np.array([0, 3000]), 3000, 0.9) == pytest.approx([1, 0])


# ---- looking again --------------------------------------------------------------------------------------------------


def test_a_look_in_closed_form():
    """Scores over the largest |score|; ranks by strength, in which what is negative counts less; 1 for what matters to nothing."""
    scores = torch.tensor(
        [[2.0, -4.0, 0.0, 1.0, -0.5, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, -3.0, 0.0, 0.0, 0.0]]
    )
    seen = look(scores)
    assert torch.allclose(seen[0, :, 0], torch.tensor([0.5, -1, 0, 0.25, -0.125, 0]))
    assert torch.allclose(seen[0, :, 2], torch.tensor([0.5, NEGATIVE, 0, 0.25, NEGATIVE / 8, 0]))
    assert torch.allclose(seen[0, :, 1], torch.tensor([0, 1 / 3, 1, 2 / 3, 1, 1]))
    assert not seen[1, :, [0, 2]].any() and torch.isfinite(seen).all()
    assert seen[2, :, 1].tolist() == [1, 1, 0, 1, 1, 1] and seen[2, 2, 0] == -1
    parent = torch.tensor([[0, 0, 1, 2, 2, 2]]).expand(3, -1)
    summed = torch.tensor([0.5 + NEGATIVE, 0, 0.25 + NEGATIVE / 8])
    assert torch.allclose(totals(seen[..., 2], parent, 3)[0], summed / summed[0])
    assert not totals(seen[..., 2], parent, 3)[1].any() and totals(seen[..., 2], parent, 3)[2].tolist() == [
        0,
        1,
        0,
    ]


@pytest.mark.parametrize("settings", [SETTINGS, LOOKS_AGAIN], ids=["papers", "looks again"])
@pytest.mark.parametrize(
    ("place", "share", "weight"), [(0, 10, 0), (1, 10, 0.3), (2, 10, 1), (3, 3, 0), (5, 3, 1)]
)
def test_a_part_is_what_ranks_lowest(tasks, settings, place, share, weight):
    env = VectorEnv(tasks, 6, settings, np.random.default_rng(3))
    nothing = np.full((6, 30), -1)
    for _ in range(4):
        before, scores = env.mask.copy(), env.scores.copy()
        env.step(Actions(np.full(6, PART + place), nothing, np.zeros(6, dtype=np.int64)), restart=False)
        for i in range(6):
            task, left = tasks[env.task[i]], np.flatnonzero(before[i])
            seen = scores[i] if settings.look_again else task.features.edges[:, 0]
            worth = {e: max(seen[e], -weight * seen[e]) for e in left}
            lowest = sorted(left, key=lambda e, worth=worth: worth[e])[: len(left) // share]
            kept = before[i].copy()
            kept[lowest] = False
            if settings.look_again:
                kept[: task.K] = task.engine.graph.prune(kept[: task.K], task.candidates)
            assert np.array_equal(env.mask[i], kept)


@pytest.mark.parametrize("look_again", [0.0, 0.7])
def test_cuts_that_lose_too_much_are_taken_back(tasks, look_again):
    """Against a loop by the definition: what is cut stays cut only if f ≥ τ, and what failed is not tried again before the next look."""
    settings = replace(SETTINGS, take_back=True, look_again=look_again, max_steps=60)
    tasks = [replace(task, tau=task.ceiling - 0.1) for task in tasks]
    rng = np.random.default_rng(8)
    env = VectorEnv(tasks, 6, settings, rng)
    running, seen = np.ones(6, dtype=bool), Counter()
    for _ in range(60):
        before, closed, looked, f, spent = (
            env.mask.copy(),
            env.closed.copy(),
            env.looked.copy(),
            env.f.copy(),
            env.passes.copy(),
        )
        actions = random_actions(env, rng)
        for i in range(6):  # a policy never chooses what is closed, and stops only where nothing else is left
            if not running[i] or closed[i, actions.type[i]]:
                actions.type[i] = STOP
            if running[i] and actions.type[i] == STOP:
                alive = np.flatnonzero(before[i])
                open_types = [
                    t for t in range(len(ACTION_TYPES)) if not closed[i, t] and len(alive) >= NEEDS[t]
                ]
                actions.type[i] = open_types[-1]
                actions.edges[i, : BATCH_SIZES[actions.type[i]]] = alive[: BATCH_SIZES[actions.type[i]]]
        steps = env.step(actions, restart=False)
        for i in np.flatnonzero(running):
            task = tasks[env.task[i]]
            assert env.f[i] >= task.tau and set(np.flatnonzero(env.mask[i])) <= set(np.flatnonzero(before[i]))
            assert env.f[i] == pytest.approx(
                float(task.engine.faithfulness(env.mask[i, : task.K][None], task.candidates)[0]), abs=1e-6
            )
            failed = (env.mask[i] == before[i]).all() and env.change[i] < 0
            looks = env.passes[i] - spent[i] > 2 * task.engine.n_pairs / 20
            expected = closed[i] | (failed & (np.arange(len(ACTION_TYPES)) == actions.type[i]))
            assert (env.closed[i, :TRADE] == (expected & (not looks))[:TRADE]).all() and env.closed[i, TRADE]
            stuck = all(expected[t] or env.mask[i].sum() < NEEDS[t] for t in range(1, len(ACTION_TYPES)))
            assert steps.done[i] == (
                actions.type[i] == STOP or (stuck and (not look_again or env.mask[i].sum() == looked[i]))
            )
            assert steps.reward[i] >= 0 and (
                not failed or (steps.reward[i] == 0 and env.f[i] == f[i] and f[i] + env.change[i] < task.tau)
            )
            seen.update(failed=int(failed), looks=int(looks), done=int(steps.done[i]))
        running &= ~steps.done
    assert seen["failed"] > 10 and seen["done"] >= 4 and (not look_again or seen["looks"] > 4)


def seen_at(task: Task, mask: np.ndarray) -> np.ndarray:
    """What a look there should see; not charged."""
    passes, kept = task.engine.passes, np.flatnonzero(mask[: task.K])
    scores = np.zeros(task.K)
    for alpha in (0.5 - 12**-0.5, 0.5 + 12**-0.5):
        gradient = task.engine.gradient(np.full((1, len(kept)), alpha), task.candidates[kept]).gradient[0]
        scores[kept] -= gradient.numpy() / task.engine.kl_cut / 2
    task.engine.ledger.restore(passes)
    return scores


def test_it_looks_at_the_circuit_it_stands_at_when_that_has_shrunk_enough(tasks):
    rng = np.random.default_rng(4)
    passes = [task.engine.passes for task in tasks]
    env = VectorEnv(tasks, 8, LOOKS_AGAIN, rng)
    for i, t in enumerate(env.task):
        assert env.scores[i, : tasks[t].K] == pytest.approx(
            seen_at(tasks[t], env.mask[i]), rel=1e-5, abs=1e-7
        )
    cost, looks = [6.0, 6.0], 0  # everybody's first look is the same
    for _ in range(LOOKS_AGAIN.max_steps):
        before, mask, looked = env.scores.copy(), env.mask.copy(), env.looked.copy()
        steps = env.step(random_actions(env, rng), restart=False)
        for i, t in enumerate(env.task):
            task, edges = tasks[t], env.mask[i].sum()
            cost[t] += (env.mask[i] != mask[i]).any()
            if 0 < edges <= 0.8 * looked[i] and not steps.done[i]:
                assert env.scores[i, : task.K] == pytest.approx(
                    seen_at(task, env.mask[i]), rel=1e-5, abs=1e-7
                )
                assert env.looked[i] == edges and not env.scores[i][~env.mask[i]].any()
                cost[t], looks = cost[t] + 6, looks + 1
            else:
                assert (env.scores[i] == before[i]).all() and env.looked[i] == looked[i]
    assert looks > 8
    for task, spent, all_of_it in zip(tasks, passes, cost, strict=True):
        assert task.engine.passes - spent == pytest.approx(all_of_it * task.engine.n_pairs / 20)
    env.reset(0, 1)
    assert env.looked[0] == tasks[1].K and env.scores[0, :33] == pytest.approx(
        seen_at(tasks[1], env.mask[0]), rel=1e-5, abs=1e-7
    )


@pytest.mark.parametrize("look_again", [0.0, 0.7])
def test_a_trade_is_an_exchange_and_several_do_not_notice_each_other(look_again):
    """Against one exchange at a time, judged by the engine itself; passes counted, and paid for by the reward."""
    settings = replace(
        SETTINGS, take_back=True, trades=True, look_again=look_again, max_steps=40, pass_cost=0.01
    )
    tasks = [small_task("gpt2", 150), small_task("llama-gqa", 120, 1)]
    tasks = [replace(task, tau=task.ceiling - 0.05) for task in tasks]
    rng, seen = np.random.default_rng(3), Counter()
    env = VectorEnv(tasks, 6, settings, rng)
    env.passes[:] = 0
    running = np.ones(6, dtype=bool)
    for _ in range(40):
        mask, f, scores, spent, closed = (
            env.mask.copy(),
            env.f.copy(),
            env.scores.copy(),
            env.passes.copy(),
            env.closed.copy(),
        )
        finer = env.finer.copy()
        charged = sum(task.engine.passes for task in tasks)
        actions = random_actions(env, rng)
        trades = running & (rng.random(6) < 0.5) & ~closed[:, TRADE] & mask.any(1)
        actions.type[trades] = TRADE
        actions.type[~running] = STOP
        steps = env.step(actions, restart=False)
        assert sum(task.engine.passes for task in tasks) - charged == pytest.approx(
            (env.passes - spent).sum()
        )
        for i in np.flatnonzero(running & (actions.type == TRADE)):
            task = tasks[env.task[i]]
            n, passes = task.K, task.engine.passes
            size = size_of_groups(int(mask[i].sum()), int(finer[i]))
            expected, cost = traded(task, mask[i, :n], float(f[i]), size)
            task.engine.ledger.restore(passes)
            after = mask[i].copy()
            after[:n] = mask[i, :n] if expected is None else expected.mask
            assert (env.mask[i] == after).all() and (
                expected is None or env.f[i] == pytest.approx(expected.f, abs=1e-6)
            )
            assert env.f[i] >= task.tau
            looks = (
                look_again > 0
                and env.looked[i] == env.mask[i].sum()
                and env.passes[i] - spent[i] > cost + 1e-9
            )
            assert env.passes[i] - spent[i] == pytest.approx(cost + looks * 6 * task.engine.n_pairs / 20)
            sizes = settings.potential(
                np.array([f[i], env.f[i]]), np.array([mask[i].sum(), after.sum()]), n, task.tau
            )
            assert steps.reward[i] == pytest.approx(
                sizes[1] - sizes[0] - 0.01 * (env.passes[i] - spent[i]), abs=1e-5
            )
            # a look opens other types again, not this one; smaller groups do
            assert env.closed[i, TRADE] == (expected is None and env.finer[i] == finer[i])
            if expected is None:  # measured one by one, up to 120 edges, no edge can go: the episode is over
                assert steps.done[i] or mask[i].sum() > 120
                seen["over"] += steps.done[i]
            if expected is not None and look_again and not looks:  # what came back has a score, which was 0
                back = after & ~mask[i]
                assert (env.scores[i][~back] == scores[i][~back]).all() and (env.scores[i][back] > 0).all()
                seen["back"] += int(back.sum())
            seen.update(failed=int(expected is None), smaller=int(expected is not None))
        moved = running & (env.mask != mask).any(1)
        same = ~moved & (env.finer == finer)
        assert not env.closed[moved, TRADE].any() and (env.closed[same, TRADE] >= closed[same, TRADE]).all()
        running &= ~steps.done
    assert seen["failed"] and seen["over"] and seen["smaller"] > 4 and (not look_again or seen["back"])


def test_where_edges_are_traded_in_groups_an_episode_ends_only_when_single_edges_fail(monkeypatch):
    """As if circuits of any size were large. Groups are halved when no cut and no trade is open any more, and only then."""
    monkeypatch.setattr("mechrl.rl.env.size_of_groups", lambda edges, finer=0: 4 >> finer)
    settings = replace(SETTINGS, take_back=True, trades=True, look_again=0.7, max_steps=1000)
    tasks = [small_task("gpt2", 150), small_task("llama-gqa", 120, 1)]
    tasks = [replace(task, tau=task.ceiling - 0.05) for task in tasks]
    rng = np.random.default_rng(1)
    env = VectorEnv(tasks, 4, settings, rng)
    running, later = np.ones(4, dtype=bool), 0
    for _ in range(1000):
        finer, mask = env.finer.copy(), env.mask.copy()
        steps = env.step(anything_but_stopping(env, rng, running), restart=False)
        for i in np.flatnonzero(running & (env.finer > finer)):
            assert env.finer[i] == finer[i] + 1 and (env.mask[i] == mask[i]).all() and not steps.done[i]
            assert (env.closed[i] | (env.mask[i].sum() < np.array(NEEDS)))[1:TRADE].all()
            assert not env.closed[i, TRADE] and env.looked[i] == env.mask[i].sum()
            later += 1
        running &= ~steps.done
        if not running.any():
            break
    assert not running.any() and later and (env.finer[env.mask.any(1)] == 2).all()  # 4 >> 2 is 1


@pytest.mark.parametrize("worth", [0.0, 0.5, 1e9])
def test_out_of_steps_an_episode_goes_on_where_its_last_steps_were_worth_their_passes(worth, monkeypatch):
    """Its step count begins anew, and nothing else changes: edges that went, and passes paid for them, are counted from there on."""
    monkeypatch.setattr("mechrl.rl.env.PASSES_PER_EDGE", worth)
    settings = replace(SETTINGS, take_back=True, look_again=0.7, max_steps=5)
    task = small_task("gpt2", 150)
    task = replace(task, tau=task.ceiling - 0.3)
    both = ((settings, True), (replace(settings, max_steps=1000), False))
    envs = [VectorEnv([task], 6, of, np.random.default_rng(0), go_on=more) for of, more in both]
    rng, running = np.random.default_rng(3), np.ones(6, dtype=bool)
    since = np.column_stack([envs[0].mask.sum(1), envs[0].passes])
    went_on = ended = 0
    for step in range(1, 200):
        actions = anything_but_stopping(envs[0], rng, running)
        ours, endless = (env.step(actions, restart=False) for env in envs)
        assert (envs[0].mask == envs[1].mask).all() and (ours.f == endless.f).all()
        now = np.column_stack([envs[0].mask.sum(1), envs[0].passes])
        for i in np.flatnonzero(running & (step % 5 == 0)):
            went, paid = (since[i] - now[i]) * (1, -1)
            good = went > 0 and paid <= worth * went
            assert ours.done[i] == (endless.done[i] or not good) and (envs[0].step_count[i] == 0) == good
            went_on, ended, since[i] = went_on + good, ended + (not good), now[i]
        if step % 5:
            assert (ours.done == endless.done)[running].all()
        running &= ~ours.done
        if not running.any():
            break
    assert not running.any() and (went_on > 0) == (worth > 0) and (ended or worth == 1e9)


def traded(task: Task, mask: np.ndarray, f: float, size: int) -> tuple[Trade | None, float]:
    """One exchange and its passes."""
    engine, before = task.engine, task.engine.passes
    gain = (
        -engine.gradient(mask[None].astype(np.float64), task.candidates).gradient[0].double().numpy()
        / engine.kl_cut
    )
    trying = exchange(mask, f, task.tau, gain, lambda masks: engine.graph.prune(masks, task.candidates), size)
    masks = next(trying)
    while True:
        try:
            masks = trying.send(engine.faithfulness(masks, task.candidates).double().numpy())
        except StopIteration as end:
            return end.value, engine.passes - before


def test_looking_again_dead_edges_go_with_every_cut(tasks):
    rng, died = np.random.default_rng(5), 0
    env = VectorEnv(tasks, 8, LOOKS_AGAIN, rng)
    for _ in range(6):
        before, actions = env.mask.copy(), random_actions(env, rng)
        env.step(actions, restart=False)
        for i, t in enumerate(env.task):
            task, mask = tasks[t], env.mask[i, : tasks[t].K]
            if (env.mask[i] != before[i]).any():
                assert (task.engine.graph.prune(mask, task.candidates) == mask).all()
                died += actions.type[i] < NODE and before[i].sum() - mask.sum() > BATCH_SIZES[actions.type[i]]
    assert died
