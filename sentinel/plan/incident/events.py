"""The incident log's events, as they are written, and `fold`, which adds them up to incidents.

One JSON object per line, each with `event`, `incident` and `time_unix_s` (added when it is written).

    opened      a divergence was found, a person asked for a rollback, or a rollback did not take effect (`ignored`)
    baseline_completed      what its job script asks for, where Slurm did not answer when it was opened (baseline)
    shadow      what would have been done, in mode observe (rollback, rung, target, changes)
    proposed    mode approve: what a person is asked to agree to, with its digest
    approved, expired       their yes (by), or that it did not come in time (digest)
    waiting, wait_over      a rung that only watches (rung, from_step, until_step), and that it has not healed (reason)
    rung_skipped            a rung that can't be carried out (rung, hypothesis, reason): the next one is tried
    bisect_begun, bisect_ended      a rung asks for the cause (rung, newest_attempt); what was found (reason, gpu_hours)
    decided     a rung, a target and the overrides: what the coming intents carry out
    intent, done, failed    around each action; `incident` is null for a restart after a crash, `rollback` for an undo
    applied     every action of the decision has been seen done
    proved, not_verified    each change is confirmed by what the new attempt reports, or none contradicted (checks)
    not_proved  a change is contradicted: it did not take effect (attempt, checks)
    rung_failed the restart diverged again, or did not recover (reason, proof)
    stopped     sentinel does not act on this incident any more and asks for a person (reason)
    purged      a person had its quarantine deleted: it can't be undone any more
    alert_firing, alert_resolved    beside the incidents, such as a job that is gone; that it is over (topic, reason)
    start_audited           whether an attempt goes on with the run (attempt, verdict, fault, reason, checks)
    closed      outcome: recovered, proved or not_verified (a person's own rollback), undone, superseded or healed

What older releases have written besides: `removed_records`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from sentinel.judge.analysis.departures import FirstMoved
from sentinel.judge.verdict import Verdict
from sentinel.plan.incident.baseline import Baseline, OnsetReadings
from sentinel.plan.incident.incident import (
    PROOFS,
    Bisected,
    Event,
    Incident,
    Place,
    Proposal,
    Rollback,
    Skip,
    Wait,
    incident_id,
    overrides_to_json,
    proof_of,
)
from sentinel.plan.incident.removed_records import probe_of, take_removed
from sentinel.vocabulary.errors import IncidentLogError, SentinelError
from sentinel.vocabulary.names import checked_name
from sentinel.vocabulary.numbers import dump_json, shown, to_number
from sentinel.vocabulary.overrides import Overrides, decode_overrides


def event(kind: str, incident: str | None, **facts: Any) -> Event:
    return {"event": kind, "incident": incident, **facts}


def opened(
    number: int,
    attempt: int,
    baseline: Baseline,
    overrides: Overrides | None,
    *,
    reason: str,
    verdict: Verdict | None = None,
    onset: OnsetReadings | None = None,
) -> Event:
    """A new incident. Without a verdict it is a person's own, and has no onset. `attempt`: 0 for none."""
    onset = onset or OnsetReadings()
    return {
        **event("opened", incident_id(number), attempt=attempt),
        "onset_range": verdict.onset_range if verdict else None,
        "alarm_step": verdict.alarm_step if verdict else None,
        **asdict(onset),
        "reason": reason,
        "led_by": onset.moved_first.led_by if onset.moved_first is not None else [],
        "baseline": baseline.to_json(),
        "overrides": overrides_to_json(overrides),
    }


def stopped(incident: str, reason: str) -> Event:
    return event("stopped", incident, reason=reason)


def closed(incident: str, outcome: str, reason: str) -> Event:
    return event("closed", incident, outcome=outcome, reason=reason)


_DECISION = ("changes", "lost_steps", "lost_gpu_hours", "unconfirmed", "in_script", "restart")


def decided(kind: str, incident: str, decision: Rollback, **facts: Any) -> Event:
    """`decided`, `proposed` or `shadow`: a rung, its target and what it changes."""
    known: dict[str, Any] = {}
    if kind == "decided":
        known = {"newest_attempt": decision.after_attempt, "jobs": decision.known_jobs}
        known |= {} if decision.place is None else {"save_folder": asdict(decision.place)}
    return {
        **event(kind, incident, rollback=decision.id, rung=decision.rung, hypothesis=decision.hypothesis),
        "target": {"tag": decision.target_tag, "global_step": decision.target_step},
        "overrides": overrides_to_json(decision.overrides),
        **{name: getattr(decision, name) for name in _DECISION},
        **known,
        **facts,
    }


