"""The columns that are correlated, from samples or from readings; the loss ratio also where the source has none."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sentinel.judge.analysis.correlation.table import SIGNALS, Correlations, correlations
from sentinel.judge.readings import Readings, stretches_of
from sentinel.vocabulary.sample import LayerVariance, Sample

ALSO = ("grad_norm", "update_norm", "loss_scale", "lr")  # Correlated where measured and varying; fields of Sample
_NAMES = ("loss_ratio", *SIGNALS, *ALSO, "loss", "seqlen")
Floats = NDArray[np.float64]
Columns = Mapping[str, Floats]
Steps = NDArray[np.int64]


def correlate(samples: Sequence[Sample]) -> Correlations:
    """Loss ratio against SIGNALS, and ALSO where measured, over the samples that have both, as they were made. Skipped
    steps are left out, infinite ratios left out and counted. Where an attempt begins again at an earlier step than the
    one before ended at, no lag reaches across."""
    return correlate_readings(stretches_of(samples, _NAMES))


def correlate_readings(stretches: Sequence[Readings]) -> Correlations:
    return correlations(*columns_of(stretches))


def columns_of(stretches: Sequence[Readings]) -> tuple[Columns, Steps]:
    """The columns that `correlations` takes, and their steps: of the samples that were not skipped, with their own
    ratios or `ratios` of their losses."""
    columns = {name: np.concatenate([np.zeros(0), *(r.values(name) for r in stretches)]) for name in _NAMES}
    steps = np.concatenate([np.zeros(0, np.int64), *(r.steps for r in stretches)])
    updated = np.concatenate([np.zeros(0, np.bool_), *(r.updated for r in stretches)])
    lengths, loss = columns.pop("seqlen"), columns.pop("loss")
    columns["loss_ratio"] = ratios(steps, loss, lengths, columns["loss_ratio"])  # skipped losses count for later ones
    return {name: column[updated] for name, column in columns.items()}, steps[updated]


def layer_columns(stretches: Sequence[Readings], layers: Iterable[LayerVariance]) -> Columns:
    """`adam_variance_max[layer]` and `adam_variance_l1[layer]`, beside those of `columns_of` for the same readings; nan
    where the layers were not measured."""
    updated = [(r.attempt, step) for r in stretches for step in r.steps[r.updated].tolist()]
    place = {key: number for number, key in enumerate(updated)}
    columns: dict[str, Floats] = {}
    for one in layers:
        if (at := place.get((one.attempt, one.global_step))) is None:
            continue
        for signal in SIGNALS:
            for layer, value in zip(one.layers, getattr(one, signal), strict=True):
                columns.setdefault(f"{signal}[{layer}]", np.full(len(updated), math.nan))[at] = value
    return columns


def ratios(steps: Steps, loss: Floats, lengths: Floats | None = None, given: Floats | None = None) -> Floats:
    """(n,) this step's loss over the smallest loss of all previous ones at its sequence length, as `loss_ratio` has it.

    1 at the first of each length, inf where the loss is not finite. Where a step does not lie after the one before, the
    run went back, and with it the minimum, which travels in the checkpoint. `lengths` are tokens per sample, `given`
    the ratios that the source has, which stand; nan where not measured.
    """
    alike = np.zeros(len(loss)) if lengths is None else np.nan_to_num(lengths, nan=-1.0)
    found = np.empty(len(loss))
    minima: dict[float, list[tuple[int, float]]] = {}
    for part in np.split(np.arange(len(steps)), np.flatnonzero(np.diff(steps) <= 0) + 1):
        if not len(part):
            continue
        for descent in minima.values():
            while descent and descent[-1][0] >= steps[part[0]]:
                descent.pop()
        for length in np.unique(alike[part]).tolist():
            here = part[alike[part] == length]
            found[here] = _ratios(steps[here], loss[here], minima.setdefault(length, []))
    return found if given is None else np.where(np.isnan(given), found, given)


def _ratios(steps: Steps, loss: Floats, minima: list[tuple[int, float]]) -> Floats:
    """Of one length and growing steps. `minima` are (step, loss) of each new minimum so far; the new ones are added."""
    finite = np.isfinite(loss)
    first = minima[-1][1] if minima else np.inf
    smallest = np.minimum.accumulate(np.concatenate(([first], np.where(finite, loss, np.inf))))
    before = smallest[:-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(np.isposinf(before), 1.0, loss / before)
    new = np.flatnonzero(smallest[1:] < before)
    minima += zip(steps[new].tolist(), smallest[1:][new].tolist(), strict=True)
    found: Floats = np.where(finite & (before != 0), ratio, np.inf)
    return found
