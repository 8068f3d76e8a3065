"""Recovered: past onset and warmup, no spike since, no plateau, and really better, or on the old trend."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from sentinel.judge.recovery_check import Danger, RecoveryOutcome
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.vocabulary.sample import Sample, Validation
from tests.judge.restarts import recovery

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


def test_a_spike_that_is_open_or_fresh_is_waited_for() -> None:
    spiky = samples(lambda s: falling(s) + (1.5 if 150 <= s < 155 else 0), range(11, 154))
    assert answer(spiky).answer is RecoveryOutcome.NOT_YET
    assert "outside its band" in answer(spiky).reason


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
