"""What a reader does with a circuit: rank, threshold, prompt first, notes, links, pictures, several circuits, phone width."""

from __future__ import annotations

import base64
import json
import re
import urllib.parse
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest

from mechrl.behaviours import get_behaviour
from mechrl.cli.view import notes_file, read_notes
from mechrl.models import load_model
from mechrl.viewer import page
from mechrl.viewer.data import circuit_data
from tests.browser.test_viewer import drawn, shown, slide
from tests.viewer.circuits import GPT2, SMOLLM2, random_circuit

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def ranked() -> dict:
    """A circuit found by a search: without scores of its own, but with the attribution of its edges."""
    scores = np.random.default_rng(3).normal(size=GPT2.n_edges) ** 3
    return circuit_data(random_circuit(GPT2, 120, removed=60, nodes=30, scored=False, attribution=scores))


@pytest.fixture(scope="module")
def toy() -> dict:
    model = load_model("toy")
    known = dict(model="toy", checksum=model.checksum, pairs=4, nodes=16, scored=False)
    return circuit_data(random_circuit(model.graph, 60, removed=100, **known), model, get_behaviour("ioi"))


def kept(data: dict) -> list[tuple[float, str]]:
    """Strength and name of the edges of the final circuit, strongest first."""
    edges, last = data["edges"], len(data["stops"]["size"])
    names = [
        (
            abs(edges["importance"][i]),
            f"{data['sources'][edges['source'][i]]} → {data['receivers'][edges['receiver'][i]]}",
        )
        for i in range(len(edges["id"]))
        if edges["stops"][i] >= last
    ]
    return sorted(names, reverse=True)


def strongest(v, step: int) -> str:
    v.locator("[aria-label='Strongest edges']").first.evaluate(
        "(r, x) => { r.value = x; r.dispatchEvent(new Event('input')); }", step
    )
    return v.locator(".threshold .strongest").first.inner_text()


def pictured(v) -> list[str]:
    """The edges in the SVG that the page saves."""
    with v.page.expect_download() as download:
        v.locator("text=SVG").first.click()
    tree = ElementTree.fromstring(download.value.path().read_bytes())
    return [path.get("data-edge") for path in tree.iter(f"{SVG}path")]


# ---- scores, rank, threshold ----------------------------------------------------------------------------------------


def test_a_circuit_without_scores_of_its_own_is_ranked_by_attribution(visit, ranked: dict) -> None:
    v = visit(ranked)
    listed = v.locator("h3:has-text('Strongest edges') + ul .name").all_inner_texts()
    assert listed == [name for _, name in kept(ranked)][: len(listed)] and len(listed) == 14
    values = v.locator("h3:has-text('Strongest edges') + ul .value").all_inner_texts()
    assert [value.split("#")[1] for value in values] == [str(i + 1) for i in range(14)]
    assert "thicker: higher score" in v.locator(".legend").inner_text()


def test_an_old_file_is_ranked_with_the_model_at_hand(toy: dict) -> None:
    assert toy["scored"] and toy["scored_by"] == "EAP-IG" and len(set(toy["edges"]["importance"])) > 50


def test_strong_edges_are_thick(visit, ranked: dict) -> None:
    v = visit(ranked)
    with v.page.expect_download() as download:
        v.locator("text=SVG").first.click()
    tree = ElementTree.fromstring(download.value.path().read_bytes())
    width = {
        path.get("data-edge").replace("->", " → "): float(path.get("stroke-width"))
        for path in tree.iter(f"{SVG}path")
    }
    order = [width[name] for _, name in kept(ranked)]
    assert order == sorted(order, reverse=True) and order[0] > 4 * order[-1]


