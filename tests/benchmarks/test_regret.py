"""What verdicts cost beside the oracle's, and how spikes become the table that waiting is priced by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.backtest.curves import Curve
from benchmarks.backtest.episodes import Spike, Traced, traced
from benchmarks.backtest.pooling import at_ages, pooled
from benchmarks.backtest.regret import Cost, calibration, perfect_verdicts, regret
from benchmarks.backtest.scoring import Told
from sentinel.plan.pooled_spikes import AGES, POOLED
from tests.benchmarks.test_scoring import DIVERGE, curve
from tests.plan.test_waiting_price import MOMENT

ILL, WELL = curve("diverged", DIVERGE), curve("stable")


def spike(family: str, *ages: int, never: bool | None = False, healed_age: float | None = None) -> Spike:
    moments = tuple(replace(MOMENT, step=1000 + age) for age in ages)
    return Spike(family=family, moments=moments, healed_age=healed_age, never=never)


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
    cost = regret([of], lambda *_: [Told(step=step, onset=step - 7) for step in verdicts], 1000)
    assert cost.spent == pytest.approx(spent)
    assert cost.oracle == pytest.approx(0.61 if of is ILL else 0.0)


def test_regret_is_a_share_of_the_oracles_cost() -> None:
    assert Cost(3.0, 2.0).regret == 0.5
    assert Cost(1.0, 0.0).regret == 0.0


def test_a_table_tells_how_often_and_when_spikes_came_back() -> None:
    spikes = [spike("a", *range(1, 101), never=True), *(spike(f, *range(1, 41), healed_age=40.5) for f in "bcd")]
    cells = pooled([*spikes, spike("e", *range(1, 300), never=None)])[1, "alone"]
    assert [(c.spikes, c.spikes_never, c.families) for c in cells][:4] == [(4, 1, 4)] * 4
    assert cells[0].never == pytest.approx(0.25, abs=0.01)
    assert cells[0].healed_by[AGES.index(48) - 1] == pytest.approx(0.75, abs=0.01)
    assert cells[AGES.index(64)].never == pytest.approx(1.0, abs=0.02)


def test_many_spikes_of_one_family_count_as_their_root() -> None:
    spikes = [*(spike("a", 1, 2, 3, healed_age=3.5) for _ in range(16)), spike("b", 1, 2, 3, never=True)]
    assert pooled(spikes)[1, "alone"][0].never == pytest.approx(1 / 5, abs=0.02)


def test_a_spike_is_followed_from_the_judges_readings_to_its_end() -> None:
    losses = [2.0 + (n * 7 % 11) / 500 + (400 <= n < 430) + (n >= 700) for n in range(1, 1001)]
    harmless = replace(WELL, columns={"loss": tuple(losses[:650])}, steps=tuple(range(1, 651)))
    (back,) = traced(harmless).spikes
    assert (back.never, back.healed_age) == (False, 40)
    ill = replace(ILL, columns={"loss": tuple(losses)}, events=(replace(DIVERGE, onset=700),))
    found = traced(ill)
    assert [s.never for s in found.spikes] == [False, True]
    assert {v.onset for v in perfect_verdicts(found)} == {699}
    assert found.verdicts[0].step > 740


def test_calibration_is_nought_where_what_is_predicted_comes() -> None:
    cell = POOLED[1, "alone"][AGES.index(96)]
    seen = [spike(f"f{n}", 96, never=n < round(100 * cell.never), healed_age=200.0) for n in range(100)]
    of = [Traced(curve=replace(WELL, family=s.family), verdicts=(), spikes=(s,)) for s in seen]
    found = calibration(of, {s.family: POOLED for s in seen})
    assert found.error < 0.01
    assert len(at_ages(seen)) == 100
    wrong = [replace(t, spikes=(replace(t.spikes[0], never=False),)) for t in of]
    assert calibration(wrong, {s.family: POOLED for s in seen}).error == pytest.approx(cell.never)


def test_the_range_of_the_calibration_error_is_wider_where_few_families_are_known() -> None:
    cell = POOLED[1, "alone"][AGES.index(96)]
    widths = []
    for families in (1, 4, 100):
        seen = [spike(f"f{n % families}", 96, never=n % families < families * cell.never) for n in range(100)]
        of = [Traced(curve=replace(WELL, family=s.family), verdicts=(), spikes=(s,)) for s in seen]
        found = calibration(of, {s.family: POOLED for s in seen})
        low, high = found.error_range
        assert low <= found.error <= high
        widths.append(high - low)
    assert widths[0] == 0  # one family says nothing of another
    assert widths[1] > 2 * widths[2] > 0
