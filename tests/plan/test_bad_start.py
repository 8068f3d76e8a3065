"""What follows from a bad start: a page, a stop where that is wanted, and targets that pass its saves over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sentinel.plan.alerts.alerts import alerts_of
from sentinel.plan.choose.policy import Policy
from sentinel.plan.observation import JobsSeen
from sentinel.plan.outcome import Memory
from sentinel.plan.readings_seen import SpoiltSpan
from sentinel.plan.restart.actions import StopJob
from sentinel.plan.starts.audit import Continued, StartAudit
from sentinel.plan.turn import decide
from tests.plan.looks import DOWN, HEALTHY, look
from tests.support.recovery_plans import POLICY, incident, run, target_of

BAD = StartAudit(attempt=1, resumed_from=10, verdict=Continued.NO, reason="scheduler lost: …", fault="scheduler lost")
STOPS = Policy(mode="act", stop_bad_start=True, restart_on_crash=True)


@pytest.mark.parametrize(
    ("found", "policy", "seen", "stops"),
    [
        (BAD, STOPS, {}, True),
        (BAD, replace(STOPS, stop_bad_start=False), {}, False),
        (BAD, replace(STOPS, mode="approve"), {}, False),
        (BAD, STOPS, {"paused": True}, False),
        (BAD, STOPS, {"jobs": JobsSeen(known=False, why_unknown="squeue timed out")}, False),
        (BAD, STOPS, {"incidents": None}, False),
        (BAD, STOPS, {"jobs": JobsSeen(), "verdict": DOWN}, False),  # and it is not started again
        (replace(BAD, settled=False), STOPS, {}, False),
        (replace(BAD, verdict=Continued.UNKNOWN, fault=None), STOPS, {}, False),
        (replace(BAD, verdict=Continued.YES, fault=None), STOPS, {}, False),
    ],
)
def test_a_bad_start_is_stopped_only_where_that_is_wanted_and_nothing_is_unknown(
    found: StartAudit, policy: Policy, seen: dict[str, Any], stops: bool
) -> None:
    turn = decide(look(start=found, **{"verdict": HEALTHY, **seen}), policy, Memory())
    assert [type(action) for action in turn.actions] == [StopJob] * stops
    assert [r.kind for r in turn.records][:1] == ["start_audited"] * found.settled


@pytest.mark.parametrize(("fault", "severity"), [("scheduler lost", "warning"), ("wrong checkpoint", "critical")])
def test_the_page_is_critical_where_the_saves_are_spoilt(fault: str, severity: str) -> None:
    seen = look(start=replace(BAD, fault=fault))
    (alert,) = [a for a in alerts_of(seen, Policy(), None) if a.topic == "bad_start"]
    assert (alert.reason, alert.severity) == (BAD.reason, severity)


def test_a_target_passes_over_what_a_bad_start_has_saved() -> None:
    spoilt = SpoiltSpan(first_step=21, last_step=30, reason="attempt 2 did not continue the run")
    opened, rung = incident(), POLICY.ladder_for(None)[0]
    without = target_of(opened, rung, run(), POLICY)
    target = target_of(opened, rung, run(spoilt_spans=(spoilt,)), POLICY)
    assert (without.global_step, target.global_step) == (30, 20)
    assert "global_step30 is not certified: attempt 2 did not continue the run" in target.reason
