"""The picture of a search: every probe's validation perplexity, and what each was over the best before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from sentinel.tune.reading import Curve, perplexity
from sentinel.tune.report import ProbeRow, Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK = "#2b2b2b"
_CHOSEN, _ILL, _CALM, _OTHER = "#2e8b57", "#c1443c", "#4c8fbf", "#9a9a9a"
_STYLES = ("-", "--", "-.", ":")  # One for each start, in the order of the starts that were tried


def draw(report: Report) -> None:
    """Writes the PNG to where the report says that it is."""
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(10.5, 7.5), layout="constrained")
        for row in report.probes:
            points = [(step, perplexity(loss)) for step, loss in row.validations]
            _line(above, points, row, report, labelled=True)
            _line(below, list(Curve(row.validations).ratios()), row, report, labelled=False)
        space = report.task.space
        below.axhline(report.task.fluctuation, color=_INK, linewidth=0.9, linestyle=(0, (2, 3)))
        for panel in (above, below):
            panel.axvline(space.beginning_steps, color="#bbbbbb", linewidth=0.9)
            panel.axvline(space.horizon_steps, color="#bbbbbb", linewidth=0.9)
            panel.set_yscale("log")
            panel.grid(visible=True, color="#e6e6e6", linewidth=0.7)
        above.set_ylabel("validation perplexity", color=_INK)
        below.set_ylabel("perplexity / best before", color=_INK)
        below.set_xlabel("global step (grey: end of the beginning, horizon)", color=_INK)
        if report.probes:
            figure.legend(loc="outside right upper", frameon=False, fontsize=8.5)
        figure.suptitle(
            f"{report.run}: {report.chosen or 'no pacing without a fluctuation'}", fontsize=12.5, color=_INK
        )
        figure.savefig(report.plot, dpi=130)
        plt.close(figure)


def _line(panel: Axes, points: Sequence[tuple[int, float]], row: ProbeRow, report: Report, *, labelled: bool) -> None:
    """What is not finite has no place on the picture; the verdict in the legend tells of it."""
    finite = [(step, value) for step, value in points if math.isfinite(value)]
    starts = sorted({other.start for other in report.probes})
    chosen = report.chosen is not None and (row.start, row.total_steps) == (
        report.chosen.start,
        report.chosen.total_steps,
    )
    colour = _CHOSEN if chosen else {"fluctuates": _ILL, "calm": _CALM}.get(row.verdict, _OTHER)
    panel.plot(
        [step for step, _ in finite],
        [value for _, value in finite],
        color=colour,
        linestyle=_STYLES[starts.index(row.start) % len(_STYLES)],
        linewidth=2.2 if chosen else 1.2,
        marker=".",
        label=f"start {row.start}, T {row.total_steps}: {row.verdict}" if labelled else None,
    )
