"""`mechrl metrics`: how the MIB benchmark would judge a ranking of edges, and the file to submit to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mechrl.cli import options
from mechrl.cli.terminal import answer, answer_json, answer_table, working
from mechrl.errors import MechRLError
from mechrl.ranges import MOST_PAIRS

if TYPE_CHECKING:
    import numpy as np

    from mechrl.behaviours import Behaviour
    from mechrl.models.base import Model
    from mechrl.validity.benchmark_metrics import BenchmarkMetrics

WARNING = (
    "CPR rewards circuits that overshoot the model: above 1 it says what was left out, not how well the model "
    "is matched. Compare methods by CMD"
)


def metrics_command(
    ranking: Annotated[
        str,
        typer.Argument(
            help="A circuit.json, or `eap`, `gim`, `relp`, `eap-ig-inputs`, `eap-ig-activations`, `mask-gradients`, `first-look`.",
            show_default=False,
        ),
    ],
    behaviour: Annotated[
        str | None,
        typer.Argument(help="A behaviour's name or file; a circuit names its own.", show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        options.basic(
            "--model",
            "-m",
            help="As everywhere. [default: what the circuit names, or `toy`]",
            show_default=False,
        ),
    ] = None,
    pairs: options.Pairs = 20,
    fresh: Annotated[int, options.budget(min=1, max=MOST_PAIRS, help="Fresh pairs to measure on.")] = 100,
    submission: Annotated[
        Path | None,
        options.basic(
            help="Folder for BEHAVIOUR_MODEL/importances.json, or .pt for a large graph.", show_default=False
        ),
    ] = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """CMD and CPR of a ranking of all edges, as the MIB benchmark computes them, and the file to submit.

    A circuit is ranked by its scores or, without any, by the order in which its search cut edges.

    Examples:

    - `mechrl metrics eap-ig-inputs ioi`
    - `mechrl metrics runs/search/circuit.json`
    - `mechrl metrics gim acronyms --model smollm2 --submission runs/mib --json`
    """
    from mechrl.behaviours.base import TEST_SEED
    from mechrl.eap_ig import write_submission
    from mechrl.engine import Engine
    from mechrl.files import check_folder
    from mechrl.validity.benchmark_metrics import benchmark_metrics

    if submission is not None:
        check_folder(submission)
    loaded, chosen, scores, passes = _ranked(ranking, behaviour, model, pairs, seed, device)
    assert loaded.tokenizer is not None
    unseen = chosen.pairs(loaded.tokenizer, fresh, TEST_SEED, n_ctx=loaded.spec.n_ctx)
    with working(f"circuits of ten sizes on {len(unseen)} fresh pairs"):
        found = benchmark_metrics(Engine(loaded, unseen), unseen, scores)
    written = None
    if submission is not None:
        shape = loaded.graph, loaded.spec.d_model
        written = write_submission(submission, chosen.name, loaded.name, *shape, scores)
    about = {"ranking": ranking, "behaviour": chosen.name, "model": loaded.name, "pairs": len(unseen)}
    _tell(found, about, passes, written, as_json)


def _tell(
    found: BenchmarkMetrics, about: dict[str, Any], passes: float, written: Path | None, as_json: bool
) -> None:
    from mechrl.validity.benchmark_metrics import FRACTIONS

    curve = list(zip(FRACTIONS, found.faithfulness_absolute, found.faithfulness_signed, strict=True))
    if as_json:
        keys = ("edges", "f_by_absolute_score", "f_by_signed_score")
        sizes = [dict(zip(keys, point, strict=True)) for point in curve]
        result = {"cmd": found.cmd, "cpr": found.cpr, "warning": WARNING, "sizes": sizes, "passes": passes}
        answer_json(about | result | {"submission": None if written is None else str(written)})
        return
    on = f"on {about['pairs']} fresh pairs; {passes:,.1f} passes"
    answer(f"CMD {found.cmd:.3f} (0 is best), CPR {found.cpr:.3f}, {on}")
    answer(WARNING)
    answer_table(
        ["edges", "f by |score|", "f by score"],
        [[f"{part:.1%}", f"{absolute:.3f}", f"{signed:.3f}"] for part, absolute, signed in curve],
    )
    if written is not None:
        answer(written)


def _ranked(
    name: str, behaviour: str | None, model: str | None, pairs: int, seed: int, device: str
) -> tuple[Model, Behaviour, np.ndarray, float]:
    """The model, the behaviour, all edges' importance and the passes it took: of a circuit's file, or of a ranking by name."""
    from mechrl.behaviours import get_behaviour
    from mechrl.circuit import Circuit
    from mechrl.engine import Engine
    from mechrl.models import load_model
    from mechrl.validity.rankings import RANKINGS, ranking

    if name not in RANKINGS:
        if not Path(name).exists():
            raise MechRLError(
                f"{name!r} is neither a circuit's file nor a ranking; known: {', '.join(RANKINGS)}"
            )
        circuit = Circuit.load(name)
        chosen = circuit.its_behaviour(behaviour)
        revision = circuit.revision if model is None else None
        with working(f"loading {model or circuit.model}"):
            loaded = load_model(model or circuit.model, device=device, revision=revision)
        return circuit.as_found(loaded), chosen, circuit.importance(), circuit.passes
    if behaviour is None:
        raise MechRLError(f"which behaviour? Say for instance: mechrl metrics {name} ioi")
    chosen = get_behaviour(behaviour)
    with working(f"loading {model or 'toy'}"):
        loaded = load_model(model or "toy", device=device)
    assert loaded.tokenizer is not None
    drawn = chosen.pairs(loaded.tokenizer, pairs, seed, part="discovery", n_ctx=loaded.spec.n_ctx)
    with working(f"ranking {loaded.graph.n_edges:,} edges by {name}"):
        scores, passes = ranking(name, Engine(loaded, drawn), drawn, chosen.metric)
    return loaded, chosen, scores, passes
