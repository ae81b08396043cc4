"""A circuit as others want it: a table, a graph of networkx, a run on one's own prompt, what its components write to the logits, hooks for
TransformerLens, a model card."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mechrl import hub
from mechrl.behaviours.base import Behaviour, Pairs
from mechrl.engine import Engine
from mechrl.engine.plain import push
from mechrl.engine.plain import run as run_plainly
from mechrl.errors import MechRLError
from mechrl.models.base import Model
from mechrl.names import GPT2

if TYPE_CHECKING:
    from mechrl.circuit import Circuit


def rows(circuit: Circuit) -> list[dict[str, Any]]:
    """One row for every kept edge: `source`, `target`, `channel` (q, k, v, mlp, logits), `score`, `live`; strongest first."""
    graph, live = circuit.graph, circuit.live
    score = circuit.scores if circuit.scores is not None else circuit.attribution
    found = []
    for e in np.flatnonzero(circuit.mask):
        source, receiver = graph.edge_name(int(e)).split("->")
        target, _, channel = receiver.partition("<")
        channel = channel.rstrip(">") or ("logits" if target == "logits" else "mlp")
        value = None if score is None else float(score[e])
        found.append(
            {"source": source, "target": target, "channel": channel, "score": value, "live": bool(live[e])}
        )
    return sorted(found, key=lambda row: -abs(row["score"] or 0.0))


def to_dataframe(circuit: Circuit) -> Any:
    try:
        import pandas
    except ImportError as exc:
        raise MechRLError(
            "a DataFrame needs pandas: pip install pandas; `circuit.rows_of_edges()` needs nothing"
        ) from exc
    return pandas.DataFrame(rows(circuit))


def to_networkx(circuit: Circuit) -> Any:
    """A MultiDiGraph of the edges on a path: components, and an edge for every channel, with its score."""
    try:
        import networkx
    except ImportError as exc:
        raise MechRLError("a graph of networkx needs networkx: pip install networkx") from exc
    graph = networkx.MultiDiGraph(model=circuit.model, behaviour=circuit.behaviour, f=circuit.faithfulness)
    for row in rows(circuit):
        if row["live"]:
            graph.add_edge(
                row["source"], row["target"], key=row["channel"], channel=row["channel"], score=row["score"]
            )
    return graph


@dataclass(frozen=True)
class Answered:
    """What the model, the circuit and the corrupted run say after one prompt: the likeliest tokens with their probabilities."""

    prompt: str
    corrupt: str
    model: tuple[tuple[str, float], ...]
    circuit: tuple[tuple[str, float], ...]
    corrupted: tuple[tuple[str, float], ...]
    faithfulness: float  # on this one pair
    logits: torch.Tensor  # [V] of the circuit

    def __str__(self) -> str:
        def say(top: tuple[tuple[str, float], ...]) -> str:
            return ", ".join(f"{token!r} {p:.2f}" for token, p in top)

        who = (("model", self.model), ("circuit", self.circuit), ("corrupted", self.corrupted))
        return "\n".join(
            [f"{self.prompt!r} (f {self.faithfulness:.2f})", *(f"  {name:9} {say(top)}" for name, top in who)]
        )


def run(circuit: Circuit, model: Model, prompt: str, corrupt: str, top: int = 5) -> Answered:
    """The circuit on a prompt of one's own; what it leaves out carries what it carries on `corrupt`, which must be as long."""
    model = circuit.as_found(model)
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise MechRLError(f"model {model.name!r} has no tokenizer, so it takes no prompts")
    clean, other = tuple(tokenizer.prompt(prompt)), tuple(tokenizer.prompt(corrupt))
    if len(clean) != len(other):
        raise MechRLError(
            f"the prompt has {len(clean)} tokens, the corrupted one {len(other)}; they must be equally long"
        )
    if clean == other:
        raise MechRLError(
            "the prompt and the corrupted one are the same to the tokenizer; change what the circuit is about"
        )
    engine = Engine(model, Pairs((clean,), (other,), ((0,),), ((1,),), ((prompt, corrupt),)))
    logits = engine.logits(circuit.live)[0, 0]

    def likeliest(values: torch.Tensor) -> tuple[tuple[str, float], ...]:
        best = values.softmax(-1).topk(min(top, len(values)))
        return tuple(
            (tokenizer.decode([i]), p)
            for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        )

    f = float(engine.faithfulness(circuit.live)[0])
    return Answered(
        prompt,
        corrupt,
        likeliest(engine.clean_logits[0]),
        likeliest(logits),
        likeliest(engine.corrupt_logits[0]),
        f,
        logits,
    )


