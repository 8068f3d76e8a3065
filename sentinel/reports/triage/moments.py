"""When each step was made: what a moment on a clock is as a step of the run."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from sentinel.judge.readings import Readings
from sentinel.reports.triage.past import Past

__all__ = ["moments"]

_KEPT = 2048
"""Steps of each attempt whose time the page is told, evenly spread, its first and last among them; between two of them
the page takes the time to have passed evenly."""


def moments(past: Past) -> list[dict[str, Any]]:
    """For each attempt its steps (uint32) and their times (float64, unix seconds), little-endian, in base64.

    An attempt whose source tells no times is left out.
    """
    found = []
    for number in past.history.attempts:
        told = _told(past.of_attempt(number))
        if told is not None:
            found.append({"attempt": number, "steps": _base64(told[0], "<u4"), "times": _base64(told[1], "<f8")})
    return found


def _told(stretches: Sequence[Readings]) -> tuple[Any, Any] | None:
    if not stretches:
        return None
    steps = np.concatenate([r.steps for r in stretches])
    times = np.concatenate([r.values("time_unix_s") for r in stretches])
    known = np.isfinite(times)
    if not known.any():
        return None
    steps, times = steps[known], np.maximum.accumulate(times[known])  # a clock that was set back
    kept = np.unique(np.linspace(0, len(steps) - 1, min(_KEPT, len(steps))).round().astype(np.int64))
    return steps[kept], times[kept]


def _base64(array: Any, kind: str) -> str:
    return base64.b64encode(array.astype(kind).tobytes()).decode("ascii")
