"""An episode: how far above its level it must stand, and for how long, until the wait is over."""

from __future__ import annotations

import math

import pytest

from sentinel.judge.detectors.episode import Episode
from sentinel.judge.thresholds import Thresholds

THRESHOLDS = Thresholds()
PATIENCE = THRESHOLDS.patience_steps
LEVEL, SIGMA = 3.0, 0.1
STANDARD_ERROR = 1.2533 * SIGMA * math.sqrt(2 / 32)
"""Of the difference between a median of 32 losses and one of the 32 before."""


def stood(standard_errors: float, patiences: float) -> Episode:
    """An episode that left its band at step 1000, and has stood so high ever since."""
    episode = Episode(
        onset_range=(1000, 1000),
        level=LEVEL,
        sigma=SIGMA,
        upper=LEVEL + 6 * SIGMA,
        provisional=False,
        before=32,
        independence=1.0,
    )
    episode.push(1000, LEVEL + 10 * SIGMA)
    for step in range(1001, 1001 + int(patiences * PATIENCE)):
        episode.push(step, LEVEL + standard_errors * STANDARD_ERROR)
    return episode


@pytest.mark.parametrize(
    ("standard_errors", "patiences", "stands"),
    [
        (6.5, 0.9, False),  # not yet: that is what patience means
        (6.5, 1.0, True),
        (5.5, 1.0, False),
        (5.5, 1.4, False),
        (5.5, 1.6, True),
        (4.5, 2.4, False),
        (4.5, 2.6, True),
        (3.9, 4.0, False),
        (3.9, 40.0, False),
    ],
)
def test_what_stands_for_long_needs_to_stand_less_high(standard_errors: float, patiences: float, stands: bool) -> None:
    episode = stood(standard_errors, patiences)
    step = 1000 + int(patiences * PATIENCE)
    assert episode.stands(THRESHOLDS, step, PATIENCE) is stands


@pytest.mark.parametrize(("above", "stands"), [(1.0, False), (1.001, True)])
def test_a_loss_that_noise_explains_does_not_stand_above_however_long(above: float, stands: bool) -> None:
    """Three standard errors of a median of eight are the tolerance: at it the loss is back, just above it is not."""
    of_8 = 1.2533 * SIGMA / math.sqrt(8)
    episode = stood(above * 3 * of_8 / STANDARD_ERROR, 3.5)
    assert episode.stands(THRESHOLDS, 1000 + int(3.5 * PATIENCE), PATIENCE) is stands


@pytest.mark.parametrize(("loss", "outside"), [(LEVEL + 6 * SIGMA, 1), (LEVEL + 6.01 * SIGMA, 2)])
def test_the_edge_of_the_band_is_inside_it(loss: float, outside: int) -> None:
    episode = stood(0.0, 0.0)
    episode.push(1001, loss)
    assert (episode.outside, episode.back_step) == (outside, 1001 if outside == 1 else None)


def test_its_age_counts_from_the_early_end_of_its_onset() -> None:
    episode = stood(6.5, 1.0)
    assert not episode.stands(THRESHOLDS, 999 + PATIENCE, PATIENCE)
    episode.onset_range = (990, 1000)
    assert episode.stands(THRESHOLDS, 990 + PATIENCE, PATIENCE)


@pytest.mark.parametrize(("patiences", "stands"), [(1.5, False), (2.9, False), (3.0, True)])
def test_what_falls_back_is_given_three_patiences_and_no_more(patiences: float, stands: bool) -> None:
    episode = stood(200.0, 0.0)
    last = 1000 + int(patiences * PATIENCE)
    for step in range(1001, last + 1):
        episode.push(step, LEVEL + 10 * math.exp(-4 * (step - 1000) / (last - 1000)))
    assert episode.stands(THRESHOLDS, last, PATIENCE) is stands


@pytest.mark.parametrize(("last_32", "healed"), [(0.5, True), (3.5, False)])
def test_eight_losses_at_the_level_are_no_healing_where_the_last_32_show_an_offset(
    last_32: float, healed: bool
) -> None:
    """In standard errors of the median of 32: an offset that a median of eight can't tell from noise."""
    of_32 = 1.2533 * SIGMA / math.sqrt(32)
    of_8 = 1.2533 * SIGMA / math.sqrt(8)
    episode = stood(0.0, 0.0)
    for step in range(1001, 1025):
        episode.push(step, LEVEL + last_32 * of_32)
    for step in range(1025, 1033):
        episode.push(step, LEVEL + min(last_32 * of_32, 2.9 * of_8))
    exact = Thresholds(healed_tolerance=0.0)
    assert episode.has_healed(exact, widened=0.0) is healed
