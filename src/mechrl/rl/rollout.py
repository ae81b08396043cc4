"""Deployment: a frozen policy finds a circuit (the paper's section 4), seeded.

Sampled episodes and one greedy one run side by side; each is a candidate, and a rule chooses among them. Default: the smallest
circuit whose f reaches tau, else the most faithful one; `paper`: the most faithful one, whatever its size. The candidate of an
episode is its last mask or, with `best_along_episode`, the best by that same rule of all that it passed through: all of them were
measured on the way, and along an episode circuits only become smaller. An agent that was paid for the best so far cuts on beyond it, so
its last mask means nothing: its episodes are read along unless told otherwise. Where validation pairs judge, episodes are read back to
where these agree, within an action if it cut many edges, and an agent that takes back what fails aims higher besides. What is returned
has its dead edges pruned.

Several deployments of one task run in one batch: on a GPU a step costs nearly the same for 17 circuits as for 86. None of them notices
the others: each has a generator of its own, acts by itself, and is charged for its own episodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from safetensors import SafetensorError

from mechrl.behaviours import DISCOVERY_SEED, TEST_SEED, VALIDATION_SEED, Behaviour
from mechrl.circuit import Circuit
from mechrl.engine import Engine
from mechrl.errors import MechRLError
from mechrl.files.reading import made_of, read_json
from mechrl.models.base import Model
from mechrl.ranges import check_seed
from mechrl.rl.env import (
    BATCH_SIZES,
    MAX_PICKS,
    STATE_AND_SPENT,
    STOP,
    Actions,
    RewardSettings,
    Task,
    VectorEnv,
)
from mechrl.rl.journal import Journal
from mechrl.rl.policy import Policy, States, Tables
from mechrl.rl.ppo import PPOConfig
from mechrl.rl.tasks import HIGHEST_REACH, TaskSettings, aimed, task_of
from mechrl.search.fresh_pairs import fresh, higher, step_back
from mechrl.search.session import ATTEMPTS

Rule = Literal["smallest", "paper"]
Judge = Literal["discovery", "validation"]
Report = Callable[[int, str], None]  # the step that was done, and a line about it
SHIPPED = Path(__file__).parent / "policies"


@dataclass(frozen=True)
class Deployment:
    """What determines a deployment, besides the policy and the task."""

    tau: float | None = 0.9  # None: the agent's own target for the behaviour, c − δ
    rollouts: int = 16  # sampled ones; the greedy one comes on top
    rule: Rule = "smallest"
    judge: Judge = "discovery"  # the pairs whose f the rule goes by
    best_along_episode: bool | None = None  # None: as the policy was trained, yes with `best_so_far`
    seed: int = 0
    trades: bool = True  # exchanges are an action, if the agent takes back what fails; it need not have been trained with them

    def __post_init__(self) -> None:
        for name, value, known in (
            ("rule", self.rule, get_args(Rule)),
            ("judge", self.judge, get_args(Judge)),
        ):
            if value not in known:
                raise MechRLError(f"unknown {name} {value!r}; choose one of {', '.join(known)}")
        if self.tau is not None and not 0 < self.tau < 1:
            raise MechRLError(f"tau must lie between 0 and 1, not be {self.tau:g}")
        if self.rollouts < 0:
            raise MechRLError("the number of rollouts cannot be negative")
        check_seed(self.seed)


@dataclass(frozen=True)
class Episode:
    """One rollout of `steps` actions; place 0 is the whole candidate set."""

    masks: np.ndarray  # [steps + 1, K] bool
    f: np.ndarray  # [steps + 1] on the discovery pairs
    cuts: tuple[tuple[int, ...], ...]  # [steps] the candidates that each action cut, in order
    passes: float = 0.0  # what its steps and looks cost

    def removed(self, step: int) -> tuple[int, ...]:
        """What was cut up to a step and is not back, in the order in which it was."""
        gone: dict[int, None] = {}
        for cut in self.cuts[:step]:
            for edge in cut:
                gone.pop(edge, None)  # it came back in between
                gone[edge] = None
        return tuple(edge for edge in gone if not self.masks[step][edge])

    def gone(self, step: int, worth: np.ndarray) -> np.ndarray:
        """The candidates that the action after a step cut, of the least `worth` [K] first."""
        gone = np.flatnonzero(self.masks[step] & ~self.masks[step + 1])
        return gone[np.argsort(worth[gone], kind="stable")]

    def part_of_the_way(self, step: int, gone: np.ndarray) -> np.ndarray:
        """[K] what the action after a step would have left, had it cut only these of its edges."""
        mask = self.masks[step] | self.masks[step + 1]
        mask[gone] = False
        return mask

    def ended(self, step: int, mask: np.ndarray, f: float, gone: np.ndarray) -> Episode:
        """The same up to a step, and then a last one to `mask`."""
        masks, at = np.concatenate([self.masks[: step + 1], mask[None]]), np.append(self.f[: step + 1], f)
        return Episode(masks, at, (*self.cuts[:step], tuple(gone.tolist())))


def rollouts(
    policy: Policy,
    task: Task,
    reward: RewardSettings,
    n: int,
    seed: int,
    report: Report = lambda step, line: None,
    journal: Journal | None = None,
) -> list[Episode]:
    """`n` sampled episodes and a greedy one, the last. Every step of all of them is one call of the engine."""
    return many_rollouts(policy, task, reward, [(n, seed)], report, journal)[0]


def many_rollouts(
    policy: Policy,
    task: Task,
    reward: RewardSettings,
    asked: Sequence[tuple[int, int]],
    report: Report = lambda step, line: None,
    journal: Journal | None = None,
) -> list[list[Episode]]:
    """`rollouts` for every (n, seed) that is `asked`, in one batch. The greedy episode is the same for all, and run once."""
    device = next(policy.parameters()).device
    ends = np.cumsum([n for n, _ in asked])
    blocks = [slice(end - n, end) for (n, _), end in zip(asked, ends, strict=True)]
    generators = [torch.Generator(device).manual_seed(seed) for _, seed in asked]
    tables = Tables.of([task], device)
    one = np.random.default_rng(0)  # draws the behaviours, and there is one
    env = VectorEnv([task], int(ends[-1]) + 1, reward, one, go_on=reward.take_back)
    way = _Way(env)
    of = {"candidates": task.candidates, "tau": np.array([task.tau]), "asked": np.array(asked)}
    left = journal.next(of) if journal is not None else None
    if left is not None:
        way.follow(left)
        for name in STATE_AND_SPENT:
            setattr(env, name, left[f"env.{name}"].copy())
        for generator, state in zip(generators, left["generators"], strict=True):
            generator.set_state(torch.from_numpy(state.copy()))

    def arrays() -> dict[str, np.ndarray]:
        drawn = {"generators": np.stack([generator.get_state().numpy() for generator in generators])}
        return of | way.arrays() | drawn | {f"env.{name}": getattr(env, name) for name in STATE_AND_SPENT}

    while way.running.any():
        states = States.of(env.task, env.mask, env.globals(), env.scores, env.closed, device)
        actions = _decide(policy, tables, states, way.running, blocks, generators)
        way.add(actions, env, env.step(actions, restart=False).done)
        report(
            way.steps,
            f"step {way.steps}, {env.mask.sum(1).mean():,.0f} edges left, f {env.f.mean():.3f} on average",
        )
        if journal is not None:
            journal.write(arrays, ended=not way.running.any())
    episodes = way.episodes(env.passes)
    return [[*episodes[block], episodes[-1]] for block in blocks]


class _Way:
    """What episodes side by side have come through. On disk a mask is what went and what came back since the one before."""

    def __init__(self, env: VectorEnv) -> None:
        self.masks, self.f = [env.mask.copy()], [env.f.copy()]  # [n, K] and [n], before and after every step
        self.cuts: list[list[tuple[int, ...]]] = [
            [] for _ in range(env.n)
        ]  # of every step until the episode ended
        self.back: list[np.ndarray] = []  # places in [n, K] where a step brought an edge back
        self.running = np.ones(env.n, dtype=bool)

    @property
    def steps(self) -> int:
        return len(self.back)

    def add(self, actions: Actions, env: VectorEnv, done: np.ndarray) -> None:
        before = self.masks[-1]
        for i in np.flatnonzero(self.running):
            self.cuts[i].append(
                _cut(before[i] & ~env.mask[i], actions.edges[i, : BATCH_SIZES[actions.type[i]]])
            )
        self.back.append(np.flatnonzero(env.mask & ~before))
        self.running &= ~done
        self.masks.append(env.mask.copy())
        self.f.append(env.f.copy())

    def episodes(self, passes: np.ndarray) -> list[Episode]:
        masks, f = np.array(self.masks), np.array(self.f)
        lengths = [len(cuts) for cuts in self.cuts]
        return [
            Episode(masks[: n + 1, i], f[: n + 1, i], tuple(self.cuts[i]), float(passes[i]))
            for i, n in enumerate(lengths)
        ]

    def arrays(self) -> dict[str, np.ndarray]:
        cuts = [np.array(cut, dtype=np.int32) for of_one in self.cuts for cut in of_one]
        return {
            "way.f": np.array(self.f),
            "way.running": self.running,
            "way.lengths": np.array([len(of_one) for of_one in self.cuts]),
            "way.cut": np.concatenate(cuts),
            "way.cut_sizes": np.array([len(cut) for cut in cuts]),
            "way.back": np.concatenate(self.back),
            "way.back_sizes": np.array([len(back) for back in self.back]),
        }

    def follow(self, arrays: dict[str, np.ndarray]) -> None:
        """From the beginning to where `arrays` were taken."""
        self.f, self.running = list(arrays["way.f"]), arrays["way.running"].copy()
        cuts = _parts(arrays["way.cut"], arrays["way.cut_sizes"])
        ends = np.cumsum(arrays["way.lengths"])
        of_each = [cuts[end - n : end] for n, end in zip(arrays["way.lengths"], ends, strict=True)]
        self.cuts = [[tuple(cut.tolist()) for cut in of_one] for of_one in of_each]
        self.back = _parts(arrays["way.back"], arrays["way.back_sizes"])
        for step, back in enumerate(self.back):
            mask = self.masks[-1].copy()
            for i, of_one in enumerate(of_each):
                if step < len(of_one):
                    mask[i, of_one[step]] = False
            mask.flat[back] = True
            self.masks.append(mask)


def _parts(all_of_them: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    return np.split(all_of_them, np.cumsum(sizes)[:-1])


def _decide(
    policy: Policy,
    tables: Tables,
    states: States,
    running: np.ndarray,
    blocks: list[slice],
    generators: list[torch.Generator],
) -> Actions:
    """Sampled actions for the states of every block, the likeliest for the last one. An episode that has ended stays as it is.

    One call a block, though one for all would do: how much noise a call draws, and for which state, depends on all of its states. On a
    GPU blocks of one size share a captured graph, and the engine's call takes far longer.
    """
    n = len(states)
    actions = Actions(np.full(n, STOP), np.full((n, MAX_PICKS), -1), np.zeros(n, dtype=np.int64))
    for block, generator in zip([*blocks, slice(n - 1, n)], [*generators, None], strict=True):
        if running[block].any():
            decided = policy.act(tables, states[block], generator, greedy=generator is None).actions
            actions.type[block], actions.edges[block], actions.node[block] = (
                decided.type,
                decided.edges,
                decided.node,
            )
    actions.type[~running] = STOP
    return actions


def _cut(gone: np.ndarray, picks: np.ndarray) -> tuple[int, ...]:
    """The candidates that an action cut: picks in their order, then those of a component, or which died with it, in edge order."""
    picked = [int(p) for p in picks if gone[p]]
    gone = gone.copy()
    gone[picked] = False
    return (*picked, *np.flatnonzero(gone).tolist())


def best_step(episode: Episode, tau: float, rule: Rule) -> int:
    """The step whose mask is the episode's candidate, had it stopped there. Later masks are smaller."""
    enough = np.flatnonzero(episode.f >= tau)
    if rule == "smallest" and len(enough):
        return int(enough[-1])
    return int(np.flatnonzero(episode.f == episode.f.max())[-1])


