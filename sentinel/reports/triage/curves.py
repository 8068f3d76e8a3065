"""The charts: what each shows, and its curve of each attempt, packed for the page."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.judge.readings import Readings
from sentinel.reports.triage.decimation import BUCKETS, decimated
from sentinel.reports.triage.past import Past
from sentinel.vocabulary.sample import LayerVariance

__all__ = ["CHARTS", "Chart", "charts", "unpacked"]

_LAYERS = 6
"""How many layers are drawn: those whose variance grew the most."""

_AROUND_STEPS = 2000
"""Steps to either side of an onset of which every single reading is kept."""

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """What one chart shows."""

    field: str
    """Of Sample."""

    title: str
    unit: str
    """Empty where it has none."""

    help: str
    log: bool = False
    """Drawn on a logarithmic axis at first, where all is above 0."""


CHARTS: tuple[Chart, ...] = (
    Chart(field="loss", title="Loss", unit="nats", help="Training loss, mean over tokens and data-parallel ranks."),
    Chart(field="loss_ratio", title="Loss ratio", unit="", help="Loss over the smallest before it; above 1.2 a spike."),
    Chart(
        field="adam_variance_l1", title="Variance norm", unit="", help="Sum of √v, v Adam's second moment.", log=True
    ),
    Chart(field="adam_variance_max", title="Variance max", unit="", help="Largest √v of any parameter.", log=True),
    Chart(field="grad_norm", title="Gradient norm", unit="", help="Global L2 norm, before clipping.", log=True),
    Chart(
        field="update_norm", title="Update norm", unit="", help="Root mean square of the update, before lr.", log=True
    ),
    Chart(field="lr", title="Learning rate", unit="", help="That the step was taken with."),
    Chart(field="seqlen", title="Sequence length", unit="tokens", help="Tokens per sample in the step."),
    Chart(field="loss_scale", title="Loss scale", unit="", help="Of fp16 training.", log=True),
    Chart(field="loss_spread", title="Loss over ranks", unit="nats", help="Largest minus smallest rank's loss."),
    Chart(
        field="grad_norm_spread", title="Gradient over ranks", unit="", help="Largest minus smallest norm of a rank."
    ),
    Chart(field="momentum_l2", title="Momentum norm", unit="", help="L2 norm of Adam's first moment.", log=True),
    Chart(field="param_norm", title="Parameter norm", unit="", help="L2 norm of the parameters."),
    Chart(field="step_time_s", title="Step time", unit="s", help="Wall time since the step before it ended."),
)
"""In the order in which they are looked at; one that nothing measured is left out."""


def charts(past: Past, buckets: int = BUCKETS) -> list[dict[str, Any]]:
    """Each chart with its curves; steps as uint32 and values as float32, little-endian, in base64."""
    onsets = [i.onset_range for i in past.incidents if i.onset_range is not None]
    found = []
    for chart in CHARTS:
        curves = [
            curve
            for n in past.history.attempts
            if (curve := _curve(past.of_attempt(n), n, chart.field, onsets, buckets))
        ]
        if curves:
            found.append(_described(chart) | {"curves": curves})
    return [*found, *_layer_charts(past)]


def _described(chart: Chart) -> dict[str, Any]:
    return {"name": chart.field, "title": chart.title, "unit": chart.unit, "help": chart.help, "log": chart.log}


def _curve(
    stretches: Sequence[Readings], attempt: int, name: str, onsets: Iterable[tuple[int, int]], buckets: int
) -> dict[str, Any] | None:
    there = [r.has(name) for r in stretches]
    if not any(t.any() for t in there):
        return None
    steps = np.concatenate([r.steps[t] for r, t in zip(stretches, there, strict=True)])
    values = np.concatenate([r.columns[name][t] for r, t in zip(stretches, there, strict=True) if t.any()])
    if (np.diff(steps) < 0).any():  # a log in which lines of two writers cross
        order = np.argsort(steps, kind="stable")
        steps, values = steps[order], values[order]
    near = np.zeros(len(steps), np.bool_)
    for early, late in onsets:
        near |= (steps >= early - _AROUND_STEPS) & (steps <= late + _AROUND_STEPS)
    kept = decimated(values, buckets, near)
    return {"attempt": attempt, "readings": len(steps)} | _packed(steps[kept], values[kept])


def _layer_charts(past: Past) -> list[dict[str, Any]]:
    """Adam's largest √v of the layers that grew the most, a chart of its own each: one layer over all attempts."""
    measured = [one for attempt in past.history.attempts.values() for one in attempt.layers]
    found = []
    for layer in _most_grown(measured)[:_LAYERS]:
        curves = []
        for number, attempt in past.history.attempts.items():
            points = [
                (one.global_step, one.adam_variance_max[one.layers.index(layer)])
                for one in attempt.layers
                if layer in one.layers
            ]
            if points:
                steps, values = np.array([p[0] for p in points], np.int64), np.array([p[1] for p in points], np.float64)
                kept = decimated(values)
                curves.append({"attempt": number, "readings": len(points)} | _packed(steps[kept], values[kept]))
        about = f"Largest √v in {layer}; the layers whose largest grew the most are shown."
        chart = {"name": f"layer {layer}", "title": layer, "unit": "", "help": about, "log": True, "layer": layer}
        found.append(chart | {"curves": curves})
    return found


def _most_grown(measured: Sequence[LayerVariance]) -> list[str]:
    """The layers, by the largest √v over the median one, the most grown first; a nan has grown beyond all."""
    growth: dict[str, float] = {}
    for layer in dict.fromkeys(name for one in measured for name in one.layers):
        values = np.array([one.adam_variance_max[one.layers.index(layer)] for one in measured if layer in one.layers])
        finite = values[np.isfinite(values)]
        middle = float(np.median(finite)) if len(finite) else 0.0
        growth[layer] = np.inf if len(finite) < len(values) else float(finite.max()) / middle if middle else 0.0
    return sorted(growth, key=lambda layer: -growth[layer])


def _packed(steps: NDArray[np.int64], values: NDArray[np.float64]) -> dict[str, str]:
    """float32 tells any two readings apart that a screen can; what is finite stays so."""
    finite = np.isfinite(values)
    clipped = np.where(finite, np.clip(np.where(finite, values, 0.0), -_LARGEST, _LARGEST), values)
    return {"steps": _base64(steps.astype("<u4")), "values": _base64(clipped.astype("<f4"))}


def unpacked(curve: dict[str, Any]) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """A curve's steps and values, as the page has them."""
    steps, values = (base64.b64decode(curve[key]) for key in ("steps", "values"))
    return np.frombuffer(steps, "<u4"), np.frombuffer(values, "<f4")


def _base64(array: NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")
