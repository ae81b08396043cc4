"""Figures, saved as PNG and SVG with their numbers. The colours are Okabe and Ito's, safe for colour-blind readers."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mechrl.errors import MechRLError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PURPLE = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#F0E442",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
# colour and marker together tell ten behaviours apart
COLOURS = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY, BLACK, "#8C8C8C")
MARKERS = "osD^vP*Xph"
GREY = "#6E6E6E"


@dataclass(frozen=True)
class Figure:
    name: str  # of its files
    title: str
    caption: str
    alt: str  # text for readers who cannot see it
    data: dict[str, Any]
    svg: bytes
    png: bytes
    command: str


@dataclass(frozen=True)
class Point:
    """A value with its spread; `solid`: a filled marker."""

    y: str
    x: float
    sd: float | None = None
    solid: bool = True
    colour: str = BLUE
    marker: str = "o"
    label: str = ""


def draw(
    name: str,
    title: str,
    caption: str,
    alt: str,
    data: dict[str, Any],
    command: str,
    size: tuple[float, float],
    paint: Callable[[Canvas], None],
) -> Figure:
    """Makes a figure: `paint` draws on an empty canvas of `size` inches."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as New
    except ImportError as exc:
        raise MechRLError("figures need matplotlib and jinja2: pip install 'mechrl[report]'") from exc

    style: Any = {
        "font.size": 9,
        "font.family": "DejaVu Sans",  # comes with matplotlib, so figures look the same everywhere
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#E3E3E3",
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "legend.frameon": False,
        "legend.fontsize": 8,
        "svg.hashsalt": name,  # the same figure gives the same file
        "svg.fonttype": "path",
        "text.parse_math": False,  # a name may hold a dollar sign
    }
    files = []
    with matplotlib.rc_context(style):
        canvas = New(figsize=size, layout="constrained")
        FigureCanvasAgg(canvas)
        paint(canvas)
        for kind in ("svg", "png"):
            out = io.BytesIO()
            canvas.savefig(
                out, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else {"Software": None}
            )
            files.append(out.getvalue())
    return Figure(name, title, caption, alt, data, files[0], files[1], command)


def dots(ax: Axes, rows: Sequence[str], points: Sequence[Point], xlabel: str, log: bool = False) -> None:
    """One line per row, the first on top; points with their deviations, side by side by kind."""
    kinds = list(dict.fromkeys((p.label, p.colour, p.marker, p.solid) for p in points))
    height = min(0.16, 0.64 / max(len(kinds), 1))
    for i, (label, colour, marker, solid) in enumerate(kinds):
        mine = [p for p in points if (p.label, p.colour, p.marker, p.solid) == (label, colour, marker, solid)]
        y = [rows.index(p.y) + (i - (len(kinds) - 1) / 2) * height for p in mine]
        spread = [p.sd or 0.0 for p in mine]
        face = colour if solid else "white"
        ax.errorbar(
            [p.x for p in mine],
            y,
            xerr=spread,
            fmt=marker,
            color=colour,
            markerfacecolor=face,
            markersize=5.5,
            elinewidth=1,
            capsize=0,
            label=label or None,
            linestyle="none",
        )
    ax.set_yticks(range(len(rows)), rows)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.grid(axis="y", visible=False)
    for i in range(1, len(rows)):
        ax.axhline(i - 0.5, color="#EFEFEF", linewidth=0.6, zorder=0)
    ax.set_xlabel(xlabel)
    if log:
        ax.set_xscale("log")
        plain_log(ax, "x")
    else:
        from matplotlib.ticker import MaxNLocator

        ax.xaxis.set_major_locator(MaxNLocator(4))


def plain_log(ax: Axes, which: str) -> None:
    """Labels a logarithmic axis with plain numbers (20, 1,000, 1 M), more of them if it is short."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis = ax.xaxis if which == "x" else ax.yaxis
    low, high = ax.get_xlim() if which == "x" else ax.get_ylim()
    decades = 0.0 if low <= 0 else abs(_log10(high) - _log10(low))
    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda v, _: _plain(v)))
    axis.set_minor_formatter(NullFormatter())


def _plain(v: float) -> str:
    if v >= 1e6:  # longer labels would touch
        return f"{v / 1e6:,.0f} M"
    return f"{v:,.0f}" if v >= 1 else f"{v:g}"


def _log10(x: float) -> float:
    from math import log10

    return log10(x)


def style_of(i: int) -> tuple[str, str]:
    """Colour and marker of the i-th behaviour or method."""
    return COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]


def empty(ax: Axes, text: str = "nothing done yet") -> None:
    ax.set_axis_off()
    ax.text(0.5, 0.5, text, ha="center", va="center", color=GREY, transform=ax.transAxes)
