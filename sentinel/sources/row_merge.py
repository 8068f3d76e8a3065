"""Merges the rows of a table into samples: one for each step of each attempt.

- Neighbouring rows of one step are one sample: ranks that report the same step (the loss is their mean, nan when any
  is; loss_spread is largest minus smallest), or a logger that writes a step's values one row after the other.
- A step that is smaller than the one before it begins a new attempt.
- A row whose loss is blank is not a sample. Its validation loss is a Validation.
- A loss of exactly 0 beside a grad norm of nan is nan: Hugging Face's trainer writes it so.

Rows of several lanes (ranks, or the tags of an event file) that report the same steps, not quite in step, wait until
all lanes have passed a step. A lane that is a chunk of rows behind, or has ended, is not waited for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from sentinel.judge.readings import Readings
from sentinel.sources.column_source import CHUNK_ROWS, Tally
from sentinel.sources.table_rows import Flags, Rows, Whole
from sentinel.vocabulary.sample import Validation

__all__ = ["Lanes", "Stream", "readings_of"]

Key = tuple[int, int]


class Lanes:
    """Puts rows of several lanes in order; at most two chunks of rows are in memory."""

    def __init__(self, tally: Tally, *, one_writer: bool) -> None:
        self._tally = tally
        self._one_writer = one_writer
        """Whether a new attempt begins for all lanes at once (tags of one file) or for each by itself (ranks)."""
        self._waiting: list[Rows] = []
        self._rows_waiting = 0
        self._last: dict[int, Key] = {}
        """Lane to attempt and step of its last row."""
        self._last_at: dict[int, int] = {}
        """Lane to the position of its last row in the stream."""
        self._at = 0
        self._attempt = 1
        self._attempt_at = 0
        self._first_step: int | None = None
        self._given: Key | None = None
        self._late = 0

    def push(self, rows: Rows) -> Rows | None:
        """Takes rows with lanes; gives the rows that are complete, in order."""
        if not len(rows) or rows.lanes is None:
            return None
        if rows.attempts is None:
            rows.attempts = self._attempts_of_tags(rows) if self._one_writer else self._attempts_of_ranks(rows)
        for lane in np.unique(rows.lanes).tolist():
            last = int(np.flatnonzero(rows.lanes == lane)[-1])
            self._last[lane] = rows.place(last)
        self._waiting.append(rows)
        self._rows_waiting += len(rows)
        return self._given_out(CHUNK_ROWS) if self._rows_waiting >= 2 * CHUNK_ROWS else None

    def finish(self) -> Rows | None:
        """The rows that are left, in order."""
        rows = self._given_out(0)
        if self._late:
            self._tally.note(f"{self._late} rows came too late to be joined with others of their step")
        return rows

    def attempt_ended(self) -> None:
        """What follows is of another writer: a lane that repeats its last step begins a new attempt, too."""
        self._last = {lane: (attempt, step + 1) for lane, (attempt, step) in self._last.items()}

    def _attempts_of_ranks(self, rows: Rows) -> Whole:
        """Each rank counts by itself. A later rank is in the newest attempt, unless it begins with step one."""
        attempts = np.ones(len(rows), np.int64)
        lanes = rows.lanes if rows.lanes is not None else attempts
        if self._first_step is None:
            self._first_step = int(rows.steps[0])
        newest = max((attempt for attempt, _ in self._last.values()), default=1)
        for lane in np.unique(lanes).tolist():
            which = np.flatnonzero(lanes == lane)
            steps = rows.steps[which]
            known = self._last.get(lane)
            if known is None:
                known = (1 if int(steps[0]) <= self._first_step else newest, int(steps[0]))
            attempts[which] = known[0] + np.cumsum(np.diff(steps, prepend=known[1]) < 0)
        return attempts

    def _attempts_of_tags(self, rows: Rows) -> Whole:
        """The first tag that goes back begins an attempt for all tags; the others go back after it."""
        back = np.zeros(len(rows), np.bool_)
        previous_at = np.full(len(rows), -1, np.int64)
        lanes = rows.lanes if rows.lanes is not None else previous_at
        for lane in np.unique(lanes).tolist():
            which = np.flatnonzero(lanes == lane)
            steps = rows.steps[which]
            _, last = self._last.get(lane, (0, int(steps[0])))
            back[which] = np.diff(steps, prepend=last) < 0
            previous_at[which] = np.concatenate([[self._last_at.get(lane, -1)], which[:-1] + self._at])
            self._last_at[lane] = int(which[-1]) + self._at
        attempts = np.full(len(rows), self._attempt, np.int64)
        for place in np.flatnonzero(back).tolist():
            if previous_at[place] >= self._attempt_at:
                self._attempt += 1
                self._attempt_at = self._at + place
                attempts[place:] = self._attempt
        self._at += len(rows)
        return attempts

    def _given_out(self, keep: int) -> Rows | None:
        if not self._waiting:
            return None
        rows = Rows.joined(self._waiting)
        rows = rows.taken(np.lexsort((rows.steps, rows.known_attempts)))
        given = max(int(np.count_nonzero(_before(rows, min(self._last.values())))), len(rows) - keep)
        if 0 < given < len(rows):  # not in the middle of a step
            given = int(np.count_nonzero(_before(rows, rows.place(given))))
        self._waiting = [rows.taken(slice(given, None))] if given < len(rows) else []
        self._rows_waiting = len(rows) - given
        return self._in_time(rows.taken(slice(0, given)))

    def _in_time(self, rows: Rows) -> Rows:
        if self._given is not None:
            attempt, step = self._given
            late = _before(rows, (attempt, step + 1))
            self._late += int(np.count_nonzero(late))
            rows = rows.taken(~late)
        if len(rows):
            self._given = rows.place(-1)
        return rows


def _before(rows: Rows, key: Key) -> Flags:
    before: Flags = (rows.known_attempts < key[0]) | ((rows.known_attempts == key[0]) & (rows.steps < key[1]))
    return before


class Join:
    """Takes rows in order and gives samples; the last step waits, since more of it may come."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._open: Rows | None = None
        self._attempt = 1
        self._last_step = -1
        self._went_back = 0

    def push(self, rows: Rows) -> Iterator[Readings]:
        """The samples that are complete with these rows."""
        if not len(rows):
            return
        self._find_attempts(rows)
        if self._open is not None:
            rows = Rows.joined([self._open, rows])
        starts = _starts(rows)
        last = int(starts[-1])
        if len(rows) - last > CHUNK_ROWS:  # a step that never ends is not a step
            last = len(rows)
        self._open = rows.taken(slice(last, None)) if last < len(rows) else None
        yield from self._samples(rows.taken(slice(0, last)))

    def finish(self) -> Iterator[Readings]:
        """The last step."""
        if self._open is not None:
            last, self._open = self._open, None
            yield from self._samples(last)
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
        yield from readings_of(rows, self._tally.fields)

    def _keep_validations(self, rows: Rows) -> None:
        times = rows.values.get("time_unix_s", np.full(len(rows), math.nan))
        for at in np.flatnonzero(rows.where("validation_loss")).tolist():
            (attempt, step), loss = rows.place(at), float(rows.values["validation_loss"][at])
            self._tally.keep(Validation(attempt=attempt, global_step=step, time_unix_s=float(times[at]), loss=loss))


