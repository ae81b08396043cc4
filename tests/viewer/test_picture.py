"""The still picture has what the circuit has, no more and no less, and is XML whatever the circuit is called."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

import mechrl
from mechrl.graph import Graph
from tests.viewer.circuits import GPT2, SMALL, SMOLLM2, random_circuit

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(("graph", "edges", "nodes"), [(GPT2, 120, 40), (SMOLLM2, 250, 60), (SMALL, 20, 8)])
def test_every_live_edge_and_component_is_drawn(graph: Graph, edges: int, nodes: int) -> None:
    circuit = random_circuit(graph, edges, nodes=nodes)
    silent = next(s for s in range(1, graph.n_sources) if s not in graph.edge_source[circuit.mask])
    circuit.mask[graph.edge(silent, graph.logits)] = True  # nobody feeds it
    assert len(circuit) == circuit.size + 1
    root = ElementTree.fromstring(mechrl.picture(circuit)._repr_svg_())
    legend, shapes = 4, root.findall(f"{SVG}path")
    assert len(shapes) == circuit.size + legend
    texts = [text.text for text in root.findall(f"{SVG}text")]
    names = {edge.split("->")[0] for edge in circuit.live_edges} | {"logits"}
    labels = {name[1:].replace(".h", ".") if name[0] == "a" else name for name in names}
    assert labels <= set(texts) and len(texts) == len(labels) + legend + 2
    widths = [float(shape.get("stroke-width")) for shape in shapes[legend:]]
    assert widths == sorted(widths) and widths[-1] == 4.0  # the strongest is on top
    box = [float(x) for x in root.get("viewBox").split()]
    for rect in root.findall(f"{SVG}rect"):
        assert float(rect.get("x", 0)) >= 0 and float(rect.get("x", 0)) + float(rect.get("width")) <= box[2]
        assert float(rect.get("y", 0)) >= 0 and float(rect.get("y", 0)) + float(rect.get("height")) <= box[3]


def test_names_are_text(tmp_path: Path) -> None:
    circuit = random_circuit(SMALL, 20, behaviour="<script>&", scored=False, faithfulness_test=None)
    mechrl.picture(circuit).save(tmp_path / "a.svg")
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    assert root.find(f"{SVG}title").text == "<script>& in nowhere/nothing"
