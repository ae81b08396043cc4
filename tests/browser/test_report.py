"""The report of a reproduction as people see it: tables fit, figures show."""

from __future__ import annotations

import pytest

from mechrl.evaluate.reproduce import Plan
from mechrl.evaluate.write import write_report
from tests.evaluate.made_up import made_up


@pytest.mark.parametrize("model", ["gpt2", "other"])
def test_tables_fit_and_figures_show(chromium, tmp_path, model):
    view = made_up(tmp_path, model=model, plan=Plan(costly_seeds=(0, 1)))
    undone = [cell for key, cell in view.cells.matched.items() if key[1] == "ioi" and key[-1] > 0]
    for cell in undone:  # so that there are remarks
        view.place.path(cell).unlink()
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(write_report(view, tmp_path).report.as_uri())
    wide = page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(d => d.scrollWidth > d.clientWidth)"
        ".map(d => `${d.closest('section').id}: ${d.scrollWidth} of ${d.clientWidth}`)"
    )
    assert wide == []
    assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 300)")
    assert len([r for r in requests if not r.startswith("data:")]) == 1
    context.close()
