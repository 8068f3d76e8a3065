"""Merges what single lines say into records: the attempt of each, and one sample a step for all ranks.

A log holds one or more lives of the process group, appended. A new attempt begins where the program reports a start, or
where the steps go back. Ranks that write to one log are merged by AttemptMerge, ranks with a file each by RankMerge: a
step is kept open while other ranks may still report it, and its loss is their mean.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from sentinel.sources.alike_lines import AlikeLines, AlikeSamples
from sentinel.sources.line_events import Evaluated, Event, LineReading, ProgramEnded, ProgramStarted, Saved
from sentinel.sources.two_jobs import Apart, TwoJobs
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing import LrSchedule
from sentinel.vocabulary.sample import CheckpointSaved, Record, RunFinished, RunStarted, Sample, Validation

_MOST_RANKS = 1 << 17  # readings of one step that are merged; a log may repeat a step without end
_LATE_STEPS = 4  # logged steps by which a rank's line may be behind the others without being a restart
_MOST_AHEAD = 64  # logged steps that the fastest file may be ahead; then the slower files are not waited for any more
_NOT_HERE = -1.0  # TorchTitan's loss on pipeline ranks without the last stage
_PRINTED = 6e-4  # largest relative difference between an LR and its print with four digits

Place = tuple[int, int]  # attempt, global_step


class AttemptMerge:
    def __init__(self, *, one_writer: bool) -> None:
        self._one_writer = one_writer
        self._attempt = 0
        self._open: LineReading | None = None  # the step that other ranks may still report
        self._losses: list[float] = []
        self._ranks: set[str | None] = set()
        self._newest: dict[str | None, int] = {}
        self._past: deque[tuple[int, float]] = deque(maxlen=_LATE_STEPS)
        self._gap: int | None = None
        self._saved_last: tuple[int, int, str] | None = None  # attempt, step and tag
        self._start: ProgramStarted | None = None  # a start that was reported and has no step yet
        self._saved: deque[int] = deque(maxlen=64)
        # Readings of a step that had one: of another rank, written twice, or tried again after it was skipped.
        self.repeated = 0
        self.jobs, self.apart = TwoJobs("steps"), Apart()
        self.averaged = 0  # those of them with another loss, and no rank to say why

    @property
    def problem(self) -> str:
        """Why the readings are not of one job; a sentence, or empty."""
        return self.jobs.problem or self.apart.problem

    @property
    def last_step(self) -> int:
        """The newest step that was taken; 0 before the first."""
        if self._open is not None:
            return self._open.step
        return self._past[-1][0] if self._past else 0

    def take(self, event: Event) -> list[Record]:
        """The records that are complete with this event."""
        if type(event) is LineReading:
            return self._reading(event)
        if isinstance(event, ProgramStarted):
            return self._started(event)
        records = self.complete()
        attempt, step, at = max(self._attempt, 1), self.last_step, event.time_unix_s
        if isinstance(event, Saved):
            if self._saved_last == (attempt, event.step, event.tag):  # Megatron saves its last step twice
                return records
            self._saved_last = (attempt, event.step, event.tag)
            self._saved.append(event.step)
            records.append(CheckpointSaved(attempt=attempt, global_step=event.step, time_unix_s=at, tag=event.tag))
        elif isinstance(event, Evaluated):
            of = step if event.step is None else event.step
            records.append(Validation(attempt=attempt, global_step=of, time_unix_s=at, loss=event.loss))
        elif isinstance(event, ProgramEnded) and self._attempt:
            records.append(RunFinished(attempt=attempt, global_step=step, time_unix_s=at, reason="finished"))
        return records

    def take_all(self, lines: AlikeLines, steps: Sequence[int]) -> list[Record | AlikeSamples] | None:
        """The same for lines that go on from the last step, none of them skipped; None, with none taken, where they
        have to be taken one by one. The last of `steps` is that of the line after them."""
        ahead = [step - last for last, step in pairwise([self.last_step, *steps])]
        if self._start is not None or not self._attempt or min(ahead) <= 0:
            return None
        if not self.jobs.go_on(steps, lines.shape.total_steps):
            return None
        steps, losses, before = steps[:-1], lines.column("loss"), self.complete()
        self.jobs.take_all(steps, losses[-1])
        self._gap = min(ahead if self._gap is None else [self._gap, *ahead])
        self._past.extend(list(zip(steps, losses, strict=True))[-_LATE_STEPS:])
        self._newest[lines.shape.rank] = steps[-1]
        return [*before, AlikeSamples(self._attempt, steps, lines)]

    def complete(self) -> list[Record]:
        """The sample of the open step, if there is one: no other rank is waited for."""
        reading, self._open = self._open, None
        if reading is None:
            return []
        loss, spread = _mean_and_spread(self._losses)
        self._past.append((reading.step, reading.loss))
        at, step = self._attempt, reading.step
        return [Sample(attempt=at, global_step=step, loss=loss, loss_spread=spread, **reading.fields)]

    def _reading(self, reading: LineReading) -> list[Record]:
        current = self.last_step
        went_back = self._attempt > 0 and reading.step <= current
        if went_back and self._start is None and (self._is_repeated(reading) or self._is_late(reading)):
            self.repeated += 1
            return []
        announced = self._start is not None and self._start.certain
        self.jobs.take(reading.step, reading.loss, reading.total_steps, announced=announced)
        records = self.complete()
        if not self._attempt or self._starts_attempt(reading, current) or went_back:
            records += self._begin(reading, went_back=went_back)
        elif current and (self._gap is None or reading.step - current < self._gap):
            self._gap = reading.step - current
        self._open, self._losses, self._ranks = reading, [reading.loss], {reading.rank}
        self._newest[reading.rank] = reading.step
        if self._one_writer and reading.rank is None and not reading.fields.get("skipped"):  # no other line will come
            records += self.complete()
        return records

    def _is_repeated(self, reading: LineReading) -> bool:
        """Whether it is the open step from another rank; its loss is then added to that step."""
        current = self._open
        if current is None or reading.step != current.step or _of_another_job(reading, current):
            return False
        same_writer = reading.rank in self._ranks if reading.rank is not None else self._one_writer
        if same_writer:
            if self._one_writer and current.fields.get("skipped") and not _same(reading.loss, current.loss):
                self._open, self._losses = reading, [reading.loss]  # tried again under the same number
                return True
            return _same(reading.loss, current.loss)
        if reading.rank is None and not _same(reading.loss, current.loss):
            self.averaged += 1
            if len(self._losses) == 1:
                self.apart.take(reading.step, current.loss, reading.loss)
        if len(self._losses) < _MOST_RANKS:
            self._losses.append(reading.loss)
            self._ranks.add(reading.rank)
            self._newest[reading.rank] = reading.step
        return True

    def _is_late(self, reading: LineReading) -> bool:
        """Whether it is a rank's line of a step that the other ranks have completed; it is then passed over."""
        known = next((past for past in self._past if past[0] == reading.step), None)
        if known is None:
            return False
        if reading.fields.get("skipped") and self._open is None and known is self._past[-1]:
            return True  # the next step was tried, and the counter did not move
        if reading.rank is not None and self._newest.get(reading.rank, -1) < reading.step:
            self._newest[reading.rank] = reading.step
            return True
        is_last, is_same = self._open is None and known is self._past[-1], _same(known[1], reading.loss)
        return is_last or is_same if reading.rank is None and not self._one_writer else is_last and is_same

    def _started(self, event: ProgramStarted) -> list[Record]:
        if (before := self._start) is not None:
            if not (event.certain and before.certain and before.facts.keys() & event.facts.keys()):
                event.facts = {**before.facts, **event.facts}  # the arguments, then what was loaded
            event.certain, event.interval = event.certain or before.certain, event.interval or before.interval
        self._start = event
        return self.complete()

    def _starts_attempt(self, reading: LineReading, current: int) -> bool:
        """Whether the reported start begins an attempt; a checkpoint that was loaded does where the steps follow it."""
        start = self._start
        if start is None or start.certain:
            return start is not None
        resumed = start.facts.get("resumed_from") or 0
        if reading.step <= current or resumed >= current:
            return True
        self._start = None
        return False

    def _begin(self, reading: LineReading, *, went_back: bool) -> list[Record]:
        start, self._start = self._start or ProgramStarted(), None
        parent = self._attempt or None
        self._attempt += 1
        facts, interval = dict(start.facts), start.interval or self._gap or 1
        if "resumed_from" not in facts and (went_back or start.interval is not None):
            facts["resumed_from"] = self._resumed_from(reading.step, interval)
        if facts.get("resumed_from") is None:
            parent = None
        facts = _facts_of_start(facts, reading, interval)
        self._gap = start.interval or self._gap
        self._past.clear()
        self._newest.clear()
        at = start.time_unix_s if math.isfinite(start.time_unix_s) else reading.fields["time_unix_s"]
        if not went_back and all(value is None for value in facts.values()) and parent is None:
            return []
        return [RunStarted(attempt=self._attempt, time_unix_s=at, parent_attempt=parent, **facts)]

    def _resumed_from(self, first: int, interval: int) -> int | None:
        """The checkpoint just before the first step, as far as one is known; else one interval before it."""
        step = max((step for step in self._saved if first - interval <= step < first), default=first - interval)
        return step if step > 0 else None


