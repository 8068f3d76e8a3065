"""Readings made ready for the judge's loop: Python's own numbers, and where nothing but numbers in their place is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sentinel.judge.leading import BANDED
from sentinel.judge.noise_band import BLOCK
from sentinel.judge.readings import COLUMNS, Readings

__all__ = ["Stretch"]

_STEADY = ("seqlen", "kept_tokens", "curriculum_share", "global_batch_samples", "loss_scale")
"""Columns that mean something when they change."""


class Stretch:
    """n samples; see Readings."""

    def __init__(self, readings: Readings) -> None:
        self.steps: list[int] = readings.steps.tolist()
        self._columns = {name: readings.columns[name].tolist() for name in COLUMNS if name in readings.columns}
        self._measured = {name: there.tolist() for name, there in readings.measured.items()}
        self._skipped: list[bool] | None = None if readings.skipped is None else readings.skipped.tolist()
        self.losses: list[float] = self._columns["loss"]
        self.lr: list[float] | None = None if "lr" in self._measured else self._columns.get("lr")
        self.banded: dict[str, list[float]] = {n: self._columns[n] for n in BANDED if n in self._columns}
        self._plain: list[bool] = _plain_blocks(readings).tolist()

    def plain(self, i: int) -> bool:
        """Whether the 8 samples from i on are there, whole, finite, not 0.0, not skipped, and nothing changes in them.

        Never for the first of a stretch: what it changes is not known here.
        """
        return self._plain[i]

    def sample(self, i: int) -> tuple[int, bool, dict[str, float | None]]:
        """Sample i: step, whether it was skipped, and its readings by name, None where not measured."""
        readings: dict[str, float | None] = dict.fromkeys(COLUMNS)
        for name, column in self._columns.items():
            there = self._measured.get(name)
            if there is None or there[i]:
                readings[name] = column[i]
        return self.steps[i], self._skipped is not None and self._skipped[i], readings


def _plain_blocks(readings: Readings) -> NDArray[np.bool_]:
    """(n,): whether each of the 8 samples from there on is plain."""
    n = len(readings)
    plain = np.ones(n, dtype=bool)
    plain[:1] = False
    if readings.skipped is not None:
        plain &= ~readings.skipped
    for there in readings.measured.values():
        plain &= there
    for name in ("loss", *BANDED):
        if name in readings.columns:
            plain &= np.isfinite(readings.columns[name])
    plain &= readings.columns["loss"] != 0.0  # a loss, or what hides a nan: `Vanished` decides
    for name in _STEADY:
        if name in readings.columns:
            plain[1:] &= readings.columns[name][1:] == readings.columns[name][:-1]
    counts = np.concatenate([[0], np.cumsum(plain)])
    whole = np.zeros(n, dtype=bool)
    if n >= BLOCK:
        whole[: n - BLOCK + 1] = counts[BLOCK:] - counts[:-BLOCK] == BLOCK
    return whole
