"""The figures of the paper, and the one it leaves out: sizes at matched f on discovery and on fresh pairs."""

from __future__ import annotations

from mechrl.experiments.paper_figures.beyond import beyond
from mechrl.experiments.paper_figures.matched import cost, matched
from mechrl.experiments.paper_figures.transfer import transfer, warm_scratch
from mechrl.experiments.reproduce import View
from mechrl.report.figures import Figure


def all_figures(view: View) -> list[Figure]:
    return [transfer(view), warm_scratch(view), beyond(view), cost(view), matched(view)]
