"""The charts: the curve of each attempt, as a few thousand real readings with every extreme, and when steps were made.

Arrays are little-endian in base64: steps uint32, values float32, times float64 in Unix seconds.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.judge.readings import Readings
from sentinel.reports.past import Past, joined
from sentinel.vocabulary.sample import LayerVariance

BUCKETS = 4096  # more than any screen has columns
_WHOLE_BELOW = 4  # readings per bucket up to which all are kept
_LAYERS = 6  # layers that are drawn: those whose variance grew the most
_AROUND_STEPS = 2000  # steps to either side of an onset of which every reading is kept
_MOMENTS = 2048  # steps of each attempt whose time is given, evenly spread; between two of them the page interpolates
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Chart:
    """What one chart shows: a field of Sample, its title, its unit ("": none), and its meaning."""

    name: str
    title: str
    unit: str
    help: str
    log: bool = False  # drawn on a logarithmic axis at first, where all is above 0


CHARTS: tuple[Chart, ...] = (  # in the order of the page; one that was not measured is left out
    Chart("loss", "Loss", "nats", "Training loss, mean over tokens and data-parallel ranks."),
    Chart("loss_ratio", "Loss ratio", "", "Loss over the smallest before it at its length; above 1.2 a spike."),
    Chart("loss_ratio_all_lengths", "Loss ratio, all lengths", "", "Over the smallest at any length."),
    Chart("adam_variance_l1", "Variance norm", "", "Sum of √v, v Adam's second moment.", log=True),
    Chart("adam_variance_max", "Variance max", "", "Largest √v of any parameter.", log=True),
    Chart("grad_norm", "Gradient norm", "", "Global L2 norm, before clipping.", log=True),
    Chart("update_norm", "Update norm", "", "Root mean square of the update, before lr.", log=True),
    Chart("attention_logit_max", "Attention logit", "", "Largest magnitude that the trainer has given.", log=True),
    Chart("output_logit_max", "Output logit", "", "Largest magnitude.", log=True),
    Chart("lr", "Learning rate", "", "That the step was taken with."),
    Chart("seqlen", "Sequence length", "tokens", "Tokens per sample in the step."),
    Chart("loss_scale", "Loss scale", "", "Of fp16 training.", log=True),
    Chart("loss_spread", "Loss over ranks", "nats", "Largest minus smallest rank's loss."),
    Chart("grad_norm_spread", "Gradient over ranks", "", "Largest minus smallest norm of a rank."),
    Chart("momentum_l2", "Momentum norm", "", "L2 norm of Adam's first moment.", log=True),
    Chart("param_norm", "Parameter norm", "", "L2 norm of the parameters."),
    Chart("step_time_s", "Step time", "s", "Wall time since the step before it ended."),
)


def charts(past: Past) -> list[dict[str, Any]]:
    onsets = [i.onset_range for i in past.incidents if i.onset_range is not None]
    found = []
    for chart in CHARTS:
        lines = {n: past.of_attempt(n) for n in past.history.attempts}
        curves = [_curve(stretches, n, chart.name, onsets) for n, stretches in lines.items()]
        if any(curves):
            found.append(asdict(chart) | {"curves": list(filter(None, curves))})
    return [*found, *_layer_charts(past)]


def _curve(
    stretches: Sequence[Readings], attempt: int, name: str, onsets: Iterable[tuple[int, int]]
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
    return {"attempt": attempt, **_packed(steps, values, decimated(values, always=near))}


def _layer_charts(past: Past) -> list[dict[str, Any]]:
    """Adam's largest √v of the layers that grew the most, a chart of its own each: one layer over all attempts."""
    series: dict[str, dict[int, list[tuple[int, float]]]] = {}  # layer -> attempt -> steps and values
    for number, attempt in past.history.attempts.items():
        for layer, points in layer_points(attempt.layers).items():
            series.setdefault(layer, {})[number] = points
    found = []
    for layer in sorted(series, key=lambda layer: -_growth(series[layer]))[:_LAYERS]:
        curves = []
        for number, points in series[layer].items():
            steps, values = np.array([p[0] for p in points], np.int64), np.array([p[1] for p in points], np.float64)
            curves.append({"attempt": number, **_packed(steps, values, decimated(values))})
        about = f"Largest √v in {layer}; the layers whose largest grew the most are shown."
        chart = Chart(f"layer {layer}", layer, "", about, log=True)
        found.append(asdict(chart) | {"layer": layer, "curves": curves})
    return found


