"""All edges ranked, by name of the method: for the field's yardsticks, and to compare first looks at a behaviour.

eap, gim, relp                          one forward and one backward of the whole model
eap-ig-inputs, eap-ig-activations       five of them, and five for every group of nodes
mask-gradients                          of KL, at five points between the empty circuit and the whole model: blockwise's first order
first-look                              the same at two points: the planner's first order
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from mechrl.agents.planner.look import Looker
from mechrl.attribution import attribute
from mechrl.behaviours.base import Metric, Pairs
from mechrl.engine import Engine
from mechrl.names import one_of

Ranking = Literal["eap", "gim", "relp", "eap-ig-inputs", "eap-ig-activations", "mask-gradients", "first-look"]
RANKINGS: tuple[Ranking, ...] = get_args(Ranking)


def ranking(name: Ranking, engine: Engine, pairs: Pairs, metric: Metric) -> tuple[np.ndarray, float]:
    """[E] scores, positive where cutting the edge hurts, and the passes they took. `metric`: what those differentiate that take one."""
    one_of("ranking", name, RANKINGS)
    before = engine.passes
    if name == "first-look":
        scores = Looker(engine, pairs).first().mean((0, 1), dtype=np.float64)
    else:
        scores = attribute(engine, pairs, "kl" if name == "mask-gradients" else metric, name)
    return scores, engine.passes - before
