"""Rows from several who report the same steps and are not quite in step: ranks, or the tags of an event file.

They are held back until all have passed a step, and go on in the order of their attempts and steps. Who falls behind
by more than a chunk of rows, or says nothing any more, is not waited for.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sentinel.judge.readings import Readings
from sentinel.sources.column_source import CHUNK_ROWS, Tally
from sentinel.sources.rows import Join, Rows

__all__ = ["Lanes", "Stream"]

Key = tuple[int, int]


class Lanes:
    """Puts rows of several lanes in order. In memory are two chunks of rows at the most."""

    def __init__(self, tally: Tally, *, one_writer: bool) -> None:
        self._tally = tally
        self._one_writer = one_writer
        """Whether a new attempt begins for all lanes at once (tags of one file) or for each by itself (ranks)."""
        self._held: list[Rows] = []
        self._rows_held = 0
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
        """Takes rows that have lanes; gives those that are complete, in order."""
        if not len(rows) or rows.lanes is None:
            return None
        if rows.attempts is None:
            rows.attempts = self._attempts_of_tags(rows) if self._one_writer else self._attempts_of_ranks(rows)
        for lane in np.unique(rows.lanes).tolist():
            last = int(np.flatnonzero(rows.lanes == lane)[-1])
            self._last[lane] = (int(rows.attempts[last]), int(rows.steps[last]))
        self._held.append(rows)
        self._rows_held += len(rows)
        return self._given_out(CHUNK_ROWS) if self._rows_held >= 2 * CHUNK_ROWS else None

    def finish(self) -> Rows | None:
        """The rows that are left."""
        rows = self._given_out(0)
        if self._late:
            self._tally.note(f"{self._late} rows came too late to be joined with others of their step")
        return rows

    def attempt_ended(self) -> None:
        """What follows was written by somebody else: a lane that repeats its last step begins a new attempt, too."""
        self._last = {lane: (attempt, step + 1) for lane, (attempt, step) in self._last.items()}

    def _attempts_of_ranks(self, rows: Rows) -> NDArray[np.int64]:
        """Each rank counts by itself. One that comes later is in the attempt of the others, unless it begins anew."""
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

    def _attempts_of_tags(self, rows: Rows) -> NDArray[np.int64]:
        """The first tag that goes back takes all others with it; those that go back after it only follow."""
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
        if not self._held:
            return None
        rows = Rows.joined(self._held)
        attempts = rows.attempts if rows.attempts is not None else np.ones(len(rows), np.int64)
        order = np.lexsort((rows.steps, attempts))
        rows, attempts = rows.taken(order), attempts[order]
        passed = min(self._last.values())
        complete = int(np.count_nonzero(_before(rows, attempts, passed)))
        given = max(complete, len(rows) - keep)
        if 0 < given < len(rows):  # not in the middle of a step
            given = int(np.count_nonzero(_before(rows, attempts, (int(attempts[given]), int(rows.steps[given])))))
        self._held = [rows.taken(slice(given, None))] if given < len(rows) else []
        self._rows_held = len(rows) - given
        return self._in_time(rows.taken(slice(0, given)), attempts[:given])

    def _in_time(self, rows: Rows, attempts: NDArray[np.int64]) -> Rows:
        if self._given is not None:
            after, step = self._given
            in_time = (attempts > after) | ((attempts == after) & (rows.steps > step))
            self._late += len(rows) - int(np.count_nonzero(in_time))
            rows, attempts = rows.taken(in_time), attempts[in_time]
        if len(rows):
            self._given = (int(attempts[-1]), int(rows.steps[-1]))
        return rows


def _before(rows: Rows, attempts: NDArray[np.int64], key: Key) -> NDArray[np.bool_]:
    before: NDArray[np.bool_] = (attempts < key[0]) | ((attempts == key[0]) & (rows.steps < key[1]))
    return before


class Stream:
    """From rows to samples: lanes are put in order where there are any, and the rows of a step joined."""

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
