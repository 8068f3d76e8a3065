"""When the proof of a restart is settled: after its first steps, or once none is to be expected."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from sentinel.act.past import PastReader
from sentinel.judge.history import History
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.plan.choose.policy import Policy
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.observation import JobsSeen, WriterSeen
from sentinel.plan.outcome import Memory, Outcome
from sentinel.plan.turn import decide
from sentinel.vocabulary.overrides import Free, TrainingSettings
from sentinel.vocabulary.sample import RunFinished, RunStarted, Sample
from tests.support.facts import look_of
from tests.support.recovery_plans import decision, incident, run

MADE = decision()
LOWER = replace(
    MADE,
    overrides=replace(MADE.overrides, standing=TrainingSettings(free=Free(options=("--lr=1e-5",))), once=None),
    starts=1,
    last_start_unix_s=1990.0,
)
OURS = JobsSeen(writers=(WriterSeen(id="process 43", rollback=LOWER.id),))


def history(steps: int, *, lr: float = 9e-4, ended: bool = False, at: float = 1995.0) -> History:
    """An attempt that diverged, and so many steps of the one that was started for the rollback."""
    told = History()
    told.push(RunStarted(attempt=1, time_unix_s=1.0, settings={"lr": 1e-3}))
    for step in range(1, 60):
        told.push(Sample(attempt=1, global_step=step, time_unix_s=float(step), loss=3.0, lr=9e-4))
    anchor = LOWER.overrides.anchor
    started = RunStarted(attempt=2, time_unix_s=at, resumed_from=anchor.global_step, rollback=LOWER.id)
    told.push(replace(started, first_sample_index=anchor.consumed_samples))
    for step in range(1, steps + 1):
        at_step = anchor.global_step + step
        told.push(Sample(attempt=2, global_step=at_step, time_unix_s=1996.0 + step, loss=3.0, lr=lr))
    if ended:
        told.push(RunFinished(attempt=2, global_step=anchor.global_step + steps, time_unix_s=1999.0, reason="sigterm"))
    return told


def settled(seen: History, *, jobs: JobsSeen = OURS, now: float = 2000.0) -> tuple[Outcome | None, list[IncidentEvent]]:
    """What one turn writes down."""
    applied = incident(status="applied", rollbacks=[LOWER])
    state = run(now_unix_s=now, incidents=(applied,), jobs=jobs)
    state = state.changed(latest_tag=LOWER.target_tag, overrides=LOWER.overrides, tensorboard_past=None)
    policy = Policy(mode="act", confirm_within_s=60, on_contradicted="stop")
    found = look_of(seen, Series(Thresholds()), state)
    turn = decide(PastReader().read(found, policy, lambda _: None).facts, policy, Memory())
    assert not turn.actions
    return turn.outcome, list(turn.records)


def test_before_the_third_step_nothing_is_settled() -> None:
    for steps in (0, 1, 2):
        assert settled(history(steps)) == (None, [])
    done, events = settled(history(3))
    assert (done, [e.kind for e in events]) == (Outcome.PERSON_NEEDED, ["not_proved", "opened", "stopped"])
    assert "--lr (lr) should be 1e-05, and attempt 2 reports 0.0009 (the lr of step" in events[-1].reason
    assert events[1].ignored == LOWER.id


@pytest.mark.parametrize(
    ("seen", "more"),
    [
        (history(0, ended=True), {}),
        (history(0), {"jobs": JobsSeen()}),
        (history(0), {"now": 2061.0}),
        (history(0, at=math.nan), {"now": 2061.0}),  # a log without a clock
        (history(0, at=3e8), {"now": 2061.0}),
    ],
    ids=["it has ended", "its job is gone", "it makes no step in time", "it has no clock", "its clock is ahead"],
)
def test_where_no_step_is_to_be_expected_the_proof_is_settled_without(seen: History, more: dict[str, Any]) -> None:
    done, events = settled(seen, **more)
    assert (done, [e.kind for e in events]) == (None, ["not_verified"])


def test_an_lr_that_fell_with_its_peak_is_confirmed_by_the_same_steps_before() -> None:
    done, (event,) = settled(history(3, lr=9e-6))
    assert (done, event.kind) == (None, "proved")