def test_the_threshold_leaves_the_strongest_edges(visit, ranked: dict) -> None:
    v = visit(ranked)
    before = drawn(v)
    for step in (10, 25):
        said = strongest(v, step)
        n = int(said.split(" of ")[0])
        assert said.startswith(f"{n} of 120 edges, |EAP-IG| ≥ ") and n == round(120 ** (step / 40))
        assert float(said.split("≥ ")[1]) == pytest.approx(kept(ranked)[n - 1][0], rel=0.06)
        assert {name.replace("->", " → ") for name in pictured(v)} == {name for _, name in kept(ranked)[:n]}
        assert drawn(v) != before
        assert v.locator(".node.on.faded").count() > 0
    assert strongest(v, 40) == "all 120 edges" and drawn(v) == before and len(pictured(v)) == 120


def test_every_component_can_be_listed(visit, ranked: dict) -> None:
    v = visit(ranked)
    rows = "h3:has-text('By the scores') + ul li"
    assert v.locator(rows).count() == 14
    v.click("text=Show all")
    assert v.locator(rows).count() == len(shown(v) - {"logits", "input"})


# ---- the header -----------------------------------------------------------------------------------------------------


def test_the_prompt_and_both_answers_are_on_the_first_view(visit, toy: dict) -> None:
    stops = len(toy["stops"]["size"])
    pair = toy["pairs"][0]
    pair = pair | {"top": pair["top"] | {"circuit": [[(f" after{i}", i / 100)] for i in range(stops)]}}
    v = visit(toy | {"pairs": [pair, *toy["pairs"][1:]]})

    def said() -> str:
        return v.locator(".example").inner_text().replace("·", "")

    assert "".join(pair["clean"][pair["opening"] :]).strip() in said()
    token, p = pair["top"]["clean"][0]
    assert f"answer {pair['answers'][0].strip()}" in said() and f"model {token.strip()} {p:.2f}" in said()
    for stop in (0, stops - 1):
        slide(v, stop)
        assert f"circuit after{stop} {stop / 100:.2f}" in said()


# ---- notes ----------------------------------------------------------------------------------------------------------


def note(v, component: str, name: str = "", group: str = "", pin: bool = False) -> None:
    v.click(f"[data-name='{component}']")
    for label, text in (("Your name for it", name), ("Group", group)):
        if text:
            v.fill(f"[aria-label='{label}']", text)
            v.keyboard.press("Enter")
    if pin:
        v.click(".pin")


def test_components_are_pinned_named_and_grouped_and_the_notes_come_back(
    visit, ranked: dict, tmp_path
) -> None:
    v = visit(ranked)
    one, two = sorted(shown(v) - {"logits", "input"})[:2]
    note(v, one, "copies the name", "movers", pin=True)
    note(v, two, "", "movers")
    v.keyboard.press("Escape")
    v.locator("#component h2").click()
    v.keyboard.press("Escape")
    assert v.locator(".list.pinned").inner_text() == f"{one} copies the name"
    assert v.locator(".list.groups").inner_text() == f"movers: {one}, {two}"
    assert v.locator(".caption").all_inner_texts() == ["copies the name"]
    v.hover(".list.groups button")
    assert {one, two} <= set(
        v.evaluate("[...document.querySelectorAll('.node.near')].map(n => n.dataset.name)")
    )
    with v.page.expect_download() as download:
        v.click("text=Save notes")
    assert download.value.suggested_filename == "circuit.notes.json"
    told = json.loads(download.value.path().read_text())
    assert told == {
        "pins": [one],
        "names": {one: "copies the name"},
        "groups": {one: "movers", two: "movers"},
    }
    circuit = tmp_path / "circuit.json"
    notes_file(circuit).write_text(json.dumps(told))
    again = visit(ranked | {"notes_of_reader": read_notes(circuit, random_circuit(GPT2, 30))})
    assert again.locator(".node.pinned").get_attribute("data-name") == one
    assert again.locator(".node.grouped").count() == 2
    assert again.locator(".caption").all_inner_texts() == ["copies the name"]


