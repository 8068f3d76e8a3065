"""The picture of a search: every probe's validation perplexity, and what each was over the best before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sentinel.lab.tune.reading import Curve, perplexity
from sentinel.lab.tune.report import ProbeRow, Report
from sentinel.reports.pictures import INK, drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CHOSEN, _ILL, _CALM, _OTHER = "#2e8b57", "#c1443c", "#4c8fbf", "#9a9a9a"
_STYLES = ("-", "--", "-.", ":")  # One for each start, in the order of the starts that were tried


def draw(report: Report) -> None:
    """Writes the PNG to where the report says that it is."""
    space = report.task.space
    with drawn(
        report.plot, (10.5, 7.5), f"{report.run}: {report.chosen or 'no pacing without a fluctuation'}"
    ) as figure:
        above, below = figure.subplots(2, 1, sharex=True)
        for row in report.probes:
            points = [(step, perplexity(loss)) for step, loss in row.validations]
            _line(above, points, row, report, labelled=True)
            _line(below, list(Curve(row.validations).ratios()), row, report, labelled=False)
        below.axhline(report.task.fluctuation, color=INK, linewidth=0.9, linestyle=(0, (2, 3)))
        for panel in (above, below):
            panel.axvline(space.beginning_steps, color="#bbbbbb", linewidth=0.9)
            panel.axvline(space.horizon_steps, color="#bbbbbb", linewidth=0.9)
            panel.set_yscale("log")
        above.set_ylabel("validation perplexity")
        below.set_ylabel("perplexity / best before")
        below.set_xlabel("global step (grey: end of the beginning, horizon)")
        if report.probes:
            figure.legend(loc="outside right upper", frameon=False, fontsize=8.5)


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
