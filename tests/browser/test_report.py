"""The report of a reproduction in a browser: tables fit, figures are shown."""

from __future__ import annotations

import pytest

from mechrl.experiments.reproduce import Scope
from mechrl.experiments.write import write_report
from tests.experiments.made_up import made_up


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The report of a model; a few cells are not done, so that there are remarks."""
    found = {}
    for model in ("gpt2", "other"):
        folder = tmp_path_factory.mktemp(model)
        view = made_up(folder, model=model, scope=Scope(costly_seeds=(0, 1)))
        for key, cell in view.cells.matched.items():
            if key[1] == "ioi" and key[-1] > 0:
                view.workspace.path(cell).unlink()
        found[model] = write_report(view, folder).report.as_uri()
    return found


@pytest.mark.parametrize("model", ["gpt2", "other"])
def test_tables_fit_and_figures_show(chromium, reports, model):
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(reports[model])
    wide = page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(d => d.scrollWidth > d.clientWidth)"
        ".map(d => `${d.closest('section').id}: ${d.scrollWidth} of ${d.clientWidth}`)"
    )
    assert wide == []
    assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 300)")
    assert len([r for r in requests if not r.startswith("data:")]) == 1
    context.close()


def test_it_opens_with_findings_and_ends_with_provenance(chromium, reports):
    window = chromium.new_page(viewport={"width": 1280, "height": 900})
    window.goto(reports["gpt2"])
    top = window.evaluate("[...document.querySelectorAll('main > section')].map(s => s.id)")
    assert top[0] == "findings" and top[-1] == "provenance"
    sentences = window.locator(".findings li").all_inner_texts()
    assert 3 <= len(sentences) <= 5 and all(s.endswith(".") for s in sentences)
    assert window.locator("#findings img").count() == 1
    assert window.locator(".findings").bounding_box()["y"] < 500  # on the first screen
    assert "command" not in window.inner_text("#findings")
    window.close()


def test_no_heading_is_broken_inside_a_word(chromium, reports):
    """No word in a heading is broken over two lines."""
    window = chromium.new_page(viewport={"width": 1280, "height": 900})
    window.goto(reports["gpt2"])
    broken = window.evaluate("""() => [...document.querySelectorAll('th')].flatMap(th => {
      const walker = document.createTreeWalker(th, NodeFilter.SHOW_TEXT), broken = [];
      for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        for (const word of node.data.matchAll(/[\\p{L}\\d]+/gu)) {
          const range = document.createRange();
          range.setStart(node, word.index);
          range.setEnd(node, word.index + word[0].length);
          if (new Set([...range.getClientRects()].map(r => Math.round(r.top))).size > 1) broken.push(word[0]);
        }
      }
      return broken;
    })""")
    assert broken == []
    window.close()
