"""What the cells of a comparison and of a reproduction do, in a worker process.

    gate      which behaviours the model exhibits
    curves    what attribution alone can do: ceilings, f against K, greedy circuits
    train     a policy, where none is given
    collect   one walk: records that a planner is fitted to
    circuit   one method on one behaviour: the circuit, its cost and, if asked, whether it is real and what it adds to the ranking

A circuit's seed picks its discovery pairs and everything else that is random, for searches and policies alike.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from mechrl import gate
from mechrl.agents.paper.adapt import trainer_of
from mechrl.agents.paper.checkpoint import load_policy
from mechrl.agents.paper.deploy import Deployment, Watch, deploy
from mechrl.agents.paper.env import EnvConfig, make_task
from mechrl.agents.paper.log import METRICS
from mechrl.agents.paper.policy import Policy
from mechrl.agents.paper.ppo import PPOConfig, Trainer
from mechrl.agents.paper.tasks import TaskSettings, training_tasks
from mechrl.agents.paper.train import CHECKPOINT, Run, describe
from mechrl.behaviours import get_behaviour
from mechrl.behaviours.base import Behaviour
from mechrl.circuit import Circuit
from mechrl.engine.memory import let_go
from mechrl.errors import MechRLError, OutOfMemory
from mechrl.experiments.cells import Cell, Workspace
from mechrl.experiments.worker import Stopped, stopping, tell
from mechrl.files import write_atomically
from mechrl.files.saving import Saving
from mechrl.models import load_model
from mechrl.models.base import Model
from mechrl.search.problem import Interrupted, State
from mechrl.search.session import SearchSettings, prepare
from mechrl.validity.beyond import beyond, curves
from mechrl.validity.checks import validate
from mechrl.validity.setting import Setting

_SAVE_EVERY = 10.0  # seconds
_STATE = "state.safetensors"


class Resources:
    """A worker's model, loaded once."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.device = workspace.context["device"]

    @cached_property
    def model(self) -> Model:
        return load_model(self.workspace.context["model"], device=self.device)

    @property
    def policy(self) -> Path:
        """The folder of the paper's agent's policy."""
        given = self.workspace.context["policy"]
        if given is None:
            raise MechRLError("no policy was given; train one with `mechrl train` and give it by --policy")
        return Path(given)

    @property
    def device_name(self) -> str:
        return torch.cuda.get_device_name(self.model.device) if self.model.device.type == "cuda" else "CPU"


def do(resources: Resources, cell: Cell) -> dict[str, Any]:
    job: Any = {"gate": _gate, "curves": _curves, "train": _train, "circuit": _circuit, "collect": _collect}[
        cell.kind
    ]
    arguments = {key: value for key, value in cell.arguments.items() if key not in ("model", "checksum")}
    try:
        result: dict[str, Any] = job(resources, cell, **arguments)
        return result | {"device": resources.device_name}
    except Interrupted:
        raise Stopped from None
    except torch.cuda.OutOfMemoryError:
        raise OutOfMemory("out of the device's memory: use fewer --jobs, --envs or --pairs") from None
    finally:
        let_go()


def _gate(resources: Resources, cell: Cell, names: list[str]) -> dict[str, Any]:
    model = resources.model
    verdicts = []
    for name in names:
        tell(name)
        verdicts.append(gate.judge(model, get_behaviour(name)).to_json())
    graph = model.graph
    facts = {
        "layers": graph.n_layers,
        "heads": graph.n_heads,
        "kv_heads": graph.n_kv_heads,
        "edges": graph.n_edges,
    }
    examples = {v["name"]: _example(model, get_behaviour(v["name"])) for v in verdicts if v["pairs"]}
    return {
        "checksum": model.checksum,
        "graph": facts | {"nodes": graph.n_nodes},
        "verdicts": verdicts,
        "examples": examples,
    }


def _collect(resources: Resources, cell: Cell, **walk: Any) -> dict[str, Any]:
    from mechrl.experiments.collect import collect

    return collect(resources.model, resources.workspace, cell, **walk)


