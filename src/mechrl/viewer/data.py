"""What the page shows of a circuit, as JSON: edges and the order they went in, f along it, prompts, answers, attention.

A circuit file alone gives the graph and the removal order. f, the answers and the attention patterns need the model and the
behaviour; without them the page says why they are missing.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from mechrl import attribution
from mechrl.behaviours.base import Behaviour, Pairs
from mechrl.circuit import Circuit
from mechrl.engine import Engine
from mechrl.engine.plain import PlainRun, push
from mechrl.engine.plain import run as run_plainly
from mechrl.errors import MechRLError
from mechrl.models.base import Model
from mechrl.models.tokenizer import Tokenizer

STOPS = 60  # of the slider: f is measured at each
MOST_EDGES = 6000  # drawn at once; the replay of a longer order begins later
PAIRS_SHOWN = 6
TOP = 5  # answers
RAISED = 4  # tokens that a component raises
_ATTENTION_BYTES = 6 * 2**20
_CIRCUITS_PER_CALL = 4  # the engine's best on a CPU, and few enough that progress moves

_ATTRIBUTION = "EAP-IG"  # what edges are ranked by where a circuit has no scores of its own

Report = Callable[[int, int], None]  # circuits measured, of how many


def circuit_data(
    circuit: Circuit,
    model: Model | None = None,
    behaviour: Behaviour | None = None,
    missing: str = "",
    report: Report = lambda done, total: None,
) -> dict[str, Any]:
    """Everything about one circuit. `missing` says why there is no model or no behaviour, for the reader of the page."""
    replay = Replay(circuit)
    importance, scored_by = circuit.importance(), "score" if circuit.scores is not None else ""
    if not scored_by and circuit.attribution is not None:
        importance, scored_by = circuit.attribution.astype(np.float64), _ATTRIBUTION
    try:
        data: dict[str, Any] = {
            "facts": _facts(circuit),
            "settings": [(str(key), str(value)) for key, value in dict(circuit.settings).items()],
            "name": f"{circuit.behaviour} in {circuit.model}",
            "lead": _lead(circuit),
            "tau": float(circuit.tau),
            "seed": circuit.pairs_seed,
            "n_pairs": int(circuit.pairs),
            "faithfulness": float(circuit.faithfulness),
            "scored": bool(scored_by),
            "scored_by": scored_by,
            "sources": circuit.graph.source_names,
            "receivers": circuit.graph.receiver_names,
            "edges": replay.edges(importance),
            "most": MOST_EDGES,
            "stops": {"size": replay.size, "live": replay.live.sum(1).tolist(), "f": None},
            "known": _known(circuit, behaviour),
            "notes": [*replay.notes, *([missing] if missing else [])],
            "pairs": [],
            "attention": None,
            "file": "circuit.json",
            "notes_of_reader": {},
        }
    except (TypeError, ValueError) as exc:
        raise MechRLError(
            f"the circuit of {circuit.behaviour!r} has a field of the wrong kind ({exc}); search again"
        ) from exc
    if model is not None and behaviour is not None:
        model = circuit.as_found(model)
        if model.tokenizer is None:
            raise MechRLError(f"model {model.name!r} has no tokenizer, so no prompts can be made for it")
        n, seed = data["n_pairs"], data["seed"]
        pairs = behaviour.pairs(model.tokenizer, n, seed, part="discovery", n_ctx=model.spec.n_ctx)
        if not scored_by:  # a file from before circuits kept their attribution
            scores = attribution.cached(Engine(model, pairs), pairs, behaviour.metric)
            data |= {"edges": replay.edges(scores), "scored": True, "scored_by": _ATTRIBUTION}
        data["stops"]["f"], data["pairs"] = _answers(model, pairs, replay, report)
        if abs(data["stops"]["f"][-1] - circuit.faithfulness) > 0.005:
            data["notes"].append(
                f"The file says f = {circuit.faithfulness:.3f}; measured here, f = {data['stops']['f'][-1]:.3f}."
            )
        _add_plain_runs(data, model, pairs, replay)
        if len(data["attention"]["pairs"]) < len(data["pairs"]):
            data["notes"].append(
                "Attention patterns of the longest prompts are left out, to keep the page small."
            )
    return data


class Replay:
    """The removal order cut into stops: what is there at each, and which of it lies on a path from the input to the logits."""

    def __init__(self, circuit: Circuit) -> None:
        self.circuit, self.graph = circuit, circuit.graph
        order = [e for e in dict.fromkeys(circuit.order) if not circuit.mask[e]]
        self.notes = []
        left = max(0, MOST_EDGES - len(circuit))
        if len(order) > left:
            begins = f"The replay begins with the last {MOST_EDGES:,} of {len(circuit) + len(order):,} edges."
            self.notes.append(begins if left else "There are too many edges to replay their removal.")
            order = order[len(order) - left :]
        if len(circuit) > MOST_EDGES:
            self.notes.append(f"Drawn are the {MOST_EDGES:,} most important edges.")
        elif not circuit.order:
            self.notes.append("The file holds no removal order: there is nothing to replay.")
        removed = _stops(len(circuit), len(order))
        self.size = [len(circuit) + len(order) - n for n in removed]
        self.there = np.tile(circuit.mask, (len(removed), 1))  # [stops, E]
        for stop, n in enumerate(removed):
            self.there[stop, order[n:]] = True
        self.live = self.graph.prune(self.there)
        if not self.live[-1].any():
            self.notes.append("No edge that was kept lies on a path from the input to the logits.")

    def edges(self, of: np.ndarray) -> dict[str, Any]:
        """Column by column, every edge of the first stop. `of` [E]: how important they are. `stops`: at so many, from the first, is it on
        a path.

        Circuits only shrink along the order, so an edge that has once left every path stays off.
        """
        shown = np.flatnonzero(self.there[0])
        importance = of[shown]
        if not np.isfinite(importance).all():
            raise MechRLError("the circuit has scores that are not numbers; search again")
        return {
            "id": shown.tolist(),
            "source": self.graph.edge_source[shown].tolist(),
            "receiver": self.graph.edge_receiver[shown].tolist(),
            "importance": [float(f"{x:.4g}") for x in importance],
            "stops": self.live[:, shown].sum(0).tolist(),
        }


def _stops(kept: int, n: int) -> list[int]:
    """How many of n edges are gone at each stop. Every stop shrinks the circuit by about the same factor."""
    sizes = np.geomspace(kept + n, max(kept, 1), STOPS) if n else np.array([kept])
    removed = np.unique(np.round(kept + n - sizes).astype(int)).tolist()
    return removed if removed[-1] == n else [*removed, n]


def _lead(circuit: Circuit) -> str:
    """The circuit in one line."""
    fresh = (
        ""
        if circuit.faithfulness_test is None
        else f", {float(circuit.faithfulness_test):.3f} on fresh pairs"
    )
    size = f"{circuit.size:,} of {circuit.graph.n_edges:,} edges"
    return (
        f"{circuit.method}, τ = {float(circuit.tau):g}: {size}, f = {float(circuit.faithfulness):.3f}{fresh}"
    )


def _facts(circuit: Circuit) -> list[tuple[str, str]]:
    """What the file says about itself, for the table of provenance."""

    def f(value: float | None, on: str) -> str:
        return "not measured" if value is None else f"{float(value):.4f} {on}"

    return [
        ("behaviour", str(circuit.behaviour)),
        ("model", str(circuit.model)),
        ("weights", f"sha256 {str(circuit.checksum)[:16]}…"),
        (
            "shape",
            f"{circuit.graph.n_layers} layers, {circuit.graph.n_heads} heads, {circuit.graph.n_kv_heads} KV heads",
        ),
        ("method", f"{circuit.method}, τ = {float(circuit.tau):g}"),
        ("complete", "yes" if circuit.complete else "no: the search was interrupted"),
        ("edges", f"{circuit.size:,} on a path, {len(circuit):,} kept, of {circuit.graph.n_edges:,}"),
        ("f", f(circuit.faithfulness, f"on {circuit.pairs} discovery pairs")),
        ("f, fresh pairs", f(circuit.faithfulness_test, "on test pairs")),
        *(
            [("f, validation", f(circuit.faithfulness_validation, ""))]
            if circuit.faithfulness_validation is not None
            else []
        ),
        ("cost", f"{float(circuit.passes):,.0f} passes, {float(circuit.seconds):,.1f} s"),
        ("seed", str(circuit.seed)),
        ("version", str(circuit.version)),
    ]


def _known(circuit: Circuit, behaviour: Behaviour | None) -> dict[str, tuple[str, str, str]]:
    """Roles that people found, by component. They hold for the model they were found in, and for no other."""
    if behaviour is None or str(circuit.model).rstrip("/").rpartition("/")[2] != behaviour.known_model:
        return {}
    names = set(circuit.graph.source_names)
    return {k.component: (k.role, k.source, k.confidence) for k in behaviour.known if k.component in names}


def _answers(
    model: Model, pairs: Pairs, replay: Replay, report: Report
) -> tuple[list[float], list[dict[str, Any]]]:
    """f at every stop, and the first pairs with what the model, the corrupted run and the circuit at every stop answer."""
    assert model.tokenizer is not None
    tokenizer, engine = model.tokenizer, Engine(model, pairs)
    shown = range(min(PAIRS_SHOWN, len(pairs)))
    opening = [] if tokenizer.bos is None else [tokenizer.decode([tokenizer.bos])]

    def text(token: int) -> str:
        return tokenizer.decode([token])

    def answers(logits: torch.Tensor) -> list[list[tuple[str, float]]]:
        """[batch, V] to the likeliest answers of every shown pair."""
        top = logits[: len(shown)].softmax(-1).topk(min(TOP, logits.shape[-1]))
        return [
            [(text(token), round(p, 4)) for token, p in zip(ids, ps, strict=True)]
            for ids, ps in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        ]

    f: list[float] = []
    of_circuit: list[list[list[tuple[str, float]]]] = []  # [stop][pair]
    for i in range(0, len(replay.live), _CIRCUITS_PER_CALL):
        report(i, len(replay.live))
        logits = engine.logits(replay.live[i : i + _CIRCUITS_PER_CALL])
        f += (1 - engine.kl_objective(logits).mean(-1) / engine.kl_cut).tolist()
        of_circuit += [answers(each) for each in logits]
    report(len(replay.live), len(replay.live))
    if not all(math.isfinite(x) for x in f):
        raise MechRLError("f is not a number for these pairs: the clean and the corrupted run do not differ")
    clean, corrupt = answers(engine.clean_logits), answers(engine.corrupt_logits)
    return [round(x, 4) for x in f], [
        {
            "opening": len(opening),
            "clean": [*opening, *_pieces(tokenizer, pairs.texts[i][0])],
            "corrupt": [*opening, *_pieces(tokenizer, pairs.texts[i][1])],
            "answers": [text(t) for t in pairs.answers[i]],
            "foils": [text(t) for t in pairs.foils[i]],
            "top": {"clean": clean[i], "corrupt": corrupt[i], "circuit": [stop[i] for stop in of_circuit]},
        }
        for i in shown
    ]


def _pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    """The text cut where its tokens end: together they are the text, whatever the tokenizer does with its spaces."""
    ends = [0, *(end for _, end in tokenizer.backend.encode(text, add_special_tokens=False).offsets)]
    return [text[a:b] for a, b in pairwise(ends)]


def _add_plain_runs(data: dict[str, Any], model: Model, pairs: Pairs, replay: Replay) -> None:
    """Attention patterns, and what is written to the logits, of the pairs shown.

    Patterns of the circuit's and of known heads: clean, corrupted, circuit; a byte a number, 255 is 1. Each is a lower triangle, row by
    row; heads in the order of `heads`. Those of pairs that would make the page too large are left out.
    """
    graph, last = replay.graph, replay.live[-1]
    attended = np.unique(graph.edge_source[last])
    heads = [
        (layer, h)
        for layer in range(graph.n_layers)
        for h in range(graph.n_heads)
        if graph.head(layer, h) in attended or f"a{layer}.h{h}" in data["known"]
    ]
    data["attention"] = {"heads": [f"a{layer}.h{h}" for layer, h in heads], "pairs": []}
    masks = {"clean": np.ones_like(last), "corrupt": np.zeros_like(last), "circuit": last}
    room = _ATTENTION_BYTES
    for i, shown in enumerate(data["pairs"]):
        clean, corrupt = pairs.clean[i], pairs.corrupt[i]
        runs = {name: run_plainly(model, clean, corrupt, mask) for name, mask in masks.items()}
        of = {name: _pushes(runs[name], pairs, i) for name in ("clean", "circuit")}
        shown["writes"] = {
            "model": of["clean"],
            "circuit": of["circuit"],
            "raises": _raises(runs["circuit"], model),
        }
        room -= len(masks) * len(heads) * len(clean) * (len(clean) + 1) // 2
        if room < 0:
            continue
        rows, columns = np.tril_indices(len(clean))
        packed = {}
        for name, plain in runs.items():
            patterns = plain.patterns.double().cpu().numpy()
            chosen = [patterns[layer, h][rows, columns] for layer, h in heads]
            packed[name] = base64.b64encode(
                np.round(255 * np.array(chosen)).astype(np.uint8).tobytes()
            ).decode()
        data["attention"]["pairs"].append(packed)


def _pushes(plain: PlainRun, pairs: Pairs, i: int) -> dict[int, float]:
    """What each source writes to the logits: answers less foils."""
    values = push(plain.writes, pairs.answers[i], pairs.foils[i]).tolist()
    return {source: round(x, 3) for source, x in zip(plain.writers.tolist(), values, strict=True)}


def _raises(plain: PlainRun, model: Model) -> dict[int, list[str]]:
    """The tokens whose logits each source raises most; nothing of one that writes nothing, such as the input under an equal last token."""
    assert model.tokenizer is not None
    if not len(plain.writers):
        return {}
    top = plain.writes.topk(RAISED, dim=-1).indices.tolist()
    return {
        source: [model.tokenizer.decode([token]) for token in tokens]
        for source, tokens, write in zip(plain.writers.tolist(), top, plain.writes, strict=True)
        if write.any()
    }