def choose(f: np.ndarray, size: np.ndarray, tau: float, rule: Rule) -> int:
    """Which of the candidates with faithfulness `f` [n] and pruned size `size` [n]; of equals the first."""
    enough = np.flatnonzero(f >= tau)
    if rule == "smallest" and len(enough):
        return int(min(enough, key=lambda i: (size[i], -f[i])))
    return int(min(range(len(f)), key=lambda i: (-f[i], size[i])))


def discover(
    model: Model,
    behaviour: Behaviour,
    policy: Policy,
    deployment: Deployment = Deployment(),  # noqa: B008 (frozen)
    settings: TaskSettings = TaskSettings(),  # noqa: B008 (frozen)
    reward: RewardSettings = RewardSettings(),  # noqa: B008 (frozen)
    report: Report = lambda step, line: None,
) -> Circuit:
    """The circuit that a policy finds for a behaviour of a model, from nothing: pairs, prefilter, rollouts, choice."""
    began = time.perf_counter()
    task = task_of(model, behaviour, settings, reward)
    return deploy(model, behaviour, task, policy, deployment, settings, reward, report=report, began=began)


def deploy(
    model: Model,
    behaviour: Behaviour,
    task: Task,
    policy: Policy,
    deployment: Deployment,
    settings: TaskSettings,
    reward: RewardSettings,
    **more: Any,
) -> Circuit:
    """The same on a task that is ready. `more`: see `deploy_together`."""
    return deploy_together(model, behaviour, task, policy, [deployment], settings, reward, **more)[0]


