"""next_turn(look, policy) -> Turn: all that is decided between two looks, each with its reason. Pure.

A turn follows from the observation (`Look`) and the incident log; `Memory` only prevents repetition, and may be lost.
So a turn that was interrupted is completed by the same function at the next look.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sentinel.judge.events import EventKind
from sentinel.judge.verdict import VerdictKind
from sentinel.plan.actions import KINDS, AskForSave
from sentinel.plan.alerts import alerts_of, with_alerts
from sentinel.plan.incident import Incident
from sentinel.plan.incident_events import opened, stopped
from sentinel.plan.look import Failure, Look, Memory, Outcome, Turn
from sentinel.plan.policy import Policy
from sentinel.plan.restart import bad_start_turn, hang_turn, restart_turn
from sentinel.plan.start_audit import audited
from sentinel.plan.turn_incident import incident_turn

__all__ = ["Failure", "Look", "Memory", "Outcome", "Turn", "next_turn", "opens_incident"]
_SAVES_APART_STEPS = 1000  # Steps between two saves that are asked for, whatever is warned of
_FRESH_STEPS = 50  # Steps within which a checkpoint is new enough: no save is asked for
OLD_AFTER_S = 60.0  # a look that took longer waited for a filesystem: its first readings may be out of date


def next_turn(look: Look, policy: Policy) -> Turn:
    """The actions, records and messages of this turn; with `look.failure`, those that follow from the failed turn."""
    if look.failure is not None and look.failure.permanent:
        return _stopped(look, look.failure)
    notes, memory = _announced(look)
    if look.failure is not None:
        turn = Turn(reason=look.failure.reason, memory=replace(memory, looked_again=False))
        return with_alerts(turn, alerts_of(look, policy, None), look)
    again = memory.turns > 1 and not memory.looked_again  # the first look reads the whole journal
    if again and look.took_s > OLD_AFTER_S:
        why = f"looking took {look.took_s:.0f} s, and what was found may be old: looking again"
        return Turn(reason=why, notes=(*notes, why), memory=replace(memory, looked_again=True))
    turn = _decided(look, policy)
    memory = replace(memory, looked_again=False)
    if turn.verified_for is not None:
        memory = replace(memory, verified_for=memory.verified_for | {turn.verified_for})
    if look.start is not None and look.start.settled:
        turn = replace(turn, records=(audited(look.start), *turn.records))
    turn = replace(turn, notes=notes, memory=memory)
    return with_alerts(turn, alerts_of(look, policy, turn), look)


def opens_incident(look: Look) -> bool:
    """Whether this look opens an incident; then the caller reads the samples around the onset (`Look.onset`)."""
    attempt, incidents = look.history.latest, look.run.incidents
    if look.verdict.kind is not VerdictKind.DIVERGED or attempt is None:
        return False
    if any(i.undoing or i.status != "closed" for i in incidents):
        return False
    # after an undo, a person handles this attempt's divergence: no incident is opened for it
    return not any(i.outcome == "undone" and i.attempt == attempt.number for i in incidents)


def _decided(look: Look, policy: Policy) -> Turn:
    run = look.run
    undoing = next((i for i in run.incidents if i.undoing), None)
    if undoing is not None and policy.mode == "act":
        return Turn(reason=f"the undo of {undoing.id} was cut short and is carried to its end", undo=(undoing,))
    if undoing is not None:
        why = f"the undo of {undoing.id} is unfinished: `sentinel undo` completes it"
        return Turn(reason=why, message=why)
    incident = run.open_incident
    turn = bad_start_turn(look, policy)
    if turn is None:
        turn = _without_incident(look, policy) if incident is None else _with_incident(incident, look, policy)
    if not turn.actions and turn.outcome is None and (request := _save_asked(look, policy)) is not None:
        turn = replace(turn, actions=(request,))
    return replace(turn, pins=_to_pin(look, policy))


def _with_incident(incident: Incident, look: Look, policy: Policy) -> Turn:
    kind = look.verdict.kind
    if incident.status == "holding" and kind is VerdictKind.DOWN:
        return restart_turn(look, policy)
    if incident.status == "holding" and kind is VerdictKind.STALLED:
        return hang_turn(look, policy)
    turn = incident_turn(incident, look, policy)
    attempt = look.history.latest
    ended = attempt is not None and attempt.end_reason == "finished" and not look.run.jobs.writers
    if turn.outcome is None and policy.mode != "act" and incident.shadows and ended:
        return replace(turn, outcome=Outcome.NOT_WELL)
    return turn


def _without_incident(look: Look, policy: Policy) -> Turn:
    run, verdict, attempt, reason = look.run, look.verdict, look.history.latest, look.verdict.reason
    waiting = [i for i in run.incidents if i.status == "stopped"]
    if waiting:
        why = f"{waiting[-1].id} waits for a person: {waiting[-1].note}"
        return Turn(reason=why, message=why, outcome=Outcome.PERSON_NEEDED)
    if opens_incident(look) and attempt is not None:
        found: dict[str, Any] = {"reason": reason, "verdict": verdict, "onset": look.onset}
        event = opened(run.next_incident, attempt.number, run.baseline, run.overrides, **found)
        return Turn(reason=reason, records=(event,))
    if verdict.kind is VerdictKind.DOWN:
        return restart_turn(look, policy)
    if verdict.kind is VerdictKind.STALLED:
        return hang_turn(look, policy)
    return Turn(reason=reason, outcome=Outcome.FINISHED if verdict.kind is VerdictKind.FINISHED else None)


def _stopped(look: Look, failure: Failure) -> Turn:
    incident = look.run.open_incident
    if incident is None or any(i.undoing for i in look.run.incidents):  # the failure is the watch's, not an incident's
        return Turn(reason=failure.reason, memory=look.memory)
    records = (stopped(incident.id, failure.reason),)
    return Turn(reason=failure.reason, records=records, outcome=Outcome.PERSON_NEEDED, memory=look.memory)


def _to_pin(look: Look, policy: Policy) -> tuple[str, ...] | None:
    healthy = look.verdict.kind in (VerdictKind.HEALTHY, VerdictKind.WARMING_UP, VerdictKind.FINISHED)
    wanted = policy.mode != "observe" and (policy.pin_last_healthy or policy.warn in ("pin", "save"))
    if not (wanted and healthy) or look.series.last is None or look.run.open_incident is not None:
        return None
    limit = look.series.last.global_step - policy.margin_steps
    whole = [c for c in look.run.checkpoints if c.complete and not c.only_pinned]
    newest = next((c.tag for c in reversed(whole) if c.global_step <= limit), None)
    tags = (newest if policy.pin_last_healthy else None, _warned_pin(look, policy))
    return tuple(dict.fromkeys(tag for tag in tags if tag is not None))


def _warned_pin(look: Look, policy: Policy) -> str | None:
    """The newest whole checkpoint from before the rise, where it is not pinned for good already."""
    warning = look.series.warning
    if warning is None or policy.warn not in ("pin", "save"):
        return None
    limit = warning.since_step - policy.margin_steps
    before = [c for c in look.run.checkpoints if c.complete and c.global_step <= limit]
    newest = next((c for c in reversed(before) if look.run.unhealthy_at(c.global_step) is None), None)
    return None if newest is None or newest.only_pinned else newest.tag


def _save_asked(look: Look, policy: Policy) -> AskForSave | None:
    """The request for a save, once for each warning: None where a checkpoint is new enough, or one was asked for not
    long ago. Not while a person has paused the run, or an incident is open: its target is from before."""
    warning, run = look.series.warning, look.run
    if warning is None or policy.warn != "save" or policy.mode == "observe" or run.paused or run.open_incident:
        return None
    newest = max((c.global_step for c in run.checkpoints if c.complete), default=0)
    intents = (e["action"] for e in look.events if e["event"] == "intent")
    asked = [int(action["step"]) for action in intents if action["kind"] == KINDS[AskForSave]]
    recent = any(0 <= warning.step - step < _SAVES_APART_STEPS for step in asked)
    if newest >= warning.step - _FRESH_STEPS or recent:
        return None
    return AskForSave(warning.step, warning.reason)


def _announced(look: Look) -> tuple[tuple[str, ...], Memory]:
    """A line when the verdict or the attempt changes, and one for each plateau, which nothing else follows from."""
    memory, notes, verdict = look.memory, list[str](), look.verdict
    attempt = look.history.latest.number if look.history.latest else None
    if (verdict.kind, attempt) != memory.announced:
        at = f" at step {verdict.global_step}" if verdict.global_step is not None else ""
        who = "the run" if attempt is None else f"attempt {attempt}"
        notes.append(f"{who} is {verdict.kind}{at}: {verdict.reason}")
    plateaus = [e for e in look.series.events if e.kind is EventKind.PLATEAU and e.end_step is None]
    new = {e.onset_step: e for e in plateaus if e.onset_step not in memory.plateaus}
    notes += [f"slower than it should be, for a person to look at: {e.reason}" for e in new.values()]
    known = replace(memory, announced=(verdict.kind, attempt), plateaus=memory.plateaus | new.keys())
    return tuple(notes), replace(known, turns=memory.turns + 1)
