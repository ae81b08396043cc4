"""The viewer, operated as users do: pointer, keyboard, slider, search."""

from __future__ import annotations

import base64
import threading

import numpy as np
import pytest

from mechrl.behaviours import get_behaviour
from mechrl.circuit import Circuit
from mechrl.graph import Graph
from mechrl.models import load_model
from mechrl.viewer import circuit_html, page
from mechrl.viewer.data import Replay, circuit_data
from mechrl.viewer.server import PageServer
from tests.viewer.circuits import GPT2, SMOLLM2, random_circuit

IOI = get_behaviour("ioi")


@pytest.fixture(scope="module")
def gpt2() -> dict:
    """A circuit of GPT-2's shape, with a9.h9 in it and known roles."""
    for seed in range(1000):
        circuit = random_circuit(GPT2, 120, removed=300, nodes=40, seed=seed, model="gpt2")
        if circuit.mask[GPT2.edge_of_name("a9.h9->logits")]:
            return circuit_data(circuit, None, IOI)
    raise AssertionError


@pytest.fixture(scope="module")
def toy() -> dict:
    """A circuit with its model: f, answers, attention."""
    model = load_model("toy")
    return circuit_data(
        random_circuit(model.graph, 60, removed=100, model="toy", checksum=model.checksum, pairs=4, nodes=16),
        model,
        IOI,
    )


def drawn(visit) -> str:
    """The picture of the edges."""
    return visit.evaluate("document.querySelector('canvas.base').toDataURL()")


def shown(visit) -> set[str]:
    return set(visit.evaluate("[...document.querySelectorAll('.node.on')].map(n => n.dataset.name)"))


def names_at(data: dict, stop: int) -> set[str]:
    """The components of the circuit at a step of the replay, from the data."""
    edges = [i for i, lasts in enumerate(data["edges"]["stops"]) if lasts > stop]
    return {data["sources"][data["edges"]["source"][i]] for i in edges} | {"logits"}


def slide(visit, stop: int) -> None:
    move = "(range, stop) => { range.value = stop; range.dispatchEvent(new Event('input')); }"
    visit.locator("input[type=range]").first.evaluate(move, stop)


def test_it_shows_the_circuit(visit, gpt2: dict) -> None:
    v = visit(gpt2)
    assert shown(v) == names_at(gpt2, len(gpt2["stops"]["size"]) - 1)
    assert v.locator(".readout").inner_text().split("\n")[:2] == ["f 0.912", "120 edges"]
    place = {
        name: v.locator(f"[data-name='{name}']").bounding_box()
        for name in ("input", "a0.h3", "m0", "a9.h9", "logits")
    }
    heights = [place[name]["y"] for name in place]
    assert heights == sorted(heights, reverse=True)  # from the input at the bottom to the logits at the top
    ink = "c => { const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; return d.some(x => x > 0) }"
    assert v.locator("canvas.base").evaluate(ink)


def test_a_click_selects(visit, gpt2: dict) -> None:
    v = visit(gpt2)
    v.click("[data-name='a9.h9']")
    assert v.locator("#component h2").inner_text() == "a9.h9"
    assert (
        "name mover" in v.locator("#component").inner_text()
        and "Wang" in v.locator("#component").inner_text()
    )
    assert v.get_attribute("[data-name='a9.h9']", "aria-pressed") == "true"
    ids = [i for i, name in enumerate(gpt2["edges"]["source"]) if gpt2["sources"][name] == "a9.h9"]
    last = len(gpt2["stops"]["size"]) - 1
    expected = {
        gpt2["receivers"][gpt2["edges"]["receiver"][i]] for i in ids if gpt2["edges"]["stops"][i] > last
    }
    listed = v.evaluate(
        "[...document.querySelectorAll('#component h3')].find(h => h.textContent === 'Is read by').nextSibling.innerText"
    )
    assert expected and expected <= set(listed.split())
    v.locator("#component .list button").first.click()  # an edge leads to its other end
    assert v.locator("#component h2").inner_text() != "a9.h9"
    v.keyboard.press("Escape")
    assert v.locator("#component h2").inner_text() == "Components"


def test_the_pointer_shows_a_components_edges(visit, gpt2: dict) -> None:
    v = visit(gpt2)
    v.hover("[data-name='a9.h9']")
    assert v.locator("#tip").inner_text().startswith("a9.h9\nname mover\n")
    near = set(v.evaluate("[...document.querySelectorAll('.node.near')].map(n => n.dataset.name)"))
    assert {"a9.h9", "logits"} <= near < shown(v) and v.locator(".world.quiet").count() == 1
    v.mouse.move(5, 5)
    assert v.locator(".world.quiet").count() == 0 and not v.is_visible("#tip")