def rung_failed(rollback: Rollback, attempt: int, reason: str, verdict: Verdict) -> Event:
    """The restart has failed; only where its changes are confirmed is it the rung that did not help."""
    return {
        **event("rung_failed", rollback.overrides.incident, rollback=rollback.id, attempt=attempt, reason=reason),
        "proof": None if rollback.proof is None else str(rollback.proof),
        "doubts": rollback.doubts,
        "onset_range": verdict.onset_range,
        "alarm_step": verdict.alarm_step,
    }


def fold(events: Iterable[Event]) -> tuple[Incident, ...]:
    """Where each incident stands, in the order they were opened. IncidentLogError for an event that makes no sense."""
    incidents: dict[str, Incident] = {}
    for number, event in enumerate(events, 1):
        try:
            _take(incidents, event)
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, SentinelError) as error:
            raise IncidentLogError(f"event {number} of the incident log makes no sense: {error!r}") from error
    return tuple(incidents.values())


_STRINGS = ("rung", "hypothesis", "reason", "outcome", "digest", "rollback")
_LISTS = ("changes", "led_by", "unconfirmed", "jobs")
_WHOLE = ("attempt", "alarm_step", "lost_steps", "from_step", "until_step", "newest_attempt")


def _take(incidents: dict[str, Incident], event: Event) -> None:
    kind = event["event"]
    words = [event.get(key) for key in _STRINGS] + [word for key in _LISTS for word in event.get(key) or ()]
    for values, expected in ((words, str), ([event.get(key) for key in _WHOLE], int)):
        if odd := [value for value in values if not isinstance(value, expected | None)]:
            raise IncidentLogError(f"{shown(odd[0])} is in the place of a value of type {expected.__name__} should")
    if kind == "opened":
        incidents[checked_name(event["incident"], "incident")] = _opened(event)
        return
    if event["incident"] is None:  # a restart after a crash: no incident's story
        return
    incident = incidents[event["incident"]]
    if kind in ("intent", "done") and event["action"]["kind"] == "undo":  # of all, or of one rollback
        if kind == "intent":
            incident.undo_moves |= event.get("moves", False)
            incident.undoing = event["rollback"] or incident.id
            incident.undo_after_attempt = event.get("newest_attempt")
            incident.undo_known_jobs = tuple(event.get("jobs", ()))
            return
        for rollback in incident.rollbacks:
            rollback.taken_back |= event["rollback"] in (None, rollback.id)
        return
    _of_incident(incident, kind, event)
    _of_bisect(incident, kind, event)
    take_removed(incident, kind, event)
    if kind == "closed":
        for other in incidents.values():
            if other.ignored in {r.id for r in incident.rollbacks} and other.status != "closed":
                _of_incident(other, kind, event)
    if incident.rollbacks:
        _of_rollback(incident, incident.rollbacks[-1], kind, event)


def _of_incident(incident: Incident, kind: str, event: Event) -> None:
    time_unix_s = float(event["time_unix_s"])
    match kind:
        case "decided":
            incident.rollbacks.append(_decided(event, time_unix_s))
            incident.status, incident.proposal = "decided", None
        case "proposed":
            incident.proposal = Proposal(digest=event["digest"], proposed_unix_s=time_unix_s)
        case "expired" if incident.proposal is not None:
            incident.proposal = replace(incident.proposal, expired=True)
        case "waiting":
            facts = {key: event[key] for key in ("rung", "hypothesis", "from_step", "until_step")}
            incident.waits.append(Wait(**facts))
        case "wait_over":
            incident.waits[-1] = replace(incident.waits[-1], failed=event["reason"])
        case "rung_skipped":
            incident.skips.append(Skip(rung=event["rung"], hypothesis=event["hypothesis"], reason=event["reason"]))
        case "shadow":
            incident.shadows += 1
        case "stopped":
            incident.status, incident.note = "stopped", event["reason"]
        case "closed":
            incident.status, incident.outcome, incident.note = "closed", event["outcome"], event["reason"]
            incident.closed_unix_s, incident.undoing, incident.undo_moves = time_unix_s, None, False
        case "baseline_completed":
            incident.baseline = Baseline.from_json(event["baseline"])
        case "purged":
            incident.purged = True


