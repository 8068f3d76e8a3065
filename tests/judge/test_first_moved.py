"""What moved first: signals that really left their noise, in the order in which they did."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.signal import lfilter

from sentinel.judge.analysis.departures import Departure, FirstMoved
from sentinel.judge.analysis.first_mover import SIGNALS, first_moved, first_moved_of_readings
from sentinel.judge.readings import stretches_of
from sentinel.vocabulary.sample import Sample

CURVES = Path(__file__).parents[1] / "data" / "incident_curves"
STEPS = np.arange(1101)
ONSET = 1100
Columns = dict[str, NDArray[np.float64]]


def curve(name: str) -> tuple[Columns, NDArray[np.int64]]:
    with (CURVES / f"{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    columns = {key: np.array([float(row[key]) for row in rows]) for key in rows[0] if key != "step"}
    return columns, np.array([int(row["step"]) for row in rows])


def noise(seed: int) -> NDArray[np.float64]:
    return 10 + np.random.default_rng(seed).standard_normal(len(STEPS))


def test_the_gradients_burst_in_a_noisy_3b_run_comes_before_its_loss() -> None:
    """From 0.3 to 20 at step 3508 and after; its outlier at 3498 (0.74) and the loss's at 3507 do not count."""
    found = first_moved(*curve("dion_adam3b"), onset_step=3512, window_steps=50)
    (first,) = found.departures
    assert (first.signal, first.first_step, first.steps_before_onset) == ("grad_norm", 3508, 4)
    assert first.deviations > 10
    assert found.stayed == ("loss",)


def test_in_tr11_176b_the_gradient_moves_before_the_loss() -> None:
    """With three quiet readings to go by, it must be far out: 145 after 0.2, where the eye says 2.4 already."""
    columns, steps = curve("bloom176b_spike_31214")
    quiet = np.isin(steps, (31214, 31250, 31251))
    found = first_moved(columns, steps, onset_step=31219, window_steps=5, quiet=quiet)
    assert [(d.signal, d.steps_before_onset) for d in found.departures] == [("grad_norm", 1), ("loss", 0)]


@pytest.mark.parametrize(("name", "onset"), [("bloom176b_spike_31214", 31219), ("tr8b_104b_diverge_17060", 17062)])
def test_without_a_quiet_stretch_nothing_is_claimed(name: str, onset: int) -> None:
    found = first_moved(*curve(name), onset_step=onset)
    assert found.departures == ()
    assert set(found.unjudged) == set(curve(name)[0])


def test_the_earliest_is_first_and_the_side_is_told() -> None:
    columns = {"grad_norm": noise(0), "loss_scale": np.full(len(STEPS), 65536.0), "lr": noise(1), "loss": noise(2)}
    columns["grad_norm"][1090:] += 40
    columns["loss_scale"][1070:] /= 2
    columns["loss"][1099:] += 40
    found = first_moved(columns, STEPS, onset_step=ONSET)
    assert [(d.signal, d.first_step) for d in found.departures] == [
        ("loss_scale", 1070),
        ("grad_norm", 1090),
        ("loss", 1099),
    ]
    assert found.departures[0].deviations < 0 < found.departures[1].deviations
    assert found.stayed == ("lr",)


@pytest.mark.parametrize("size", [10.0, 1e9])
def test_one_outlier_does_not_win_and_two_together_do(size: float) -> None:
    once, twice = noise(0), noise(1)
    once[1050] += size
    twice[[1060, 1062]] += 30
    found = first_moved({"once": once, "twice": twice}, STEPS, onset_step=ONSET)
    assert [(d.signal, d.first_step) for d in found.departures] == [("twice", 1060)]


