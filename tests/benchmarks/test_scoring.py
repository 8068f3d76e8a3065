"""What counts as missed, unneeded, late and seen."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.backtest.curves import Curve, Event
from benchmarks.backtest.scoring import Outcome, Said, Told, deadline, score, stretches
from benchmarks.backtest.summing import summary, wilson
from tests.support.scored_curves import DIVERGE, curve


def told(*steps: int, spikes: tuple[tuple[int, int], ...] = ()) -> Said:
    return Said(detector="d", verdicts=tuple(Told(step=s, onset=s - 7) for s in steps), spikes=spikes)


def on_divergence(*steps: int) -> Outcome:
    return score(curve("diverged", DIVERGE), told(*steps))


def test_no_verdict_on_a_divergence_is_missed() -> None:
    assert on_divergence().missed
    assert not on_divergence().unneeded


def test_a_verdict_after_the_onset_catches_it_and_is_timed() -> None:
    outcome = on_divergence(540)
    assert (outcome.missed, outcome.unneeded) == (False, False)
    assert (outcome.delay_steps, outcome.in_time, outcome.onset_error_steps) == (40, True, 33)


@pytest.mark.parametrize(("step", "in_time"), [(600, True), (601, False)])
def test_a_hundred_steps_are_the_deadline_of_a_run_without_spikes(step: int, in_time: bool) -> None:
    assert on_divergence(step).in_time is in_time


def test_an_early_warning_is_taken_as_one() -> None:
    outcome = on_divergence(400)
    assert (outcome.missed, outcome.unneeded, outcome.delay_steps) == (False, False, -100)


def test_a_verdict_long_before_the_onset_is_unneeded_and_does_not_catch_it() -> None:
    outcome = on_divergence(399)
    assert (outcome.missed, outcome.unneeded) == (True, True)


def test_one_long_before_and_one_after_is_caught_and_unneeded() -> None:
    outcome = on_divergence(100, 550)
    assert (outcome.missed, outcome.unneeded, outcome.verdict_step) == (False, True, 550)


@pytest.mark.parametrize("label", ["stable", "spikes_recovered", "regime_shift"])
def test_any_verdict_on_a_harmless_curve_is_unneeded(label: str) -> None:
    assert score(curve(label), told(900)).unneeded
    assert not score(curve(label), told()).unneeded


def test_an_ambiguous_curve_counts_for_nothing() -> None:
    outcome = score(curve("ambiguous"), told(900))
    assert outcome.unscored
    assert {outcome.missed, outcome.unneeded, outcome.is_divergence, outcome.is_harmless} == {False}


def test_the_slowest_spike_before_it_lengthens_the_deadline() -> None:
    slow = Event(kind="spike", onset=100, peak=110, end=150)
    later = Event(kind="spike", onset=700, peak=710, end=990)
    assert deadline(curve("diverged", slow, DIVERGE, later)) == 650


def test_five_intervals_are_the_deadline_of_a_run_that_is_seldom_logged() -> None:
    assert deadline(curve("diverged", DIVERGE, steps=range(0, 1001, 50), interval=50)) == 750


def test_nan_has_to_be_called_within_one_sample() -> None:
    nan = Event(kind="nan", onset=500, peak=500, end=1000)
    assert deadline(curve("nan", nan)) == 501
    assert deadline(curve("nan", nan, steps=range(0, 1001, 10), interval=10)) == 510
    before = Event(kind="diverge", onset=450, peak=500, end=1000)
    assert deadline(curve("nan", before, nan)) == 501


def test_a_divergence_with_nothing_before_it_is_not_scored() -> None:
    assert score(curve("diverged", DIVERGE, steps=range(500, 600)), told()).unscored
    gone = curve("diverged", DIVERGE)
    losses = tuple(math.nan if s < 500 else 9.0 for s in gone.steps)
    ill = Curve(**{f: getattr(gone, f) for f in Curve.__slots__ if f != "columns"}, columns={"loss": losses})
    assert score(ill, told(510)).unscored


def test_a_divergence_that_ends_at_once_is_not_scored() -> None:
    assert score(curve("diverged", DIVERGE, steps=range(1, 502)), told()).unscored
    assert not score(curve("diverged", DIVERGE, steps=range(1, 503)), told()).unscored


def test_spikes_are_seen_where_they_are_and_others_are_false() -> None:
    spike = Event(kind="spike", onset=300, peak=303, end=320)
    minor = Event(kind="minor", onset=700, peak=700, end=705)
    said = told(spikes=((301, 310), (640, 642), (703, 704)))
    outcome = score(curve("spikes_recovered", spike, minor), said)
    assert (outcome.spikes, outcome.spikes_seen, outcome.false_spikes) == (1, 1, 1)
    assert outcome.quiet_steps == 1000 - 31 - 16
    assert outcome.called_quiet_steps == 3


def test_a_detector_that_never_stops_firing_has_seen_nothing() -> None:
    spike = Event(kind="spike", onset=300, peak=303, end=320)
    outcome = score(curve("spikes_recovered", spike), told(spikes=((20, 1000),)))
    assert (outcome.spikes_seen, outcome.false_spikes) == (0, 1)
    assert outcome.called_quiet_steps == 981 - 31


def test_rows_close_together_are_one_stretch() -> None:
    assert stretches([3, 4, 9, 15]) == ((3, 9), (15, 15))
    assert stretches([]) == ()


def test_a_summary_adds_up() -> None:
    together = [
        on_divergence(),
        on_divergence(100, 540),
        score(curve("stable"), told(3)),
        score(curve("stable"), told()),
    ]
    seen = summary("d", together)
    assert (seen.missed, seen.divergences, seen.unneeded, seen.harmless) == (1, 2, 2, 2)
    assert (seen.unneeded_harmless, seen.unneeded_early, seen.wrong) == (1, 1, 3)
    assert seen.onset_error_median_steps == 33


def test_wilson_against_published_figures() -> None:
    """Newcombe 1998, Statistics in Medicine 17:857, table I: method 3."""
    for hits, of, low, high in [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611)]:
        assert wilson(hits, of) == pytest.approx((low, high), abs=1e-4)


@given(st.integers(0, 500), st.integers(0, 500))
def test_wilson_holds_the_share(hits: int, more: int) -> None:
    low, high = wilson(hits, hits + more)
    share = hits / (hits + more) if hits + more else 0.5
    assert 0 <= low <= share + 1e-12
    assert share - 1e-12 <= high <= 1
