"""Pictures as PNG or SVG: the attempts of a run, a correlation with the loss ratio, a comparison of runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import special

from sentinel.judge.analysis.correlation.table import Correlations, LagProfile
from sentinel.judge.reference import Reference
from sentinel.reports.attempts import AttemptRow
from sentinel.reports.past import Past
from sentinel.reports.triage.curves import decimated
from sentinel.vocabulary.texts import neutral

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#2b2b2b"
_GRID = "#e6e6e6"
_STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.7,
    "svg.hashsalt": "sentinel",
}
_ATTEMPTS = ("#c1443c", "#e08a3c", "#b59b2c", "#7b6fb0", "#4c8fbf")
_RECOVERED = "#2e8b57"
_PANELS = (
    ("loss", "loss, nats", "linear"),
    ("adam_variance_l1", "Adam variance\n$\\Sigma\\sqrt{v}$", "log"),
    ("adam_variance_max", "Adam variance\n$\\max\\sqrt{v}$", "log"),
    ("lr", "learning rate", "linear"),
)


@contextmanager
def drawn(path: Path, size: tuple[float, float], title: str | None = None) -> Iterator[Figure]:
    """A figure, in inches, that is written to the path at the end of the block."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        if title is not None:
            figure.suptitle(_plain(title), fontsize=12.5, color=INK)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)


def _plain(text: str) -> str:
    """A text of others as matplotlib draws it: neutral, and no formula."""
    return neutral(text).replace("$", r"\$")


def draw_attempts(past: Past, attempts: Sequence[AttemptRow], *, title: str, path: Path) -> None:
    """Loss, variance and learning rate over steps, with every attempt, onset, alarm and rollback."""
    shown = [
        (row, _RECOVERED if row.verdict == "recovered" else _ATTEMPTS[number % len(_ATTEMPTS)])
        for number, row in enumerate(attempts)
    ]
    with drawn(path, (10.5, 9.5), title) as figure:
        axes = figure.subplots(len(_PANELS), 1, sharex=True, height_ratios=(3, 1.2, 1.2, 1.2))
        for panel, (field, label, scale) in zip(axes, _PANELS, strict=True):
            for row, colour in shown:
                steps, values = past.curve(row.attempt, field)
                there = np.isfinite(values)
                if there.any():
                    name = f"{row.attempt}  {row.mitigation or 'the run as it was'} — {row.verdict}"
                    width = 2.0 if row is attempts[-1] else 1.2
                    panel.plot(
                        steps[there], values[there], color=colour, linewidth=width, label=_plain(name), alpha=0.95
                    )
            panel.set_ylabel(label)
            panel.set_yscale(scale)
        for row, colour in shown:
            _mark(axes[0], past, row, colour)
        for marker, colour, label in (
            ("o", "#777777", "onset"),
            ("X", "#777777", "alarm"),
            ("<", INK, "resumed here after a rollback"),
        ):
            axes[0].scatter([], [], marker=marker, color=colour, label=label)
        axes[0].legend(loc="upper right", frameon=False, fontsize=9)
        axes[-1].set_xlabel("global step")


def _mark(panel: Axes, past: Past, row: AttemptRow, colour: str) -> None:
    """Onset, alarm and rollback of one attempt, along its loss."""
    steps, values = past.curve(row.attempt, "loss")
    losses = dict(zip(steps.tolist(), values.tolist(), strict=True))
    for step, marker, size in ((row.onset_step, "o", 60), (row.alarm_step, "X", 75)):
        if step is not None and math.isfinite(losses.get(step, math.nan)):
            panel.scatter([step], [losses[step]], marker=marker, s=size, color=colour, edgecolor="white", zorder=5)
    if row.resumed_from is not None and len(steps):
        panel.scatter(steps[:1], values[:1], marker="<", s=60, color=INK, edgecolor="white", zorder=6)


_RUNS = (INK, "#c1443c", "#4c8fbf", "#2e8b57", "#e08a3c", "#7b6fb0")


def draw_comparison(runs: Sequence[Reference], *, by: str, path: Path) -> None:
    """Each run's smoothed loss. Both axes are logarithmic where they can be: loss curves are straight there."""
    with drawn(path, (10, 5.5)) as figure:
        panel = figure.subplots()
        for number, run in enumerate(runs):
            places, losses = zip(*run.points, strict=True)
            panel.plot(places, losses, color=_RUNS[number % len(_RUNS)], linewidth=1.4, label=_plain(run.name))
        panel.set_xscale("log")
        if all(loss > 0 for run in runs for _, loss in run.points):
            panel.set_yscale("log")
        panel.set_xlabel(by)
        panel.set_ylabel("loss, nats, smoothed")
        panel.grid(which="both")
        panel.legend(frameon=False)


_SIGNALS = ("#c1443c", "#4c8fbf")
_NAMES = {"adam_variance_l1": r"variance, $\Sigma\sqrt{v}$", "adam_variance_max": r"variance, $\max\sqrt{v}$"}
_MOST_POINTS = 4000  # more than a panel has pixels for
_CHANCE = 0.05  # probability that the bands leave to chance; a dot is less probable


