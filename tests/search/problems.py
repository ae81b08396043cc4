"""Problems for the searches' tests: planted circuits and small random models."""

from __future__ import annotations

import numpy as np
import torch

from mechrl.behaviours import Behaviour, Pairs
from mechrl.engine import Engine
from mechrl.models.base import Model
from mechrl.search.problem import Problem
from tests.planted import Planted
from tests.tiny import tiny, tiny_pairs


def problem_of(model: Model, pairs: Pairs, **settings) -> Problem:
    known = dict(tau=0.9, seed=0, candidates=np.arange(model.graph.n_edges)) | settings
    behaviour = Behaviour("test", "test", "extra", "logit-difference", "", ())
    return Problem(model, behaviour, Engine(model, pairs), pairs, **known)


def planted_problem(planted: Planted, **settings) -> Problem:
    model = planted.model.to(dtype=torch.float64)
    rows = [tuple(map(tuple, t.tolist())) for t in (planted.clean, planted.corrupt)]
    one = [tuple((i,) for i in t.tolist()) for t in (planted.answers, planted.foils)]
    return problem_of(model, Pairs(*rows, *one, tuple(("", "") for _ in rows[0])), **settings)


def tiny_problem(kind: str, seed: int = 0, n_pairs: int = 4, **settings) -> Problem:
    tokens = tiny_pairs(n_pairs, seed=seed)
    clean, corrupt = (tuple(map(tuple, t)) for t in (tokens.clean, tokens.corrupt))
    n = len(clean)
    pairs = Pairs(clean, corrupt, ((1,),) * n, ((2,),) * n, (("", ""),) * n)
    return problem_of(tiny(kind, seed), pairs, **settings)


def names(problem: Problem, mask: np.ndarray) -> set[str]:
    return {problem.model.graph.edge_name(int(e)) for e in problem.candidates[mask]}
