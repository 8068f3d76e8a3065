"""The account of a lineage's data: what is counted, what is named, and that nothing unknown is a fault."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.data_account import account_of_chain, looks
from benchmarks.data_chains.drawn import FAULTS, Shape, chain
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import Context, VerdictKind, judge
from sentinel.plan.account.coverage import MOST_INTERVALS, Positions
from sentinel.plan.alerts.alerts import alerts_of
from sentinel.plan.choose.policy import Policy
from sentinel.plan.outcome import Memory
from sentinel.plan.turn import decide
from sentinel.vocabulary.sample import Record, RunStarted, Sample
from tests.plan.looks import DOWN, history, look
from tests.tiers import full

BATCH = 8


def samples(attempt: int, first: int, last: int, *, data: int = 0, **of_step: Any) -> list[Sample]:
    """Steps first..last; each has the batch of the step that is `data` later."""
    return [
        Sample(
            attempt=attempt,
            global_step=step,
            time_unix_s=float(step),
            loss=3.0,
            global_batch_samples=BATCH,
            batch_digest=7919 * (step + data),
            **{name: of(step) for name, of in of_step.items()},
        )
        for step in range(first, last + 1)
    ]


def started(attempt: int, at: int = 0, **told: Any) -> RunStarted:
    return RunStarted(
        attempt=attempt, time_unix_s=0.0, resumed_from=at or None, parent_attempt=attempt - 1 or None, **told
    )


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), min_size=1, max_size=25))
@settings(deadline=None)
def test_positions_are_counted_as_one_by_one(steps: list[tuple[int, int]]) -> None:
    found, times, fresh_late, highest = Positions(), dict[int, int](), 0, steps[0][0]
    for begin, size in steps:
        found.consumed(begin, begin + size)
        new = [n for n in range(begin, begin + size) if n not in times]
        fresh_late += sum(n < highest for n in new)
        for n in range(begin, begin + size):
            times[n] = times.get(n, 0) + 1
        highest = max(highest, begin + size)
    assert found.once == sum(count == 1 for count in times.values())
    assert found.again == sum(count > 1 for count in times.values())
    assert found.out_of_order == fresh_late
    assert found.gaps == highest - steps[0][0] - len(times)


def test_a_million_steps_in_order_are_one_interval_and_scattered_ones_are_given_up() -> None:
    found = Positions()
    for step in range(10_000):
        found.consumed(step * BATCH, (step + 1) * BATCH)
    assert len(found._seen.ends) == 1
    for step in range(MOST_INTERVALS + 1):
        found.consumed(10**6 + 3 * step, 10**6 + 3 * step + 1)
    assert found.scattered


@pytest.mark.parametrize("tens", [0, *full(range(1, 10))])
def test_a_hundred_clean_chains_of_five_resumes_raise_no_alarm(tens: int) -> None:
    for seed in range(10 * tens, 10 * tens + 10):
        made = chain(seed)
        for account in looks(made):
            assert account.closes, f"seed {seed}: {account.why}"
        assert not account.samples.again, f"seed {seed}"
        assert not account.samples.out_of_order, f"seed {seed}"


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named_at_its_attempt_where_the_trainer_reports_all(fault: str) -> None:
    drawn = Shape.of(np.random.default_rng(3), 3)
    shape = replace(
        drawn, samples=233, batch=4, ramp_at=10**9, reports_batches=True, position="order", epoch="fraction", loses=0.0
    )
    made = chain(3, fault=fault, shape=shape)
    named = {one.attempt for account in looks(made) for one in account.faults}
    assert made.faulty == 3
    assert named == {3}


def test_what_a_rollback_skips_is_left_out_and_not_lost() -> None:
    line: list[Record] = [started(1), *samples(1, 1, 40, consumed_samples=lambda s: s * BATCH)]
    told = started(2, 30, skipped_samples=80, first_sample_index=320)
    line += [told, *samples(2, 31, 60, data=10, consumed_samples=lambda s: s * BATCH + 80)]
    account = account_of_chain(line)
    assert account.closes
    assert (account.samples.once, account.samples.never, account.left_out) == (60 * BATCH, 0, 80)
    without = [replace(told, skipped_samples=None, first_sample_index=None) if one is told else one for one in line]
    found = account_of_chain(without)
    assert [(one.attempt, one.first_step) for one in found.faults] == [(2, 31)]
    assert found.faults[0].what.startswith("samples skipped: 80 samples")
    assert found.samples.never == 80


def test_a_loader_that_begins_again_while_the_trainer_counts_on_has_fed_samples_again() -> None:
    line: list[Record] = [started(1), *samples(1, 1, 40, consumed_samples=lambda s: s * BATCH)]
    line += [started(2, 30), *samples(2, 31, 60, data=-30, consumed_samples=lambda s: s * BATCH)]
    account = account_of_chain(line)
    assert [one.what.split(":")[0] for one in account.faults] == ["data from epoch start"]
    assert (account.samples.once, account.samples.again) == (30 * BATCH, 30 * BATCH)
    assert account.positions is not None
    assert account.positions.again == 0


def test_a_rollback_leaves_what_it_took_back_out_of_the_account() -> None:
    line: list[Record] = [started(1), *samples(1, 1, 50, consumed_samples=lambda s: s * BATCH)]
    line += [started(2, 40), *samples(2, 41, 70, consumed_samples=lambda s: s * BATCH)]
    again = replace(started(3, 20), parent_attempt=1)
    line += [again, *samples(3, 21, 45, consumed_samples=lambda s: s * BATCH)]
    account = account_of_chain(line)
    assert (account.attempts, account.steps, account.samples.once, account.samples.again) == ((1, 3), 45, 360, 0)
    assert account.closes


@pytest.mark.parametrize("reported", [{}, {"consumed_samples": lambda s: 5 * s}])
def test_what_is_not_reported_is_unknown_and_no_fault(reported: dict[str, Any]) -> None:
    line: list[Record] = [started(1), *samples(1, 1, 40, **reported)]
    line += [started(2, 30), *samples(2, 31, 60, **reported)]
    bare = [replace(one, batch_digest=None) if isinstance(one, Sample) else one for one in line]
    account = account_of_chain(bare)
    assert account.closes
    counts = (account.samples.once, account.samples.again, account.samples.never)
    assert counts == ((300, 0, 0) if reported else (None, None, None))
    assert any("digests are not reported" in why for why in account.unknown)


def test_the_next_epoch_in_the_same_order_is_not_known_from_a_replay_and_is_no_fault() -> None:
    line: list[Record] = [started(1), *samples(1, 1, 30)]
    line += [started(2, 30), *samples(2, 31, 60, data=-30)]
    account = account_of_chain(line)
    assert (account.closes, account.samples.again) == (True, None)
    assert "whether that was in another epoch is not known" in " ".join(account.unknown)
    known = [replace(one, epoch_samples=30 * BATCH) if isinstance(one, RunStarted) else one for one in line]
    positioned = [replace(s, consumed_samples=s.global_step * BATCH) if isinstance(s, Sample) else s for s in known]
    assert (account_of_chain(positioned).closes, account_of_chain(positioned).samples.again) == (True, 0)


@pytest.mark.parametrize("first", [31, 60])
def test_a_run_whose_last_loss_is_nan_does_not_close(first: int) -> None:
    line = samples(1, 1, 60)
    ill = [replace(s, loss=float("nan")) if s.global_step >= first else s for s in line]
    assert account_of_chain([started(1), *line]).closes
    assert account_of_chain([started(1), *ill]).why.endswith("the last loss, of step 60, is nan")


def test_a_planned_end_is_finished_only_where_the_account_closes() -> None:
    ended = Context(now_unix_s=0.0, job_alive=False, attempt=2, finished_reason="finished")
    well = judge(Series(Thresholds()), ended, Thresholds())
    ill = judge(Series(Thresholds()), replace(ended, unclosed="the account does not close: …"), Thresholds())
    assert (well.kind, ill.kind) == (VerdictKind.FINISHED, VerdictKind.DOWN)
    assert ill.reason == "attempt 2 reported its planned end, and the account does not close: …"


@pytest.mark.parametrize("mode", ["observe", "act"])
def test_such_an_end_is_paged_and_the_job_is_not_started_again(mode: Any) -> None:
    made = history(ended="finished")
    policy = Policy(mode=mode, restart_on_crash=True)
    seen = look(history=made, verdict=DOWN)
    assert seen.readings.journals[-1].end_reason == "finished"
    turn = decide(seen, policy, Memory())
    assert (turn.actions, turn.outcome) == ((), None)
    (alert,) = [one for one in alerts_of(seen, policy, turn) if one.topic == "down"]
    assert "it is not started again" in (alert.reason or "")