def layer_points(measured: Iterable[LayerVariance]) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for one in measured:
        for layer, value in zip(one.layers, one.adam_variance_max, strict=False):
            found.setdefault(layer, []).append((one.global_step, value))
    return found


def _growth(points: dict[int, list[tuple[int, float]]]) -> float:
    """The largest √v over the median one; inf where one is nan."""
    values = np.array([value for of_attempt in points.values() for _, value in of_attempt])
    finite = values[np.isfinite(values)]
    if len(finite) < len(values):
        return np.inf
    middle = float(np.median(finite))
    return float(finite.max()) / middle if middle else 0.0


def decimated(
    values: NDArray[np.float64], buckets: int = BUCKETS, always: NDArray[np.bool_] | None = None
) -> NDArray[np.intp]:
    """Places in `values`, (n,), that are kept; ascending, each once.

    The curve is cut into `buckets` of as many neighbouring readings each. Of each are kept: the first and the last, the
    smallest and the largest finite one, the first and the last nan, the first inf and the first -inf; and all that
    `always`, (n,), marks. A line through the kept readings has every peak of the whole curve, at its own step.
    """
    n = len(values)
    if n <= buckets * _WHOLE_BELOW:
        return np.arange(n)
    width = -(-n // buckets)
    rows = -(-n // width)
    padded = np.full(rows * width, np.nan)
    padded[:n] = values
    table = padded.reshape(rows, width)
    finite = np.isfinite(table)
    bad = np.isnan(table) & (np.arange(rows * width).reshape(rows, width) < n)
    starts = np.arange(rows) * width
    kept = np.zeros(rows * width, dtype=np.bool_)
    kept[starts] = True
    kept[np.minimum(starts + width, n) - 1] = True
    for mask, places in (
        (finite, np.where(finite, table, np.inf).argmin(axis=1)),
        (finite, np.where(finite, table, -np.inf).argmax(axis=1)),
        (bad, bad.argmax(axis=1)),
        (bad, width - 1 - bad[:, ::-1].argmax(axis=1)),
        (np.isposinf(table), np.isposinf(table).argmax(axis=1)),
        (np.isneginf(table), np.isneginf(table).argmax(axis=1)),
    ):
        kept[(starts + places)[mask.any(axis=1)]] = True
    if always is not None:
        kept[:n] |= always
    return np.flatnonzero(kept[:n])


def moments(past: Past) -> list[dict[str, Any]]:
    """For each attempt its steps and their times; an attempt whose source has no times is left out."""
    found = []
    for number in past.history.attempts:
        stretches = past.of_attempt(number)
        times = joined(stretches, "time_unix_s")
        known = np.isfinite(times)
        if known.any():
            steps = np.concatenate([r.steps for r in stretches])[known]
            times = np.maximum.accumulate(times[known])  # a clock that was set back
            kept = np.unique(np.linspace(0, len(steps) - 1, min(_MOMENTS, len(steps))).round().astype(np.int64))
            packed = {"steps": _base64(steps[kept], "<u4"), "times": _base64(times[kept], "<f8")}
            found.append({"attempt": number} | packed)
    return found


def _packed(steps: NDArray[np.int64], values: NDArray[np.float64], kept: NDArray[np.intp]) -> dict[str, Any]:
    """One curve. What is finite stays finite in float32."""
    shown = values[kept]
    finite = np.isfinite(shown)
    clipped = np.where(finite, np.clip(np.where(finite, shown, 0.0), -_LARGEST, _LARGEST), shown)
    return {"readings": len(steps), "steps": _base64(steps[kept], "<u4"), "values": _base64(clipped, "<f4")}


def _base64(array: NDArray[Any], kind: str) -> str:
    return base64.b64encode(array.astype(kind).tobytes()).decode("ascii")
