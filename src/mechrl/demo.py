"""`make demo`: the planner finds a circuit in the embedded model, a search finds another, and both are held against controls."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from mechrl import gate
from mechrl.agents.planner.network import load_model as load_network
from mechrl.agents.planner.session import DiscoverSettings, discover
from mechrl.agents.planner.shipped import MODEL, shipped
from mechrl.attribution import cached
from mechrl.behaviours import DISCOVERY_SEED, TEST_SEED, Behaviour, get_behaviour
from mechrl.behaviours.base import Pairs
from mechrl.circuit import Circuit
from mechrl.engine import Engine
from mechrl.models import Model, load_model
from mechrl.search.select import top_n
from mechrl.search.session import SearchSettings, search

BEHAVIOUR = "acronyms"  # held out: the planner has never seen its family
OUT = Path("runs/demo")


def main() -> None:
    model, behaviour = load_model("toy"), get_behaviour(BEHAVIOUR)
    pairs = show_behaviour(model, behaviour)
    circuit = find(model, behaviour)
    compare(model, behaviour, pairs, circuit)
    circuit.save(OUT / "circuit.json")
    circuit.to_eap_ig(OUT / "eap-ig.json")
    say("files", f"{OUT / 'circuit.json'}, and {OUT / 'eap-ig.json'} for EAP-IG and MIB")
    say("next", f"{_mechrl()} view {OUT / 'circuit.json'}              look at it in the browser")
    say("", f"{_mechrl()} discover ioi                               another behaviour")
    say("", f"{_mechrl()} validate {OUT / 'circuit.json'}          is it real?")
    say(
        "",
        f"{_mechrl()} discover acronyms --model smollm2          a real language model (93 MB, fetched once; 540 MB on disk)",
    )


def show_behaviour(model: Model, behaviour: Behaviour) -> Pairs:
    """A prompt pair, and how well the model does on others. Returns the discovery pairs."""
    assert model.tokenizer is not None
    graph = model.graph
    say(
        "model",
        f"toy, {graph.n_layers} layers of {graph.n_heads} heads: a graph of {graph.n_nodes} nodes and {graph.n_edges:,} edges",
    )
    verdict = gate.judge(model, behaviour)
    say("behaviour", f"{behaviour.name}: {behaviour.description}")
    pairs = behaviour.pairs(model.tokenizer, 20, DISCOVERY_SEED)
    clean, corrupt = pairs.texts[0]
    answer = model.tokenizer.decode([pairs.answers[0][0]])
    say("", f"clean      “{clean}” → “{answer}”")
    say("", f"corrupted  “{corrupt}”")
    say(
        "",
        f"the model is right on {verdict.accuracy:.0%} of fresh prompts; corrupting them moves its prediction by {verdict.kl_cut:.1f} nats",
    )
    return pairs


def find(model: Model, behaviour: Behaviour) -> Circuit:
    """The planner's circuit, and a search's beside it."""
    network, about = load_network(shipped("toy") / MODEL)
    assert behaviour.family not in about["families"]
    weights = sum(p.numel() for p in network.parameters())
    say(
        "planner",
        f"{weights:,} weights, fitted to {about['edits']:,} edits of {len(about['behaviours'])} other behaviours' circuits",
    )
    circuit = discover(model, behaviour, network, DiscoverSettings())
    say(
        "circuit",
        f"{len(circuit)} of {model.graph.n_edges:,} edges, {circuit.passes:,.0f} forward passes, {circuit.seconds:.0f} s",
    )
    say(
        "",
        f"f = {circuit.faithfulness:.3f} on its own {circuit.pairs} pairs, {circuit.faithfulness_test:.3f} on fresh ones "
        "(1: the whole model, 0: none of it)",
    )
    say("", f"made of {_components(circuit)}")
    rival = search(model, behaviour, SearchSettings("blockwise", holds_on="fresh"))
    say(
        "compare",
        f"blockwise search, afresh: {len(rival)} edges, {rival.passes:,.0f} passes, {rival.seconds:.0f} s, "
        f"f = {rival.faithfulness_test:.3f} on fresh pairs",
    )
    return circuit


def compare(model: Model, behaviour: Behaviour, pairs: Pairs, circuit: Circuit) -> None:
    """As many edges by score alone, and at random."""
    assert model.tokenizer is not None
    engine, fresh = Engine(model, pairs), Engine(model, behaviour.pairs(model.tokenizer, 100, TEST_SEED))
    by_score = top_n(cached(engine, pairs, behaviour.metric), len(circuit))
    rng = np.random.default_rng(0)
    random = np.zeros((100, model.graph.n_edges), dtype=bool)
    for row in random:
        row[rng.choice(model.graph.n_edges, len(circuit), replace=False)] = True
    f_score, f_random = (float(fresh.faithfulness(masks).mean()) for masks in (by_score, random))
    say(
        "",
        f"as many edges by EAP-IG score alone: f = {f_score:.3f} on fresh pairs; at random: {f_random:.3f} (mean of 100)",
    )


def _mechrl() -> str:
    """The command as it can be pasted: by its path where it is not on PATH."""
    if shutil.which("mechrl"):
        return "mechrl"
    path = Path(sys.executable).parent / "mechrl"
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def _components(circuit: Circuit) -> str:
    """How many heads and MLPs of each layer lie on a path from the input to the logits."""
    graph = circuit.graph
    sources = np.unique(graph.edge_source[graph.prune(circuit.mask)])
    names = [graph.source_names[s] for s in sources if s]
    heads = Counter(int(name[1:].split(".")[0]) for name in names if name.startswith("a"))
    mlps = sorted(int(name[1:]) for name in names if name.startswith("m"))
    per_layer = ", ".join(f"{n} in layer {layer}" for layer, n in sorted(heads.items()))
    return f"{heads.total()} heads ({per_layer}) and the MLPs of layers {', '.join(map(str, mlps))}"


def say(what: str, line: str) -> None:
    print(f"{what:<11}{line}", flush=True)


if __name__ == "__main__":
    main()
