"""When a restart has recovered, to the last step and the last bit of its loss."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from sentinel.judge.recovery_check import Danger, OldTrend, Recovery, RecoveryOutcome, Restart, recovery_of
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.vocabulary.sample import Sample, Validation
from tests.support.there import there

DANGER = Danger(onset_step=100, onset_tokens=None, warmup_end_step=120, best_before=2.0, hold_steps=60)
WANTED = 2.0 * (1 - 0.05)
BELOW, ABOVE = WANTED * (1 - 1e-12), WANTED * (1 + 1e-12)


def sample(step: int, loss: float, **readings: Any) -> Sample:
    return Sample(attempt=2, global_step=step, time_unix_s=0.0, loss=loss, **readings)


def answer(since: list[Sample], danger: Danger = DANGER, full: int | None = None, **more: Any) -> Recovery:
    """With a judge that has seen nothing else."""
    restart = Restart(danger, full)
    for one in since:
        restart.push(one)
    given = {"old": None, "finished": False} | more
    return recovery_of(given.pop("old"), restart, given.pop("series", Series(Thresholds())), **given)


def levels(*stretches: tuple[int, float], first: int = 81) -> list[Sample]:
    losses = [loss for n, loss in stretches for _ in range(n)]
    return [sample(step, loss) for step, loss in enumerate(losses, first)]


FALLS = levels((40, 2.0), (40, WANTED))
"""80 losses that compare, of which 40 are past the danger: from the best before to 5 % below."""


@pytest.mark.parametrize(
    ("since", "recovered", "why"),
    [
        ([], False, "has not made a step"),
        (FALLS, True, "it was 2.000 before the onset"),
        (FALLS[:-1], False, "past onset and warmup at 160"),
        (levels((40, 2.0), (40, BELOW)), True, "it was 2.000"),
        (levels((40, 2.0), (40, ABOVE)), False, "wanted 1.900"),
        (levels((39, 2.0), (40, WANTED), first=82), False, "nothing before the onset to compare with"),
        (levels((40, WANTED), (40, WANTED)), False, "a plateau"),
        (levels((40, WANTED / 0.99), (40, WANTED)), True, "it was 2.000"),
        (levels((40, WANTED / 0.995), (40, WANTED)), False, "a plateau"),
        (levels((20, WANTED), (20, 4.0), (40, 2.0)), True, "it was 2.000"),  # once there, and no worse than before
        (levels((20, WANTED), (20, 4.0), (40, math.nextafter(2.0, 9))), False, "stands at 2.000, above 2.000"),
    ],
)
def test_a_restart_has_recovered_once_it_is_5_percent_better_and_still_falls(
    since: list[Sample], recovered: bool, why: str
) -> None:
    found = answer(since)
    assert found.answer is (RecoveryOutcome.RECOVERED if recovered else RecoveryOutcome.NOT_YET)
    assert why in found.reason
    ended = answer(since, replace(DANGER, hold_steps=200), finished=True)
    assert ended.answer is (RecoveryOutcome.RECOVERED if recovered else RecoveryOutcome.FAILED)
    assert why in ended.reason


HELD, FAILED, NOT_YET, RECOVERED = (RecoveryOutcome(word) for word in ("held", "failed", "not_yet", "recovered"))


@pytest.mark.parametrize(
    ("since", "at_the_hold", "at_the_end"),
    [
        (levels((100, 2.0), (100, 1.97)), NOT_YET, RECOVERED),
        (levels((100, 2.0), (100, 1.981)), FAILED, HELD),  # it falls by less than 1 %
        (levels((100, 2.01), (100, 1.98)), NOT_YET, RECOVERED),
        (levels((100, 2.011), (100, 1.98)), FAILED, FAILED),  # not for long enough back to where it was
        (levels((100, 2.1), (100, 2.01)), FAILED, FAILED),
        (levels((120, 2.0), (80, 1.97), (20, 1.97), (40, 2.011)), FAILED, FAILED),  # it has left that level again
        (levels((40, 2.0), (40, 3.0), (120, 2.0)), FAILED, HELD),  # a spike that healed is no fall
        (levels((100, 1.97), (100, 2.0)), FAILED, HELD),
    ],
)
def test_a_restart_that_still_falls_is_held_on_and_one_that_was_no_worse_to_the_end_is_not_rolled_back(
    since: list[Sample], at_the_hold: RecoveryOutcome, at_the_end: RecoveryOutcome
) -> None:
    danger = replace(DANGER, hold_steps=150)
    held, ended = answer(since, danger), answer(since, danger, finished=True)
    assert (held.answer, ended.answer) == (at_the_hold, at_the_end)
    assert ("and still falls" in held.reason) is (at_the_hold is NOT_YET)


def test_a_restart_that_is_5_percent_better_when_its_hold_is_over_need_not_fall_by_1_percent_in_40_steps() -> None:
    slowly, danger = levels((100, 1.94), (100, 1.899)), replace(DANGER, hold_steps=150)
    assert answer(slowly[:-25], danger).answer is RecoveryOutcome.NOT_YET
    assert answer(slowly, danger).answer is RecoveryOutcome.RECOVERED


def test_the_hold_counts_steps_where_not_every_step_is_read() -> None:
    sparse = [replace(one, global_step=81 + 5 * n) for n, one in enumerate(levels((100, 2.0), (100, 1.97)))]
    danger = replace(DANGER, hold_steps=700)
    assert answer(sparse, danger).answer is RecoveryOutcome.NOT_YET


@pytest.mark.parametrize(
    ("last", "danger", "failed"),
    [
        (180, DANGER, False),
        (181, DANGER, True),
        (160, replace(DANGER, warmup_end_step=90), False),
        (161, replace(DANGER, warmup_end_step=90), True),
        (161, replace(DANGER, hold_steps=40), True),
    ],
)
def test_it_has_failed_the_step_after_it_was_held_for(last: int, danger: Danger, failed: bool) -> None:
    found = answer(levels((last - 80, 2.0)), danger)
    assert found.answer is (RecoveryOutcome.FAILED if failed else RecoveryOutcome.NOT_YET)
    assert found.reason.startswith(f"{danger.hold_steps} steps past the danger") is failed


@pytest.mark.parametrize(("total", "recovered"), [(None, True), (160, True), (159, True), (100, True)])
def test_a_warmup_that_outlasts_the_run_counts_as_over_40_steps_before_its_end(
    total: int | None, recovered: bool
) -> None:
    assert (answer(FALLS, replace(DANGER, total_steps=total)).answer is RecoveryOutcome.RECOVERED) is recovered
    late = replace(DANGER, warmup_end_step=500, total_steps=total)
    assert (answer(FALLS, late).answer is RecoveryOutcome.RECOVERED) is (total is not None)
    assert answer(FALLS, replace(late, total_steps=161)).answer is RecoveryOutcome.NOT_YET


@pytest.mark.parametrize(
    ("tokens", "recovered"), [([None] * 80, True), ([7] * 80, False), ([7] * 40 + [8] * 40, True), ([8] * 80, True)]
)
def test_the_tokens_of_the_onset_have_to_be_past_too(tokens: list[int | None], recovered: bool) -> None:
    since = [replace(one, consumed_tokens=t) for one, t in zip(FALLS, tokens, strict=True)]
    assert (answer(since, replace(DANGER, onset_tokens=7)).answer is RecoveryOutcome.RECOVERED) is recovered


@pytest.mark.parametrize(
    ("readings", "full", "compares"),
    [
        ({}, 128, True),
        ({"seqlen": 128}, 128, True),
        ({"seqlen": 120}, 128, False),
        ({"seqlen": 120}, None, True),
        ({"seqlen": 128, "kept_tokens": 128}, 128, True),
        ({"seqlen": 128, "kept_tokens": 120}, 128, False),
        ({"kept_tokens": 128}, 128, False),
        ({"curriculum_share": 1.0}, 128, True),
        ({"curriculum_share": 0.99}, 128, False),
        ({"skipped": True}, 128, False),
    ],
)
def test_only_losses_of_all_the_data_at_full_length_compare(
    readings: dict[str, Any], full: int, compares: bool
) -> None:
    found = answer([replace(one, **readings) for one in FALLS], full=full)
    assert (found.answer is RecoveryOutcome.RECOVERED) is compares
    best = answer([replace(one, **readings) if one.loss < 2 else one for one in FALLS], full=full)
    assert (best.answer is RecoveryOutcome.RECOVERED) is compares


@pytest.mark.parametrize(
    ("before", "since", "recovered"),
    [
        ([2.0], [WANTED, WANTED], True),
        ([2.0, 3.0, math.nan], [9.0, WANTED, BELOW], True),
        ([2.0], [WANTED, ABOVE], False),
        ([2.0], [ABOVE, WANTED], False),
        ([2.0], [WANTED], False),
        ([2.0], [WANTED, math.nan], False),
        ([2.0], [math.nan, WANTED, WANTED], True),
        ([math.nan], [1.0, 1.0], False),
        ([], [1.0, 1.0], False),
    ],
)
def test_where_no_training_loss_compares_the_last_two_validations_say_it(
    before: list[float], since: list[float], recovered: bool
) -> None:
    def validations(losses: list[float], first: int) -> list[Validation]:
        return [Validation(attempt=2, global_step=at, time_unix_s=0.0, loss=v) for at, v in enumerate(losses, first)]

    short = [replace(one, seqlen=64) for one in FALLS]
    known = {"validated_before": validations(before, 50), "full": 128}
    assert (answer(short, **known, validated=validations(since, 121)).answer is RecoveryOutcome.RECOVERED) is recovered
    early = validations(since[:-1], 119 - len(since)) + validations(since[-1:], 120)  # 120 is not past the warmup yet
    assert answer(short, **known, validated=early).answer is RecoveryOutcome.NOT_YET


def test_a_restart_that_follows_the_old_trend_has_recovered_without_being_better() -> None:
    """A power law through the last half: at least 200 losses of it, and no further than twice as far."""
    before = [sample(step, 10.0 * step**-0.1) for step in range(1, 402)]
    old = there(OldTrend.of(before, None))
    assert (old.last_step, old.law.slope) == (401, pytest.approx(-0.1))
    assert OldTrend.of(before[:400], None) is not None
    assert OldTrend.of(before[:398], None) is None
    assert OldTrend.of([replace(one, loss=2.0) for one in before], None) is None
    danger = replace(DANGER, onset_step=401, warmup_end_step=401, best_before=5.4, hold_steps=1000)

    def follows(factor: float, last: int = 500) -> Recovery:
        losses = [sample(step, factor * 10.0 * step**-0.1) for step in range(last - 99, last + 1)]
        return answer(losses, danger, old=old)

    assert follows(1.0).answer is RecoveryOutcome.RECOVERED
    assert "follows the trend" in follows(1.0).reason
    assert follows(1.02).answer is RecoveryOutcome.NOT_YET
    assert follows(1.0, last=802).answer is RecoveryOutcome.RECOVERED
    assert "follows the trend" not in follows(1.0, last=803).reason


@pytest.mark.parametrize(("at", "recent"), [(300, True), (200, False)])
def test_a_spike_within_the_last_40_steps_past_the_danger_is_too_recent(at: int, recent: bool) -> None:
    since = [sample(step, 2.0 + 2.0 * (step in (at, at + 1))) for step in range(81, 326)]
    series = Series(Thresholds(), since)
    assert series.healed
    found = answer(since, replace(DANGER, hold_steps=1000), series=series)
    assert ("too recent" in found.reason) is recent
