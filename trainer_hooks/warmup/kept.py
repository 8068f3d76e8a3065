"""Targets that were cut off and are still to be trained on, as exact ranges, and the rows packed of them later.

Target j of a sample is its token j + 1, predicted from tokens 0 … j; it is addressed by the sample's position in the
data order and j. A step cuts off a run of positions x a range of targets, neighbouring steps of one length are one run:
a whole warmup is a few whole numbers per length, the same on all ranks, which travel in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sentinel.vocabulary.codec import Form, read
from sentinel.vocabulary.errors import CheckpointError

_FORM = Form(error=CheckpointError, name="the checkpoint's kept tokens")

Read = Callable[[list[int]], Tensor]  # Positions in the data order -> their samples, (n, F + 1) tokens


class Run(NamedTuple):
    """Targets [begin, end) of each sample at the positions [first, after)."""

    first: int
    after: int
    begin: int
    end: int

    @property
    def tokens(self) -> int:
        return (self.after - self.first) * (self.end - self.begin)


class Segment(NamedTuple):
    """Targets [begin, end) of the sample at one position."""

    position: int
    begin: int
    end: int


class Taken(NamedTuple):
    """Targets that were taken out: of these runs, laid end to end, those from `offset` on."""

    runs: tuple[Run, ...] = ()
    offset: int = 0

    def segments(self, begin: int, end: int) -> Iterator[Segment]:
        """Targets [begin, end) of what was taken, in the order of the runs, the positions, the places."""
        at = -self.offset
        for run in self.runs:
            width = run.end - run.begin
            if at + run.tokens > begin:
                for number in range(max(0, begin - at) // width, run.after - run.first):
                    start = at + number * width
                    if start >= end:
                        return
                    low, high = max(begin - start, 0), min(end - start, width)
                    yield Segment(run.first + number, run.begin + low, run.begin + high)
            at += run.tokens


class Kept:
    """A queue of targets: what was cut off first is used first."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.tokens = 0  # Targets that wait to be used
        self._used = 0  # of the first run, targets that are used already

    def add(self, run: Run) -> None:
        if run.tokens <= 0:
            return
        self.tokens += run.tokens
        last = self.runs[-1] if self.runs else None
        if last is not None and (last.after, last.begin, last.end) == (run.first, run.begin, run.end):
            self.runs[-1] = last._replace(after=run.after)
        else:
            self.runs.append(run)

    def take(self, tokens: int) -> Taken:
        """Takes that many targets out, from the front."""
        offset, reach, count = self._used, self._used + tokens, 0
        taken = []
        while reach > 0:
            run = self.runs[count]
            taken.append(run)
            if reach < run.tokens:
                break
            reach -= run.tokens
            count += 1
        del self.runs[:count]
        self._used = reach
        self.tokens -= tokens
        return Taken(tuple(taken), offset)

    def state(self) -> dict[str, Any]:
        return {"runs": [list(run) for run in self.runs], "used": self._used}

    @classmethod
    def of(cls, state: dict[str, Any]) -> Kept:
        """From what state() gave. CheckpointError when it is something else."""
        made, saved = cls(), read(_Saved, state, _FORM.name, _FORM)
        for run in saved.runs:
            if not (0 <= run.first < run.after and 0 <= run.begin < run.end):
                raise CheckpointError(f"{_FORM.name}: {list(run)} is no range")
            made.add(run)
        made._used = saved.used
        if not 0 <= made._used < (made.runs[0].tokens if made.runs else 1):
            raise CheckpointError(f"{_FORM.name}: {made._used} of the first run's tokens can't be used")
        made.tokens -= made._used
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saved:
    runs: tuple[Run, ...]
    used: int


def packed(segments: Sequence[Segment], read: Read) -> Tensor:
    """(F + 1,) tokens whose F targets are those of the segments, each once; the first token is the context before them.
    The segments follow one another as documents do in packed data: the first target of one is predicted after the last
    of the one before it."""
    rows = read([segment.position for segment in segments])
    parts = [row[s.begin + 1 : s.end + 1] for row, s in zip(rows, segments, strict=True)]
    first = segments[0].begin
    return torch.cat([rows[0, first : first + 1], *parts])
