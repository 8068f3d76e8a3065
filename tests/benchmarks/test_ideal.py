"""By when an ideal judge could know."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchmarks.backtest.curves import Curve, Event
from benchmarks.backtest.ideal import Harmless, knowable_step
from benchmarks.backtest.replay import lasting
from benchmarks.backtest.scoring import Said, Told, score, timed


def curve(label: str, height: float, length: int, *events: Event, skipped: int = 0) -> Curve:
    """800 losses of 2 with a little noise; from step 401 on so many are so many times as high."""
    losses = [2.0 + 0.01 * (i % 3) for i in range(800)]
    losses[400 : 400 + length] = [height * loss for loss in losses[400 : 400 + length]]
    skips = [1.0 if 400 <= i < 400 + skipped else 0.0 for i in range(800)]
    return Curve(
        name=label,
        folder="f",
        label=label,
        events=events,
        log_interval=1,
        short=False,
        held_out=False,
        note="",
        steps=tuple(range(1, 801)),
        columns={"loss": tuple(losses), "skipped": tuple(skips)},
    )


ILL = Event(kind="diverge", onset=401, peak=401, end=800)
SPIKE = Event(kind="spike", onset=401, peak=401, end=480)


@pytest.mark.parametrize(
    ("height", "first", "last"),
    [(4.0, 1, 8), (1.5, 161, 400), (0.99, math.nan, math.nan)],  # higher than any spike; longer than two; never
)
def test_a_divergence_is_knowable_once_no_harmless_curve_looks_like_it(
    height: float, first: float, last: float
) -> None:
    harmless = Harmless([curve("spikes_recovered", 2.0, 80, SPIKE), curve("stable", 1.0, 0)])
    step = knowable_step(curve("diverged", height, 400, ILL), harmless)
    assert (step is None) is math.isnan(first)
    assert step is None or first <= step - 400 <= last


@pytest.mark.parametrize(
    ("norm", "known"),
    [(1.4, False), (1.9, False), (5.0, True), (None, False)],  # a smaller rise, a larger, by far; not logged
)
def test_a_divergence_is_known_together_by_a_signal_that_no_harmless_curve_has_half_as_high(
    norm: float | None, known: bool
) -> None:
    def with_norm(of: Curve, factor: float | None) -> Curve:
        norms = [None if factor is None else 1.0 + 0.01 * (i % 3) for i in range(800)]
        norms[400:] = [None if n is None or factor is None else factor * n for n in norms[400:]]
        return replace(of, columns={**of.columns, "grad_norm": tuple(norms)})

    harmless = Harmless([with_norm(curve("stable", 2.0, 400), 1.5)])  # as high for as long, and healthy
    ill = with_norm(curve("diverged", 1.6, 400, ILL), norm)
    step = knowable_step(ill, harmless, together=True)
    assert (step is not None) is known
    assert (knowable_step(ill, harmless) is not None) is (norm in (1.9, 5.0))


@pytest.mark.parametrize("together", [False, True])
def test_a_signal_that_is_no_number_before_the_onset_tells_nothing(together: bool) -> None:
    harmless = Harmless([curve("stable", 2.0, 400)])
    ill = curve("diverged", 1.6, 400, ILL)
    ill = replace(ill, columns={**ill.columns, "grad_norm": (math.inf,) * 800})
    assert knowable_step(ill, harmless, together=together) is None


def test_skips_in_a_row_are_knowable_once_they_are_more_than_any_harmless_run_had() -> None:
    harmless = Harmless([curve("stable", 1.0, 0, skipped=20)])
    assert knowable_step(curve("diverged", 1.0, 0, ILL, skipped=60), harmless) == 421


def test_a_verdict_is_late_only_past_the_deadline_and_the_ideal_one() -> None:
    outcome = score(
        curve("diverged", 2.0, 400, ILL), Said(detector="d", verdicts=(Told(step=520, onset=401),), spikes=())
    )
    late = [timed(outcome, step).late for step in (None, 408, 519, 520)]
    assert late == [False, True, True, False]
    assert timed(outcome, 408).past_ideal_steps == 112


def test_so_many_firings_in_a_row_are_a_verdict() -> None:
    assert lasting([3, 4, 5, 9, 10, 11, 12], 3) == [5, 11, 12]
    assert lasting([3, 4, 9], 1) == [3, 4, 9]
