"""`make demo`: the main job. A policy that was trained beforehand finds a circuit in the embedded model, in under a minute on two cores."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from mechrl import gate
from mechrl.attribution import cached
from mechrl.behaviours import DISCOVERY_SEED, TEST_SEED, get_behaviour
from mechrl.circuit import Circuit
from mechrl.engine import Engine
from mechrl.models import load_model
from mechrl.rl.rollout import Deployment, discover, load_policy, shipped_policy, trained_with
from mechrl.search.select import top_n

BEHAVIOUR = "acronyms"  # held out: the policy has never seen it
OUT = Path("runs/demo")


def main() -> None:
    model, behaviour = load_model("toy"), get_behaviour(BEHAVIOUR)
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

    folder = shipped_policy("toy")
    policy, (settings, reward) = load_policy(folder), trained_with(folder)
    settings = replace(settings, pairs=len(pairs))
    weights = sum(p.numel() for p in policy.parameters())
    say("policy", f"{weights:,} weights, trained on twelve other behaviours; it has never seen this one")
    deployment = Deployment(best_along_episode=True)
    say("rollouts", f"{deployment.rollouts} sampled and a greedy one, {reward.max_steps} decisions each, more where they pay …")
    circuit = discover(model, behaviour, policy, deployment, settings, reward)
    whole, candidates = graph.n_edges, circuit.settings["candidates"]
    say("circuit", f"{len(circuit)} edges, out of {candidates} candidates and {whole:,} in the model")
    say(
        "",
        f"f = {circuit.faithfulness:.3f} on its own pairs, {circuit.faithfulness_test:.3f} on fresh ones (1: the whole model)",
    )
    say("", f"found with {circuit.passes:,.0f} forward passes in {circuit.seconds:.0f} s")
    say("", f"made of {_components(circuit)}")

    engine, fresh = Engine(model, pairs), Engine(model, behaviour.pairs(model.tokenizer, 100, TEST_SEED))
    by_score = top_n(cached(engine, pairs, behaviour.metric), len(circuit))
    rng = np.random.default_rng(0)
    random = np.zeros((100, whole), dtype=bool)
    for row in random:
        row[rng.choice(whole, len(circuit), replace=False)] = True
    f_score, f_random = (float(fresh.faithfulness(masks).mean()) for masks in (by_score, random))
    say(
        "compare",
        f"as many edges by EAP-IG score alone: f = {f_score:.3f} on fresh pairs; at random: {f_random:.3f} (mean of 100)",
    )

    circuit.save(OUT / "circuit.json")
    circuit.to_eap_ig(OUT / "eap-ig.json")
    say("files", f"{OUT / 'circuit.json'}, and {OUT / 'eap-ig.json'} for EAP-IG and MIB")
    say("next", f"mechrl view {OUT / 'circuit.json'}               look at it in the browser")
    say("", "mechrl discover ioi --model toy                  another behaviour")
    say("", "mechrl search blockwise acronyms --model toy     a search that starts from nothing, to compare")
    say("", "mechrl discover acronyms --model smollm2         a real language model (93 MB, fetched once)")


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
