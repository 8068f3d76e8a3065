"""Recovered: past onset and warmup, no spike since, no plateau, and really better, or on the old trend."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sentinel.judge.recovery_check import Danger, RecoveryOutcome, comparable
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.vocabulary.sample import Sample, Validation
from tests.judge.restarts import best_mean, recovery

DANGER = Danger(
    onset_step=50, onset_tokens=50 * 2048, warmup_end_step=60, best_before=3.6, hold_steps=300, total_steps=1000
)


def samples(shape: Callable[[int], float], steps: range, seqlen: int = 128, noise: float = 0.01) -> list[Sample]:
    rng = random.Random(0)
    return [
        Sample(
            attempt=2,
            global_step=s,
            time_unix_s=0.0,
            loss=shape(s) * (1 + rng.gauss(0, noise)),
            seqlen=seqlen,
            consumed_tokens=s * 16 * seqlen,
        )
        for s in steps
    ]


def answer(since: list[Sample], danger: Danger = DANGER, *, finished: bool = False, before: list[Sample] | None = None):  # type: ignore[no-untyped-def]
    return recovery(before or [], since, Series(Thresholds(), since), danger, full_seqlen=128, finished=finished)


def falling(step: int) -> float:
    return 2.4 + 2.4 * math.exp(-step / 60)


def plateau(step: int) -> float:
    """The unigram plateau: 5 % below the best before the onset, and standing still there."""
    return 3.38 + 1.3 * math.exp(-step / 10)


def test_a_run_that_goes_on_falling_has_recovered_and_not_before_it_is_past_the_danger() -> None:
    whole = samples(falling, range(11, 240))
    first = next(n for n in range(len(whole)) if answer(whole[:n]).answer is RecoveryOutcome.RECOVERED)
    assert whole[first].global_step > DANGER.warmup_end_step + 20


def test_a_plateau_below_the_old_level_is_not_recovered() -> None:
    whole = samples(plateau, range(11, 300))
    answers = [answer(whole[:n]).answer for n in range(120, len(whole), 10)]
    assert RecoveryOutcome.RECOVERED not in answers
    assert "plateau" in answer(whole).reason


def test_a_loss_no_better_than_before_is_not_recovered() -> None:
    assert answer(samples(lambda s: 3.55 - s * 1e-5, range(11, 200))).answer is RecoveryOutcome.NOT_YET


def test_a_good_level_that_the_loss_has_left_again_is_not_recovered() -> None:
    """The demo with seed 4: 3.15 at step 55, 3.6 from step 100 on, 3.33 before the onset; and slowly falling."""

    def left(step: int) -> float:
        return 3.12 if step < 62 else min(3.12 + (step - 62) * 0.014, 3.68 - (step - 100) * 0.0015)

    danger = Danger(onset_step=59, onset_tokens=None, warmup_end_step=60, best_before=3.327, hold_steps=240)
    answers = [answer(samples(left, range(31, end), noise=0.04), danger) for end in range(120, 250, 5)]
    assert RecoveryOutcome.RECOVERED not in {given.answer for given in answers}
    assert "above 3.327, the best before the onset" in answers[-1].reason


def test_the_end_of_the_run_is_an_answer() -> None:
    given = answer(samples(plateau, range(11, 300)), finished=True)
    assert given.answer is RecoveryOutcome.FAILED
    assert "has ended" in given.reason


def test_patience_has_an_end() -> None:
    assert answer(samples(plateau, range(11, 500))).answer is RecoveryOutcome.FAILED


def test_a_spike_that_is_open_or_fresh_is_waited_for() -> None:
    spiky = samples(lambda s: falling(s) + (1.5 if 150 <= s < 155 else 0), range(11, 154))
    assert answer(spiky).answer is RecoveryOutcome.NOT_YET
    assert "outside its band" in answer(spiky).reason


def test_steps_are_not_enough_the_tokens_have_to_be_past_too() -> None:
    short = samples(falling, range(11, 200), seqlen=8)
    assert answer(short).answer is RecoveryOutcome.NOT_YET


def test_a_warmup_longer_than_the_run_is_over_with_the_run() -> None:
    long = Danger(
        onset_step=50, onset_tokens=None, warmup_end_step=400, best_before=3.6, hold_steps=300, total_steps=240
    )
    assert answer(samples(falling, range(11, 241)), long).answer is RecoveryOutcome.RECOVERED


def test_late_in_a_run_the_old_trend_counts() -> None:
    """At step 20,000 nobody gets 5 % better within days."""

    def late(step: int) -> float:
        return 10 * step**-0.1

    danger = Danger(
        onset_step=20_000, onset_tokens=None, warmup_end_step=20_000, best_before=late(20_000), hold_steps=5000
    )
    before = samples(late, range(18_000, 20_000), noise=0.002)
    on_trend = samples(late, range(19_900, 20_400), noise=0.002)
    assert answer(on_trend, danger, before=before).answer is RecoveryOutcome.RECOVERED
    above = samples(lambda s: late(s) * 1.02, range(19_900, 20_400), noise=0.002)
    assert answer(above, danger, before=before).answer is RecoveryOutcome.NOT_YET


@pytest.mark.parametrize(
    ("told", "compares"),
    [
        ({}, True),
        ({"seqlen": 128, "kept_tokens": 128, "curriculum_share": 1.0}, True),
        ({"seqlen": 256, "kept_tokens": 300}, True),
        ({"seqlen": 127}, False),
        ({"seqlen": 128, "kept_tokens": 127}, False),
        ({"kept_tokens": 128}, False),  # of how many, nobody has said
        ({"curriculum_share": 0.99}, False),
        ({"skipped": True}, False),
        ({"loss": math.inf}, False),
        ({"loss": math.nan}, False),
    ],
)
def test_only_a_number_of_all_data_and_all_tokens_at_full_length_compares(told: dict[str, Any], compares: bool) -> None:
    sample = replace(Sample(attempt=1, global_step=1, time_unix_s=0.0, loss=3.0), **told)
    assert comparable(sample, 128) is compares
    assert comparable(sample, None) is (compares or told == {"seqlen": 127})


@pytest.mark.parametrize(("count", "expected"), [(19, None), (20, 3.0)])
def test_the_best_mean_needs_a_whole_window(count: int, expected: float | None) -> None:
    assert best_mean(samples(lambda _: 3.0, range(count), noise=0.0)) == expected


def test_a_short_length_never_counts_among_the_best() -> None:
    easy = samples(lambda _: 1.0, range(50), seqlen=8, noise=0.0)
    assert best_mean(easy, full_seqlen=128) is None


@pytest.mark.parametrize(
    ("onset_tokens", "told", "expected"),
    [
        (50 * 2048, True, RecoveryOutcome.RECOVERED),
        (10**9, True, RecoveryOutcome.NOT_YET),  # as under a length warmup: past the onset in steps alone
        (10**9, False, RecoveryOutcome.RECOVERED),  # the trainer counts no tokens
        (None, True, RecoveryOutcome.RECOVERED),
    ],
)
def test_a_restart_has_recovered_once_it_is_past_the_onset_in_tokens_too(
    onset_tokens: int | None, told: bool, expected: RecoveryOutcome
) -> None:
    since = [s if told else replace(s, consumed_tokens=None) for s in samples(falling, range(31, 150))]
    assert answer(since, replace(DANGER, onset_tokens=onset_tokens)).answer is expected


@pytest.mark.parametrize(
    ("sudden", "validations", "recovers"),
    [
        (False, (), True),  # the same depth, within 60 steps: that is training
        (True, (), False),
        (True, (3.4, 3.0, 3.0), True),
    ],
)
def test_a_loss_that_drops_with_the_resume_has_not_recovered(
    sudden: bool, validations: tuple[float, ...], recovers: bool
) -> None:
    """Data that was seen before: a tenth lower at once, falling on from there, and back at its old course at last."""
    before = [replace(s, attempt=1) for s in samples(lambda s: 3.6 - s * 1e-4, range(101, 401), noise=0.003)]
    share = 0.9 if sudden else 1.0

    def shape(step: int) -> float:
        fallen = 0.0 if sudden else 0.4 * min(1.0, (step - 400) / 60)
        return (3.56 - fallen - (step - 400) * 1.2e-3) * share if step <= 700 else 3.52 - (step - 700) * 1.2e-3

    since = samples(shape, range(401, 801), noise=0.003)
    told = [
        Validation(attempt=2, global_step=450 + 50 * n, time_unix_s=0.0, loss=loss)
        for n, loss in enumerate(validations)
    ]
    danger = Danger(onset_step=420, onset_tokens=None, warmup_end_step=420, best_before=3.55, hold_steps=200)
    given = {}
    for n in range(100, 400, 10):
        known = recovery(
            before,
            since[:n],
            Series(Thresholds(), [*before, *since[:n]]),
            danger,
            full_seqlen=128,
            finished=False,
            validated_before=[replace(told[0], attempt=1)] if told else (),
            validated=told[1:],
        )
        given[n] = known
    during = {known.answer for n, known in given.items() if n < 300}
    assert (RecoveryOutcome.RECOVERED in during, RecoveryOutcome.FAILED in during) == (recovers, False)
    if sudden and not validations:
        assert "right after the resume: data that it has seen before" in given[200].reason
        assert given[390].answer is RecoveryOutcome.FAILED  # it has ended: what was best in it does not count
