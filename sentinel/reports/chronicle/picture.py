"""The picture of a run: loss, variance and learning rate over steps, with every attempt, onset, alarm and rollback."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from sentinel.judge.history import Attempt
from sentinel.reports.chronicle.attempts import AttemptRow

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


def draw(attempts: Sequence[Attempt], rows: Sequence[AttemptRow], *, title: str, path: Path) -> None:
    """Writes the PNG. `rows` are the attempts' rows, in the same order."""
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = plt.subplots(
            len(_PANELS), 1, sharex=True, figsize=(10.5, 9.5), height_ratios=(3, 1.2, 1.2, 1.2), layout="constrained"
        )
        for panel, (field, label, scale) in zip(axes, _PANELS, strict=True):
            for number, (attempt, row) in enumerate(zip(attempts, rows, strict=True)):
                _line(panel, attempt, field, row, _colour(number, row), last=number == len(rows) - 1)
            panel.set_ylabel(label, color=_INK)
            panel.set_yscale(scale)
            panel.grid(visible=True, color="#e6e6e6", linewidth=0.7)
            panel.set_axisbelow(True)
        _mark(axes[0], attempts, rows)
        axes[0].legend(loc="upper right", frameon=False, fontsize=9)
        axes[-1].set_xlabel("global step", color=_INK)
        figure.suptitle(title, fontsize=12.5, color=_INK)
        figure.savefig(path, dpi=130)
        plt.close(figure)


def _colour(number: int, row: AttemptRow) -> str:
    return _COLOURS[-1] if row.verdict == "recovered" else _COLOURS[number % (len(_COLOURS) - 1)]


def _line(panel: Axes, attempt: Attempt, field: str, row: AttemptRow, colour: str, *, last: bool) -> None:
    points = [(s.global_step, v) for s in attempt.samples if (v := getattr(s, field)) is not None and math.isfinite(v)]
    if not points:
        return
    label = f"{attempt.number}  {row.mitigation or 'the run as it was'} — {row.verdict}"
    panel.plot(*zip(*points, strict=True), color=colour, linewidth=2.0 if last else 1.2, label=label, alpha=0.95)


def _mark(panel: Axes, attempts: Sequence[Attempt], rows: Sequence[AttemptRow]) -> None:
    """Onset, alarm and rollback of each attempt, in its colour, along the loss."""
    for number, (row, attempt) in enumerate(zip(rows, attempts, strict=True)):
        losses = {s.global_step: s.loss for s in attempt.samples if math.isfinite(s.loss)}
        for step, marker, size in ((row.onset_step, "o", 60), (row.alarm_step, "X", 75)):
            if step in losses:
                colour = _colour(number, row)
                panel.scatter([step], [losses[step]], marker=marker, s=size, color=colour, edgecolor="white", zorder=5)
        if row.resumed_from is not None and attempt.samples:
            first = attempt.samples[0]
            panel.scatter([first.global_step], [first.loss], marker="<", s=60, color=_INK, edgecolor="white", zorder=6)
    panel.scatter([], [], marker="o", color="#777777", label="onset")
    panel.scatter([], [], marker="X", color="#777777", label="alarm")
    panel.scatter([], [], marker="<", color=_INK, label="resumed here after a rollback")
