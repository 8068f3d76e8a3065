"""Rows of any source, and how they become samples: one for each step.

- Neighbouring rows of one step are one sample: ranks that report the same step (the loss is their mean, nan when any
  is; loss_spread is how far they are apart), or a logger that writes a step's values one row after the other.
- A step that is smaller than the one before it begins a new attempt.
- A row whose loss is blank is no sample. Its validation loss is a Validation.
- A loss of exactly 0 beside a grad norm that is nan is nan: that is how Hugging Face's trainer shows it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sentinel.judge.readings import Readings
from sentinel.sources.column_source import CHUNK_ROWS, Tally
from sentinel.vocabulary.numbers import LARGEST_WHOLE, LATEST_UNIX_S
from sentinel.vocabulary.sample import Validation

__all__ = ["Join", "Rows"]

_POSSIBLE = {
    "time_unix_s": (0.0, LATEST_UNIX_S),
    "consumed_samples": (0.0, float(LARGEST_WHOLE)),
    "consumed_tokens": (0.0, float(LARGEST_WHOLE)),
    "lr_warmup_steps": (0.0, float(LARGEST_WHOLE)),
}
"""Field to the smallest and the largest number that it can be; nan is "not logged"."""

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Whole = NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class Rows:
    """n rows in the order of the source."""

    steps: Whole
    values: dict[str, Floats]
    """Field to its (n,) values: COLUMNS, CARRIED, skipped, validation_loss."""

    there: dict[str, Flags] = field(default_factory=dict)
    """Field to (n,): where there is a reading. A field that is not named here has one everywhere."""

    lanes: Whole | None = None
    """(n,) who reported the row, where that is known: a rank, a tag. Lanes may be out of step with one another."""

    attempts: Whole | None = None
    """(n,) where the source says so itself, or somebody has found it out."""

    def __len__(self) -> int:
        return len(self.steps)

    def taken(self, which: slice | NDArray[np.int64] | Flags) -> Rows:
        """Some of the rows."""
        return Rows(
            steps=self.steps[which],
            values={name: values[which] for name, values in self.values.items()},
            there={name: there[which] for name, there in self.there.items()},
            lanes=None if self.lanes is None else self.lanes[which],
            attempts=None if self.attempts is None else self.attempts[which],
        )

    @classmethod
    def joined(cls, several: list[Rows]) -> Rows:
        """The rows one after the other; all have attempts, or none has."""
        if len(several) == 1:
            return several[0]
        names = {name for rows in several for name in rows.values}
        gaps = {n for n in names if any(n in rows.there or n not in rows.values for rows in several)}
        attempts = [rows.attempts for rows in several if rows.attempts is not None]
        lanes = [rows.lanes for rows in several if rows.lanes is not None]
        return cls(
            steps=np.concatenate([rows.steps for rows in several]),
            values={n: np.concatenate([rows.values.get(n, _nans(len(rows))) for rows in several]) for n in names},
            there={n: np.concatenate([rows.where(n) for rows in several]) for n in gaps},
            lanes=np.concatenate(lanes) if lanes else None,
            attempts=np.concatenate(attempts) if attempts else None,
        )

    def possible(self, tally: Tally) -> Rows:
        """The rows without those whose step none can be, which are counted, and without times and counts of that kind,
        which no verdict depends on."""
        for name, (least, most) in _POSSIBLE.items():
            if name in self.values:
                fine = (self.values[name] >= least) & (self.values[name] <= most)
                if not fine.all():
                    self.there[name] = self.where(name) & fine
                    self.values[name] = np.where(fine, self.values[name], math.nan)
        fine = (self.steps >= 0) & (self.steps <= LARGEST_WHOLE)
        if fine.all():
            return self
        for step in self.steps[~fine].tolist():
            tally.cannot_read(0, f"the step {step} is none")
        return self.taken(fine)

    def where(self, name: str) -> Flags:
        """(n,): where the field has a reading."""
        if name not in self.values:
            return np.zeros(len(self), np.bool_)
        return self.there.get(name, np.ones(len(self), np.bool_))


def _nans(n: int) -> Floats:
    return np.full(n, math.nan)


class Join:
    """Takes rows in order and gives samples, with the last step held back: more of it may come."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._held: Rows | None = None
        self._attempt = 1
        self._last_step = -1
        self._went_back = 0

    def push(self, rows: Rows) -> Iterator[Readings]:
        """The samples that are complete with these rows."""
        if not len(rows):
            return
        self._find_attempts(rows)
        if self._held is not None:
            rows = Rows.joined([self._held, rows])
        starts = _starts(rows)
        held = int(starts[-1])
        if len(rows) - held > CHUNK_ROWS:  # a step that never ends is not a step
            held = len(rows)
        self._held = rows.taken(slice(held, None)) if held < len(rows) else None
        yield from self._samples(rows.taken(slice(0, held)))

    def finish(self) -> Iterator[Readings]:
        """The last step."""
        if self._held is not None:
            held, self._held = self._held, None
            yield from self._samples(held)
        if self._went_back:
            times = "once" if self._went_back == 1 else f"{self._went_back} times"
            self._tally.note(f"the step goes back {times}: a new attempt begins there")

    def _find_attempts(self, rows: Rows) -> None:
        if rows.attempts is not None:
            return
        back = np.diff(rows.steps, prepend=self._last_step) < 0
        rows.attempts = self._attempt + np.cumsum(back)
        self._went_back += int(back.sum())
        self._attempt, self._last_step = int(rows.attempts[-1]), int(rows.steps[-1])

    def _samples(self, rows: Rows) -> Iterator[Readings]:
        if not len(rows):
            return
        rows = _merged(rows)
        self._keep_validations(rows)
        measured = rows.where("loss")
        if not measured.any():
            return
        if not measured.all():
            rows = rows.taken(measured)
        if "grad_norm" in rows.values:
            loss = rows.values["loss"]
            is_nan = (loss == 0) & np.isnan(rows.values["grad_norm"]) & rows.where("grad_norm")
            rows.values["loss"] = np.where(is_nan, math.nan, loss)
        attempts = rows.attempts if rows.attempts is not None else np.ones(len(rows), np.int64)
        for start, end in _runs(attempts):
            yield _readings(rows.taken(slice(start, end)), int(attempts[start]), self._tally.fields)

    def _keep_validations(self, rows: Rows) -> None:
        if rows.attempts is None:
            return
        times = rows.values.get("time_unix_s", _nans(len(rows)))
        for at in np.flatnonzero(rows.where("validation_loss")).tolist():
            self._tally.keep(
                Validation(
                    attempt=int(rows.attempts[at]),
                    global_step=int(rows.steps[at]),
                    time_unix_s=float(times[at]),
                    loss=float(rows.values["validation_loss"][at]),
                )
            )