def test_nan_is_a_departure_by_itself_and_a_reading_that_was_not_taken_is_none() -> None:
    values, measured = noise(0), np.ones(len(STEPS), dtype=np.bool_)
    values[[1030, 1080]] = math.nan
    measured[1030] = False
    (only,) = first_moved({"x": values}, STEPS, onset_step=ONSET, measured={"x": measured}).departures
    assert (only.first_step, only.deviations) == (1080, math.inf)


def test_a_schedule_that_bends_by_a_little_has_not_moved() -> None:
    cosine = 1e-4 * (1 + np.cos(STEPS / 40_000 * math.pi)) / 2
    assert first_moved({"lr": cosine}, STEPS, onset_step=ONSET).stayed == ("lr",)


@pytest.mark.parametrize(
    ("kind", "most"), [("normal", 0.01), ("t3", 0.02), ("falling", 0.01), ("lognormal", 0.02), ("ar", 0.04)]
)
def test_noise_alone_seldom_moves(kind: str, most: float) -> None:
    def series(seed: int) -> NDArray[np.float64]:
        rng = np.random.default_rng(seed)
        white = rng.standard_normal(len(STEPS))
        kinds = {
            "normal": 10 + white,
            "t3": 10 + rng.standard_t(3, len(STEPS)),
            "falling": 5 + 10 * np.exp(-STEPS / 1000) + 0.1 * white,
            "lognormal": np.exp(0.3 * white),
            "ar": 20 + lfilter([1], [1, -0.9], white),
        }
        return kinds[kind]

    named = [bool(first_moved({"x": series(seed)}, STEPS, onset_step=ONSET).departures) for seed in range(200)]
    assert sum(named) / len(named) <= most


def test_samples_are_read_as_columns() -> None:
    samples = [
        Sample(
            attempt=1, global_step=int(s), time_unix_s=0.0, loss=v, grad_norm=None if s % 2 else v + 50 * (s >= 1090)
        )
        for s, v in zip(STEPS, noise(0).tolist(), strict=True)
    ]
    found = first_moved_of_readings(stretches_of(samples, SIGNALS), onset_step=ONSET)
    assert [(d.signal, d.first_step) for d in found.departures] == [("grad_norm", 1090)]
    assert (found.stayed, found.unjudged) == (("loss",), ())


@pytest.mark.parametrize("size", [1e-300, 1.0, -1.0, 1e300])
def test_a_signal_that_was_exactly_0_has_moved_as_far_as_can_be_said(size: float) -> None:
    """Of one rank, the spread over the ranks; an overflow to inf is no warning on the operator's screen."""
    values = np.where(STEPS >= 1090, size, 0.0)
    (only,) = first_moved({"loss_spread": values}, STEPS, onset_step=ONSET).departures
    assert only.first_step == 1090
    assert abs(only.deviations) > 1e7
    assert math.copysign(1, only.deviations) == math.copysign(1, size)


LED = Departure(signal="grad_norm", first_step=90, steps_before_onset=10, deviations=7.0)
OF_LOSS = Departure(signal="loss", first_step=95, steps_before_onset=5, deviations=9.0)


@pytest.mark.parametrize(
    ("departures", "stayed", "unjudged", "sentence"),
    [
        ((LED, OF_LOSS), ("lr",), (), "led by grad_norm 10 steps before (7 deviations of its own noise)"),
        ((OF_LOSS,), ("lr",), (), "no signal left its noise before the loss"),
        (
            *((OF_LOSS,), ("lr",), ("update_norm",)),
            "no signal left its noise before the loss; too few readings to judge update_norm",
        ),
        ((OF_LOSS,), (), (), "what moved first is unknown: no signal but the loss was measured"),
        ((), (), ("loss", "lr"), "what moved first is unknown: too few readings before the onset"),
    ],
)
def test_what_led_is_said_with_its_doubt(
    departures: tuple[Departure, ...], stayed: tuple[str, ...], unjudged: tuple[str, ...], sentence: str
) -> None:
    assert FirstMoved(departures=departures, stayed=stayed, unjudged=unjudged).sentence == sentence
