"""`mechrl view` and `mechrl export`: circuits in the browser, as one file, or as other tools read them."""

from __future__ import annotations

import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mechrl.cli import options
from mechrl.cli.terminal import Live, answer, answer_json, working
from mechrl.errors import MechRLError
from mechrl.files import check_file
from mechrl.files.reading import read_json
from mechrl.messages import say

if TYPE_CHECKING:
    from mechrl.behaviours.base import Behaviour
    from mechrl.circuit import Circuit
    from mechrl.models.base import Model

MOST_CIRCUITS = 6

Circuits = Annotated[
    list[Path],
    typer.Argument(
        metavar="CIRCUIT...", help="One circuit.json, or up to six to compare.", show_default=False
    ),
]
NoModel = Annotated[
    bool,
    typer.Option(
        "--no-model",
        rich_help_panel=options.EXPERT,
        help="Show the file alone: no f along the order, answers or attention.",
    ),
]


def view_command(
    circuits: Circuits,
    model: options.CircuitModel = None,
    behaviour: options.CircuitBehaviour = None,
    no_model: NoModel = False,
    device: options.Device = "auto",
    browser: Annotated[
        bool, typer.Option(rich_help_panel=options.BASICS, help="Open a browser, or only print the address.")
    ] = True,
) -> None:
    """Look at a circuit in the browser, or at several side by side. Ctrl-C ends it.

    Nothing leaves this machine: the page is served on loopback and asks for nothing else.

    A model that only the circuit names is used if it is on this machine, and never fetched.

    Examples:

    - `mechrl view runs/ioi/circuit.json`
    - `mechrl view a/circuit.json b/circuit.json --no-browser`
    """
    from mechrl.viewer.server import PageServer

    document = _document(circuits, model, behaviour, no_model, device)
    with PageServer(document) as server:
        print(server.url, flush=True)
        if browser:
            webbrowser.open(server.url)
        say("Ctrl-C ends the viewer")
        with suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.1)
    say("")


def export_command(
    circuits: Circuits,
    html: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=options.BASICS,
            help="Write the viewer's page: one file that works offline.",
            show_default=False,
        ),
    ] = None,
    eap_ig: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=options.BASICS,
            help="Write the JSON that EAP-IG and MIB read.",
            show_default=False,
        ),
    ] = None,
    model: options.CircuitModel = None,
    behaviour: options.CircuitBehaviour = None,
    no_model: NoModel = False,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Write a circuit for others: as one HTML file, or as the JSON of EAP-IG and MIB.

    A model that only the circuit names is used if it is on this machine, and never fetched.

    Examples:

    - `mechrl export runs/ioi/circuit.json --html ioi.html`
    - `mechrl export runs/ioi/circuit.json --eap-ig ioi.json`
    - `mechrl export a/circuit.json b/circuit.json --html both.html`
    """
    from mechrl.circuit import Circuit
    from mechrl.files import write_atomically

    if html is None and eap_ig is None:
        raise MechRLError("nothing to write: give --html OUT.html or --eap-ig OUT.json")
    if eap_ig is not None and len(circuits) != 1:
        raise MechRLError(f"--eap-ig writes one circuit, not {len(circuits)}; export them one by one")
    written = {name: out for name, out in (("eap_ig", eap_ig), ("html", html)) if out is not None}
    for out in written.values():
        check_file(out)
    document = "" if html is None else _document(circuits, model, behaviour, no_model, device)
    if eap_ig is not None:
        Circuit.load(circuits[0]).to_eap_ig(eap_ig)
    if html is not None:
        write_atomically(html, document.encode())
    if as_json:
        answer_json({name: str(out) for name, out in written.items()})
    else:
        for out in written.values():
            answer(out)


def _document(
    paths: list[Path], model: str | None, behaviour: str | None, no_model: bool, device: str
) -> str:
    if len(paths) > MOST_CIRCUITS:
        raise MechRLError(f"up to {MOST_CIRCUITS} circuits can be shown, not {len(paths)}")
    if no_model and model is not None:
        raise MechRLError("--model and --no-model contradict each other; leave one out")
    from mechrl.circuit import FILE, Circuit
    from mechrl.viewer.data import circuit_data
    from mechrl.viewer.page import page

    circuits = [Circuit.load(path) for path in paths]
    paths = [path / FILE if path.is_dir() else path for path in paths]
    notes = [read_notes(path, circuit) for path, circuit in zip(paths, circuits, strict=True)]
    behaviours = _behaviours(circuits, behaviour)
    models: list[Model | str] = (
        ["--no-model was given"] * len(circuits) if no_model else _models(circuits, model, device)
    )
    shown = []
    for path, circuit, told, chosen, runs in zip(paths, circuits, notes, behaviours, models, strict=True):
        why = next((problem for problem in (chosen, runs) if isinstance(problem, str)), "")
        data = None
        if not isinstance(chosen, str) and not isinstance(runs, str):
            try:
                with Live(str(path)) as live:
                    data = circuit_data(circuit, runs, chosen, report=partial(_stops, live))
            except MechRLError as exc:
                if model is not None:
                    raise
                why = str(exc)
        if data is None:
            why += ": no f along the removal order, no answers, no attention patterns"
            say(f"{path}: {why}")
            data = circuit_data(circuit, None, None if isinstance(chosen, str) else chosen, why)
        shown.append(data | {"file": path.name, "notes_of_reader": told})
    return page(shown)


def notes_file(circuit: Path) -> Path:
    """Where the reader's pins, names and groups are kept: beside the circuit."""
    return circuit.with_name(f"{circuit.name.removesuffix('.gz').removesuffix('.json')}.notes.json")


