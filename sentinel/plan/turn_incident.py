"""incident_turn(incident, look, policy) -> Turn: an open incident one step further: decide, carry out, prove, hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from sentinel.judge.history import Attempt, History
from sentinel.judge.recovery_check import Answer
from sentinel.judge.verdict import VerdictKind
from sentinel.plan.actions import QuarantineCheckpoints, VerifyCheckpoint
from sentinel.plan.baseline import filled
from sentinel.plan.decision import decide, has_not_healed, plan_recovery
from sentinel.plan.evidence import FIRST_STEPS
from sentinel.plan.incident import Event, Incident, Proof, Rollback, Skip, digest_of
from sentinel.plan.incident_events import closed, decided, event, ignored, proof, race_begun, rung_failed
from sentinel.plan.look import Look, Turn, started_for
from sentinel.plan.policy import Policy
from sentinel.plan.proof import Check, outcome, prove
from sentinel.plan.race import race_of
from sentinel.plan.rollback import Plan, plan_rollback
from sentinel.plan.turn_probes import refused_turn, stop_turn, turn_beside


def incident_turn(incident: Incident, look: Look, policy: Policy) -> Turn:
    if incident.current is None:
        completed = filled(incident.baseline, look.run.jobs.script_baseline)
        if completed == incident.baseline:
            return _decide(incident, look, policy)
        reason = "the job script could be read: its settings complete the incident's baseline"
        return Turn(reason=reason, records=(event("baseline_completed", incident.id, baseline=completed.to_json()),))
    if incident.status in ("decided", "applied"):
        return _carry_on(incident, incident.current, look, policy)
    return _hold(incident, incident.current, look)


def to_preview(look: Look, policy: Policy) -> Rollback | None:
    """The decision that is to be tried on the job script before the turn; None where none is, or it is known."""
    incident = look.run.open_incident
    if incident is None or incident.current is not None or not look.run.jobs.rewrites_script:
        return None
    decision = _planned(incident, look, policy).decision
    known = decision is None or not decision.restart or digest_of(decision) in look.memory.previews
    return None if known else decision


def _planned(incident: Incident, look: Look, policy: Policy) -> Plan:
    """Once the job was stopped for a race or a bisect, the verdict is no longer that of a run that trains."""
    if incident.races or incident.bisect is not None:
        return decide(incident, look.run, policy)
    return plan_recovery(look.verdict, look.run, policy)


def _decide(incident: Incident, look: Look, policy: Policy) -> Turn:
    if (beside := turn_beside(incident, look, policy)) is not None:
        return beside
    if incident.onset_range is None and not incident.rollbacks:  # it has no onset to choose a target by
        return _closed(incident, "superseded", "what a person asked for was cut short before it was begun")
    well = look.verdict.kind in (VerdictKind.HEALTHY, VerdictKind.FINISHED)
    if well and (not incident.rollbacks or incident.waiting is not None):
        return _closed(incident, "healed", f"the run is {look.verdict.kind} again, without a rollback")
    if (wait := incident.waiting) is not None:
        if (reason := has_not_healed(wait, look.verdict, look.run)) is not None:
            return Turn(reason=reason, records=(event("wait_over", incident.id, rung=wait.rung, reason=reason),))
        return Turn(reason=f"{wait.rung!r} watches until step {wait.until_step}")
    plan = _carried_by_the_script(_planned(incident, look, policy), look)
    if plan.decision is not None and (race := race_of(incident, look.run, policy)) is not None:
        if isinstance(race, Plan):
            return _follow(race, incident, look, policy)
        rungs = ", ".join(repr(entrant.rung) for entrant in race.entrants)
        return Turn(reason=f"{rungs} race to step {race.until_step}", records=(race_begun(incident.id, race),))
    if (wait := plan.wait) is not None:  # in every mode: to watch is what all of them do
        named = {"rung": wait.rung, "hypothesis": wait.hypothesis}
        waiting = event("waiting", incident.id, **named, from_step=wait.from_step, until_step=wait.until_step)
        return Turn(reason=plan.reason, records=(waiting,))
    if (skip := plan.skip) is not None:  # in every mode: nothing is done, and the next turn decides the next rung
        return Turn(reason=plan.reason, records=(event("rung_skipped", incident.id, **asdict(skip)),))
    if plan.bisects:
        facts = {"rung": policy.ladder[incident.tried].name, "newest_attempt": look.newest_attempt or 0}
        return Turn(reason=plan.reason, records=(event("bisect_begun", incident.id, **facts),))
    return _shadow(incident, plan, look) if policy.mode == "observe" else _follow(plan, incident, look, policy)


def _carried_by_the_script(plan: Plan, look: Look) -> Plan:
    decision = plan.decision
    refusal = look.memory.previews.get(digest_of(decision)) if decision is not None else None
    if decision is None or refusal is None:
        return plan
    skip = Skip(rung=decision.rung, hypothesis=decision.hypothesis, reason=refusal)
    return Plan(skip=skip, reason=f"rung {decision.rung!r}: {refusal}")


def _shadow(incident: Incident, plan: Plan, look: Look) -> Turn:
    """Mode observe: everything up to the action. Reading a checkpoint is no action upon the run."""
    jobs, why = look.run.jobs, plan.refusal or plan.reason
    if not jobs.known and not jobs.elsewhere:
        message = plan.refusal or jobs.why_unknown
        return Turn(reason=message, message=message)
    if plan.actions and isinstance(plan.actions[0], VerifyCheckpoint):
        return Turn(reason=why, actions=plan.actions[:1], on_record=False)
    if incident.shadows or (plan.decision is None and plan.refusal is None):
        return Turn(reason=why)
    if plan.decision is None:
        return Turn(reason=why, records=(event("shadow", incident.id, refusal=plan.refusal),))
    return Turn(reason=why, records=(decided("shadow", incident.id, plan.decision, refusal=plan.refusal),))


def _follow(plan: Plan, incident: Incident, look: Look, policy: Policy) -> Turn:
    if plan.refusal is not None:
        return refused_turn(plan, incident)
    decision, records = plan.decision, tuple[Event, ...]()
    if decision is not None and policy.mode == "approve":
        answer = _approval(incident, decision, look, policy)
        if isinstance(answer, Turn):
            return answer
        records = (answer,)
    if decision is not None:
        records += (decided("decided", incident.id, decision),)
    rollback = decision.id if decision else None
    return Turn(reason=plan.reason, records=records, actions=plan.actions[:1], incident=incident.id, rollback=rollback)


def _approval(incident: Incident, decision: Rollback, look: Look, policy: Policy) -> Event | Turn:
    """A person's yes to just this decision, as the event to record; else the turn that asks for it or waits."""
    digest, proposal = digest_of(decision), incident.proposal
    if proposal is None or proposal.digest != digest:
        reason = "a person is asked to agree" if proposal is None else "the plan has changed: a person is asked again"
        return Turn(reason=reason, records=(decided("proposed", incident.id, decision, digest=digest),))
    if proposal.expired:
        return Turn(reason="the proposal has expired unanswered: nothing is done")
    approval = look.run.approvals.get(incident.id)
    if approval is not None and approval.digest == digest:
        if decision.target_tag is None or digest in look.memory.verified_for:
            return event("approved", incident.id, digest=digest, by=approval.by)
        again = VerifyCheckpoint(decision.target_tag)  # their yes may be hours old
        reason = f"approved by {approval.by}: {decision.target_tag} is read once more"
        return Turn(reason=reason, actions=(again,), incident=incident.id, verified_for=digest)
    if look.run.now_unix_s - proposal.proposed_unix_s > policy.approve_within_s:
        reason = f"no approval came within {policy.approve_within_s:.0f} s"
        return Turn(reason=reason, records=(event("expired", incident.id, digest=digest),))
    return Turn(reason=f"waits for `sentinel approve {incident.id}`")


