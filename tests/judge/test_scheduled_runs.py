"""Real runs of the reference trainer under every schedule: what is well is never called ill, and what is ill is found.

tests/hooks/scheduled.py made them; tests/hooks/test_judged_schedules.py runs some of it afresh.
"""

from __future__ import annotations

import lzma
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.judge.recovery_check import Danger, RecoveryOutcome
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import VerdictKind, judge_past
from sentinel.vocabulary.sample import Sample, Validation, decode
from tests.judge.restarts import recovery

RECORDED = Path(__file__).parents[1] / "data" / "scheduled_runs"
AT = 150
"""The step that the runs which are well were rolled back to and restarted from."""

WELL, ILL, NAN = ([p.name for p in sorted(RECORDED.glob(f"{kind}_*"))] for kind in ("well", "ill", "nan"))


@cache
def records(name: str) -> tuple[tuple[Sample, ...], tuple[Validation, ...]]:
    found = [decode(line) for line in lzma.decompress((RECORDED / name).read_bytes()).decode().splitlines()]
    samples, validations = ([r for r in found if isinstance(r, kind)] for kind in (Sample, Validation))
    return tuple(samples), tuple(validations)  # type: ignore[arg-type]


def samples(name: str) -> tuple[Sample, ...]:
    return records(name)[0]


def alarmed(series: Series, followed: Sequence[Sample]) -> int | None:
    """The first step at which an alarm is up."""
    for sample in followed:
        series.push(sample)
        if series.alarm is not None:
            return sample.global_step
    return None


def test_each_schedule_is_there() -> None:
    assert (len(WELL), len(ILL), len(NAN)) == (15, 7, 5)
    assert sum(path.stat().st_size for path in RECORDED.iterdir()) < 1_000_000


# Well


@settings(deadline=None)
@given(
    name=st.sampled_from(WELL),
    patience_steps=st.integers(10, 200),
    seen_from=st.integers(0, AT),
    every=st.integers(1, 4),
    ends_at=st.integers(AT, 400),
)
def test_a_schedule_switched_on_in_the_middle_is_never_called_a_divergence(
    name: str, patience_steps: int, seen_from: int, every: int, ends_at: int
) -> None:
    """From wherever it is seen, however sparsely it logs, wherever the readings end.

    Readings that end before there is a band are guessed at (docs/JUDGE.md): of that there is no claim.
    """
    series = Series(Thresholds(patience_steps=patience_steps))
    followed = [s for s in samples(name)[seen_from::every] if s.global_step <= ends_at]
    assert alarmed(series, followed) is None
    assert judge_past(series, None).kind is not VerdictKind.DIVERGED
    if series.band_ready:
        series.end()
    assert series.alarm is None
    assert not any(event.recommend_rollback for event in series.events)


@pytest.mark.parametrize("name", WELL)
def test_a_schedule_is_no_plateau_either(name: str) -> None:
    series = Series(Thresholds(), samples(name))
    assert {event.kind.value for event in series.events} <= {"regime_change"}
    assert series.band_ready


# Ill


@settings(deadline=None)
@given(name=st.sampled_from(ILL), patience_steps=st.integers(10, 120))
def test_a_rate_that_is_too_high_is_found_while_a_schedule_runs(name: str, patience_steps: int) -> None:
    series = Series(Thresholds(patience_steps=patience_steps))
    assert alarmed(series, samples(name)) is not None
    series = Series(Thresholds(patience_steps=patience_steps), samples(name))
    assert series.alarm is not None  # and stays up, whatever the schedule does next


@pytest.mark.parametrize("name", NAN)
def test_a_nan_is_found_at_once_while_a_schedule_runs(name: str) -> None:
    first = next(s.global_step for s in samples(name) if math.isnan(s.adam_variance_l1 or 0.0))
    assert alarmed(Series(Thresholds()), samples(name)) == first


@settings(deadline=None)
@given(
    name=st.sampled_from(WELL),
    begins=st.integers(AT + 1, 330),
    factor=st.floats(1.6, 4.0),
    rises_over=st.integers(1, 40),
)
def test_an_illness_that_begins_at_any_step_of_any_schedule_is_found(
    name: str, begins: int, factor: float, rises_over: int
) -> None:
    """A loss that rises to a multiple and stays there, laid over a real run."""

    def ill(sample: Sample) -> Sample:
        share = min(1.0, max(0, sample.global_step - begins + 1) / rises_over)
        return replace(sample, loss=sample.loss * (1 + (factor - 1) * share))

    series = Series(Thresholds(patience_steps=20))
    assert alarmed(series, [ill(s) for s in samples(name)]) is not None


# Recovered


@pytest.mark.parametrize("name", [name for name in WELL if "nothing" not in name and "batch" not in name])
def test_nothing_has_recovered_by_a_loss_that_does_not_compare(name: str) -> None:
    """The loss of easy data, of few tokens or at a short length is low long before the run is well."""
    unlike = [
        s
        for s in samples(name)
        if s.global_step > AT and (s.seqlen != 128 or s.kept_tokens is not None or s.curriculum_share is not None)
    ]
    assert len(unlike) > 30
    easy = [replace(s, loss=0.1) for s in unlike]
    danger = Danger(onset_step=AT, onset_tokens=None, warmup_end_step=AT, best_before=2.75, hold_steps=400)
    told = recovery([], easy, Series(Thresholds()), danger, full_seqlen=128, finished=False)
    assert told.answer is RecoveryOutcome.NOT_YET


EARLY = 60
"""The step by which the run had validated what it is compared with."""


@pytest.mark.parametrize("name", WELL)
def test_where_the_training_loss_can_not_tell_the_validations_do(name: str) -> None:
    """As after an onset in the middle of a schedule, where no loss before it was at full length."""
    followed, validations = records(name)
    danger = Danger(onset_step=EARLY, onset_tokens=None, warmup_end_step=AT, best_before=None, hold_steps=400)

    def answers(until: int, known: Sequence[Validation]) -> RecoveryOutcome:
        since = [s for s in followed if AT < s.global_step <= until]
        return recovery(
            [],
            since,
            Series(Thresholds(), since),
            danger,
            full_seqlen=128,
            finished=False,
            validated_before=[v for v in known if v.global_step <= EARLY],
            validated=[v for v in known if AT < v.global_step <= until],
        ).answer

    given = [answers(until, validations) for until in range(AT + 10, 401, 10)]
    assert given[0] is RecoveryOutcome.NOT_YET
    assert given[-1] is RecoveryOutcome.RECOVERED
    assert answers(400, ()) is RecoveryOutcome.NOT_YET
    no_better = [replace(v, loss=max(v.loss, 2.8)) for v in validations]
    assert answers(400, no_better) is RecoveryOutcome.NOT_YET
