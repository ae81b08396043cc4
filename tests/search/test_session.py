"""The session around a search: candidates grow until they can reach the aim."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mechrl.behaviours import get_behaviour
from mechrl.candidates import candidate_set
from mechrl.engine import Engine
from mechrl.models import load_model
from mechrl.models.base import Model
from mechrl.search import session as run
from mechrl.search.problem import State
from mechrl.search.session import SearchSession, SearchSettings, prepare
from tests.search.model import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(write_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MECHRL_CACHE", str(tmp_path / "cache"))


def f_of_best(session: SearchSession, k: int) -> float:
    candidates = candidate_set(session.scores, k)
    return float(session.problem.engine.faithfulness(np.ones(len(candidates), dtype=bool), candidates)[0])


@pytest.mark.parametrize("method", ["acdc", "blockwise"])
def test_k_is_doubled_until_the_candidates_reach_tau(model: Model, method: str) -> None:
    session = prepare(model, get_behaviour("ioi"), SearchSettings(method, pairs=4, k=5))
    assert session.k == 5 and f_of_best(session, 5) < 0.9
    prefilter = session.passes
    passes: list[float] = []
    session.problem.checkpoint = lambda state: passes.append(session.passes)
    state = session.run()
    assert session.k % 5 == 0 and (session.k // 5).bit_count() == 1
    assert f_of_best(session, session.k) >= 0.9 > f_of_best(session, session.k // 2)
    assert session.problem.candidates.tolist() == candidate_set(session.scores, session.k).tolist()
    assert len(state.mask) == len(session.problem.candidates)
    tried = (session.k // 5).bit_length()  # sets that were measured, each one pass for 4 of 20 pairs
    assert passes[0] >= prefilter + tried * 4 / 20
    circuit = session.circuit(state)
    assert circuit.settings["k"] == 5 and circuit.settings["k_used"] == session.k
    assert circuit.settings["candidates"] == len(session.problem.candidates)


def test_k_may_grow_to_the_whole_graph_and_stays_where_it_is_enough(model: Model) -> None:
    everything = prepare(
        model, get_behaviour("ioi"), SearchSettings("blockwise", tau=0.99999999, pairs=4, k=5)
    )
    everything.run()
    assert everything.k == len(everything.problem.candidates) == model.graph.n_edges
    enough = prepare(model, get_behaviour("ioi"), SearchSettings("blockwise", tau=0.01, pairs=4, k=200))
    enough.run()
    assert enough.k == 200


@pytest.mark.parametrize("method", ["acdc", "blockwise"])
def test_with_fresh_pairs_candidates_grow_with_the_aim_and_resuming_changes_nothing(
    model: Model, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "ATTEMPTS", 3)
    settings = SearchSettings(method, tau=0.7, pairs=4, k=30, holds_on="fresh", thresholds=(1e-4,))

    def begin(about: dict | None = None) -> SearchSession:
        return prepare(model, get_behaviour("ioi"), settings, about)

    saved: list[bytes] = []
    straight = begin()
    straight.problem.checkpoint = lambda state: saved.append(state.to_bytes(**straight.about()))
    end = straight.circuit(straight.run())
    assert straight.attempt > 1 and straight.k > needed_k(begin())
    for at in (1, len(saved) // 2):
        (tmp_path / "state").write_bytes(saved[at])
        state, about = State.read(tmp_path / "state")
        resumed = begin(about)
        assert resumed.circuit(resumed.run(state)).to_json() | {"seconds": 0} == end.to_json() | {
            "seconds": 0
        }


def needed_k(session: SearchSession) -> int:
    """The K that the first aim requires."""
    return next(k for k in (session.k * 2**i for i in range(20)) if f_of_best(session, k) >= session.aim)


def test_a_blockwise_circuit_that_falls_short_on_fresh_pairs_is_read_back_cut_by_cut(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Along the last cuts of every attempt: the chosen circuit holds on validation pairs, the one after its next cut does not, and no
    attempt ended with a smaller circuit that holds."""
    read_back = 0
    for seed in range(3):
        session = prepare(
            model,
            get_behaviour("ioi"),
            SearchSettings("blockwise", tau=0.7, pairs=4, k=30, holds_on="fresh", seed=seed),
        )
        problem, validation = session.problem, session.validation
        assert validation is not None
        ends: list[tuple[np.ndarray, State]] = []  # candidates and final state of each attempt
        problem.checkpoint = lambda state, ends=ends, problem=problem: (
            ends.append((problem.candidates, state)) if state.done else None
        )
        state = session.run()
        circuit = session.circuit(state)

        def f(edges: np.ndarray, validation: Engine = validation) -> float:
            mask = np.zeros((1, model.graph.n_edges), dtype=bool)
            mask[0, edges] = True
            return float(validation.faithfulness(mask)[0])

        kept = np.flatnonzero(circuit.mask)
        assert circuit.faithfulness_validation == pytest.approx(f(kept), abs=1e-5)
        assert sorted([*problem.candidates[state.mask], *state.order]) == problem.candidates.tolist()
        assert (
            circuit.mask[problem.candidates].tolist()
            == model.graph.prune(state.mask[None], problem.candidates)[0].tolist()
        )
        ended = [candidates[of.mask] for candidates, of in ends]
        assert len(circuit) <= min(
            (len(edges) for edges in ended if f(edges) >= 0.7), default=model.graph.n_edges
        )
        if "reverted" not in state.note:
            continue
        read_back += 1
        assert f(kept) >= 0.7

        def pruned(edges: np.ndarray, candidates: np.ndarray) -> list[int]:
            mask = model.graph.prune(np.isin(candidates, edges)[None], candidates)[0]
            return candidates[mask].tolist()

        ways = [
            (candidates, np.setdiff1d(candidates, of.order[:n]))
            for candidates, of in ends
            for n in range(len(of.order) + 1)
        ]
        at = [i for i, (candidates, edges) in enumerate(ways) if pruned(edges, candidates) == kept.tolist()]
        assert at and f(ways[at[-1] + 1][1]) < 0.7
    assert read_back
