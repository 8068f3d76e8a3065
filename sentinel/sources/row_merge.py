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
from sentinel.sources.table_rows import Key, Rows, Whole
from sentinel.vocabulary.sample import Validation


class _Lanes:
    """Puts rows of several lanes in order; at most two chunks of rows are in memory. A new attempt begins for all lanes
    at once where they have one writer (tags of one file), else for each by itself."""

    def __init__(self, tally: Tally, *, one_writer: bool) -> None:
        self._tally = tally
        self._attempts_of = self._attempts_of_tags if one_writer else self._attempts_of_ranks
        self._waiting: list[Rows] = []
        self.last: dict[int, Key] = {}  # of the last row of each lane
        self._last_at: dict[int, int] = {}  # position of the last row of each lane in the stream
        self._at = 0
        self._attempt = 1
        self._attempt_at = 0
        self._first_step: int | None = None
        self._given: Key | None = None
        self.late = 0

    def push(self, rows: Rows, lanes: Whole) -> Rows | None:
        """Takes rows with lanes; gives the rows that are complete, in order."""
        if not len(rows):
            return None
        which = {lane: np.flatnonzero(lanes == lane) for lane in np.unique(lanes).tolist()}
        if rows.attempts is None:
            rows.attempts = self._attempts_of(rows.steps, which)
        for lane, places in which.items():
            self.last[lane] = rows.place(int(places[-1]))
        self._waiting.append(rows)
        return self.complete(CHUNK_ROWS) if sum(map(len, self._waiting)) >= 2 * CHUNK_ROWS else None

    def _attempts_of_ranks(self, all_steps: Whole, which: dict[int, Whole]) -> Whole:
        """Each rank counts by itself. A later rank is in the newest attempt, unless it begins with step one."""
        attempts = np.ones(len(all_steps), np.int64)
        if self._first_step is None:
            self._first_step = int(all_steps[0])
        newest = max((attempt for attempt, _ in self.last.values()), default=1)
        for lane, places in which.items():
            steps = all_steps[places]
            first = int(steps[0])
            attempt, step = self.last.get(lane, (1 if first <= self._first_step else newest, first))
            attempts[places] = attempt + np.cumsum(np.diff(steps, prepend=step) < 0)
        return attempts

    def _attempts_of_tags(self, all_steps: Whole, which: dict[int, Whole]) -> Whole:
        """The first tag that goes back begins an attempt for all tags; the others go back after it."""
        back = np.zeros(len(all_steps), np.bool_)
        previous_at = np.full(len(all_steps), -1, np.int64)
        for lane, places in which.items():
            steps = all_steps[places]
            _, last = self.last.get(lane, (0, int(steps[0])))
            back[places] = np.diff(steps, prepend=last) < 0
            previous_at[places] = np.concatenate([[self._last_at.get(lane, -1)], places[:-1] + self._at])
            self._last_at[lane] = int(places[-1]) + self._at
        attempts = np.full(len(all_steps), self._attempt, np.int64)
        for place in np.flatnonzero(back).tolist():
            if previous_at[place] >= self._attempt_at:
                self._attempt += 1
                self._attempt_at = self._at + place
                attempts[place:] = self._attempt
        self._at += len(all_steps)
        return attempts

    def complete(self, keep: int = 0) -> Rows | None:
        """Rows in order: those that all lanes have passed, and the oldest where more than `keep` would be left."""
        if not self._waiting:
            return None
        rows = Rows.joined(self._waiting)
        rows = rows.taken(np.lexsort((rows.steps, rows.known_attempts)))
        given = max(int(np.count_nonzero(rows.before(min(self.last.values())))), len(rows) - keep)
        if 0 < given < len(rows):  # not in the middle of a step
            given = int(np.count_nonzero(rows.before(rows.place(given))))
        self._waiting = [rows.taken(slice(given, None))] if given < len(rows) else []
        rows = rows.taken(slice(0, given))
        if self._given is not None:
            late = rows.before((self._given[0], self._given[1] + 1))
            self.late += int(np.count_nonzero(late))
            rows = rows.taken(~late)
        if len(rows):
            self._given = rows.place(-1)
        return rows


