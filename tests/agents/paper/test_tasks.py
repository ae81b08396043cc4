"""What a behaviour becomes to the agent."""

from __future__ import annotations

import numpy as np
import pytest

from mechrl.behaviours import get_behaviour
from mechrl.models import load_model
from mechrl.rl.env import RewardSettings
from mechrl.rl.tasks import TaskSettings, task_of


def test_what_can_be_spared_is_a_setting_of_tasks(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MECHRL_CACHE", str(tmp_path))
    model, behaviour, reward = load_model("toy"), get_behaviour("acronyms"), RewardSettings()
    whole, same, fewer = (
        task_of(model, behaviour, TaskSettings(3, 200, "union", **spare), reward)
        for spare in ({}, {"spare": 0.0}, {"spare": 0.05})
    )
    assert np.array_equal(whole.candidates, same.candidates) and whole.engine.passes == same.engine.passes
    assert (
        fewer.K < whole.K
        and fewer.ceiling >= whole.ceiling - 0.05 - 1e-6
        and fewer.engine.passes > whole.engine.passes
    )
