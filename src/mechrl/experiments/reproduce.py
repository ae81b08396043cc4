"""Every table and figure of the paper for a given model: which cells that takes, and how they are read back.

The policy is the paper's agent's. Costly cells (its adaptation, its training from scratch, ACDC over the whole graph) have seeds of
their own. Cells come in the order in which they matter: the first seed of everything before the second of anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mechrl.behaviours import behaviours, get_behaviour
from mechrl.errors import MechRLError
from mechrl.experiments import paper_numbers as paper
from mechrl.experiments.cells import Cell, Workspace
from mechrl.experiments.compare import DEFAULT_METHODS, PAPERS, Agent, Budget, Target, circuit_cell
from mechrl.experiments.experiment import Experiment, GateResult
from mechrl.files.reading import parse_json, read_bytes, read_json
from mechrl.stats import Spread


@dataclass(frozen=True)
class Scope:
    """How much is done. The defaults are the paper's."""

    seeds: tuple[int, ...] = (0, 1, 2)
    costly_seeds: tuple[int, ...] = (0,)
    budget: Budget = field(default_factory=Budget)
    methods: tuple[str, ...] = DEFAULT_METHODS
    only: tuple[str, ...] = ()  # behaviours of the tables; all if empty
    train_iterations: int = 1200  # of a policy, where none is given
    width: int = 128
    max_steps: int = 150
    k: int | None = None  # candidates; None: by the paper's rule
    quick: bool = False


QUICK = Scope(
    seeds=(0,),
    budget=Budget(
        pairs=4,
        k=200,
        thresholds=(0.01,),
        rollouts=2,
        adapt_iterations=2,
        scratch_iterations=3,
        transitions=32,
        envs=8,
    ),
    methods=("greedy", "blockwise", "paper", "paper-adapted"),
    only=("ioi", "acronyms"),
    train_iterations=1,
    width=16,
    max_steps=6,
    k=200,
    quick=True,
)


@dataclass(frozen=True)
class Chosen:
    """The behaviours of the tables: one per family of the training split, and the held-out ones."""

    trained: list[str]
    held_out: list[str]
    variants: list[str]  # of which ceilings are wanted
    notes: tuple[str, ...]

    @property
    def all(self) -> list[str]:
        return [*self.trained, *self.held_out]


def choose(gated: GateResult, only: Iterable[str] = ()) -> Chosen:
    """A behaviour that the model does not exhibit is replaced by another wording of it that the model does, if there is one."""
    shown = {name for name in gated.names if not only or name in set(only)}
    trained, held_out, notes = [], [], []
    for family in dict.fromkeys(b.family for b in behaviours("train")):
        if names := [b.name for b in behaviours("train") if b.family == family and b.name in shown]:
            trained.append(names[0])
    for behaviour in behaviours("held-out"):
        others = [b.name for b in behaviours("extra") if b.family == behaviour.family and b.name in shown]
        if behaviour.name in shown:
            held_out.append(behaviour.name)
            continue
        held_out += others[:1]
        if verdict := gated.verdicts.get(behaviour.name):
            instead = f"; {others[0]} stands in for it" if others else ""
            notes.append(
                f"{gated.model['model']} does not exhibit {behaviour.name} ({verdict['reason']}){instead}."
            )
    variants = [b.name for b in behaviours("train") if b.name in shown]
    return Chosen(trained, held_out, [*variants, *held_out], tuple(notes))


@dataclass
class Cells:
    curves: dict[tuple[str, int], Cell] = field(default_factory=dict)
    policy: dict[tuple[str, int], Cell] = field(default_factory=dict)
    adapted: dict[tuple[str, int], Cell] = field(default_factory=dict)
    scratch: dict[tuple[str, int], Cell] = field(default_factory=dict)
    acdc: dict[tuple[str, float, int], Cell] = field(default_factory=dict)
    # target, behaviour, method, seed
    matched: dict[tuple[str, str, str, int], Cell] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Cell]:
        """In the order in which they matter."""
        searches = {key: cell for key, cell in self.matched.items() if key[2] not in PAPERS}
        on = {
            target: {key: cell for key, cell in searches.items() if key[0] == target}
            for target in ("discovery", "test")
        }
        groups: list[dict[Any, Cell]] = [self.curves, self.policy, on["discovery"]]
        groups += [self.adapted, self.scratch, self.acdc, on["test"]]
        for seed in sorted({key[-1] for group in groups for key in group}):
            yield from (cell for group in groups for key, cell in group.items() if key[-1] == seed)


