"""What a person is to be alerted to at a look, beside the incidents: one alert for each topic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sentinel.judge.verdict import VerdictKind
from sentinel.plan import early_warning
from sentinel.plan.alert_state import Alert, Severity, alert_states, unsettled, updated
from sentinel.plan.incident import Event
from sentinel.plan.incident_events import event
from sentinel.plan.liveness import hindered, life_of
from sentinel.plan.look import Look, Memory, Turn
from sentinel.plan.observation import Life
from sentinel.plan.policy import Policy
from sentinel.plan.restart import bad_start_alert

_UNKNOWN_S = 60.0  # seconds for which the state of a job that trains well may be unknown before a person is alerted
_TO_ACT_ON = (VerdictKind.DIVERGED, VerdictKind.DOWN, VerdictKind.STALLED)


def alerts_of(look: Look, policy: Policy, turn: Turn | None) -> tuple[Alert, ...]:
    """The state of each topic, once the turn is done; None for a turn that failed (`look.failure`). While the
    readings are away nothing is known of the job: its topics stay as they were."""
    kind, within_s = look.verdict.kind, policy.confirm_within_s
    blind = look.verdict.reason if kind is VerdictKind.BLIND else None
    alerts = [
        *_watch_failing(look, policy),
        Alert(topic="paging", reason=look.paging_problem),
        Alert(topic="blind", reason=blind, severity="warning", within_s=within_s),
    ]
    if blind is not None:
        return tuple(alerts)
    hangs = look.verdict.reason if kind is VerdictKind.STALLED else None
    alerts += [Alert(topic="overlap", reason=look.run.overlap), bad_start_alert(look)]
    alerts.append(early_warning.alert(look, policy))
    alerts += [_unknown(look, policy), Alert(topic="stalled", reason=hangs)]
    if kind is not VerdictKind.DOWN:
        alerts.append(Alert(topic="down"))
    elif turn is not None and turn.down is not None:
        severity: Severity = "critical" if policy.mode == "act" else "warning"
        reason = f"{look.verdict.reason}; {turn.down}"
        alerts.append(Alert(topic="down", reason=reason, severity=severity, within_s=turn.down_within_s))
    return tuple(alerts)


def with_alerts(turn: Turn, alerts: tuple[Alert, ...], look: Look) -> Turn:
    """The turn with what is due of the alerts, and with its memory of what is wrong. What an earlier daemon has told,
    and the log does not say to be over, goes on."""
    states = {**alert_states(look.events), **turn.memory.alert_states}
    records, memory = _recorded(alerts, replace(turn.memory, alert_states=states), look.run.now_unix_s)
    return replace(turn, alerts=alerts, alert_records=records, memory=memory)


def failed_look(
    reason: str, memory: Memory, policy: Policy, now_unix_s: float, *, last: Look | None
) -> tuple[tuple[Event, ...], Memory]:
    """What is to be recorded where a look itself failed, and nothing is known; and what is remembered of it."""
    return _recorded((_failing(reason, last, policy),), memory, now_unix_s)


def _recorded(alerts: Iterable[Alert], memory: Memory, now_unix_s: float) -> tuple[tuple[Event, ...], Memory]:
    states, due, over = updated(memory.alert_states, alerts, now_unix_s)
    lasted = ((t.topic, f"it lasted {now_unix_s - t.since_unix_s:.0f} s") for t in over)
    records = [event("alert_resolved", None, topic=topic, reason=reason) for topic, reason in lasted]
    for t in due:
        facts = {"topic": t.topic, "severity": t.severity, "reason": t.reason, "since_unix_s": t.since_unix_s}
        records.append(event("alert_firing", None, **facts))
    return tuple(records), replace(memory, alert_states=states)


def _watch_failing(look: Look, policy: Policy) -> tuple[Alert, ...]:
    jobs = look.run.jobs
    if look.failure is not None:
        return (_failing(look.failure.reason, look, policy),)
    if not jobs.known and not jobs.elsewhere:
        return (_failing(f"job state unknown: {jobs.why_unknown}", look, policy),)
    known = not unsettled(look.events, look.run.now_unix_s, within_s=policy.confirm_within_s)
    return (Alert(topic="watch_failing"),) if known else ()


def _failing(reason: str, look: Look | None, policy: Policy) -> Alert:
    severity: Severity = "critical" if look is not None and look.run.open_incident else "warning"
    return Alert(topic="watch_failing", reason=reason, severity=severity, within_s=policy.confirm_within_s)


def _unknown(look: Look, policy: Policy) -> Alert:
    """Why nothing could be done: told at once where something is to be done, else when it lasts."""
    run, why = look.run, None
    theirs = any(writer.foreign for writer in run.jobs.writers)
    # attached to a run whose job waits or has yet to be submitted: its checkpoints are old
    before_first = not run.attempts and not theirs and all(sign.age_s >= run.gone_after_s for sign in run.signs)
    if run.jobs.known and not before_first:
        known = life_of(run)
        of_anybody = known.sentence if known.life is Life.UNKNOWN else None
        why = of_anybody if policy.mode == "observe" else hindered(run)  # to observe, it may be another account's
    due = run.open_incident is not None or look.verdict.kind in _TO_ACT_ON
    severity: Severity = "warning" if policy.mode == "observe" else "critical"
    return Alert(topic="unknown", reason=why, severity=severity, within_s=0.0 if due else _UNKNOWN_S)
