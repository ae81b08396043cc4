"""What captions and notes say of a reproduction: candidates, the rule by which a policy's circuit is chosen, seeds."""

from __future__ import annotations

from mechrl.experiments.reproduce import View

PAIRS = {"discovery": "discovery pairs", "test": "fresh pairs"}  # that f is matched on


def candidates_note(view: View) -> str:
    k = min(view.scope.budget.k, view.gated.graph["edges"])
    return (
        f"Top-n and greedy rank all {view.gated.graph['edges']:,} edges. The other searches choose among the {k:,} best by the behaviour's "
        f"own metric and by KL, doubled until these reach τ together; the paper's agent among {view.candidates}, which may fall "
        "short of τ, and its circuit is the most faithful that it found, which need not be matched in f."
    )


def policy_rule(view: View) -> str:
    """How the policy's circuits are chosen, and counted."""
    return (
        f"The policy's circuit is the most faithful of the last masks of {view.scope.budget.rollouts} sampled rollouts and a greedy one, "
        "whatever its size; its edges are all that are kept, as the paper counts them."
    )


def n_seeds(n: int) -> str:
    return f"{n} seed{'s' if n != 1 else ''}"


def over_seeds(view: View) -> str:
    costly = len(view.scope.costly_seeds)
    if costly == len(view.scope.seeds):
        return f"Mean ± sd over {n_seeds(costly)}."
    return f"Mean ± sd over {n_seeds(len(view.scope.seeds))}; over {n_seeds(costly)} where a policy is adapted and for ACDC."


def policy_notes(view: View) -> tuple[str, ...]:
    known = view.training
    if "trained_on" not in known:
        return ("The folder of the policy does not say what it was trained on.",)
    notes = [f"The policy was trained in {known['trained_in']} on {', '.join(known['trained_on'])}."]
    if seen := [name for name in view.chosen.held_out if name in known["trained_on"]]:
        notes.append(f"Not held out from it: {', '.join(seen)}.")
    return tuple(notes)
