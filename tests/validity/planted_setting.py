"""The setting of a planted circuit, with every edge known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mechrl.behaviours.base import Behaviour, known
from mechrl.circuit import Circuit
from mechrl.validity.setting import Setting
from tests.planted import Planted
from tests.search.problems import planted_problem


def planted_setting(planted: Planted, k: int = 60, components: str = "") -> Setting:
    problem = planted_problem(planted)
    behaviour = replace(
        problem.behaviour,
        known=known("planted", "by hand", "high", components),
        known_model=planted.model.name,
    )
    setting = Setting(problem.model, behaviour, problem.pairs, problem.engine, k, "metric")
    setting.__dict__["test"] = problem.engine  # without a tokenizer there are no fresh pairs
    return setting


def circuit_of(setting: Setting, names: set[str] | np.ndarray, method: str = "planted") -> Circuit:
    graph = setting.model.graph
    mask = names if isinstance(names, np.ndarray) else np.isin(graph.edge_names, sorted(names))
    return Circuit(
        model=setting.model.name,
        checksum=setting.model.checksum,
        graph=graph,
        d_model=setting.model.spec.d_model,
        behaviour=setting.behaviour.name,
        method=method,
        settings={"k": setting.k, "prefilter": setting.prefilter},
        tau=0.9,
        seed=0,
        pairs=len(setting.pairs),
        mask=mask,
        faithfulness=1.0,
        faithfulness_test=None,
    )


def no_behaviour() -> Behaviour:
    return Behaviour("other", "other", "extra", "logit-difference", "", ())