@pytest.mark.parametrize(
    "text", ["<img src=x onerror='window.broken = 1'>", "</script><script>window.broken = 1</script>"]
)
def test_notes_are_text(visit, ranked: dict, text: str) -> None:
    v = visit(ranked | {"notes_of_reader": {"pins": ["m0"], "names": {"m0": text}, "groups": {"m0": text}}})
    assert text in v.locator(".list.pinned").inner_text() and v.locator(".caption").inner_text() == text
    assert v.evaluate("window.broken") is None and v.locator("img").count() == 0


# ---- links ----------------------------------------------------------------------------------------------------------


def told(v) -> dict:
    """The whole state that is visible on the page."""
    return {
        "shown": shown(v),
        "heading": [h.inner_text() for h in v.locator("[role=tabpanel]:not([hidden]) h2").all()],
        "ranges": v.evaluate("[...document.querySelectorAll('input[type=range]')].map(r => r.value)"),
        "checked": v.evaluate(
            "[...document.querySelectorAll('[aria-checked=true]')].map(b => b.dataset.key)"
        ),
        "pressed": v.evaluate(
            "[...document.querySelectorAll('.node[aria-pressed=true]')].map(b => b.dataset.name)"
        ),
        "pinned": v.evaluate("[...document.querySelectorAll('.node.pinned')].map(b => b.dataset.name)"),
        "scheme": v.evaluate("document.documentElement.style.colorScheme"),
        "captions": v.locator(".caption").all_inner_texts(),
        "picture": drawn(v),
    }


def opened_at(visit, data: list[dict], tmp_path, hash_: str):
    path = tmp_path / "linked.html"
    path.write_text(page(data), encoding="utf-8")
    v = visit(url=f"{path.as_uri()}#{hash_}")
    v.url_opened = next(r for r in v.requests if not r.startswith("data:"))
    return v


def test_the_address_shows_the_same_again(visit, toy: dict, tmp_path) -> None:
    v = visit(toy)
    assert v.evaluate("location.hash") in ("", "#")
    head = toy["attention"]["heads"][0]
    note(v, head, "the mover", "movers", pin=True)
    v.click("[aria-label=Run] [data-key=corrupt]")
    v.click("[aria-label=Prompt] [data-key='2']")
    slide(v, 5)
    strongest(v, 30)
    v.click("#theme")
    v.mouse.move(5, 5)
    v.wait_for_timeout(300)
    seen, hash_ = told(v), v.evaluate("location.hash.slice(1)")
    other = opened_at(visit, [toy], tmp_path, hash_)
    other.mouse.move(5, 5)
    other.wait_for_timeout(300)
    assert told(other) == seen
    other.click("#tab-about")
    third = opened_at(visit, [toy], tmp_path, other.evaluate("location.hash.slice(1)"))
    assert third.get_attribute("#tab-about", "aria-selected") == "true"


@pytest.mark.parametrize(
    "hash_",
    [
        "c=nothing&stop=99999&top=-3&pair=77&tab=moon&run=x&theme=pink&of=9",
        "notes=%7B",
        "notes=" + urllib.parse.quote('{"pins":[1,"zz"],"names":[]}'),
        "%%%",
    ],
)
def test_a_wrong_address_is_the_first_view(visit, toy: dict, tmp_path, hash_: str) -> None:
    plain = told(visit(toy))
    assert told(opened_at(visit, [toy], tmp_path, hash_)) == plain


# ---- pictures -------------------------------------------------------------------------------------------------------


COLOURS = """async (png) => {
  const picture = new Image();
  picture.src = `data:image/png;base64,${png}`;
  await picture.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: picture.width, height: picture.height });
  const context = canvas.getContext("2d");
  context.drawImage(picture, 0, 0);
  return new Set(new Uint32Array(context.getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size;
}"""


