"""The events that a turn adds to the incident log, and `fold`, which adds a log up to its incidents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace

from sentinel.judge.verdict import Verdict
from sentinel.plan.incident.baseline import Baseline, OnsetReadings
from sentinel.plan.incident.incident import Incident, Proposal, Rollback, incident_id
from sentinel.plan.incident.log_events import (
    BaselineCompleted,
    Decided,
    Expired,
    IncidentEvent,
    Opened,
    PlannedRollback,
    Proposed,
    RungSkipped,
    Shadow,
    ShadowRefused,
    UnreadEvent,
    Waiting,
    WaitOver,
)
from sentinel.plan.incident.log_outcomes import (
    UNDO,
    Applied,
    BisectBegun,
    BisectEnded,
    ChecksShown,
    Closed,
    Done,
    IncidentStopped,
    InPlaceGivenUp,
    Intent,
    NotProved,
    Purged,
    RaceBegun,
    RaceEnded,
    RungFailed,
    UndoIntent,
)
from sentinel.plan.incident.other_rungs import Bisected, SideBySide, Skip, Wait
from sentinel.vocabulary.errors import IncidentLogError, SentinelError
from sentinel.vocabulary.names import checked_name
from sentinel.vocabulary.overrides import Overrides


def opened(
    number: int,
    attempt: int,
    baseline: Baseline,
    overrides: Overrides | None,
    *,
    reason: str,
    verdict: Verdict | None = None,
    onset: OnsetReadings | None = None,
    ignored: str | None = None,
    tried_before: tuple[str, ...] = (),
) -> Opened:
    """A new incident. Without a verdict it is a person's own, and has no onset. `attempt`: 0 for none."""
    onset = onset or OnsetReadings()
    return Opened(
        incident=incident_id(number),
        attempt=attempt,
        onset_range=verdict.onset_range if verdict else None,
        alarm_step=verdict.alarm_step if verdict else None,
        **{f.name: getattr(onset, f.name) for f in fields(onset)},
        reason=reason,
        led_by=onset.moved_first.led_by if onset.moved_first is not None else (),
        baseline=baseline,
        overrides=overrides,
        ignored=ignored,
        tried_before=tried_before,
    )


def decided(incident: str, decision: Rollback) -> Decided:
    known = {"newest_attempt": decision.after_attempt, "jobs": decision.known_jobs, "save_folder": decision.place}
    return Decided.of(incident, decision, **known)


def waiting(incident: str, wait: Wait) -> Waiting:
    return Waiting(
        incident=incident,
        rung=wait.rung,
        hypothesis=wait.hypothesis,
        from_step=wait.from_step,
        until_step=wait.until_step,
    )


def skipped(incident: str, skip: Skip) -> RungSkipped:
    return RungSkipped(incident=incident, rung=skip.rung, hypothesis=skip.hypothesis, reason=skip.reason)


def rung_failed(rollback: Rollback, attempt: int, reason: str, verdict: Verdict) -> RungFailed:
    """The restart has failed; only where its changes are confirmed is it the rung that did not help."""
    return RungFailed(
        incident=rollback.overrides.incident,
        rollback=rollback.id,
        attempt=attempt,
        reason=reason,
        proof=rollback.proof,
        doubts=rollback.doubts,
        onset_range=verdict.onset_range,
        alarm_step=verdict.alarm_step,
    )


def closed(incident: str, outcome: str, reason: str, judged_step: int | None = None) -> Closed:
    return Closed(incident=incident, outcome=outcome, reason=reason, judged_step=judged_step)


def fold(events: Iterable[IncidentEvent]) -> tuple[Incident, ...]:
    """Where each incident stands, in the order they were opened. IncidentLogError for an event that makes no sense."""
    incidents: dict[str, Incident] = {}
    for number, event in enumerate(events, 1):
        try:
            _take(incidents, event)
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, SentinelError) as error:
            why = str(error) if isinstance(error, SentinelError) else repr(error)
            raise IncidentLogError(f"event {number} of the incident log makes no sense: {why}") from error
    return tuple(incidents.values())


def _take(incidents: dict[str, Incident], event: IncidentEvent) -> None:
    if isinstance(event, UnreadEvent) and event.why is not None:
        raise IncidentLogError(event.why)
    if isinstance(event, Opened):
        incidents[event.incident] = _opened(event)
        return
    if event.incident is None:  # a restart after a crash: no incident's story
        return
    incident = incidents[event.incident]
    match event:
        case UndoIntent():  # of all, or of one rollback
            incident.undo_moves |= event.moves
            incident.undoing = event.rollback or incident.id
            incident.undo_after_attempt, incident.undo_known_jobs = event.newest_attempt, event.jobs
            return
        case Done() if event.action.kind == UNDO:
            for rollback in incident.rollbacks:
                rollback.taken_back |= event.rollback in (None, rollback.id)
            return
    _of_incident(incident, event)
    _of_rungs(incident, event)
    if isinstance(event, Closed):
        for other in incidents.values():
            if other.ignored in {r.id for r in incident.rollbacks} and other.status != "closed":
                _of_incident(other, event)
    if incident.rollbacks:
        _of_rollback(incident, incident.rollbacks[-1], event)


