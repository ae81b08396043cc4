"""Figures 1 and 2: transfer to held-out behaviours, warm start and training from scratch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mechrl.experiments import paper_numbers as paper
from mechrl.experiments.paper_figures.marks import height_of, jsonable, legend_below, points_of
from mechrl.experiments.reproduce import View, spread
from mechrl.report.figures import BLUE, GREY, RED, Figure, dots, draw, empty
from mechrl.stats import Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


_SHORT = {"warm start": "warm", "from scratch": "scratch"}


def transfer(view: View) -> Figure:
    names = view.chosen.held_out
    values = {
        key: {
            kind: {name: spread(view.results(group, name), key) for name in names}
            for kind, group in (("zero-shot", view.cells.policy), ("warm start", view.cells.adapted))
        }
        for key in ("f", "edges")
    }

    def paint(canvas: Canvas) -> None:
        left, right = canvas.subplots(1, 2, sharey=True)
        for ax, key, label, title in (
            (left, "f", "faithfulness f (1 = the model)", "(a) faithfulness"),
            (right, "edges", "circuit size |C| (edges)", "(b) size"),
        ):
            points = points_of(values[key]["zero-shot"], BLUE, False, "zero-shot") + points_of(
                values[key]["warm start"], BLUE, True, "warm start"
            )
            if view.is_paper_model:
                known = {name: paper.TRANSFER[name] for name in names if name in paper.TRANSFER}
                for kind, marker in (("zero-shot", "x"), ("warm", "+")):
                    theirs = {name: t.warm if kind == "warm" else t.zero_shot for name, t in known.items()}
                    spreads = {name: Spread(value[key == "edges"], None, 1) for name, value in theirs.items()}
                    points += points_of(dict(spreads), GREY, True, f"the paper, {kind}", marker)
            if not points:
                empty(ax)
                continue
            dots(ax, names, points, label, log=key == "edges")
            low, high = ax.get_xlim()
            if key == "f" and high - low < 0.1:  # a thousandth is no difference to look at
                ax.set_xlim((low + high) / 2 - 0.05, (low + high) / 2 + 0.05)
            ax.set_title(title)
        legend_below(canvas, left)

    return draw(
        "figure-1-transfer",
        "Figure 1 · Transfer to held-out behaviours",
        "Zero-shot (open) and after the warm start (filled), on discovery pairs; bars are one standard deviation over seeds.",
        "Faithfulness and size of the policy's circuits for held-out behaviours, zero-shot and after a warm start.",
        jsonable(values),
        view.command,
        (8.2, height_of(len(names))),
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
            if _paint_learning(ax, name, curves[name]):
                with_legend = with_legend or ax
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
            legend_below(canvas, with_legend)

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


def _paint_learning(ax: Axes, name: str, curves: dict[str, list[dict[str, Any]]]) -> bool:
    """Whether there was anything to draw."""
    ends = {kind: [run["final_f"] for run in runs] for kind, runs in curves.items() if runs}
    for kind, colour, style in (("warm start", BLUE, "-"), ("from scratch", RED, "--")):
        for i, run in enumerate(curves[kind]):
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
    if any(run["iteration"] for runs in curves.values() for run in runs):
        return True
    empty(ax, "no episode has ended yet" if ends else "nothing done yet")
    return False
