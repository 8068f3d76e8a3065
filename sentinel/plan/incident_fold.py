"""fold(events) -> incidents: what the incident log's events add up to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sentinel.plan.baseline import Baseline
from sentinel.plan.incident import Incident, Proposal, Rollback, Skip, Wait
from sentinel.plan.proof_value import PROOFS, proof_of
from sentinel.vocabulary.errors import IncidentLogError, LineError, SentinelError
from sentinel.vocabulary.names import checked_name, why_not_a_name
from sentinel.vocabulary.numbers import dump_json, seconds_problem, to_number
from sentinel.vocabulary.overrides import Overrides, decode_overrides

__all__ = ["checked_event", "fold"]

_UPON_FILES = frozenset({"quarantine_checkpoints", "point_latest", "cut_tensorboard", "write_overrides"})


def checked_event(event: dict[str, Any]) -> dict[str, Any]:
    """What every event has, and every reader of the log relies on. LineError says what is wrong."""
    if not isinstance(event.get("event"), str):
        raise LineError(f"event should be a string, not {type(event.get('event')).__name__}")
    if event.get("incident") is not None and (why := _not_an_id(event["incident"])) is not None:
        raise LineError(f"incident {why}")
    time_unix_s = to_number(event.get("time_unix_s"), "time_unix_s")
    if time_unix_s is None or math.isnan(time_unix_s):
        raise LineError("time_unix_s is missing")
    if (why := seconds_problem(time_unix_s)) is not None:
        raise LineError(f"time_unix_s {why}")
    return event


def _not_an_id(incident: object) -> str | None:
    return why_not_a_name(incident) if isinstance(incident, str) else "should be a string"


def fold(events: Iterable[Mapping[str, Any]]) -> tuple[Incident, ...]:
    """Where each incident stands, in the order they were opened. IncidentLogError for an event that makes no sense."""
    incidents: dict[str, Incident] = {}
    for number, event in enumerate(events, 1):
        try:
            _take(incidents, event)
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, SentinelError) as error:
            raise IncidentLogError(f"event {number} of the incident log makes no sense: {error!r}") from error
    return tuple(incidents.values())


def _take(incidents: dict[str, Incident], event: Mapping[str, Any]) -> None:
    kind = event["event"]
    if kind == "opened":
        incidents[checked_name(event["incident"], "incident")] = _opened(event)
        return
    if event["incident"] is None:  # a restart after a crash: no incident's story
        return
    incident = incidents[event["incident"]]
    if kind in ("intent", "done") and event["action"]["kind"] == "undo":
        _undone(incident, event)
        return
    _of_incident(incident, kind, event)
    if kind == "closed":
        for other in incidents.values():
            if other.ignored in {r.id for r in incident.rollbacks} and other.status != "closed":
                _of_incident(other, kind, event)
    if incident.rollbacks:
        _of_rollback(incident, incident.rollbacks[-1], kind, event)


def _of_incident(incident: Incident, kind: str, event: Mapping[str, Any]) -> None:
    time_unix_s = float(event["time_unix_s"])
    if kind == "decided":
        incident.rollbacks.append(_decided(event, time_unix_s))
        incident.status, incident.proposal = "decided", None
    elif kind == "proposed":
        incident.proposal = Proposal(digest=event["digest"], proposed_unix_s=time_unix_s)
    elif kind == "expired" and incident.proposal is not None:
        incident.proposal = replace(incident.proposal, expired=True)
    elif kind == "waiting":
        steps = {"from_step": event["from_step"], "until_step": event["until_step"]}
        incident.waits.append(Wait(rung=event["rung"], hypothesis=event["hypothesis"], **steps))
    elif kind == "wait_over":
        incident.waits[-1] = replace(incident.waits[-1], failed=event["reason"])
    elif kind == "rung_skipped":
        incident.skips.append(Skip(rung=event["rung"], hypothesis=event["hypothesis"], reason=event["reason"]))
    elif kind == "shadow":
        incident.shadows += 1
    elif kind == "stopped":
        incident.status, incident.note = "stopped", event["reason"]
    elif kind == "closed":
        incident.status, incident.outcome, incident.note = "closed", event["outcome"], event["reason"]
        incident.closed_unix_s = time_unix_s
        incident.undoing = None
    elif kind == "baseline_completed":
        incident.baseline = Baseline.from_json(event["baseline"])
    elif kind == "purged":
        incident.purged = True


def _of_rollback(incident: Incident, rollback: Rollback, kind: str, event: Mapping[str, Any]) -> None:
    if kind == "intent":
        _intended(rollback, event)
    elif kind == "applied":
        rollback.applied = True
        incident.status = "applied"
    elif kind in PROOFS:
        rollback.attempt = event["attempt"]
        rollback.proof, rollback.doubts = proof_of(event)
        incident.status = incident.status if kind == "not_proved" else "holding"
    elif kind == "rung_failed":
        rollback.failed = event["reason"]
        incident.status = "open"


def _undone(incident: Incident, event: Mapping[str, Any]) -> None:
    """An undo begins, or has been done: of the whole incident, or of one rollback."""
    if event["event"] == "intent":
        incident.undoing = event["rollback"] or incident.id
        return
    for rollback in incident.rollbacks:
        rollback.taken_back |= event["rollback"] in (None, rollback.id)


def _intended(rollback: Rollback, event: Mapping[str, Any]) -> None:
    action, time_unix_s = event["action"], float(event["time_unix_s"])
    if action["kind"] in _UPON_FILES:
        rollback.begun, rollback.taken_back = True, False
    if action["kind"] == "start_job":
        rollback.starts += 1
        rollback.last_start_unix_s = time_unix_s
        rollback.last_start_attempt = (event["newest_attempt"] or 0) if "newest_attempt" in event else None
    elif action["kind"] == "quarantine_checkpoints":
        tags = [checked_name(tag, "tags") for tag in action["tags"]]
        rollback.moved_tags = (*rollback.moved_tags, *tags)


def _opened(event: Mapping[str, Any]) -> Incident:
    onset = event["onset_range"]
    return Incident(
        id=event["incident"],
        opened_unix_s=float(event["time_unix_s"]),
        attempt=event["attempt"],
        onset_range=None if onset is None else (onset[0], onset[1]),
        alarm_step=event["alarm_step"],
        onset_tokens=event["onset_tokens"],
        onset_samples=event.get("onset_samples"),
        batch_samples=event.get("batch_samples"),
        best_mean=to_number(event["best_mean"], "best_mean"),
        reason=event["reason"],
        led_by=tuple(event["led_by"]),
        baseline=Baseline.from_json(event["baseline"]),
        ignored=event.get("ignored"),
        status="stopped" if event.get("ignored") else "open",
        note=event["reason"] if event.get("ignored") else None,
        overrides_before=_overrides(event.get("overrides")),
    )


def _overrides(document: Any) -> Overrides | None:
    return None if document is None else decode_overrides(dump_json(document))


def _decided(event: Mapping[str, Any], time_unix_s: float) -> Rollback:
    return Rollback(
        id=checked_name(event["rollback"], "rollback"),
        rung=event["rung"],
        hypothesis=event["hypothesis"],
        target_tag=None if event["target"]["tag"] is None else checked_name(event["target"]["tag"], "target"),
        target_step=event["target"]["global_step"],
        overrides=decode_overrides(dump_json(event["overrides"])),
        changes=tuple(event["changes"]),
        decided_unix_s=time_unix_s,
        lost_steps=event["lost_steps"],
        lost_gpu_hours=event.get("lost_gpu_hours"),
        unconfirmed=tuple(event.get("unconfirmed", ())),
        in_script=event.get("in_script", False),
        restart=event.get("restart", True),
    )
