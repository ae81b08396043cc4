"""The time profile of a search: the phases add up to the total."""

from __future__ import annotations

import torch

from mechrl.behaviours import get_behaviour
from mechrl.bench.search import bench_search
from mechrl.models import load_model
from mechrl.search.session import SearchSettings


def test_the_phases_add_up_and_what_is_free_is_in_none() -> None:
    settings = SearchSettings("blockwise", holds_on="discovery", pairs=8)
    found = bench_search(lambda: load_model("toy"), get_behaviour("acronyms"), settings, torch.device("cpu"))
    passes = {phase["name"]: phase["passes"] for phase in found["phases"]}
    assert abs(sum(passes.values()) - found["passes"]) < 1e-9
    assert passes["circuits"] > 0 and passes["gradients"] > 0 and passes["pairs and scores"] > 0
    assert passes["test pairs"] == passes["loading"] == 0
    assert all(phase["seconds"] >= 0 for phase in found["phases"])
