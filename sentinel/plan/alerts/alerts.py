"""What a person is to be alerted to beside the incidents, one alert for each topic, and when: turns that fail again and
again, a job that is gone or hangs. The incident log records them as `alert_firing` and `alert_resolved`; so a restarted
daemon knows what was sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from sentinel.judge.verdict import VerdictKind
from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Facts
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.incident.log_outcomes import (
    AlertFiring,
    AlertResolved,
    Applied,
    Closed,
    Done,
    Failed,
    IncidentStopped,
)
from sentinel.plan.observation import Life
from sentinel.plan.outcome import Alert, AlertState, Memory, Turn
from sentinel.plan.restart.liveness import hindered, life_of
from sentinel.plan.restart.restart import newest_audit
from sentinel.plan.starts.audit import Continued
from sentinel.plan.topics import RemovedTopic, Severity

AGAIN_S = 3600.0  # seconds after which a failure that lasts is alerted to once more
_UNKNOWN_S = 60.0  # seconds for which the state of a job that trains well may be unknown before a person is alerted
_TO_ACT_ON = (VerdictKind.DIVERGED, VerdictKind.DOWN, VerdictKind.STALLED)


def alerts_of(facts: Facts, policy: Policy, turn: Turn | None) -> tuple[Alert, ...]:
    """The state of each topic, once the turn is done; None for a turn that failed (`facts.own.failure`). While the
    readings are away nothing is known of the job: its topics stay as they were."""
    kind, within_s = facts.verdict.kind, policy.confirm_within_s
    blind = facts.verdict.reason if kind is VerdictKind.BLIND else None
    alerts = [
        *_watch_failing(facts, policy),
        Alert(topic="paging", reason=facts.own.paging_problem),
        Alert(topic="blind", reason=blind, severity="warning", within_s=within_s),
    ]
    if blind is not None:
        return tuple(alerts)
    hangs = facts.verdict.reason if kind is VerdictKind.STALLED else None
    alerts += [Alert(topic="overlap", reason=facts.liveness.overlap), _bad_start(facts)]
    alerts += [
        *_removed_topics(facts),
        _attention_logits(facts, policy),
        _unknown(facts, policy),
        Alert(topic="stalled", reason=hangs),
    ]
    if kind is not VerdictKind.DOWN:
        alerts.append(Alert(topic="down"))
    elif turn is not None and turn.down is not None:
        severity: Severity = "critical" if policy.mode == "act" else "warning"
        reason = f"{facts.verdict.reason}; {turn.down}"
        alerts.append(Alert(topic="down", reason=reason, severity=severity, within_s=turn.down_within_s))
    return tuple(alerts)


def with_alerts(turn: Turn, alerts: tuple[Alert, ...], facts: Facts) -> Turn:
    """The turn with what is due of the alerts, and with its memory of what is wrong. What an earlier daemon has told,
    and the log does not say to be over, goes on."""
    states = {**alert_states(facts.events), **turn.memory.alert_states}
    records, memory = _recorded(alerts, replace(turn.memory, alert_states=states), facts.now_unix_s)
    return replace(turn, alerts=alerts, alert_records=records, memory=memory)


def failed_look(
    reason: str, memory: Memory, policy: Policy, now_unix_s: float, *, last: Facts | None
) -> tuple[tuple[IncidentEvent, ...], Memory]:
    """What is to be recorded where a look itself failed, and nothing is known; and what is remembered of it."""
    return _recorded((_failing(reason, last, policy),), memory, now_unix_s)


def _recorded(alerts: Iterable[Alert], memory: Memory, now_unix_s: float) -> tuple[tuple[IncidentEvent, ...], Memory]:
    states, due, over = updated(memory.alert_states, alerts, now_unix_s)
    lasted = ((t.topic, f"it lasted {now_unix_s - t.since_unix_s:.0f} s") for t in over)
    resolved = (AlertResolved(incident=None, topic=topic, reason=reason) for topic, reason in lasted)
    firing = (
        AlertFiring(incident=None, topic=t.topic, severity=t.severity, reason=t.reason, since_unix_s=t.since_unix_s)
        for t in due
    )
    return (*resolved, *firing), replace(memory, alert_states=states)


def _watch_failing(facts: Facts, policy: Policy) -> tuple[Alert, ...]:
    jobs = facts.jobs
    if facts.own.failure is not None:
        return (_failing(facts.own.failure.reason, facts, policy),)
    if not jobs.known and not jobs.elsewhere:
        return (_failing(f"job state unknown: {jobs.why_unknown}", facts, policy),)
    known = not unsettled(facts.events, facts.now_unix_s, within_s=policy.confirm_within_s)
    return (Alert(topic="watch_failing"),) if known else ()


def _failing(reason: str, facts: Facts | None, policy: Policy) -> Alert:
    severity: Severity = "critical" if facts is not None and facts.open_incident else "warning"
    return Alert(topic="watch_failing", reason=reason, severity=severity, within_s=policy.confirm_within_s)


def _unknown(facts: Facts, policy: Policy) -> Alert:
    """Why nothing could be done: told at once where something is to be done, else when it lasts."""
    evidence, why = facts.liveness, None
    theirs = any(writer.foreign for writer in facts.jobs.writers)
    # attached to a run whose job waits or has yet to be submitted: its checkpoints are old
    old = all(file_seen.age_s >= evidence.gone_after_s for file_seen in evidence.files_seen)
    before_first = not evidence.attempts and not theirs and old
    if facts.jobs.known and not before_first:
        known = life_of(evidence)
        of_anybody = known.sentence if known.life is Life.UNKNOWN else None
        # to observe, the job may be another account's
        why = of_anybody if policy.mode == "observe" else hindered(evidence)
    due = facts.open_incident is not None or facts.verdict.kind in _TO_ACT_ON
    severity: Severity = "warning" if policy.mode == "observe" else "critical"
    # until then it may lift by itself
    expires_s = max((beat.expires_s for beat in evidence.heartbeats), default=0.0)
    return Alert(topic="unknown", reason=why, severity=severity, within_s=2 * expires_s if due else _UNKNOWN_S)


def _attention_logits(facts: Facts, policy: Policy) -> Alert:
    """Each warning is told once: after a rollback one from before the target is in force again."""
    warning = facts.readings.logit_warning if policy.warn != "off" else None
    reason = None if warning is None else warning.reason
    lasts = "attention_logits" in alert_states(facts.events)
    firing = (e for e in facts.events if isinstance(e, AlertFiring))
    told = any((e.topic, e.reason) == ("attention_logits", reason) for e in firing)
    return Alert(topic="attention_logits", reason=None if told and not lasts else reason, severity="warning")


def _removed_topics(facts: Facts) -> Iterator[Alert]:
    """Ends what an older version has told of a topic that is told of no more."""
    return (Alert(topic=topic) for topic in get_args(RemovedTopic) if topic in alert_states(facts.events))


def _bad_start(facts: Facts) -> Alert:
    found = newest_audit(facts)
    if found is None or found.verdict is not Continued.NO:
        return Alert(topic="bad_start")
    return Alert(topic="bad_start", reason=found.reason, severity="critical" if found.spoils else "warning")


def updated(
    states: Mapping[str, AlertState], alerts: Iterable[Alert], now_unix_s: float
) -> tuple[dict[str, AlertState], tuple[AlertState, ...], tuple[AlertState, ...]]:
    """The states after these alerts; those to alert a person to now; those that a person was alerted to and that are
    over. A topic without an alert stays as it is: nothing is known of it now."""
    known, due, over = dict(states), list[AlertState](), list[AlertState]()
    for alert in alerts:
        topic, severity, reason = alert.topic, alert.severity, alert.reason
        before = known.pop(topic, None)
        if reason is None:
            if before is not None and before.alerted_unix_s is not None:
                over.append(before)
            continue
        new = AlertState(topic=topic, severity=severity, reason=reason, since_unix_s=now_unix_s)
        state = new if before is None else replace(before, severity=severity, reason=reason)
        if is_due(state, now_unix_s, within_s=alert.within_s):
            state = replace(state, alerted_unix_s=now_unix_s)
            due.append(state)
        known[alert.topic] = state
    return known, tuple(due), tuple(over)


def is_due(state: AlertState, now_unix_s: float, *, within_s: float) -> bool:
    """Whether to alert a person now: it has lasted for `within_s`, and no alert was sent yet. `watch_failing` is sent
    again every hour; the others (a job that is gone) once."""
    if state.alerted_unix_s is not None:
        return state.topic == "watch_failing" and now_unix_s - state.alerted_unix_s >= AGAIN_S
    return now_unix_s - state.since_unix_s >= within_s


def alert_states(events: Iterable[IncidentEvent]) -> dict[str, AlertState]:
    """Topic -> the last alert of the incident log, where it is not resolved."""
    firing: dict[str, AlertState] = {}
    for e in events:
        if isinstance(e, AlertFiring):
            last: dict[str, Any] = {name: getattr(e, name) for name in ("topic", "severity", "reason", "since_unix_s")}
            firing[e.topic] = AlertState(**last, alerted_unix_s=e.time_unix_s)
        elif isinstance(e, AlertResolved):
            firing.pop(e.topic, None)
    return firing


def unsettled(events: Sequence[IncidentEvent], now_unix_s: float, *, within_s: float) -> bool:
    """Whether the last action has failed, not longer than `within_s` ago, and nothing has come of it since. Such a
    turn, in which nothing was tried, is no success yet. After that long without another try it is history."""
    for e in reversed(events):
        if isinstance(e, Done | Applied | IncidentStopped | Closed):
            return False
        if isinstance(e, Failed):
            return now_unix_s - e.time_unix_s < within_s
    return False