def _starts(rows: Rows) -> Whole:
    """Where a step, or an attempt, differs from the one before it."""
    new = np.ones(len(rows), np.bool_)
    new[1:] = rows.steps[1:] != rows.steps[:-1]
    if rows.attempts is not None:
        new[1:] |= rows.attempts[1:] != rows.attempts[:-1]
    return np.flatnonzero(new)


def _runs(attempts: Whole) -> Iterator[tuple[int, int]]:
    edges = [0, *(np.flatnonzero(np.diff(attempts)) + 1).tolist(), len(attempts)]
    return pairwise(edges)


def _merged(rows: Rows) -> Rows:
    """One row for each step. Of each field the largest reading, nan when any is; the loss is a mean."""
    starts = _starts(rows)
    if len(starts) == len(rows):
        return rows
    merged = Rows(
        steps=rows.steps[starts],
        values={},
        attempts=None if rows.attempts is None else rows.attempts[starts],
    )
    for name, values in rows.values.items():
        there = rows.where(name)
        merged.there[name] = np.maximum.reduceat(there, starts)
        merged.values[name] = np.maximum.reduceat(np.where(there, values, -math.inf), starts)
    if "loss" in rows.values:
        _average_loss(rows, starts, merged)
    return merged


def _average_loss(rows: Rows, starts: Whole, merged: Rows) -> None:
    there, loss = rows.where("loss"), rows.values["loss"]
    counts = np.add.reduceat(there.astype(np.int64), starts)
    largest = merged.values["loss"]
    smallest = np.minimum.reduceat(np.where(there, loss, math.inf), starts)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = np.add.reduceat(np.where(there, loss, 0.0), starts) / np.maximum(counts, 1)
        spread = np.where(largest == smallest, 0.0, largest - smallest)
    merged.values["loss"] = np.where(largest == smallest, largest, mean)
    several = counts > 1
    if several.any() and "loss_spread" not in merged.values:
        merged.values["loss_spread"] = np.where(several, spread, math.nan)
        merged.there["loss_spread"] = several


def _readings(rows: Rows, attempt: int, names: tuple[str, ...]) -> Readings:
    columns, measured = {}, {}
    for name in names:
        there = rows.where(name)
        if not there.any():
            continue
        columns[name] = rows.values[name]
        if not there.all():
            columns[name] = np.where(there, rows.values[name], math.nan)
            measured[name] = there
    skipped = None
    if "skipped" in rows.values:
        skipped = (rows.values["skipped"] > 0) & rows.where("skipped")
    return Readings(attempt=attempt, steps=rows.steps, columns=columns, measured=measured, skipped=skipped)
