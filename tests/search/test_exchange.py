"""Exchanges in a world where f is a sum over edges and edges die in pairs: a thorough exchange finds more than a plain one."""

from __future__ import annotations

import numpy as np

from mechrl.search.exchange import AT_ONCE, MEASURED, Trade, exchange

TAU = 0.9


class World:
    """n edges; in some places every other edge dies with the one before it. f is the sum of the edges' values."""

    def __init__(self, seed: int, n: int = 60) -> None:
        rng = np.random.default_rng(seed)
        self.chained = np.flatnonzero(rng.random(n // 2) < 0.3) * 2
        self.mask = self.prune((np.arange(n) < 30)[None])[0]
        self.value = np.where(self.mask, rng.uniform(0.0025, 0.01, n), rng.uniform(0, 0.004, n))
        self.value[0] += TAU + rng.uniform(0, 0.002) - self.value[self.mask].sum()
        # the larger a gain, the worse its estimate; costs are estimated well
        self.gain = np.where(self.mask, self.value, self.value * rng.uniform(0.5, 3, n))
        self.gain[0] = 1.0
        self.passes = 0

    def prune(self, masks: np.ndarray) -> np.ndarray:
        masks = masks.copy()
        both = masks[:, self.chained] & masks[:, self.chained + 1]
        masks[:, self.chained], masks[:, self.chained + 1] = both, both
        return masks

    def f(self, masks: np.ndarray) -> np.ndarray:
        return masks @ self.value

    def exchange(self, thorough: bool, size: int = 1) -> Trade | None:
        trying = exchange(self.mask, float(self.f(self.mask)), TAU, self.gain, self.prune, size, thorough)
        self.passes = 0
        try:
            masks = next(trying)
            while True:
                assert (self.prune(masks) == masks).all()
                self.passes += len(masks)
                masks = trying.send(self.f(masks))
        except StopIteration as end:
            return end.value


def test_a_thorough_exchange_finds_what_a_plain_one_does_and_more():
    rescued = failed = found = 0
    for seed in range(300):
        world = World(seed)
        plain, paid = world.exchange(False), world.passes
        thorough = world.exchange(True)
        if plain is not None:
            assert thorough is not None and (thorough.mask == plain.mask).all() and world.passes == paid
            found += 1
            continue
        assert paid + MEASURED <= world.passes <= paid + MEASURED + -(-MEASURED // AT_ONCE) * AT_ONCE
        if thorough is None:
            failed += 1
            continue
        rescued += 1
        assert thorough.mask.sum() < world.mask.sum() and thorough.f >= TAU and thorough.won >= 1
        assert np.isclose(thorough.f, world.f(thorough.mask), rtol=0, atol=1e-12)
    assert found and failed and rescued > 10


def test_where_it_fails_no_measured_additions_pay_for_one_cut_more_than_they_are():
    """In a purely additive world without chains: swaps the best measured additions for the cheapest measured cuts."""
    failed = 0
    for seed in range(200):
        world = World(seed)
        world.chained = world.chained[:0]
        world.mask = np.arange(60) < 30
        world.value[0] += TAU + 0.002 - world.value[world.mask].sum()
        if world.exchange(True) is not None:
            continue
        failed += 1
        f = world.f(world.mask)
        tried = np.argsort(-np.where(world.mask, -np.inf, world.gain), kind="stable")[:MEASURED]
        alive = np.flatnonzero(world.mask)
        cheap = np.sort(world.value[alive[np.argsort(world.gain[alive], kind="stable")][:12]])
        best = np.sort(world.value[tried])[::-1]
        for a in range(MEASURED):
            assert f + best[:a].sum() - cheap[: a + 1].sum() < TAU + 1e-12
    assert failed


def test_groups_are_not_measured_one_by_one():
    failed = 0
    for seed in range(200):
        world = World(seed)
        if world.exchange(False, size=2) is None:
            paid = world.passes
            assert world.exchange(True, size=2) is None and world.passes == paid
            failed += 1
    assert failed