def test_the_picture_is_saved_as_svg_and_png(visit, ranked: dict) -> None:
    v = visit(ranked)
    assert {name.replace("->", " → ") for name in pictured(v)} == {name for _, name in kept(ranked)}
    with v.page.expect_download() as download:
        v.locator("text=SVG").first.click()
    assert download.value.suggested_filename == "ioi-in-nowhere-nothing.svg"
    tree = ElementTree.fromstring(download.value.path().read_bytes())
    texts = {text.text for text in tree.iter(f"{SVG}text")}
    assert {"input", "logits"} <= texts and len(texts) >= len(shown(v))
    with v.page.expect_download() as download:
        v.locator("text=PNG").first.click()
    png = download.value.path().read_bytes()
    assert (
        png.startswith(b"\x89PNG") and v.evaluate(COLOURS, base64.b64encode(png).decode()) > 50
    )  # it is not empty
    width, height = (int.from_bytes(png[i : i + 4], "big") for i in (16, 20))
    assert (width, height) == (2 * int(tree.get("width")), 2 * int(tree.get("height")))


# ---- several circuits -----------------------------------------------------------------------------------------------


def test_three_circuits_stand_beside_each_other(visit) -> None:
    one = random_circuit(GPT2, 100, nodes=30, seed=1)
    masks = [one.mask.copy() for _ in range(3)]
    on = np.flatnonzero(one.mask)
    masks[1][on[::7]] = False
    masks[2][on[::5]] = False
    three = [
        random_circuit(GPT2, 100, nodes=30, seed=1, mask=mask, order=(), behaviour=f"b{i}")
        for i, mask in enumerate(masks)
    ]
    live = [GPT2.prune(c.mask) for c in three]
    v = visit(*map(circuit_data, three))
    assert v.locator(".pane").count() == 3 and v.locator(".letter").all_inner_texts() == ["A", "B", "C"]
    common = int((live[0] & live[1] & live[2]).sum())
    only = [int((mine & ~np.any([o for o in live if o is not mine], axis=0)).sum()) for mine in live]
    assert v.locator(".shared").all_inner_texts() == [
        f"{common} edges shared by all, {n} only here" for n in only
    ]
    v.locator("[data-name=logits]").first.click()
    assert "in all circuits" in v.locator("#component").inner_text()
    assert v.locator("[data-name=logits][aria-pressed=true]").count() == 3
    marks = v.locator("#component .marks").first.locator("i").count()
    assert marks == 3
    v.click("#tab-about")
    pair = int((live[0] & live[1]).sum()), int((live[0] | live[1]).sum())
    assert re.search(rf"A and B\s+{pair[0]} of {pair[1]} ", v.locator("#about").inner_text())


# ---- phone width ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how_many", [1, 2, 3])
def test_it_can_be_used_at_400_pixels(chromium, tmp_path, toy: dict, how_many: int) -> None:
    data = (
        [toy]
        if how_many == 1
        else [
            circuit_data(random_circuit(SMOLLM2, 250, removed=50, nodes=60, seed=s)) for s in range(how_many)
        ]
    )
    path = tmp_path / "page.html"
    path.write_text(page(data), encoding="utf-8")
    window = chromium.new_page(viewport={"width": 400, "height": 860}, has_touch=True)
    window.goto(path.as_uri())
    window.wait_for_selector(".node[aria-label]")
    assert window.evaluate("document.documentElement.scrollWidth") <= 400
    assert all(
        box["width"] > 390
        for box in window.evaluate(
            "[...document.querySelectorAll('.pane')].map(e => e.getBoundingClientRect().toJSON())"
        )
    )
    assert window.is_visible(".legend") and "query" in window.locator(".legend").inner_text()
    for box in window.evaluate(
        "[...document.querySelectorAll('button:not([hidden]), input, .pane, aside')].map(e => e.getBoundingClientRect().toJSON())"
    ):
        assert box["width"] == 0 or (box["left"] >= -1 and box["right"] <= 401)
    window.locator(".node.on:not(.end)").first.tap()
    assert window.locator("#component h2").inner_text() != "Components"
    assert window.evaluate("document.documentElement.scrollWidth") <= 400
    window.close()


