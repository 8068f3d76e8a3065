"""The columns that are correlated, from samples as the journal has them or from readings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sentinel.judge.correlation.table import LAGS, SIGNALS, Correlations, correlations
from sentinel.judge.readings import Readings
from sentinel.vocabulary.sample import Sample

__all__ = ["ALSO", "columns_of", "correlate", "correlate_readings", "loss_ratios"]

ALSO = ("grad_norm", "update_norm", "loss_scale", "lr")
"""Signals that are correlated where they are measured and vary; fields of Sample."""


def correlate(samples: Sequence[Sample], *, largest_lag: int = LAGS) -> Correlations:
    """Loss ratio against SIGNALS, and ALSO where measured, over the samples that have both, as they were made.

    Skipped steps are left out, infinite ratios left out and counted. Where an attempt begins again at an earlier step
    than the one before ended at, no lag reaches across.
    """
    columns, steps = columns_of(samples)
    return correlations(columns, steps, largest_lag=largest_lag)


def correlate_readings(stretches: Sequence[Readings], *, largest_lag: int = LAGS) -> Correlations:
    """The same of readings, one attempt's after the other; the ratio is made from their losses."""
    names = ("loss_ratio", *SIGNALS, *ALSO)
    parts: dict[str, list[NDArray[np.float64]]] = {name: [] for name in names}
    steps = []
    for readings in stretches:
        taken = np.ones(len(readings), dtype=np.bool_) if readings.skipped is None else ~readings.skipped
        steps.append(readings.steps[taken])
        parts["loss_ratio"].append(loss_ratios(readings)[taken])
        for name in (*SIGNALS, *ALSO):
            column = readings.columns.get(name, np.full(len(readings), np.nan))
            measured = readings.measured.get(name)
            column = column if measured is None else np.where(measured, column, np.nan)
            parts[name].append(column[taken])
    columns = {name: np.concatenate(part) if part else np.zeros(0) for name, part in parts.items()}
    return correlations(
        columns, np.concatenate(steps) if steps else np.zeros(0, dtype=np.int64), largest_lag=largest_lag
    )


def columns_of(samples: Sequence[Sample]) -> tuple[Mapping[str, NDArray[np.float64]], NDArray[np.int64]]:
    """The columns that `correlations` takes, and their steps: of the samples that have a ratio and were not skipped."""
    taken = [s for s in samples if not s.skipped and s.loss_ratio is not None]
    columns = {
        name: np.array([math.nan if (v := getattr(s, name)) is None else v for s in taken], dtype=np.float64)
        for name in ("loss_ratio", *SIGNALS, *ALSO)
    }
    return columns, np.array([s.global_step for s in taken], dtype=np.int64)


def loss_ratios(readings: Readings) -> NDArray[np.float64]:
    """(n,) this step's loss over the smallest loss of all previous ones at its sequence length, as `loss_ratio` has it.

    1 at the first of each length, inf where the loss is not finite. The minimum begins anew with these readings.
    """
    loss = readings.columns["loss"]
    lengths = readings.columns.get("seqlen")
    ratios = np.empty(len(loss))
    alike = np.zeros(len(loss)) if lengths is None else np.nan_to_num(lengths, nan=-1.0)
    for length in np.unique(alike):
        here = alike == length
        ratios[here] = _ratios(loss[here])
    return ratios


def _ratios(loss: NDArray[np.float64]) -> NDArray[np.float64]:
    finite = np.isfinite(loss)
    smallest = np.minimum.accumulate(np.where(finite, loss, np.inf))
    before = np.concatenate(([np.inf], smallest[:-1]))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(np.isposinf(before), 1.0, loss / before)
    found: NDArray[np.float64] = np.where(finite & (before != 0), ratio, np.inf)
    return found
