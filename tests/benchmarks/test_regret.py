"""What verdicts cost beside the oracle's."""

from __future__ import annotations

import pytest

from benchmarks.backtest.curves import Curve
from benchmarks.backtest.regret import Cost, key, regret
from benchmarks.backtest.scoring import Told
from tests.support.scored_curves import DIVERGE, curve

ILL, WELL = curve("diverged", DIVERGE), curve("stable")


@pytest.mark.parametrize(
    ("of", "verdicts", "spent"),
    [
        (ILL, [500], 0.61),
        (ILL, [450], 0.61),
        (ILL, [600, 500, 700], 0.61),
        (ILL, [700], 0.81),
        (ILL, [], 1.11),
        (ILL, [300, 700], 0.61 + 0.007 + 0.81),
        (WELL, [], 0.0),
        (WELL, [300, 700], 0.61 + 0.007),
    ],
    ids=[
        "at onset",
        "within the tolerance",
        "the first",
        "late",
        "missed",
        "an early one too",
        "none",
        "the first alone",
    ],
)
def test_a_verdict_costs_the_steps_since_the_save_the_delay_and_the_restart(
    of: Curve, verdicts: list[int], spent: float
) -> None:
    cost = regret([of], {key(of): [Told(step=step, onset=step - 7) for step in verdicts]}, 1000)
    assert cost.spent == pytest.approx(spent)
    assert cost.oracle == pytest.approx(0.61 if of is ILL else 0.0)


def test_regret_is_a_share_of_the_oracles_cost() -> None:
    assert Cost(3.0, 2.0).regret == 0.5
    assert Cost(1.0, 0.0).regret == 0.0
