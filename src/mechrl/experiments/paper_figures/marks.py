"""What several figures share: points, heights, legends, numbers as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mechrl.report.figures import Point
from mechrl.stats import Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


def points_of(
    values: dict[str, Spread | None], colour: str, solid: bool, label: str, marker: str = "o"
) -> list[Point]:
    return [
        Point(name, s.mean, s.sd, solid, colour, marker, label) for name, s in values.items() if s is not None
    ]


def height_of(rows: int) -> float:
    return 1.5 + 0.34 * max(rows, 3)


def legend_below(canvas: Canvas, ax: Axes, columns: int = 4) -> None:
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        canvas.legend(handles, labels, loc="outside lower center", ncols=columns)


def jsonable(value: Any) -> Any:
    if isinstance(value, Spread):
        return {"mean": value.mean, "sd": value.sd, "n": value.n}
    if isinstance(value, dict):
        return {key: jsonable(v) for key, v in value.items()}
    return value
