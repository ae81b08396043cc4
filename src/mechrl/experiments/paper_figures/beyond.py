"""Figure 3: what the policy adds to the ranking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mechrl.experiments.paper_figures.marks import jsonable, legend_below, points_of
from mechrl.experiments.reproduce import View, spread
from mechrl.report.figures import (
    BLACK,
    BLUE,
    COLOURS,
    GREY,
    ORANGE,
    Figure,
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


def beyond(view: View) -> Figure:
    names = view.chosen.all
    ceilings = {name: known for name in names if (known := _ceilings(view, name))}
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
        _paint_ceilings(canvas.add_subplot(spec[0, :]), view, ceilings)
        left, right = canvas.add_subplot(spec[1, 0]), canvas.add_subplot(spec[1, 1])
        for ax, values, label, title in (
            (left, gains, "f(C) − f(top-|C|)", "(b) gain over the ranking"),
            (right, costs, "f(C) − f(C without them)", "(c) cost of deleting discordant edges"),
        ):
            points = [p for kind, _, solid in groups for p in points_of(values[kind], BLUE, solid, kind)]
            if ax is right:
                points += points_of(controls, ORANGE, True, "as many random edges", "D")
            if points:
                dots(ax, names, points, label)
                ax.axvline(0, color=BLACK, linewidth=0.8)
            else:
                empty(ax)
            ax.set_title(title)
        right.tick_params(labelleft=False)
        legend_below(canvas, right, 3)

    return draw(
        "figure-3-beyond",
        "Figure 3 · Beyond the prefilter",
        "(a) f of the K best edges by the behaviour's own metric, on discovery pairs. (b) The policy's gain in f over as many best edges. "
        "(c) What its edges below that cut carry, and what as many random edges of its circuit do. Bars: one standard deviation.",
        "Faithfulness against candidate set size; the policy's gain over the attribution ranking; the cost of deleting discordant edges.",
        {
            "ceilings": ceilings,
            "gain": jsonable(gains),
            "cost": jsonable(costs),
            "cost_random": jsonable(controls),
        },
        view.command,
        (8.2, 4.2 + 0.33 * max(len(names), 3)),
        paint,
    )


def _ceilings(view: View, name: str) -> dict[str, list[Any]] | None:
    """f of the k best edges for every k of the grid, over seeds."""
    results = view.results(view.cells.curves, name)
    if not results:
        return None
    ks = results[0]["k"]
    return {"k": ks, "f": [Spread.of(r["f_metric"][i] for r in results).mean for i in range(len(ks))]}


def _paint_ceilings(ax: Axes, view: View, ceilings: dict[str, dict[str, list[Any]]]) -> None:
    for i, name in enumerate(view.chosen.all):
        if name not in ceilings:
            continue
        colour, marker = style_of(i)
        line = "-" if i < len(COLOURS) else "--"  # a colour's second turn
        known = ceilings[name]
        ax.plot(
            known["k"], known["f"], line, color=colour, marker=marker, markersize=4, linewidth=1.3, label=name
        )
    if ceilings:
        ax.set_xscale("log")
        plain_log(ax, "x")
        ax.axhline(view.scope.budget.tau, color=GREY, linewidth=0.8, linestyle=":")
        ax.axvline(view.agent.k, color=GREY, linewidth=0.8, linestyle=":")
        ax.set_xlabel("K: best edges by attribution")
        ax.set_ylabel("faithfulness f of the K edges")
        ax.set_ylim(bottom=max(-0.1, ax.get_ylim()[0]), top=1.03)
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    else:
        empty(ax)
    ax.set_title(f"(a) candidate sets; dotted: K = {view.agent.k:,} and f = {view.scope.budget.tau:g}")
