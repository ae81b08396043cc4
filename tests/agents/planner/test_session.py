"""Sessions on the embedded model: guarantees about the circuit, passes charged, and lossless interruption."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import mechrl
from mechrl.agents.planner.look import strength
from mechrl.agents.planner.network import EditModel
from mechrl.agents.planner.session import DiscoverSettings, Session
from mechrl.agents.planner.shipped import load_planner, shipped
from mechrl.agents.planner.start import ROOM, SIZES
from mechrl.behaviours import TEST_SEED, VALIDATION_SEED
from mechrl.circuit import Circuit
from mechrl.engine import Engine
from mechrl.errors import MechRLError
from mechrl.models.base import Model
from mechrl.search.fresh_pairs import N_FRESH

BEHAVIOUR = "acronyms"  # the planner was not fitted to its family
FRESH = DiscoverSettings(pairs=10)
DISCOVERY = replace(FRESH, holds_on="discovery")


@pytest.fixture(scope="module")
def toy() -> Model:
    return mechrl.load_model("toy")


@pytest.fixture(scope="module")
def network() -> EditModel:
    return load_planner(shipped("toy"))


@pytest.fixture(scope="module")
def begin(toy: Model, network: EditModel):
    return lambda settings: Session(toy, mechrl.behaviour(BEHAVIOUR), network, settings)


@pytest.fixture(scope="module")
def straight(begin) -> tuple[Session, Circuit]:
    session = begin(FRESH)
    session.run()
    return session, session.circuit()


def engine_of(model: Model, n: int, seed: int, **part: str) -> Engine:
    return Engine(model, mechrl.behaviour(BEHAVIOUR).pairs(model.tokenizer, n, seed, **part))


def known(circuit: Circuit) -> dict:
    return circuit.to_json() | {"seconds": 0}


def test_the_numbers_are_those_of_engines_of_their_own(toy: Model, straight: tuple[Session, Circuit]) -> None:
    session, circuit = straight
    mask = circuit.mask[None]
    for f, engine in (
        (circuit.faithfulness, engine_of(toy, 10, 0, part="discovery")),
        (circuit.faithfulness_validation, engine_of(toy, N_FRESH, VALIDATION_SEED)),
        (circuit.faithfulness_test, engine_of(toy, N_FRESH, TEST_SEED)),
    ):
        assert f == pytest.approx(float(engine.faithfulness(mask)[0]), abs=1e-5)
    assert circuit.faithfulness_validation is not None and circuit.faithfulness_validation >= FRESH.tau
    assert circuit.size == len(circuit) < 100 and circuit.passes == session.passes


def test_every_candidate_that_went_is_in_the_order(begin) -> None:
    session = begin(DISCOVERY)
    session.run()
    circuit = session.circuit()
    assert set(circuit.order) == set(session.start.candidates) - set(np.flatnonzero(circuit.mask))
    assert len(set(circuit.order)) == len(circuit.order)
    path = [set(session.start.candidates[mask]) for mask in session.episode.path]
    last = [max((i for i, edges in enumerate(path) if edge in edges), default=-1) for edge in circuit.order]
    # edges removed for good in an earlier round come first
    assert last == sorted(last) and len(set(last)) > 3


def test_the_first_circuit_is_the_smallest_of_seven_that_leaves_room(toy: Model, begin) -> None:
    assert (len(SIZES), SIZES[0], SIZES[-1]) == (7, 500, 32_000)
    for tau in (0.5, 0.9, 0.999999):
        start = begin(replace(DISCOVERY, tau=tau)).start
        enough, order = tau + 0.4 * (1 - tau), np.argsort(-strength(start.looker.first()), kind="stable")
        engine = engine_of(toy, 10, 0, part="discovery")
        for size in [size for size in SIZES if size < toy.graph.n_edges]:
            mask = np.zeros(toy.graph.n_edges, dtype=bool)
            mask[order[:size]] = True
            if (f := float(engine.faithfulness(mask[None])[0])) >= enough:
                assert start.f == pytest.approx(f) and len(start.candidates) == min(ROOM * size, len(order))
                assert np.array_equal(np.flatnonzero(toy.graph.prune(mask)), start.candidates[start.mask])
                break
        else:
            assert start.f == 1 and start.mask.all() and len(start.mask) == toy.graph.n_edges


def test_seeds_draw_pairs_and_the_same_seed_finds_the_same(begin, straight: tuple[Session, Circuit]) -> None:
    again, other = begin(FRESH), begin(replace(FRESH, seed=1))
    again.run()
    assert known(again.circuit()) == known(straight[1])
    assert not np.array_equal(again.start.first.mean, other.start.first.mean)


class Left(Exception):
    pass


@pytest.mark.parametrize("settings", [FRESH, DISCOVERY], ids=["fresh", "discovery"])
def test_left_after_every_round_and_resumed_equals_straight(
    settings: DiscoverSettings, toy: Model, network: EditModel, begin, tmp_path: Path
) -> None:
    def leave(session: Session) -> None:
        session.save(tmp_path / "left")
        raise Left

    straight, session, rounds = begin(settings), begin(settings), 0
    straight.run()
    while True:
        try:
            session.run(leave)
            break
        except Left:
            rounds += 1
            session = Session.resume(tmp_path / "left", toy, session.behaviour, network, settings)
    assert rounds > 3 and known(session.circuit()) == known(straight.circuit())


@pytest.mark.parametrize("calls", [2, 7])
def test_stopped_within_a_round_it_resumes_from_the_last_save(
    calls: int, toy: Model, network: EditModel, begin, straight: tuple[Session, Circuit], tmp_path: Path
) -> None:
    session, path, left = begin(FRESH), tmp_path / "left", calls
    session.save(path)

    def watch() -> None:
        nonlocal left
        left -= 1
        if not left:
            raise Left

    with pytest.raises(Left):
        session.run(lambda now: now.save(path), watch)
    resumed = Session.resume(path, toy, session.behaviour, network, FRESH)
    resumed.run()
    assert known(resumed.circuit()) == known(straight[1])


def test_a_state_is_of_its_model_behaviour_and_settings(
    toy: Model, network: EditModel, begin, tmp_path: Path
) -> None:
    session, path = begin(FRESH), tmp_path / "left"
    session.save(path)
    for behaviour, settings in (("ioi", FRESH), (BEHAVIOUR, DISCOVERY), (BEHAVIOUR, replace(FRESH, seed=1))):
        with pytest.raises(MechRLError, match="of another model, behaviour or settings"):
            Session.resume(path, toy, mechrl.behaviour(behaviour), network, settings)


def test_every_question_to_validation_pairs_is_paid(begin) -> None:
    session, asked = begin(FRESH), []
    ask = session.planner.fresh.measure

    def on_validation(mask: np.ndarray) -> float:
        before = session.passes
        f = ask(mask)
        asked.append(session.passes - before)
        return f

    session.planner.fresh.measure = on_validation
    session.run()
    assert 1 <= len(asked) <= 12 and asked == pytest.approx([N_FRESH / 20] * len(asked))
    unchecked = begin(replace(FRESH, check=False))
    unchecked.run()
    assert unchecked.circuit().faithfulness_validation is None


def test_a_circuit_that_falls_short_is_read_back(begin) -> None:
    """Validation pairs that refuse circuits of fewer than 60 edges: the result is the smallest larger one on the path."""
    session, met = begin(FRESH), []
    session.planner.fresh.measure = lambda mask: 0.905 if mask.sum() >= 60 else 0.8
    session.run(lambda now: met.extend([*now.episode.path, now.episode.mask]))
    sizes = {int(mask.sum()) for mask in met}
    circuit = session.circuit()
    assert min(sizes) < 60 and len(circuit) == min(n for n in sizes if n >= 60)
    assert circuit.faithfulness_validation == 0.905


def test_a_budget_is_exceeded_by_a_round_at_most(begin) -> None:
    session, spent = begin(replace(DISCOVERY, budget=12)), []
    session.run(lambda now: spent.append(now.passes))
    assert "the budget is spent" in session.episode.note
    assert all(passes <= 12 for passes in spent[:-1]) and spent[-1] > 12
    circuit = session.circuit()
    assert circuit.faithfulness >= DISCOVERY.tau and len(circuit) == session.episode.mask.sum()
