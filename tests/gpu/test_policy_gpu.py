"""The policy's kernels against their torch twins, and acting and training on a GPU against float64 on the CPU.

The kernels' tests also run without a GPU, in Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from mechrl.agents.paper import kernels
from mechrl.agents.paper.deploy import Rollouts, Watch
from mechrl.agents.paper.env import BATCH_SIZES, EnvConfig
from mechrl.agents.paper.policy import Policy
from mechrl.agents.paper.policy_batched import Actor, Choice, copies
from mechrl.agents.paper.policy_replay import Layout, Transitions, evaluate, replay
from mechrl.agents.paper.policy_tables import States, Tables
from mechrl.agents.paper.ppo import PPOConfig, Trainer
from mechrl.files import write_atomically
from mechrl.search.problem import Interrupted
from tests.agents.paper.tasks import small_task
from tests.agents.paper.test_policy import random_states

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
INTERPRETED = kernels.triton is not None and os.environ.get("TRITON_INTERPRET") == "1"
needs_cuda = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (CUDA or INTERPRETED), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),  # the interpreter's own
]

SIZES = [
    (1, 1, 3, 20, 16),
    (3, 7, 3, 37, 16),
    (5, 1, 3, 50, 16),
    (2, 40, 2, 150, 20),
    (2, 3, 2, 290, 128),
]  # G, U, T, K, H


def close(ours: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> bool:
    """To float32's precision, on the scale of the numbers."""
    return bool(
        (ours.double() - expected.double()).abs().max() <= tolerance * max(1.0, expected.abs().max().item())
    )


def groups(G: int, U: int, T: int) -> tuple[torch.Tensor, torch.Tensor]:
    count = torch.randint(1, U + 1, (G,))
    count[0] = U
    return torch.arange(G) % T, count


@pytest.mark.parametrize("sizes", SIZES)
def test_pooling(sizes):
    G, U, T, K, H = sizes
    torch.manual_seed(0)
    task, count = groups(G, U, T)
    R = 2 * K + 1
    table = torch.randn(T, R, H).relu()
    table[:, -1] = 0
    rows = torch.stack([torch.randperm(R)[:K] for _ in range(G * U)]).view(G, U, K)
    rows[torch.rand(rows.shape) < 0.1] = R - 1
    expected = kernels.pool_torch(table.double(), rows, task, count)
    ours = [x.cpu() for x in kernels.pool_triton(*(x.to(DEVICE) for x in (table, rows, task, count)))]
    assert torch.isfinite(ours[1]).all() and ours[2].min() >= 0 and ours[2].max() < R
    for g in range(G):
        n = count[g]
        assert close(ours[0][g, :n], expected[0][g, :n]) and close(ours[1][g, :n], expected[1][g, :n], 0)
        assert torch.equal(
            table[task[g]].gather(0, ours[2][g, :n]), ours[1][g, :n]
        )  # the index is a winner's
        for u in range(n):
            assert all(row == R - 1 or row in rows[g, u] for row in ours[2][g, u].unique())


@pytest.mark.parametrize("sizes", SIZES)
def test_scores(sizes):
    G, U, T, K, H = sizes
    torch.manual_seed(0)
    task, count = groups(G, U, T)
    first, shift, weight = torch.randn(T, H, K), torch.randn(G, U, H), torch.randn(1, H).expand(G, H)
    expected = kernels.scores_torch(first.double(), shift.double(), weight.double(), task, count)
    ours = kernels.scores_triton(*(x.to(DEVICE) for x in (first, shift, weight, task, count))).cpu()
    assert torch.isfinite(ours).all()
    for g in range(G):
        assert close(ours[g, : count[g]], expected[g, : count[g]])


@pytest.mark.parametrize("sizes", SIZES)
def test_gradients_of_scores(sizes):
    _, U, T, K, H = sizes
    torch.manual_seed(0)
    _, count = groups(T, U, T)
    first, shift, d_score = torch.randn(T, H, K), torch.randn(T, U, H), torch.randn(T, U, K)
    d_score[torch.arange(U) >= count[:, None]] = 0
    expected = kernels.scores_backward_torch(d_score.double(), first.double(), shift.double(), count)
    ours = kernels.scores_backward_triton(*(x.to(DEVICE) for x in (d_score, first, shift, count)))
    for a, b in zip(ours, expected, strict=True):
        assert close(a.cpu(), b)


