"""What a run changes on purpose, and how far its loss may move for it."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from sentinel.judge.schedule_changes import Regime
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.vocabulary.sample import Sample
from tests.support.there import there

T = Thresholds()


@pytest.mark.parametrize(
    ("column", "before", "after", "said", "comparable", "widened"),
    [
        ("seqlen", 64, 128, "the sequence length went from 64 to 128", True, T.lengthening_tolerance),
        ("seqlen", 128, 8, "the sequence length went from 128 to 8", False, T.lengthening_tolerance),
        ("kept_tokens", None, 32, "what random-LTD keeps of a sample went from all to 32 tokens", False, 0.15),
        ("kept_tokens", 32, None, "what random-LTD keeps of a sample went from 32 tokens to all", True, 0.15),
        (
            *("curriculum_share", None, 0.01, "the curriculum's share of the samples went from 100.00% to 1.00%"),
            *(False, 0.3),
        ),
        ("curriculum_share", 0.01, 0.02, "the curriculum's share of the samples went from 1.00% to 2.00%", True, 0.3),
        ("global_batch_samples", 512, 256, "the batch went from 512 samples to 256 samples", True, 0.05),
    ],
)
def test_a_change_is_said_and_widens_what_the_loss_may_do(
    column: str, before: float | None, after: float | None, said: str, comparable: bool, widened: float
) -> None:
    regime = Regime(T)
    assert regime.take(1, {column: before}) is None
    assert regime.take(2, {column: before}) is None
    change = there(regime.take(3, {column: after}))
    assert (change.what, change.comparable, change.step) == (said, comparable, 3)
    assert regime.widened == widened
    assert regime.take(4, {column: after}) is None


def test_a_little_less_than_the_most_there_was_still_compares_and_much_less_does_not() -> None:
    regime = Regime(T)
    changes = [regime.take(step, {"seqlen": float(length)}) for step, length in enumerate((1024, 900, 1024, 700, 680))]
    assert [change.comparable for change in changes[1:] if change] == [True, True, True, False]
    assert regime.widened == T.lengthening_tolerance


@pytest.mark.parametrize("height", [0.08, 0.09, 0.1])  # beside a tolerance of 0.1
@pytest.mark.parametrize("noise", [0.002, 0.01])
def test_a_loss_that_wavers_about_a_warmups_tolerance_is_called_once_and_not_taken_back(
    height: float, noise: float
) -> None:
    rng, series, known = random.Random(0), Series(T), list[bool]()
    for step in range(1, 1500):
        over = 0.0 if step < 300 else height * min(1.0, (step - 300) / 100) + 0.02 * math.sin(step / 40)
        loss = 3.0 * (1 + over) * (1 + rng.gauss(0, noise))
        lr = 1e-4 + 1e-6 * max(0, step - 300)  # it rises to where it has never been
        series.push(Sample(attempt=1, global_step=step, time_unix_s=math.nan, loss=loss, lr=lr, grad_norm=1.0))
        known.append(series.alarm is not None)
    assert sum(before != after for before, after in pairwise(known)) <= 1


def test_a_loss_that_comes_back_by_more_than_half_of_a_warmups_tolerance_is_taken_back() -> None:
    series = Series(T)
    for step in range(1, 1500):
        loss = 3.0 * (1.0 if step < 300 else 1.11 if step < 900 else 1.03) * (1 + 0.002 * (-1) ** step)
        lr = 1e-4 + 1e-6 * max(0, step - 300)
        series.push(Sample(attempt=1, global_step=step, time_unix_s=math.nan, loss=loss, lr=lr, grad_norm=1.0))
        if step in (899, 1499):
            assert (series.alarm is not None) == (step == 899)
