"""The environment: features against their definitions, the paper's reward, and rewards that telescope."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mechrl.agents.paper.env import BATCH_SIZES, NEEDS, NODE, STOP, Actions, EnvConfig, Task, VectorEnv
from mechrl.agents.paper.features import features
from tests.agents.paper.tasks import small_task

SETTINGS = EnvConfig(max_steps=12)


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return [small_task("gpt2", 40, config=SETTINGS), small_task("llama-gqa", 33, 1, SETTINGS)]


def random_actions(env: VectorEnv, rng: np.random.Generator, legal: bool = True) -> Actions:
    kind = rng.integers(0, len(NEEDS), env.n)
    edges, node = np.full((env.n, 30), -1), np.zeros(env.n, dtype=np.int64)
    for i in range(env.n):
        alive = np.flatnonzero(env.mask[i])
        if legal and len(alive) < max(NEEDS[kind[i]], 1):
            kind[i] = STOP
        n = BATCH_SIZES[kind[i]]
        edges[i, :n] = rng.permutation(alive)[:n] if legal else rng.integers(0, env.K[env.task[i]], n)
        parents = env.tasks[env.task[i]].features.parent
        node[i] = rng.choice(parents[alive]) if len(alive) else 0
    return Actions(kind, edges, node)


def test_features_follow_their_definitions():
    task = small_task("llama-gqa", 60)
    graph, engine = task.engine.graph, task.engine
    scores = np.random.default_rng(0).normal(size=graph.n_edges)
    got = features(graph, task.candidates, scores[task.candidates])
    assert got.edges.shape == (60, 16) and got.nodes.shape == (task.M, 7)
    sources = np.unique(graph.edge_source[task.candidates])  # the parents
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
        assert graph.source_names[sources[got.parent[i]]] == parent
    degree = np.bincount(got.parent)
    summed = np.bincount(got.parent, weights=np.abs(scores[task.candidates]))
    for j, source in enumerate(sources):
        name = graph.source_names[source]
        layer = 0 if name == "input" else int(name[1:].split(".")[0])
        assert got.nodes[j, 0] == pytest.approx(layer / 2)
        assert got.nodes[j, 1:5].tolist() == [float(name[0] == k) for k in "amil"]
    assert got.nodes[:, 5] == pytest.approx(degree / degree.max())
    assert got.nodes[:, 6] == pytest.approx(summed / summed.max())
    whole = engine.faithfulness(np.ones((1, 60), bool), task.candidates)[0].item()
    assert whole == pytest.approx(task.ceiling)


def test_the_potential_and_the_target_are_the_papers():
    config = EnvConfig()
    phi = config.potential(np.array([0.9, 0.8]), np.array([300, 300]), 3000, 0.9)
    assert phi == pytest.approx([0.9, 0.9 - 5 * 0.1])
    assert config.tau(0.93) == 0.93 and EnvConfig(margin=0.03).tau(0.93) == pytest.approx(0.9)
    assert config.tau(0.999) == 0.999 and config.tau(0.2) == 0.2  # not clamped


def test_rewards_telescope_and_states_are_measured(tasks):
    rng = np.random.default_rng(1)
    env = VectorEnv(tasks, 10, SETTINGS, rng)
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
        first, last = (
            SETTINGS.w * (1 - k / task.K) - SETTINGS.lam * max(0.0, task.tau - x)
            for x, k in ((task.ceiling, task.K), (f, env.mask[i].sum()))
        )
        assert total[i] == pytest.approx(last - first, abs=1e-9)


def test_cuts_are_permanent_and_cost_one_pass_a_step(tasks):
    rng = np.random.default_rng(2)
    env = VectorEnv(tasks, 6, SETTINGS, rng)
    for _ in range(6):
        before, passes = env.mask.copy(), [task.engine.passes for task in tasks]
        env.step(random_actions(env, rng, legal=False), restart=False)
        assert not (env.mask & ~before).any()
        changed = (env.mask != before).any(1)
        for t, task in enumerate(tasks):
            mine = (changed & (env.task == t)).sum()
            assert task.engine.passes - passes[t] == pytest.approx(mine * task.engine.n_pairs / 20)


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
    env = VectorEnv([replace(t, tau=t.ceiling - 0.1) for t in tasks], 6, SETTINGS, np.random.default_rng(3))
    g = env.globals()
    ceiling = np.array([tasks[t].ceiling for t in env.task])
    assert g[:, 0].tolist() == [0] * 6 and g[:, 1] == pytest.approx(ceiling)
    assert g[:, 2] == pytest.approx(np.ones(6)) and g[:, 3].tolist() == [0] * 6
    assert g[:, 4] == pytest.approx(ceiling) and g[:, 5] == pytest.approx(np.full(6, 0.1), abs=1e-6)
    edges = np.full((6, 30), -1)
    edges[:, 0] = 3
    f = env.f.copy()
    steps = env.step(Actions(np.ones(6, dtype=np.int64), edges, np.zeros(6, dtype=np.int64)))
    g = env.globals()
    assert g[:, 0] == pytest.approx(np.full(6, 1 / 12)) and g[:, 3] == pytest.approx(steps.f - f, abs=1e-6)
    stop = Actions(np.zeros(6, dtype=np.int64), np.full((6, 30), -1), np.zeros(6, dtype=np.int64))
    assert env.step(stop).done.all()
    assert (env.step_count == 0).all() and env.globals()[:, 2] == pytest.approx(np.ones(6))


def test_behaviours_are_drawn_by_episode_from_the_generator(tasks):
    def drawn(seed: int) -> list[int]:
        env = VectorEnv(tasks, 1, SETTINGS, np.random.default_rng(seed))
        seen = []
        for _ in range(30):
            seen.append(int(env.task[0]))
            env.reset(0)
        return seen

    assert drawn(0) == drawn(0) != drawn(1) and set(drawn(0)) == {0, 1}