def _carry_on(incident: Incident, rollback: Rollback, look: Look, policy: Policy) -> Turn:
    """Carries a decision out, from wherever it stands, until the new attempt has reported what it runs with."""
    if policy.mode == "observe":
        message = f"{rollback.id} is half done, and mode is {policy.mode}: it is left as it is"
        return Turn(reason=message, message=message)
    plan = plan_rollback(rollback, look.run, policy)
    if plan.refusal is not None:
        return refused_turn(plan, incident)
    if plan.actions:
        if (stop := _may_be_its_own(incident, rollback, plan, look)) is not None:
            return stop
        return Turn(reason=plan.reason, actions=plan.actions[:1], incident=incident.id, rollback=rollback.id)
    records = (event("applied", incident.id, rollback=rollback.id),) if incident.status == "decided" else ()
    if not rollback.restart:
        turn = _closed(incident, "superseded", "rolled back; a person starts the job again")
    elif (attempt := started_for(look, rollback)) is not None:
        turn = _prove(incident, rollback, attempt, look, policy)
    else:
        turn = _not_yet_reported(incident, rollback, look, policy)
    return replace(turn, records=(*records, *turn.records))


def _may_be_its_own(incident: Incident, rollback: Rollback, plan: Plan, look: Look) -> Turn | None:
    """Why checkpoints that came after a rollback was carried out are left where they are: a trainer whose log does not
    tell one life from the next reports no start, and saves them all the same."""
    first = plan.actions[0]
    reported = rollback.id in look.run.started_rollbacks
    if incident.status != "applied" or reported or not isinstance(first, QuarantineCheckpoints):
        return None
    saved = f"{first.tags[0]} … {first.tags[-1]}" if len(first.tags) > 1 else first.tags[0]
    return stop_turn(
        incident,
        f"{rollback.id} was carried out, and no start of it is reported: {saved} came since, and may be its own",
    )


