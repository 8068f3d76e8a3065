"""What a watch keeps: little, however long the run is; and it says what one says that keeps all."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.act.following import Following
from sentinel.act.observation import Observation
from sentinel.act.past import PastReader
from sentinel.judge.history import SAVES_WITH_STATE, History
from sentinel.judge.recovery_check import WINDOW, BestMean, Danger
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.unhealthy_spans import UnhealthySpans
from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.incident.incident import Incident, Rollback
from sentinel.vocabulary.sample import CheckpointSaved, Record, RunStarted, Sample, Validation
from tests.judge import all_kept
from tests.judge.all_kept import AllKept
from tests.support.decisions import DECISION
from tests.support.facts import look_of
from tests.support.lives import LAST, life, stories
from tests.support.recovery_plans import incident
from tests.support.recovery_plans import run as run_state

THRESHOLDS = Thresholds()


@pytest.fixture(autouse=True)
def _few_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.judge.history.LAST_SAMPLES", LAST)


class Watched:
    """A watch of what is told in pieces, beside one that keeps all of it."""

    def __init__(self) -> None:
        self.all = AllKept()
        self.asked: list[int] = []
        self.begin_anew()

    def begin_anew(self) -> None:
        """As a daemon that was started again: everything is told again, in one piece."""
        self.history = History(again=self._again)
        self.following = Following(self.history, THRESHOLDS)
        self.past = PastReader()
        self._take(self.all.records)

    def tell(self, records: Iterable[Record]) -> None:
        """The next piece."""
        records = list(records)
        self.all.records += records
        self._take(records)

    def _take(self, records: list[Record]) -> None:
        for record in records:
            self.history.push(record)
            self.following.take(record)
        self.following.catch_up()

    def _again(self, attempt: int, after: int = -1) -> Iterator[Sample]:
        self.asked.append(attempt)
        told = (r for r in self.all.records if isinstance(r, Sample) and r.attempt == attempt)
        return (r for r in told if r.global_step > after)

    @property
    def latest(self) -> int:
        """The newest attempt's number."""
        assert self.history.latest is not None
        return self.history.latest.number