def _example(model: Model, behaviour: Behaviour) -> dict[str, str]:
    """One pair as people read it, and the answer."""
    assert model.tokenizer is not None
    pairs = behaviour.pairs(model.tokenizer, 1, n_ctx=model.spec.n_ctx)
    answers = [model.tokenizer.backend.decode([i]) for i in pairs.answers[0]]
    return {"prompt": pairs.texts[0][0], "answer": answers[0].strip() + (" …" if len(answers) > 1 else "")}


def _curves(resources: Resources, cell: Cell, behaviour: str, **setting: Any) -> dict[str, Any]:
    began = time.perf_counter()
    here = Setting.make(resources.model, get_behaviour(behaviour), **setting)
    return curves(here).to_json() | {"seconds": time.perf_counter() - began}


# ---- the paper's agent ----------------------------------------------------------------------------------------------


def _train(
    resources: Resources,
    cell: Cell,
    names: list[str],
    task: dict[str, Any],
    k: int | None,
    env: dict[str, Any],
    ppo: dict[str, Any],
    width: int,
) -> dict[str, Any]:
    """A policy from nothing, in `work/policy`."""
    began = time.perf_counter()
    config, episodes = PPOConfig(**ppo), EnvConfig(**env)
    chosen = [get_behaviour(name) for name in names]
    tasks, settings = training_tasks(resources.model, chosen, TaskSettings(**task), episodes, k, tell)
    torch.manual_seed(config.seed)
    trainer = Trainer(tasks, config, episodes, Policy(width), resources.model.device)
    run = _run(
        resources.workspace.scratch(cell), trainer, describe(resources.model, trainer, settings), began
    )
    return {"passes": run.passes(), "seconds": run.seconds, "iterations": config.iterations}


def _run(folder: Path, trainer: Trainer, about: dict[str, Any], began: float) -> Run:
    """Trains to the end, from where the last attempt left it; saves and stops when asked to."""
    run = Run(folder, trainer, about, resume=(folder / CHECKPOINT).exists(), began=began)
    for row in run:
        tell(f"iteration {row['iteration']} of {trainer.config.iterations}, {row['passes']:,.0f} passes")
        if stopping() and not run.finished:
            run.save()
            raise Stopped
    return run


def _by_paper(
    resources: Resources,
    cell: Cell,
    setting: Setting,
    seed: int,
    method: str,
    deployment: dict[str, Any],
    policy: dict[str, Any],
) -> tuple[Circuit, dict[str, Any]]:
    """The circuit of a frozen policy or, with `ppo`, of one that was trained on this behaviour first."""
    began = time.perf_counter()
    model, behaviour, folder = resources.model, setting.behaviour, resources.policy
    env, agent = EnvConfig(**policy["env"]), load_policy(resources.policy)
    settings = TaskSettings(len(setting.pairs), setting.k, setting.prefilter)  # type: ignore[arg-type]  # an agent's, so no union
    task = make_task(behaviour.name, setting.engine, setting.candidates, setting.scores, env)
    about: dict[str, Any] = {"pairs_seed": seed}
    spent: dict[str, Any] = {"seconds_before": time.perf_counter() - began}
    extra: dict[str, Any] = {}
    if policy["ppo"] is not None:
        config = PPOConfig(**policy["ppo"], seed=seed)
        scratch = method == "paper-from-scratch"
        trainer, what = trainer_of(model, task, config, settings, env, agent, folder, scratch)
        run = _run(resources.workspace.scratch(cell), trainer, what, began)
        agent = trainer.policy
        spent = {"passes_before": run.passes_before, "seconds_before": run.seconds}
        about |= {"iterations": config.iterations, "transitions": config.transitions}
        extra = {"learning": _learning(run), "passes_training": run.passes()}
    path = resources.workspace.folder / "work" / f"{cell.name}.rollouts.safetensors"
    asked = Deployment(**deployment, seed=seed, method=method, about=about, **spent)
    watch = Watch(lambda step, line: tell(line), path, stopping)
    circuit = deploy(model, behaviour, task, agent.to(model.device), settings, env, asked, watch)
    path.unlink(missing_ok=True)
    return circuit, extra


