"""What `mechrl compare` and `mechrl reproduce` share: the gate, the work, its progress, and how it ends."""

from __future__ import annotations

import shlex
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import typer

from mechrl import hub
from mechrl.agents.paper.tasks import choose_behaviours
from mechrl.behaviours import behaviours
from mechrl.errors import MechRLError
from mechrl.experiments import executor, jobs
from mechrl.experiments.cells import Cell, Workspace
from mechrl.experiments.compare import Agent, read_agent
from mechrl.experiments.executor import CellProgress
from mechrl.experiments.ray_cluster import RayExecutor, connect, gpus
from mechrl.messages import say
from mechrl.report.tables import Table
from mechrl.signals import stop_signals

_LINE_EVERY = 10.0  # seconds
# `every`: other wordings as well; `built-in`: relations too
_GROUPS = ("built-in", "every", "all", "train", "held-out")


@dataclass(frozen=True)
class GateResult:
    """The model, and what it does."""

    model: dict[str, Any]  # name and checksum: part of every cell
    graph: dict[str, int]
    names: list[str]  # behaviours that it exhibits
    verdicts: dict[str, dict[str, Any]]
    examples: dict[str, dict[str, str]]

    @property
    def notes(self) -> tuple[str, ...]:
        left_out = [v for v in self.verdicts.values() if v["name"] not in self.names]
        return tuple(
            f"{v['name']}: left out, {self.model['model']} does not exhibit it ({v['reason']})."
            for v in left_out
        )


class Experiment:
    """A folder, the worker processes that fill it, and one limit of time for everything done in it."""

    def __init__(
        self,
        model: str,
        out: Path,
        policy: Path | None,
        device: str,
        jobs_: int,
        seconds: float | None,
        ray: str | None = None,
        reads_only: bool = False,
    ) -> None:
        """policy: the folder of one for the paper's agent, if one is given. ray: the address of a cluster to work on.

        reads_only: nothing is run; what is not done is an error.
        """
        from mechrl.models import resolve_device

        cluster = None if ray is None else connect(ray)
        if cluster is not None and device == "auto":  # its machines' devices count, not this one's
            device = "cuda" if gpus(cluster) else "cpu"
        device = str(resolve_device(device)) if cluster is None else device
        self.model, self.out = model, out
        self.policy = None if policy is None else hub.local(policy, *hub.AGENT)
        self.until = None if seconds is None else time.monotonic() + seconds
        self.reads_only = reads_only
        self.command = shlex.join(["mechrl", *sys.argv[1:]])
        given = None if self.policy is None else str(self.policy)
        context = {"model": model, "device": device, "policy": given, "command": self.command}
        self.workspace = Workspace(out, jobs.do, jobs.Resources, context, jobs_)
        self.executor = None if cluster is None else RayExecutor(self.workspace, cluster)
        self._opened = ExitStack()

    def __enter__(self) -> Experiment:
        self.stopped = self._opened.enter_context(stop_signals())
        if self.executor is not None:
            self._opened.enter_context(self.executor)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, value, trace)

    def agent(self) -> Agent:
        if self.policy is None:
            raise MechRLError(
                "the paper's agent needs a policy: train one with `mechrl train` and give it by --policy"
            )
        return read_agent(self.policy)

    def use_policy(self, folder: Path) -> None:
        self.policy = folder
        self.workspace.context["policy"] = str(folder)

    def run(self, cells: list[Cell]) -> bool:
        """True: all of them are done, or failed."""
        left = None if self.until is None else max(0.0, self.until - time.monotonic())
        return executor.run(
            cells, self.workspace, left, self.stopped, _Lines(self.workspace).show, self.executor
        )

    def need(self, cell: Cell) -> dict[str, Any]:
        """The result of a cell without which nothing goes on."""
        if not self.reads_only and not self.workspace.done(cell):
            self.run([cell])
        known = self.workspace.record(cell)
        if known is not None and known["status"] == "failed":
            raise MechRLError(known["reason"])
        if known is None and self.reads_only:
            what = "policy trained" if cell.kind == "train" else f"{cell.kind} done"
            give = "give one by --policy, or " if cell.kind == "train" else ""
            raise MechRLError(
                f"{self.out}: no {what} there with these options; {give}run without --report-only"
            )
        if known is None:
            self.leave(False)
            raise AssertionError
        result: dict[str, Any] = known["result"]
        return result

    def gate(self, names: str, force: bool = False) -> GateResult:
        """The chosen behaviours that the model exhibits. Named ones must all be, unless forced."""
        chosen = [b.name if b.family != "custom" else n for b, n in _named(names)]
        result = self.need(Cell("gate", {"model": self.model, "names": chosen}))
        verdicts = {v["name"]: v for v in result["verdicts"]}
        asked = dict(zip(verdicts, chosen, strict=True))  # a behaviour of one's own is known by its file
        kept = [asked[name] for name, v in verdicts.items() if v["exhibited"] or (force and v["pairs"])]
        if names not in _GROUPS and len(kept) < len(chosen):
            bad = next(v for v in verdicts.values() if asked[v["name"]] not in kept)
            raise MechRLError(
                f"model {self.model!r} does not exhibit {bad['name']!r} ({bad['reason']}); leave it out, or insist with --force"
            )
        if not kept:
            raise MechRLError(
                f"model {self.model!r} exhibits none of these behaviours; see `mechrl behaviours --model {self.model}`"
            )
        model = {"model": self.model, "checksum": result["checksum"][:16]}
        return GateResult(model, result["graph"], kept, verdicts, result["examples"])

    def write_tables(self, tables: list[Table]) -> None:
        for table in tables:
            table.write(self.out / "tables")

    def leave(self, finished: bool) -> None:
        """Ends the command early, with a line that says how to go on."""
        if finished:
            return
        why = "interrupted" if self.stopped else "out of time"
        print(
            f"{why}; {self.out} holds what is done. To go on, repeat the command", file=sys.stderr, flush=True
        )
        raise typer.Exit(128 + self.stopped[0] if self.stopped else 0)


