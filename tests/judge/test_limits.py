"""Where the judge's claims begin: just inside and just outside, and what turns them off."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from sentinel.judge.analysis.first_mover import first_moved
from sentinel.judge.detectors.episode import Episode
from sentinel.judge.events import EventKind, Findings
from sentinel.judge.history import History
from sentinel.judge.readings import Readings
from sentinel.judge.reference import Reference
from sentinel.judge.replay import Replay
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.unhealthy_spans import UnhealthySpans
from sentinel.vocabulary.sample import Sample


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


def climb(blocks: int, seed: int, fell_before: int = 0) -> float:
    """After so many blocks of 32: the lowest climb that is found, in deviations of a block's mean above the best. So
    many blocks before, the loss may have fallen by a quarter."""

    def found(offset: float) -> str | None:
        noise = 1 + 0.01 * np.random.default_rng(seed).standard_normal(32 * (blocks + 4))
        loss = 2e5 * noise + offset * (np.arange(len(noise)) >= 32 * blocks)
        loss[: 32 * (blocks - fell_before) if fell_before else 0] *= 4 / 3
        judged = Series(Thresholds(band_sigmas=math.inf, climb_tolerance=0.0, climb_sigmas=6.0))
        judged.push_readings(Readings(attempt=1, steps=np.arange(1, len(loss) + 1), columns={"loss": loss}))
        return next((e.reason for e in judged.events if e.recommend_rollback), None)

    low, high = 1e3, 1e4
    for _ in range(9):
        middle = (low + high) / 2
        low, high = (low, middle) if found(middle) else (middle, high)
    mean, best, sigma = map(float, re.findall(r"\d+\.\d+", found(high) or ""))
    return (mean - best) / sigma


@pytest.mark.parametrize(("blocks", "more"), [(2, 0.75), (3, 0.75), (12, 0.03), (16, 0.03), (24, 0.05)])
def test_a_climb_must_stand_out_the_more_the_longer_its_best_could_be_luck(blocks: int, more: float) -> None:
    """Of n blocks the best pair lies -Phi^-1(n^-0.5) deviations low by chance; the first has no neighbour yet. Of few
    blocks the noise is known to half a deviation only."""
    luck = max(0.0, -NormalDist().inv_cdf((blocks - 1) ** -0.5)) if blocks > 2 else 0.0
    assert 6.0 + luck - 0.03 <= climb(blocks, seed=3) <= 6.0 + luck + more


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


@pytest.mark.parametrize(("back_at", "climbs"), [(2.0, False), (1.9, False), (2.0 + 2**-20, True)])
def test_spikes_in_a_row_that_are_back_at_the_best_are_no_climb(back_at: float, climbs: bool) -> None:
    """A quarter of each block of 32 is back, or all of it is above."""
    spikes = ([2.0625] * 24 + [back_at] * 8) * 12
    judged = series([2.0] * 256 + spikes, Thresholds(band_sigmas=math.inf))
    assert (judged.alarm is not None) is climbs


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


@pytest.mark.parametrize(
    ("standard_errors", "wrong"), [(6.0, True), (6.0 * (1 + 2**-40), False), (5.0, True), (-9.0, True)]
)
def test_a_provisional_band_was_wrong_where_the_loss_stands_within_six_standard_errors(
    standard_errors: float, wrong: bool
) -> None:
    """After so long that it would have come back: twice the patience, and 16 samples."""
    error = 1.2533 * math.sqrt(1 / 8 + 1 / 32)

    def episode(samples: int, *, provisional: bool = True) -> Episode:
        made = Episode(
            onset_range=(10, 12),
            level=0.0,
            sigma=1.0,
            upper=9.0,
            provisional=provisional,
            before=8,
            independence=1.0,
        )
        for step in range(12, 12 + samples):
            made.push(step, standard_errors * error)
        return made

    assert standard_errors * error / error == standard_errors
    assert episode(32).band_was_wrong(210, 100) is wrong
    assert not episode(32).band_was_wrong(209, 100)
    assert not episode(32, provisional=False).band_was_wrong(210, 100)
    assert (episode(16).band_was_wrong(210, 100), episode(15).band_was_wrong(210, 100)) == (True, False)


@pytest.mark.parametrize(("dropped_to", "learnt"), [(19.59375, False), (19.625, True)])
@pytest.mark.parametrize("unit", [1.0, 2.0**-10])
def test_a_loss_that_drops_by_more_than_its_band_is_learnt_after_a_patience(
    dropped_to: float, learnt: bool, unit: float
) -> None:
    """2 % of the level where there is no noise: 20 - 0.4 = 19.6."""
    before = [20.0 * unit] * 64
    soon = series([*before, *[dropped_to * unit] * 32])
    assert soon.level == (dropped_to * unit if learnt else 20.0 * unit)
    assert soon.band_ready
    late = series([*before, *[dropped_to * unit] * 160])
    assert late.level == dropped_to * unit
    assert late.band_ready


@pytest.mark.parametrize(("back_to", "doubted"), [(18.0, True), (19.625, False)])
def test_a_drop_is_over_once_the_loss_is_back_within_its_band(back_to: float, doubted: bool) -> None:
    judged = series([*[20.0] * 64, *[16.0] * 8, *[back_to] * 16])
    assert judged.level == (20.0 if doubted else back_to)


@pytest.mark.parametrize("noise", [0.0005, 0.003, 0.01])
@pytest.mark.parametrize(("share", "samples"), [(0.05, 6), (0.1, 9), (0.1, 24), (0.2, 14), (0.4, 40), (0.4, 80)])
def test_a_dip_is_no_level_and_its_end_no_divergence(share: float, samples: int, noise: float) -> None:
    """As a batch of repeated text makes it. The level is where it was before."""
    rng = np.random.default_rng([samples, int(1e4 * noise)])
    loss = (6 * (np.arange(1500) + 20.0) ** -0.12) * (1 + noise * rng.standard_normal(1500))
    loss[703 : 703 + samples] *= 1 - share
    judged = series(loss.tolist())
    assert not [e for e in judged.events if e.recommend_rollback]
    assert judged.level == pytest.approx(loss[-32:].mean(), rel=0.02)


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


@pytest.mark.parametrize(
    ("norm", "every", "update", "rises", "known"),
    [
        (1.0, 1, 1.0, 0.0, 100),
        (3.0, 2, 1.0, 0.0, 50),  # another signal has left its band now and then
        (3.0, 1, 1.0, 0.0, 40),  # … and is outside all the while
        (1.0, 1, 0.3, 0.0, 50),  # … has faded
        (1.0, 1, 0.45, 0.0, 100),  # … not by enough
        (1.0, 1, 1.0, 0.02, 70),  # the loss goes on rising
        (3.0, 1, 0.3, 0.0, 30),  # two at once
        (3.0, 1, 0.3, 0.02, 30),
    ],
)
def test_the_wait_is_shorter_the_more_says_the_same(
    norm: float, every: int, update: float, rises: float, known: int
) -> None:
    judged = Series(Thresholds())
    for step in range(1, 451):
        ill = step > 300
        loss = 3.0 + rises * (step - 300) if ill else 2.0
        outside = ill and step % every == 0
        judged.push(replace(sample(step, loss), grad_norm=norm if outside else 1.0, update_norm=update if ill else 1.0))
    assert judged.alarm is not None
    assert judged.alarm.verdict_step == 301 + known


@pytest.mark.parametrize("begins", range(512, 544, 3))
def test_a_climb_is_known_after_96_samples_wherever_it_begins(begins: int) -> None:
    judged = series([2.0] * begins + [2.2] * 200, Thresholds(band_sigmas=math.inf))
    assert judged.alarm is not None
    assert 88 < judged.alarm.verdict_step - begins < 104


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
    assert judged.alarm is not None
    assert judged.alarm.verdict_step == 100 + known


@pytest.mark.parametrize(
    ("third", "last_quarter", "found"),
    [
        (34.0, 26.0, True),  # half-way back from the lowest mean to the best: (20 + 32) / 2
        (34.0, 25.96875, False),
    ],
)
def test_a_climb_is_none_whose_newest_losses_are_half_way_back(third: float, last_quarter: float, found: bool) -> None:
    losses = [20.0] * 256 + [34.0] * 64 + [third] * 24 + [last_quarter] * 8
    judged = series(losses, Thresholds(band_sigmas=math.inf, patience_steps=105))
    assert (judged.alarm is not None) is found


@pytest.mark.parametrize(("newest", "found"), [(27.0, True), (26.96875, False)])
def test_a_climb_is_waited_for_that_has_lost_more_than_three_tenths_of_its_height(newest: float, found: bool) -> None:
    losses = [20.0] * 256 + [30.0] * 64 + [newest] * 32
    thresholds = Thresholds(band_sigmas=math.inf, patience_steps=100)
    assert (series(losses, thresholds).alarm is not None) is found
    assert series([*losses, *[newest] * 256], thresholds).alarm is not None  # three patiences, and no more


@pytest.mark.parametrize("fallen", [False, True])
def test_luck_is_counted_from_where_the_loss_has_been_as_low(fallen: bool) -> None:
    """After a fall by more than the noise only the blocks since then could have been low by chance."""
    assert climb(42, seed=3, fell_before=28 if fallen else 0) == pytest.approx(
        6.0 - NormalDist().inv_cdf((27 if fallen else 41) ** -0.5), abs=0.04
    )


@pytest.mark.parametrize(("high", "departed"), [(1.2, False), (1.3, True)])
@pytest.mark.parametrize("at_once", [False, True])
def test_a_signal_that_begins_late_leaves_its_first_band_by_a_quarter(
    high: float, departed: bool, at_once: bool
) -> None:
    """Its first eight values make a band, the fifth of them is outside of it; then the loss leaves its own."""
    norms = [None] * 40 + [1.0, 1.0, 1.0, 1.0, high, *[1.0] * 200]
    losses = [2.0] * 60 + [300.0] * 4
    samples = [
        Sample(attempt=1, global_step=at, time_unix_s=0.0, loss=loss, grad_norm=norm)
        for at, (loss, norm) in enumerate(zip(losses, norms, strict=False), 1)
    ]
    judged = Series(Thresholds(), () if at_once else samples)
    if at_once:
        judged.push_readings(Readings.of(samples))
    (event,) = judged.events
    assert judged.known.leading.departed_before(event.onset_range) is departed


def test_a_run_is_compared_with_its_reference_from_step_500_on() -> None:
    """Means that begin at steps 180, 340, 500, 660: the second in a row that is behind says so."""
    steps = np.arange(40, 1001, 20)
    judged = Series(Thresholds(), references=[Reference("sibling", [(1, 2.0), (5000, 2.0)])])
    judged.push_readings(Readings(attempt=1, steps=steps, columns={"loss": np.full(len(steps), 3.0)}))
    (event,) = judged.events
    assert (event.kind, event.onset_range) == (EventKind.PLATEAU, (500, 500))


@pytest.mark.parametrize(("worst", "plateaus"), [(None, 1), (-1.0, 0)])
def test_a_trend_through_a_loss_that_is_not_above_0_is_none(worst: float | None, plateaus: int) -> None:
    """The loss falls to step 512 and stands still: above its own trend, where that has a logarithm."""
    steps = np.arange(1, 1500)
    losses = 8.0 * np.minimum(steps, 512) ** -0.3
    if worst is not None:
        losses[(steps > 256) & (steps <= 300)] = worst
    judged = Series(Thresholds(band_sigmas=math.inf, climb_sigmas=math.inf))
    judged.push_readings(Readings(attempt=1, steps=steps, columns={"loss": losses}))
    assert sum(event.kind is EventKind.PLATEAU for event in judged.events) == plateaus


@pytest.mark.parametrize(
    ("usual", "loss", "far"), [(0.5, 1.5, False), (0.5, 1.5625, True), (2.0, 4.0, False), (2.0, 4.25, True)]
)
def test_a_loss_is_far_out_at_twice_its_usual_value_and_a_nat_above_it(usual: float, loss: float, far: bool) -> None:
    found = UnhealthySpans(Thresholds())
    for step in range(1, 60):
        value = loss if 50 <= step < 55 else usual
        found.push(Sample(attempt=1, global_step=step, time_unix_s=0.0, loss=value), well=True)
    assert [(span.first_step, span.last_step) for span in found.spans] == ([(50, 54)] if far else [])
