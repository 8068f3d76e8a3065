"""The price of waiting for a spike, and the wait that goes by it."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.cli import rollback, status
from sentinel.config import Config, load_config
from sentinel.daemon.sources import source_of_run
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import judge_past
from sentinel.plan.observation import Checkpoint, RunState
from sentinel.plan.policy import Policy
from sentinel.plan.pooled_spikes import AGES, POOLED, SIZES
from sentinel.plan.waiting import Moment, is_over, moment_of, odds_of, price_of_waiting, priced, priced_verdict
from sentinel.reports.past import PageSettings, judged, read_past
from sentinel.vocabulary.sample import CheckpointSaved, Record, RunStarted, Sample, encode
from tests.adapters.checkpoint_files import deepspeed

ONSET = 301
MOMENT = Moment(
    step=1100,
    onset_range=(1000, 1000),
    stands=True,
    size=3.0,
    agrees=False,
    falling=False,
    own_ages=(),
    pace=1.0,
)
ages = st.integers(min_value=1, max_value=600)
sizes = st.sampled_from([-1.0, 0.5, 3.0])
flags = st.booleans()


def samples(until: int, high: float = 4.5) -> list[Sample]:
    losses = [3.0 + 0.03 * ((7 * n) % 11 - 5) / 5 + (high - 3.0) * (n >= ONSET) for n in range(1, until + 1)]
    return [
        Sample(attempt=1, global_step=n, time_unix_s=float(n), loss=loss, step_time_s=18.0)
        for n, loss in enumerate(losses, 1)
    ]


def run(until: int, *saved: int) -> RunState:
    checkpoints = tuple(Checkpoint(tag=f"global_step{n}", global_step=n, complete=True) for n in saved)
    return RunState(now_unix_s=0.0, checkpoints=checkpoints, last_step=until, step_time_s=18.0, world_size=8)


@given(sizes, flags, flags, st.lists(ages, max_size=8), ages, ages)
def test_the_longer_a_spike_lasts_the_less_likely_it_comes_back(
    size: float, agrees: bool, falling: bool, own: list[int], one: int, other: int
) -> None:
    shares = []
    for age in sorted((one, other)):
        moment = replace(
            MOMENT, step=1000 + age, size=size, agrees=agrees, falling=falling, own_ages=tuple(map(float, own))
        )
        shares.append(odds.never if (odds := odds_of(moment)) is not None else None)
    assert None in shares or shares[0] <= shares[1]  # type: ignore[operator]


@given(sizes, flags, flags, ages, st.floats(0, 5000), st.floats(0, 5000))
def test_who_waits_with_few_steps_to_repeat_waits_with_more(
    size: float, agrees: bool, falling: bool, age: int, few: float, more: float
) -> None:
    moment = replace(MOMENT, step=1000 + age, size=size, agrees=agrees, falling=falling)
    odds = odds_of(moment)
    waits = [not priced(moment, odds, age + lost).rollback_is_cheaper for lost in sorted((few, few + more))]
    assert waits[0] <= waits[1]


@given(st.integers(0, 5), st.integers(0, 5))
def test_spikes_of_this_run_that_came_back_later_make_waiting_cheaper(few: int, more: int) -> None:
    found = [
        priced(moment, odds_of(moment), 700.0).wait_steps
        for n in (few, few + more)
        for moment in [replace(MOMENT, own_ages=(120.0,) * n)]
    ]
    assert None not in found
    assert found == sorted(found, reverse=True)  # type: ignore[type-var]


def test_a_spike_of_this_run_that_came_back_sooner_says_nothing_of_a_longer_one() -> None:
    assert odds_of(replace(MOMENT, own_ages=(99.0,) * 5)) == odds_of(MOMENT)
    known = odds_of(replace(MOMENT, own_ages=(101.0,)))
    alone = odds_of(MOMENT)
    assert known is not None
    assert alone is not None
    assert known.never == alone.never / 2


def test_the_table_holds_shares_of_every_kind_and_age() -> None:
    assert set(POOLED) == {(size, how) for size in range(len(SIZES) + 1) for how in ("falling", "agreed", "alone")}
    for cells in POOLED.values():
        assert [len(cell.healed_by) for cell in cells] == list(range(len(AGES) - 1, -1, -1))
        assert all(0 <= cell.never <= 1 and cell.never + sum(cell.healed_by) <= 1.01 for cell in cells)
        assert [cell.never for cell in cells] == sorted(cell.never for cell in cells)


@pytest.mark.parametrize(
    ("changed", "over"),
    [
        ({}, True),
        ({"stands": False}, False),
        ({"size": 0.5, "agrees": True}, False),
    ],
    ids=["cheaper", "no evidence", "unknown"],
)
def test_a_priced_wait_ends_on_evidence_and_a_known_price(changed: dict[str, float | bool], over: bool) -> None:
    moment = replace(MOMENT, **changed)  # type: ignore[arg-type]
    assert is_over(moment, priced(moment, odds_of(moment), 1.0)) is over


def test_an_unknown_price_is_said_and_never_acts() -> None:
    moment = replace(MOMENT, size=0.5, agrees=True)
    waiting = priced(moment, odds_of(moment), 1.0)
    assert (waiting.never_share, waiting.wait_steps, waiting.rollback_is_cheaper) == (None, None, None)


@pytest.mark.parametrize(
    ("until", "agreed", "restart_s", "patient", "kind"),
    [
        (350, False, 0.0, "spike", "diverged"),
        (350, False, 36_000.0, "spike", "spike"),
        (310, False, 0.0, "spike", "spike"),
        (335, True, 0.0, "spike", "diverged"),
        (355, True, 36_000.0, "diverged", "diverged"),
    ],
    ids=["few steps to repeat", "a dear restart", "too early", "another signal agrees", "the patience is over"],
)
def test_the_price_ends_the_wait_before_the_patience_and_never_draws_it_out(
    until: int, agreed: bool, restart_s: float, patient: str, kind: str
) -> None:
    readings = [replace(s, grad_norm=s.loss if agreed else None) for s in samples(until)]
    series = Series(Thresholds(), readings)
    judged_so, known = judge_past(series, None), run(until, 285)
    assert judged_so.kind == patient
    assert priced_verdict(judged_so, series, known, Policy(restart_s=restart_s)) == judged_so
    decided = priced_verdict(judged_so, series, known, Policy(wait="priced", restart_s=restart_s))
    assert (decided.kind, decided.onset_range) == (kind, (ONSET - 1, ONSET))
    assert ("A rollback now costs" in decided.reason) == (kind != patient)


def test_a_spike_that_came_back_has_no_price() -> None:
    well = [replace(s, global_step=s.global_step + 320) for s in samples(100)]
    series = Series(Thresholds(), [*samples(320), *well])
    assert moment_of(series) is None
    assert price_of_waiting(series, run(420, 200), Policy()) is None


def test_with_nan_in_the_weights_waiting_has_no_price() -> None:
    ill = [replace(s, adam_variance_l1=math.nan if s.global_step >= 330 else 1.0) for s in samples(340)]
    series = Series(Thresholds(), ill)
    assert moment_of(series) is not None  # a spike is open, too
    told = price_of_waiting(series, run(340, 285), Policy())
    assert told is not None
    assert (told.wait_steps, told.never_share, told.rollback_is_cheaper, told.act_steps) == (None, 1.0, True, 155)
    assert "in vain" in told.reason
    assert "155 steps (6.2 GPU-hours)" in told.reason


def spiking(folder: Path, wait: str) -> Config:
    """A run in a spike of 50 steps, with real checkpoints."""
    (folder / "a.toml").write_text(
        '[run]\nname = "a"\ncheckpoints = "c"\nstate_dir = "s"\n[launcher]\ncommand = ["true"]\n'
        f'[policy]\nwait = "{wait}"\nrestart_s = 0\n'
    )
    (folder / "s" / "attempts").mkdir(parents=True)
    (folder / "c").mkdir()
    for step in (200, 285):
        deepspeed(folder / "c", step)
    (folder / "c" / "latest").write_text("global_step285")
    records: list[Record] = [RunStarted(attempt=1, time_unix_s=0.0, world_size=8), *samples(350)]
    records += [CheckpointSaved(attempt=1, global_step=285, time_unix_s=285.0, tag="global_step285")]
    (folder / "s" / "attempts" / "0001.jsonl").write_text("".join(encode(r) + "\n" for r in records))
    return load_config(folder / "a.toml")


def test_status_the_dry_run_and_the_page_tell_the_price(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = spiking(tmp_path, "patience")
    assert status.show(config, as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    waiting = told["waiting"]
    assert told["verdict"] == "spike"
    assert waiting["act_steps"] == 65
    assert waiting["act_gpu_hours"] == pytest.approx(65 * 18 * 8 / 3600)
    assert waiting["rollback_is_cheaper"] is True
    status.show(config, as_json=False)
    assert f"waiting: {waiting['reason']}" in capsys.readouterr().out
    for path in tmp_path.rglob("*"):
        os.utime(path, (1e9, 1e9))  # no trainer writes here any more
    named = {"run": str(tmp_path / "a.toml"), "dry_run": True}
    assert rollback.rollback("global_step200", **named, as_json=True) == 0
    of_plan = json.loads(capsys.readouterr().out)["waiting"]
    assert of_plan["act_steps"] == 150
    assert rollback.rollback("global_step200", **named) == 0
    assert of_plan["reason"] in capsys.readouterr().out
    settings = PageSettings(run="a", thresholds=config.judge, policy=config.policy)
    standing, _ = judged(read_past(source_of_run(config), ()), settings)
    assert standing["waiting"] == waiting["reason"]


def test_a_priced_wait_is_the_verdict_that_every_command_sees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status.show(spiking(tmp_path, "priced"), as_json=True) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["onset_range"]) == ("diverged", [ONSET - 1, ONSET])
    assert "rolling back now is cheaper" in told["reason"]
