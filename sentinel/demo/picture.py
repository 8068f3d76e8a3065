"""The demo's picture: loss, variance and learning rate over steps, with every attempt, onset, alarm and rollback."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from sentinel.demo.report import Report
from sentinel.judge.history import Attempt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw"]

_COLOURS = ("#c1443c", "#e08a3c", "#b59b2c", "#7b6fb0", "#4c8fbf", "#2e8b57")
_INK = "#2b2b2b"
_PANELS = (
    ("loss", "loss, nats", "linear"),
    ("adam_variance_l1", "Adam variance\n$\\Sigma\\sqrt{v}$", "log"),
    ("adam_variance_max", "Adam variance\n$\\max\\sqrt{v}$", "log"),
    ("lr", "learning rate", "linear"),
)


def draw(report: Report) -> None:
    """Writes the PNG that the report names."""
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = plt.subplots(
            len(_PANELS), 1, sharex=True, figsize=(10.5, 9.5), height_ratios=(3, 1.2, 1.2, 1.2), layout="constrained"
        )
        for panel, (field, label, scale) in zip(axes, _PANELS, strict=True):
            for row, attempt in enumerate(report.history.attempts.values()):
                _line(panel, attempt, field, report, row)
            panel.set_ylabel(label, color=_INK)
            panel.set_yscale(scale)
            panel.grid(visible=True, color="#e6e6e6", linewidth=0.7)
            panel.set_axisbelow(True)
        _mark(axes[0], report)
        axes[0].legend(loc="upper right", frameon=False, fontsize=9)
        axes[-1].set_xlabel("global step", color=_INK)
        how = "recovered" if report.recovered else ("not recovered" if report.diverged else "did not diverge")
        figure.suptitle(
            f"A GPT that diverges, and what sentinel did about it  ·  seed {report.seed}  ·  {how}",
            fontsize=12.5,
            color=_INK,
        )
        figure.savefig(report.plot, dpi=130)
        plt.close(figure)


def _line(panel: Axes, attempt: Attempt, field: str, report: Report, row: int) -> None:
    points = [(s.global_step, v) for s in attempt.samples if (v := getattr(s, field)) is not None and math.isfinite(v)]
    if not points:
        return
    table = report.attempts[row]
    last = row == len(report.attempts) - 1
    colour = _COLOURS[-1] if last and report.recovered else _COLOURS[row % (len(_COLOURS) - 1)]
    label = f"{attempt.number}  {table.mitigation or 'the run as it was'} — {table.verdict}"
    panel.plot(*zip(*points, strict=True), color=colour, linewidth=2.0 if last else 1.2, label=label, alpha=0.95)


def _mark(panel: Axes, report: Report) -> None:
    """Onset, alarm and rollback of each attempt, in its colour, along the loss."""
    for row, (table, attempt) in enumerate(zip(report.attempts, report.history.attempts.values(), strict=True)):
        losses = {s.global_step: s.loss for s in attempt.samples if math.isfinite(s.loss)}
        colour = _COLOURS[row % (len(_COLOURS) - 1)]
        for step, marker, size in ((table.onset_step, "o", 60), (table.alarm_step, "X", 75)):
            if step in losses:
                panel.scatter([step], [losses[step]], marker=marker, s=size, color=colour, edgecolor="white", zorder=5)
        if table.resumed_from is not None and attempt.samples:
            first = attempt.samples[0]
            panel.scatter([first.global_step], [first.loss], marker="<", s=60, color=_INK, edgecolor="white", zorder=6)
    panel.scatter([], [], marker="o", color="#777777", label="onset")
    panel.scatter([], [], marker="X", color="#777777", label="alarm")
    panel.scatter([], [], marker="<", color=_INK, label="resumed here after a rollback")