def draw_correlation(
    found: Correlations,
    columns: Mapping[str, NDArray[np.float64]],
    steps: NDArray[np.int64],
    *,
    title: str,
    path: Path,
) -> None:
    """The first two signals measured: coefficients by lag, ratio against signal, the paper's Figure 1(g, h)."""
    measured = [p for p in found.profiles if np.isfinite(columns[p.signal]).sum() > 2][:2]
    with drawn(path, (11, 9.5), title) as figure:
        layout: list[Any] = [["lags", "scatter"], *([p.signal, p.signal] for p in measured)]
        heights = [1.35] + [1.0] * len(measured)
        rows: dict[str, Axes] = figure.subplot_mosaic(layout, height_ratios=heights, width_ratios=(1.5, 1))
        _lags(rows["lags"], measured, tests=sum(int(np.isfinite(p.r).sum()) for p in found.profiles))
        _scatter(rows["scatter"], measured, columns, found)
        for letter, profile, colour in zip("gh", measured, _SIGNALS, strict=False):
            _by_step(rows[profile.signal], profile.signal, columns, steps, colour)
            about = f"Figure 1({letter}): loss ratio and {_name(profile.signal)}, each over its maximum"
            rows[profile.signal].set_title(about, fontsize=10, loc="left")
        if measured:
            rows[measured[-1].signal].set_xlabel("global step")


def _name(signal: str) -> str:
    return _NAMES.get(signal, signal)


def _lags(panel: Axes, profiles: list[LagProfile], *, tests: int) -> None:
    """Prewhitened coefficients by lag, with what a single lag and the whole search leave to chance."""
    for profile, colour in zip(profiles, _SIGNALS, strict=False):
        panel.plot(profile.lags, profile.r, color=colour, linewidth=0.9, alpha=0.9, label=_name(profile.signal))
        significant = profile.p_adjusted < _CHANCE
        lags, r = profile.lags[significant], profile.r[significant]
        panel.scatter(lags, r, s=26, color=colour, edgecolor="white", zorder=5)
    if profiles:
        first = profiles[0]
        for p, shade, label in (
            (_CHANCE / max(tests, 1), "#ededed", f"chance, over all {tests} tests"),
            (_CHANCE, "#d9d9d9", "chance, of one lag"),
        ):
            edge = _coefficient_of(p, first.n_effective)
            panel.fill_between(first.lags, -edge, edge, color=shade, linewidth=0, label=label, zorder=0.5)
        panel.legend(loc="upper right", frameon=False, fontsize=8.5)
        top = max(float(np.nanmax(np.abs(p.r), initial=0.05)) for p in profiles)
        panel.set_ylim(-1.15 * top, 1.5 * top)
    panel.axvline(0, color="#999999", linewidth=0.8)
    panel.set_xlabel("lag, steps:  signal later  ←   0   →  signal earlier than the loss ratio")
    panel.set_ylabel("r, prewhitened (5 % bands)")
    panel.set_title("Does the signal lead?", fontsize=10, loc="left")


def _coefficient_of(p: float, n: NDArray[np.float64]) -> NDArray[np.float64]:
    """|r| that n independent pairs exceed with probability p: t / sqrt(n - 2 + t^2)."""
    freedom = np.maximum(n - 2, 1e-9)
    t = special.stdtrit(freedom, 1 - p / 2)
    found: NDArray[np.float64] = t / np.sqrt(freedom + t * t)
    return found


def _scatter(
    panel: Axes, profiles: list[LagProfile], columns: Mapping[str, NDArray[np.float64]], found: Correlations
) -> None:
    plain = {row.signal: row for row in found.rows if row.method == "plain"}
    for profile, colour in zip(profiles, _SIGNALS, strict=False):
        x, y = _over_maximum(columns[profile.signal]), columns["loss_ratio"]
        there = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
        taken = there[:: max(1, -(-len(there) // _MOST_POINTS))]
        label = f"{_name(profile.signal)}: r = {plain[profile.signal].pearson_r:+.2f}"
        panel.scatter(x[taken], y[taken], s=5, color=colour, alpha=0.35, linewidth=0, label=label)
    panel.set_xlabel("signal over its maximum")
    panel.set_ylabel("loss ratio")
    panel.set_title("Same step, plain (Table 3)", fontsize=10, loc="left")
    if profiles:
        panel.legend(loc="upper right", frameon=False, fontsize=8.5, markerscale=3)
        low, high = panel.get_ylim()
        panel.set_ylim(low, high + 0.25 * (high - low))


def _by_step(
    panel: Axes, signal: str, columns: Mapping[str, NDArray[np.float64]], steps: NDArray[np.int64], colour: str
) -> None:
    for name, ink, width, label in (("loss_ratio", INK, 0.9, "loss ratio"), (signal, colour, 1.3, _name(signal))):
        at, values = _thinned(steps, _over_maximum(columns[name]))
        panel.plot(at, values, color=ink, linewidth=width, alpha=0.85, label=label)
    panel.set_ylim(0, 1.05)
    panel.set_ylabel("over its maximum")
    panel.legend(loc="upper right", frameon=False, fontsize=8.5, ncols=2, bbox_to_anchor=(1.0, 1.14))


def _over_maximum(values: NDArray[np.float64]) -> NDArray[np.float64]:
    finite = values[np.isfinite(values)]
    largest = float(np.max(np.abs(finite), initial=0.0))
    found: NDArray[np.float64] = np.where(np.isfinite(values), values / (largest or 1.0), np.nan)
    return found


def _thinned(steps: NDArray[np.int64], values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Every extreme of a few thousand bins, so that no spike is lost; a nan, which breaks the line, where steps go
    back."""
    finite = np.isfinite(values)
    at, shown = steps[finite].astype(np.float64), values[finite]
    kept = decimated(shown, _MOST_POINTS // 4)
    broken = np.flatnonzero(np.diff(at[kept]) <= 0) + 1
    return np.insert(at[kept], broken, np.nan), np.insert(shown[kept], broken, np.nan)
