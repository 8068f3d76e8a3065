"""The paper's Figure 4: validation perplexity over tokens and time, Adam's variance norm and its largest element."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .cases import BASELINE, CASES, SLW
from .reading import Cost, Curve
from .tables import Groups

__all__ = ["draw"]

COLOURS = (
    "#b2182b",
    "#4575b4",
    "#1b7837",
    "#e08214",
    "#762a83",
    "#5aae61",
    "#8c510a",
    "#5ab4ac",
    "#777777",
    "#d6604d",
    "#053061",
    "#c51b7d",
)
STYLES = ("-", "--", ":", "-.")
RELATED = ("Shortformer", "bsz warmup", "mixed lengths")


def draw(groups: Groups, path: Path, title: str) -> None:
    """A row of the baseline and SLW at each LR, one of the related works, one of the other cases."""
    cost = Cost.of(curve for some in groups.values() for curve in some)
    rates = sorted({rate for _, rate in groups}, reverse=True)
    both, highest = (BASELINE.name, SLW.name), rates[0]
    others = [c.name for c in CASES if c.name not in (*both, *RELATED)]
    rows = [
        {key: some for key, some in groups.items() if key[0] in both},
        {key: some for key, some in groups.items() if key[0] in (*both, *RELATED) and key[1] == highest},
        {key: some for key, some in groups.items() if key[0] in (*both, *others) and key[1] == highest},
    ]
    rows = rows[: 3 if len({case for case, _ in groups}) > len(both) else 1]
    figure = Figure(figsize=(19, 4.2 * len(rows) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, row in zip(figure.subplots(len(rows), 4, squeeze=False), rows, strict=True):
        for (case, rate), curves in row.items():
            colour = COLOURS[[c.name for c in CASES].index(case)]
            label = f"{case}, lr {rate:g}" if len({r for _, r in row}) > 1 else case
            for number, curve in enumerate(curves):
                style = STYLES[rates.index(rate) % len(STYLES)]
                _curve(axes, curve, cost, colour, style, None if number else label)
        _dress(axes)
    figure.suptitle(title)
    figure.savefig(path, dpi=80)


def _curve(axes: Sequence[Axes], curve: Curve, cost: Cost, colour: str, style: str, label: str | None) -> None:
    tokens, seconds = curve.tokens, cost.seconds(curve)
    steps = [v.global_step for v in curve.validations]
    perplexity = [math.exp(v.loss) if v.loss < 50 else math.nan for v in curve.validations]  # nan is not below
    told: dict[str, Any] = {"color": colour, "linestyle": style, "linewidth": 1.1, "alpha": 0.8, "label": label}
    axes[0].plot([tokens[s] for s in steps], perplexity, **told)
    axes[1].plot([seconds[s] for s in steps], perplexity, **told)
    made = [s.global_step for s in curve.samples]
    axes[2].plot(made, [_finite(s.adam_variance_l1) for s in curve.samples], **told)
    axes[3].plot(made, [_finite(s.adam_variance_max) for s in curve.samples], **told)


def _finite(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else math.nan


def _dress(axes: Sequence[Axes]) -> None:
    names = ("tokens", "time, s", "step", "step")
    values = ("validation perplexity",) * 2 + ("Adam variance norm (l1)", "Adam variance max element")
    for each, name, value in zip(axes, names, values, strict=True):
        each.set_yscale("log")
        each.set_xlabel(name)
        each.set_title(value, fontsize=10)
        each.grid(alpha=0.25)
    axes[2].legend(fontsize=7, loc="lower right")
