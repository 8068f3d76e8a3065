"""Whether two jobs append to one log by turns: pretraining and fine-tuning, or two writers that started at once.

A restart goes back and goes on from there. Of two jobs each goes on where it had been itself: the log goes back and
forth between two places, and each return meets the place that the job had left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_RETURNS = 3  # to the place that a job had left; restarts in a row may make one or two by chance
_OF_ANOTHER_LENGTH = 2  # Returns that one counts for where the jobs name different numbers of steps
_FITS = 1.5  # Times its usual spacing that a job's next reading is ahead at most
_CLOSER = 3.0  # Times closer that a place must be than the present one to be a return


@dataclass(slots=True)
class _Job:
    first: float
    last: float
    total: int | None
    loss: float

    def __str__(self) -> str:
        of = "" if self.total is None else f" of {self.total}"
        return f"at {self.first:g} to {self.last:g}{of} (newest loss {self.loss:.4g})"


class TwoJobs:
    def __init__(self, unit: str, *, repeats: bool = False) -> None:
        self._unit = unit  # what a place is: steps, epochs
        self._repeats = repeats  # whether two readings of one job may have the same place, which is rounded
        self._now: _Job | None = None
        self._other: _Job | None = None
        self._gap = float("inf")  # smallest distance of two readings
        self._returns = 0
        self.problem = ""  # a sentence, or empty

    def take(self, place: float, loss: float, total: int | None, *, announced: bool) -> None:
        """Takes the next reading; `announced`: the log says that the program has started before it."""
        now, other = self._now, self._other
        if now is None or announced:
            self._now, self._other, self._returns = _Job(place, place, total, loss), None, 0
            return
        goes_on = self._is_ahead(place, now, total)
        returns = other is not None and self._is_ahead(place, other, total)
        returns = other is not None and returns and place - other.last <= _FITS * self._gap
        if other is not None and returns and not (goes_on and place - now.last <= _CLOSER * (place - other.last)):
            self._now, self._other = other, now
            self._returns += _OF_ANOTHER_LENGTH if total != now.total else 1
            self._go_on(other, place, loss)
            if self._returns >= _RETURNS and not self.problem:
                self.problem = _by_turns(self._unit, *sorted((other, now), key=lambda job: (job.first, -job.loss)))
        elif goes_on:
            self._go_on(now, place, loss)
        else:
            self._now, self._other, self._returns = _Job(place, place, total, loss), now, 0

    def go_on(self, places: Sequence[float], total: int | None) -> bool:
        """Whether these readings go on from the last one, and none of them may be another job's."""
        now, other = self._now, self._other
        if now is None or total != now.total:
            return False
        ahead = [place - last for last, place in pairwise([now.last, *places])]
        if min(ahead) < 0 or (min(ahead) == 0 and not self._repeats):
            return False
        if other is not None and total == other.total:
            beyond = ((step, place - other.last) for step, place in zip(ahead, places, strict=True))
            if any(at >= 0 and step > _CLOSER * at for step, at in beyond):
                return False
        return True

    def take_all(self, places: Sequence[float], loss: float) -> None:
        """Takes readings that go on; `loss`: the last of them."""
        if self._now is not None:
            steps = (place - last for last, place in pairwise([self._now.last, *places]))
            self._gap = min([self._gap, *(step for step in steps if step)])
            self._now.last, self._now.loss = places[-1], loss

    def _is_ahead(self, place: float, job: _Job, total: int | None) -> bool:
        return total == job.total and (place > job.last or (self._repeats and place == job.last))

    def _go_on(self, job: _Job, place: float, loss: float) -> None:
        if place > job.last:
            self._gap = min(self._gap, place - job.last)
        job.last, job.loss = place, loss


def _by_turns(unit: str, one: _Job, other: _Job) -> str:
    return (
        f"two jobs append to this log by turns ({unit}): one {one}, the other {other}; give each a log of its own, or "
        "judge a file with the lines of one"
    )


_APART_STEPS = 16  # Of two ranks the same one is the higher in so many steps once in 2^15
_APART = 0.05  # Share of the loss by which they then differ


class Apart:
    """Two lines of one step without a rank: of two ranks now one, now the other has the higher loss."""

    def __init__(self) -> None:
        self._run = 0  # steps in which the second is above the first, or minus those in which it is below
        self.problem = ""

    def take(self, step: int, first: float, second: float) -> None:
        if not abs(second - first) > _APART * abs(first):  # nan: as alike as ranks
            self._run = 0
            return
        sign = 1 if second > first else -1
        self._run = self._run + sign if self._run * sign > 0 else sign
        if abs(self._run) >= _APART_STEPS and not self.problem:
            self.problem = (
                f"two lines have each step, and in {_APART_STEPS} steps the same has the higher loss (step {step}: "
                f"{first:.4g} and {second:.4g}): they are of two jobs or two quantities, not of two ranks; give each "
                "a log of its own, or name the loss with --loss"
            )
