"""The learned model of the environment: what an edit, a set of cuts and additions, does to f.

Every edge e is encoded by itself, with its features at the circuit M of n edges, into

    c_e   the cost of cutting it alone, or for an edge outside the gain of adding it, in units of f;  c°_e the same on fresh pairs
    z_e   what is pooled over an edit

and an edit (cuts S, additions A) is predicted from sums over its edges. First order would be Δ = f(M) − f(M after the edit) =
Σ_S c − Σ_A c. KL is quadratic near its minimum, so costs do not add up: the head corrects the sum, given how gradients of the edit's edges
add up or cancel in each group of pairs, what z they have, and squares of signed sums (a low-rank interaction). It says how sure it is:

    T(Δ) ~ Normal(μ, σ),   T(x) = asinh(x / 0.01)         f − f on fresh pairs ~ Normal(gap, σ_gap)
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mechrl.agents.planner.features import Seen, n_features
from mechrl.agents.planner.look import ALPHAS
from mechrl.errors import MechRLError
from mechrl.files import write_atomically
from mechrl.files.reading import made_of, parse_json
from mechrl.files.sealed import read_sealed, sealed

FORMAT = 1
_UNIT = 0.01  # of f: effects below it are told apart linearly, above it logarithmically
_SPREAD = 30.0  # of a cost times n, see `features.squash`
_DOUBT = 0.2  # of an edge's gradient
_OUT_OF_REACH = 8.0  # of squashed costs: sinh(8) / 30 is fifty times an average edge


@dataclass(frozen=True)
class NetworkConfig:
    features: int
    hidden: int = 128
    pooled: int = 16
    interaction: int = 8


@dataclass(frozen=True)
class Edges:
    """What the network thinks of the edges at one circuit: the circuit's n, then m outside."""

    cost: Tensor  # [n + m] c, in units of f
    squashed: Tensor  # [n + m] asinh(30 · n · c)
    squashed_fresh: Tensor  # [n + m] the same of c°
    pooled: Tensor  # [n + m, P]
    signed: Tensor  # [n + m, I]
    gains: Tensor  # [A, Q, n + m]
    n: int
    f: float
    doubt: Tensor  # [n + m] how far off a cost may be

    @property
    def cost_fresh(self) -> Tensor:
        return torch.sinh(self.squashed_fresh) / (_SPREAD * self.n)


@dataclass(frozen=True)
class Effect:
    """What edits are predicted to do, [T] each."""

    mu: Tensor
    log_sigma: Tensor
    gap: Tensor
    log_sigma_gap: Tensor


