"""All methods on all behaviours at matched faithfulness: which cells there are, and what they add up to.

Two targets. `discovery`: f ≥ tau on the pairs that the method saw, as the paper compares. `test`: f ≥ tau on fresh pairs, as judged
by validation pairs; f on test pairs, which judge nothing, is reported beside both. The paper's agent knows discovery pairs alone, and
returns its most faithful circuit, whether that reaches tau or not. `paper`: cells of the paper's tables only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from mechrl.circuit import Circuit
from mechrl.errors import MechRLError
from mechrl.experiments.cells import Cell, Workspace
from mechrl.ranges import check_seed
from mechrl.stats import Spread

if TYPE_CHECKING:
    from mechrl.validity.stability import Stability

Target = Literal["discovery", "test", "paper"]
# Settings of the searches, by the names that tables have for them
SEARCHES: dict[str, dict[str, Any]] = {
    "top-n": {"method": "top-n", "prefilter": "metric"},
    "top-n-kl": {"method": "top-n", "prefilter": "kl"},
    "greedy": {"method": "greedy", "prefilter": "metric"},
    "greedy-kl": {"method": "greedy", "prefilter": "kl"},
    "acdc": {"method": "acdc", "prefilter": "union"},
    "edge-pruning": {"method": "edge-pruning", "prefilter": "union"},
    "matryoshka": {"method": "matryoshka", "prefilter": "union"},
    "blockwise": {"method": "blockwise", "prefilter": "union"},
}
PAPERS = ("paper", "paper-adapted", "paper-from-scratch")  # by the paper's agent, which needs a policy
METHODS = (*SEARCHES, *PAPERS)
DEFAULT_SEARCHES = ("top-n", "greedy", "acdc", "edge-pruning", "blockwise")
DEFAULT_METHODS = (*DEFAULT_SEARCHES, "paper", "paper-adapted")


@dataclass(frozen=True)
class Budget:
    """What the methods are given. The defaults are the paper's."""

    tau: float = 0.9
    pairs: int = 20
    k: int = 3000
    thresholds: tuple[float, ...] = (0.001, 0.003, 0.01)  # ACDC's
    rollouts: int = 16
    adapt_iterations: int = 80
    scratch_iterations: int = 200
    transitions: int = 512
    envs: int = 4


@dataclass(frozen=True)
class Agent:
    """The policy that cells are made for: what it was trained on, and which one it is."""

    checksum: str
    k: int
    prefilter: str
    env: dict[str, Any]  # what differs from the paper's

    def setting(self, pairs: int) -> dict[str, Any]:
        """Of its candidate sets, as cells have it."""
        return {"pairs": pairs, "k": self.k, "prefilter": self.prefilter}


def circuit_cell(
    model: dict[str, Any],
    behaviour: str,
    method: str,
    target: Target,
    seed: int,
    budget: Budget,
    agent: Agent | None = None,
    assess: bool = False,
) -> Cell:
    """model: its name and checksum."""
    if method not in METHODS:
        raise MechRLError(f"unknown method {method!r}; choose among {', '.join(METHODS)}")
    arguments = model | {
        "behaviour": behaviour,
        "method": method,
        "target": target,
        "seed": seed,
        "assess": assess,
    }
    if method in SEARCHES:
        known = SEARCHES[method] | {"tau": budget.tau, "pairs": budget.pairs, "k": budget.k}
        known |= {"target": "test" if target == "test" else "discovery"}
        if method == "acdc":
            known["thresholds"] = list(budget.thresholds)
            known |= {"whole_graph": True} if target == "paper" else {}
        return Cell("circuit", arguments | {"search": known})
    if agent is None:
        raise MechRLError(
            f"the method {method!r} needs a policy: train one with `mechrl train` and give it by --policy"
        )
    if target == "test":
        raise MechRLError(
            "the paper's agent knows discovery pairs alone; leave the target `test` to searches"
        )
    iterations = {
        "paper-adapted": budget.adapt_iterations,
        "paper-from-scratch": budget.scratch_iterations,
    }.get(method)
    size = {"iterations": iterations, "transitions": budget.transitions, "envs": budget.envs}
    trained = {
        "setting": agent.setting(budget.pairs),
        "policy": {"checksum": agent.checksum, "env": agent.env, "ppo": size if iterations else None},
    }
    deployment = {"tau": budget.tau, "rollouts": budget.rollouts}
    return Cell("circuit", arguments | trained | {"deployment": deployment})