def _not_yet_reported(incident: Incident, rollback: Rollback, look: Look, policy: Policy) -> Turn:
    """The job was started, and no attempt has reported that it was started for this rollback."""
    made = made_since(look.history, rollback.last_start_attempt)
    if made >= policy.confirm_within_steps:
        return stop_turn(
            incident, f"{rollback.id} was started, {made} steps were made since, and no start report tells the settings"
        )
    writers, within_s = look.run.jobs.writers, policy.confirm_within_s
    if writers and all(w.pending for w in writers):
        return Turn(reason="the job waits in the queue, which counts as no delay")
    started = rollback.last_start_unix_s
    if started is not None and look.run.now_unix_s - started > within_s:
        return stop_turn(incident, f"{rollback.id} was started {within_s:.0f} s ago and has not reported its start")
    return Turn(reason=f"{rollback.id} is carried out and has not reported its start yet")


def _prove(incident: Incident, rollback: Rollback, attempt: Attempt, look: Look, policy: Policy) -> Turn:
    """Settles what the new attempt shows of each change, once it has made its first steps, or will make no more."""
    found, run = look.evidence, look.run
    if found is None:
        return Turn(reason=f"attempt {attempt.number} has not reported its start yet")
    since = max(rollback.last_start_unix_s or 0.0, found.started.time_unix_s)  # two clocks; the second may be nan
    over = run.now_unix_s - since > policy.confirm_within_s or attempt.finished is not None
    over |= run.jobs.known and not run.jobs.writers
    if len(found.samples) < FIRST_STEPS and not over:
        return Turn(reason=f"the proof of {rollback.id} waits for the first {FIRST_STEPS} steps")
    checks = prove(rollback, found, incident.baseline)
    shown = proof(rollback, attempt.number, checks)
    if outcome(checks) is not Proof.CONTRADICTED:
        return Turn(reason=f"attempt {attempt.number} contradicts nothing of {rollback.id}", records=(shown,))
    return _no_effect(incident, rollback, attempt, look, checks, shown)


def _no_effect(
    incident: Incident, rollback: Rollback, attempt: Attempt, look: Look, checks: Sequence[Check], shown: Event
) -> Turn:
    """A change that did not take effect is an incident of its own, and both wait for a person."""
    wrong = next(check for check in checks if check.answer is Proof.CONTRADICTED)
    seen = f"{wrong.reported!r} ({wrong.why})" if wrong.why else repr(wrong.reported)
    turn = stop_turn(
        incident,
        f"{rollback.id} did not take effect: {wrong.what} should be {wrong.expected!r}, "
        f"and attempt {attempt.number} reports {seen}",
    )
    if any(other.ignored == rollback.id for other in look.run.incidents):
        return replace(turn, records=(shown, *turn.records))
    own = ignored(look.run.next_incident, rollback, attempt.number, incident.baseline, tuple(checks))
    return replace(turn, records=(shown, own, *turn.records))


def _hold(incident: Incident, rollback: Rollback, look: Look) -> Turn:
    attempt, verdict, found = started_for(look, rollback), look.verdict, look.recovery
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
    if found is None or found.answer is Answer.NOT_YET:
        return Turn(reason=found.reason if found is not None else "its recovery is not known yet")
    if found.answer is Answer.RECOVERED:
        return _closed(incident, "recovered", found.reason)
    return Turn(reason=found.reason, records=(rung_failed(rollback, attempt.number, found.reason, verdict),))


def _closed(incident: Incident, outcome: str, reason: str) -> Turn:
    return Turn(reason=reason, records=(closed(incident.id, outcome, reason),))


def made_since(history: History, started_after: int | None) -> int:
    """Steps of the attempts that began after the job's start was intended; 0 where it was not recorded after which. By
    attempts, not by times: the trainer's clock and the daemon's may differ by minutes."""
    if started_after is None:
        return 0
    return sum(attempt.made for number, attempt in history.attempts.items() if number > started_after)
