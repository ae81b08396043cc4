"""From start to circuit: where the seconds of a search go, next to what the engine takes for the circuits it asks for."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from mechrl.behaviours.base import Behaviour
from mechrl.engine import Engine
from mechrl.models.base import Model
from mechrl.search.session import SearchSession, SearchSettings, prepare


@dataclass
class Phase:
    """What a part of the way took. `cpu` counts the seconds of all threads."""

    name: str
    seconds: float = 0.0
    cpu: float = 0.0
    passes: float = 0.0
    calls: int = 0

    @property
    def ms_per_pass(self) -> float | None:
        return 1000 * self.seconds / self.passes if self.passes else None


class Phases:
    """A stopwatch with several hands. Phases within phases are taken out of the outer ones."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._phases: dict[str, Phase] = {}
        self._inner: list[tuple[float, float, float]] = []

    @contextmanager
    def of(self, name: str, engine: Engine | None = None) -> Iterator[None]:
        phase = self._phases.setdefault(name, Phase(name))
        self._inner.append((0.0, 0.0, 0.0))
        begin = self._now(engine)
        try:
            yield
        finally:
            took = [b - a for a, b in zip(begin, self._now(engine), strict=True)]
            seconds, cpu, passes = (a - b for a, b in zip(took, self._inner.pop(), strict=True))
            phase.seconds, phase.cpu, phase.passes = (
                phase.seconds + seconds,
                phase.cpu + cpu,
                phase.passes + passes,
            )
            phase.calls += 1
            if self._inner:
                outer = self._inner.pop()
                self._inner.append((outer[0] + took[0], outer[1] + took[1], outer[2] + took[2]))

    def timed(self, name: str, work: Callable[..., Any], engine: Engine) -> Callable[..., Any]:
        def run(*args: Any, **more: Any) -> Any:
            with self.of(name, engine):
                return work(*args, **more)

        return run

    def rows(self) -> list[dict[str, Any]]:
        return [asdict(phase) | {"ms_per_pass": phase.ms_per_pass} for phase in self._phases.values()]

    def _now(self, engine: Engine | None) -> tuple[float, float, float]:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter(), time.process_time(), 0.0 if engine is None else engine.passes


def bench_search(
    load: Callable[[], Model],
    behaviour: Behaviour,
    settings: SearchSettings,
    device: torch.device,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """One search from loading the model to its circuit, split into phases. Scores of earlier runs are not used."""
    phases = Phases(device)
    phases._phases["starting Python"] = Phase("starting Python", since_start(), time.process_time())
    with phases.of("loading"):
        model = load()
    with _no_scores_known():
        report("ranking the edges")
        with phases.of("pairs and scores"):
            session = prepare(model, behaviour, settings)
    engine = session.problem.engine
    phases._phases["pairs and scores"].passes = engine.passes
    session.problem.checkpoint = lambda state: report(
        f"f {state.faithfulness:.3f}, {int(state.mask.sum()):,} edges"
    )
    with phases.of("deciding", engine):
        engine.gradients = phases.timed("gradients", engine.gradients, engine)  # type: ignore[method-assign]
        engine._evaluate = phases.timed("circuits", engine._evaluate, engine)  # type: ignore[method-assign]
        state = session.run()
        del engine.gradients, engine._evaluate  # the engine's own again
    passes = session.passes
    with phases.of("test pairs"):
        circuit = session.circuit(state)
    return dict(
        model=model.name,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        behaviour=behaviour.name,
        method=settings.method,
        holds_on=settings.holds_on,
        edges=len(circuit),
        faithfulness=circuit.faithfulness,
        faithfulness_test=circuit.faithfulness_test,
        passes=passes,
        phases=phases.rows(),
        circuits=_of_the_engine(session, state.mask, device),
    )


def _of_the_engine(session: SearchSession, mask: np.ndarray, device: torch.device) -> list[dict[str, Any]]:
    """What the engine takes for circuits as large as the one found: one, a few, and a gradient of one over all candidates."""
    problem = session.problem
    engine = Engine(problem.model, problem.pairs)
    kept = np.flatnonzero(mask)
    rows = []
    for n in (1, min(16, len(kept))):
        masks = mask[None].repeat(n, axis=0)
        masks[np.arange(n), kept[:n]] = n == 1  # each of several lacks another edge
        seconds = best(partial(engine.kl, masks, problem.candidates), device)
        rows.append(dict(what=f"{n} of {len(kept)} edges", ms_per_circuit=1000 * seconds / n))
    weights = mask[None].astype(np.float64)
    seconds = best(partial(engine.gradient, weights, problem.candidates), device)
    rows.append(dict(what=f"gradient over {len(mask):,} edges", ms_per_circuit=1000 * seconds))
    return rows


_REPEATS = 3


def best(
    work: Callable[[], object],
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Seconds of the quickest of some calls: on a busy machine the others say more about the neighbours."""
    times = []
    for _ in range(_REPEATS):
        begin = clock()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(clock() - begin)
    return min(times)


def since_start() -> float:
    """Seconds since this process was started; 0 where the system does not say."""
    try:
        with open("/proc/self/stat") as file:
            ticks = int(file.read().rsplit(")", 1)[1].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return 0.0


@contextmanager
def _no_scores_known() -> Iterator[None]:
    """An empty cache, for as long as this lasts."""
    before = os.environ.get("MECHRL_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MECHRL_CACHE"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["MECHRL_CACHE"]
            else:
                os.environ["MECHRL_CACHE"] = before
