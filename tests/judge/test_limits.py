"""Where the judge's claims begin: just inside and just outside, and what turns them off."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from sentinel.judge.analysis.first_mover import first_moved
from sentinel.judge.events import EventKind, Findings
from sentinel.judge.history import History
from sentinel.judge.readings import Readings
from sentinel.judge.reference import Reference
from sentinel.judge.replay import Replay
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.unhealthy_spans import UnhealthySpans
from sentinel.vocabulary.sample import Sample
from tests.support.there import there


def sample(step: int, loss: float) -> Sample:
    return Sample(attempt=1, global_step=step, time_unix_s=0.0, loss=loss)


def series(losses: list[float], thresholds: Thresholds | None = None, first: int = 1) -> Series:
    made = [sample(at, loss) for at, loss in enumerate(losses, first)]
    return Series(thresholds or Thresholds(), made)


@pytest.mark.parametrize(
    ("losses", "since"),
    [
        ([2, 2.125, 2.25, 2.375, 2.5], 2),
        ([3, 2, 2.125, 2.25, 2.375, 2.5], 3),
        ([2, 2.125, 2.25, 2.375, 2.4375], None),  # by less than a quarter
        ([2, 2.125, 2.25, 2.25, 2.5], None),  # one that is no higher
        ([2.125, 2.25, 2.375, 2.875], None),  # four
        ([2, 2.1, 2.2, 2.3, 9], None),  # the last of them alone is outside the band: an outlier, for all that is known
        ([2.6, 2.7, 9, 2.2, 2.3, 2.4, 2.5, 2.75], 5),  # an outlier before, which was back
        ([2.0] * 12 + [2.125, 2.25, 2.375, 2.5], None),  # enough losses for a band, which says whether it was left
    ],
)
def test_a_run_that_ends_rising_before_it_has_a_band_has_diverged(losses: list[float], since: int | None) -> None:
    judged = series(losses)
    assert judged.alarm is None
    judged.end()
    assert [e.onset_range for e in judged.events if e.recommend_rollback] == ([] if since is None else [(since, since)])


@pytest.mark.parametrize("losses", [[2.0, 2.1] * 50, [2.0] * 100, [2.0] * 50 + [2.6] * 250, [2.0, 9.0] * 200])
def test_a_band_that_is_turned_off_is_never_left(losses: list[float]) -> None:
    judged = series(losses, Thresholds(band_sigmas=math.inf, climb_sigmas=math.inf))
    judged.end()
    assert judged.events == ()


@pytest.mark.parametrize(
    ("onset", "kind", "same"),
    [
        (20, EventKind.DIVERGENCE, True),
        (21, EventKind.DIVERGENCE, False),
        (7, EventKind.DIVERGENCE, True),
        (20, EventKind.NAN, False),
    ],
)
def test_a_divergence_that_begins_again_before_the_last_was_over_is_the_same(
    onset: int, kind: EventKind, same: bool
) -> None:
    findings = Findings()
    findings.raise_alarm(10, (5, 6), "first", EventKind.DIVERGENCE)
    findings.end_alarm(20)
    assert findings.alarm is None
    assert [e.end_step for e in findings.events()] == [20]
    findings.raise_alarm(30, (onset, onset + 1), "second", kind)
    assert findings.alarm is not None
    events = findings.events()
    assert [e.onset_range for e in events] == sorted([(5, 6)] if same else [(5, 6), (onset, onset + 1)])
    assert [(e.end_step, e.reason) for e in events] == [*([] if same else [(20, "first")]), (None, "second")]
    findings.end_alarm(40)
    assert [e.end_step for e in findings.events()] == [*([] if same else [20]), 40]


def test_the_patience_with_a_run_that_heals_slowly_has_an_end() -> None:
    """Twice what its slowest spike took, ten times the patience at most: 36, 68, 132, then 200 steps and not 260."""
    losses = [2.0] * 100
    for lasts in (18, 34, 66, 130):
        losses += [3.0] * lasts + [2.0] * 64
    jump = len(losses) + 1
    judged = series([*losses, *[3.0] * 300], Thresholds(patience_steps=20, climb_sigmas=math.inf))
    assert [e.kind for e in judged.events] == [EventKind.SPIKE] * 4 + [EventKind.DIVERGENCE]
    assert judged.alarm is not None
    assert (judged.alarm.onset_range, judged.alarm.verdict_step) == ((jump, jump), jump + 200)


@pytest.mark.parametrize("unit", [2.0**-20, 1.0, 2.0**20])
@pytest.mark.parametrize(
    ("signal", "factor", "running"), [("adam_variance_l1", 10, 1), ("adam_variance_max", 30, 1), ("grad_norm", 30, 5)]
)
def test_a_reading_is_far_out_by_its_factor_in_whatever_unit(
    signal: str, factor: float, running: int, unit: float
) -> None:
    def spans(height: float, lasts: int) -> list[tuple[int, int]]:
        found = UnhealthySpans(Thresholds())
        for step in range(1, 80):
            value = unit * (height if 50 <= step < 50 + lasts else 1.0)
            found.push(Sample(attempt=1, global_step=step, time_unix_s=0.0, loss=2.0, **{signal: value}), well=True)
        return [(span.first_step, span.last_step) for span in found.spans]

    assert spans(factor, running) == []
    assert spans(factor * 1.001, running) == [(50, 49 + running)]
    assert spans(factor * 1.001, running - 1) == []


def test_a_loss_scale_of_0_is_no_reading() -> None:
    def judged(*scales: float | None) -> Series:
        losses = [2.0] * 60 + [4.0] * 150
        readings = [65536.0] * 50 + [*scales] * 2 + [65536.0] * (160 - 2 * len(scales))
        return Series(
            Thresholds(),
            [
                Sample(attempt=1, global_step=at, time_unix_s=0.0, loss=loss, loss_scale=scale)
                for at, (loss, scale) in enumerate(zip(losses, readings, strict=True), 1)
            ],
        )

    assert judged(0.0, 0.0).events == judged(None, None).events != ()


def test_a_history_that_can_ask_again_has_512_samples_at_hand_and_a_quarter_more_at_most() -> None:
    history = History(again=lambda _: [])
    held = []
    for step in range(1, 2000):
        history.push(Sample(attempt=1, global_step=step, time_unix_s=0.0, loss=2.0))
        held.append([one.global_step for one in history.attempts[1].samples])
    assert all(steps == list(range(steps[0], step + 1)) for step, steps in enumerate(held, 1))
    assert {len(steps) for steps in held[511:]} == set(range(512, 641))
    assert history.attempts[1].made == 1999


def test_what_is_remembered_has_an_end() -> None:
    """64 healed spikes, 256 spans of readings far out of proportion, the baselines of 4 settings that were left."""
    findings = Findings()
    for at in range(100):
        findings.spike((at, at), at + 1, "", is_event=False)
    assert [onset for onset, _ in findings.healed] == [(at, at) for at in range(36, 100)]
    spans = UnhealthySpans(Thresholds())
    for step in range(1, 2000):
        variance = 100.0 if step > 40 and step % 5 == 0 else 1.0
        spans.push(Sample(attempt=1, global_step=step, time_unix_s=0.0, loss=2.0, adam_variance_l1=variance), well=True)
    assert [span.last_step for span in spans.spans] == list(range(1995 - 255 * 5, 2000, 5))


_STRETCH = 1 << 17


@pytest.mark.parametrize(("stretches", "back_to", "knows"), [(2, 0.5, True), (3, 0.5, False)])
def test_a_replay_can_go_back_by_a_quarter_of_a_million_samples(stretches: int, back_to: float, knows: bool) -> None:
    """2^18: what is kept is whole stretches, and a restart from before them is judged from there on alone."""
    replay = Replay(Thresholds())
    for n in range(stretches):
        steps = np.arange(_STRETCH * n + 1, _STRETCH * (n + 1) + 1)
        replay.push(Readings(attempt=1, steps=steps, columns={"loss": 2 + 0.01 * np.sin(steps * 1.7)}))
    first = int(back_to * _STRETCH)
    replay.push(Readings(attempt=2, steps=np.arange(first, first + 4), columns={"loss": np.full(4, 2.0)}))
    assert replay.series.band_ready is knows
    (back,) = replay.events
    assert (back.kind, back.onset_range) == (EventKind.REGIME_CHANGE, (first, first))


def test_what_has_left_its_noise_from_its_first_reading_on_has_moved_then() -> None:
    steps = np.arange(100)
    values = np.where(steps < 20, 50.0, 10.0) + 0.1 * np.random.default_rng(0).standard_normal(100)
    found = first_moved({"x": values}, steps, onset_step=19, window_steps=19, quiet=steps >= 20)
    assert [(d.first_step, d.steps_before_onset) for d in found.departures] == [(0, 19)]


@pytest.mark.parametrize(("resumed", "steps", "calls"), [(True, 1400, 0), (False, 400, 0), (False, 1400, 1)])
def test_a_drop_after_a_resume_is_told_and_its_end_is_no_divergence(resumed: bool, steps: int, calls: int) -> None:
    """Data that was seen before: without the resume a drop that has lasted for ten patiences is a level."""
    rng = np.random.default_rng(0)
    loss = 2.0 * (1 + 0.003 * rng.standard_normal(1000 + steps))
    loss[600 : 600 + steps] *= 0.9
    judged = Series(Thresholds())
    for step, value in enumerate(loss.tolist(), start=1):
        judged.push(replace(sample(step, value), attempt=2 if resumed and step > 600 else 1))
    assert len([e for e in judged.events if e.recommend_rollback]) == calls
    told = [e.reason for e in judged.events if "after the resume at step 601" in e.reason]
    assert len(told) == resumed
    judged.push(replace(sample(1001 + steps, 3.0), attempt=2))
    assert judged.episode is not None  # above the level from before it is judged as ever


def test_a_log_of_ten_steps_is_judged_at_the_reading_nearest_to_the_patience() -> None:
    """The onset is step 2001 at the earliest: 100 steps later is between two readings."""
    judged = Series(Thresholds(), [sample(step, 2.0 if step <= 2000 else 3.0) for step in range(10, 2300, 10)])
    assert judged.alarm is not None
    assert (judged.alarm.onset_step, judged.alarm.verdict_step) == (2001, 2100)


@pytest.mark.parametrize(("loss", "known"), [(2.0, 25), (math.nan, 5), (None, 25)])
def test_skipped_updates_are_known_sooner_where_the_loss_is_no_number_either(loss: float | None, known: int) -> None:
    judged = Series(Thresholds())
    judged.push_readings(Readings.of([sample(step, 2.0) for step in range(1, 101)]))
    measured = {} if loss is None else {"loss": np.array([loss] * 40)}
    columns = {"loss": np.full(40, math.nan)} | measured
    gaps = {"loss": np.zeros(40, np.bool_)} if loss is None else {}
    skips = np.ones(40, np.bool_)
    judged.push_readings(Readings(attempt=1, steps=np.arange(101, 141), columns=columns, measured=gaps, skipped=skips))
    assert there(judged.alarm).verdict_step == 100 + known


def test_a_run_is_compared_with_its_reference_from_step_500_on() -> None:
    """Means that begin at steps 180, 340, 500, 660: the second in a row that is behind says so."""
    steps = np.arange(40, 1001, 20)
    judged = Series(Thresholds(), references=[Reference("sibling", [(1, 2.0), (5000, 2.0)])])
    judged.push_readings(Readings(attempt=1, steps=steps, columns={"loss": np.full(len(steps), 3.0)}))
    (event,) = judged.events
    assert (event.kind, event.onset_range) == (EventKind.PLATEAU, (500, 500))


@pytest.mark.parametrize(
    ("usual", "loss", "far"), [(0.5, 1.5, False), (0.5, 1.5625, True), (2.0, 4.0, False), (2.0, 4.25, True)]
)
def test_a_loss_is_far_out_at_twice_its_usual_value_and_a_nat_above_it(usual: float, loss: float, far: bool) -> None:
    found = UnhealthySpans(Thresholds())
    for step in range(1, 60):
        value = loss if 50 <= step < 55 else usual
        found.push(Sample(attempt=1, global_step=step, time_unix_s=0.0, loss=value), well=True)
    assert [(span.first_step, span.last_step) for span in found.spans] == ([(50, 54)] if far else [])