def test_a_phone_shows_the_whole_picture_in_one_page(visit) -> None:
    """Nothing scrolls inside what scrolls, from the logits down to the input; and search goes to what it finds."""
    v = visit(circuit_data(random_circuit(SMOLLM2, 250, removed=50, nodes=60)))
    v.set_viewport_size({"width": 400, "height": 850})
    v.wait_for_timeout(200)
    assert v.locator(".stage").evaluate("s => s.scrollHeight <= s.clientHeight + 1")
    stage, box = v.locator(".stage").bounding_box(), v.locator("[data-name='input']").bounding_box()
    assert box["y"] + box["height"] <= stage["y"] + stage["height"]
    v.set_viewport_size({"width": 400, "height": 400})
    v.fill("#search", "input")
    v.keyboard.press("Enter")
    assert v.evaluate("document.querySelector('[data-name=input]').getBoundingClientRect().bottom") <= 400


def test_many_edges_in_little_room_are_lighter(visit) -> None:
    """The mean opacity of the picture's ink falls with more edges and, at equal edges, does not rise on a phone."""
    ink = """c => {
        const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        let sum = 0, n = 0;
        for (let i = 3; i < d.length; i += 4) if (d[i]) { sum += d[i]; n++; }
        return sum / n;
    }"""
    seen = {}
    for edges, nodes in ((100, 30), (2500, 200)):
        v = visit(circuit_data(random_circuit(SMOLLM2, edges, nodes=nodes)))
        for width in (1440, 400):
            v.set_viewport_size({"width": width, "height": 850})
            v.wait_for_timeout(300)
            seen[edges, width] = v.locator("canvas.base").evaluate(ink)
    assert seen[2500, 1440] < 0.8 * seen[100, 1440] and seen[2500, 400] < 1.15 * seen[2500, 1440]


def test_tools_stand_beside_the_title_however_narrow(visit) -> None:
    data = circuit_data(random_circuit(SMOLLM2, 250, removed=50, nodes=60))
    v = visit(data, data)
    for width in (1440, 400):
        v.set_viewport_size({"width": width, "height": 900})
        title, tools, lead = (
            v.locator(f".pane {what}").first.bounding_box() for what in ("h2", ".tools", ".told")
        )
        assert abs(title["y"] - tools["y"]) < 12 and tools["y"] + tools["height"] <= lead["y"] + 8


# ---- legible --------------------------------------------------------------------------------------------------------


def test_edges_along_the_spine_are_arcs_inside_each_other(visit) -> None:
    """Edges from MLP to MLP end in the same column: a longer edge's arc lies outside a shorter one's."""
    names = [("m2", "m5"), ("m2", "m9"), ("m2", "m14"), ("m2", "m20"), ("m2", "m27")]
    mask = np.zeros(SMOLLM2.n_edges, dtype=bool)
    for source, target in names:
        mask[[SMOLLM2.edge_of_name(e) for e in (f"{source}->{target}", f"{target}->logits", "input->m2")]] = (
            True
        )
    v = visit(circuit_data(random_circuit(SMOLLM2, 30, mask=mask, order=())))
    with v.page.expect_download() as download:
        v.locator("text=SVG").first.click()
    tree = ElementTree.fromstring(download.value.path().read_bytes())
    curve = {
        path.get("data-edge"): [float(x) for x in re.findall(r"-?[\d.]+", path.get("d"))]
        for path in tree.iter(f"{SVG}path")
    }
    bows = [abs(curve[f"{a}->{b}"][2] - curve[f"{a}->{b}"][0]) for a, b in names]
    assert bows == sorted(bows) and all(b - a > 8 for a, b in pairwise(bows)), bows


def test_thirty_layers_fit_on_a_laptop(visit) -> None:
    v = visit(circuit_data(random_circuit(SMOLLM2, 250, nodes=60)))
    v.set_viewport_size({"width": 1440, "height": 850})
    v.wait_for_timeout(200)
    stage = v.locator(".stage").bounding_box()
    for name in ("logits", "m0", "input"):
        box = v.locator(f"[data-name='{name}']").bounding_box()
        assert stage["y"] <= box["y"] and box["y"] + box["height"] <= stage["y"] + stage["height"]