def cells_of(scope: Scope, gated: GateResult, chosen: Chosen, agent: Agent) -> Cells:
    cells, budget = Cells(), scope.budget

    def circuit(
        name: str, method: str, target: Target, seed: int, assess: bool = False, budget: Budget = budget
    ) -> Cell:
        return circuit_cell(gated.model, name, method, target, seed, budget, agent, assess)

    for seed in scope.seeds:
        for name in chosen.variants:
            known = {"behaviour": name, "seed": seed} | agent.setting(budget.pairs)
            cells.curves[name, seed] = Cell("curves", gated.model | known)
        for name in chosen.all:
            cells.policy[name, seed] = circuit(name, "paper", "discovery", seed, assess=True)
    for seed in scope.costly_seeds:
        for name in chosen.held_out:
            cells.adapted[name, seed] = circuit(name, "paper-adapted", "discovery", seed, assess=True)
            cells.scratch[name, seed] = circuit(name, "paper-from-scratch", "discovery", seed)
        for name in chosen.all:
            for t in budget.thresholds:
                alone = replace(budget, thresholds=(t,))
                cells.acdc[name, t, seed] = circuit(name, "acdc", "paper", seed, budget=alone)
    deployed = {"paper": cells.policy, "paper-adapted": cells.adapted}
    targets: tuple[Target, Target] = ("discovery", "test")
    for target in targets:
        for name in chosen.all:
            for method in scope.methods:
                if method in deployed:  # the same circuits; the agent knows discovery pairs alone
                    own = deployed[method] if target == "discovery" else {}
                    for (of, seed), cell in own.items():
                        if of == name:
                            cells.matched[target, name, method, seed] = cell
                    continue
                for seed in scope.seeds:
                    # not a matter of which seeds are asked for: cells stay the same
                    assess = target == "discovery" and seed == 0
                    cells.matched[target, name, method, seed] = circuit(name, method, target, seed, assess)
    return cells


def agent_of(experiment: Experiment, scope: Scope, gated: GateResult) -> tuple[Agent, dict[str, Any]]:
    """The policy and what is known of its training. Where none is given one is trained first."""
    about: dict[str, Any] = {}
    if experiment.policy is None:
        names = [
            b.name
            for b in behaviours("train")
            if b.name in gated.names and (not scope.only or b.name in scope.only)
        ]
        budget = scope.budget
        arguments = gated.model | {
            "names": names,
            "task": {"pairs": budget.pairs},
            "k": scope.k,
            "env": {"max_steps": scope.max_steps},
            "ppo": {
                "iterations": scope.train_iterations,
                "transitions": budget.transitions,
                "envs": budget.envs,
            },
            "width": scope.width,
        }
        cell = Cell("train", arguments, mutex="policy")
        about = experiment.need(cell)
        experiment.use_policy(experiment.workspace.scratch(cell))
    assert experiment.policy is not None
    return experiment.agent(), _training(experiment.policy) | about


def cost(scope: Scope, chosen: Chosen, trains: bool) -> dict[str, int]:
    """Passes that the paper's agent will take at most, by what for: a step is a pass, a deployment 17 episodes."""
    budget, held_out = scope.budget, len(chosen.held_out) * len(scope.costly_seeds)
    deployment = (budget.rollouts + 1) * scope.max_steps
    learning = budget.adapt_iterations + budget.scratch_iterations
    return {
        "training": scope.train_iterations * budget.transitions * trains,
        "deployment": deployment * (len(chosen.all) * len(scope.seeds) + 2 * held_out),
        "adaptation and its control": learning * budget.transitions * held_out,
    }


def _training(folder: Path) -> dict[str, Any]:
    """What a policy was trained on, and what that cost, as far as its folder says."""
    try:
        known = read_json(folder / "run.json")
        about: dict[str, Any] = {"trained_in": known["model"], "trained_on": known["behaviours"]}
        steps = known["ppo"]["iterations"] * known["ppo"]["transitions"]
        cost = steps  # a step is a pass
    except (OSError, MechRLError, ValueError, KeyError, TypeError):
        return {}
    with suppress(OSError, MechRLError, ValueError, KeyError, TypeError, IndexError):
        cost = parse_json(read_bytes(folder / "metrics.jsonl").splitlines()[-1])["passes"]
    return about | {"passes": cost}


