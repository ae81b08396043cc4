"""Fitting: the network from records. Effects are regressed; there is nothing to imitate.

    singles   Huber loss of asinh(30 · n · c) against what cutting, or adding, the edge alone did
    edits     negative log-likelihood of T(Δ) under Normal(μ, σ)
    fresh     the same losses for c°, and the likelihood of f − f_fresh under Normal(gap, σ_gap)

One step takes a few circuits with all of their edits. Every circuit counts alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import gaussian_nll_loss, huber_loss

from mechrl.agents.planner.features import Seen, see
from mechrl.agents.planner.network import _SPREAD, EditModel, NetworkConfig, squash
from mechrl.agents.planner.records import Record
from mechrl.errors import MechRLError
from mechrl.graph import Graph
from mechrl.ranges import check_seed

_EDITS = 96  # of a circuit in one step
_MEMBERS = 600_000  # and so many edges in them at most


@dataclass(frozen=True)
class FitSettings:
    epochs: int = 24
    circuits: int = 8  # a step
    learning_rate: float = 3e-3
    weight_decay: float = 1e-4
    hidden: int = 128
    messages: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Example:
    """A record as the network takes it."""

    seen: Seen
    graph: Graph
    cut: Tensor  # [T, n] bool
    add: Tensor  # [T, m] bool
    lost: Tensor  # [T] f of the circuit − f after the edit
    lost_fresh: Tensor  # [T] the same on fresh pairs, NaN where not measured
    gap: Tensor  # [T] f − f on fresh pairs after the edit, NaN where not measured
    single: Tensor  # [T] the one edge that was cut or added, −1 for other edits
    members: int  # edges of an average edit

    @classmethod
    def of(cls, record: Record) -> Example:
        seen = see(record.graph, record.look, record.first)
        one = np.concatenate([record.cut, record.add], axis=1)
        single = np.where(one.sum(1) == 1, one.argmax(1), -1)
        lost, lost_fresh = record.f[0] - record.f, record.f_fresh[0] - record.f_fresh
        lost, lost_fresh, gap = (
            torch.from_numpy(x.astype(np.float32)) for x in (lost, lost_fresh, record.f - record.f_fresh)
        )
        cut, add = torch.from_numpy(record.cut), torch.from_numpy(record.add)
        members = max(1, int(one.sum()) // len(one))
        return cls(seen, record.graph, cut, add, lost, lost_fresh, gap, torch.from_numpy(single), members)

    def to(self, device: torch.device | str) -> Example:
        """There, once: every step reads it."""
        seen = replace(self.seen, edges=self.seen.edges.to(device), gains=self.seen.gains.to(device))
        tensors = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return Example(**vars(self) | tensors | {"seen": seen})


def fit(
    records: Sequence[Record],
    settings: FitSettings = FitSettings(),  # noqa: B008 (frozen)
    device: torch.device | str = "cpu",
    report: Callable[[int, str], None] = lambda epoch, line: None,
) -> EditModel:
    """A network fitted to records. The same records and settings give the same network on the same device."""
    if not records:
        raise MechRLError("no records to fit to")
    torch.manual_seed(settings.seed)
    rng = np.random.default_rng(settings.seed)
    examples = [Example.of(record).to(device) for record in records]
    model = EditModel(
        NetworkConfig(examples[0].seen.edges.shape[1], settings.hidden, messages=settings.messages)
    )
    some = torch.cat([e.seen.edges[rng.permutation(len(e.seen.edges))[:200]] for e in examples])
    model.mean.copy_(some.mean(0))
    model.scale.copy_(some.std(0) + 1e-3)
    model.to(device)
    steps = settings.epochs * -(-len(examples) // settings.circuits)
    optimiser = torch.optim.AdamW(
        model.parameters(), settings.learning_rate, weight_decay=settings.weight_decay
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, settings.learning_rate, steps, pct_start=0.1)
    began = time.perf_counter()
    for epoch in range(settings.epochs):
        order, total = rng.permutation(len(examples)), torch.zeros((), device=device)
        for first in range(0, len(order), settings.circuits):
            batch = [examples[i] for i in order[first : first + settings.circuits]]
            optimiser.zero_grad()
            for example in batch:
                loss = sum(losses(model, example, rng).values()) / len(batch)
                assert isinstance(loss, Tensor)
                loss.backward()
                total += loss.detach() * len(batch)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
        report(epoch + 1, f"loss {float(total) / len(examples):.3f}, {time.perf_counter() - began:.0f} s")
    return model.eval()


def losses(model: EditModel, example: Example, rng: np.random.Generator) -> dict[str, Tensor]:
    """The parts of the loss at one circuit, on some of its edits."""
    some = rng.permutation(len(example.cut) - 1)[: min(_EDITS, _MEMBERS // example.members)]
    device = model.mean.device
    rows = torch.from_numpy(np.concatenate([[0], 1 + some])).to(device, non_blocking=True)
    edges = model.edges(example.seen, example.graph)
    effect = model.effect(edges, example.cut[rows].float(), example.add[rows].float())
    single, lost, lost_fresh, gap = (
        x[rows] for x in (example.single, example.lost, example.lost_fresh, example.gap)
    )
    found: dict[str, Tensor] = {}
    one, n = single >= 0, example.seen.n
    sign = torch.where(single < n, 1.0, -1.0)  # additions win what cuts lose
    for name, squashed, target, of in (
        ("single", edges.squashed, lost, one),
        ("single fresh", edges.squashed_fresh, lost_fresh, one & lost_fresh.isfinite()),
    ):
        if of.any():
            aim = torch.asinh(_SPREAD * n * sign[of] * target[of]).clamp(-8, 8)
            found[name] = huber_loss(squashed[single[of]], aim)
    variance = (2 * effect.log_sigma[1:].clamp(-3.5, 2)).exp()
    found["edits"] = gaussian_nll_loss(effect.mu[1:], squash(lost[1:]), variance)
    known = gap.isfinite()
    if known.any():
        variance = (2 * effect.log_sigma_gap[known].clamp(-6, 0)).exp()
        found["gap"] = 0.5 * gaussian_nll_loss(effect.gap[known], gap[known], variance, eps=1e-8)
    return found
