"""The page's data agrees with the circuit, the graph and the engine."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechrl.behaviours import get_behaviour
from mechrl.circuit import Circuit
from mechrl.engine import Engine
from mechrl.engine.plain import push
from mechrl.engine.plain import run as run_plainly
from mechrl.errors import MechRLError
from mechrl.models import load_model
from mechrl.models.base import Model
from mechrl.search.session import SearchSettings, search
from mechrl.viewer import data
from mechrl.viewer.data import Replay, circuit_data
from tests.viewer.circuits import GPT2, SMALL, random_circuit

IOI = get_behaviour("ioi")


@pytest.fixture(scope="module")
def toy() -> Model:
    return load_model("toy")


@pytest.fixture(scope="module")
def found(toy: Model, tmp_path_factory: pytest.TempPathFactory) -> Circuit:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MECHRL_CACHE", str(tmp_path_factory.mktemp("cache")))
        return search(toy, IOI, SearchSettings("top-n", pairs=8))


@pytest.fixture(scope="module")
def shown(toy: Model, found: Circuit) -> dict:
    return circuit_data(found, toy, IOI)


# ---- from the file alone --------------------------------------------------------------------------------------------


@given(st.integers(0, 5000), st.integers(0, 5000))
def test_stops_lead_from_all_edges_to_those_kept(kept: int, n: int) -> None:
    removed = data._stops(kept, n)
    assert removed[0] == 0 and removed[-1] == n
    assert (np.diff(removed) > 0).all() and len(removed) <= data.STOPS + 1


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.booleans())
def test_an_edge_is_shown_while_it_lies_on_a_path(seed: int, scored: bool) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.random(SMALL.n_edges) < 0.1
    order = rng.permutation(np.flatnonzero(~mask & (rng.random(SMALL.n_edges) < 0.5)))
    circuit = random_circuit(SMALL, 20, mask=mask, order=tuple(order.tolist()), scored=scored)
    edges, stops = circuit_data(circuit)["edges"], circuit_data(circuit)["stops"]
    removed = data._stops(len(circuit), len(order))
    for stop, n in enumerate(removed):  # the straightforward way: cut, prune, compare
        now = mask.copy()
        now[order[n:]] = True
        live = np.flatnonzero(SMALL.prune(now)).tolist()
        assert [e for e, lasts in zip(edges["id"], edges["stops"], strict=True) if lasts > stop] == live
        assert stops["size"][stop] == now.sum() and stops["live"][stop] == len(live)
    names = [
        f"{SMALL.source_names[s]}->{SMALL.receiver_names[r]}"
        for s, r in zip(edges["source"], edges["receiver"], strict=True)
    ]
    assert names == [SMALL.edge_name(e) for e in edges["id"]]
    assert edges["importance"] == pytest.approx(circuit.importance()[edges["id"]], rel=1e-3)


def test_an_order_with_kept_or_repeated_edges_does_no_harm() -> None:
    circuit = random_circuit(SMALL, 20, removed=6)
    kept = int(np.flatnonzero(circuit.mask)[0])
    strange = random_circuit(SMALL, 20, order=(*circuit.order, kept, circuit.order[0]))
    assert Replay(strange).size == Replay(circuit).size
    assert Replay(random_circuit(SMALL, 20)).size == [20]
    assert "nothing to replay" in circuit_data(random_circuit(SMALL, 20))["notes"][0]


def test_a_long_order_is_replayed_from_where_it_can_be_drawn() -> None:
    mask = np.zeros(GPT2.n_edges, dtype=bool)
    mask[:100] = True
    circuit = random_circuit(GPT2, 20, mask=mask, order=tuple(range(100, GPT2.n_edges)))
    shown = circuit_data(circuit)
    assert (
        shown["stops"]["size"][0] == len(shown["edges"]["id"]) == data.MOST_EDGES
        and shown["stops"]["size"][-1] == 100
    )
    assert f"{data.MOST_EDGES:,}" in shown["notes"][0]


def test_what_cannot_be_replayed_or_drawn_says_so() -> None:
    half = np.arange(GPT2.n_edges) % 2 == 0
    large = random_circuit(GPT2, 30, mask=half, order=tuple(np.flatnonzero(~half).tolist()))
    assert [note.split()[0] for note in circuit_data(large)["notes"]] == ["There", "Drawn"]
    empty = random_circuit(GPT2, 0, nodes=0, order=(5, 6, 7))
    assert [note.split()[:2] for note in circuit_data(empty)["notes"]] == [["No", "edge"]]


def test_roles_hold_for_the_model_they_were_found_in() -> None:
    for model, n in (("gpt2", 26), ("openai-community/gpt2", 26), ("gpt2-medium", 0), ("toy", 0)):
        assert len(circuit_data(random_circuit(GPT2, 30, model=model), None, IOI)["known"]) == n
    assert (
        circuit_data(random_circuit(GPT2, 30, model="gpt2"), None, IOI)["known"]["a9.h9"][0] == "name mover"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"scores": np.full(SMALL.n_edges, np.nan)},
        {"tau": "high"},
        {"passes": None},
        {"pairs": "many"},
        {"settings": 3},
    ],
)
def test_what_is_no_number_is_refused(changes: dict) -> None:
    with pytest.raises(MechRLError, match="search again"):
        circuit_data(random_circuit(SMALL, 20, **changes))


# ---- with the model -------------------------------------------------------------------------------------------------


def test_f_along_the_order_is_the_engines(toy: Model, found: Circuit, shown: dict) -> None:
    assert toy.tokenizer is not None
    f = shown["stops"]["f"]
    assert f[-1] == pytest.approx(found.faithfulness, abs=1e-4)
    engine = Engine(toy, IOI.pairs(toy.tokenizer, found.pairs, found.seed))
    expected = engine.faithfulness(Replay(found).there[[0, len(f) // 2]]).tolist()  # dead edges included
    assert [f[0], f[len(f) // 2]] == pytest.approx(expected, abs=1e-3)


def test_a_file_that_claims_another_f_is_contradicted(
    toy: Model, found: Circuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "STOPS", 2)
    assert circuit_data(found, toy, IOI)["notes"] == []
    assert (
        "says f = 0.990; measured here"
        in circuit_data(replace(found, faithfulness=0.99), toy, IOI)["notes"][-1]
    )


def test_answers_are_the_models(toy: Model, found: Circuit, shown: dict) -> None:
    assert toy.tokenizer is not None
    pairs = IOI.pairs(toy.tokenizer, found.pairs, found.seed)
    engine = Engine(toy, pairs)
    logits = {
        "clean": engine.clean_logits,
        "corrupt": engine.corrupt_logits,
        "circuit": engine.logits(found.mask[None])[0],
    }
    for i, pair in enumerate(shown["pairs"]):
        assert "".join(pair["clean"][pair["opening"] :]) == pairs.texts[i][0]
        assert "".join(pair["corrupt"][pair["opening"] :]) == pairs.texts[i][1]
        assert len(pair["clean"]) == len(pairs.clean[i])
        for run, values in logits.items():
            top = pair["top"][run][-1] if run == "circuit" else pair["top"][run]
            p = values[i].softmax(-1)
            assert [x for _, x in top] == pytest.approx(p.topk(len(top)).values.tolist(), abs=2e-3)
            assert top[0][0] == toy.tokenizer.decode([int(p.argmax())])
        assert pair["top"]["clean"][0][0] in pair["answers"]  # the toy model exhibits IOI


def test_attention_is_packed_as_the_page_unpacks_it(toy: Model, found: Circuit, shown: dict) -> None:
    assert toy.tokenizer is not None
    pairs = IOI.pairs(toy.tokenizer, found.pairs, found.seed)
    heads, T = shown["attention"]["heads"], len(pairs.clean[1])
    assert heads and len(shown["attention"]["pairs"]) == data.PAIRS_SHOWN
    packed = np.frombuffer(base64.b64decode(shown["attention"]["pairs"][1]["circuit"]), dtype=np.uint8)
    triangles = packed.reshape(len(heads), T * (T + 1) // 2)
    patterns = run_plainly(toy, pairs.clean[1], pairs.corrupt[1], found.mask).patterns.numpy()
    for name, triangle in zip(heads, triangles, strict=True):
        layer, head = (int(part[1:]) for part in name.split("."))
        for query in range(T):
            row = triangle[query * (query + 1) // 2 :][: query + 1] / 255
            np.testing.assert_allclose(row, patterns[layer, head, query, : query + 1], atol=0.5 / 255 + 1e-6)


def test_what_is_written_to_the_logits_adds_up(toy: Model, found: Circuit, shown: dict) -> None:
    """The pushes of a pair sum to the logit difference of the circuit, less that of the corrupted stream at the circuit's scale."""
    assert toy.tokenizer is not None
    pairs = IOI.pairs(toy.tokenizer, found.pairs, found.seed)
    logits = Engine(toy, pairs).logits(found.live)[0]
    ends = {shown["receivers"].index("logits")}
    edges = shown["edges"]
    last = len(shown["stops"]["size"]) - 1
    writers = {
        s
        for s, r, stops in zip(edges["source"], edges["receiver"], edges["stops"], strict=True)
        if r in ends and stops > last
    }
    for i, pair in enumerate(shown["pairs"]):
        plain = run_plainly(toy, pairs.clean[i], pairs.corrupt[i], found.live)
        rest = float(push(plain.rest, pairs.answers[i], pairs.foils[i]))
        written = pair["writes"]["circuit"]
        # both prompts end in the same token, so the input writes nothing there
        assert set(written) == writers >= set(pair["writes"]["raises"]) >= writers - {0}
        difference = float(push(logits[i], pairs.answers[i], pairs.foils[i]))
        assert sum(written.values()) + rest == pytest.approx(difference, abs=0.01 * len(written))
        assert len(pair["writes"]["model"]) == len(shown["sources"])
        source = max(written, key=lambda s: written[s])
        best = plain.writes[plain.writers.tolist().index(source)].argmax()
        assert pair["writes"]["raises"][source][0] == toy.tokenizer.decode([int(best)])


def test_patterns_that_would_make_the_page_large_are_left_out(
    toy: Model, found: Circuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "STOPS", 2)
    monkeypatch.setattr(data, "_ATTENTION_BYTES", 20_000)
    shown = circuit_data(found, toy, IOI)
    assert len(shown["attention"]["pairs"]) < data.PAIRS_SHOWN and "left out" in shown["notes"][-1]
    assert len(json.dumps(shown["attention"])) < 30_000


def test_another_model_is_refused(toy: Model) -> None:
    with pytest.raises(MechRLError, match="load nowhere/nothing"):
        circuit_data(random_circuit(SMALL, 20), toy, IOI)
