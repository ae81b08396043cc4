"""The page itself: template, style and script in one file, with the data as JSON. Nothing in it can ask the network for anything."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from mechrl.errors import MechRLError

if TYPE_CHECKING:
    from mechrl.behaviours.base import Behaviour
    from mechrl.circuit import Circuit
    from mechrl.models.base import Model


# The script is one function, in this order: what a file names at its top level, the later ones use.
SCRIPTS = "dom data state pane replay threshold pointing component writes attention prompts tabs search notes picture link chrome main"


def page(circuits: list[dict[str, Any]]) -> str:
    """One self-contained HTML document with one circuit or several, each as `mechrl.viewer.data.circuit_data` gives it."""
    template, style = _read("page.html"), _read("page.css")
    script = (
        '"use strict";\n(() => {\n' + "\n".join(_read(f"{name}.js") for name in SCRIPTS.split()) + "})();\n"
    )
    try:
        data = json.dumps({"circuits": circuits}, allow_nan=False, separators=(",", ":"))
    except ValueError as exc:
        raise MechRLError("the circuit has a number that is none (NaN or infinite); search again") from exc
    title = " and ".join(circuit["name"] for circuit in circuits)
    parts = {
        "{{policy}}": policy(style, script),
        "{{title}}": escape(title),
        "{{style}}": style,
        # inside a script element only "<" can end the element or begin a comment; as JSON, < is the same character
        "{{data}}": data.replace("<", "\\u003c"),
        "{{script}}": script,
    }
    # in the order of the template: what has been filled in is never searched for marks
    for mark, text in parts.items():
        before, found, after = template.partition(mark)
        assert found, mark
        parts[mark] = before + text
        template = after
    return "".join(parts.values()) + template


def _read(name: str) -> str:
    return files("mechrl.viewer").joinpath("page", name).read_text(encoding="utf-8")


def policy(style: str, script: str) -> str:
    """A Content-Security-Policy under which this style and this script work, and nothing else: no connection, no other code."""

    def hashed(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; script-src {hashed(script)}; style-src {hashed(style)}; img-src data:; "
        "connect-src 'none'; base-uri 'none'; form-action 'none'"
    )


def circuit_html(
    circuit: Circuit, model: Model | None = None, behaviour: Behaviour | None = None, height: int = 640
) -> str:
    """The viewer as a notebook shows it: an isolated frame. With the model and the behaviour also f, answers and attention."""
    from mechrl.viewer.data import circuit_data

    missing = (
        ""
        if model and behaviour
        else "f along the order, answers and attention need the model: see `mechrl view`."
    )
    document = page([circuit_data(circuit, model, behaviour, missing)])
    return (
        f'<iframe srcdoc="{escape(document)}" sandbox="allow-scripts" title="Circuit" '
        f'style="width:100%;height:{int(height)}px;border:1px solid #8884;border-radius:6px"></iframe>'
    )