def logit_attribution(circuit: Circuit, model: Model, behaviour: Behaviour) -> list[dict[str, Any]]:
    """Direct logit attribution: how much each component pushes the answers above the foils, mean over the discovery pairs.

    A row for every component: `component`; `circuit`, what it writes there in the circuit (None without an edge to the logits); `model`,
    what it writes in the whole model. Both beyond the corrupted run, with the final norm held at its scale; strongest in the circuit first.
    """
    model = circuit.as_found(model)
    assert model.tokenizer is not None
    pairs = behaviour.pairs(
        model.tokenizer, circuit.pairs, circuit.pairs_seed, part="discovery", n_ctx=model.spec.n_ctx
    )
    found: dict[str, dict[int, float]] = {}
    for name, mask in (("circuit", circuit.live), ("model", np.ones_like(circuit.mask))):
        total = found[name] = {}
        for clean, corrupt, answers, foils in zip(
            pairs.clean, pairs.corrupt, pairs.answers, pairs.foils, strict=True
        ):
            plain = run_plainly(model, clean, corrupt, mask)
            pushes = push(plain.writes, answers, foils).tolist()
            for source, value in zip(plain.writers.tolist(), pushes, strict=True):
                total[source] = total.get(source, 0.0) + value / len(pairs)
    rows = [
        {"component": name, "circuit": found["circuit"].get(i), "model": found["model"][i]}
        for i, name in enumerate(circuit.graph.source_names)
    ]
    return sorted(rows, key=lambda row: (-abs(row["circuit"] or 0.0), -abs(row["model"])))


def outside(circuit: Circuit) -> dict[str, list[int]]:
    """Components that the circuit does not have, by TransformerLens' hook: `blocks.3.attn.hook_z` heads, `blocks.3.hook_mlp_out` [0]."""
    graph = circuit.graph
    inside = {graph.source_names[s] for s in np.unique(graph.edge_source[circuit.live])}
    found = {}
    for layer in range(graph.n_layers):
        heads = [h for h in range(graph.n_heads) if f"a{layer}.h{h}" not in inside]
        if heads:
            found[f"blocks.{layer}.attn.hook_z"] = heads
        if f"m{layer}" not in inside:
            found[f"blocks.{layer}.hook_mlp_out"] = [0]
    return found


def transformer_lens_hooks(
    circuit: Circuit, corrupted: Mapping[str, torch.Tensor]
) -> list[tuple[str, Callable[[torch.Tensor, Any], torch.Tensor]]]:
    """`fwd_hooks` that give every component outside the circuit its value of the corrupted run (`cache` of `run_with_cache`).

    By component, not by edge: what is inside reads everything that is inside. The circuit, edge by edge, leaves out more.
    """

    def hook(name: str, heads: list[int]) -> Callable[[torch.Tensor, Any], torch.Tensor]:
        def ablate(value: torch.Tensor, hook: Any = None) -> torch.Tensor:
            value = value.clone()
            if name.endswith("hook_z"):
                value[:, :, heads] = corrupted[name][:, :, heads]
            else:
                value[:] = corrupted[name]
            return value

        return ablate

    return [(name, hook(name, heads)) for name, heads in outside(circuit).items()]


_CARD = """# The circuit of {behaviour} in {model}

{size:,} of {all:,} edges of the model's computation graph, found by {method} of MechRL {version}.

| | |
| --- | --- |
| faithfulness f on {pairs} discovery pairs | {f:.3f} |
| f on fresh pairs, which played no part | {fresh} |
| τ, the f that was asked for | {tau:g} |
| passes | {passes:,.0f} |
| weights | sha256 {checksum} |

f is 1 for the whole model and 0 for the corrupted run.

## Use

```python
import mechrl

circuit = mechrl.Circuit.load("hf:{repo}")
mechrl.show(circuit)
```

    mechrl validate hf:{repo}
    mechrl view hf:{repo}
"""
_BASE = {"smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct"}


def card(circuit: Circuit, repo: str) -> str:
    """What the circuit's repository on the hub says of it."""
    fresh = circuit.faithfulness_test
    about = _CARD.format(
        behaviour=circuit.behaviour,
        model=circuit.model,
        size=circuit.size,
        all=circuit.graph.n_edges,
        method=circuit.method,
        version=circuit.version,
        pairs=circuit.pairs,
        f=circuit.faithfulness,
        fresh="not measured" if fresh is None else f"{fresh:.3f}",
        tau=circuit.tau,
        passes=circuit.passes,
        checksum=circuit.checksum,
        repo=repo,
    )
    own = f"openai-community/{circuit.model}" if circuit.model in GPT2 else circuit.model
    on_hub = own if circuit.commit or circuit.model in GPT2 else _BASE.get(circuit.model, "")
    return hub.head("circuit", base_model=on_hub) + about
