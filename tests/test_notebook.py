"""What a notebook shows while `discover` and `validate` run. The tour is an executed notebook, so its own outputs are checked too."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import mechrl

TOUR = Path(__file__).parents[1] / "docs" / "tour.ipynb"


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All display updates sent to a notebook."""
    pictures: list[str] = []

    def display(what, display_id: bool):
        pictures.append(what._repr_html_())
        return SimpleNamespace(update=lambda now: pictures.append(now._repr_html_()))

    ipython, shows = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=None)  # type: ignore[attr-defined]
    shows.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", shows)
    monkeypatch.setattr("mechrl.notebook._EVERY", 0.0)
    return pictures


@pytest.fixture(scope="module")
def model():
    return mechrl.load_model("toy")


def test_a_notebook_sees_how_far_it_has_come(
    shown: list[str], model, capsys: pytest.CaptureFixture[str]
) -> None:
    behaviour = mechrl.behaviour("ioi")
    circuit = mechrl.discover(model, behaviour, pairs=4, budget=60)
    assert len(shown) > 3 and all(picture.startswith("<progress") for picture in shown)
    last = shown[-1]
    assert f"{len(circuit):,} edges, f {circuit.faithfulness:.3f}" in last and 'value="1" max="1"' in last
    assert any('max="60"' in picture for picture in shown)
    shown.clear()
    mechrl.discover(model, behaviour, "greedy", pairs=4)
    assert "ioi by greedy: f " in shown[-1]
    shown.clear()
    mechrl.validate(circuit, model, behaviour, 20)
    assert "bootstraps, single edges" in shown[-1]
    assert capsys.readouterr() == ("", "")


def test_who_reports_himself_is_shown_no_bar(shown: list[str], model) -> None:
    lines: list[str] = []
    mechrl.discover(model, mechrl.behaviour("ioi"), "greedy", pairs=4, report=lines.append)
    assert lines and not shown


def test_a_program_is_shown_nothing(model, capsys: pytest.CaptureFixture[str]) -> None:
    mechrl.discover(model, mechrl.behaviour("ioi"), "greedy", pairs=4)
    assert capsys.readouterr() == ("", "")


def test_what_fails_leaves_no_full_bar(shown: list[str], model) -> None:
    with pytest.raises(mechrl.MechRLError):
        mechrl.discover(model, mechrl.behaviour("simple-syllogism"), "guess", force=True)
    assert len(shown) == 2 and "value" not in shown[-1]  # an interrupted bar is not shown as finished


def test_the_tour_was_run_and_shows_it() -> None:
    cells = json.loads(TOUR.read_text(encoding="utf-8"))["cells"]
    pictures = [
        "".join(output["data"]["text/html"])
        for cell in cells
        for output in cell.get("outputs", [])
        if "text/html" in output.get("data", {})
    ]
    bars = [picture for picture in pictures if picture.startswith("<progress")]
    assert (
        len(bars) == 3 and " edges, f 0." in bars[0] and all('value="1" max="1"' in bar for bar in bars)
    )  # two discoveries and a validation, each in its final state
