"""What captions and notes say of a reproduction: candidates, the rule by which a policy's circuit is chosen, seeds."""

from __future__ import annotations

from mechrl.experiments.reproduce import View

PAIRS = {"discovery": "discovery pairs", "test": "fresh pairs"}  # that f is matched on


def candidates_note(view: View) -> str:
    k = min(view.scope.budget.k, view.gated.graph["edges"])
    return (
        f"Top-n and greedy rank all {view.gated.graph['edges']:,} edges. The other searches choose among the {k:,} best by the behaviour's "
        f"own metric and by KL, doubled until these reach τ together; the policy among {view.candidates}: as it was trained, which may "
        "fall short of τ."
        + (" For fresh pairs there are more where a higher aim takes them." if view.agent.takes_back else "")
    )


def policy_rule(view: View) -> str:
    """How the policy's circuits are chosen in the tables of the paper."""
    rollouts = f"{view.scope.budget.rollouts} sampled rollouts and a greedy one"
    if not view.agent.best_so_far:
        return f"The policy's circuit is, as in the paper, the most faithful of the last masks of {rollouts}, whatever its size."
    from mechrl.rl.env import RewardSettings

    margin, highest = (
        view.agent.reward.get("margin", 0.0),
        view.agent.reward.get("tau_high", RewardSettings.tau_high),
    )
    target = (
        f"{highest:g}"
        if view.agent.meets(view.scope.budget.tau)
        else f"c − {margin:g}, or {highest:g} if that is lower"
    )
    beginning = (
        f"The policy's circuit is not chosen as in the paper: the smallest along {rollouts} with f ≥ {target}, the target of its "
        "training. "
    )
    if view.agent.takes_back:
        return (
            beginning
            + "Cuts that fall below it are taken back, so the most faithful circuit is the one it began with."
        )
    return (
        beginning
        + "It was paid for the best circuit of an episode, so it cuts on beyond that, and its last masks mean nothing."
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
