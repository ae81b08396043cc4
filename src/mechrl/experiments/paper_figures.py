"""The figures of the paper, and the one it leaves out: sizes at matched f on discovery and on fresh pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mechrl.experiments import paper_numbers as paper
from mechrl.experiments.compare_tables import NAMES
from mechrl.experiments.reproduce import View, acdc_best, spread
from mechrl.report.figures import (
    BLACK,
    BLUE,
    COLOURS,
    GREY,
    ORANGE,
    RED,
    Figure,
    Point,
    dots,
    draw,
    empty,
    plain_log,
    style_of,
)
from mechrl.stats import Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


_SHORT = {"warm start": "warm", "from scratch": "scratch"}


def all_figures(view: View) -> list[Figure]:
    return [transfer(view), warm_scratch(view), beyond(view), cost(view), matched(view)]


def _points(
    values: dict[str, Spread | None], colour: str, solid: bool, label: str, marker: str = "o"
) -> list[Point]:
    return [
        Point(name, s.mean, s.sd, solid, colour, marker, label) for name, s in values.items() if s is not None
    ]


def _height(rows: int, each: float = 0.34) -> float:
    return 1.5 + each * max(rows, 3)


def _legend_below(canvas: Canvas, ax: Axes, columns: int = 4) -> None:
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        canvas.legend(handles, labels, loc="outside lower center", ncols=columns)


def transfer(view: View) -> Figure:
    names = view.chosen.held_out
    values = {
        key: {
            kind: {name: spread(view.results(group, name), key) for name in names}
            for kind, group in (("zero-shot", view.cells.policy), ("warm start", view.cells.adapted))
        }
        for key in ("f", "edges_pruned")
    }

    def paint(canvas: Canvas) -> None:
        left, right = canvas.subplots(1, 2, sharey=True)
        for ax, key, label, title in (
            (left, "f", "faithfulness f (1 = the model)", "(a) faithfulness"),
            (right, "edges_pruned", "circuit size |C| (edges)", "(b) size"),
        ):
            points = _points(values[key]["zero-shot"], BLUE, False, "zero-shot") + _points(
                values[key]["warm start"], BLUE, True, "warm start"
            )
            if view.is_paper_model:
                place = 0 if key == "f" else 1
                for kind, marker in (("zero_shot", "x"), ("warm", "+")):
                    theirs = {
                        n: Spread(paper.TRANSFER[n][kind][place], None, 1)
                        for n in names
                        if n in paper.TRANSFER
                    }
                    points += _points(
                        dict(theirs), GREY, True, f"the paper, {kind.replace('_', '-')}", marker
                    )
            if not points:
                empty(ax)
                continue
            dots(ax, names, points, label, log=key == "edges_pruned")
            low, high = ax.get_xlim()
            if key == "f" and high - low < 0.1:  # a thousandth is no difference to look at
                ax.set_xlim((low + high) / 2 - 0.05, (low + high) / 2 + 0.05)
            ax.set_title(title)
        _legend_below(canvas, left)

    return draw(
        "figure-1-transfer",
        "Figure 1 · Transfer to held-out behaviours",
        "Zero-shot (open) and after the warm start (filled), on discovery pairs; bars are one standard deviation over seeds.",
        "Faithfulness and size of the policy's circuits for held-out behaviours, zero-shot and after a warm start.",
        _jsonable(values),
        view.command,
        (8.2, _height(len(names))),
        paint,
    )


def warm_scratch(view: View) -> Figure:
    names = view.chosen.held_out
    curves: dict[str, dict[str, list[dict[str, Any]]]] = {
        name: {
            kind: [r["learning"] | {"final_f": r["f"]} for r in view.results(group, name)]
            for kind, group in (("warm start", view.cells.adapted), ("from scratch", view.cells.scratch))
        }
        for name in names
    }
    columns = min(4, max(1, len(names)))
    rows = -(-max(1, len(names)) // columns)

    def paint(canvas: Canvas) -> None:
        from matplotlib.ticker import MaxNLocator

        axes = canvas.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flatten()
        with_legend = None
        for ax, name in zip(axes, names, strict=False):
            ends = {kind: [run["final_f"] for run in runs] for kind, runs in curves[name].items() if runs}
            for kind, colour, style in (("warm start", BLUE, "-"), ("from scratch", RED, "--")):
                for i, run in enumerate(curves[name][kind]):
                    label = kind if i == 0 else None
                    ax.plot(
                        run["iteration"],
                        run["share"],
                        style,
                        color=colour,
                        label=label,
                        linewidth=1.5,
                        marker="o",
                        markersize=2,
                    )
            finals = ", ".join(f"{Spread.of(f).mean:.2f} {_SHORT[kind]}" for kind, f in ends.items())
            ax.set_title(f"{name}\nf {finals}" if ends else name, fontsize=8.5)
            if any(run["iteration"] for runs in curves[name].values() for run in runs):
                with_legend = with_legend or ax
            else:
                empty(ax, "no episode has ended yet" if ends else "nothing done yet")
        for ax in axes[len(names) :]:
            ax.set_axis_off()
        for ax in axes[max(0, len(names) - columns) : len(names)]:  # the lowest of every column
            ax.set_xlabel("iteration")
            ax.tick_params(labelbottom=True)
        axes[0].xaxis.set_major_locator(MaxNLocator(4, integer=True))  # all share it
        for ax in axes[::columns]:
            ax.set_ylabel("|C| / K")
        axes[0].set_ylim(0, 1.05)
        if with_legend is not None:
            _legend_below(canvas, with_legend)

    return draw(
        "figure-2-warm-scratch",
        "Figure 2 · Warm start and training from scratch",
        "|C| / K: what the episodes that ended in an iteration had kept of the candidates, on average. Above each panel f of the final "
        "circuits: after the warm start, and after training from scratch.",
        "Share of the candidate set kept per training iteration, for warm-started policies and policies trained from scratch.",
        curves,
        view.command,
        (8.2, 1.3 + 1.9 * rows),
        paint,
    )


def beyond(view: View) -> Figure:
    names = view.chosen.all
    ceilings = {}
    for name in names:
        results = view.results(view.cells.curves, name)
        if results:
            ks = results[0]["k"]
            ceilings[name] = {
                "k": ks,
                "f": [Spread.of(r["f_metric"][i] for r in results).mean for i in range(len(ks))],
            }
    groups = (("zero-shot", view.cells.policy, False), ("warm start", view.cells.adapted, True))
    gains, costs = (
        {
            kind: {name: spread(view.results(group, name), "beyond", key) for name in names}
            for kind, group, _ in groups
        }
        for key in ("gain", "cost")
    )
    controls = {
        name: spread(view.results(view.cells.policy, name), "beyond", "cost_random", "mean") for name in names
    }

    def paint(canvas: Canvas) -> None:
        spec = canvas.add_gridspec(2, 2, height_ratios=(1.0, 0.32 + 0.085 * len(names)))
        top = canvas.add_subplot(spec[0, :])
        for i, name in enumerate(names):
            if name in ceilings:
                colour, marker = style_of(i)
                line = "-" if i < len(COLOURS) else "--"  # a colour's second turn
                known = ceilings[name]
                top.plot(
                    known["k"],
                    known["f"],
                    line,
                    color=colour,
                    marker=marker,
                    markersize=4,
                    linewidth=1.3,
                    label=name,
                )
        if ceilings:
            top.set_xscale("log")
            plain_log(top, "x")
            top.axhline(view.plan.budget.tau, color=GREY, linewidth=0.8, linestyle=":")
            top.axvline(view.agent.k, color=GREY, linewidth=0.8, linestyle=":")
            top.set_xlabel("K: best edges by attribution")
            top.set_ylabel("faithfulness f of the K edges")
            top.set_ylim(bottom=max(-0.1, top.get_ylim()[0]), top=1.03)
            top.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        else:
            empty(top)
        top.set_title(f"(a) candidate sets; dotted: K = {view.agent.k:,} and f = {view.plan.budget.tau:g}")
        left, right = canvas.add_subplot(spec[1, 0]), canvas.add_subplot(spec[1, 1])
        for ax, values, label, title in (
            (left, gains, "f(C) − f(top-|C|)", "(b) gain over the ranking"),
            (right, costs, "f(C) − f(C without them)", "(c) cost of deleting discordant edges"),
        ):
            points = [p for kind, _, solid in groups for p in _points(values[kind], BLUE, solid, kind)]
            if ax is right:
                points += _points(controls, ORANGE, True, "as many random edges", "D")
            if points:
                dots(ax, names, points, label)
                ax.axvline(0, color=BLACK, linewidth=0.8)
            else:
                empty(ax)
            ax.set_title(title)
        right.tick_params(labelleft=False)
        _legend_below(canvas, right, 3)

    return draw(
        "figure-3-beyond",
        "Figure 3 · Beyond the prefilter",
        "(a) f of the K best edges by the behaviour's own metric, on discovery pairs. (b) The policy's gain in f over as many best edges. "
        "(c) What its edges below that cut carry, and what as many random edges of its circuit do. Bars: one standard deviation.",
        "Faithfulness against candidate set size; the policy's gain over the attribution ranking; the cost of deleting discordant edges.",
        {
            "ceilings": ceilings,
            "gain": _jsonable(gains),
            "cost": _jsonable(costs),
            "cost_random": _jsonable(controls),
        },
        view.command,
        (8.2, 4.2 + 0.33 * max(len(names), 3)),
        paint,
    )


def cost(view: View) -> Figure:
    tau, names = view.plan.budget.tau, view.chosen.all
    deployment = spread([r for name in names for r in view.results(view.cells.policy, name)], "passes")
    adaptation = spread(
        [r for name in names for r in view.results(view.cells.adapted, name)], "passes_training"
    )
    training = view.training.get("passes")
    bars = {
        "deployment,\nper behaviour": deployment.mean if deployment else None,
        "warm start,\nper behaviour": adaptation.mean if adaptation else None,
        "training,\nonce": training,
    }
    plane: dict[str, list[dict[str, Any]]] = {}
    for method in view.plan.methods:
        found = {name: view.results(view.cells.matched, "discovery", name, method) for name in names}
        plane[NAMES[method]] = [
            _place(name, results, "edges_pruned", tau) for name, results in found.items() if results
        ]
    whole = {name: best[1] for name in names if (best := acdc_best(view, name, tau)) is not None}
    plane["ACDC, whole graph"] = [_place(name, results, "edges", tau) for name, results in whole.items()]

    def paint(canvas: Canvas) -> None:
        left, right = canvas.subplots(1, 2, width_ratios=(1, 1.5))
        known = {label: value for label, value in bars.items() if value}
        if known:
            left.barh(list(known), list(known.values()), color=[BLUE, ORANGE, GREY][: len(known)], height=0.5)
            left.set_xscale("log")
            left.set_xlim(min(known.values()) / 5, max(known.values()) * 12)
            plain_log(left, "x")
            left.invert_yaxis()
            left.set_xlabel("passes")
            left.grid(axis="y", visible=False)
            for i, value in enumerate(known.values()):
                left.annotate(
                    f"{value:,.0f}",
                    (value, i),
                    va="center",
                    fontsize=8,
                    xytext=(4, 0),
                    textcoords="offset points",
                )
        else:
            empty(left)
        left.set_title("(a) what the policy costs")
        drawn = False
        for i, (label, points) in enumerate(plane.items()):
            colour, marker = style_of(i)
            for solid in (True, False):
                mine = [p for p in points if p["reached"] == solid and p["edges"] > 0]
                if mine:
                    drawn = True
                    right.plot(
                        [p["edges"] for p in mine],
                        [p["passes"] for p in mine],
                        linestyle="none",
                        marker=marker,
                        color=colour,
                        markerfacecolor=colour if solid else "white",
                        label=label if solid or not any(p["reached"] for p in points) else None,
                    )
        if drawn:
            right.set_xscale("log")
            right.set_yscale("log")
            plain_log(right, "x")
            plain_log(right, "y")
            right.set_xlabel("circuit size (edges)")
            right.set_ylabel("passes to find it")
        else:
            empty(right)
        right.set_title(f"(b) cost and size; open: f < {tau:g}")
        _legend_below(canvas, right)

    return draw(
        "figure-4-cost",
        "Figure 4 · Cost and minimality",
        "(a) Passes of one deployment, of one warm start and of the policy's training. (b) Passes to find a circuit against its size, one "
        f"marker per behaviour, at f ≥ {tau:g} on discovery pairs; down and to the left is better. Attribution is charged for, and so "
        "is a policy's adaptation, but not its training.",
        "Passes of deployment, warm start and training; and a scatter of passes against circuit size for each method.",
        {"passes": {k.replace("\n", " "): v for k, v in bars.items()}, "plane": plane},
        view.command,
        (8.2, 4.0),
        paint,
    )


def _place(name: str, results: list[dict[str, Any]], size: str, tau: float) -> dict[str, Any]:
    """A method on a behaviour, in the plane of size and passes: means over seeds."""
    mean = {key: Spread.of(r[key] for r in results).mean for key in (size, "f", "passes")}
    return {
        "behaviour": name,
        "edges": mean[size],
        "f": mean["f"],
        "passes": mean["passes"],
        "reached": mean["f"] >= tau,
    }


def matched(view: View) -> Figure:
    names, targets = view.chosen.all, ("discovery", "test")
    sizes = {
        target: {
            method: {
                name: spread(view.results(view.cells.matched, target, name, method), "edges_pruned")
                for name in names
            }
            for method in view.plan.methods
        }
        for target in targets
    }
    lost = {
        method: [
            r["f"] - r["f_test"]
            for key, cell in view.cells.matched.items()
            if key[0] == "discovery" and key[2] == method and (r := view.result(cell))
        ]
        for method in view.plan.methods
    }

    def paint(canvas: Canvas) -> None:
        spec = canvas.add_gridspec(
            2, 2, height_ratios=(0.5 + 0.32 * len(names), 0.5 + 0.17 * len(view.plan.methods))
        )
        first = None
        for column, target in enumerate(targets):
            ax = canvas.add_subplot(spec[0, column], sharex=first, sharey=first)
            first = first or ax
            points = []
            for i, method in enumerate(view.plan.methods):
                colour, marker = style_of(i)
                points += _points(sizes[target][method], colour, True, NAMES[method], marker)
            if points:
                dots(ax, names, points, "circuit size (edges)", log=True)
            else:
                empty(ax)
            ax.set_title(
                f"({'ab'[column]}) f ≥ {view.plan.budget.tau:g} on {'discovery' if target == 'discovery' else 'fresh'} pairs"
            )
            if column:
                ax.tick_params(labelleft=False)
            else:
                _legend_below(canvas, ax)
        bottom = canvas.add_subplot(spec[1, :])
        methods = [m for m in view.plan.methods if lost[m]]
        if methods:
            for i, method in enumerate(methods):
                colour, marker = style_of(view.plan.methods.index(method))
                bottom.plot(
                    lost[method],
                    [i] * len(lost[method]),
                    linestyle="none",
                    marker=marker,
                    color=colour,
                    alpha=0.55,
                    markersize=4,
                )
                mean = sum(lost[method]) / len(lost[method])
                bottom.plot([mean, mean], [i - 0.32, i + 0.32], color=BLACK, linewidth=1.6)
            bottom.set_yticks(range(len(methods)), [NAMES[m] for m in methods])
            bottom.set_ylim(len(methods) - 0.5, -0.5)
            bottom.axvline(0, color=GREY, linewidth=0.8)
            bottom.set_xlabel("f on discovery pairs − f on test pairs")
            bottom.grid(axis="y", visible=False)
        else:
            empty(bottom)
        bottom.set_title("(c) what the circuits of (a) lose on test pairs; black: mean")

    return draw(
        "figure-5-matched",
        "Figure 5 · All methods at matched faithfulness",
        "Sizes after pruning; bars are one standard deviation over seeds. A circuit that falls short of τ is drawn as well: tables 8 and 9 "
        "say which do. (c) Every behaviour and seed is a marker; adapted policies are run on held-out behaviours only.",
        "Circuit sizes of all methods per behaviour at matched faithfulness on discovery and on fresh pairs, and the loss on test pairs.",
        {"edges": _jsonable(sizes), "lost": lost},
        view.command,
        (8.2, 2.6 + 0.40 * max(len(names), 3) + 0.24 * len(view.plan.methods)),
        paint,
    )


def _jsonable(value: Any) -> Any:
    if isinstance(value, Spread):
        return {"mean": value.mean, "sd": value.sd, "n": value.n}
    if isinstance(value, dict):
        return {key: _jsonable(v) for key, v in value.items()}
    return value
