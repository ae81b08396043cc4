"""Takes the pictures of the viewer in images/ with the system's Chromium: `python docs/make_pictures.py`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

import mechrl
from mechrl.viewer import page
from mechrl.viewer.data import circuit_data

IMAGES = Path(__file__).parent / "images"
CHROMIUM = "/usr/bin/chromium"


def found(model: Any, name: str, method: str = "blockwise") -> dict[str, Any]:
    behaviour = mechrl.behaviour(name)
    return circuit_data(mechrl.discover(model, behaviour, method), model, behaviour)


def component(view: Page) -> None:
    """The head that the logits read most, and where it looks in the circuit."""
    view.locator("h3:has-text('By the scores') + ul .name", has_text="a3.").first.click()
    view.locator("[aria-label=Run] [data-key=circuit]").click()


def replay(view: Page) -> None:
    view.click("#tab-prompts")
    move = "range => { range.value = 50; range.dispatchEvent(new Event('input')); }"
    view.locator("[aria-label='Removal order']").evaluate(move)


def compare(view: Page) -> None:
    view.click("#tab-about")


def main() -> None:
    model = mechrl.load_model("toy")
    one, two = found(model, "ioi"), found(model, "ioi-2")
    pictures: dict[str, tuple[list[dict[str, Any]], Callable[[Page], object]]] = {
        "circuit-acronyms-toy": ([found(model, "acronyms", "planner")], lambda view: None),
        "viewer-component": ([one], component),
        "viewer-replay": ([one], replay),
        "viewer-compare": ([one, two], compare),
    }
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        for name, (circuits, do) in pictures.items():
            path = Path(folder, f"{name}.html")
            path.write_text(page(circuits), encoding="utf-8")
            view = browser.new_page(viewport={"width": 1440, "height": 900})
            view.goto(path.as_uri())
            view.wait_for_selector(".node[aria-label]")
            do(view)
            view.mouse.move(5, 895)
            view.wait_for_timeout(500)
            picture = Image.open(BytesIO(view.screenshot())).convert("RGB")
            picture.save(IMAGES / f"{name}.webp", lossless=True, quality=100, method=6)
            view.close()
        browser.close()


if __name__ == "__main__":
    main()
