"""Figures 4 and 5: cost against size, and all methods at matched faithfulness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mechrl.experiments.compare_tables import NAMES
from mechrl.experiments.paper_figures.marks import jsonable, legend_below, points_of
from mechrl.experiments.reproduce import View, acdc_best, spread
from mechrl.report.figures import BLACK, BLUE, GREY, ORANGE, Figure, dots, draw, empty, plain_log, style_of
from mechrl.stats import Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


def cost(view: View) -> Figure:
    tau, names = view.scope.budget.tau, view.chosen.all
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
    for method in view.scope.methods:
        found = {name: view.results(view.cells.matched, "discovery", name, method) for name in names}
        plane[NAMES[method]] = [
            _place(name, results, "edges_pruned", tau) for name, results in found.items() if results
        ]
    whole = {name: best[1] for name in names if (best := acdc_best(view, name, tau)) is not None}
    plane["ACDC, whole graph"] = [_place(name, results, "edges", tau) for name, results in whole.items()]

    def paint(canvas: Canvas) -> None:
        left, right = canvas.subplots(1, 2, width_ratios=(1, 1.5))
        _paint_bars(left, {label: value for label, value in bars.items() if value})
        _paint_plane(right, plane)
        right.set_title(f"(b) cost and size; open: f < {tau:g}")
        legend_below(canvas, right)

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


def _paint_bars(ax: Axes, passes: dict[str, float]) -> None:
    if passes:
        ax.barh(list(passes), list(passes.values()), color=[BLUE, ORANGE, GREY][: len(passes)], height=0.5)
        ax.set_xscale("log")
        ax.set_xlim(min(passes.values()) / 5, max(passes.values()) * 12)
        plain_log(ax, "x")
        ax.invert_yaxis()
        ax.set_xlabel("passes")
        ax.grid(axis="y", visible=False)
        for i, value in enumerate(passes.values()):
            ax.annotate(
                f"{value:,.0f}",
                (value, i),
                va="center",
                fontsize=8,
                xytext=(4, 0),
                textcoords="offset points",
            )
    else:
        empty(ax)
    ax.set_title("(a) what the policy costs")


def _paint_plane(ax: Axes, plane: dict[str, list[dict[str, Any]]]) -> None:
    """Passes against size, a marker for every behaviour; filled where f reaches tau."""
    drawn = False
    for i, (label, points) in enumerate(plane.items()):
        colour, marker = style_of(i)
        for solid in (True, False):
            mine = [p for p in points if p["reached"] == solid and p["edges"] > 0]
            if mine:
                drawn = True
                ax.plot(
                    [p["edges"] for p in mine],
                    [p["passes"] for p in mine],
                    linestyle="none",
                    marker=marker,
                    color=colour,
                    markerfacecolor=colour if solid else "white",
                    label=label if solid or not any(p["reached"] for p in points) else None,
                )
    if not drawn:
        empty(ax)
        return
    ax.set_xscale("log")
    ax.set_yscale("log")
    plain_log(ax, "x")
    plain_log(ax, "y")
    ax.set_xlabel("circuit size (edges)")
    ax.set_ylabel("passes to find it")


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
            for method in view.scope.methods
        }
        for target in targets
    }
    lost = {
        method: [
            r["f"] - r["f_test"]
            for key, cell in view.cells.matched.items()
            if key[0] == "discovery" and key[2] == method and (r := view.result(cell))
        ]
        for method in view.scope.methods
    }

    def paint(canvas: Canvas) -> None:
        spec = canvas.add_gridspec(
            2, 2, height_ratios=(0.5 + 0.32 * len(names), 0.5 + 0.17 * len(view.scope.methods))
        )
        first = None
        for column, target in enumerate(targets):
            ax = canvas.add_subplot(spec[0, column], sharex=first, sharey=first)
            first = first or ax
            points = []
            for i, method in enumerate(view.scope.methods):
                colour, marker = style_of(i)
                points += points_of(sizes[target][method], colour, True, NAMES[method], marker)
            if points:
                dots(ax, names, points, "circuit size (edges)", log=True)
            else:
                empty(ax)
            ax.set_title(
                f"({'ab'[column]}) f ≥ {view.scope.budget.tau:g} on {'discovery' if target == 'discovery' else 'fresh'} pairs"
            )
            if column:
                ax.tick_params(labelleft=False)
            else:
                legend_below(canvas, ax)
        _paint_losses(canvas.add_subplot(spec[1, :]), view.scope.methods, lost)

    return draw(
        "figure-5-matched",
        "Figure 5 · All methods at matched faithfulness",
        "Sizes after pruning; bars are one standard deviation over seeds. A circuit that falls short of τ is drawn as well: tables 8 and 9 "
        "say which do. (c) Every behaviour and seed is a marker; adapted policies are run on held-out behaviours only.",
        "Circuit sizes of all methods per behaviour at matched faithfulness on discovery and on fresh pairs, and the loss on test pairs.",
        {"edges": jsonable(sizes), "lost": lost},
        view.command,
        (8.2, 2.6 + 0.40 * max(len(names), 3) + 0.24 * len(view.scope.methods)),
        paint,
    )


def _paint_losses(ax: Axes, asked: Sequence[str], lost: dict[str, list[float]]) -> None:
    methods = [m for m in asked if lost[m]]
    if methods:
        for i, method in enumerate(methods):
            colour, marker = style_of(asked.index(method))
            ax.plot(
                lost[method],
                [i] * len(lost[method]),
                linestyle="none",
                marker=marker,
                color=colour,
                alpha=0.55,
                markersize=4,
            )
            mean = sum(lost[method]) / len(lost[method])
            ax.plot([mean, mean], [i - 0.32, i + 0.32], color=BLACK, linewidth=1.6)
        ax.set_yticks(range(len(methods)), [NAMES[m] for m in methods])
        ax.set_ylim(len(methods) - 0.5, -0.5)
        ax.axvline(0, color=GREY, linewidth=0.8)
        ax.set_xlabel("f on discovery pairs − f on test pairs")
        ax.grid(axis="y", visible=False)
    else:
        empty(ax)
    ax.set_title("(c) what the circuits of (a) lose on test pairs; black: mean")
