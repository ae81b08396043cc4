"""A training run of the paper's agent, seen into: what `mechrl curves` draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mechrl.errors import MechRLError
from mechrl.files.reading import parse_json, read_bytes
from mechrl.report.figures import BLACK, BLUE, COLOURS, GREEN, ORANGE, RED, Figure, draw

_PANELS: tuple[tuple[str, dict[str, str]], ...] = (
    ("f of ended episodes, and the share that reached τ", {"episode/f": BLUE, "episode/reached": GREEN}),
    ("edges left", {"episode/edges": BLACK}),
    ("stop: share of all actions", {"rollout/stop_share": RED}),
    ("steps of an episode", {"episode/length": ORANGE}),
    ("entropy of the type, and of the picks", {"loss/type_entropy": RED, "loss/pick_entropy": BLUE}),
)


def read_run(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    path = folder / "metrics.jsonl"
    if not path.is_file():
        raise MechRLError(f"{folder}: not a training run, metrics.jsonl is missing; `mechrl train` writes it")
    try:
        rows = [parse_json(line) for line in read_bytes(path).decode().splitlines()]
        if not all(isinstance(row, dict) and isinstance(row["iteration"], int) for row in rows):
            raise ValueError("a line is none of ours")
    except (ValueError, KeyError) as exc:
        raise MechRLError(f"{path}: damaged; it should have one line of JSON an iteration") from exc
    if not rows:
        raise MechRLError(f"{path}: no iteration is done yet")
    return rows


def draw_run(folder: Path) -> Figure:
    rows = read_run(folder)
    keys = sorted(
        {key for row in rows for key in row if key.startswith("behaviour/") and key.endswith("/return")}
    )
    names = [key.split("/")[1] for key in keys]
    lines = {key: _points(rows, key) for key in (*keys, *(k for _, panel in _PANELS for k in panel))}

    def paint(canvas: Any) -> None:
        axes = canvas.subplots(2, 3).ravel()
        for i, (key, name) in enumerate(zip(keys, names, strict=True)):
            style = "-" if i < len(COLOURS) else "--"
            axes[0].plot(*lines[key], style, color=COLOURS[i % len(COLOURS)], lw=0.8, label=name)
        axes[0].set_title("return, by behaviour")
        if names:
            axes[0].legend(fontsize=5, ncols=2)
        for ax, (title, panel) in zip(axes[1:], _PANELS, strict=True):
            ax.set_title(title)
            for key, colour in panel.items():
                ax.plot(*lines[key], color=colour, lw=0.8)
        for ax in axes:
            ax.set_xlabel("iteration")

    return draw(
        name="curves",
        title=f"Training, {rows[-1]['iteration']} iterations",
        caption="Means over the episodes that ended in an iteration.",
        alt="Six curves over the iterations of a training run.",
        data={key: {"iteration": x, "value": y} for key, (x, y) in lines.items()},
        command=f"mechrl curves {folder}",
        size=(11.0, 5.5),
        paint=paint,
    )


def _points(rows: list[dict[str, Any]], key: str) -> tuple[list[int], list[float]]:
    """Iterations in which there is something to say."""
    known = [(row["iteration"], row[key]) for row in rows if row.get(key) is not None]
    return [i for i, _ in known], [value for _, value in known]