def read_agent(folder: Path) -> Agent:
    """The policy in a folder; refuses what is none."""
    from dataclasses import asdict

    from mechrl.agents.paper.checkpoint import WEIGHTS, load_policy, trained_with
    from mechrl.agents.paper.env import EnvConfig
    from mechrl.files.reading import file_checksum

    load_policy(folder)
    settings, env = trained_with(folder)
    # only what is not as always: a setting that comes with a later version must not make other cells of these
    own = {key: value for key, value in asdict(env).items() if value != asdict(EnvConfig())[key]}
    return Agent(file_checksum(folder / WEIGHTS)[:16], settings.k, settings.prefilter, own)


# ---- what the cells add up to ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResultRow:
    """A method on a behaviour, over seeds. A method that failed on some seeds says on how many, and why."""

    behaviour: str
    method: str
    target: str
    seeds: int  # that were asked for
    done: int
    failed: int
    reasons: tuple[str, ...]
    reached: int  # seeds on which f ≥ tau was reached, on the pairs that the target names
    edges_pruned: Spread | None
    edges: Spread | None
    f: Spread | None
    f_test: Spread | None
    passes: Spread | None
    seconds: Spread | None
    stability: Stability | None = None  # over the seeds, which draw the pairs

    @property
    def status(self) -> str:
        """What a reader must know besides the numbers; empty if all went well."""
        missing = self.seeds - self.done - self.failed
        parts = [f"failed on {self.failed} of {self.seeds}: {'; '.join(self.reasons)}"] if self.failed else []
        parts += [f"{missing} of {self.seeds} not done yet"] if missing else []
        if self.done and self.reached < self.done:
            parts.append(f"short of τ on {self.done - self.reached} of {self.done}")
        return "; ".join(parts)


def rows(cells: Iterable[Cell], workspace: Workspace, stability: bool = False) -> list[ResultRow]:
    """One row per behaviour, method and target, in the order in which they first appear. `stability` reads every circuit."""
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        a = cell.arguments
        if cell.kind == "circuit":
            groups.setdefault((a["behaviour"], a["method"], a["target"]), []).append(cell)
    found = []
    for key, group in groups.items():
        row = _row(*key, [workspace.record(cell) for cell in group])
        found.append(replace(row, stability=_overlap(group, workspace)) if stability else row)
    return found


def _overlap(cells: list[Cell], workspace: Workspace) -> Stability | None:
    """Of the circuits that are done."""
    from mechrl.validity.stability import overlap

    paths = [circuit_path(workspace, cell) for cell in cells if workspace.done(cell)]
    return overlap([Circuit.load(path) for path in paths if path.exists()])


def circuit_path(workspace: Workspace, cell: Cell) -> Path:
    return workspace.folder / "circuits" / f"{cell.name}.json.gz"


def _row(behaviour: str, method: str, target: str, records: list[dict[str, Any] | None]) -> ResultRow:
    results = [r["result"] for r in records if r is not None and r["status"] == "done"]
    failed = [r["reason"] for r in records if r is not None and r["status"] == "failed"]

    def spread(key: str) -> Spread | None:
        return Spread.of(r[key] for r in results) if results else None

    return ResultRow(
        behaviour=behaviour,
        method=method,
        target=target,
        seeds=len(records),
        done=len(results),
        failed=len(failed),
        reasons=tuple(dict.fromkeys(failed)),
        reached=sum(r["reached"] for r in results),
        edges_pruned=spread("edges_pruned"),
        edges=spread("edges"),
        f=spread("f"),
        f_test=spread("f_test"),
        passes=spread("passes"),
        seconds=spread("seconds"),
    )


def parse_list(text: str, what: str, known: Iterable[str]) -> list[str]:
    """Comma-separated names, each once, each known."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise MechRLError(f"no {what} given; choose among {', '.join(known)}")
    if strange := [name for name in names if name not in set(known)]:
        raise MechRLError(f"unknown {what} {', '.join(strange)}; choose among {', '.join(known)}")
    return names


def parse_seeds(text: str) -> list[int]:
    try:
        seeds = list(dict.fromkeys(int(s) for s in text.split(",") if s.strip()))
    except ValueError:
        seeds = []
    if not seeds:
        raise MechRLError(f"--seeds takes numbers such as 0,1,2; got {text!r}")
    return [check_seed(seed) for seed in seeds]


TARGETS: tuple[str, ...] = get_args(Target)[:2]  # those that users choose among
Report = Callable[[str], None]
