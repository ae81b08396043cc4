"""A circuit as a still picture: SVG for a paper, and for a saved notebook where no page may run, as on GitHub.

Laid out as the viewer's page is: layers go up from the input to the logits, heads stand in their columns, the MLPs are the spine between
them; colours say what an edge feeds, thickness how it scores.
"""

from __future__ import annotations

from html import escape

import numpy as np

from mechrl.circuit import Circuit
from mechrl.graph import Graph

_COLOURS = {"q": "#0072b2", "k": "#d55e00", "v": "#009e73", "mlp": "#6b7280", "logits": "#6b7280"}
_KINDS = {"q": "query", "k": "key", "v": "value", "mlp": "MLP, logits"}
_WIDTH, _TOP, _LEFT = 900.0, 64.0, 40.0
_CHIP = (34.0, 15.0)


def svg(circuit: Circuit) -> str:
    """The edges on a path from the input to the logits, the strongest on top."""
    graph, edges = circuit.graph, [row for row in circuit.rows_of_edges() if row["live"]]
    row = min(90.0, max(20.0, 560.0 / graph.n_layers))
    height = _TOP + row * (graph.n_layers + 2)
    place = _places(graph, height, row)
    peak = max((abs(edge["score"] or 0.0) for edge in edges), default=0.0) or 1.0
    crowd = max(0.15, min(0.9, 7 / max(1, len(edges)) ** 0.5))
    fresh = "" if circuit.faithfulness_test is None else f", {circuit.faithfulness_test:.3f} on fresh pairs"
    title = f"{circuit.behaviour} in {circuit.model}"
    lead = f"{circuit.method}: {circuit.size:,} of {graph.n_edges:,} edges, f = {circuit.faithfulness:.3f}{fresh}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {height:g}" width="{_WIDTH:g}" height="{height:g}" '
        'font-family="system-ui, sans-serif">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH:g}" height="{height:g}" fill="#fff"/>',
        f'<text x="16" y="22" font-size="15" font-weight="600">{escape(title)}</text>',
        f'<text x="16" y="40" font-size="11" fill="#5b6068">{escape(lead)}</text>',
        *_legend(),
    ]
    for edge in reversed(edges):
        share = abs(edge["score"]) / peak if edge["score"] is not None else 0.1
        parts.append(
            f'<path d="{_curve(place, edge, graph)}" fill="none" stroke="{_COLOURS[edge["channel"]]}" '
            f'stroke-width="{0.5 + 3.5 * share**0.5:.2f}" stroke-opacity="{min(1.0, crowd * (0.55 + 2.2 * share**0.5)):.2f}"/>'
        )
    inside = {edge["source"] for edge in edges} | {"logits"}
    for name, (x, y) in place.items():
        if name in inside:
            w, h = (240.0, 20.0) if name in ("input", "logits") else _CHIP
            label = name.removeprefix("a").replace(".h", ".") if name.startswith("a") else name
            round_corner = h / 2 if name.startswith("m") else 4
            parts.append(
                f'<rect x="{x - w / 2:.1f}" y="{y - h / 2:.1f}" width="{w:g}" height="{h:g}" rx="{round_corner:g}" fill="#f4f4f2" '
                f'stroke="#9a9fa6"/><text x="{x:.1f}" y="{y:.1f}" font-size="9" text-anchor="middle" '
                f'dominant-baseline="central">{escape(label)}</text>'
            )
    return "\n".join([*parts, "</svg>"])


def _places(graph: Graph, height: float, row: float) -> dict[str, tuple[float, float]]:
    """Where the middle of every component is."""
    # the spine stands between two groups of heads that share keys and values
    spine, half = 2.0, round(graph.n_kv_heads / 2) * (graph.n_heads // graph.n_kv_heads)
    column = (_WIDTH - 2 * _LEFT) / (graph.n_heads + spine)
    middle = _LEFT + (half + spine / 2) * column
    found = {"input": (middle, height - row * 0.5), "logits": (middle, _TOP + row * 0.3)}
    for layer in range(graph.n_layers):
        y = height - row * (layer + 1.5)
        for h in range(graph.n_heads):
            found[f"a{layer}.h{h}"] = (
                _LEFT + (h + 0.5 + (0 if h < half else spine)) * column,
                y + row * 0.17,
            )
        found[f"m{layer}"] = (middle, y - row * 0.25)
    return found


def _curve(place: dict[str, tuple[float, float]], edge: dict[str, object], graph: Graph) -> str:
    """From the top of the source to the bottom of what reads it; heads that share an input are read in their middle."""
    x0, y0 = place[str(edge["source"])]
    target = str(edge["target"])
    layer, shared, group = target.partition(".kv")
    size = graph.n_heads // graph.n_kv_heads
    names = [f"{layer}.h{int(group) * size + i}" for i in range(size)] if shared else [target]
    x3, y3 = np.mean([place[name] for name in names], axis=0).tolist()
    spread = 220.0 / (
        _WIDTH - 2 * _LEFT
    )  # the input and the logits are wide: edges end below or above where they come from
    if edge["source"] == "input":
        x0 += (x3 - x0) * spread
    if target == "logits":
        x3 += (x0 - x3) * spread
    y0, y3 = y0 - _CHIP[1] / 2, y3 + (10.0 if target == "logits" else _CHIP[1] / 2)
    pull, straight = 0.46 * (y0 - y3), abs(x3 - x0) < _CHIP[0] / 2
    bow = min(150.0, 0.2 * (y0 - y3)) if straight and y0 - y3 > 60 else 0.0
    return (
        f"M{x0:.1f} {y0:.1f}C{x0 + bow:.1f} {y0 - pull:.1f} {x3 + bow:.1f} {y3 + pull:.1f} {x3:.1f} {y3:.1f}"
    )


def _legend() -> list[str]:
    return [
        f'<path d="M{x} 18h22" stroke="{_COLOURS[kind]}" stroke-width="2"/><text x="{x + 27}" y="22" font-size="11">{word}</text>'
        for x, (kind, word) in zip((560, 640, 710, 785), _KINDS.items(), strict=True)
    ]