def _learning(run: Run) -> dict[str, list[float]]:
    """|C| / K and f of the episodes that ended in each iteration."""
    rows = [json.loads(line) for line in (run.folder / METRICS).read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row["episode/edges"] is not None]
    K = run.trainer.tasks[0].K
    return {
        "iteration": [row["iteration"] for row in rows],
        "share": [row["episode/edges"] / K for row in rows],
        "f": [row["episode/f"] for row in rows],
    }


# ---- circuits -------------------------------------------------------------------------------------------------------


def _circuit(
    resources: Resources,
    cell: Cell,
    behaviour: str,
    method: str,
    target: str,
    seed: int,
    assess: bool = False,
    **how: Any,
) -> dict[str, Any]:
    """how: `search`, its settings; of the paper's agent `setting`, `deployment` and `policy`."""
    chosen = get_behaviour(behaviour)
    here: Setting | None = None
    extra: dict[str, Any] = {}
    if "search" in how:
        circuit = _by_search(resources, cell, chosen, _settings(**how["search"], seed=seed))
    else:
        here = Setting.make(resources.model, chosen, seed=seed, **how.pop("setting"))
        circuit, extra = _by_paper(resources, cell, here, seed, method, **how)
    # scores and orders are large, and can be had again
    kept = replace(circuit, scores=None, order=())
    path = resources.workspace.folder / "circuits" / f"{cell.name}.json.gz"
    kept.save(path)
    row = _row(circuit, target) | {"circuit": str(path.relative_to(resources.workspace.folder))}
    if assess:
        tell("validity")
        let_go()  # of what the search had, for engines of other wordings follow
        where = here or Setting.of(resources.model, chosen, circuit)
        row["validity"] = validate(circuit, resources.model, chosen, setting=where, report=tell).to_json()
        row["beyond"] = beyond(circuit, where).to_json()
    return row | extra


def _settings(
    target: str = "discovery", thresholds: Sequence[float] | None = None, **search: Any
) -> SearchSettings:
    """Of a search, from what its cell says."""
    sweep: dict[str, Any] = {} if thresholds is None else {"thresholds": tuple(thresholds)}
    return SearchSettings(**search, **sweep, holds_on="fresh" if target == "test" else "discovery")


def _row(circuit: Circuit, target: str) -> dict[str, Any]:
    """What tables say of a circuit."""
    judged = circuit.faithfulness_validation if target == "test" else circuit.faithfulness
    assert judged is not None
    return {
        "edges": circuit.settings.get("edges_before_pruning", len(circuit)),
        "edges_pruned": circuit.size,
        "f": circuit.faithfulness,
        "f_test": circuit.faithfulness_test,
        "f_validation": circuit.faithfulness_validation,
        "reached": judged >= circuit.tau,
        "pairs": circuit.pairs,
        "passes": circuit.passes,
        "seconds": circuit.seconds,
        "candidates": circuit.settings["candidates"],
        "ceiling": circuit.settings.get("ceiling"),
        "note": circuit.settings["note"],
    }


def _by_search(resources: Resources, cell: Cell, behaviour: Behaviour, settings: SearchSettings) -> Circuit:
    """A search that leaves its state behind, and goes on from there."""
    path = resources.workspace.scratch(cell) / _STATE
    state, about = None, None
    with suppress(MechRLError):  # none was left, or it is damaged: that costs time only
        state, about = State.read(path)
    session = prepare(resources.model, behaviour, settings, about)
    last, saving = time.monotonic(), Saving()

    def checkpoint(now: State) -> None:
        nonlocal last
        tell(f"f {now.faithfulness:.3f}, {int(now.mask.sum()):,} edges, {session.passes:,.0f} passes")
        asked = stopping()  # once: it may become true between two looks
        if asked or time.monotonic() - last > _SAVE_EVERY:
            saving.attempt(lambda: write_atomically(path, now.to_bytes(**session.about())))
            last = time.monotonic()
        if asked:
            raise Stopped

    session.problem.checkpoint = checkpoint
    circuit = session.circuit(session.run(state))
    if path.parent.exists():
        path.unlink(missing_ok=True)
        path.parent.rmdir()
    return circuit