def _named(names: str) -> list[tuple[Any, str]]:
    """Behaviours and what they were asked for by: a name or a file."""
    if names in ("built-in", "every"):
        chosen = list(behaviours(with_relations=names == "built-in"))
    else:
        chosen = choose_behaviours(names)
    if names in _GROUPS:
        return [(b, b.name) for b in chosen]
    return list(zip(chosen, [n.strip() for n in names.split(",") if n.strip()], strict=True))


class _Lines:
    """A line for every finished cell and, now and then, what is going on and what remains."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace, self.last, self.finished = workspace, time.monotonic(), 0

    def show(self, now: CellProgress) -> None:
        if now.finished is not None:
            self.finished += 1
            head = f"[{now.done + now.failed}/{now.total}{f', {now.failed} failed' if now.failed else ''}]"
            self._say(f"{head} {now.finished.label}: {self._outcome(now.finished)}")
        elif time.monotonic() - self.last > _LINE_EVERY and now.running:
            rate = self.finished / now.seconds  # cells differ, so this is a rough guess
            guess = f", at this rate {now.left / rate / 60:.0f} min" if rate else ""
            self._say(f"{now.left} of {now.total} cells left{guess}; at work: {'; '.join(now.running)}")

    def _outcome(self, cell: Cell) -> str:
        known = self.workspace.record(cell)
        if known is None or known["status"] == "failed":
            return f"FAILED: {known['reason'] if known else 'its file cannot be read'}"
        r = known["result"]
        if "edges_pruned" in r:
            return (
                f"{r['edges_pruned']:,} edges, f {r['f']:.3f}, on test pairs {r['f_test']:.3f}, "
                f"{r['passes']:,.0f} passes, {r['seconds']:.1f} s"
            )
        return "done"

    def _say(self, line: str) -> None:
        say(line)
        self.last = time.monotonic()
