"""Deployment: the rule by its definition, episodes that are what the environment did, circuits that add up, seeds that repeat."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as how
from hypothesis import strategies as st

from mechrl.behaviours import DISCOVERY_SEED, VALIDATION_SEED, get_behaviour
from mechrl.engine import Engine
from mechrl.errors import MechRLError
from mechrl.evaluate.setting import Setting
from mechrl.models import load_model
from mechrl.rl.env import RewardSettings
from mechrl.rl.policy import Policy, PolicyConfig
from mechrl.rl.rollout import (
    Deployment,
    Episode,
    best_step,
    choose,
    deploy,
    deploy_together,
    discover,
    learned_with,
    load_policy,
    rollouts,
    step_back,
    trained_with,
)
from mechrl.rl.tasks import TaskSettings, aimed, task_of
from tests.rl.tasks import small_task
from tests.search.model import write_model

REWARD = RewardSettings(max_steps=12)
RULES = ("smallest", "paper")
numbers = st.lists(
    st.tuples(st.sampled_from([-0.5, 0.3, 0.7, 0.9, 0.95, 1.0]), st.integers(0, 5)), min_size=1, max_size=20
)


def agent(seed: int = 0) -> Policy:
    torch.manual_seed(seed)
    return Policy(PolicyConfig(width=16))


# ---- the rule -------------------------------------------------------------------------------------------------------


@given(numbers, st.sampled_from([0.2, 0.9, 0.99]), st.sampled_from(RULES))
def test_the_rule_is_its_definition(candidates, tau, rule):
    f, size = (np.array(column) for column in zip(*candidates, strict=True))
    i = choose(f, size, tau, rule)
    if rule == "paper" or not (f >= tau).any():
        assert f[i] == f.max() and size[i] == size[f == f.max()].min()
    else:
        assert (
            f[i] >= tau
            and size[i] == size[f >= tau].min()
            and f[i] == f[(f >= tau) & (size == size[i])].max()
        )


@given(numbers, st.sampled_from(RULES))
def test_a_lower_target_never_gives_a_larger_circuit(candidates, rule):
    f, size = (np.array(column) for column in zip(*candidates, strict=True))
    if (f >= 0.9).any():
        assert size[choose(f, size, 0.3, rule)] <= size[choose(f, size, 0.9, rule)]


@given(
    st.lists(st.sampled_from([-0.5, 0.3, 0.9, 0.95, 1.0]), min_size=1, max_size=15), st.sampled_from(RULES)
)
def test_along_an_episode_the_same_rule_chooses(f, rule):
    steps = len(f)
    masks = np.arange(steps)[None] >= np.arange(steps)[:, None]  # one edge less at every step
    step = best_step(Episode(masks, np.array(f), tuple(range(steps))), 0.9, rule)
    assert step == choose(np.array(f), masks.sum(1), 0.9, rule)


# ---- episodes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("look_again", [0.0, 0.8])
def test_episodes_are_what_happened(look_again):
    task, reward = small_task("llama-gqa", 33, 1, REWARD), replace(REWARD, look_again=look_again)
    before = task.engine.passes
    episodes = rollouts(agent(), task, reward, 5, seed=3)
    measured = 6 if look_again else 0  # the first look
    assert len(episodes) == 6
    for episode in episodes:
        assert (
            episode.masks[0].all()
            and episode.f[0] == task.ceiling
            and len(episode.f) == len(episode.masks) <= 13
        )
        f = task.engine.faithfulness(episode.masks, task.candidates).double().numpy()
        task.engine.ledger.charge(-len(f) * task.engine.n_pairs / 20)
        assert episode.f == pytest.approx(f, abs=1e-6)
        measured += (episode.masks[1:] != episode.masks[:-1]).any(1).sum()
        looked = task.K
        for step, mask in enumerate(episode.masks):
            assert sorted(episode.removed(step)) == np.flatnonzero(~mask).tolist()  # each of them once
            if 0 < mask.sum() <= look_again * looked and step < len(episode.masks) - 1:
                measured, looked = measured + 6, mask.sum()
    # an episode that has ended costs nothing, nor does stopping
    assert task.engine.passes - before == pytest.approx(measured * task.engine.n_pairs / 20)


def test_what_came_back_is_not_among_the_removed():
    masks = np.array([[1, 1, 1, 1, 1], [1, 0, 0, 1, 1], [0, 1, 0, 0, 1], [0, 0, 0, 0, 1]], dtype=bool)
    episode = Episode(masks, np.ones(4), ((2, 1), (3, 0), (1,)))
    assert [episode.removed(step) for step in range(4)] == [(), (2, 1), (2, 3, 0), (2, 3, 0, 1)]


def test_an_agent_that_trades_ends_with_a_circuit_that_reaches_its_target():
    reward = replace(REWARD, take_back=True, trades=True, look_again=0.75, max_steps=60, margin=0.1)
    torch.manual_seed(0)
    policy = Policy(PolicyConfig(16, parts=True, trades=True, prior=5.0))
    sizes = {}
    for trades in (False, True):
        task = small_task("gpt2", 150, 0, reward)
        (episode,) = rollouts(policy, task, replace(reward, trades=trades), 0, seed=0)
        assert (episode.f >= task.tau - 1e-6).all() and (np.diff(episode.masks.sum(1)) <= 0).all()
        for step, mask in enumerate(episode.masks):
            assert sorted(episode.removed(step)) == np.flatnonzero(~mask).tolist()
        sizes[trades] = int(episode.masks[-1].sum())
    assert sizes[True] < 0.8 * sizes[False]


def test_deployments_trade_where_the_agent_takes_back_and_are_asked_to(model):
    behaviour, settings = get_behaviour("ioi"), TaskSettings(pairs=8, k=200)
    takes_back = replace(REWARD, take_back=True, look_again=0.75, margin=0.1, max_steps=60)
    torch.manual_seed(0)
    knows_parts = Policy(PolicyConfig(16, parts=True, prior=5.0))

    def find(policy: Policy, reward: RewardSettings, trades: bool):
        return discover(
            model, behaviour, policy, Deployment(tau=None, rollouts=0, trades=trades), settings, reward
        )

    cut, traded = (find(knows_parts, takes_back, trades) for trades in (False, True))
    assert (cut.settings["trades"], traded.settings["trades"]) == (False, True)
    assert len(traded) < len(cut) and traded.passes > cut.passes and traded.faithfulness >= traded.tau - 1e-6
    once, again = (find(agent(), REWARD, trades) for trades in (False, True))  # the paper's agent cannot
    assert (
        not again.settings["trades"] and np.array_equal(once.mask, again.mask) and once.passes == again.passes
    )


def test_seeds_repeat_and_greed_has_none():
    task, policy = small_task("gpt2", 40, 0, REWARD), agent()
    first, again, other = (rollouts(policy, task, REWARD, 4, seed) for seed in (1, 1, 2))
    same = [np.array_equal(a.masks, b.masks) and a.cuts == b.cuts for a, b in zip(first, again, strict=True)]
    assert all(same)
    assert not all(np.array_equal(a.masks, b.masks) for a, b in zip(first[:4], other[:4], strict=True))
    (alone,) = rollouts(policy, task, REWARD, 0, seed=9)
    assert np.array_equal(alone.masks, first[4].masks) and np.array_equal(alone.masks, other[4].masks)


# ---- circuits -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_model(write_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MECHRL_CACHE", str(tmp_path / "cache"))


def test_a_circuit_adds_up(model):
    behaviour, settings = get_behaviour("ioi"), TaskSettings(pairs=4, k=60)
    find = dict(model=model, behaviour=behaviour, policy=agent(), settings=settings, reward=REWARD)
    circuit = discover(**find, deployment=Deployment(tau=0.5, rollouts=6, seed=1))
    engine = Engine(model, behaviour.pairs(model.tokenizer, 4, DISCOVERY_SEED))
    assert circuit.faithfulness == pytest.approx(float(engine.faithfulness(circuit.mask)[0]), abs=1e-5)
    assert len(circuit) == circuit.size <= circuit.settings["edges_before_pruning"]
    order, kept = set(circuit.order), set(np.flatnonzero(circuit.mask).tolist())
    assert (
        len(order) == len(circuit.order)
        and not order & kept
        and len(order | kept) == 60 == circuit.settings["candidates"]
    )
    assert circuit.method == "policy" and circuit.pairs == 4 and circuit.faithfulness_validation is None

    again = discover(**find, deployment=Deployment(tau=0.5, rollouts=6, seed=1))
    assert again.to_json() | {"seconds": 0} == circuit.to_json() | {"seconds": 0}

    assert not circuit.settings["best_along_episode"]
    along = discover(**find, deployment=Deployment(tau=0.5, rollouts=6, seed=1, best_along_episode=True))
    assert along.passes == circuit.passes  # every mask was measured anyway
    assert along.faithfulness >= min(0.5, circuit.faithfulness)
    for name in ("edges", "faithfulness", "faithfulness_test", "faithfulness_validation"):
        assert along.settings["last_masks"][name] == getattr(circuit, name)
    if circuit.faithfulness >= 0.5:
        assert len(along) <= len(circuit)


def test_none_is_as_the_policy_was_trained(model):
    """Paid for the best so far, it is read along its episodes; and without a target, its own is asked for."""
    behaviour, settings = get_behaviour("ioi"), TaskSettings(pairs=4, k=60)
    reward = replace(REWARD, best_so_far=True, margin=0.2)
    find = dict(model=model, behaviour=behaviour, policy=agent(), settings=settings, reward=reward)
    circuit = discover(**find, deployment=Deployment(tau=None, rollouts=2))
    assert (
        circuit.tau
        == circuit.settings["tau"]
        == circuit.settings["agent_tau"]
        == reward.tau(circuit.settings["ceiling"])
    )
    assert circuit.settings["best_along_episode"] is True
    again = discover(**find, deployment=Deployment(tau=circuit.tau, rollouts=2, best_along_episode=True))
    assert again.to_json() | {"seconds": 0} == circuit.to_json() | {"seconds": 0}


@how(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 99), st.booleans(), st.booleans())
def test_stepping_back_finds_the_last_step_that_is_enough(lengths, seed, falling, known):
    """Against looking at every step; if f does not fall all along, another step that is enough is as good as any."""
    rng, tau, measured = np.random.default_rng(seed), 0.5, []
    f = [rng.random(n) if not falling else np.sort(rng.random(n))[::-1] for n in lengths]
    if known:  # that the first is enough, which need not be measured
        for own in f:
            own[0] = 1.0

    def measure(which, at):
        measured.extend(zip(which.tolist(), at.tolist(), strict=True))
        return np.array([f[j][t] for j, t in zip(which, at, strict=True)])

    last = np.array([n - 1 for n in lengths])
    steps, judged = step_back(
        last, measure(np.arange(len(f)), last), tau, measure, enough_at=0 if known else -1
    )
    assert len(measured) == len(set(measured)) <= sum(1 + int(np.ceil(np.log2(n))) + 1 for n in lengths)
    assert not known or all(t > 0 or lengths[j] == 1 for j, t in measured)
    for j, (own, n) in enumerate(zip(f, lengths, strict=True)):
        assert judged[j] == own[steps[j]]
        seen = [own[t] for k, t in measured if k == j]
        if own[n - 1] >= tau:
            assert steps[j] == n - 1
        elif falling and (own[known:] >= tau).any():
            assert steps[j] == np.flatnonzero(own >= tau)[-1]
        else:
            assert judged[j] >= tau or judged[j] == max(seen)


def test_validation_pairs_judge_if_asked(model):
    behaviour, settings = get_behaviour("ioi"), TaskSettings(pairs=4, k=60)
    find = dict(model=model, behaviour=behaviour, policy=agent(), settings=settings, reward=REWARD)
    plain, judged = (
        discover(**find, deployment=Deployment(rollouts=6, rule="paper", judge=j))
        for j in ("discovery", "validation")
    )
    pairs = behaviour.pairs(model.tokenizer, 100, VALIDATION_SEED)
    fresh = Engine(model, pairs)
    assert judged.faithfulness_validation == pytest.approx(
        float(fresh.faithfulness(judged.mask)[0]), abs=1e-5
    )
    assert judged.faithfulness_validation >= float(fresh.faithfulness(plain.mask)[0]) - 1e-5
    assert judged.passes == pytest.approx(plain.passes + 7 * len(pairs) / 20)


def test_candidates_of_a_higher_aim_can_be_made_again(model):
    """From what the circuit says of itself, as validation does."""
    behaviour, settings, tau = get_behaviour("ioi"), TaskSettings(pairs=4, k=60, spare=0.02), 0.8
    reward = replace(REWARD, take_back=True, tau_high=tau, margin=0.01, max_steps=60)
    torch.manual_seed(0)
    policy = Policy(PolicyConfig(16, parts=True, prior=5.0))
    found = discover(model, behaviour, policy, Deployment(tau, 0, judge="validation"), settings, reward)
    assert found.settings["candidates"] > task_of(model, behaviour, settings, reward).K
    candidates = Setting.of(model, behaviour, found).candidates
    assert len(candidates) == found.settings["candidates"] and set(np.flatnonzero(found.mask)) <= set(
        candidates
    )


@pytest.mark.parametrize("n", [0, 3])
def test_an_agent_that_takes_back_aims_higher_where_fresh_pairs_find_it_short(model, n):
    """It ends where an agent ends that was told so high a target at once, with fewer edges than any circuit on its first way has."""
    behaviour, settings, tau = get_behaviour("ioi"), TaskSettings(pairs=16, k=400), 0.9
    reward = replace(REWARD, take_back=True, look_again=0.75, tau_high=tau, max_steps=60)
    torch.manual_seed(0)
    policy = Policy(PolicyConfig(16, parts=True, prior=5.0))
    deployment = Deployment(tau, rollouts=n, judge="validation", trades=False)
    task = task_of(model, behaviour, settings, reward)
    prepared = task.engine.passes
    plain = deploy(model, behaviour, task, policy, replace(deployment, judge="discovery"), settings, reward)
    fresh = Engine(model, behaviour.pairs(model.tokenizer, 100, VALIDATION_SEED))
    assert float(fresh.faithfulness(plain.mask)[0]) < tau
    task.engine.ledger.restore(prepared)
    found = deploy(model, behaviour, task, policy, deployment, settings, reward)
    aim = found.settings["agent_tau"]
    assert found.faithfulness_validation >= tau and found.faithfulness >= aim > tau
    looks = (found.passes - task.engine.passes) / 5  # all else is what circuits cost on 100 validation pairs
    assert task.engine.passes > plain.passes and looks == pytest.approx(round(looks)) and looks >= 3 * (n + 1)
    wider, _ = aimed(task, aim, settings, reward)
    assert np.array_equal(
        found.mask, deploy(model, behaviour, wider, policy, deployment, settings, reward).mask
    )
    on_the_way = [mask for episode in rollouts(policy, task, reward, n, 0) for mask in episode.masks]
    enough = fresh.faithfulness(np.array(on_the_way), task.candidates).numpy() >= tau
    assert len(found) < min(int(mask.sum()) for mask, yes in zip(on_the_way, enough, strict=True) if yes)
    # beside others each is what it is alone
    task.engine.ledger.restore(prepared)
    both = deploy_together(
        model, behaviour, task, policy, [deployment, replace(deployment, seed=5)], settings, reward
    )
    assert np.array_equal(both[0].mask, found.mask) and both[0].passes == found.passes


def test_a_higher_aim_that_ends_larger_is_not_taken(model, monkeypatch):
    """But what a lower one passed through."""
    behaviour, settings, tau = get_behaviour("ioi"), TaskSettings(pairs=4, k=400), 0.8
    reward = replace(REWARD, take_back=True, look_again=0.75, tau_high=tau, max_steps=60)
    torch.manual_seed(0)
    policy = Policy(PolicyConfig(16, parts=True, prior=5.0))
    deployment = Deployment(tau, rollouts=0, judge="validation", trades=False)
    task = task_of(model, behaviour, settings, reward)
    (episode,) = rollouts(policy, task, reward, 0, 0)
    fresh = Engine(model, behaviour.pairs(model.tokenizer, 100, VALIDATION_SEED))
    f_of = lambda masks: fresh.faithfulness(masks, task.candidates).numpy()  # noqa: E731
    f = f_of(episode.masks)
    (step,), _ = step_back(np.array([len(f) - 1]), f[-1:], tau, lambda which, at: f[at])
    high = task.ceiling - 1e-4
    monkeypatch.setattr("mechrl.rl.rollout.higher", lambda aim, short: high)
    found = deploy(model, behaviour, task, policy, deployment, settings, reward)
    assert f[-1] < tau <= f[step] and found.settings["agent_tau"] == tau
    # it is part of the way from the last step that is enough to the next, and one edge more would be too much
    mask, gone = found.mask[task.candidates], episode.gone(step, np.abs(task.scores[0][task.candidates]))
    ways = model.graph.prune(
        np.stack([episode.part_of_the_way(step, gone[:n]) for n in range(len(gone) + 1)]), task.candidates
    )
    (n,) = np.flatnonzero((ways == mask).all(1))
    assert 0 < n < len(gone) and f_of(ways[n : n + 1]) >= tau > f_of(ways[n + 1 : n + 2])
    assert found.faithfulness_validation == pytest.approx(float(f_of(mask[None])[0]), abs=1e-5)
    assert found.faithfulness == pytest.approx(float(task.engine.faithfulness(found.mask)[0]), abs=1e-5)
    assert found.settings["note"] == f"greedy rollout, part of step {step + 1} of {len(f) - 1}"
    assert sorted([*found.order, *np.flatnonzero(found.mask)]) == task.candidates.tolist()
    (episode,) = rollouts(policy, aimed(task, high, settings, reward)[0], reward, 0, 0)
    assert episode.masks[-1].sum() > len(found)


def test_part_of_the_way_leads_to_the_next_step():
    """Also where edges come in: these come first."""
    masks = np.array([[1, 1, 1, 1, 0, 0], [0, 1, 0, 0, 1, 0]], dtype=bool)
    episode = Episode(masks, np.array([1.0, 0.5]), ((0, 2, 3),))
    gone = episode.gone(0, np.array([3.0, 0, 1, 2, 0, 0]))
    assert gone.tolist() == [2, 3, 0]
    ways = [episode.part_of_the_way(0, gone[:n]).astype(int).tolist() for n in range(4)]
    assert ways == [[1, 1, 1, 1, 1, 0], [1, 1, 0, 1, 1, 0], [1, 1, 0, 0, 1, 0], masks[1].astype(int).tolist()]
    ended = episode.ended(0, np.array(ways[1], dtype=bool), 0.9, gone[:1])
    assert ended.removed(1) == (2,) and ended.f.tolist() == [1.0, 0.9] and ended.masks[-1].tolist() == ways[1]


@pytest.mark.parametrize("look_again", [0.0, 0.8])
def test_together_each_is_what_it_would_be_alone(model, look_again):
    """Same circuits, f and passes, whoever runs beside it; and the engine was charged for all of them, the greedy episode once."""
    behaviour, settings, policy = get_behaviour("ioi"), TaskSettings(pairs=4, k=60), agent()
    reward = replace(REWARD, look_again=look_again, best_so_far=bool(look_again))
    deployments = [
        Deployment(tau=0.5, rollouts=0),
        *(Deployment(tau=0.5, rollouts=3, seed=seed) for seed in (4, 2)),
        Deployment(tau=0.7, rollouts=5, seed=2, judge="validation", best_along_episode=True),
    ]
    task = task_of(model, behaviour, settings, reward)
    prepared = task.engine.passes
    together = deploy_together(model, behaviour, task, policy, deployments, settings, reward)
    spent = task.engine.passes - prepared
    alone, own = [], []
    for deployment in deployments:
        task.engine.ledger.restore(prepared)
        alone.append(deploy(model, behaviour, task, policy, deployment, settings, reward))
        own.append(task.engine.passes - prepared)
    for ours, theirs in zip(together, alone, strict=True):
        assert (
            np.array_equal(ours.mask, theirs.mask)
            and ours.order == theirs.order
            and ours.passes == theirs.passes
        )
        assert ours.faithfulness == pytest.approx(theirs.faithfulness, abs=1e-6)
        assert ours.faithfulness_test == theirs.faithfulness_test
        assert ours.settings["note"] == theirs.settings["note"]
    assert spent == pytest.approx(sum(own) - 3 * own[0])
    assert len({circuit.order for circuit in together}) > 1


# ---- policies on disk -----------------------------------------------------------------------------------------------


def test_damaged_policies_are_one_line(tmp_path):
    folder = tmp_path / "policy"
    with pytest.raises(MechRLError, match="is missing"):
        load_policy(folder)
    agent().save(folder)
    assert load_policy(folder).config.width == 16 and trained_with(folder) == (
        TaskSettings(),
        RewardSettings(),
    )
    whole = (folder / "model.safetensors").read_bytes()
    for damage, message in ((whole[: len(whole) // 2], "cut short"), (b"", "cut short")):
        (folder / "model.safetensors").write_bytes(damage)
        with pytest.raises(MechRLError, match=message) as caught:
            load_policy(folder)
        assert "\n" not in str(caught.value)
    (folder / "model.safetensors").write_bytes(whole)
    (folder / "config.json").write_text('{"width": 32}')
    with pytest.raises(MechRLError, match="does not fit") as caught:
        load_policy(folder)
    assert "\n" not in str(caught.value)
    for text in ('{"width": 16', '{"depth": 3}', "[]"):
        (folder / "config.json").write_text(text)
        with pytest.raises(MechRLError, match="damaged"):
            load_policy(folder)
    (folder / "run.json").write_text("{}")
    with pytest.raises(MechRLError, match="damaged; remove"):
        trained_with(folder)
    for text in ('{"ppo": {"gamma": 1', "[]"):
        (folder / "run.json").write_text(text)
        with pytest.raises(MechRLError, match="damaged; remove"):
            learned_with(folder)


@pytest.mark.parametrize(
    ("k", "spare", "deployed"), [(40, 0.0, 40), (40, 0.1, 3000), (5000, 0.1, 5000), (5000, 0.0, 5000)]
)
@pytest.mark.parametrize(
    ("tau_high", "tau", "target"), [(0.9, None, 0.9), (0.9, 0.7, 0.7), (0.98, 0.7, 0.98), (0.9, 0.97, 0.97)]
)
def test_where_f_decides_deployments_have_the_candidates_they_need(
    tmp_path, k, spare, deployed, tau_high, tau, target
):
    task = TaskSettings(pairs=4, k=k, prefilter="union", spare=spare)
    reward = {"max_steps": 6, "tau_high": tau_high, "margin": 0.03}
    (tmp_path / "run.json").write_text(json.dumps({"task": task.to_json(), "reward": reward}))
    found, rewards = trained_with(tmp_path, tau)
    assert rewards == RewardSettings(max_steps=6, tau_high=target, margin=0.03)
    assert (found.k, found.spare) == (deployed, spare)
    assert found.reach == (pytest.approx(min(target + 0.03, 0.99)) if tau_high == 0.9 else 0.0)


def test_more_training_has_the_discount_of_the_policy(tmp_path):
    assert learned_with(tmp_path) == {}
    for known, own in (
        ({}, {}),
        ({"ppo": {}}, {}),
        ({"ppo": {"gamma": 0.99}}, {}),
        ({"ppo": {"gamma": 1.0}}, {"gamma": 1.0}),
    ):
        (tmp_path / "run.json").write_text(json.dumps(known))
        assert learned_with(tmp_path) == own


@pytest.mark.parametrize("change", [{"tau": 1.5}, {"rule": "best"}, {"judge": "test"}, {"rollouts": -1}])
def test_odd_deployments_are_refused(change):
    with pytest.raises(MechRLError):
        Deployment(**change)
