"""MechRL: circuit discovery as a learned, exact and fast procedure.

    import mechrl

    model = mechrl.load_model("toy")
    behaviour = mechrl.behaviour("ioi")
    print(mechrl.judge(model, behaviour).exhibited)                # does the model do it at all?
    circuit = mechrl.discover(model, behaviour)                    # by a planner that has learned what edits do
    print(len(circuit), circuit.faithfulness, circuit.faithfulness_test)
    print(mechrl.validate(circuit, model, behaviour).necessity)    # is it real?
    mechrl.show(circuit, model, behaviour)                         # in a notebook; `circuit` alone shows itself there too
    mechrl.picture(circuit).save("circuit.svg")                    # a still picture

Nothing here imports torch before a function is called.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mechrl.behaviours import Behaviour
    from mechrl.behaviours import get_behaviour as behaviour
    from mechrl.circuit import Circuit
    from mechrl.errors import MechRLError
    from mechrl.gate import judge
    from mechrl.models import Model, load_model
    from mechrl.notebook import Show
    from mechrl.validity.checks import Validity

# Threads that wait for work must sleep, not spin: with another busy process on the machine, spinning made a run of many small
# operations 27 times slower. Only OpenMP's first start reads it, so it has to be said before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"
__all__ = [
    "Circuit",
    "MechRLError",
    "behaviour",
    "discover",
    "judge",
    "load_model",
    "picture",
    "show",
    "validate",
]

_ELSEWHERE = {
    "Circuit": ("mechrl.circuit", "Circuit"),
    "MechRLError": ("mechrl.errors", "MechRLError"),
    "behaviour": ("mechrl.behaviours", "get_behaviour"),
    "judge": ("mechrl.gate", "judge"),
    "load_model": ("mechrl.models", "load_model"),
}


def __getattr__(name: str) -> Any:
    if name not in _ELSEWHERE:
        raise AttributeError(f"module 'mechrl' has no attribute {name!r}")
    module, attribute = _ELSEWHERE[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def discover(
    model: Model,
    behaviour: Behaviour,
    method: str = "planner",
    *,
    planner: Path | str | None = None,
    policy: Path | str | None = None,
    force: bool = False,
    report: Callable[[str], None] | None = None,
    **settings: Any,
) -> Circuit:
    """The circuit of a behaviour: by the planner, by a search that starts from nothing, or by the paper's agent.

    method: `planner`; `paper`; or one of `mechrl search`: `top-n`, `greedy`, `acdc`, `edge-pruning`, `matryoshka`, `blockwise`.
    planner, policy: the folder of one, or its address on the hub (`hf:owner/name`). A planner comes with MechRL; the paper's agent's
    policy is what `mechrl train` writes.
    force: go on even if the model does not exhibit the behaviour.
    report: is given a line now and then, such as `print`. Without it a notebook shows a bar.
    settings: the fields of `mechrl.agents.planner.session.DiscoverSettings` (`tau`, `pairs`, `holds_on`, `seed`, …), for a search those of
    `mechrl.search.session.SearchSettings`, for the paper's agent `tau`, `rollouts` and `seed`, and `pairs` and `k`.
    """
    from mechrl import gate
    from mechrl.errors import MechRLError
    from mechrl.notebook import progress

    for name, given, agent in (("planner", planner, "planner"), ("policy", policy, "paper")):
        if given is not None and method != agent:
            raise MechRLError(f"{method} needs no {name}; leave one of them out")
    with progress(f"{behaviour.name} by {method}", report) as show:
        if not force:
            gate.check(model, behaviour)
        if method == "planner":
            return _by_planner(model, behaviour, planner, settings, show)
        if method == "paper":
            return _by_paper(model, behaviour, policy, settings, show)
        from mechrl.search.session import SearchSettings, search

        chosen = SearchSettings(method, **settings)  # type: ignore[arg-type]  # checked there, with a message for people
        return search(
            model,
            behaviour,
            chosen,
            lambda state: show(f"f {state.faithfulness:.3f}, {int(state.mask.sum()):,} edges"),
        )


def _by_planner(
    model: Model, behaviour: Behaviour, planner: Path | str | None, settings: dict[str, Any], show: Show
) -> Circuit:
    from mechrl.agents.planner.session import DiscoverSettings, discover
    from mechrl.agents.planner.shipped import load_planner, shipped

    network = load_planner(shipped(model.name) if planner is None else planner)
    chosen = DiscoverSettings(**settings)

    def tell(now: Any) -> None:
        line = f"{now.edges:,} edges, f {now.f:.3f}, {now.passes:,.0f} of at most {chosen.budget:,} passes"
        show(line, min(now.passes, chosen.budget), chosen.budget)

    circuit = discover(model, behaviour, network, chosen, tell)
    show(f"{len(circuit):,} edges, f {circuit.faithfulness:.3f}, {circuit.passes:,.0f} passes", 1, 1)
    return circuit


def _by_paper(
    model: Model, behaviour: Behaviour, policy: Path | str | None, settings: dict[str, Any], show: Show
) -> Circuit:
    from dataclasses import replace

    from mechrl import hub
    from mechrl.agents.paper.checkpoint import load_policy, trained_with
    from mechrl.agents.paper.deploy import Deployment, Watch, discover
    from mechrl.errors import MechRLError

    if policy is None:
        raise MechRLError(
            "the paper's agent needs a policy: train one with `mechrl train` and give its folder"
        )
    folder = hub.local(policy, *hub.AGENT)
    agent = load_policy(folder, model.device)
    task, env = trained_with(folder)
    task = replace(task, **{name: settings.pop(name) for name in ("pairs", "k") if name in settings})
    watch = Watch(lambda step, line: show(line))
    return discover(model, behaviour, agent, task, env, Deployment(**settings), watch)


def validate(
    circuit: Circuit,
    model: Model,
    behaviour: Behaviour,
    random: int = 20,
    *,
    seed: int = 0,
    report: Callable[[str], None] | None = None,
) -> Validity:
    """Is a circuit real? A verdict, necessity, specificity, recovery, generalisation, as `mechrl validate` prints them.

    random: circuits of each kind to compare it with.
    """
    from mechrl.notebook import progress
    from mechrl.validity.setting import Setting
    from mechrl.validity.verdict import validate_and_judge

    with progress(f"{circuit.behaviour}, is it real", report) as show:
        return validate_and_judge(circuit, Setting.of(model, behaviour, circuit), random, seed, show)


@dataclass(frozen=True)
class Shown:
    """The viewer's page, as a notebook shows it."""

    html: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return "the viewer's page; a notebook shows it, and so does `mechrl view`"


@dataclass(frozen=True)
class Picture:
    """A still picture of a circuit, which a notebook shows and GitHub shows of it."""

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return "a picture; a notebook shows it, `save` writes it"

    def save(self, path: Path | str) -> None:
        """As SVG."""
        from mechrl.files import write_atomically

        write_atomically(Path(path), self.svg.encode())


def picture(circuit: Circuit) -> Picture:
    """The circuit as a still picture, for a paper, or for a notebook to be read where no page runs, as on GitHub."""
    from mechrl.viewer.picture import svg

    return Picture(svg(circuit))


def show(
    circuit: Circuit, model: Model | None = None, behaviour: Behaviour | None = None, height: int = 640
) -> Shown:
    """The circuit in a notebook; with the model and the behaviour also f along the removal order, answers and attention."""
    from mechrl.viewer import circuit_html

    return Shown(circuit_html(circuit, model, behaviour, height))
