"""A circuit as a table, a graph, a run on a prompt of your own, and hooks: all agree with the mask."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mechrl.behaviours import get_behaviour
from mechrl.behaviours.base import Pairs, metric_value
from mechrl.circuit_views import outside
from mechrl.engine import Engine
from mechrl.engine.plain import push
from mechrl.engine.plain import run as run_plainly
from mechrl.errors import MechRLError
from mechrl.models import load_model
from tests.viewer.circuits import GPT2, SMOLLM2, random_circuit

CLEAN, CORRUPT = (
    "When John and Mary went to the store, Mary gave a book to",
    "When John and Mary went to the store, John gave a book to",
)


@pytest.fixture(scope="module")
def toy():
    return load_model("toy")


def of_toy(toy, **changes):
    return random_circuit(toy.graph, 60, model="toy", checksum=toy.checksum, nodes=16, **changes)


@pytest.mark.parametrize("graph", [GPT2, SMOLLM2])
def test_the_table_has_every_edge_with_its_score(graph) -> None:
    circuit = random_circuit(graph, 80, nodes=20)
    rows = circuit.rows_of_edges()
    made = {"mlp": "{target}", "logits": "{target}"}
    names = {f"{r['source']}->" + made.get(r["channel"], "{target}<{channel}>").format(**r) for r in rows}
    assert names == set(circuit.edges) and len(rows) == len(circuit)
    strength = [abs(r["score"]) for r in rows]
    assert strength == sorted(strength, reverse=True)
    assert sorted(strength) == pytest.approx(sorted(np.abs(circuit.scores[circuit.mask])))


def test_the_graph_has_the_edges_on_a_path() -> None:
    networkx = pytest.importorskip("networkx")
    circuit = random_circuit(GPT2, 80, nodes=20)
    mask = circuit.mask.copy()
    mask[GPT2.edge_of_name("a0.h0->m11")] = True  # no edge enters a0.h0
    graph = replace(circuit, mask=mask).to_networkx()
    assert (
        graph.number_of_edges() == replace(circuit, mask=mask).size < mask.sum() or mask.sum() == circuit.size
    )
    assert all(
        networkx.has_path(graph, "input", node) and networkx.has_path(graph, node, "logits") for node in graph
    )


def test_a_dataframe_or_what_to_install() -> None:
    circuit = random_circuit(GPT2, 30)
    try:
        import pandas
    except ImportError:
        with pytest.raises(MechRLError, match="pip install pandas"):
            circuit.to_dataframe()
    else:
        assert isinstance(circuit.to_dataframe(), pandas.DataFrame) and len(circuit.to_dataframe()) == 30


def test_a_prompt_of_ones_own_is_what_the_engine_says(toy) -> None:
    circuit, t = of_toy(toy), toy.tokenizer
    said = circuit.run(toy, CLEAN, CORRUPT)
    pairs = Pairs(
        (tuple(t.prompt(CLEAN)),), (tuple(t.prompt(CORRUPT)),), ((1,),), ((2,),), ((CLEAN, CORRUPT),)
    )
    engine = Engine(toy, pairs)
    torch.testing.assert_close(said.logits, engine.logits(circuit.mask)[0, 0])
    assert said.faithfulness == pytest.approx(float(engine.faithfulness(circuit.mask)[0]), abs=1e-6)
    assert (
        said.model[0][0].strip() == "John" and said.corrupted[0][0].strip() == "Mary" and "John" in str(said)
    )
    whole = replace(circuit, mask=np.ones(toy.graph.n_edges, dtype=bool)).run(toy, CLEAN, CORRUPT)
    assert whole.faithfulness == pytest.approx(1, abs=1e-4) and whole.circuit[0][0] == whole.model[0][0]


def test_a_prompt_opens_as_it_did_when_the_circuit_was_found(toy) -> None:
    other = replace(toy, tokenizer=toy.tokenizer.opened("no"))
    assert (
        of_toy(toy, bos=True).run(other, CLEAN, CORRUPT).model == of_toy(toy).run(toy, CLEAN, CORRUPT).model
    )
    assert (
        of_toy(toy, bos=False).run(toy, CLEAN, CORRUPT).model == of_toy(toy).run(other, CLEAN, CORRUPT).model
    )


def test_mistakes(toy) -> None:
    circuit = of_toy(toy)
    with pytest.raises(MechRLError, match="equally long"):
        circuit.run(toy, CLEAN, "When John")
    with pytest.raises(MechRLError, match="same to the tokenizer"):
        circuit.run(toy, CLEAN, CLEAN)
    with pytest.raises(MechRLError, match="load nowhere"):
        random_circuit(GPT2, 30).run(toy, CLEAN, CORRUPT)


def test_hooks_replace_what_is_outside_and_nothing_else() -> None:
    circuit = random_circuit(GPT2, 80, nodes=20)
    named = outside(circuit)
    cache = {name: torch.full((1, 4, 12, 3) if name.endswith("z") else (1, 4, 9), -1.0) for name in named}
    hooks = dict(circuit.transformer_lens_hooks(cache))
    assert set(hooks) == set(named)
    inside = {GPT2.source_names[s] for s in np.unique(GPT2.edge_source[circuit.live])}
    for layer in range(12):
        z = hooks.get(f"blocks.{layer}.attn.hook_z", lambda v, hook=None: v)(
            torch.ones(1, 4, 12, 3), hook=None
        )
        assert [bool((z[:, :, h] == 1).all()) for h in range(12)] == [
            f"a{layer}.h{h}" in inside for h in range(12)
        ]
        mlp = hooks.get(f"blocks.{layer}.hook_mlp_out", lambda v, hook=None: v)(
            torch.ones(1, 4, 9), hook=None
        )
        assert bool((mlp == 1).all()) == (f"m{layer}" in inside)


def test_edges_len_and_size_agree() -> None:
    circuit = random_circuit(GPT2, 80, nodes=20)
    assert len(circuit) == len(circuit.edges) == len(set(circuit.edges)) and circuit.size == len(
        circuit.live_edges
    )
    assert all(circuit.mask[GPT2.edge_of_name(name)] for name in circuit.edges)
    assert get_behaviour(circuit.behaviour) == circuit.its_behaviour() and bool(
        replace(circuit, mask=np.zeros_like(circuit.mask))
    )


def test_logit_attribution_is_the_logit_difference(toy) -> None:
    behaviour, circuit = get_behaviour("ioi"), of_toy(toy, pairs=4)
    rows = circuit.logit_attribution(toy)
    assert [
        r["component"] for r in sorted(rows, key=lambda r: toy.graph.source_names.index(r["component"]))
    ] == list(toy.graph.source_names)
    strength = [abs(r["circuit"] or 0.0) for r in rows]
    assert strength == sorted(strength, reverse=True)
    writers = {edge.split("->")[0] for edge in circuit.live_edges if edge.endswith("->logits")}
    assert {r["component"] for r in rows if r["circuit"] is not None} == writers
    pairs = behaviour.pairs(toy.tokenizer, 4, circuit.pairs_seed, part="discovery")
    engine = Engine(toy, pairs)

    def difference(logits: torch.Tensor) -> float:
        return float(metric_value("logit-difference", logits, pairs).mean())

    # the corrupted stream at the scale of the clean run: all of the difference but what the components wrote
    corrupted = sum(
        float(push(run_plainly(toy, pairs.clean[i], pairs.corrupt[i], np.ones_like(circuit.mask)).rest, a, f))
        for i, (a, f) in enumerate(zip(pairs.answers, pairs.foils, strict=True))
    )
    assert sum(r["model"] for r in rows) == pytest.approx(
        difference(engine.clean_logits) - corrupted / 4, abs=1e-3
    )