class RowMerge:
    """From rows to samples: rows of lanes are put in order, and the rows of a step joined. The last step waits, since
    more of it may come."""

    def __init__(self, tally: Tally, *, one_writer: bool = False) -> None:
        self._tally = tally
        self._lanes = _Lanes(tally, one_writer=one_writer)
        self._open: Rows | None = None
        self._attempt, self._last_step = 1, -1
        self._went_back = 0
        self.repeated = self.evaluations = 0  # rows that were joined with others of their step; validation losses

    def push(self, rows: Rows) -> Iterator[Readings]:
        """The samples that are complete with these rows."""
        rows = rows.possible(self._tally)
        complete = rows if rows.lanes is None else self._lanes.push(rows, rows.lanes)
        if complete is not None:
            yield from self._in_order(complete)

    def writer_ended(self) -> None:
        """What follows is of another writer: a lane that repeats its last step begins a new attempt, too."""
        self._lanes.last = {lane: (attempt, step + 1) for lane, (attempt, step) in self._lanes.last.items()}

    def finish(self) -> Iterator[Readings]:
        if (rest := self._lanes.complete()) is not None:
            yield from self._in_order(rest)
        if self._lanes.late:
            self._tally.note(f"{self._lanes.late} rows came too late to be joined with others of their step")
        if self._open is not None:
            yield from self._samples(self._open)
        if self._went_back:
            times = "once" if self._went_back == 1 else f"{self._went_back} times"
            self._tally.note(f"the step goes back {times}: a new attempt begins there")

    def _in_order(self, rows: Rows) -> Iterator[Readings]:
        if not len(rows):
            return
        if rows.attempts is None:
            back = np.diff(rows.steps, prepend=self._last_step) < 0
            rows.attempts = self._attempt + np.cumsum(back)
            self._went_back += int(back.sum())
            self._attempt, self._last_step = rows.place(-1)
        if self._open is not None:
            rows = Rows.joined([self._open, rows])
        last = int(_starts(rows)[-1])
        if len(rows) - last > CHUNK_ROWS:  # a step that never ends is not a step
            last = len(rows)
        self._open = rows.taken(slice(last, None)) if last < len(rows) else None
        if last:
            yield from self._samples(rows.taken(slice(0, last)))

    def _samples(self, rows: Rows) -> Iterator[Readings]:
        merged = _merged(rows)
        self.repeated += len(rows) - len(merged)
        rows = merged
        times = rows.values.get("time_unix_s", np.full(len(rows), math.nan))
        for at in np.flatnonzero(rows.where("validation_loss")).tolist():
            self.evaluations += 1
            (attempt, step), validated = rows.place(at), float(rows.values["validation_loss"][at])
            at_s = float(times[at]) if rows.where("time_unix_s")[at] else math.nan
            self._tally.keep(Validation(attempt=attempt, global_step=step, time_unix_s=at_s, loss=validated))
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


def _starts(rows: Rows) -> Whole:
    """Where a step, or an attempt, differs from the one before it."""
    new = np.ones(len(rows), np.bool_)
    new[1:] = (rows.steps[1:] != rows.steps[:-1]) | (np.diff(rows.known_attempts) != 0)
    return np.flatnonzero(new)


def _merged(rows: Rows) -> Rows:
    """One row for each step. Of each field the largest reading, nan when any is; the loss is a mean."""
    starts = _starts(rows)
    if len(starts) == len(rows):
        return rows
    merged = Rows(steps=rows.steps[starts], values={}, there={}, attempts=rows.known_attempts[starts])
    for name, values in rows.values.items():
        there = rows.there[name]
        merged.there[name] = np.maximum.reduceat(there, starts)
        merged.values[name] = np.maximum.reduceat(np.where(there, values, -math.inf), starts)
    if "loss" not in rows.values:
        return merged
    there, loss, largest = rows.there["loss"], rows.values["loss"], merged.values["loss"]
    counts = np.add.reduceat(there.astype(np.int64), starts)
    smallest = np.minimum.reduceat(np.where(there, loss, math.inf), starts)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = np.add.reduceat(np.where(there, loss, 0.0), starts) / np.maximum(counts, 1)
        spread = np.where(largest == smallest, 0.0, largest - smallest)
    merged.values["loss"] = np.where(largest == smallest, largest, mean)
    if (several := counts > 1).any() and "loss_spread" not in merged.values:
        merged.values["loss_spread"], merged.there["loss_spread"] = spread, several
    return merged


def readings_of(rows: Rows, fields: tuple[str, ...]) -> Iterator[Readings]:
    """The rows as the judge reads them, one piece for each attempt."""
    ends = (np.flatnonzero(np.diff(rows.known_attempts)) + 1).tolist()
    for start, end in pairwise([0, *ends, len(rows)]):
        some = rows.taken(slice(start, end)) if ends else rows
        columns, measured = {}, {}
        for name in fields:
            there = some.where(name)
            if there.all():
                columns[name] = some.values[name]
            elif there.any():
                columns[name], measured[name] = np.where(there, some.values[name], math.nan), there
        skipped = (some.values["skipped"] > 0) & some.there["skipped"] if "skipped" in some.values else None
        attempt, _ = some.place(0)
        yield Readings(attempt=attempt, steps=some.steps, columns=columns, measured=measured, skipped=skipped)
