"""incident_turn(incident, facts, policy, memory) -> Turn: an open incident one step further: decided, carried out,
proved, held."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sentinel.judge.recovery_check import RecoveryOutcome
from sentinel.judge.verdict import VerdictKind
from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Facts, started_for
from sentinel.plan.incident.baseline import filled
from sentinel.plan.incident.events import closed, decided, rung_failed, skipped, waiting
from sentinel.plan.incident.incident import Incident, Proof, Rollback, digest_of
from sentinel.plan.incident.log_events import (
    BaselineCompleted,
    IncidentEvent,
    Shadow,
    ShadowRefused,
    WaitOver,
)
from sentinel.plan.incident.log_outcomes import Applied, BisectBegun, ChecksShown, InPlaceGivenUp
from sentinel.plan.incident.other_rungs import Skip
from sentinel.plan.outcome import Memory, Turn
from sentinel.plan.readings_seen import JournalFacts
from sentinel.plan.restart.actions import QuarantineCheckpoints, VerifyCheckpoint
from sentinel.plan.restart.decision import decide_rung, has_not_healed, plan_recovery, rungs_left
from sentinel.plan.restart.in_place.stage import release_of
from sentinel.plan.restart.liveness import settles
from sentinel.plan.restart.rollback import Plan, on_hold, plan_rollback
from sentinel.plan.starts.evidence import FIRST_STEPS
from sentinel.plan.starts.proof import Check, ignored, outcome, proof_event, prove
from sentinel.plan.turn_approval import approval_of
from sentinel.plan.turn_bisect import refused_turn, stop_turn, turn_beside
from sentinel.plan.turn_unfinished import held_turn, removed_turn


def incident_turn(incident: Incident, facts: Facts, policy: Policy, memory: Memory) -> Turn:
    if (left := removed_turn(incident)) is not None:
        return left
    if incident.current is None:
        completed = filled(incident.baseline, facts.jobs.start.script_baseline)
        if completed == incident.baseline:
            return _decide(incident, facts, policy, memory)
        reason = "the job script could be read: its settings complete the incident's baseline"
        return Turn(reason=reason, records=(BaselineCompleted(incident=incident.id, baseline=completed),))
    if incident.status in ("decided", "applied"):
        return _carry_on(incident, incident.current, facts, policy)
    return _hold(incident, incident.current, facts)


def to_preview(facts: Facts, policy: Policy) -> Rollback | None:
    """The decision that is to be tried on the job script before the turn; None where none is, or it is known."""
    incident = facts.open_incident
    if incident is None or incident.current is not None or not facts.jobs.start.rewrites_script:
        return None
    decision = _planned(incident, facts, policy).decision
    known = decision is None or not decision.restart or digest_of(decision) in facts.on_demand.previews
    return None if known else decision


def _planned(incident: Incident, facts: Facts, policy: Policy) -> Plan:
    """Once the job was stopped for probes, the verdict is no longer that of a run that trains."""
    if incident.side_by_side or incident.bisect is not None:
        return decide_rung(incident, facts, policy)
    return plan_recovery(facts, policy)


def _decide(incident: Incident, facts: Facts, policy: Policy, memory: Memory) -> Turn:
    if (beside := turn_beside(incident, facts, policy)) is not None:
        return beside
    if incident.onset_range is None and not incident.rollbacks:  # it has no onset to choose a target by
        return _closed(incident, "superseded", "what a person asked for was cut short before it was begun")
    well = facts.verdict.kind in (VerdictKind.HEALTHY, VerdictKind.FINISHED)
    if well and (not incident.rollbacks or incident.waiting is not None):
        return _closed(incident, "healed", f"the run is {facts.verdict.kind} again, without a rollback")
    if (wait := incident.waiting) is not None:
        if (reason := has_not_healed(wait, facts)) is not None:
            return Turn(reason=reason, records=(WaitOver(incident=incident.id, rung=wait.rung, reason=reason),))
        return Turn(reason=f"{wait.rung!r} watches until step {wait.until_step}")
    plan = _carried_by_the_script(_planned(incident, facts, policy), facts)
    if (wait := plan.wait) is not None:  # in every mode: to watch is what all of them do
        return Turn(reason=plan.reason, records=(waiting(incident.id, wait),))
    if (skip := plan.skip) is not None:  # in every mode: nothing is done, and the next turn decides the next rung
        return Turn(reason=plan.reason, records=(skipped(incident.id, skip),))
    if plan.bisects:
        rung, newest = rungs_left(incident, policy)[0].name, facts.newest_attempt or 0
        begun = BisectBegun(incident=incident.id, rung=rung, newest_attempt=newest)
        return Turn(reason=plan.reason, records=(begun,))
    if policy.mode == "observe":
        return _shadow(incident, plan, facts)
    return _follow(plan, incident, facts, policy, memory)


def _carried_by_the_script(plan: Plan, facts: Facts) -> Plan:
    decision = plan.decision
    refusal = facts.on_demand.previews.get(digest_of(decision)) if decision is not None else None
    if decision is None or refusal is None:
        return plan
    skip = Skip(rung=decision.rung, hypothesis=decision.hypothesis, reason=refusal)
    return Plan(skip=skip, reason=f"rung {decision.rung!r}: {refusal}")


def _shadow(incident: Incident, plan: Plan, facts: Facts) -> Turn:
    """Mode observe: everything up to the action. Reading a checkpoint is no action upon the run."""
    jobs, why = facts.jobs, plan.refusal or plan.reason
    if not jobs.known and not jobs.elsewhere:
        message = plan.refusal or jobs.why_unknown
        return Turn(reason=message, message=message)
    if plan.refusal is not None and plan.refusal == settles(facts.liveness):  # seconds: what comes of it is told then
        return Turn(reason=why)
    if plan.actions and isinstance(plan.actions[0], VerifyCheckpoint):
        return Turn(reason=why, actions=plan.actions[:1], on_record=False)
    if incident.shadows or (plan.decision is None and plan.refusal is None):
        return Turn(reason=why)
    if plan.decision is None:
        return Turn(reason=why, records=(ShadowRefused(incident=incident.id, refusal=plan.refusal),))
    return Turn(reason=why, records=(Shadow.of(incident.id, plan.decision, refusal=plan.refusal),))


def _follow(plan: Plan, incident: Incident, facts: Facts, policy: Policy, memory: Memory) -> Turn:
    if plan.refusal is not None:
        return refused_turn(plan, incident)
    decision, records = plan.decision, tuple[IncidentEvent, ...]()
    if decision is not None and policy.mode == "approve":
        answer = approval_of(incident, decision, facts, policy, memory)
        if isinstance(answer, Turn):
            return answer
        records = (answer,)
    if decision is not None:
        records += (decided(incident.id, decision),)
    rollback = decision.id if decision else None
    return Turn(reason=plan.reason, records=records, actions=plan.actions[:1], incident=incident.id, rollback=rollback)


def _carry_on(incident: Incident, rollback: Rollback, facts: Facts, policy: Policy) -> Turn:
    """Carries a decision out, from wherever it stands, until the new attempt has reported what it runs with."""
    if policy.mode == "observe":
        message = f"{rollback.id} is half done, and mode is {policy.mode}: it is left as it is"
        if (parked := facts.liveness.parked) is not None and parked.rollback == rollback.id:
            message += (
                f"; attempt {parked.attempt} is parked for it until its deadline, and ends then: before that "
                "`sentinel rollback` rolls it back by a new job, or a watch in mode act goes on"
            )
        return Turn(reason=message, message=message)
    plan = plan_rollback(rollback, facts, policy)
    if plan.gives_up is not None:
        event = InPlaceGivenUp(incident=incident.id, rollback=rollback.id, reason=plan.gives_up)
        return Turn(reason=plan.reason, message=plan.reason, records=(event,))
    if plan.refusal is not None:
        turn, release = refused_turn(plan, incident), release_of(rollback, facts)
        if plan.waits or release is None:
            return turn
        return replace(turn, actions=(release,), incident=incident.id, rollback=rollback.id)
    if plan.actions and (held := on_hold(facts)) is not None:
        return held_turn(incident, rollback, plan, held.refusal or "", release_of(rollback, facts))
    if plan.actions:
        if (stop := _may_be_its_own(incident, rollback, plan, facts)) is not None:
            return stop
        return Turn(reason=plan.reason, actions=plan.actions[:1], incident=incident.id, rollback=rollback.id)
    records = (Applied(incident=incident.id, rollback=rollback.id),) if incident.status == "decided" else ()
    if not rollback.restart:
        turn = _closed(incident, "superseded", "rolled back; a person starts the job again")
    elif (attempt := started_for(facts, rollback)) is not None:
        turn = _prove(incident, rollback, attempt, facts, policy)
    else:
        turn = _not_yet_reported(incident, rollback, facts, policy)
    return replace(turn, records=(*records, *turn.records))


def _may_be_its_own(incident: Incident, rollback: Rollback, plan: Plan, facts: Facts) -> Turn | None:
    """Why checkpoints that came after a rollback was carried out are left where they are: a trainer whose log does not
    tell one life from the next reports no start, and saves them all the same."""
    first = plan.actions[0]
    reported = rollback.id in facts.started_rollbacks
    if incident.status != "applied" or reported or not isinstance(first, QuarantineCheckpoints):
        return None
    saved = f"{first.tags[0]} … {first.tags[-1]}" if len(first.tags) > 1 else first.tags[0]
    return stop_turn(
        incident,
        f"{rollback.id} was carried out, and no start of it is reported: {saved} came since, and may be its own",
    )


def _not_yet_reported(incident: Incident, rollback: Rollback, facts: Facts, policy: Policy) -> Turn:
    """The job was started, and no attempt has reported that it was started for this rollback."""
    made = made_since(facts.readings.journals, rollback.last_start_attempt)
    if made >= policy.confirm_within_steps:
        return stop_turn(
            incident, f"{rollback.id} was started, {made} steps were made since, and no start report tells the settings"
        )
    writers, within_s = facts.jobs.writers, policy.confirm_within_s
    if writers and all(w.pending for w in writers):
        return Turn(reason="the job waits in the queue, which counts as no delay")
    started = rollback.last_start_unix_s
    if started is not None and facts.now_unix_s - started > within_s:
        return stop_turn(incident, f"{rollback.id} was started {within_s:.0f} s ago and has not reported its start")
    return Turn(reason=f"{rollback.id} is carried out and has not reported its start yet")


def _prove(incident: Incident, rollback: Rollback, attempt: JournalFacts, facts: Facts, policy: Policy) -> Turn:
    """Settles what the new attempt shows of each change, once it has made its first steps, or will make no more."""
    found = facts.on_demand.evidence
    if found is None:
        return Turn(reason=f"attempt {attempt.number} has not reported its start yet")
    since, begun = rollback.last_start_unix_s or 0.0, found.started.time_unix_s
    if since <= begun and (not since or begun <= facts.now_unix_s):  # else the trainer's clock is another one, or none
        since = begun
    over = facts.now_unix_s - since > policy.confirm_within_s or attempt.finished
    over |= facts.jobs.known and not facts.jobs.writers
    if len(found.samples) < FIRST_STEPS and not over:
        return Turn(reason=f"the proof of {rollback.id} waits for the first {FIRST_STEPS} steps")
    checks = prove(rollback, found, incident.baseline)
    shown = proof_event(rollback, attempt.number, checks)
    if outcome(checks) is not Proof.CONTRADICTED:
        return Turn(reason=f"attempt {attempt.number} contradicts nothing of {rollback.id}", records=(shown,))
    by_hand = incident.onset_range is None  # what a person has asked for is theirs to settle
    if policy.on_contradicted == "next" and not by_hand and not _is_worse(checks, facts):
        wrong, seen = _contradicted(checks)
        reason = f"{wrong.what} should be {wrong.expected!r}, and attempt {attempt.number} reports {seen}"
        return Turn(reason=reason, records=(shown, rung_failed(rollback, attempt.number, reason, facts.verdict)))
    return _no_effect(incident, rollback, attempt, facts, checks, shown)


_OF_THE_START = ("rollback", "resumed_from", "first_sample_index")


def _is_worse(checks: Sequence[Check], facts: Facts) -> bool:
    """Whether what runs is worse than before the rollback, not just unchanged: another checkpoint or other data than
    decided, or a state that is not the one that was saved."""
    wrong, start = [c.what for c in checks if c.answer is Proof.CONTRADICTED], facts.on_demand.start
    return any(what.startswith(_OF_THE_START) for what in wrong) or (start is not None and start.spoils)


def _contradicted(checks: Sequence[Check]) -> tuple[Check, str]:
    """The first change that is contradicted, and what was seen instead."""
    wrong = next(check for check in checks if check.answer is Proof.CONTRADICTED)
    return wrong, f"{wrong.reported!r} ({wrong.why})" if wrong.why else repr(wrong.reported)


def _no_effect(
    incident: Incident,
    rollback: Rollback,
    attempt: JournalFacts,
    facts: Facts,
    checks: Sequence[Check],
    shown: ChecksShown,
) -> Turn:
    """A change that did not take effect is an incident of its own, and both wait for a person."""
    wrong, seen = _contradicted(checks)
    turn = stop_turn(
        incident,
        f"{rollback.id} did not take effect: {wrong.what} should be {wrong.expected!r}, "
        f"and attempt {attempt.number} reports {seen}",
    )
    if any(other.ignored == rollback.id for other in facts.incidents):
        return replace(turn, records=(shown, *turn.records))
    own = ignored(facts.next_incident, rollback, attempt.number, incident.baseline, tuple(checks))
    return replace(turn, records=(shown, own, *turn.records))


def _hold(incident: Incident, rollback: Rollback, facts: Facts) -> Turn:
    attempt, verdict, found = started_for(facts, rollback), facts.verdict, facts.on_demand.recovery
    if attempt is None:
        return Turn(reason=f"the newest attempt was not started for {rollback.id}")
    if verdict.kind is VerdictKind.DIVERGED:
        reason = f"diverged again: {verdict.reason}"
        return Turn(reason=reason, records=(rung_failed(rollback, attempt.number, reason, verdict),))
    if incident.onset_range is None:  # a person's own rollback: there is no divergence to recover from
        if rollback.proof is Proof.CONFIRMED:
            return _closed(incident, "proved", f"attempt {attempt.number} runs with what was asked for")
        doubts = ", ".join(rollback.doubts)
        return _closed(incident, "not_verified", f"attempt {attempt.number} runs; not verified: {doubts}")
    if found is None or found.answer is RecoveryOutcome.NOT_YET:
        return Turn(reason=found.reason if found is not None else "its recovery is not known yet")
    if found.answer is RecoveryOutcome.RECOVERED:
        return _closed(incident, "recovered", found.reason, facts.readings.judged_step)
    if found.answer is RecoveryOutcome.HELD:
        return _closed(incident, "held", found.reason, facts.readings.judged_step)
    return Turn(reason=found.reason, records=(rung_failed(rollback, attempt.number, found.reason, verdict),))


def _closed(incident: Incident, outcome: str, reason: str, judged_step: int | None = None) -> Turn:
    return Turn(reason=reason, records=(closed(incident.id, outcome, reason, judged_step),))


def made_since(attempts: Iterable[JournalFacts], started_after: int | None) -> int:
    """Steps of the attempts that began after the job's start was intended; 0 where it was not recorded after which. By
    attempts, not by times: the trainer's clock and the daemon's may differ by minutes."""
    if started_after is None:
        return 0
    return sum(attempt.made for attempt in attempts if attempt.number > started_after)