def _of_bisect(incident: Incident, kind: str, event: Event) -> None:
    if kind == "bisect_begun":
        incident.bisect = Bisected(after_attempt=event["newest_attempt"])
    elif kind == "bisect_ended" and incident.bisect is not None:
        incident.bisect = replace(incident.bisect, over=event["reason"], gpu_hours=event["gpu_hours"])


def _of_rollback(incident: Incident, rollback: Rollback, kind: str, event: Event) -> None:
    if kind == "intent":
        _intended(rollback, event["action"], event)
    elif kind == "applied":
        rollback.applied, incident.status = True, "applied"
    elif kind in PROOFS:
        rollback.attempt = event["attempt"]
        rollback.proof, rollback.doubts = proof_of(event)
        incident.status = incident.status if kind == "not_proved" else "holding"
    elif kind == "rung_failed":
        rollback.failed, incident.status = event["reason"], "open"


_CHANGES_THE_RUN = ("quarantine_checkpoints", "point_latest", "cut_tensorboard", "branch_wandb", "write_overrides")


def _intended(rollback: Rollback, action: Event, event: Event) -> None:
    if rollback.after_attempt is None and "newest_attempt" in event:  # a decision of an older version
        rollback.after_attempt = event["newest_attempt"] or 0
    if action["kind"] in _CHANGES_THE_RUN:
        rollback.begun, rollback.taken_back = True, False
    if action["kind"] == "start_job":
        rollback.starts += 1
        rollback.last_start_unix_s = float(event["time_unix_s"])
        rollback.last_start_attempt = (event["newest_attempt"] or 0) if "newest_attempt" in event else None
    elif action["kind"] == "stop_job" and action["spare"] is None:
        rollback.to_stop += tuple(action["jobs"])
    elif action["kind"] == "quarantine_checkpoints":
        rollback.moved_tags += tuple(checked_name(tag, "tags") for tag in action["tags"])


def _opened(event: Event) -> Incident:
    onset, about = event["onset_range"], event.get("ignored")
    later: Event = {key: event.get(key) for key in ("onset_samples", "batch_samples", "ignored")}  # not in older logs
    return Incident(
        id=event["incident"],
        opened_unix_s=float(event["time_unix_s"]),
        onset_range=None if onset is None else (onset[0], onset[1]),
        **{key: event[key] for key in ("attempt", "alarm_step", "onset_tokens", "reason")},
        **later,
        best_mean=to_number(event["best_mean"], "best_mean"),
        led_by=tuple(event["led_by"]),
        moved_first=None if event.get("moved_first") is None else FirstMoved.from_json(event["moved_first"]),
        baseline=Baseline.from_json(event["baseline"]),
        status="stopped" if about else "open",
        note=event["reason"] if about else None,
        overrides_before=None if event.get("overrides") is None else decode_overrides(dump_json(event["overrides"])),
    )


def _decided(event: Event, time_unix_s: float) -> Rollback:
    tag, later = event["target"]["tag"], ("lost_gpu_hours", "in_script", "restart")  # not in the oldest logs
    return Rollback(
        id=checked_name(event["rollback"], "rollback"),
        target_tag=None if tag is None else checked_name(tag, "target"),
        target_step=event["target"]["global_step"],
        overrides=decode_overrides(dump_json(event["overrides"])),
        changes=tuple(event["changes"]),
        decided_unix_s=time_unix_s,
        unconfirmed=tuple(event.get("unconfirmed", ())),
        **{key: event[key] for key in ("rung", "hypothesis", "lost_steps")},
        **{key: event[key] for key in later if key in event},
        after_attempt=event.get("newest_attempt"),
        known_jobs=tuple(event.get("jobs", ())),
        place=None if event.get("save_folder") is None else Place(**event["save_folder"]),
        probe=probe_of(event),
    )


def proposed_in(event: Event) -> Rollback:
    """The decision that a `proposed` event holds. IncidentLogError where it makes no sense."""
    try:
        return _decided(event, float(event["time_unix_s"]))
    except (LookupError, TypeError, ValueError, AttributeError, SentinelError) as error:
        raise IncidentLogError(f"a proposal of the incident log makes no sense: {error!r}") from error
