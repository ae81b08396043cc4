"""Tasks made from behaviours, and the paper's rule for K."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mechrl.agents.paper.env import EnvConfig
from mechrl.agents.paper.tasks import TaskSettings, papers_k, task_of, training_tasks
from mechrl.behaviours import get_behaviour
from mechrl.candidates import ranking
from mechrl.errors import MechRLError
from mechrl.models import load_model


def linear(full: float) -> Callable[[int], float]:
    """A ceiling that reaches 1 at a given number of candidates."""
    return lambda k: min(1.0, k / full)


@pytest.mark.parametrize(
    ("n_edges", "full", "k", "left_out"),
    [
        (32_491, {"a": 1000, "b": 2000}, 2000, []),  # b's is .875 with 1750
        (32_491, {"a": 1000, "b": 3400}, 3000, []),  # .88 at most: kept, with the largest K
        (32_491, {"a": 1000, "b": 16_000}, 1000, ["b"]),
        (1519, {"a": 400}, 380, []),  # in a small graph all edges may be candidates
        (71_000, {"a": 6500}, 6010, []),  # the same share as of GPT-2 small's graph: 6,556 at most
        (71_000, {"a": 9000}, 6556, ["a"]),
    ],
)
def test_k_is_the_smallest_whose_ceilings_reach(n_edges, full, k, left_out):
    found, out = papers_k(n_edges, {name: linear(n) for name, n in full.items()})
    if set(left_out) == set(full):
        assert list(out) == left_out
    else:
        assert (found, list(out)) == (k, left_out)


@pytest.fixture
def toy(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MECHRL_CACHE", str(tmp_path))
    return load_model("toy")


def test_a_task_has_the_best_edges_by_the_behaviours_metric(toy):
    behaviour, settings = get_behaviour("acronyms"), TaskSettings(pairs=3, k=50)
    task = task_of(toy, behaviour, settings, EnvConfig(margin=0.1))
    assert set(task.candidates) == set(ranking(task.scores)[:50]) and task.K == 50
    assert task.tau == pytest.approx(task.ceiling - 0.1)
    by_kl = task_of(toy, behaviour, TaskSettings(3, 50, "kl"), EnvConfig())
    assert set(by_kl.candidates) != set(task.candidates)


def test_training_goes_by_the_rule_unless_told_otherwise(toy):
    chosen = [get_behaviour(name) for name in ("ioi", "acronyms")]
    lines: list[str] = []
    tasks, settings = training_tasks(toy, chosen, TaskSettings(pairs=3), EnvConfig(), None, lines.append)
    assert [t.K for t in tasks] == [settings.k] * 2 and min(t.ceiling for t in tasks) >= 0.9
    assert settings.k == 127 and any("127 candidates" in line for line in lines)
    (task,), settings = training_tasks(toy, chosen[:1], TaskSettings(pairs=3), EnvConfig(), 40)
    assert (task.K, settings.k) == (40, 40)


def test_a_behaviour_without_a_ceiling_is_left_out_loudly(toy, monkeypatch):
    monkeypatch.setattr("mechrl.agents.paper.tasks.PAPERS_K", 30)
    monkeypatch.setattr("mechrl.agents.paper.tasks.PAPERS_EDGES", 1519)
    names = ("opposite-syllogism", "acronyms", "multiple-choice")
    chosen = [get_behaviour(name) for name in names]
    lines: list[str] = []
    tasks, _ = training_tasks(toy, chosen, TaskSettings(pairs=3), EnvConfig(), None, lines.append)
    out = [line for line in lines if "LEFT OUT" in line]
    assert {t.name for t in tasks} | {line.split(":")[0] for line in out} == set(names)
    assert out and all(t.ceiling >= 0.85 for t in tasks)
    with pytest.raises(MechRLError, match="no behaviour reaches a ceiling"):
        training_tasks(toy, [get_behaviour("acronyms")], TaskSettings(pairs=3), EnvConfig(), None)


def test_odd_settings_are_refused():
    with pytest.raises(MechRLError, match="at least 1"):
        TaskSettings(k=0)
    with pytest.raises(MechRLError, match="unknown prefilter"):
        TaskSettings(prefilter="union")  # type: ignore[arg-type]
