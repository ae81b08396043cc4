"""How well effects are predicted: single costs beside gradients, sets, and whether the network knows how sure it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from mechrl.agents.planner.fit import Example
from mechrl.agents.planner.network import EditModel, squash
from mechrl.agents.planner.records import Record

LARGEST = 1200  # edges: above, single cuts do next to nothing and their ranks are those of rounding


def assess(model: EditModel, records: Iterable[Record]) -> list[dict[str, Any]]:
    """One row for every record: rank correlations with the measured effects, and calibration."""
    return [row for record in records if (row := _row(model, record)) is not None]


def _row(model: EditModel, record: Record) -> dict[str, Any] | None:
    example = Example.of(record)
    device, n = model.mean.device, example.seen.n
    with torch.no_grad():
        edges = model.edges(example.seen)
        effect = model.effect(edges, *(x.float().to(device) for x in (example.cut, example.add)))
    cost, cost_fresh = edges.cost.cpu().numpy(), edges.cost_fresh.cpu().numpy()
    gains, single = example.seen.gains.numpy(), example.single.numpy()
    lost, lost_fresh, true_gap = (x.numpy() for x in (example.lost, example.lost_fresh, example.gap))
    cuts, adds = (single >= 0) & (single < n), single >= n
    sets = (record.cut.sum(1) + record.add.sum(1)) > 1
    row: dict[str, Any] = {
        "behaviour": record.behaviour,
        "family": record.family,
        "draw": record.draw,
        "n": n,
        "f": record.look.f,
    }
    if n <= LARGEST and cuts.sum() >= 8:
        e, true = single[cuts], lost[cuts]
        for name, guess in (
            ("learned", cost),
            ("gradient", gains[-1].mean(0)),
            ("|gradient|", np.abs(gains[-1].mean(0))),
            ("path", gains[:-1].mean((0, 1))),
        ):
            row[f"cost {name}"] = spearman(guess[e], true)
        fresh = np.isfinite(lost_fresh[cuts])
        if fresh.sum() >= 8:
            row["fresh cost learned"] = spearman(cost_fresh[e[fresh]], lost_fresh[cuts][fresh])
            row["fresh cost measured on discovery"] = spearman(true[fresh], lost_fresh[cuts][fresh])
    if n <= LARGEST and adds.sum() >= 8:
        e, true = single[adds], -lost[adds]
        row["gain learned"], row["gain gradient"] = (
            spearman(cost[e], true),
            spearman(gains[-1].mean(0)[e], true),
        )
    mu, sigma = effect.mu.cpu().numpy(), effect.log_sigma.exp().cpu().numpy()
    true = squash(example.lost).numpy()
    z = (true - mu)[sets] / sigma[sets]
    row |= {"sets learned": pearson(mu[sets], true[sets]), "within 1 sigma": float((np.abs(z) < 1).mean())}
    row |= {"within 2 sigma": float((np.abs(z) < 2).mean()), "sigma": float(sigma[sets].mean())}
    first_order = record.cut @ gains[-1, :, :n].mean(0) - record.add @ gains[-1, :, n:].mean(0)
    along = record.cut @ gains[:-1, :, :n].mean((0, 1)) - record.add @ gains[-1, :, n:].mean(0)
    for name, guess in (("gradient", first_order), ("path", along)):
        row[f"sets {name}"] = pearson(np.arcsinh(guess / 0.01)[sets], true[sets])
    known = np.isfinite(true_gap)
    gap, sigma_gap = effect.gap.cpu().numpy()[known], effect.log_sigma_gap.exp().cpu().numpy()[known]
    row["gap error"] = float(np.abs(gap - true_gap[known]).mean())
    row["gap error of none"] = float(np.abs(true_gap[known]).mean())
    row["gap within 1 sigma"] = float((np.abs(gap - true_gap[known]) < sigma_gap).mean())
    return row


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    return pearson(a.argsort().argsort().astype(float), b.argsort().argsort().astype(float))


def pearson(a: np.ndarray, b: np.ndarray) -> float:
    if len(a) < 3 or a.std() == 0 or b.std() == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])
