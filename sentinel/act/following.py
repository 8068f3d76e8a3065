"""The newest attempt's line of descent, followed sample by sample, and the runs that it is compared with."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from sentinel.judge.history import Attempt, History
from sentinel.judge.reference import Reference
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.unhealthy_spans import UnhealthySpan, UnhealthySpans
from sentinel.vocabulary.errors import SentinelError
from sentinel.vocabulary.overrides import Anchor
from sentinel.vocabulary.sample import CheckpointSaved, Record, RunStarted, Sample

log = logging.getLogger(__name__)

# a comparison is made four times for each doubling of the steps: it does not get better by reading more often
_READ_AGAIN_AFTER_S = 3600.0


class References:
    """Reads each at the first look, and again once what is held is older than an hour. One that can't be read is told
    in the log and passed over, or stays as it was: a run is not left unwatched since its sibling's disk is away."""

    def __init__(self, paths: Sequence[Path] = (), read: Callable[[Path], Reference] | None = None) -> None:
        self._paths = paths if read is not None else ()
        self._read = read
        self._held: dict[Path, Reference] = {}
        self._read_unix_s = -math.inf

    def at(self, now_unix_s: float) -> tuple[Reference, ...]:
        if self._read is not None and now_unix_s - self._read_unix_s > _READ_AGAIN_AFTER_S:
            self._read_unix_s = now_unix_s
            for path in self._paths:
                try:
                    self._held[path] = self._read(path)
                except (SentinelError, OSError) as error:
                    log.warning("the reference %s can't be read: %s", path, error)
        return tuple(self._held[path] for path in self._paths if path in self._held)


class Following:
    """What the watch needs of each sample once: the judge's series, the spans of unhealthy readings, and the
    data's position at the checkpoints. A look takes the new samples only. The line of descent is read from its
    beginning where it has changed (a new attempt, or the report of how it began), and once for each checkpoint that is
    listed, is older than the samples at hand, and was not reported as saved by the trainer."""

    def __init__(self, history: History, thresholds: Thresholds, planned: Sequence[int] = ()) -> None:
        self._history = history
        self._thresholds = thresholds
        self._planned = planned
        self._references: Sequence[Reference] = ()
        self._followed: tuple[int, bool] | None = None
        # steps whose positions are known, where the line of descent has told them, and are kept where it still will
        self._expected: set[int] = set()
        self._positions: dict[int, Anchor] = {}
        self.series = Series(thresholds)
        self._unhealthy_spans = UnhealthySpans(thresholds, planned)

    def compare_with(self, references: Sequence[Reference]) -> None:
        self._references = references
        self.series.compare_with(references)

    def expect(self, steps: Iterable[int]) -> None:
        """Before the first record: steps for which there are checkpoints already."""
        if self._history.latest is None:
            self._expected.update(steps)

    @property
    def unhealthy_spans(self) -> tuple[UnhealthySpan, ...]:
        return self._unhealthy_spans.spans

    def take(self, record: Record) -> None:
        """The next record, once the history has it."""
        attempt = self._history.attempts[record.attempt]
        if isinstance(record, Sample) and self._followed == _known_of(attempt):
            _push(record, self.series, self._unhealthy_spans)
            self._note(record, self._positions)
        elif isinstance(record, Sample) and attempt is not self._history.latest:
            self._expected.discard(record.global_step)  # an ancestor's late word, which was looked for in vain
        elif isinstance(record, CheckpointSaved):  # it will be listed, perhaps much later
            at_hand = attempt.samples
            if self._followed == _known_of(attempt) and at_hand and at_hand[0].global_step <= record.global_step:
                self._expected.add(record.global_step)
                for sample in at_hand:
                    self._note(sample, self._positions)
        elif isinstance(record, RunStarted):
            begins = attempt is self._history.latest and not attempt.made
            if begins and self._history.from_scratch(attempt):  # all samples of its line of descent are still to come
                self._begin(attempt, ())

    def catch_up(self) -> None:
        """After the last record: goes over to the newest attempt, if there is a new one. What `again` raises."""
        latest = self._history.latest
        if latest is not None and self._followed != _known_of(latest):
            self._begin(latest, self._history.lineage(latest))

    def positions(self, steps: Collection[int]) -> dict[int, Anchor]:
        """Where the data stood at these steps, as far as the line of descent knows it. What `again` raises."""
        unknown = set(steps) - self._expected
        latest = self._history.latest
        if unknown and latest is not None:
            at_hand = latest.samples
            older = not at_hand or min(unknown) < at_hand[0].global_step
            samples = self._history.lineage(latest) if older else at_hand
            self._positions |= {s.global_step: anchor_at(s) for s in samples if s.global_step in unknown}
            self._expected |= unknown
        return {step: self._positions[step] for step in sorted(steps) if step in self._positions}

    def _begin(self, attempt: Attempt, samples: Iterable[Sample]) -> None:
        series, positions = Series(self._thresholds, (), self._planned, self._references), dict[int, Anchor]()
        unhealthy_spans = UnhealthySpans(self._thresholds, self._planned)
        for sample in samples:  # what it raises leaves all as it was
            _push(sample, series, unhealthy_spans)
            self._note(sample, positions)
        self.series, self._unhealthy_spans = series, unhealthy_spans
        self._positions, self._followed = positions, _known_of(attempt)

    def _note(self, sample: Sample, positions: dict[int, Anchor]) -> None:
        if sample.global_step in self._expected:
            positions[sample.global_step] = anchor_at(sample)


def _push(sample: Sample, series: Series, unhealthy_spans: UnhealthySpans) -> None:
    series.push(sample)
    unhealthy_spans.push(sample, well=series.alarm is None and series.episode is None)


def anchor_at(sample: Sample) -> Anchor:
    step, samples, tokens = sample.global_step, sample.consumed_samples, sample.consumed_tokens
    return Anchor(global_step=step, consumed_samples=samples, consumed_tokens=tokens)


def _known_of(attempt: Attempt) -> tuple[int, bool]:
    return attempt.number, attempt.started is not None
