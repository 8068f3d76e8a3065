"""One picture per curve: the loss, what a person says of it, what the judge says, and when each peer fires."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from sentinel.judge.events import Event

from .curves import Curve
from .ours import Judged
from .scoring import Said, onset_of, tolerance

__all__ = ["draw"]

SHADES = {
    "spike": "#f2c14e",
    "minor": "#dddddd",
    "diverge": "#e8a0a0",
    "nan": "#c9a0dc",
    "regime": "#a8c8e8",
    "ambiguous": "#cfd8c8",
}
ONSET, VERDICT, HEALED = "#1b7837", "#b2182b", "#4575b4"


def draw(curve: Curve, ours: Judged, peers: Sequence[Said], path: Path) -> None:
    """Writes the picture: the whole curve on the left, the part around its worst event on the right."""
    whole, closer = (curve.steps[0], curve.steps[-1]), _around(curve, ours.events)
    spans = [whole] if closer == whole else [whole, closer]
    figure = Figure(figsize=(4 + 6 * len(spans), 8.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(spans), sharex="col", height_ratios=(5, 2.6), squeeze=False)
    for (loss, strip), (low, high) in zip(axes.T, spans, strict=True):
        _shade((loss, strip), curve, high - low)
        _loss(loss, curve, low, high)
        _events(loss, ours.events)
        _strip(strip, curve, [ours.said, *peers])
        room = 0.02 * max(high - low, 1)
        loss.set_xlim(low - room, high + room)
        loss.ticklabel_format(axis="x", useOffset=False, style="plain")
        strip.set_xlabel("step")
    axes[0, 0].set_ylabel("loss, nats")
    axes[0, -1].legend(handles=_legend(curve), fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    if len(spans) > 1:
        axes[1, 1].set_yticklabels([])
    figure.suptitle(f"{curve.folder}/{curve.name}: {curve.label}" + (", held out" if curve.held_out else ""))
    figure.savefig(path, dpi=90)


def _around(curve: Curve, events: Sequence[Event]) -> tuple[int, int]:
    """Where to look closer: the divergence, else the first verdict, else the highest spike, else the first tenth."""
    onset = onset_of(curve)
    spikes = [e for e in curve.events if e.kind in ("spike", "regime")]
    acted = [e.verdict_step for e in events if e.recommend_rollback]
    span = 4 * tolerance(curve)
    if onset is not None:
        low, high = onset - span // 2, onset + span
    elif acted:
        low, high = acted[0] - span, acted[0] + span // 2
    elif spikes:
        height = {s: v for s, v in zip(curve.steps, curve.losses, strict=True) if v is not None}
        worst = max(spikes, key=lambda e: height.get(e.peak, 0.0))
        low, high = worst.onset - span // 2, worst.end + span // 2
    else:
        low, high = curve.steps[0], curve.steps[len(curve.steps) // 10]
    return max(low, curve.steps[0]), min(high, curve.steps[-1])


def _shade(axes: Sequence[Axes], curve: Curve, span: int) -> None:
    """Labelled events; never thinner than the eye can see."""
    for event in curve.events:
        half = max(event.end - event.onset, span / 400) / 2
        middle = (event.onset + event.end) / 2
        for each in axes:
            each.axvspan(middle - half, middle + half, color=SHADES[event.kind], alpha=0.6, linewidth=0)


def _loss(axes: Axes, curve: Curve, low: int, high: int) -> None:
    """The loss in the window; crosses at the bottom where it is not a number."""
    steps = np.array(curve.steps, dtype=float)
    loss = np.array([math.nan if v is None else v for v in curve.losses])
    axes.plot(steps, loss, color="#333333", linewidth=0.7, marker="." if len(steps) < 60 else None)
    shown = loss[(steps >= low) & (steps <= high) & np.isfinite(loss)]
    if len(shown):
        least, most = float(shown.min()), float(shown.max())
        room = 0.06 * (most - least or 1.0)
        axes.set_ylim(least - room, most + room)
    gone = [s for s, v in zip(curve.steps, curve.losses, strict=True) if v is not None and not math.isfinite(v)]
    axes.plot(gone, [0.02] * len(gone), "x", color="#762a83", markersize=4, transform=axes.get_xaxis_transform())


def _events(axes: Axes, events: Sequence[Event]) -> None:
    """The judge's findings: a bar over the onset's range, a line at the verdict, a tick at the end."""
    across = axes.get_xaxis_transform()
    for event in events:
        early, late = event.onset_range
        axes.plot([early, max(late, early)], [0.985, 0.985], color=ONSET, linewidth=4, transform=across)
        axes.plot([early], [0.985], marker="v", color=ONSET, markersize=5, transform=across)
        if event.recommend_rollback:
            axes.axvline(event.verdict_step, color=VERDICT, linewidth=1.2)
        if event.end_step is not None:
            axes.plot([event.end_step], [0.985], marker="|", color=HEALED, markersize=12, transform=across)


def _strip(axes: Axes, curve: Curve, detectors: Sequence[Said]) -> None:
    """A row per detector: a bar wherever it calls something out, a mark at each of its verdicts."""
    for row, said in enumerate(detectors):
        if not said.applicable:
            axes.text(0.5, row, "reads nothing that was logged", fontsize=6, va="center", color="#999999",
                      transform=axes.get_yaxis_transform())  # fmt: skip
        for first, last in said.spikes:
            axes.plot([first, max(last, first)], [row, row], color="#777777", linewidth=3, solid_capstyle="butt")
        steps = [v.step for v in said.verdicts]
        axes.plot(steps, [row] * len(steps), "|", color=VERDICT, markersize=9, markeredgewidth=1.2)
    onset = onset_of(curve)
    if onset is not None:
        axes.axvline(onset, color="black", linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(detectors)), [said.detector for said in detectors], fontsize=8)
    axes.set_ylim(len(detectors) - 0.5, -0.5)


def _legend(curve: Curve) -> list[Patch | Line2D]:
    kinds = dict.fromkeys(e.kind for e in curve.events)
    return [
        *(Patch(color=SHADES[kind], alpha=0.6, label=f"{kind}, as labelled") for kind in kinds),
        Line2D([], [], color=ONSET, marker="v", linewidth=3, label="sentinel: onset"),
        Line2D([], [], color=VERDICT, label="sentinel: diverged"),
        Line2D([], [], color=HEALED, marker="|", markersize=10, linewidth=0, label="sentinel: over"),
        Line2D([], [], color="#777777", linewidth=3, label="below: called out"),
        Line2D([], [], color=VERDICT, marker="|", markersize=8, linewidth=0, label="below: acts"),
    ]
