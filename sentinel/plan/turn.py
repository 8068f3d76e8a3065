"""decide(facts, policy, memory) -> Turn: all that is decided between two looks, each with its reason. Pure.

A turn follows from the observation (`Facts`) and the incident log; `Memory` only prevents repetition, and may be lost.
So a turn that was interrupted is completed by the same function at the next facts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sentinel.judge.verdict import VerdictKind
from sentinel.plan.alerts.alerts import alerts_of, with_alerts
from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Facts, Failure
from sentinel.plan.incident.events import opened
from sentinel.plan.incident.incident import Incident
from sentinel.plan.incident.log_outcomes import IncidentStopped, Intent
from sentinel.plan.outcome import Memory, Outcome, Turn
from sentinel.plan.restart.actions import KINDS, AskForSave
from sentinel.plan.restart.restart import bad_start_turn, hang_turn, restart_turn
from sentinel.plan.starts.audit import audited
from sentinel.plan.turn_incident import incident_turn
from sentinel.plan.turn_unfinished import undo_turn

__all__ = ["Facts", "Failure", "Memory", "Outcome", "Turn", "decide", "opens_incident"]
_SAVES_APART_STEPS = 1000  # Steps between two saves that are asked for, whatever is warned of
_FRESH_STEPS = 50  # Steps within which a checkpoint is new enough: no save is asked for
OLD_AFTER_S = 60.0  # a look that took longer waited for a filesystem: its first readings may be out of date


def decide(facts: Facts, policy: Policy, memory: Memory) -> Turn:
    """The actions, records and messages of this turn; with a `failure`, those that follow from the failed turn."""
    if facts.own.failure is not None and facts.own.failure.permanent:
        return _stopped(facts, facts.own.failure, memory)
    notes, memory = _announced(facts, memory)
    if facts.own.failure is not None:
        turn = Turn(reason=facts.own.failure.reason, memory=replace(memory, looked_again=False))
        return with_alerts(turn, alerts_of(facts, policy, None), facts)
    again = memory.turns > 1 and not memory.looked_again  # the first look reads the whole journal
    if again and facts.own.took_s > OLD_AFTER_S:
        why = f"looking took {facts.own.took_s:.0f} s, and what was found may be old: looking again"
        return Turn(reason=why, notes=(*notes, why), memory=replace(memory, looked_again=True))
    turn = _decided(facts, policy, memory)
    memory = replace(memory, looked_again=False)
    if turn.verified_for is not None:
        memory = replace(memory, verified_for=memory.verified_for | {turn.verified_for})
    if facts.on_demand.start is not None and facts.on_demand.start.settled:
        turn = replace(turn, records=(audited(facts.on_demand.start), *turn.records))
    turn = replace(turn, notes=notes, memory=memory)
    return with_alerts(turn, alerts_of(facts, policy, turn), facts)


def opens_incident(facts: Facts) -> bool:
    """Whether this look opens an incident; then the caller reads the samples around the onset (`Facts.onset`)."""
    attempt, incidents = facts.latest, facts.incidents
    if facts.verdict.kind is not VerdictKind.DIVERGED or attempt is None:
        return False
    if any(i.undoing or i.status != "closed" for i in incidents):
        return False
    # after an undo, a person handles the divergence of the attempts that were there: no incident is opened for them
    undone = (i for i in incidents if i.outcome == "undone")
    return not any(i.attempt <= attempt.number <= max(i.attempt, i.undo_after_attempt or 0) for i in undone)


def _decided(facts: Facts, policy: Policy, memory: Memory) -> Turn:
    undoing = next((i for i in facts.incidents if i.undoing), None)
    if undoing is not None:
        return undo_turn(undoing, facts, policy)
    incident = facts.open_incident
    turn = bad_start_turn(facts, policy)
    if turn is None:
        turn = _without_incident(facts, policy) if incident is None else _with_incident(incident, facts, policy, memory)
    if not turn.actions and turn.outcome is None and (request := _save_asked(facts, policy)) is not None:
        turn = replace(turn, actions=(request,))
    return replace(turn, pins=_to_pin(facts, policy))


def _with_incident(incident: Incident, facts: Facts, policy: Policy, memory: Memory) -> Turn:
    kind = facts.verdict.kind
    if incident.status == "holding" and kind is VerdictKind.DOWN:
        return restart_turn(facts, policy)
    if incident.status == "holding" and kind is VerdictKind.STALLED:
        return hang_turn(facts, policy)
    turn = incident_turn(incident, facts, policy, memory)
    attempt = facts.latest
    ended = attempt is not None and attempt.end_reason == "finished" and not facts.jobs.writers
    if turn.outcome is None and policy.mode != "act" and incident.shadows and ended:
        return replace(turn, outcome=Outcome.NOT_WELL)
    return turn


def _without_incident(facts: Facts, policy: Policy) -> Turn:
    verdict, attempt, reason = facts.verdict, facts.latest, facts.verdict.reason
    waiting = [i for i in facts.incidents if i.status == "stopped"]
    if waiting:
        why = f"{waiting[-1].id} waits for a person: {waiting[-1].note}"
        return Turn(reason=why, message=why, outcome=Outcome.PERSON_NEEDED)
    if opens_incident(facts) and attempt is not None:
        found: dict[str, Any] = {"reason": reason, "verdict": verdict, "onset": facts.on_demand.onset}
        found["tried_before"] = _tried_before(facts, policy)
        event = opened(facts.next_incident, attempt.number, facts.settings.baseline, facts.folders.overrides, **found)
        return Turn(reason=reason, records=(event,))
    if verdict.kind is VerdictKind.DOWN:
        return restart_turn(facts, policy)
    if verdict.kind is VerdictKind.STALLED:
        return hang_turn(facts, policy)
    return Turn(reason=reason, outcome=Outcome.FINISHED if verdict.kind is VerdictKind.FINISHED else None)


def _tried_before(facts: Facts, policy: Policy) -> tuple[str, ...]:
    """The rungs of the incidents before, where the last recovery did not hold: the onset lies within `hold_steps` of
    the step at which that incident was closed. Incidents since then that healed end nothing."""
    onset, since = facts.verdict.onset_range, tuple[str, ...]()
    if onset is None:
        return ()
    for before in reversed(facts.incidents):
        if before.outcome == "healed":
            since = (*before.restarted_by, *since)
        elif before.closed_step is None or abs(onset[0] - before.closed_step) > policy.hold_steps:
            return ()
        else:
            return (*before.tried_before, *before.restarted_by, *since)
    return ()


def _stopped(facts: Facts, failure: Failure, memory: Memory) -> Turn:
    incident = facts.open_incident
    if incident is None or any(i.undoing for i in facts.incidents):  # the failure is the watch's, not an incident's
        return Turn(reason=failure.reason, memory=memory)
    records = (IncidentStopped(incident=incident.id, reason=failure.reason),)
    return Turn(reason=failure.reason, records=records, outcome=Outcome.PERSON_NEEDED, memory=memory)


def _to_pin(facts: Facts, policy: Policy) -> tuple[str, ...] | None:
    healthy = facts.verdict.kind in (VerdictKind.HEALTHY, VerdictKind.WARMING_UP, VerdictKind.FINISHED)
    wanted = policy.mode != "observe" and (policy.pin_last_healthy or policy.warn in ("pin", "save"))
    if not (wanted and healthy) or facts.readings.judged_step is None or facts.open_incident is not None:
        return None
    limit = facts.readings.judged_step - policy.margin_steps
    whole = [c for c in facts.folders.checkpoints if c.complete and not c.only_pinned and c.global_step <= limit]
    newest = next((c.tag for c in reversed(whole) if facts.readings.unhealthy_at(c.global_step) is None), None)
    tags = (newest if policy.pin_last_healthy else None, _warned_pin(facts, policy))
    return tuple(dict.fromkeys(tag for tag in tags if tag is not None))


def _warned_pin(facts: Facts, policy: Policy) -> str | None:
    """The newest whole checkpoint from before the logit passed its limit, where it is not pinned for good already."""
    warning = facts.readings.logit_warning
    if warning is None or policy.warn not in ("pin", "save"):
        return None
    limit = warning.since_step - policy.margin_steps
    before = [c for c in facts.folders.checkpoints if c.complete and c.global_step <= limit]
    newest = next((c for c in reversed(before) if facts.readings.unhealthy_at(c.global_step) is None), None)
    return None if newest is None or newest.only_pinned else newest.tag


def _save_asked(facts: Facts, policy: Policy) -> AskForSave | None:
    """The request for a save, once for each warning: None where a checkpoint is new enough, or one was asked for not
    long ago. Not while a person has paused the run, or an incident is open: its target is from before."""
    warning = facts.readings.logit_warning
    off = policy.warn != "save" or policy.mode == "observe"
    if warning is None or off or facts.person.paused or facts.open_incident:
        return None
    newest = max((c.global_step for c in facts.folders.checkpoints if c.complete), default=0)
    intents = (e.action for e in facts.events if isinstance(e, Intent))
    asked = [int(action.details["step"]) for action in intents if action.kind == KINDS[AskForSave]]
    recent = any(0 <= warning.step - step < _SAVES_APART_STEPS for step in asked)
    if newest >= warning.step - _FRESH_STEPS or recent:
        return None
    return AskForSave(warning.step, warning.reason)


def _announced(facts: Facts, memory: Memory) -> tuple[tuple[str, ...], Memory]:
    """A line when the verdict or the attempt changes, and one for each plateau, which nothing else follows from."""
    notes, verdict = list[str](), facts.verdict
    attempt = facts.latest.number if facts.latest else None
    if (verdict.kind, attempt) != memory.announced:
        at = f" at step {verdict.global_step}" if verdict.global_step is not None else ""
        who = "the run" if attempt is None else f"attempt {attempt}"
        notes.append(f"{who} is {verdict.kind}{at}: {verdict.reason}")
    new = {e.onset_step: e for e in facts.readings.plateaus if e.onset_step not in memory.plateaus}
    notes += [f"slower than it should be, for a person to look at: {e.reason}" for e in new.values()]
    known = replace(memory, announced=(verdict.kind, attempt), plateaus=memory.plateaus | new.keys())
    return tuple(notes), replace(known, turns=memory.turns + 1)
