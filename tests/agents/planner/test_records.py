"""Walks and records: records match the engine; a repeated walk is identical; damaged files are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mechrl
from mechrl.agents.planner import records
from mechrl.agents.planner.collect import CollectSettings, Walk, walk
from mechrl.behaviours import VALIDATION_SEED
from mechrl.engine import Engine
from mechrl.errors import MechRLError
from tests.damage import damaged

SMALL = CollectSettings(pairs=6, fresh=8, states=3, singles=8, additions=4, sets=6, mixed=4, outside=40)


@pytest.fixture(scope="module")
def toy():
    return mechrl.load_model("toy")


@pytest.fixture(scope="module")
def found(toy) -> Walk:
    return walk(toy, mechrl.behaviour("ioi"), 0, SMALL)


def test_a_record_says_what_its_edits_did(toy, found: Walk) -> None:
    behaviour = mechrl.behaviour("ioi")
    engine = Engine(toy, behaviour.pairs(toy.tokenizer, 6, 0, part="discovery"))
    fresh = Engine(toy, behaviour.pairs(toy.tokenizer, 8, VALIDATION_SEED))
    assert len(found.records) == 3
    for record in found.records:
        masks = np.zeros((len(record.f), toy.graph.n_edges), dtype=bool)
        masks[:, record.look.alive] = ~record.cut
        masks[:, record.look.outside] |= record.add
        assert np.allclose(engine.faithfulness(masks), record.f, atol=1e-5)
        known = np.isfinite(record.f_fresh)
        assert known[0] and 1 < known.sum() < len(known)
        assert np.allclose(fresh.faithfulness(masks[known]), record.f_fresh[known], atol=1e-5)
        assert not record.cut[0].any() and not record.add[0].any() and record.f[0] == record.look.f
        assert record.add.any(0).all()  # edges outside that were not tried are not stored
    sizes = [len(record.look.alive) for record in found.records]
    assert sizes == sorted(set(sizes), reverse=True)


def test_a_walk_is_the_same_twice_and_other_draws_are_others(toy, found: Walk) -> None:
    again, other = (walk(toy, mechrl.behaviour("ioi"), draw, SMALL) for draw in (0, 1))
    for a, b in zip(found.records, again.records, strict=True):
        assert (a.cut == b.cut).all() and (a.f == b.f).all() and (a.look.gains == b.look.gains).all()
    assert again.passes == found.passes
    assert not np.array_equal(other.records[0].look.gains, found.records[0].look.gains)


def test_what_is_written_is_read(found: Walk, tmp_path: Path) -> None:
    records.write(tmp_path / "a.safetensors", found.records, {"model": "toy"})
    again, about = records.read(tmp_path / "a.safetensors")
    assert about == {"model": "toy"}
    for a, b in zip(found.records, again, strict=True):
        assert (a.behaviour, a.family, a.draw, a.graph, a.look.f) == (
            b.behaviour,
            b.family,
            b.draw,
            b.graph,
            b.look.f,
        )
        assert (a.cut == b.cut).all() and (a.add == b.add).all() and (a.look.alive == b.look.alive).all()
        assert np.allclose(a.f, b.f, atol=1e-6) and np.allclose(
            a.f_fresh, b.f_fresh, atol=1e-6, equal_nan=True
        )
        for x, y in (
            (a.look.gains, b.look.gains),
            (a.look.outside_gains, b.look.outside_gains),
            (a.first.rms, b.first.rms),
        ):
            assert np.allclose(x, y, rtol=1e-3, atol=1e-7)  # half precision


def test_damaged_records_are_refused_in_one_line(found: Walk, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    records.write(path, found.records[:1], {})
    for _ in damaged(path, 100, 2000):
        try:
            records.read(path)
        except MechRLError as exc:
            assert "\n" not in str(exc)
    with pytest.raises(MechRLError, match="nothing collected"):
        records.read_all(tmp_path / "empty")