class RankMerge:
    """Joins the records of several files, one for each rank. A record that is not a sample is given once."""

    def __init__(self) -> None:
        self._open: dict[Place, list[Sample]] = {}
        self._reached: dict[str, Place] = {}
        self._given: Place = (0, 0)
        self._others: set[tuple[str, int, int]] = set()

    def take(self, file: str, records: Iterable[Record]) -> list[Record]:
        """Takes what is new in a file; gives the records that are not samples."""
        given: list[Record] = []
        for record in records:
            if isinstance(record, Sample):
                place = self._reached[file] = (record.attempt, record.global_step)
                if place > self._given:
                    self._open.setdefault(place, []).append(record)
                continue
            key = (type(record).__name__, record.attempt, getattr(record, "global_step", 0))
            if key not in self._others:
                self._others.add(key)
                given.append(record)
        return given

    def complete(self, *, quiet: bool = False) -> list[Record]:
        """The samples of the steps that all files have passed, in order; of all steps where the files are quiet."""
        places = sorted(self._open)
        slowest = min(self._reached.values(), default=(0, 0))
        ready = [p for i, p in enumerate(places) if quiet or p <= slowest or i < len(places) - _MOST_AHEAD]
        if ready:
            self._given = ready[-1]
        joined: list[Record] = []
        for samples in (self._open.pop(place) for place in ready):
            loss, spread = _mean_and_spread([sample.loss for sample in samples])
            joined.append(replace(samples[0], loss=loss, loss_spread=spread) if len(samples) > 1 else samples[0])
        return joined


