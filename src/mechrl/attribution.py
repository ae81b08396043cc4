"""Attribution: how much every edge matters, from gradients instead of one run per edge.

The loss L is the negated metric of the behaviour, or the KL from the model (`loss`), averaged over pairs. All scores S [E] have the same
sign: **S > 0 means that corrupting the edge raises the loss**. Edges of large positive score carry the behaviour.

With D(u) = a_corr(u) − a_clean(u) and x_v the stream that v reads before its norm:

    exact          S_uv = L(all edges but uv) − L(model)
    EAP            S_uv = D(u) · ∂L/∂x_v at the clean run, the first-order estimate of `exact`
    EAP-IG         the same D, the gradient averaged over m runs between the corrupted and the clean run, interpolating the token
                   embedding (`inputs`), or one group of nodes at a time (`activations`)
    GIM, RelP      EAP with another backward pass, at the same cost (engine/rules.py)
    mask gradients S_uv = −(average of ∂L/∂M_uv at αM, α = ½/m, 3/2/m, …), from a circuit M to the empty one

For real-valued masks M the engine gives ∂L/∂M_uv = ∂L/∂x_v · (a_now(u) − a_corr(u)). Every method here is minus such a gradient: with
a mask of ones the circuit's run is the clean run; with k/m on the edges out of the input it starts at e_corr + (k/m)(e_clean − e_corr).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar, get_args

import numpy as np
import torch

import mechrl
from mechrl.behaviours.base import Metric, Pairs, metric_value
from mechrl.engine import Engine
from mechrl.engine.readout import Objective
from mechrl.engine.rules import GIM, RELP, Rules
from mechrl.errors import MechRLError
from mechrl.files import CannotWrite, cache_folder, write_atomically
from mechrl.files.sealed import read_sealed, sealed

# Positions of the m steps of EAP-IG: k/m for k = 0 … m−1 in the paper and in EAP-IG's current code (with the corrupted end, without the
# clean one), for k = 1 … m in the code released with EAP-IG.
Convention = Literal["from-corrupt", "to-clean"]
Method = Literal["eap", "eap-ig-inputs", "eap-ig-activations", "gim", "relp", "mask-gradients", "exact"]
Scores = TypeVar("Scores", np.ndarray, torch.Tensor)
STEPS = 5  # m, the paper's
NEGATIVE = 0.3
# weights of negative scores in `strength`: such edges go first, early, or like others
ORDERS = (0.0, NEGATIVE, 1.0)

_CUTS_AT_ONCE = 256  # masks in one call of `exact`


def strength(scores: Scores, negative: float = NEGATIVE) -> Scores:
    """What edges are worth; the least goes first.

    An edge of negative score works against the behaviour. Cutting it may allow a smaller circuit, because helpful edges that it held in
    check can go as well, or it may make the circuit overshoot. `negative` weights such scores.
    """
    return scores.clip(min=0) - negative * scores.clip(max=0)


def loss(metric: Metric, pairs: Pairs, engine: Engine) -> Objective:
    """The loss to differentiate: the negated metric, or KL(model ‖ ·). Maps logits [C, batch, V] to [C, batch]."""
    if metric == "kl":
        return engine.kl_objective
    return lambda logits: -metric_value(metric, logits, pairs)


def eap(engine: Engine, objective: Objective, rules: Rules | None = None) -> np.ndarray:
    """[E] EAP; with `rules`, GIM or RelP. Not for KL, whose gradient vanishes at the clean run and has to be integrated."""
    gradient: np.ndarray = _gradient(engine, np.ones((1, engine.graph.n_edges)), objective, rules=rules)[0]
    return -gradient


def eap_ig_inputs(
    engine: Engine, objective: Objective, steps: int = STEPS, convention: Convention = "from-corrupt"
) -> np.ndarray:
    """[E] EAP-IG on inputs: D from the two ends, the gradient averaged over interpolated token embeddings."""
    return _eap_ig_inputs(engine, [objective], steps, convention)[0]


def _eap_ig_inputs(
    engine: Engine, objectives: Sequence[Objective], steps: int, convention: Convention
) -> list[np.ndarray]:
    """The same for several objectives, which share forward passes."""
    position = _positions(steps, convention)
    weights = np.where(engine.graph.edge_source == 0, position[:, None], 1.0)
    found = engine.gradients(weights, objectives, against_full=True)
    return [-one.gradient.double().cpu().numpy().mean(0) for one in found]


def eap_ig_activations(
    engine: Engine, objective: Objective, steps: int = STEPS, convention: Convention = "from-corrupt"
) -> np.ndarray:
    """[E] EAP-IG on activations: interpolates one group of nodes (the input, a layer's heads, an MLP) and recomputes the rest.

    Nodes of a group do not read each other, so their outputs are those of the clean run, and M = k/m on all edges out of the group
    interpolates these outputs: a_corr + (k/m)(a_clean − a_corr). m runs for each of the 2L + 1 groups.
    """
    graph = engine.graph
    scores = np.zeros(graph.n_edges)
    place = (graph.edge_source - 1) % (graph.n_heads + 1)
    group = 2 * graph.source_layer[graph.edge_source] + 1 + (place == graph.n_heads)
    group[graph.edge_source == 0] = 0
    for g in range(2 * graph.n_layers + 1):
        out = np.flatnonzero(group == g)
        for position in _positions(steps, convention):
            weights = np.ones((1, graph.n_edges))
            weights[:, out] = position
            scores[out] -= _gradient(engine, weights, objective)[0, out]
    return scores / steps


def integrated_mask_gradients(
    engine: Engine,
    edges: np.ndarray | None = None,
    mask: np.ndarray | None = None,
    objective: Objective | None = None,
    steps: int = STEPS,
) -> np.ndarray:
    """[n] over `edges` (default: all): minus the average of ∂L/∂M at αM; 0 for edges that the circuit `mask` [n] lacks.

    L is KL by default. Up to the error of the midpoint rule, a circuit's scores sum to L(empty) − L(circuit), which for KL is f · KL_cut.
    """
    edges = np.arange(engine.graph.n_edges) if edges is None else edges
    alive = np.ones(len(edges), dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
    scores = np.zeros(len(edges))
    if alive.any():
        alpha = (np.arange(steps) + 0.5) / steps
        weights = np.repeat(alpha[:, None], alive.sum(), axis=1)
        scores[alive] = -_gradient(engine, weights, objective, edges=edges[alive]).mean(0)
    return scores


def exact(engine: Engine, objective: Objective, edges: np.ndarray | None = None) -> np.ndarray:
    """[n] the effect of cutting each of `edges` (default: all) alone from the whole model; one pass per edge."""
    edges = np.arange(engine.graph.n_edges) if edges is None else np.asarray(edges)
    whole = np.ones((1, engine.graph.n_edges), dtype=bool)
    values = [_mean(engine.measure(whole, objective))]
    for first in range(0, len(edges), _CUTS_AT_ONCE):
        some = edges[first : first + _CUTS_AT_ONCE]
        masks = whole.repeat(len(some), axis=0)
        masks[np.arange(len(some)), some] = False
        values.append(_mean(engine.measure(masks, objective)))
    change: np.ndarray = np.concatenate(values[1:] or [np.zeros(0)]) - values[0]
    return change


def attribute(
    engine: Engine,
    pairs: Pairs,
    metric: Metric,
    method: Method = "eap-ig-inputs",
    steps: int = STEPS,
    convention: Convention = "from-corrupt",
) -> np.ndarray:
    """[E] scores by the name of a method and of a metric."""
    objective = loss(metric, pairs, engine)
    if method in ("eap", "gim", "relp"):
        return eap(engine, objective, {"gim": GIM, "relp": RELP}.get(method))
    if method == "mask-gradients":
        return integrated_mask_gradients(engine, objective=objective, steps=steps)
    if method == "exact":
        return exact(engine, objective)
    if method == "eap-ig-inputs":
        return eap_ig_inputs(engine, objective, steps, convention)
    if method == "eap-ig-activations":
        return eap_ig_activations(engine, objective, steps, convention)
    raise MechRLError(f"unknown attribution {method!r}; known: {', '.join(get_args(Method))}")


# ---- cache ----------------------------------------------------------------------------------------------------------


def cached(engine: Engine, pairs: Pairs, metric: Metric) -> np.ndarray:
    """[E] EAP-IG on inputs, from the disk cache if possible.

    Passes are charged either way: a method's cost must not depend on what ran before.
    """
    return cached_by(engine, pairs, [metric])[0]


def cached_by(engine: Engine, pairs: Pairs, metrics: Sequence[Metric]) -> list[np.ndarray]:
    """`cached` for several metrics. What they share is computed once, and charged for each."""
    folder = cache_folder() / "scores"
    found: dict[Metric, np.ndarray] = {}
    unknown: dict[Metric, tuple[Path, str]] = {}
    for metric in metrics:
        what = _determinants(engine, pairs, metric)
        path = folder / f"{hashlib.sha256(what.encode()).hexdigest()}.safetensors"
        if (known := _read(path, what, engine.graph.n_edges)) is None:
            unknown[metric] = path, what
        else:
            found[metric], passes = known
            engine.ledger.charge(passes)
    if unknown:
        before = engine.passes
        objectives = [loss(metric, pairs, engine) for metric in unknown]
        found |= zip(unknown, _eap_ig_inputs(engine, objectives, STEPS, "from-corrupt"), strict=True)
        passes = (engine.passes - before) / len(unknown)
        for metric, (path, what) in unknown.items():
            about = {"what": what, "passes": repr(passes)}
            with suppress(CannotWrite):  # a full or read-only disk only costs time
                write_atomically(path, sealed({"scores": found[metric]}, about))
    return [found[metric] for metric in metrics]


def _determinants(engine: Engine, pairs: Pairs, metric: Metric) -> str:
    """All that the scores depend on."""
    return json.dumps(
        {
            "version": mechrl.__version__,
            "model": engine.model.checksum,
            "dtype": str(engine.model.dtype),
            "device": engine.model.device.type,
            "tf32": engine.tf32 and engine.model.device.type == "cuda",
            "pairs": [pairs.clean, pairs.corrupt],
            "answers": None if metric == "kl" else [pairs.answers, pairs.foils],
            "metric": metric,
            "method": "eap-ig-inputs",
            "steps": STEPS,
            "convention": "from-corrupt",
        },
        sort_keys=True,
    )


def _read(path: Path, what: str, n_edges: int) -> tuple[np.ndarray, float] | None:
    """Scores and the passes they cost; None if the file is missing or invalid."""
    try:
        arrays, about = read_sealed(path)
        scores, passes = arrays["scores"], float(about["passes"])
    except (OSError, MechRLError, KeyError, ValueError):
        return None
    sound = (
        about.get("what") == what
        and scores.shape == (n_edges,)
        and scores.dtype.kind == "f"
        and 0 <= passes < np.inf
    )
    sound = sound and bool(np.isfinite(scores).all())
    return (scores, passes) if sound else None


# ---- helpers --------------------------------------------------------------------------------------------------------


def _positions(steps: int, convention: Convention) -> np.ndarray:
    """The steps k/m between the corrupted (0) and the clean (1) end."""
    if steps < 1:
        raise MechRLError(f"integration needs at least one step, not {steps}")
    if convention not in get_args(Convention):
        raise MechRLError(f"unknown convention {convention!r}; known: {', '.join(get_args(Convention))}")
    return (np.arange(steps) + (convention == "to-clean")) / steps


def _gradient(
    engine: Engine,
    weights: np.ndarray,
    objective: Objective | None,
    edges: np.ndarray | None = None,
    rules: Rules | None = None,
) -> np.ndarray:
    found: np.ndarray = (
        engine.gradient(weights, edges, objective, rules=rules).gradient.double().cpu().numpy()
    )
    return found


def _mean(values: torch.Tensor) -> np.ndarray:
    """[C, batch] to [C]."""
    return values.double().mean(-1).cpu().numpy()