def test_the_slider_replays_the_removal(visit, toy: dict) -> None:
    v = visit(toy)
    end = drawn(v)
    for stop in (0, len(toy["stops"]["size"]) // 2):
        slide(v, stop)
        v.wait_for_timeout(300)  # all edges are drawn once the slider stops moving
        assert drawn(v) != end
        assert shown(v) == names_at(toy, stop)
        f, edges = v.locator(".readout").inner_text().split("\n")[:2]
        assert f == f"f {toy['stops']['f'][stop]:.3f}" and edges == f"{toy['stops']['live'][stop]} edges"
    v.focus("input[type=range]")
    v.keyboard.press("End")
    v.wait_for_timeout(300)
    assert drawn(v) == end
    v.click("[aria-label='Replay the removal order']")
    v.wait_for_timeout(400)
    v.click("[aria-label='Pause']")
    assert 0 < int(v.input_value("input[type=range]")) < len(toy["stops"]["size"]) - 1


@pytest.mark.parametrize(
    ("typed", "first"),
    [("a9.h9", "a9.h9"), ("A9.H", "a9.h"), ("9.9", "a9.h9"), ("m1", "m1"), ("logi", "logits")],
)
def test_search_finds_components(visit, gpt2: dict, typed: str, first: str) -> None:
    v = visit(gpt2)
    v.keyboard.press("/")
    v.keyboard.type(typed)
    results = v.locator("#results [role=option] .name").all_inner_texts()
    assert results[0].startswith(first) and all(name.startswith(first) for name in results)
    v.keyboard.press("Enter")
    assert v.locator("#component h2").inner_text() == results[0] and not v.is_visible("#results")


def test_search_for_what_is_not_there_and_for_roles(visit, gpt2: dict) -> None:
    v = visit(gpt2)
    for typed in ("z9", "h9", "a9.h99"):
        v.fill("#search", typed)
        assert "No component" in v.locator("#results").inner_text()
    v.fill("#search", "inhib")
    assert sorted(v.locator("#results [role=option] .name").all_inner_texts()) == [
        "a7.h3",
        "a7.h9",
        "a8.h10",
        "a8.h6",
    ]


def test_two_circuits_compare(visit) -> None:
    one = random_circuit(GPT2, 100, removed=50, nodes=30, seed=1)
    other = one.mask.copy()
    other[np.flatnonzero(one.mask)[::5]] = False
    other[list(one.order[:30])] = True
    two = random_circuit(GPT2, 100, nodes=30, seed=1, mask=other, order=(), behaviour="docstring")
    live = [GPT2.prune(c.mask) for c in (one, two)]
    both = int((live[0] & live[1]).sum())
    assert 10 < both < min(int(x.sum()) for x in live) - 10
    v = visit(circuit_data(one), circuit_data(two))
    lines = v.locator(".shared").all_inner_texts()
    assert lines == [f"{both} edges shared, {int(x.sum()) - both} only here" for x in live]
    pictures = {}
    for key in ("shared", "own", "all"):
        v.click(f"#filter [data-key={key}]")
        pictures[key] = v.evaluate("[...document.querySelectorAll('canvas.base')].map(c => c.toDataURL())")
    assert pictures["shared"][0] != pictures["own"][0] != pictures["all"][0]
    v.locator("[data-name=logits]").first.click()
    assert v.locator("[data-name=logits][aria-pressed=true]").count() == 2  # selected in both
    assert v.locator("#component .marks").count() == int(
        (live[0] | live[1])[GPT2.edge_receiver == GPT2.logits].sum()
    )
    v.click("#tab-about")
    assert f"{both} of {int((live[0] | live[1]).sum())}" in v.locator("#about").inner_text()
    slide(v, 0)
    assert v.locator(".shared").first.inner_text() != lines[0]


def test_circuits_of_different_models_stand_side_by_side(visit, toy: dict, gpt2: dict) -> None:
    v = visit(toy, gpt2)
    assert v.locator(".pane").count() == 2 and not v.is_visible("#filter")
    v.click("#tab-about")
    assert "cannot be compared" in v.locator("#about").inner_text()
    v.locator("[data-name='a9.h9']").click()
    assert "in B only" in v.locator("#component").inner_text()


def test_three_thousand_edges_respond_within_100_ms(visit) -> None:
    circuit = random_circuit(SMOLLM2, 3000, nodes=150, model="smollm2")
    assert circuit.size == 3000
    v = visit(circuit_data(circuit))
    times = v.evaluate("""async () => {
      const painted = () => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
      const times = [];
      for (const node of [...document.querySelectorAll('.node.on')].slice(0, 15)) {
        await painted();
        const begin = performance.now();
        node.dispatchEvent(new PointerEvent('pointerenter'));
        await painted();
        times.push(performance.now() - begin);
        node.dispatchEvent(new PointerEvent('pointerleave'));
      }
      return times;
    }""")
    assert np.median(times) < 100, times  # from the pointer event to the picture, on a busy machine


@pytest.mark.parametrize(
    "text",
    [
        "<script>window.broken = 1</script>",
        "<img src=x onerror='window.broken = 1'>",
        "</script><script>window.broken = 1</script>",
    ],
)
def test_markup_in_names_is_text(visit, toy: dict, text: str) -> None:
    changes = dict(behaviour=text, model=text, method=text, settings={text: text}, version=text)
    nasty = circuit_data(random_circuit(GPT2, 60, removed=9, nodes=12, **changes), missing=text)
    nasty["known"] = {"a9.h9": (text, text, text)}
    nasty["pairs"] = [
        pair
        | {
            "clean": [text] * len(pair["clean"]),
            "answers": [text],
            "top": pair["top"] | {"clean": [(text, 1.0)]},
        }
        for pair in toy["pairs"]
    ]
    nasty["pairs"] = [p | {"top": p["top"] | {"circuit": [p["top"]["clean"]] * 100}} for p in nasty["pairs"]]
    v = visit(nasty)
    for tab in ("prompts", "about", "component"):
        v.click(f"#tab-{tab}")
        assert tab == "component" or text in v.locator(f"#{tab}").inner_text()
    v.click("[data-name='a9.h9']")
    v.hover("[data-name='a9.h9']")
    v.fill("#search", text[:10])
    assert text in v.locator("#component").inner_text() and text in v.locator(".pane h2").inner_text()
    assert v.evaluate("window.broken") is None
    assert v.locator("script").count() == 2 and v.locator("img").count() == 0


def test_the_policy_stops_what_would_get_through(visit, toy: dict) -> None:
    v = visit(toy)
    reached = v.evaluate("""() => {
      const script = document.createElement('script');
      script.textContent = 'window.broken = 1';
      document.body.append(script);
      return fetch('https://example.org/').then(() => 'reached', () => 'refused');
    }""")
    assert reached == "refused" and v.evaluate("window.broken") is None
    assert len(v.errors) >= 2 and all("Content Security Policy" in e for e in v.errors if "Failed" not in e)
    v.errors.clear()


def test_prompts_and_answers_follow_the_slider(visit, toy: dict) -> None:
    v = visit(toy)
    v.click("#tab-prompts")
    v.click("[aria-label=Pair] [data-key='1']")
    pair = toy["pairs"][1]
    assert "".join(pair["clean"][pair["opening"] :]) in v.locator("#prompts").inner_text().replace("\n", "")
    for stop in (0, len(toy["stops"]["size"]) - 1):
        slide(v, stop)
        tables = v.locator("#prompts .answers").all()
        tokens = [cell.strip("·") for cell in tables[2].locator("td:first-child").all_inner_texts()]
        assert tokens == [token for token, _ in pair["top"]["circuit"][stop]]
    assert v.locator("#prompts .answers").first.locator(".right").count() == 1


def test_attention_of_a_head_on_a_prompt(visit, toy: dict) -> None:
    v = visit(toy)
    v.click(f"[data-name='{toy['attention']['heads'][0]}']")
    pictures = set()
    for run in ("clean", "corrupt", "circuit"):
        v.click(f"[aria-label=Run] [data-key={run}]")
        assert v.evaluate("document.activeElement.dataset.key") == run  # the focus does not move
        assert v.locator(".attention p").inner_text().startswith("The last token looks at")
        pictures.add(v.locator(".attention canvas").evaluate("c => c.toDataURL()"))
    assert len(pictures) > 1
    for run in ("clean", "circuit"):
        v.click(f"[aria-label=Run] [data-key={run}]")
        check_attention_under_the_pointer(v, toy, 0, run)
    v.click("[aria-label=Prompt] [data-key='2']")
    assert v.get_attribute("[aria-label=Prompt] [data-key='2']", "aria-checked") == "true"


def check_attention_under_the_pointer(v, toy: dict, pair: int, run: str) -> None:
    """The number shown for the tokens is that of the data, for every third cell of the lower triangle."""
    tokens = toy["pairs"][pair]["corrupt" if run == "corrupt" else "clean"]
    n, stored = len(tokens), base64.b64decode(toy["attention"]["pairs"][pair][run])
    v.locator(".attention canvas").scroll_into_view_if_needed()
    box = v.locator(".attention canvas").bounding_box()
    cell = float(v.get_attribute(".attention canvas", "data-cell"))
    left = box["width"] - cell * n  # the width of the labels
    cells = [(q, k) for q in range(n) for k in range(q + 1)][::3]
    assert len({stored[q * (q + 1) // 2 + k] for q, k in cells}) > 3
    for q, k in cells:
        v.mouse.move(box["x"] + left + (k + 0.5) * cell, box["y"] + left + (q + 0.5) * cell)
        expected = stored[q * (q + 1) // 2 + k] / 255
        said = f"“{tokens[q].strip()}” looks at “{tokens[k].strip()}”: "
        shown = v.locator(".attention p").inner_text()
        assert shown.startswith(said) and abs(float(shown[len(said) :]) - expected) <= 0.005 + 1e-9


def test_without_a_model_it_says_why(visit) -> None:
    v = visit(
        circuit_data(random_circuit(GPT2, 60, removed=9, nodes=12), missing="gpt2 is not on this machine")
    )
    assert "gpt2 is not on this machine" in v.locator(".pane header").inner_text()
    assert v.locator(".readout b").inner_text() == "f 0.912"  # the file's own
    slide(v, 0)
    assert "f was not measured" in v.locator(".readout").inner_text()
    v.click("#tab-prompts")
    assert "gpt2 is not on this machine" in v.locator("#prompts").inner_text()


def test_the_keyboard_reaches_and_selects_a_component(visit, gpt2: dict) -> None:
    v = visit(gpt2)
    for _ in range(12):
        v.keyboard.press("Tab")
        if v.evaluate("document.activeElement.classList.contains('node')"):
            break
    focused = "document.activeElement.dataset.name"
    assert v.evaluate(focused) == "logits"
    assert v.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    v.keyboard.press("ArrowDown")
    below = v.evaluate(focused)
    assert below != "logits" and below in shown(v)
    assert " in, " in v.evaluate("document.activeElement.getAttribute('aria-label')")
    v.keyboard.press("Enter")
    assert v.locator("#component h2").inner_text() == below
    v.keyboard.press("ArrowUp")
    seen = {v.evaluate(focused)}
    for _ in range(20):
        v.keyboard.press("ArrowDown")
        seen.add(v.evaluate(focused))
    assert "input" in seen and len(seen) > 5


def test_every_control_has_a_name(visit, toy: dict) -> None:
    v = visit(toy)
    v.click(f"[data-name='{toy['attention']['heads'][0]}']")
    has_name = "e => Boolean(e.getAttribute('aria-label') || e.textContent.trim())"
    assert v.evaluate(f"[...document.querySelectorAll('button, input, [role=img]')].every({has_name})")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(visit, toy: dict, scheme: str) -> None:
    v = visit(toy, scheme=scheme)

    def darkness() -> list[bool]:
        sums = "c => c.match(/\\d+(\\.\\d+)?/g).slice(0, 3).map(Number).reduce((a, b) => a + b)"
        colours = [
            f"({sums})(getComputedStyle(document.querySelector('.stage')).{what})"
            for what in ("backgroundColor", "color")
        ]
        background, text = (v.evaluate(colour) for colour in colours)
        return background < text

    assert darkness() == (scheme == "dark")  # follows the system's colour scheme
    before = drawn(v)
    v.click("#theme")
    assert darkness() == (scheme == "light")
    assert drawn(v) != before  # the edges too


@pytest.mark.parametrize(
    "circuit",
    [
        random_circuit(Graph(1, 1, 1), 4, removed=1, nodes=2),
        random_circuit(Graph(6, 8, 1), 60, removed=60, nodes=20, scored=False),  # one k and v for all heads
        random_circuit(Graph(48, 25, 25), 300, removed=50, nodes=100),  # GPT-2 XL
        random_circuit(GPT2, 0, nodes=0, order=(5, 6, 7)),  # nothing is left
        random_circuit(GPT2, 30, mask=np.ones(GPT2.n_edges, dtype=bool)),  # nothing was removed
    ],
    ids=["one-head", "multi-query", "large", "empty", "everything"],
)
def test_any_shape_is_laid_out_within_the_picture(visit, circuit: Circuit) -> None:
    v = visit(circuit_data(circuit))
    assert shown(v) == (
        names_at(circuit_data(circuit), Replay(circuit).live.shape[0] - 1) if len(circuit) else set()
    )
    world = v.locator(".world").bounding_box()
    for box in v.evaluate(
        "[...document.querySelectorAll('.node')].map(n => n.getBoundingClientRect().toJSON())"
    ):
        assert world["x"] <= box["left"] and box["right"] <= world["x"] + world["width"]
        assert world["y"] <= box["top"] and box["bottom"] <= world["y"] + world["height"]
    boxes = v.evaluate(
        "[...document.querySelectorAll('.node.on')].map(n => n.getBoundingClientRect().toJSON())"
    )
    x, y, w, h = (np.array([box[side] for box in boxes]) for side in ("left", "top", "width", "height"))
    apart = (abs(x[:, None] - x) >= np.minimum(w[:, None], w)) | (
        abs(y[:, None] - y) >= np.minimum(h[:, None], h)
    )
    assert (apart | np.eye(len(boxes), dtype=bool)).all()  # no label covers another


def test_from_the_server(visit, toy: dict) -> None:
    with PageServer(page([toy])) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            v = visit(url=server.url)
            assert shown(v) == names_at(toy, len(toy["stops"]["size"]) - 1)
            # a plain ../ never leaves a browser; tests/viewer/test_server.py sends it
            for path in ("..%2f", "..%2f..%2fetc%2fpasswd", "page.js"):
                assert v.context.request.get(server.url + path).status == 404
        finally:
            server.shutdown()
            thread.join()


def test_in_a_notebooks_frame(chromium, tmp_path) -> None:
    (tmp_path / "notebook.html").write_text(
        circuit_html(random_circuit(GPT2, 60, removed=9, nodes=12)), encoding="utf-8"
    )
    window = chromium.new_page()
    window.goto((tmp_path / "notebook.html").as_uri())
    frame = window.frame_locator("iframe")
    frame.locator("[data-name=logits]").click()
    assert frame.locator("#component h2").inner_text() == "logits"
    window.close()


def signed(x: float) -> str:
    return f"{x:+.2f}".replace("-", "−") if abs(x) >= 0.005 else "0.00"


def test_it_says_what_a_component_writes_to_the_logits(visit, toy: dict) -> None:
    """Select every writer, on two prompts: its push and the tokens it raises are those of the data."""
    v = visit(toy)
    for choice in ("0", "1"):
        written = toy["pairs"][int(choice)]["writes"]
        for index in written["circuit"]:
            v.locator(f"[data-name='{toy['sources'][index]}']").click()
            v.locator(f"[aria-label='Prompt of the writes'] [data-key='{choice}']").click()
            push, model = (signed(written[run][index]) for run in ("circuit", "model"))
            tokens = [t.replace("\n", "⏎").replace(" ", "·", 1) for t in written["raises"].get(index, [])]
            raised = ", ".join(f"“{t}”" for t in tokens)
            said = v.locator(".writes").inner_text()
            assert f"Pushes the answer {push} against the foil; in the whole model {model}." in said
            assert (f"Raises most: {raised}." in said) if raised else ("Raises" not in said)
            v.keyboard.press("Escape")
    silent = next(
        n for i, n in enumerate(toy["sources"]) if i and i not in written["circuit"] and n.startswith("m")
    )
    v.locator(f"[data-name='{silent}']").click()
    assert "no edge from it to the logits" in v.locator(".writes").inner_text()


def test_the_prompts_say_who_pushes_most(visit, toy: dict) -> None:
    v = visit(toy)
    v.click("#tab-prompts")
    v.locator("[aria-label='Pair'] [data-key='2']").click()
    written = toy["pairs"][2]["writes"]["circuit"]
    best = sorted(written, key=lambda i: -abs(written[i]))
    rows = [row.split("\n") for row in v.locator(".pushers li").all_inner_texts()]
    assert [row[-1] for row in rows] == [signed(written[i]) for i in best[: len(rows)]]
    name = toy["sources"][best[0]]
    v.locator(".pushers button").first.click()
    assert v.locator("#component h2").inner_text() == name