@pytest.mark.parametrize("T", [1, 2, 5, 12])
def test_projections(T):
    torch.manual_seed(T)
    gradients = torch.randn(T, 6, dtype=torch.float64)
    if T > 2:
        gradients[1] = 0
    gram, order = gradients @ gradients.T, torch.stack([torch.randperm(T) for _ in range(T)])
    ours = kernels.project_triton(gram.to(DEVICE), order.to(DEVICE)).cpu()
    assert torch.allclose(ours, kernels.project_torch(gram, order), rtol=0, atol=1e-12)


def setting(width: int = 32) -> tuple[Policy, Tables, States]:
    torch.manual_seed(0)
    policy = Policy(width)
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.1 * torch.randn_like(p))
        policy.type_head.second.bias.zero_()
        policy.type_head.second.weight.mul_(0.1)  # all action types occur
    tables = Tables.of([small_task("gpt2", 40), small_task("llama-gqa", 33, 1)])
    states = random_states(tables, 48, density=0.95)
    return policy, tables, replace(states, globals=states.globals.float())


def to(thing, device: str):
    parts = (getattr(thing, name) for name in thing.__dataclass_fields__)
    return type(thing)(*(part.to(device) if isinstance(part, torch.Tensor) else part for part in parts))


def test_replay_and_its_gradients_equal_the_cpus(monkeypatch):
    policy, tables, states = setting()
    with monkeypatch.context() as plain:
        plain.setattr(kernels, "available", lambda _: False)
        choice = Actor(policy, tables).act(states, torch.Generator().manual_seed(0))
    actions = [torch.from_numpy(x) for x in (choice.actions.type, choice.actions.edges, choice.actions.node)]
    assert len(set(choice.actions.type)) == 6
    loss = torch.rand(3, 48, generator=torch.Generator().manual_seed(1))

    def gradients(device: str, dtype: torch.dtype) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        t = to(tables, device)
        t = replace(t, edges=t.edges.to(dtype), nodes=t.nodes.to(dtype), degree=t.degree.to(dtype))
        s = replace(to(states, device), globals=states.globals.to(device, dtype))
        record = Transitions.of(t, s, *(a.to(device) for a in actions))
        layout = Layout.of(states.task.numpy(), actions[0].numpy(), np.arange(48), device)
        weights = {n: w.detach().to(device, dtype).requires_grad_() for n, w in copies(policy, 2).items()}
        found = replay(weights, t, record, layout)
        parts_of = (found.log_prob, found.type_entropy, found.pick_entropy, found.value)
        numbers = [x.flatten()[layout.place] for x in parts_of]
        of = loss.to(device, dtype)
        total = sum((of[i] * numbers[i]).sum() for i in range(3)) + numbers[3].square().sum()
        parts = torch.autograd.grad(total, list(weights.values()), allow_unused=True)
        return [x.detach().cpu() for x in numbers], [p.cpu() for p in parts if p is not None]

    with monkeypatch.context() as plain:
        plain.setattr(kernels, "available", lambda _: False)
        expected = gradients("cpu", torch.float64)
    if not CUDA:
        monkeypatch.setattr(kernels, "available", lambda like: like.dtype == torch.float32)
    for ours, exact in zip(gradients(DEVICE, torch.float32), expected, strict=True):
        for a, b in zip(ours, exact, strict=True):
            assert close(a, b, 2e-5)


@needs_cuda
def test_acting_is_legal_reproducible_and_what_replay_says():
    policy, tables, states = setting()
    policy, tables, states = policy.cuda(), to(tables, "cuda"), to(states, "cuda")
    states.mask[:2] = False
    actor = Actor(policy, tables)

    def act(seed: int) -> Choice:
        return actor.act(states, torch.Generator("cuda").manual_seed(seed))

    first, again, other = act(0), act(0), act(1)
    assert (first.actions.edges == again.actions.edges).all() and torch.equal(first.log_prob, again.log_prob)
    assert (first.actions.edges != other.actions.edges).any() and len(set(first.actions.type)) == 6
    assert (first.actions.type[:2] == 0).all()
    mask = states.mask.cpu()
    for i, kind in enumerate(first.actions.type):
        picks = first.actions.edges[i, : BATCH_SIZES[kind]]
        assert mask[i, picks].all() and len(set(picks.tolist())) == len(picks)
        assert (first.actions.edges[i, BATCH_SIZES[kind] :] == -1).all()
    with torch.no_grad():  # the graph reads the weights in place
        for p in policy.parameters():
            p.mul_(0.9)
    actor.refresh()
    changed = act(0)
    for choice in (changed, actor.act(states, greedy=True)):
        found = evaluate(policy, tables, states, choice.actions)
        assert close(choice.log_prob, found.log_prob.detach()) and close(choice.value, found.value.detach())
    assert not close(changed.value, first.value)
    assert close(actor.value(states), changed.value)
    few = states[:5]
    assert len(actor.act(few, greedy=True).actions.type) == 5