# ---- what is in the cells -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class View:
    """Everything that tables and figures are made of. A cell that is not done is None, never zero."""

    scope: Scope
    gated: GateResult
    chosen: Chosen
    cells: Cells
    workspace: Workspace
    agent: Agent
    training: dict[str, Any]
    command: str

    @property
    def candidates(self) -> str:
        """The policy's candidate sets, in words."""
        return f"the {self.agent.k:,} best edges, prefilter “{self.agent.prefilter}”"

    @property
    def is_paper_model(self) -> bool:
        return str(self.gated.model["model"]).removeprefix("openai-community/") == "gpt2"

    @cached_property
    def records(self) -> dict[str, dict[str, Any]]:
        """Of all cells, by name, as they are when first asked for."""
        found = {cell.name: self.workspace.record(cell) for cell in self.cells}
        return {name: known for name, known in found.items() if known is not None}

    def result(self, cell: Cell | None) -> dict[str, Any] | None:
        known = self.records.get(cell.name) if cell is not None else None
        return known["result"] if known is not None and known["status"] == "done" else None

    def results(self, group: dict[Any, Cell], *beginning: Any) -> list[dict[str, Any]]:
        """The results of all seeds of a group's key."""
        found = [self.result(cell) for key, cell in group.items() if key[:-1] == beginning]
        return [r for r in found if r is not None]

    def failed(self) -> list[tuple[Cell, str]]:
        """Every failed cell and why."""
        known = {cell.name: (cell, self.records.get(cell.name)) for cell in self.cells}
        return [
            (cell, r["reason"]) for cell, r in known.values() if r is not None and r["status"] == "failed"
        ]

    def count(self) -> tuple[int, int, int]:
        """Done, failed, all."""
        done = sum(known["status"] == "done" for known in self.records.values())
        return done, len(self.failed()), len({cell.name for cell in self.cells})


def spread(results: list[dict[str, Any]], *path: str) -> Spread | None:
    """Of a value within the results."""
    values = []
    for result in results:
        value: Any = result
        for key in path:
            value = None if value is None else value.get(key)
        if value is not None:
            values.append(float(value))
    return Spread.of(values) if values else None


def acdc_best(view: View, behaviour: str, tau: float) -> tuple[float, list[dict[str, Any]]] | None:
    """The threshold with the smallest circuits that reach tau, else the most faithful ones; and its results, over seeds."""
    sweep = {t: view.results(view.cells.acdc, behaviour, t) for t in view.scope.budget.thresholds}
    sweep = {t: r for t, r in sweep.items() if r}
    if not sweep:
        return None

    def mean(t: float, key: str) -> float:
        return float(sum(r[key] for r in sweep[t]) / len(sweep[t]))

    enough = [t for t in sweep if mean(t, "f") >= tau]
    best = min(enough, key=lambda t: mean(t, "edges")) if enough else max(sweep, key=lambda t: mean(t, "f"))
    return best, sweep[best]


def greedy_best(results: list[dict[str, Any]], which: str, tau: float) -> tuple[int, Spread] | None:
    """The smallest size of the grid whose greedy circuits reach tau on average, else the largest; and their f."""
    if not results:
        return None
    sizes = results[0]["greedy_sizes"]
    f = [Spread.of(r[f"greedy_{which}"][i] for r in results) for i in range(len(sizes))]
    enough = [i for i, s in enumerate(f) if s.mean >= tau]
    i = enough[0] if enough else len(sizes) - 1
    return sizes[i], f[i]


# ---- agreement with the paper ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Agreement:
    """One deterministic row of the paper beside ours. A size or an f that the row does not have is None."""

    row: str
    behaviour: str
    paper_size: int | None
    size: float | None
    paper_f: float
    f: float

    @property
    def agrees(self) -> bool:
        sized = True
        if self.paper_size is not None and self.size is not None:
            sized = abs(self.size - self.paper_size) <= paper.TOLERANCE_SIZE * self.paper_size
        return sized and abs(self.f - self.paper_f) <= paper.TOLERANCE_F + 1e-9


def agreements(view: View) -> list[Agreement]:
    """Ceilings, ACDC at every threshold, EAP-IG greedy: all that the paper's tables have of deterministic rows."""
    found: list[Agreement] = []
    for name in view.chosen.all:
        if name not in paper.CEILINGS:
            continue
        results = view.results(view.cells.curves, name)
        if results:
            ceilings, greedy, sizes = paper.CEILINGS[name], paper.COMPARISON[name], results[0]["greedy_sizes"]
            own = get_behaviour(name).metric != "kl"
            deterministic = [("ceiling, metric", ceilings.metric, "ceiling_metric")] if own else []
            for row, theirs, key in (*deterministic, ("ceiling, KL", ceilings.kl, "ceiling_kl")):
                value = spread(results, key)
                assert value is not None
                found.append(Agreement(row, name, None, None, theirs, value.mean))
            kinds = [("EAP-IG greedy", greedy.greedy_metric, "greedy_metric")] if own else []
            for row, (size, f), key in (*kinds, ("EAP-IG greedy, KL", greedy.greedy_kl, "greedy_kl")):
                if size in sizes:  # ours at the paper's size
                    at = Spread.of(r[key][sizes.index(size)] for r in results)
                    found.append(Agreement(f"{row}, {size} edges", name, None, None, f, at.mean))
        for t, (size, f, _) in zip(paper.ACDC_THRESHOLDS, paper.ACDC[name], strict=True):
            ours = view.results(view.cells.acdc, name, t)
            edges, value = spread(ours, "edges"), spread(ours, "f")
            if edges is not None and value is not None:
                found.append(Agreement(f"ACDC, {t:g}", name, size, edges.mean, f, value.mean))
    return found