def deploy_together(
    model: Model,
    behaviour: Behaviour,
    task: Task,
    policy: Policy,
    deployments: Sequence[Deployment],
    settings: TaskSettings,
    reward: RewardSettings,
    *,
    method: str = "policy",
    about: dict[str, Any] | None = None,
    passes_before: float = 0.0,
    seconds_before: float = 0.0,
    began: float | None = None,
    report: Report = lambda step, line: None,
    journal: Journal | None = None,
) -> list[Circuit]:
    """The circuits of several deployments, each what it would be alone, passes included; only the seconds are those of all together.

    What the task's engine was charged before is part of every circuit's cost. All of them trade, or none. With a `journal` they can be
    stopped, and go on from there.
    """
    (trades,) = {d.trades for d in deployments}
    reward = replace(reward, trades=trades and reward.take_back and policy.config.parts)
    policy = policy.with_trades() if reward.trades else policy
    began = time.perf_counter() if began is None else began
    found = many_rollouts(policy, task, reward, [(d.rollouts, d.seed) for d in deployments], report, journal)
    sampled = [
        sum(e.passes for e in episodes[:-1]) for episodes in found
    ]  # what each deployment does not share with the others
    shared = passes_before + task.engine.passes - sum(sampled)
    judged = any(d.judge == "validation" for d in deployments)
    validation = fresh(model, behaviour, VALIDATION_SEED) if judged else None
    choices, aiming = [], []  # what each has chosen, and what aiming higher has cost it
    for deployment, episodes in zip(deployments, found, strict=True):
        before = task.engine.passes
        choice = _Choice.of(model, task, settings, reward, deployment, episodes, validation)
        if reward.take_back and choice.short > 0:
            assert validation is not None
            choice = _aim_higher(choice, model, policy, reward, validation, report, journal)
        choices.append(choice)
        aiming.append(task.engine.passes - before)
    seconds = (
        seconds_before
        + time.perf_counter()
        - began
        + (journal.seconds_before if journal is not None else 0.0)
    )
    test = fresh(model, behaviour, TEST_SEED)

    def circuit(choice: _Choice, passes: float) -> Circuit:
        deployment, episode, task = choice.deployment, choice.episode, choice.task
        known: dict[str, Any] = asdict(deployment) | {
            "tau": choice.tau,
            "best_along_episode": choice.along,
            "trades": reward.trades,
        }
        known |= choice.settings.to_json() | {"pairs_seed": DISCOVERY_SEED} | (about or {})
        known |= {"candidates": task.K, "ceiling": task.ceiling, "agent_tau": task.tau, "note": choice.note}
        if choice.along:  # what the last masks alone would have given
            asked = replace(deployment, best_along_episode=False)
            last = _Choice.of(model, task, choice.settings, reward, asked, choice.episodes, validation)
            mask = last.pruned(model)
            known["last_masks"] = {
                "edges": int(mask.sum()),
                "faithfulness": last.f,
                "faithfulness_validation": last.f_validation,
            }
            known["last_masks"]["faithfulness_test"] = float(test.faithfulness(mask)[0])
        mask = choice.pruned(model)
        kept = task.candidates[choice.mask]
        dead = kept[~mask[kept]]
        return Circuit(
            model=model.name,
            checksum=model.checksum,
            commit=model.commit,
            graph=model.graph,
            d_model=model.spec.d_model,
            behaviour=behaviour.name,
            method=method,
            settings=known | {"edges_before_pruning": int(choice.mask.sum())},
            tau=choice.tau,
            seed=deployment.seed,
            pairs=task.engine.n_pairs,
            mask=mask,
            faithfulness=choice.f,
            faithfulness_test=float(test.faithfulness(mask)[0]),
            faithfulness_validation=choice.f_validation,
            order=tuple(int(task.candidates[c]) for c in episode.removed(choice.step)) + tuple(dead.tolist()),
            passes=round(passes, 6),
            seconds=seconds,
            attribution=task.scores[0],
            rows=behaviour.rows(),
            bos=model.tokenizer is not None and model.tokenizer.bos is not None,
        )

    return [
        circuit(choice, shared + own + more + choice.passes)
        for choice, own, more in zip(choices, sampled, aiming, strict=True)
    ]


