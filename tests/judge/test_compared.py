"""Like with like: what a loss is compared with where the run's settings change, and when they come back."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from sentinel.judge.detectors.episode import Episode
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.vocabulary.pacing import FixedLinear, Mixed, RandomLtdSchedule, SeqlenSchedule
from sentinel.vocabulary.sample import Sample
from tests.support.there import there

FULL, AT = 1024, 400
MIXED = Mixed(start=64, full=FULL, anchor_step=AT, short_steps=180, full_steps=40)
LINEAR = FixedLinear(start=64, full=FULL, anchor_step=AT, total_steps=600)


def well(_step: int, _length: int) -> float:
    return 1.0


def run(
    lengths: Callable[[int], int],
    ill: Callable[[int, int], float] = well,
    *,
    last: int = 1500,
    ltd: RandomLtdSchedule | None = None,
    noise: float = 0.01,
) -> Series:
    """A loss that is higher the shorter the samples are, times what `ill` says of a step and its length."""
    rng, series = random.Random(0), Series(Thresholds(patience_steps=60))
    for step in range(1, last + 1):
        length = lengths(step) if step > AT else FULL
        kept = length if ltd is None else ltd.kept_tokens(step, length)
        loss = (2.0 + 3.0 * math.exp(-step / 200)) * (
            1 + 0.05 * math.log2(FULL / length) + 0.05 * math.log2(FULL / kept)
        )
        series.push(
            Sample(
                attempt=1,
                global_step=step,
                time_unix_s=0.0,
                loss=loss * ill(step, length) * (1 + rng.gauss(0, noise)),
                seqlen=length,
                kept_tokens=kept if kept < length else None,
            )
        )
    return series


@pytest.mark.parametrize("schedule", [MIXED, LINEAR], ids=["mixed", "linear"])
def test_a_run_that_is_well_is_well_at_every_length(schedule: SeqlenSchedule) -> None:
    series = run(schedule.seqlen)
    assert series.alarm is None
    assert {event.kind.value for event in series.events} <= {"regime_change"}


def test_an_unhealthy_at_the_full_length_alone_is_seen_from_round_to_round() -> None:
    """The paper's Figure 2: it is the length that sets it off. Forty steps at a time are fewer than the patience."""
    series = run(MIXED.seqlen, lambda step, length: 1.4 if step > 825 and length == FULL else 1.0)
    assert 820 <= there(series.alarm).onset_range[1] <= 830


def test_an_alarm_stays_up_while_the_lengths_go_back_and_forth_until_the_loss_is_back() -> None:
    def ill(step: int, _: int) -> float:
        return 1.5 if 700 < step < 1250 else 1.0

    assert run(MIXED.seqlen, ill, last=1240).alarm is not None
    assert run(MIXED.seqlen, ill, last=1500).alarm is None


def test_a_spike_at_the_end_of_a_round_has_healed_when_the_next_one_shows_it() -> None:
    series = run(MIXED.seqlen, lambda step, _: 1.4 if 836 <= step <= 840 else 1.0)
    assert series.alarm is None
    assert [e.kind.value for e in series.events if e.kind.value != "regime_change"] == ["spike"]


def test_an_illness_is_seen_from_the_first_steps_after_a_restart_at_a_short_length() -> None:
    """A tolerance is in force for as long as the length grows: it does not grow with the loss."""
    series = run(LINEAR.seqlen, lambda step, _: 1 + 1.2 * min(1.0, max(0, step - AT - 40) / 300), last=AT + 400)
    assert there(series.alarm).onset_range[0] > AT


@pytest.mark.parametrize("ill", [1.0, 1.5])
def test_a_random_ltd_that_keeps_all_of_a_short_sample_forgets_nothing(ill: float) -> None:
    """What is kept is rounded, and the length too: in turn it keeps all of them, and not quite."""
    ltd = RandomLtdSchedule(start=64, full=FULL, total_steps=600, anchor_step=AT, multiple=48)
    keeps_all = {ltd.kept_tokens(s, LINEAR.seqlen(s)) == LINEAR.seqlen(s) for s in range(AT + 1, AT + 600)}
    assert keeps_all == {True, False}
    series = run(LINEAR.seqlen, lambda step, _: ill if step > 700 else 1.0, ltd=ltd)
    assert (series.alarm is None) == (ill == 1.0)


def test_a_length_that_wavers_with_its_batches_does_not_blind_the_judge() -> None:
    def wavers(step: int) -> int:
        return FULL - 8 * (step % 30)

    assert run(wavers).alarm is None
    assert run(wavers, lambda step, _: 1.5 if step > 900 else 1.0).alarm is not None


def test_an_episode_that_is_taken_up_again_is_judged_by_what_comes_now() -> None:
    episode = Episode(
        onset_range=(10, 10), level=2.0, sigma=0.01, upper=2.1, provisional=False, independence=1.0, before=32
    )
    for step in range(10, 30):
        episode.push(step, 3.0)
    episode.resume()
    thresholds = Thresholds(patience_steps=10)
    for step in range(200, 208):
        assert not episode.has_healed(thresholds, 0.0)
        episode.push(step, 2.0)
        assert not episode.stands(thresholds, step, 10)
    assert episode.has_healed(thresholds, 0.0)
