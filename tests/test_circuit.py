"""A circuit file round-trips exactly, is never half-written, and every defect gives a one-line error."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mechrl.circuit
from mechrl.circuit import Circuit
from mechrl.errors import MechRLError
from mechrl.files import write_atomically
from mechrl.graph import Graph
from tests.tiny import tiny

SHAPE = Graph(2, 4, 2)


def circuit(graph: Graph = SHAPE, seed: int = 0, **changes) -> Circuit:
    rng = np.random.default_rng(seed)
    mask = rng.random(graph.n_edges) < 0.3
    known = dict(
        model="smollm2",
        checksum="abc",
        graph=graph,
        d_model=8,
        behaviour="ioi",
        method="acdc",
        settings={"thresholds": [0.1]},
        tau=0.9,
        seed=seed,
        pairs=20,
        mask=mask,
        faithfulness=0.9123456789,
        faithfulness_test=0.8,
        scores=rng.normal(size=graph.n_edges) * 10.0 ** rng.integers(-9, 3, graph.n_edges),
        order=tuple(rng.permutation(np.flatnonzero(~mask)).tolist()),
        passes=12.5,
        seconds=3.25,
    )
    return Circuit(**known | changes)


@given(st.integers(0, 10**6), st.sampled_from([(1, 1, 1), (2, 4, 2), (3, 3, 3), (2, 6, 1)]), st.booleans())
@settings(max_examples=30, deadline=None)
def test_it_round_trips_exactly(
    tmp_path_factory, seed: int, shape: tuple[int, int, int], scored: bool
) -> None:
    before = circuit(
        Graph(*shape),
        seed,
        **({} if scored else {"scores": None, "faithfulness_test": None, "complete": False}),
    )
    path = tmp_path_factory.mktemp("circuit") / "deep" / "circuit.json"
    before.save(path)
    after = Circuit.load(path)
    assert after.to_json() == before.to_json()
    assert (
        (after.mask == before.mask).all()
        and after.order == before.order
        and after.complete == before.complete
    )
    if scored:
        assert (after.scores == before.scores).all() and after.scores.dtype == np.float32
    after.save(path.with_name("again.json"))
    assert path.with_name("again.json").read_bytes() == path.read_bytes()


def test_a_compressed_file_is_the_same_circuit_or_refused_in_one_line(tmp_path: Path) -> None:
    before, path = circuit(), tmp_path / "circuit.json.gz"
    before.save(path)
    whole = path.read_bytes()
    before.save(tmp_path / "circuit.json")
    assert (
        Circuit.load(path).to_json() == before.to_json()
        and len(whole) < (tmp_path / "circuit.json").stat().st_size
    )
    before.save(path)
    assert path.read_bytes() == whole  # no timestamp
    for broken in (whole[:-9], whole[:100], whole[:2], whole[:50] + b"?" * 20 + whole[70:]):
        path.write_bytes(broken)
        with pytest.raises(MechRLError, match="not valid JSON, or cut short") as caught:
            Circuit.load(path)
        assert "\n" not in str(caught.value)


def test_sizes_raw_and_pruned() -> None:
    graph = Graph(1, 1, 1)
    mask = np.array([name in ("input->a0.h0<v>", "input->logits") for name in graph.edge_names])
    assert (len(circuit(graph, mask=mask)), circuit(graph, mask=mask).size) == (2, 1)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "circuit.json"
    circuit(seed=1).save(path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MechRLError, match="No space left"):
        circuit(seed=2).save(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("below", ["circuit.json", "deep/circuit.json", "deep/er/circuit.json"])
def test_a_file_where_a_folder_should_be(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(MechRLError, match="a folder on the way to it is a file"):
        write_atomically(tmp_path / "file" / below, b"theirs")
    assert (tmp_path / "file").read_text() == "mine" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("where", [".", ""])
def test_a_folder_where_the_file_should_be(tmp_path: Path, monkeypatch, where: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MechRLError, match="cannot be written"):
        write_atomically(Path(where), b"theirs")
    assert not list(tmp_path.iterdir())


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, monkeypatch) -> None:
    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "circuit.json", b"half")
    assert not list(tmp_path.iterdir())


def test_what_is_not_a_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MechRLError, match="not a number"):
        circuit(faithfulness=float("nan")).save(tmp_path / "circuit.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "not valid JSON, or cut short"),
        (lambda text: "[]", "not a circuit"),
        (lambda text: text.replace('"format": 1', '"format": 9'), "format 9"),
        (lambda text: text.replace('"edges": ["', '"edges": ["m7->logits", "'), "no edge 'm7->logits'"),
        (lambda text: text.replace('"tau"', '"tua"'), "missing or wrong"),
        (lambda text: text.replace('"order": [', '"order": [99999, '), "order names edges"),
        (lambda text: text.replace('"scores": [', '"scores": [0.5, '), "scores for"),
    ],
)
def test_broken_files_are_named_in_one_line(tmp_path: Path, change, message: str) -> None:
    path = tmp_path / "circuit.json"
    circuit().save(path)
    path.write_text(change(path.read_text()))
    with pytest.raises(MechRLError, match=message) as caught:
        Circuit.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def write(path: Path, **changes) -> Path:
    path.write_text(json.dumps(circuit().to_json() | changes))
    return path


VALUES = (
    None,
    True,
    7,
    -1,
    0.5,
    float("nan"),
    float("inf"),
    10**400,
    "x",
    "\ud800",
    [],
    [None],
    [True],
    [0.5],
    ["x"],
    {},
    {"x": 1},
)
NUMBERS, TEXTS = (7, -1, 0.5), ("x",)
ACCEPTED = {  # the accepted ones of these values, by field
    **dict.fromkeys(("model", "checksum", "behaviour", "method", "version"), TEXTS),
    **dict.fromkeys(("tau", "faithfulness", "passes", "seconds"), NUMBERS),
    **dict.fromkeys(("faithfulness_test", "faithfulness_validation"), (None, *NUMBERS)),
    **dict.fromkeys(("seed", "pairs"), (7,)),
    **dict.fromkeys(("edges", "order"), ([],)),
    "graph": (),
    "settings": ({}, {"x": 1}),
    "complete": (True,),
    "scores": (None,),
    "attribution": (None,),
    "rows": ([],),
    "bos": (None, True),
    "commit": (None,),
}


LATER = {"attribution", "rows", "bos", "commit"}  # files from before these fields existed are still read


def test_the_table_has_every_field() -> None:
    derived = {"format", "n_edges", "n_edges_pruned"}  # the last two are for people who read the file
    assert set(ACCEPTED) == set(circuit().to_json()) - derived


@pytest.mark.parametrize("name", ACCEPTED)
def test_every_field_is_of_its_kind_or_refused_in_one_line(tmp_path: Path, name: str) -> None:
    accepted = []
    for value in VALUES:
        path = write(tmp_path / "circuit.json", **{name: value})
        try:
            loaded = Circuit.load(path)
        except MechRLError as exc:
            assert str(path) in str(exc) and "\n" not in str(exc), value
        else:
            accepted.append(value)
            loaded.save(tmp_path / "again.json")  # an accepted file can be used
            assert repr(loaded)
    assert repr(tuple(accepted)) == repr(ACCEPTED[name])  # compared as text, because True == 1
    broken = circuit().to_json()
    del broken[name]
    path.write_text(json.dumps(broken))
    if name in LATER:
        assert Circuit.load(path).to_json()[name] in (None, [])
        return
    with pytest.raises(MechRLError, match=f"missing or wrong .*{name}"):
        Circuit.load(path)


@pytest.mark.parametrize(
    "change",
    [{"n_layers": n} for n in (0, -1, 1.0, "2", True, 10**6, 10**30)]
    + [{"n_heads": n, "n_kv_heads": n} for n in (0, 10**7)]
    + [{"n_layers": 900, "n_heads": 900, "n_kv_heads": 1}, {"n_kv_heads": 3}, {"d_model": 0}],
)
def test_a_graph_that_no_model_has_is_refused_before_it_is_built(tmp_path: Path, change: dict) -> None:
    shape = circuit().to_json()["graph"] | change
    with pytest.raises(MechRLError, match="graph") as caught:
        Circuit.load(write(tmp_path / "circuit.json", graph=shape, edges=[], order=[], scores=None))
    assert "\n" not in str(caught.value)


def test_a_file_nested_too_deeply(tmp_path: Path) -> None:
    (tmp_path / "circuit.json").write_text("[" * 10**6)
    with pytest.raises(MechRLError, match="not valid JSON"):
        Circuit.load(tmp_path / "circuit.json")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(MechRLError, match="no such file"):
        Circuit.load(tmp_path / "none.json")


def test_another_model_is_refused() -> None:
    model = tiny("llama-gqa")
    mine = circuit(model.graph, checksum=model.checksum)
    mine.check_model(model)
    with pytest.raises(MechRLError, match="other weights"):
        mine.check_model(tiny("llama-gqa", seed=1))
    with pytest.raises(MechRLError, match="4 KV heads"):
        mine.check_model(tiny("gpt2"))


def test_importance_without_scores_is_the_removal_order() -> None:
    mine = circuit(scores=None)
    importance = mine.importance()
    assert (importance[mine.mask] == 1).all()
    assert (np.diff(importance[list(mine.order)]) > 0).all() and importance[list(mine.order)].max() < 1


@pytest.mark.parametrize("shape", [(2, 3, 3), (2, 6, 2)])
def test_the_export_is_what_eap_ig_reads(tmp_path: Path, shape: tuple[int, int, int]) -> None:
    graph = Graph(*shape)
    mine = circuit(graph, scores=np.arange(graph.n_edges))
    mine.to_eap_ig(tmp_path / "circuit.json")
    file = json.loads((tmp_path / "circuit.json").read_text())
    assert file["cfg"] == {
        "n_layers": shape[0],
        "n_heads": shape[1],
        "parallel_attn_mlp": False,
        "d_model": 8,
    }
    # the graph that those tools build: a k and a v for every head
    per_head = Graph(shape[0], shape[1], shape[1])
    assert set(file["edges"]) == set(per_head.edge_names)
    assert set(file["nodes"]) == {*per_head.source_names, "logits"}
    kept = graph.prune(mine.mask)
    for name, entry in file["edges"].items():
        source, receiver = name.split("->")
        if shape[1] != shape[2] and receiver[-3:] in ("<k>", "<v>"):
            layer, head = receiver[:-3].split(".h")
            receiver = f"{layer}.kv{int(head) * shape[2] // shape[1]}{receiver[-3:]}"
        edge = graph.edge_of_name(f"{source}->{receiver}")
        assert entry == {"score": edge, "in_graph": kept[edge]}
    inside = {name.split("->")[0] for name, entry in file["edges"].items() if entry["in_graph"]}
    assert {name for name, node in file["nodes"].items() if node["in_graph"]} == inside | {"input", "logits"}


def test_the_same_circuit_from_another_version_keeps_its_version(tmp_path: Path) -> None:
    replace(circuit(), version="0.0.1").save(tmp_path / "circuit.json")
    assert Circuit.load(tmp_path / "circuit.json").version == "0.0.1"


def test_it_shows_itself() -> None:
    mine = circuit(behaviour="<b>ioi")
    said = repr(mine)
    assert "\n" not in said and len(said) < 200
    assert (
        f"{mine.size} of {SHAPE.n_edges} edges" in said
        and "f = 0.912 on 20 discovery pairs, 0.800 on fresh ones" in said
    )
    shown = mine._repr_html_()
    assert (
        shown.startswith("<iframe srcdoc=")
        and "<b>ioi" not in shown
        and shown == mechrl.show(mine)._repr_html_()
    )