def _aim_higher(
    choice: _Choice,
    model: Model,
    policy: Policy,
    reward: RewardSettings,
    validation: Engine,
    report: Report,
    journal: Journal | None,
) -> _Choice:
    """An agent that takes back what fails ends at its target on its own pairs, and so below it on others. As searches do, it aims as much
    higher as its best circuit fell short on the validation pairs, and begins anew, until one does not. Each time what was on the way to
    these circuits is a choice too, for a higher aim may end larger than a lower one stepped back; and once it has ended no smaller than
    a circuit that is enough, still higher ones are not tried.
    """
    deployment, tried = replace(choice.deployment, tau=choice.tau), [choice]
    while choice.short > 0 and len(tried) < ATTEMPTS:
        smallest = min((c.pruned(model).sum() for c in tried if c.judged >= c.tau), default=np.inf)
        if min(episode.masks[-1].sum() for episode in choice.episodes) >= smallest:
            break
        task, settings = aimed(choice.task, higher(choice.task.tau, choice.short), choice.settings, reward)
        if task.ceiling <= task.tau:
            break
        episodes = rollouts(policy, task, reward, deployment.rollouts, deployment.seed, report, journal)
        choice = _Choice.of(model, task, settings, reward, deployment, episodes, validation)
        tried.append(choice)
    judged = np.array([c.judged for c in tried])
    size = np.array([c.pruned(model).sum() for c in tried])
    return replace(
        tried[choose(judged, size, choice.tau, deployment.rule)], passes=sum(c.passes for c in tried)
    )


