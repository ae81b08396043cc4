"""One self-contained file, and text that stays text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from mechrl.errors import MechRLError
from mechrl.viewer import circuit_html, page
from mechrl.viewer.data import circuit_data
from tests.viewer.circuits import SMALL, random_circuit

NASTY = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    '"><img src=x onerror=alert(1)>',
    "\u2028{{script}}{{data}}",
    "&lt;b&gt;",
]


class Page(HTMLParser):
    """The elements of a page with their attributes and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict, list[str]]] = []
        self.inside = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.elements.append((tag, dict(attrs), []))
        self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, text: str) -> None:
        if self.inside:
            self.elements[-1][2].append(text)

    def all(self, tag: str) -> list[tuple[dict, str]]:
        return [(attributes, "".join(text)) for name, attributes, text in self.elements if name == tag]


def nasty(text: str) -> dict:
    changes = dict(behaviour=text, model=text, method=text, settings={text: text}, version=text)
    return circuit_data(random_circuit(SMALL, 20, removed=4, **changes), missing=text)


@pytest.mark.parametrize("text", NASTY)
def test_text_from_a_file_stays_text(text: str) -> None:
    data = nasty(text)
    parsed, plain = Page(page([data])), Page(page([circuit_data(random_circuit(SMALL, 20))]))
    # the same elements, no more and no fewer
    assert [e[0] for e in parsed.elements] == [e[0] for e in plain.elements]
    (_, told), (_, script) = parsed.all("script")
    assert json.loads(told) == json.loads(json.dumps({"circuits": [data]}))
    assert script == plain.all("script")[1][1]
    assert parsed.all("title")[0][1].startswith(f"{text} in {text}")


def test_nothing_comes_from_elsewhere() -> None:
    html = page([circuit_data(random_circuit(SMALL, 20))])
    assert set(re.findall(r"\w+://[^\s\"'<>]+", html)) == {
        "http://www.w3.org/2000/svg"
    }  # the SVG namespace, which is never fetched
    parsed = Page(html)
    for _, attributes, _ in parsed.elements:
        assert "src" not in attributes and attributes.get("href", "data:,") == "data:,"
        assert not any(name.startswith("on") or name == "style" for name in attributes)


def test_the_policy_admits_this_script_and_no_other() -> None:
    parsed = Page(page([circuit_data(random_circuit(SMALL, 20))]))
    policy = next(
        a["content"] for a, _ in parsed.all("meta") if a.get("http-equiv") == "Content-Security-Policy"
    )
    script, style = parsed.all("script")[1][1], parsed.all("style")[0][1]
    for kind, text in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}';" in policy
    assert "default-src 'none'" in policy and "connect-src 'none'" in policy and "unsafe" not in policy


def test_the_script_makes_no_markup() -> None:
    script = Page(page([circuit_data(random_circuit(SMALL, 20))])).all("script")[1][1]
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(|fetch\(|XMLHttp|WebSocket",
        script,
    )


def test_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(MechRLError, match="search again"):
        page([circuit_data(random_circuit(SMALL, 20, faithfulness=float("nan")))])


@pytest.mark.parametrize("text", NASTY)
def test_a_notebook_shows_the_page_in_a_frame_of_its_own(text: str) -> None:
    html = circuit_html(random_circuit(SMALL, 20, behaviour=text), height=300)
    (frame, _), *rest = Page(html).all("iframe")
    assert not rest and frame["sandbox"] == "allow-scripts" and "height:300px" in frame["style"]
    assert len(Page(frame["srcdoc"]).all("script")) == 2