@needs_cuda
def test_draws_follow_their_probabilities():
    policy, tables, states = setting()
    policy, tables = policy.cuda(), to(tables, "cuda")
    many = States(
        *(
            getattr(states, n)[:1].expand(2000, *getattr(states, n).shape[1:]).contiguous().cuda()
            for n in ("task", "mask", "globals")
        )
    )
    choice = Actor(policy, tables).act(many, torch.Generator("cuda").manual_seed(0))
    kinds, picks, log_prob = (
        choice.actions.type,
        choice.actions.edges[:, 0],
        choice.log_prob.cpu().exp().numpy(),
    )
    for single in np.unique(picks[kinds == 1]):
        chosen = (kinds == 1) & (picks == single)
        p = log_prob[chosen].mean()
        assert abs(chosen.mean() - p) < 5 * np.sqrt(p / 2000)


@needs_cuda
def test_an_iteration_on_the_device_equals_the_cpus_update():
    env = EnvConfig(max_steps=8)
    config = PPOConfig(iterations=4, transitions=32, envs=8, epochs=2, minibatches=2)
    tasks = [small_task("gpt2", 40, config=env), small_task("llama-gqa", 33, 1, env)]
    torch.manual_seed(0)
    on_cpu = Trainer(tasks, config, env, Policy(16))
    torch.manual_seed(0)
    on_gpu = Trainer(tasks, config, env, Policy(16), "cuda")
    rollout, _ = on_cpu.collect()
    moved = replace(rollout, **{n: getattr(rollout, n).cuda() for n in ("log_prob", "advantage", "target")})
    there = to(rollout.transitions, "cuda")
    moved = replace(moved, transitions=replace(there, states=to(rollout.transitions.states, "cuda")))
    ours, expected = on_gpu.update(moved), on_cpu.update(rollout)
    assert ours == pytest.approx(expected, rel=1e-3, abs=1e-5)
    for a, b in zip(on_gpu.parameters, on_cpu.parameters, strict=True):
        assert (a.cpu() - b).abs().max() < 5e-5  # four steps of Adam move up to 1e-3
    rows = list(on_gpu.run())
    assert len(rows) == 4 and np.isfinite(rows[-1]["loss/policy"])


@needs_cuda
def test_a_checkpoint_continues_on_the_device(tmp_path):
    env = EnvConfig(max_steps=8)
    config = PPOConfig(iterations=2, transitions=32, envs=8, epochs=2, minibatches=2)
    tasks = [small_task("gpt2", 40, config=env)]
    run = Trainer(tasks, config, env, Policy(16), "cuda")
    next(run.run())
    write_atomically(tmp_path / "run.safetensors", run.to_bytes())
    other = Trainer(tasks, config, env, Policy(16), "cuda")
    other.load(tmp_path / "run.safetensors")
    a, b = next(run.run()), next(other.run())
    assert a["episode/return"] == b["episode/return"] and a["loss/value"] == pytest.approx(
        b["loss/value"], rel=1e-4
    )


@needs_cuda
def test_rollouts_that_were_stopped_go_on_with_the_devices_own_noise(tmp_path):
    env, path = EnvConfig(max_steps=5), tmp_path / "rollouts.safetensors"
    task = small_task("gpt2", 60, 0, env)
    torch.manual_seed(0)
    policy = Policy(16).to("cuda")
    straight = Rollouts(policy, task, env, 4, seed=0).run()
    with pytest.raises(Interrupted):
        Rollouts(policy, task, env, 4, seed=0).run(Watch(path=path, stopping=lambda: True))
    again = Rollouts(policy, task, env, 4, seed=0).run(Watch(path=path))
    for ours, theirs in zip(again, straight, strict=True):
        assert np.array_equal(ours.mask, theirs.mask) and ours.cuts == theirs.cuts
