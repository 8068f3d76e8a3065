"""The picture of a comparison: each run's smoothed loss, over the same axis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from sentinel.judge.reference import Reference

__all__ = ["draw_comparison"]

_COLOURS = ("#2b2b2b", "#c1443c", "#4c8fbf", "#2e8b57", "#e08a3c", "#7b6fb0")


def draw_comparison(runs: Sequence[Reference], *, by: str, path: Path) -> None:
    """Writes a PNG or SVG, as the name ends. Both axes are logarithmic where they can be: curves are straight there."""
    figure = Figure(figsize=(10, 5.5), layout="constrained")
    panel = figure.subplots()
    for number, run in enumerate(runs):
        places, losses = zip(*run.points, strict=True)
        panel.plot(places, losses, color=_COLOURS[number % len(_COLOURS)], linewidth=1.4, label=run.name)
    panel.set_xscale("log")
    if all(loss > 0 for run in runs for _, loss in run.points):
        panel.set_yscale("log")
    panel.set_xlabel(by)
    panel.set_ylabel("loss, nats, smoothed")
    panel.grid(visible=True, which="both", color="#e6e6e6", linewidth=0.7)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False)
    figure.savefig(path, dpi=130)
