"""A recorded past says the same tomorrow: every verdict, onset, level and figure of curves of every kind."""

from __future__ import annotations

import pytest

from tests.judge.judged_curves import CURVES, recorded, said


@pytest.mark.parametrize("name", CURVES)
def test_the_judge_says_of_a_curve_what_it_said_when_it_was_recorded(name: str) -> None:
    """A change on purpose is recorded anew with `python -m tests.judge.judged_curves`, and read in the difference."""
    assert said(name) == recorded()[name]


def test_no_curve_is_recorded_that_is_not_judged() -> None:
    assert list(recorded()) == list(CURVES)