class EditModel(nn.Module):
    """Features of edges and sets of them to predicted effects."""

    mean: Tensor
    scale: Tensor

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden
        self.register_buffer("mean", torch.zeros(config.features))
        self.register_buffer("scale", torch.ones(config.features))
        self.encode_in = nn.Sequential(nn.Linear(config.features, width), nn.ReLU())
        self.encode_out = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2 + config.pooled + config.interaction)
        )
        of_edit = 4 + 2 * len(ALPHAS) + config.pooled + 2 * config.interaction + 5
        last = nn.Linear(64, 4)
        nn.init.zeros_(last.weight)  # before it has learned anything, an edit does what its edges do
        nn.init.zeros_(last.bias)
        self.head = nn.Sequential(nn.Linear(of_edit, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), last)

    def edges(self, seen: Seen) -> Edges:
        """Encodes every edge of a circuit and around it."""
        device = self.mean.device
        x = (seen.edges.to(device) - self.mean) / self.scale
        h = self.encode_in(x.clamp(-6, 6))
        out = self.encode_out(h)
        squashed = out[:, :2].clamp(-_OUT_OF_REACH, _OUT_OF_REACH)
        pooled, signed = out[:, 2:].split([self.config.pooled, self.config.interaction], dim=-1)
        cost = torch.sinh(squashed[:, 0]) / (_SPREAD * max(seen.n, 1))
        gains = seen.gains.to(device)
        return Edges(
            cost,
            squashed[:, 0],
            squashed[:, 1],
            pooled,
            signed / max(seen.n, 1),
            gains,
            max(seen.n, 1),
            seen.f,
            doubt(gains),
        )

    def effect(self, edges: Edges, cut: Tensor, add: Tensor) -> Effect:
        """Edits at that circuit: cut [T, n] and add [T, m], 1 where an edge is cut or added."""
        lost, won = cut @ edges.cost[: edges.n], add @ edges.cost[edges.n :]
        sign = torch.cat([cut, -add], dim=1)  # [T, n + m]
        first_order = torch.einsum("te,aqe->taq", sign, edges.gains)  # of every group of pairs
        n_cut, n_add = cut.sum(1), add.sum(1)
        pooled = (sign.abs() @ edges.pooled) / (n_cut + n_add).clamp(min=1)[:, None]
        signed = sign @ edges.signed
        one = torch.ones_like(lost)
        features = torch.cat(
            [
                torch.stack(
                    [
                        squash(lost),
                        squash(won),
                        squash(lost - won),
                        squash(cut @ edges.cost[: edges.n].abs()),
                    ],
                    dim=1,
                ),
                squash(first_order.mean(-1)),
                squash(first_order.square().mean(-1).add(1e-16).sqrt()),
                pooled,
                squash(signed),
                squash(signed.square()),
                torch.stack(
                    [
                        n_cut.log1p(),
                        n_add.log1p(),
                        n_cut / edges.n,
                        one * edges.f,
                        one * float(np.log(edges.n)),
                    ],
                    dim=1,
                ),
            ],
            dim=1,
        )
        out = self.head(features)
        return Effect(squash(lost - won) + out[:, 0], out[:, 1] - 0.5, 0.1 * out[:, 2], 0.5 * out[:, 3] - 3.5)


def doubt(gains: Tensor) -> Tensor:
    """How far off costs may be, from gradients [A, Q, n + m].

    A steep gradient and a small cost mean that large effects cancel. In a circuit that overshoots such an edge often turns out to be among
    the most important, so it must not go among the cheapest.
    """
    return _DOUBT * gains.mean(1).abs().amax(0)


def squash(x: Tensor) -> Tensor:
    """T: of effects on f."""
    return torch.asinh(x / _UNIT)


def save_model(path: Path, model: EditModel, about: dict[str, Any]) -> None:
    arrays = {name: value.detach().cpu().numpy() for name, value in model.state_dict().items()}
    texts = {"format": str(FORMAT), "config": json.dumps(asdict(model.config)), "about": json.dumps(about)}
    write_atomically(path, sealed(arrays, texts))


def load_model(path: Path, device: torch.device | str = "cpu") -> tuple[EditModel, dict[str, Any]]:
    """A network and what was said about it."""
    try:
        arrays, texts = read_sealed(path, needed=False)
        if texts["format"] != str(FORMAT):
            raise MechRLError(
                f"{path}: a planner of format {texts['format'][:20]!r}; this version reads {FORMAT}"
            )
        about = parse_json(texts["about"])
        model = _filled(made_of(NetworkConfig, parse_json(texts["config"])), arrays)
        if not isinstance(about, dict):
            raise ValueError("what is said about it is no object")
    except FileNotFoundError as exc:
        raise MechRLError(f"{path}: no such file") from exc
    except (OSError, KeyError, TypeError, ValueError, RuntimeError) as exc:
        raise MechRLError(
            f"{path}: not a planner, or damaged; train one with `mechrl planner train`"
        ) from exc
    return model.to(device).eval(), about


def _filled(config: NetworkConfig, arrays: dict[str, np.ndarray]) -> EditModel:
    """The network of a file. Nothing is made of the size that its settings claim: the arrays must have it."""
    if config.features != n_features():
        raise ValueError(f"made for {config.features} features of an edge, not {n_features()}")
    if not all(array.dtype == np.float32 and np.isfinite(array).all() for array in arrays.values()):
        raise ValueError("a weight is not a finite number of 32 bits")
    with torch.device("meta"):
        model = EditModel(config)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()}, assign=True)
    if not (model.scale > 0).all():
        raise ValueError("a scale is not positive")
    return model
