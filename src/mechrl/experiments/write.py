"""From the cells of a reproduction to its files: tables, figures, report.html."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mechrl
from mechrl.experiments.findings import HEADLINE, findings
from mechrl.experiments.paper_figures import all_figures
from mechrl.experiments.paper_tables import all_tables
from mechrl.experiments.reproduce import View, agreements
from mechrl.files import write_atomically
from mechrl.report.figures import Figure
from mechrl.report.page import Page, render
from mechrl.report.tables import Table


@dataclass(frozen=True)
class Written:
    report: Path
    lines: list[str]  # the gist, for the terminal


def write_report(view: View, out: Path) -> Written:
    tables, figures = all_tables(view), all_figures(view)
    write_files(out, tables, figures)
    done, _, total = view.count()
    failed = [(cell.label, reason) for cell, reason in view.failed()]
    model, graph = view.gated.model["model"], view.gated.graph
    devices = sorted({r["device"] for cell in view.cells if (r := view.result(cell))})
    seeds = ", ".join(map(str, view.scope.seeds))
    commands = sorted(
        {_in_short(r["context"].get("command", "")) for r in view.records.values()}
        - {"", _in_short(view.command)}
    )
    facts = [
        (
            "model",
            f"{model}: {graph['layers']} layers, {graph['heads']} heads, {graph['edges']:,} edges between {graph['nodes']} nodes",
        ),
        ("policy", _policy(view)),
        (
            "pairs",
            f"{view.scope.budget.pairs} discovery pairs per behaviour and seed; 100 validation and 100 test pairs, where there are so many",
        ),
        ("seeds", f"{seeds}; costly cells {', '.join(map(str, view.scope.costly_seeds))}"),
        ("device", ", ".join(devices) or "–"),
        *(("cells also by", command) for command in commands),
        ("version", f"mechrl {mechrl.__version__}"),
    ]
    lead = (
        "f = 1 − KL(model ‖ circuit) / KL(model ‖ corrupted) at the prediction position: 1 is the model, 0 the empty circuit. "
        "Test pairs played no part in finding any circuit. A pass is one forward of one circuit on 20 pairs; a backward counts two."
    )
    if view.scope.quick:
        lead = f"A smoke run with tiny budgets: its numbers mean nothing. {lead}"
    page = Page(
        f"MechRL on {model}",
        lead,
        facts,
        tables,
        figures,
        done,
        failed,
        total,
        view.command,
        findings(view),
        HEADLINE,
    )
    path = out / "report.html"
    write_atomically(path, render(page).encode())
    return Written(path, _gist(view))


def write_files(out: Path, tables: Sequence[Table], figures: Sequence[Figure]) -> None:
    for table in tables:
        table.write(out / "tables")
    for figure in figures:
        known = {
            "title": figure.title,
            "caption": figure.caption,
            "command": figure.command,
            "data": figure.data,
        }
        write_atomically(
            out / "figures" / f"{figure.name}.json",
            (json.dumps(known, indent=1, ensure_ascii=False) + "\n").encode(),
        )
        write_atomically(out / "figures" / f"{figure.name}.svg", figure.svg)
        write_atomically(out / "figures" / f"{figure.name}.png", figure.png)


def _in_short(command: str) -> str:
    """Without what says only for how long, by how many processes and where it was run."""
    return re.sub(r" --(seconds|jobs|out)[ =]('[^']*'|\S+)", "", command)


def _policy(view: View) -> str:
    known = view.training
    trained = (
        f"trained in {known['trained_in']} on {', '.join(known['trained_on'])}"
        if "trained_on" in known
        else "of unknown training"
    )
    passes = f", {known['passes']:,.0f} passes" if "passes" in known else ""
    return f"{trained}{passes}; candidates: {view.candidates}; weights {view.agent.checksum}"


def _gist(view: View) -> list[str]:
    if not view.is_paper_model:
        return []
    found = agreements(view)
    lines = [
        f"{sum(a.agrees for a in found)} of {len(found)} deterministic rows of the paper agree within tolerance"
    ]
    for a in found:
        size = (
            ""
            if a.paper_size is None or a.size is None
            else f", edges {a.size:,.0f} (paper {a.paper_size:,})"
        )
        lines.append(
            f"  {'agrees ' if a.agrees else 'differs'} {a.behaviour}: {a.row}: f {a.f:.3f} (paper {a.paper_f:.3f}){size}"
        )
    return lines
