"""A divergence soon after a recovery goes on with the ladder of the incident before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.policy import Policy
from sentinel.plan.incident.events import closed, fold, opened
from sentinel.plan.incident.incident import Incident
from sentinel.plan.incident.log_events import Opened
from sentinel.plan.incident.log_lines import event_of
from sentinel.plan.incident.other_rungs import Skip, Wait
from sentinel.plan.outcome import Memory
from sentinel.plan.restart.decision import rungs_left
from sentinel.plan.turn import decide
from tests.plan.looks import look
from tests.support.recovery_plans import BASELINE, DIVERGED, decision, incident

LADDER = tuple(Rung(name=name, hypothesis="…", reseed=True) for name in "abc")
POLICY = Policy(mode="act", ladder=LADDER, hold_steps=500)
WAITED, SKIPPED = Wait(rung="b", hypothesis="…", from_step=1, until_step=2), Skip(rung="c", hypothesis="…", reason="…")


def before(*rungs: str, closed_step: int | None = 600, **more: Any) -> Incident:
    rollbacks = [replace(decision(), rung=name) for name in rungs]
    ended = {"status": "closed", "outcome": "recovered", "closed_step": closed_step}
    return incident(rollbacks=rollbacks, **ended, **more)


@pytest.mark.parametrize(
    ("onset", "earlier", "tried"),
    [
        (1100, before("a"), ("a",)),
        (1101, before("a"), ()),
        (700, before("a", closed_step=None), ()),  # it healed, was undone, or its log is older
        (700, before("b", tried_before=("a",)), ("a", "b")),
        (700, before("a", waits=[WAITED], skips=[SKIPPED]), ("a",)),
    ],
)
def test_the_rungs_of_a_recovery_that_did_not_hold_are_recorded(
    onset: int, earlier: Incident, tried: tuple[str, ...]
) -> None:
    verdict = replace(DIVERGED, onset_range=(onset, onset + 2), alarm_step=onset + 9)
    (event,) = decide(look(verdict=verdict, incidents=(earlier,)), POLICY, Memory()).records
    assert isinstance(event, Opened)
    assert event.tried_before == tried


@pytest.mark.parametrize(
    ("tried_before", "tried", "left"),
    [
        ((), "", "abc"),
        (("a",), "", "bc"),
        (("a",), "bc", "a"),  # then those of before once more, as far as the budget reaches
        (("a", "b", "c"), "", "abc"),
        (("a", "b", "c"), "a", "bc"),
        ((), "abc", ""),
    ],
)
def test_rungs_of_before_are_the_last_that_are_left(tried_before: tuple[str, ...], tried: str, left: str) -> None:
    found = before(*tried, tried_before=tried_before)
    assert "".join(rung.name for rung in rungs_left(found, POLICY)) == left


def test_both_are_read_back_from_the_log_and_left_out_where_they_say_nothing() -> None:
    again = opened(2, 1, BASELINE, None, reason="…", tried_before=("a",))
    events = (opened(1, 1, BASELINE, None, reason="…"), closed("incident-1", "recovered", "…", 600), again)
    first, second = fold(event_of({**event.to_json(), "time_unix_s": 1.0}) for event in events)
    assert (first.closed_step, second.tried_before) == (600, ("a",))
    assert "tried_before" not in events[0].to_json()
    assert "judged_step" not in closed("incident-1", "undone", "…").to_json()
