"""The newest attempt's lineage, followed sample by sample, and the runs that it is compared with."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from sentinel.judge.history import Attempt, History
from sentinel.judge.reference import Reference
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.unhealthy_spans import UnhealthySpan, UnhealthySpans
from sentinel.vocabulary.errors import SentinelError
from sentinel.vocabulary.overrides import Anchor
from sentinel.vocabulary.sample import CheckpointSaved, MemoryTarget, Record, RunStarted, Sample

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
        self._read_at_s = -math.inf

    def at(self, now_s: float) -> tuple[Reference, ...]:
        """`now_s` by the monotonic clock."""
        if self._read is not None and now_s - self._read_at_s > _READ_AGAIN_AFTER_S:
            self._read_at_s = now_s
            for path in self._paths:
                try:
                    self._held[path] = self._read(path)
                except (SentinelError, OSError) as error:
                    log.warning("the reference %s can't be read: %s", path, error)
        return tuple(self._held[path] for path in self._paths if path in self._held)


class FollowedState(NamedTuple):
    """All that the following of a run depends on but its thresholds, as it was after some sample."""

    attempts: dict[int, Attempt]
    followed: tuple[int, bool]
    series: Series
    unhealthy_spans: UnhealthySpans
    expected: set[int]
    positions: dict[int, Anchor]


# A state of the run as it was when that attempt was the newest, at the last step below or at that one (None: at any);
# None where none is kept.
Earlier = Callable[[int, int | None], FollowedState | None]


class Following:
    """What the watch needs of each sample once: the judge's series, the spans of unhealthy readings, and the
    data's position at the checkpoints. A look takes the new samples only. Where the lineage has changed (a new
    attempt, or the report of how it began) it is read from the newest `earlier` state that it has in common with what
    was followed before; from its beginning where there is none. Of a checkpoint that is listed, is older than the
    samples at hand, and was not reported as saved by the trainer, the samples are read once."""

    def __init__(
        self,
        history: History,
        thresholds: Thresholds,
        planned: Sequence[int] = (),
        earlier: Earlier = lambda _attempt, _until: None,
    ) -> None:
        self._history = history
        self._thresholds = thresholds
        self._planned = planned
        self._earlier = earlier
        self._references: Sequence[Reference] = ()
        self._followed: tuple[int, bool] | None = None
        self._late = False  # Whether an ancestor's sample came too late to be judged in its place
        self._goes_on = False  # Whether it goes on from a state and has not caught up yet
        # steps whose positions are known, where the lineage has told them, and are kept where it still will
        self._expected: set[int] = set()
        self._positions: dict[int, Anchor] = {}
        self.series = Series(thresholds)
        self._unhealthy_spans = UnhealthySpans(thresholds, planned)

    def compare_with(self, references: Sequence[Reference]) -> None:
        self._references = references
        self.series.compare_with(references)

    def expect(self, steps: Iterable[int]) -> None:
        """Before the first record that is read: steps for which there are checkpoints already."""
        latest = self._history.latest
        if latest is None:
            self._expected.update(steps)
            return
        at_hand = latest.samples
        self._expected.update(step for step in steps if at_hand and step >= at_hand[0].global_step)
        for sample in at_hand:
            self._note(sample, self._positions)

    def state(self) -> FollowedState | None:
        """What `go_on` goes on from: not a copy. None where a reading from the beginning would judge differently."""
        latest = self._history.latest
        if latest is None or self._followed is None or self._followed != _known_of(latest) or self._late:
            return None
        return FollowedState(
            self._history.attempts, self._followed, self.series, self._unhealthy_spans, self._expected, self._positions
        )

    def go_on(self, state: FollowedState) -> None:
        """Before the first record: goes on as if all that the state has seen had been taken. Takes its objects over."""
        self._history.attempts.update(state.attempts)
        self._followed, self._goes_on = state.followed, True
        self.series, self._unhealthy_spans = state.series, state.unhealthy_spans
        self._expected, self._positions = state.expected, state.positions
        self.series.compare_with(self._references)

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
            self._late = self._late or self._is_of_lineage(record)
        elif isinstance(record, CheckpointSaved | MemoryTarget):  # it will be listed, perhaps much later
            at_hand = attempt.samples
            if self._followed == _known_of(attempt) and at_hand and at_hand[0].global_step <= record.global_step:
                self._expected.add(record.global_step)
                for sample in at_hand:
                    self._note(sample, self._positions)
        elif isinstance(record, RunStarted):
            begins = attempt is self._history.latest and not attempt.made
            if begins and self._history.from_scratch(attempt):  # all samples of its lineage are still to come
                self._begin(attempt, ())

    def catch_up(self) -> None:
        """After the last record: goes over to the newest attempt, if there is a new one. What `again` raises."""
        latest = self._history.latest
        late = self._goes_on and self._late  # a reading from the beginning would have found it in its place
        if latest is not None and (late or self._followed != _known_of(latest)):
            self._begin(latest, None)
        self._goes_on = False

    def positions(self, steps: Collection[int]) -> dict[int, Anchor]:
        """Where the data stood at these steps, as far as the lineage knows it. What `again` raises."""
        unknown = set(steps) - self._expected
        latest = self._history.latest
        if unknown and latest is not None:
            at_hand = latest.samples
            older = not at_hand or min(unknown) < at_hand[0].global_step
            samples = self._history.lineage(latest, min(unknown) - 1) if older else at_hand
            self._positions |= {s.global_step: anchor_at(s) for s in samples if s.global_step in unknown}
            self._expected |= unknown
        return {step: self._positions[step] for step in sorted(steps) if step in self._positions}

    def _begin(self, attempt: Attempt, samples: Iterable[Sample] | None) -> None:
        """Follows this attempt: by these samples, all of its lineage; None where they are to be read."""
        series, positions = Series(self._thresholds, (), self._planned, self._references), dict[int, Anchor]()
        unhealthy_spans, expected = UnhealthySpans(self._thresholds, self._planned), self._expected
        if samples is None and (state := self._in_common(attempt)) is not None:
            series, unhealthy_spans, positions = state.series, state.unhealthy_spans, state.positions
            series.compare_with(self._references)
            last_step = -1 if series.last_step is None else series.last_step
            expected = state.expected | {step for step in expected if step > last_step}
            samples = self._history.lineage(attempt, last_step)
        if samples is None:
            samples = self._history.lineage(attempt)
        for sample in samples:  # what it raises leaves all as it was
            _push(sample, series, unhealthy_spans)
            if sample.global_step in expected:
                positions[sample.global_step] = anchor_at(sample)
        self.series, self._unhealthy_spans, self._expected = series, unhealthy_spans, expected
        self._positions, self._followed, self._late = positions, _known_of(attempt), False

    def _in_common(self, attempt: Attempt) -> FollowedState | None:
        """The newest state that is kept of the attempt's lineage, from which on its samples are to be read."""
        descent, attempts = self._history.descent(attempt), self._history.attempts
        for at in range(len(descent) - 1, -1, -1):
            one, until = descent[at]
            state = self._earlier(one.number, until)
            if state is None or state.followed != _known_of(one):
                continue
            older = [(ancestor.number, end) for ancestor, end in descent[:at]]
            same = [(a.number, end) for a, end in History.of(state.attempts).descent(state.attempts[one.number])[:-1]]
            if same == older and all(state.attempts[n].made == attempts[n].made for n, _ in older):
                return state
        return None

    def _is_of_lineage(self, sample: Sample) -> bool:
        latest = self._history.latest
        descent = self._history.descent(latest) if latest is not None else []
        ends = [until for one, until in descent if one.number == sample.attempt]
        return any(until is None or sample.global_step <= until for until in ends)

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