def _f(engine: Engine, masks: list[np.ndarray], task: Task) -> np.ndarray:
    """Of circuits over the task's candidates, on an engine's pairs."""
    return engine.faithfulness(np.stack(masks), task.candidates).double().cpu().numpy()


def _part_of_the_way(
    task: Task,
    episodes: list[Episode],
    steps: np.ndarray,
    ended: np.ndarray,
    judged: np.ndarray,
    tau: float,
    validation: Engine,
) -> tuple[list[Episode], np.ndarray, np.ndarray]:
    """An action may cut many edges at once. Where stepping back led from the step at which it `ended` to one that is enough, so may a part
    of the action after that be: the edges of least attribution, as many as bisection finds.
    """
    episodes, steps, judged = list(episodes), steps.copy(), judged.copy()
    back = np.flatnonzero((steps < ended) & (judged >= tau))
    worth = np.abs(task.scores[0][task.candidates])
    gone = [episodes[j].gone(steps[j], worth) for j in back]

    def measure(which: np.ndarray, parts: np.ndarray) -> np.ndarray:
        masks = [
            episodes[back[w]].part_of_the_way(steps[back[w]], gone[w][:n])
            for w, n in zip(which, parts, strict=True)
        ]
        return _f(validation, masks, task)

    parts, f = step_back(
        np.array([len(g) for g in gone], dtype=np.int64),
        np.full(len(back), -np.inf),
        tau,
        measure,
        enough_at=0,
    )
    better = np.flatnonzero(f >= tau)
    if len(better):
        masks = [episodes[back[w]].part_of_the_way(steps[back[w]], gone[w][: parts[w]]) for w in better]
        for w, mask, own in zip(better, masks, _f(task.engine, masks, task), strict=True):
            j = back[w]
            episodes[j] = episodes[j].ended(steps[j], mask, float(own), gone[w][: parts[w]])
            steps[j], judged[j] = steps[j] + 1, f[w]
    return episodes, steps, judged