def _of_incident(incident: Incident, event: IncidentEvent) -> None:
    match event:
        case Decided():
            incident.rollbacks.append(proposed_in(event))
            incident.status, incident.proposal = "decided", None
        case Proposed():
            incident.proposal = Proposal(digest=event.digest, proposed_unix_s=event.time_unix_s)
        case Expired() if incident.proposal is not None:
            incident.proposal = replace(incident.proposal, expired=True)
        case Shadow() | ShadowRefused():
            incident.shadows += 1
        case IncidentStopped():
            incident.status, incident.note = "stopped", event.reason
        case Closed():
            incident.status, incident.outcome, incident.note = "closed", event.outcome, event.reason
            incident.closed_step = event.judged_step
            incident.closed_unix_s, incident.undoing, incident.undo_moves = event.time_unix_s, None, False
        case BaselineCompleted():
            incident.baseline = event.baseline
        case Purged():
            incident.purged = True


def _of_rungs(incident: Incident, event: IncidentEvent) -> None:
    """Of rungs that are no rollback."""
    match event:
        case Waiting(rung=rung, hypothesis=why, from_step=begin, until_step=end):
            incident.waits.append(Wait(rung=rung, hypothesis=why, from_step=begin, until_step=end))
        case WaitOver():
            incident.waits[-1] = replace(incident.waits[-1], failed=event.reason)
        case RungSkipped():
            incident.skips.append(Skip(rung=event.rung, hypothesis=event.hypothesis, reason=event.reason))
        case BisectBegun():
            incident.bisect = Bisected(after_attempt=event.newest_attempt)
        case BisectEnded() if incident.bisect is not None:
            incident.bisect = replace(incident.bisect, over=event.reason, gpu_hours=event.gpu_hours)
        case RaceBegun(until_step=until_step, gpu_hours=hours):
            incident.side_by_side.append(SideBySide(rungs=event.rungs, until_step=until_step, gpu_hours=hours))
        case RaceEnded(void=void, winner=won):
            tried, winner = incident.side_by_side[-1], won.probe if won is not None else None
            incident.side_by_side[-1] = replace(tried, over=True, void=void, winner=winner)


def _of_rollback(incident: Incident, rollback: Rollback, event: IncidentEvent) -> None:
    match event:
        case Intent():
            _intended(rollback, event)
        case Applied():
            rollback.applied, incident.status = True, "applied"
        case InPlaceGivenUp():
            rollback.give_up_in_place(event.reason)
            incident.status = "decided"
        case ChecksShown():
            rollback.attempt = event.attempt
            rollback.proof, rollback.doubts = event.proof
            incident.status = incident.status if isinstance(event, NotProved) else "holding"
        case RungFailed():
            rollback.failed, incident.status = event.reason, "open"


STARTS = ("start_job", "resume")
"""Kinds of the actions after which a new attempt begins."""
_CHANGES_THE_RUN = ("quarantine_checkpoints", "point_latest", "cut_tensorboard", "branch_wandb", "write_overrides")


def _intended(rollback: Rollback, event: Intent) -> None:
    kind, details = event.action.kind, event.action.details
    if rollback.after_attempt is None:  # a decision of an older version
        rollback.after_attempt = event.after_attempt
    if kind in _CHANGES_THE_RUN:
        rollback.begun, rollback.taken_back = True, False
    if kind == "park":
        rollback.park_asked_unix_s = rollback.park_asked_unix_s or event.time_unix_s
    elif kind == "release":
        rollback.park_asked_unix_s = None
    if kind in STARTS:
        rollback.resumed = kind == "resume"
        rollback.starts += 1
        rollback.last_start_unix_s, rollback.last_start_attempt = event.time_unix_s, event.after_attempt
    elif kind == "stop_job" and details["except_for" if "except_for" in details else "spare"] is None:  # older logs
        rollback.to_stop += tuple(details["jobs"])
    elif kind == "quarantine_checkpoints":
        rollback.moved_tags += tuple(checked_name(tag, "tags") for tag in details["tags"])


def _opened(event: Opened) -> Incident:
    of_onset = ("attempt", "onset_range", "alarm_step", "onset_tokens", "onset_samples", "batch_samples", "best_mean")
    same = (*of_onset, "reason", "moved_first", "baseline", "ignored", "tried_before")
    return Incident(
        id=event.incident,
        opened_unix_s=event.time_unix_s,
        **{name: getattr(event, name) for name in same},
        status="stopped" if event.ignored else "open",
        note=event.reason if event.ignored else None,
        overrides_before=event.overrides,
    )


def proposed_in(event: PlannedRollback) -> Rollback:
    """The decision that an event holds."""
    of_changes = ("rung", "hypothesis", "overrides", "changes", "unconfirmed", "in_script")
    same = (*of_changes, "lost_steps", "lost_gpu_hours", "restart", "in_place", "on_disk")
    made = Rollback(
        id=event.rollback,
        target_tag=event.target.tag,
        target_step=event.target.global_step,
        decided_unix_s=event.time_unix_s,
        **{name: getattr(event, name) for name in same},
    )
    if isinstance(event, Decided):
        made.after_attempt, made.known_jobs, made.place = event.newest_attempt, event.jobs, event.save_folder
        made.probe = event.adopts.probe if event.adopts is not None else None
    return made