def _mean_and_spread(losses: list[float]) -> tuple[float, float | None]:
    """The mean over the ranks, and largest minus smallest (nan where the mean is not finite); None for one rank."""
    if len(losses) > 1 and _NOT_HERE in losses:
        losses = [loss for loss in losses if loss != _NOT_HERE] or losses[:1]
    if len(losses) == 1:
        return losses[0], None
    mean = sum(losses) / len(losses)
    return mean, max(losses) - min(losses) if math.isfinite(mean) else math.nan


def _facts_of_start(printed: Mapping[str, Any], first: LineReading, interval: int) -> dict[str, Any]:
    """Fields of RunStarted: what the program printed, and what its first line of readings adds. The first sample's
    index is counted back from the first line, where the batch did not grow in between."""
    facts = dict(printed)
    resumed = facts.get("resumed_from") or 0
    consumed, batch = first.fields.get("consumed_samples"), first.fields.get("global_batch_samples")
    steps = first.step - resumed
    if consumed is not None and batch is not None and 0 < steps <= interval and consumed >= batch * steps:
        facts.setdefault("first_sample_index", consumed - batch * steps)
    facts["lr"] = _first_lr(facts.get("lr_schedule"), first, resumed)
    facts.setdefault("seqlen", first.fields.get("seqlen"))
    if facts.get("precision") == "fp16":
        facts.setdefault("loss_scale", first.fields.get("loss_scale"))
    if facts.get("total_steps") is None:
        facts["total_steps"] = first.total_steps
    return facts


def _first_lr(schedule: Mapping[str, Any] | None, first: LineReading, resumed: int) -> float | None:
    """The LR of the first step: by the schedule where that agrees with the first line, else as the line shows it."""
    shown: float | None = first.fields.get("lr")
    if schedule is None or shown is None:
        return shown
    try:
        lr = LrSchedule.from_json(dict(schedule))
    except ConfigError:
        return shown
    agrees = abs(lr.lr(step=first.step) - shown) <= _PRINTED * abs(shown)
    return lr.lr(step=resumed + 1) if agrees else shown


def _of_another_job(reading: LineReading, other: LineReading) -> bool:
    """Whether two readings of one step are of two jobs: ranks of one job have the same LR and the same end."""
    if reading.rank is not None or other.rank is not None:
        return False
    lr, lr_of_other = reading.fields.get("lr"), other.fields.get("lr")
    differs = lr is not None and lr_of_other is not None and abs(lr - lr_of_other) > _PRINTED * abs(lr_of_other)
    totals = {reading.total_steps, other.total_steps}
    return differs or (len(totals) == 2 and None not in totals)


def _same(loss: float, other: float) -> bool:
    return loss == other or (math.isnan(loss) and math.isnan(other))