@given(stories(), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_whatever_is_told_the_judge_and_the_positions_are_those_of_a_watch_that_keeps_all(
    pieces: list[list[Record]], rng: random.Random
) -> None:
    watched = Watched()
    for piece in pieces:
        watched.tell(piece)
        if rng.random() < 0.1:
            watched.begin_anew()
        if watched.history.latest is None:
            continue
        lineage = watched.all.lineage(watched.latest)
        expected = Series(THRESHOLDS, lineage)
        series = watched.following.series
        assert repr(series.events) == repr(expected.events)
        assert (series.last, series.last_step, series.alarm) == (expected.last, expected.last_step, expected.alarm)
        assert repr((series.level, series.healed, series.skipped_run)) == repr(
            (expected.level, expected.healed, expected.skipped_run)
        )
        for number, attempt in watched.history.attempts.items():
            assert list(watched.history.lineage(attempt)) == watched.all.lineage(number)
            assert watched.history.validations(attempt) == watched.all.validations(number)
        unhealthy_spans, so_far = UnhealthySpans(THRESHOLDS), Series(THRESHOLDS)
        for one in lineage:
            so_far.push(one)
            unhealthy_spans.push(one, well=so_far.alarm is None and so_far.episode is None)
        assert repr(watched.following.unhealthy_spans) == repr(unhealthy_spans.spans)
        listed = {step for step in range(10, 500, 10) if rng.random() < 0.5}  # also such as nobody has reached
        assert watched.following.positions(listed) == watched.all.positions(watched.latest, listed)


def test_an_ancestor_counts_up_to_the_earliest_step_that_was_gone_back_to_since() -> None:
    watched = Watched()
    third = [RunStarted(attempt=3, time_unix_s=0.0, parent_attempt=2, resumed_from=30), *life(3, 31, 20)[1:]]
    watched.tell([*life(1, 1, 90), *life(2, 51, 40, parent=1), *third])
    assert watched.history.latest is not None
    lineage = list(watched.history.lineage(watched.history.latest))
    assert lineage == watched.all.lineage(3)
    assert {s.attempt for s in lineage if s.global_step <= 30} == {1}
    assert {s.attempt for s in lineage if s.global_step > 30} == {3}


@given(stories())
@settings(max_examples=30, deadline=None)
def test_no_more_than_the_last_samples_of_the_newest_attempt_are_kept(pieces: list[list[Record]]) -> None:
    watched = Watched()
    for piece in pieces:
        watched.tell(piece)
    for number, attempt in watched.history.attempts.items():
        assert len(attempt.samples) <= (LAST * 5 // 4 if number == watched.latest else 1)
        assert attempt.made == sum(isinstance(r, Sample) and r.attempt == number for r in watched.all.records)
        assert len(attempt.layers) <= SAVES_WITH_STATE + 1


def test_a_run_that_goes_on_is_never_gone_through_again() -> None:
    watched = Watched()
    told = life(1, 1, 2000)
    listed = set()
    for i in range(0, len(told), 7):
        watched.tell(told[i : i + 7])
        listed |= {r.global_step for r in told[: max(0, i - 100)] if isinstance(r, CheckpointSaved)}  # listed late
        assert watched.following.positions(listed) == watched.all.positions(1, listed)
    assert (len(listed) > 100, watched.asked) == (True, [])


def test_a_checkpoint_that_nobody_has_told_of_is_looked_for_once() -> None:
    watched = Watched()
    watched.tell(r for r in life(1, 1, 500) if not isinstance(r, CheckpointSaved))
    for _ in range(3):
        assert watched.following.positions({20, 30, 1000}) == watched.all.positions(1, {20, 30})
    assert watched.asked == [1]


def test_where_the_data_stood_is_known_of_a_step_whose_sample_comes_after_the_next_attempts_first() -> None:
    """The last lines of a journal may be seen after the first ones of the journal that follows it."""
    watched, first = Watched(), [r for r in life(1, 1, 80) if isinstance(r, Sample | RunStarted)]
    late = [r for r in first if isinstance(r, Sample) and r.global_step > 60]
    watched.tell(r for r in first if r not in late)
    second = life(2, late[-1].global_step + 1, 40, parent=1)
    watched.tell(second[:20])
    assert watched.following.positions({late[-1].global_step}) == {}
    watched.tell(late)
    watched.tell(second[20:])
    assert set(watched.following.positions({late[-1].global_step})) == {late[-1].global_step}


def test_a_source_that_fails_meanwhile_is_asked_again_at_the_next_look() -> None:
    watched = Watched()
    watched.tell(r for r in life(1, 1, 500) if not isinstance(r, CheckpointSaved))
    answers = watched._again
    watched.history._again = _refused
    with pytest.raises(OSError, match="stale"):
        watched.following.positions({20})
    second = [RunStarted(attempt=2, time_unix_s=0.0, parent_attempt=1, resumed_from=100), *life(2, 101, 30)[1:]]
    with pytest.raises(OSError, match="stale"):
        watched.tell(second)
    watched.history._again = answers
    watched.tell([])
    assert watched.following.positions({20}) == watched.all.positions(2, {20})
    assert repr(watched.following.series.events) == repr(Series(THRESHOLDS, watched.all.lineage(2)).events)
    assert watched.following.series.last_step == 130


def _refused(attempt: int, after: int = -1) -> Iterator[Sample]:
    raise OSError(f"attempt {attempt}: stale file handle")
    yield


def look(watched: Watched, *, finished: bool) -> Observation:
    kind = VerdictKind.FINISHED if finished else VerdictKind.HEALTHY
    verdict = Verdict(kind=kind, reason="…")
    series = watched.following.series
    return look_of(watched.history, series, run_state().changed(verdict=verdict))


def asked(watched: Watched, rollback: Rollback, ill: Incident, danger: Danger, *, finished: bool) -> tuple[Any, Any]:
    """What is said of the restart, and what is said where all is kept."""
    latest = watched.history.latest
    assert latest is not None
    assert latest.started is not None
    assert ill.onset_range is not None
    early = ill.onset_range[0]
    of_all = watched.all
    expected = all_kept.recovery(
        [s for s in of_all.lineage(ill.attempt) if s.global_step < early],
        [s for s in of_all.lineage(latest.number) if s.global_step > rollback.target_step],
        watched.following.series,
        danger,
        full_seqlen=latest.started.full_seqlen,
        finished=finished,
        validated_before=[v for v in of_all.validations(ill.attempt) if v.global_step < early],
        validated=[v for v in of_all.validations(latest.number) if v.global_step > rollback.target_step],
    )
    said = watched.past.recovery(ill, rollback, latest, look(watched, finished=finished), hold_steps=danger.hold_steps)
    return said, expected


SHAPES: dict[str, Callable[[int], float]] = {
    "falls on": lambda s: 2.0 + 3.0 * math.exp(-s / 90),
    "stands still": lambda s: 2.0 + 3.0 * math.exp(-min(s, 430) / 90),
    "late": lambda s: 10 * s**-0.1,
    "above the trend": lambda s: 10 * s**-0.1 * (1.02 if s > 400 else 1.0),
}


@pytest.mark.parametrize("shape", SHAPES)
@given(
    seed=st.integers(0, 99),
    short=st.floats(0, 0.9),
    pieces=st.lists(st.integers(1, 90), min_size=1, max_size=8),
    full_seqlen=st.sampled_from((None, 128)),
    tokens=st.booleans(),
    again=st.integers(0, 8),
)
@settings(max_examples=12, deadline=None)
def test_a_restart_is_said_to_have_recovered_when_it_would_be_with_all_of_it_kept(
    shape: str, seed: int, short: float, pieces: list[int], full_seqlen: int | None, tokens: bool, again: int
) -> None:
    """Attempt 1 is ill from step 480 on; 2 goes on from 400 and ends; 3 goes on from 2 and is what is asked about."""
    rng = random.Random(seed)

    def samples(number: int, steps: range) -> list[Record]:
        return [
            Sample(
                attempt=number,
                global_step=s,
                time_unix_s=float(s),
                loss=SHAPES[shape](s) * (1 + rng.gauss(0, 0.003)) + (3 if number == 1 and s > 480 else 0),
                seqlen=64 if rng.random() < short else 128,
                skipped=rng.random() < 0.02,
                consumed_tokens=s * 2048 if tokens else None,
            )
            for s in steps
        ]

    def validated(number: int, steps: range) -> list[Record]:
        at: dict[str, Any] = {"attempt": number, "time_unix_s": 0.0}
        return [Validation(**at, global_step=s, loss=SHAPES[shape](s)) for s in steps]

    def started(number: int, parent: int, at: int) -> Record:
        return RunStarted(
            attempt=number, time_unix_s=0.0, parent_attempt=parent, resumed_from=at, full_seqlen=full_seqlen
        )

    watched = Watched()
    watched.tell([*samples(1, range(1, 520)), *validated(1, range(50, 520, 50))])
    watched.tell([started(2, 1, 400), *samples(2, range(401, 440))])
    ill = incident(onset_range=(478, 481), onset_tokens=481 * 2048 if tokens else None, best_mean=SHAPES[shape](470))
    rollback = DECISION.__class__(**{n: getattr(DECISION, n) for n in DECISION.__slots__} | {"target_step": 400})
    danger = Danger(
        onset_step=481, onset_tokens=ill.onset_tokens, warmup_end_step=0, best_before=ill.best_mean, hold_steps=150
    )
    watched.tell([started(3, 2, 430)])
    step = 430
    for number, steps in enumerate(pieces):
        watched.tell([*samples(3, range(step + 1, step + steps + 1)), *validated(3, range(step + 1, step + 2))])
        step += steps
        if number == again:
            watched.begin_anew()
        said, expected = asked(watched, rollback, ill, danger, finished=rng.random() < 0.1)
        assert said == expected


@given(st.lists(st.floats(0.1, 20) | st.sampled_from((math.nan, math.inf)), max_size=120), st.sampled_from((None, 128)))
@settings(max_examples=100, deadline=None)
def test_the_best_mean_is_the_same_taken_one_by_one(losses: list[float], full_seqlen: int | None) -> None:
    told = [
        Sample(
            attempt=1, global_step=s, time_unix_s=0.0, loss=loss, seqlen=64 if s % 7 == 0 else 128, skipped=s % 9 == 0
        )
        for s, loss in enumerate(losses)
    ]
    best = BestMean(WINDOW, full_seqlen)
    for sample in told:
        best.push(sample)
    assert best.value == all_kept.best_mean(told, full_seqlen=full_seqlen)