@dataclass(frozen=True)
class _Choice:
    """Which of a deployment's masks its rule takes."""

    task: Task
    settings: TaskSettings  # that its candidates come from
    deployment: Deployment
    tau: float
    along: bool
    episodes: list[Episode]
    number: int  # of the episode
    episode: Episode  # the same; if its circuit is none that it came through, the way to that
    step: int
    f: float
    judged: float  # f on the pairs that judge
    short: float  # of τ on the validation pairs, at best, before stepping back; nothing, if they judge nothing or the rule asks for no τ
    passes: float  # of judging

    @staticmethod
    def of(
        model: Model,
        task: Task,
        settings: TaskSettings,
        reward: RewardSettings,
        deployment: Deployment,
        episodes: list[Episode],
        validation: Engine | None,
    ) -> _Choice:
        tau = task.tau if deployment.tau is None else deployment.tau
        along = deployment.best_along_episode
        if (
            along is None
        ):  # where cuts are taken back the last circuit is the best, but for pairs that the agent has not seen
            along = reward.best_so_far or (reward.take_back and deployment.judge == "validation")
        steps = np.array([best_step(e, tau, deployment.rule) if along else len(e.f) - 1 for e in episodes])
        chosen = episodes
        judged, short, passes = None, 0.0, 0.0
        if deployment.judge == "validation":
            assert validation is not None

            def f_validation_of(which: np.ndarray, at: np.ndarray) -> np.ndarray:
                return _f(validation, [episodes[j].masks[t] for j, t in zip(which, at, strict=True)], task)

            before = validation.passes
            judged = f_validation_of(np.arange(len(episodes)), steps)
            if deployment.rule == "smallest":
                short = float(tau - judged.max())
                if along:
                    ended = steps
                    steps, judged = step_back(steps, judged, tau, f_validation_of)
                    chosen, steps, judged = _part_of_the_way(
                        task, episodes, steps, ended, judged, tau, validation
                    )
            passes = validation.passes - before
        masks = np.stack([e.masks[t] for e, t in zip(chosen, steps, strict=True)])
        f = np.array([e.f[t] for e, t in zip(chosen, steps, strict=True)])
        judged = f if judged is None else judged
        i = choose(judged, model.graph.prune(masks, task.candidates).sum(1), tau, deployment.rule)
        own, on_judges = float(f[i]), float(judged[i])
        return _Choice(
            task,
            settings,
            deployment,
            tau,
            along,
            episodes,
            i,
            chosen[i],
            int(steps[i]),
            own,
            on_judges,
            short,
            passes,
        )

    @property
    def f_validation(self) -> float | None:
        """If these pairs judge."""
        return self.judged if self.deployment.judge == "validation" else None

    @property
    def mask(self) -> np.ndarray:
        """[K]"""
        return self.episode.masks[self.step]

    @property
    def note(self) -> str:
        kind = "greedy" if self.number == self.deployment.rollouts else "sampled"
        aim = f", which aimed at f = {self.task.tau:.3f}" if self.task.tau > self.tau else ""
        own = self.episodes[self.number]
        part = "" if self.episode is own else "part of "
        return f"{kind} rollout, {part}step {self.step} of {len(own.f) - 1}{aim}"

    def pruned(self, model: Model) -> np.ndarray:
        """[E]"""
        task = self.task
        mask = np.zeros(model.graph.n_edges, dtype=bool)
        mask[task.candidates] = model.graph.prune(self.mask, task.candidates)
        return mask