def _starts(rows: Rows) -> Whole:
    """Where a step, or an attempt, differs from the one before it."""
    new = np.ones(len(rows), np.bool_)
    new[1:] = rows.steps[1:] != rows.steps[:-1]
    if rows.attempts is not None:
        new[1:] |= rows.attempts[1:] != rows.attempts[:-1]
    return np.flatnonzero(new)


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


def readings_of(rows: Rows, fields: tuple[str, ...]) -> Iterator[Readings]:
    """The rows as the judge reads them, one piece for each attempt."""
    for start, end in pairwise([0, *(np.flatnonzero(np.diff(rows.known_attempts)) + 1).tolist(), len(rows)]):
        some = rows.taken(slice(start, end))
        columns, measured, skipped = {}, {}, None
        for name in fields:
            there, values = some.there.get(name), some.values.get(name)
            if values is not None and (there is None or there.all()):
                columns[name] = values
            elif values is not None and there is not None and there.any():
                columns[name], measured[name] = np.where(there, values, math.nan), there
        if "skipped" in some.values:
            skipped = (some.values["skipped"] > 0) & some.where("skipped")
        attempt, _ = some.place(0)
        yield Readings(attempt=attempt, steps=some.steps, columns=columns, measured=measured, skipped=skipped)


class Stream:
    """From rows to samples: rows of lanes are put in order, and the rows of a step joined."""

    def __init__(self, tally: Tally, lanes: Lanes | None = None) -> None:
        self._tally = tally
        self._lanes = lanes
        self._join = Join(tally)

    def push(self, rows: Rows) -> Iterator[Readings]:
        """The samples that are complete with these rows."""
        rows = rows.possible(self._tally)
        if rows.lanes is not None and self._lanes is None:
            self._lanes = Lanes(self._tally, one_writer=False)
        if self._lanes is None:
            yield from self._join.push(rows)
            return
        if rows.lanes is None:
            rows.lanes = np.zeros(len(rows), np.int64)
        if (complete := self._lanes.push(rows)) is not None:
            yield from self._join.push(complete)

    def finish(self) -> Iterator[Readings]:
        """The samples that are left."""
        if self._lanes is not None and (rest := self._lanes.finish()) is not None:
            yield from self._join.push(rest)
        yield from self._join.finish()
