"""What of the incident log is marked on a chart."""

from __future__ import annotations

from typing import Any

from sentinel.plan.alerts.annotations import Annotation, marks, onset_steps
from tests.support.log_lines import logged

OPENED: dict[str, Any] = {
    "event": "opened",
    "incident": "incident-1",
    "time_unix_s": 150.0,
    "attempt": 1,
    "onset_range": [40, 44],
    "alarm_step": 60,
    "reason": "the loss does not come back",
    "led_by": ["adam_variance_l1"],
}
DECIDED = {"event": "decided", "incident": "incident-1", "rollback": "incident-1-r1", "time_unix_s": 160.0}
APPLIED = {"event": "applied", "incident": "incident-1", "rollback": "incident-1-r1", "time_unix_s": 170.0}


def _marks(*lines: dict[str, Any], when: dict[tuple[int, int], float] | None = None) -> tuple[Annotation, ...]:
    return marks("tr8", logged(*lines), when or {})


def _closed(outcome: str) -> dict[str, Any]:
    return {"event": "closed", "incident": "incident-1", "time_unix_s": 300.0, "outcome": outcome, "reason": "r"}


def _kinds(
    events: list[dict[str, Any]], when: dict[tuple[int, int], float] | None = None
) -> dict[str, tuple[float, float]]:
    return {mark.kind: (mark.time_unix_s, mark.end_unix_s) for mark in _marks(*events, when=when)}


def test_an_onset_is_where_its_steps_were_and_the_alarm_is_later() -> None:
    assert onset_steps(logged(OPENED)) == {(1, 40), (1, 44)}
    assert _kinds([OPENED], {(1, 40): 100.0, (1, 44): 110.0}) == {"onset": (100.0, 110.0), "alarm": (150.0, 150.0)}


def test_an_onset_whose_time_is_not_known_makes_no_mark() -> None:
    assert _kinds([OPENED]) == {"alarm": (150.0, 150.0)}
    assert _kinds([OPENED | {"onset_range": None}], {(1, 40): 1.0}) == {"alarm": (150.0, 150.0)}
    assert _kinds([OPENED], {(2, 40): 1.0}) == {"alarm": (150.0, 150.0)}


def test_a_rollback_reaches_from_its_decision_until_it_is_applied_under_one_key() -> None:
    (decided,) = _marks(DECIDED)
    (applied,) = _marks(DECIDED, APPLIED)
    assert decided.key == applied.key == "incident-1-r1/rollback"
    assert decided.text == applied.text
    assert (applied.time_unix_s, applied.end_unix_s) == (160.0, 170.0)


def test_a_recovery_reaches_from_the_restart_that_helped_to_the_closing() -> None:
    assert _kinds([OPENED, DECIDED, APPLIED, _closed("recovered")])["recovery"] == (170.0, 300.0)
    assert "recovery" not in _kinds([OPENED, DECIDED, APPLIED, _closed("undone")])
    assert _kinds([_closed("healed")]) == {"closed": (300.0, 300.0)}


def test_a_mark_says_run_and_incident_and_what_it_was() -> None:
    (mark,) = _marks(OPENED)
    assert mark.tags == ("sentinel", "run:tr8", "incident:incident-1", "alarm", "key:incident-1/alarm")
    assert mark.text.startswith("incident-1: opened, onset at step 40 to 44")


def test_what_belongs_to_no_incident_makes_no_mark() -> None:
    restart = {"event": "intent", "incident": None, "time_unix_s": 1.0, "action": {"kind": "start_job"}}
    shadow = {"event": "shadow", "incident": "incident-1", "time_unix_s": 1.0, "refusal": "no"}
    assert _marks(restart, shadow) == ()


def test_keys_are_each_ones_own() -> None:
    second = [event | {"incident": "incident-2"} for event in (OPENED, _closed("recovered"))]
    keys = [mark.key for mark in _marks(OPENED, DECIDED, _closed("recovered"), *second, when={(1, 40): 1.0})]
    assert len(keys) == len(set(keys))
