"""`make demo`: the engine and a search at work on the embedded model, in under a minute on two cores."""

from __future__ import annotations

import time

import numpy as np

from mechrl import gate
from mechrl.attribution import eap_ig_inputs, loss
from mechrl.behaviours import DISCOVERY_SEED, TEST_SEED, get_behaviour
from mechrl.engine import Engine
from mechrl.models import load_model
from mechrl.search.select import greedy


def main() -> None:
    model, behaviour = load_model("toy", device="auto"), get_behaviour("ioi")
    assert model.tokenizer is not None
    graph = model.graph
    print(f"model      toy: {graph.n_layers} layers, {graph.n_heads} heads; {graph.n_nodes} nodes, {graph.n_edges:,} edges")
    verdict = gate.judge(model, behaviour)
    print(f"behaviour  {behaviour.name}: accuracy {verdict.accuracy:.2f}, KL_cut {verdict.kl_cut:.2f}")
    pairs = behaviour.pairs(model.tokenizer, 20, DISCOVERY_SEED)
    engine = Engine(model, pairs)
    fresh = Engine(model, behaviour.pairs(model.tokenizer, 20, TEST_SEED))
    for text in pairs.texts[0]:
        print(f"           “{text} …”")

    whole = np.ones(graph.n_edges, dtype=bool)
    f_whole, f_empty = engine.faithfulness(np.stack([whole, ~whole])).tolist()
    print(f"engine     f(all {graph.n_edges:,} edges) = {f_whole:.4f}, f(no edge) = {f_empty:.4f}")
    rng = np.random.default_rng(0)
    masks = rng.random((256, graph.n_edges)) < 0.3
    begin = time.perf_counter()
    engine.faithfulness(masks)
    seconds = time.perf_counter() - begin
    print(f"           {len(masks)} random circuits of about {masks.sum(1).mean():.0f} edges in {seconds:.2f} s: "
          f"{len(masks) / seconds:.0f} circuits a second")

    scores = eap_ig_inputs(engine, loss(behaviour.metric, pairs, engine))
    print("EAP-IG     edges kept, grown from the logits   f on these pairs   f on fresh pairs")
    for n in (25, 50, 100, 200, 400, 800):
        mask = greedy(graph, scores, n)
        print(f"           {n:>5}{float(engine.faithfulness(mask)[0]):>40.3f}{float(fresh.faithfulness(mask)[0]):>19.3f}")
    print("next       mechrl search blockwise ioi --model toy --out runs/ioi")


if __name__ == "__main__":
    main()