# ---- policies on disk -----------------------------------------------------------------------------------------------


def shipped_policy(model: str) -> Path:
    """Where the policy that comes with the package for a model is: `toy` has its own, others take that of SmolLM2."""
    return SHIPPED / ("toy" if model == "toy" else "smollm2")


def load_policy(folder: Path, device: torch.device | str = "cpu") -> Policy:
    """`Policy.load`, with a line for people when the folder is not what it should be."""
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            if folder.parent == SHIPPED:
                raise MechRLError(
                    "no policy for this model comes with this version; train one with `mechrl train` and give it by --policy"
                )
            raise MechRLError(
                f"{folder}: not the folder of a policy, {name} is missing; `mechrl train` writes them"
            )
    try:
        policy = Policy.load(folder, device)
        if not all(weights.isfinite().all() for weights in policy.state_dict().values()):
            raise ValueError("a weight is not a number")
        return policy
    except RuntimeError as exc:
        raise MechRLError(
            f"{folder}: model.safetensors does not fit config.json; they are not of the same policy"
        ) from exc
    except MechRLError as exc:
        raise MechRLError(f"{folder}: {exc}") from exc
    except (SafetensorError, OSError, TypeError, ValueError, AttributeError) as exc:
        raise MechRLError(
            f"{folder}: the policy's files are damaged or cut short; copy or train them again"
        ) from exc


def trained_with(folder: Path, tau: float | None = None) -> tuple[TaskSettings, RewardSettings]:
    """The candidate sets and episodes that a policy was trained on, from the run.json beside it; else the paper's.

    Where f decides how many candidates there are, k is but a bound: training may want it low, a deployment has the paper's at least. An
    agent that was trained towards a target takes `tau` for it, and has as many candidates as reach it with its margin.
    """
    try:
        known = read_json(folder / "run.json")
        task, reward = made_of(TaskSettings, known["task"]), made_of(RewardSettings, known["reward"])
        if task.spare:
            task = replace(task, k=max(task.k, TaskSettings().k))
        if reward.tau_high != RewardSettings.tau_high:
            reward = replace(reward, tau_high=reward.tau_high if tau is None else tau)
            task = replace(task, reach=min(reward.tau_high + reward.margin, HIGHEST_REACH))
        return task, reward
    except FileNotFoundError:
        return TaskSettings(), RewardSettings()
    except (OSError, KeyError, TypeError, ValueError) as exc:
        raise MechRLError(
            f"{folder / 'run.json'}: damaged; remove it to deploy with the paper's settings"
        ) from exc


def learned_with(folder: Path) -> dict[str, Any]:
    """Of the PPO that trained a policy what more training must share: the discount, which its values are of, from the same run.json.

    Only if it is not the paper's, which is that of a policy without a run.json too.
    """
    try:
        gamma = read_json(folder / "run.json")["ppo"]["gamma"]
        if type(gamma) not in (int, float) or not 0 <= gamma <= 1:
            raise ValueError("the discount is none")
    except (FileNotFoundError, KeyError):
        return {}
    except (OSError, TypeError, ValueError) as exc:
        raise MechRLError(
            f"{folder / 'run.json'}: damaged; remove it to train on with the paper's settings"
        ) from exc
    return {} if gamma == PPOConfig.gamma else {"gamma": gamma}