def read_notes(path: Path, circuit: Circuit) -> dict[str, Any]:
    """The notes beside a circuit, if there are any: `pins`, a list of components; `names` and `groups`, a text for each."""
    file = notes_file(path)
    try:
        told = read_json(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise MechRLError(
            f"{file}: cannot be read as JSON; save the notes again from the page, or remove the file"
        ) from exc
    there = {*circuit.graph.source_names, "logits"}
    texts = {key: told.get(key, {}) for key in ("names", "groups")} if isinstance(told, dict) else {}
    pins = told.get("pins", []) if isinstance(told, dict) else None
    if not isinstance(pins, list) or not all(
        isinstance(t, dict) and all(isinstance(v, str) for v in t.values()) for t in texts.values()
    ):
        raise MechRLError(
            f"{file}: not the notes of a circuit; save them again from the page, or remove the file"
        )
    known = {
        key: {name: text for name, text in value.items() if name in there} for key, value in texts.items()
    }
    return {"pins": [name for name in pins if isinstance(name, str) and name in there]} | known


def _stops(live: Live, done: int, total: int) -> None:
    live.show(f"f at {done} of {total} stops of the removal order", done, total)


def _behaviours(circuits: list[Circuit], given: str | None) -> list[Behaviour | str]:
    """The behaviour of every circuit, or why there is none. One that the user gives must be that of a circuit."""
    from mechrl.behaviours import get_behaviour

    mine = None if given is None else get_behaviour(given).name
    if mine is not None and mine not in [circuit.behaviour for circuit in circuits]:
        circuits[0].its_behaviour(given)

    def of(circuit: Circuit) -> Behaviour | str:
        wanted = given if circuit.behaviour == mine else None
        try:
            return circuit.its_behaviour(wanted)
        except MechRLError as exc:
            if wanted is not None:
                raise
            return str(exc)

    return [of(circuit) for circuit in circuits]


def _models(circuits: list[Circuit], given: str | None, device: str) -> list[Model | str]:
    """The model of every circuit, or why there is none.

    One that the user gives must be that of a circuit. One that only a file names is used if it is here, and never fetched.
    """
    from mechrl.models import load_model, smollm2

    def fits(circuit: Circuit, model: Model) -> bool:
        return (circuit.graph, circuit.checksum) == (model.graph, model.checksum)

    loaded: dict[str, Model] = {}
    if given is not None:
        with working(f"loading {given}"):
            mine = load_model(given, device=device)
        if not any(fits(circuit, mine) for circuit in circuits):
            circuits[0].check_model(mine)
        loaded = {str(circuit.model): mine for circuit in circuits if fits(circuit, mine)}

    def exists(name: str) -> bool:
        with suppress(OSError):  # a name that is too long
            return Path(name).exists()
        return False

    def find(circuit: Circuit) -> Model | str:
        name = str(circuit.model)
        here = name in loaded or name == "toy" or exists(name) or (name == "smollm2" and smollm2.cached())
        try:
            if name not in loaded:
                if name == "smollm2" and not here:
                    raise MechRLError("would be fetched")
                with working(f"loading {name}"), _offline():
                    loaded[name] = load_model(name, device=device, revision=circuit.revision)
            circuit.check_model(loaded[name])
        except MechRLError as exc:
            return (
                str(exc)
                if here
                else f"{name} is not on this machine (--model {name} fetches it, --model PATH says where it is)"
            )
        return loaded[name]

    return [find(circuit) for circuit in circuits]


@contextmanager
def _offline() -> Iterator[None]:
    """The hub's library asks its server nothing meanwhile: what is in its cache loads, what is not does not."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
