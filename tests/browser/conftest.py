"""A real Chromium, installed on the system. Without one these tests are skipped, and the test summary says so in capitals."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mechrl.viewer import page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_missing: list[str] = []


def find() -> tuple[str | None, str]:
    """Chromium's path, or the reason why browser tests are skipped."""
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        return None, f"none of {', '.join(NAMES)} is installed (Debian: apt-get install chromium)"
    try:
        import playwright  # noqa: F401
    except ImportError:
        return None, "playwright is not installed (pip install -e '.[dev]')"
    return path, ""


@pytest.fixture(scope="session")
def chromium() -> Iterator:
    path, why = find()
    if path is None:
        _missing.append(why)
        pytest.skip(f"no browser: {why}")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()


def pytest_terminal_summary(terminalreporter) -> None:
    if _missing:
        terminalreporter.write_sep("!", "BROWSER TESTS SKIPPED", yellow=True, bold=True)
        terminalreporter.write_line(f"The viewer was NOT tested in a browser: {_missing[0]}")


@dataclass
class Visit:
    """A page in the browser, with all its requests and console errors."""

    page: object
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __getattr__(self, name: str):
        return getattr(self.page, name)


@pytest.fixture
def visit(chromium, tmp_path: Path) -> Iterator[Callable[..., Visit]]:
    """Opens circuits (or an address) in a new window. At the end: no errors, and no request but for the page itself."""
    contexts, visits = [], []

    def opened(*circuits: dict, url: str = "", scheme: str = "light") -> Visit:
        context = chromium.new_context(viewport={"width": 1440, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        now = Visit(context.new_page())
        visits.append(now)
        now.page.on("request", lambda request: now.requests.append(request.url))
        now.page.on("pageerror", lambda error: now.errors.append(str(error)))
        now.page.on(
            "console", lambda message: now.errors.append(message.text) if message.type == "error" else None
        )
        if not url:
            path = tmp_path / f"{len(visits)}.html"
            path.write_text(page(list(circuits)), encoding="utf-8")
            url = path.as_uri()
        now.page.goto(url)
        now.page.wait_for_selector(".node[aria-label]")  # drawn
        now.url_opened = url
        return now

    yield opened
    for each in visits:
        assert each.errors == []
        assert [r for r in each.requests if not r.startswith("data:")] == [each.url_opened]
    for context in contexts:
        context.close()
