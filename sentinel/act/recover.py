"""One open incident, taken a turn further: decide, carry out, prove, hold."""

from __future__ import annotations

import logging
from enum import IntEnum

from sentinel.act.execute import Perform, execute
from sentinel.act.first_steps import evidence
from sentinel.act.ledger import Ledger
from sentinel.act.observe import Look, Observer
from sentinel.act.recovery_tracker import Held
from sentinel.durable import os_errors_named
from sentinel.judge.history import Attempt, History
from sentinel.judge.recovery_check import Answer
from sentinel.judge.verdict import VerdictKind
from sentinel.plan.actions import VerifyCheckpoint, describe
from sentinel.plan.approval import Approval, digest_of
from sentinel.plan.baseline import filled
from sentinel.plan.evidence import FIRST_STEPS
from sentinel.plan.incident import Incident, Rollback, Skip
from sentinel.plan.observation import JobsSeen
from sentinel.plan.policy import Policy
from sentinel.plan.proof import prove
from sentinel.plan.proof_value import Proof
from sentinel.plan.rollback import Plan, plan_recovery, plan_rollback
from sentinel.plan.wait_rung import has_not_healed
from sentinel.vocabulary.errors import ConfigError, PermanentError, ScriptRefused, TemporaryError

__all__ = ["Done", "Recoverer"]

log = logging.getLogger(__name__)

_MOST_ACTIONS = 50
"""A plan has at most seven actions; more turns than this mean that an effect is not seen."""


class Done(IntEnum):
    """Why a watch has ended, as its exit code."""

    FINISHED = 0
    """The run ran to its end and is well."""

    NOT_WELL = 1
    """The run ran to its end with an incident that nobody settled: in mode observe sentinel only says so."""

    PERSON_NEEDED = 4
    """sentinel has stopped acting."""


class Recoverer:
    """What is done about an incident. Each method is one turn; it returns why the watch is over, or None."""

    def __init__(self, observer: Observer, perform: Perform, policy: Policy, ledger: Ledger) -> None:
        self._observer = observer
        self._perform = perform
        self._policy = policy
        self._ledger = ledger
        self._held = Held()
        self._verified_again: set[str] = set()
        self._carried: dict[str, Skip | None] = {}

    def turn(self, incident: Incident, look: Look) -> Done | None:
        """One turn, from wherever the incident stands."""
        if incident.current is None:
            return None if self._completed_baseline(incident, look) else self._decide(incident, look)
        if incident.status in ("decided", "applied"):
            return self._carry_on(incident, incident.current, look)
        return self._hold(incident, incident.current, look)

    def do(self, plan: Plan, incident: str | None, rollback: str | None) -> None:
        """The plan's first action; the next turn looks again and plans for what is then still missing."""
        action = plan.actions[0]
        self._ledger.say(describe(action))
        newest = self._observer.newest_attempt
        execute(action, incident, rollback, self._perform, self._ledger.record, newest_attempt=newest)

    def carry_out(self, rollback: Rollback, now_unix_s: float) -> None:
        """Carries one decision out to its end, for a person's own rollback. PermanentError with the refusal."""
        for _ in range(_MOST_ACTIONS):
            run = self._observer.look(now_unix_s).run
            recorded = next((r for i in run.incidents for r in i.rollbacks if r.id == rollback.id), rollback)
            plan = plan_rollback(recorded, run, self._policy)
            if plan.refusal is not None:
                raise TemporaryError(plan.refusal) if plan.waits else PermanentError(plan.refusal)
            if not plan.actions:
                self._ledger.applied(rollback)
                return
            self.do(plan, rollback.overrides.incident, rollback.id)
        raise PermanentError(f"{rollback.id}: the same actions are planned again and again; their effect is not seen")

    def _decide(self, incident: Incident, look: Look) -> Done | None:
        if incident.onset_range is None and not incident.rollbacks:  # it has no onset to choose a target by
            self._ledger.closed(incident.id, "superseded", "what a person asked for was cut short before it was begun")
            return None
        well = look.verdict.kind in (VerdictKind.HEALTHY, VerdictKind.FINISHED)
        if well and (not incident.rollbacks or incident.waiting is not None):
            self._ledger.closed(incident.id, "healed", f"the run is {look.verdict.kind} again, without us")
            return None
        if (wait := incident.waiting) is not None:
            if (reason := has_not_healed(wait, look.verdict, look.run)) is not None:
                self._ledger.wait_over(incident.id, wait, reason)
            return None
        plan = plan_recovery(look.verdict, look.run, self._policy)
        if look.run.jobs.rewrites_script:
            plan = self._carried_by_the_script(plan)
        if plan.wait is not None:  # in every mode: to watch is what all of them do
            self._ledger.waiting(incident.id, plan.wait)
        elif plan.skip is not None:  # in every mode: nothing is done, and the next turn decides the next rung
            self._ledger.rung_skipped(incident.id, plan.skip)
        elif self._policy.mode == "observe":
            self._shadow(incident, plan, look.run.jobs)
        else:
            return self._follow(plan, incident, look)
        return None

    def _carried_by_the_script(self, plan: Plan) -> Plan:
        """A skip in place of a decision that the job script can't carry; asked once for each decision."""
        decision = plan.decision
        if decision is None or not decision.restart:
            return plan
        digest = digest_of(decision)
        if digest not in self._carried:
            skip = None
            try:
                self._observer.preview(decision.overrides)
            except (ConfigError, ScriptRefused) as error:
                skip = Skip(rung=decision.rung, hypothesis=decision.hypothesis, reason=str(error))
            self._carried[digest] = skip
        skipped = self._carried[digest]
        return plan if skipped is None else Plan(skip=skipped, reason=f"rung {decision.rung!r}: {skipped.reason}")

    def _follow(self, plan: Plan, incident: Incident, look: Look) -> Done | None:
        """Modes approve and act: stops at a refusal, records a decision, does the plan's first action."""
        if plan.refusal is not None:
            if plan.waits:
                self._ledger.say(plan.refusal)
                return None
            return self._stop(incident, plan.refusal)
        if plan.decision is not None:
            if self._policy.mode == "approve" and not self._agreed(incident, plan.decision, look):
                return None
            self._ledger.decided(incident.id, plan.decision)
        if plan.actions:
            self.do(plan, incident.id, plan.decision.id if plan.decision else None)
        return None

    def _agreed(self, incident: Incident, decision: Rollback, look: Look) -> bool:
        """Mode approve: whether a person has said yes to just this; asks for it, again when the plan has changed.

        Their yes may be hours old: the target is read once more before it counts.
        """
        digest, proposal = digest_of(decision), incident.proposal
        if proposal is None or proposal.digest != digest:
            self._ledger.proposed(incident.id, decision, digest)
            return False
        approval = look.run.approvals.get(incident.id)
        if proposal.expired or approval is None or approval.digest != digest:
            waited_s = look.run.now_unix_s - proposal.proposed_unix_s
            if not proposal.expired and waited_s > self._policy.approve_within_s:
                self._ledger.expired(incident.id, digest)
            return False
        if digest not in self._verified_again:
            self._verified_again.add(digest)
            self._observer.forget((decision.target_tag,) if decision.target_tag else ())
            return decision.target_tag is None and self._said_yes(incident, approval)
        return self._said_yes(incident, approval)

    def _said_yes(self, incident: Incident, approval: Approval) -> bool:
        self._ledger.approved(incident.id, approval)
        return True

    def _completed_baseline(self, incident: Incident, look: Look) -> bool:
        """Whether something was missing of the baseline and is on record now: Slurm was away at the alarm."""
        completed = filled(incident.baseline, look.run.jobs.script_baseline)
        if completed == incident.baseline:
            return False
        self._ledger.baseline_completed(incident.id, completed)
        return True

    def _shadow(self, incident: Incident, plan: Plan, jobs: JobsSeen) -> None:
        """Mode observe: everything up to the action. Reading a checkpoint is no action upon the run."""
        if not jobs.known and not jobs.elsewhere:
            self._ledger.say(plan.refusal or jobs.why_unknown)
        elif plan.actions and isinstance(plan.actions[0], VerifyCheckpoint):
            with os_errors_named("a file of the run"):
                self._perform(plan.actions[0])
        elif not incident.shadows and (plan.decision is not None or plan.refusal is not None):
            self._ledger.shadow(incident.id, plan, self._policy.mode)

    def _carry_on(self, incident: Incident, rollback: Rollback, look: Look) -> Done | None:
        """Carries a decision out, from wherever it stands, until the new attempt has said what it runs with."""
        if self._policy.mode == "observe":
            self._ledger.say(f"{rollback.id} is half done, and mode is {self._policy.mode}: it is left as it is")
            return None
        plan = plan_rollback(rollback, look.run, self._policy)
        if plan.refusal is not None:
            if plan.waits:
                self._ledger.say(plan.refusal)
                return None
            return self._stop(incident, plan.refusal)
        if plan.actions:
            self.do(plan, incident.id, rollback.id)
            return None
        if incident.status == "decided":
            self._ledger.applied(rollback)
        if not rollback.restart:
            self._ledger.closed(incident.id, "superseded", "rolled back; a person starts the job again")
            return None
        attempt = look.history.latest
        if attempt is not None and attempt.started is not None and attempt.started.rollback == rollback.id:
            return self._prove(incident, rollback, attempt, look)
        asked = rollback.last_start_unix_s
        made = _made_since(look.history, rollback.last_start_attempt)
        if made >= self._policy.confirm_within_steps:
            return self._stop(
                incident, f"{rollback.id} was started, {made} steps were made since, and nobody says with what"
            )
        writers = look.run.jobs.writers
        if writers and all(w.pending for w in writers):  # a queue's hours are nobody's delay
            return None
        if asked is not None and look.run.now_unix_s - asked > self._policy.confirm_within_s:
            within_s = self._policy.confirm_within_s
            return self._stop(
                incident, f"{rollback.id} was started {within_s:.0f} s ago and has not reported its start"
            )
        return None

    def _prove(self, incident: Incident, rollback: Rollback, attempt: Attempt, look: Look) -> Done | None:
        """Settles what the new attempt shows of each change, once it has made its first steps.

        Earlier where no step is to be expected any more.
        """
        found = evidence(look.history, attempt, before=incident.attempt)
        if found is None:
            return None
        since = max(rollback.last_start_unix_s or 0.0, found.started.time_unix_s)  # two clocks; the second may be nan
        over = look.run.now_unix_s - since > self._policy.confirm_within_s or attempt.finished is not None
        over |= look.run.jobs.known and not look.run.jobs.writers
        if len(found.samples) < FIRST_STEPS and not over:
            return None
        checks = prove(rollback, found, incident.baseline)
        if self._ledger.proof(rollback, attempt.number, checks) is not Proof.CONTRADICTED:
            return None
        wrong = next(check for check in checks if check.answer is Proof.CONTRADICTED)
        seen = f"{wrong.reported!r} ({wrong.why})" if wrong.why else repr(wrong.reported)
        if not any(other.ignored == rollback.id for other in look.run.incidents):
            self._ledger.ignored(look.run.next_incident, rollback, attempt, incident.baseline, checks)
        return self._stop(
            incident,
            f"{rollback.id} did not take effect: {wrong.what} should be {wrong.expected!r}, "
            f"and attempt {attempt.number} reports {seen}",
        )

    def _hold(self, incident: Incident, rollback: Rollback, look: Look) -> Done | None:
        """Waits until the restart has recovered, or its rung has failed."""
        attempt = look.history.latest
        if attempt is None or attempt.started is None or attempt.started.rollback != rollback.id:
            return None
        if look.verdict.kind is VerdictKind.DIVERGED:
            self._ledger.rung_failed(rollback, attempt.number, f"diverged again: {look.verdict.reason}", look.verdict)
            return None
        if incident.onset_range is None:  # a person's own rollback: there is no illness to recover from
            self._ledger.closed(incident.id, *_asked_for(rollback, attempt))
            return None
        answer = self._held.recovery(incident, rollback, attempt, look, hold_steps=self._policy.hold_steps)
        if answer.answer is Answer.RECOVERED:
            self._ledger.closed(incident.id, "recovered", answer.reason)
        elif answer.answer is Answer.FAILED:
            self._ledger.rung_failed(rollback, attempt.number, answer.reason, look.verdict)
        return None

    def _stop(self, incident: Incident, reason: str) -> Done:
        self._ledger.stopped(incident, reason)
        return Done.PERSON_NEEDED


def _asked_for(rollback: Rollback, attempt: Attempt) -> tuple[str, str]:
    """The end of a person's own rollback: its outcome, and the sentence."""
    if rollback.proof is Proof.CONFIRMED:
        return "proved", f"attempt {attempt.number} runs with what was asked for"
    return "not_verified", f"attempt {attempt.number} runs; not verified: {', '.join(rollback.doubts)}"


def _made_since(history: History, started_after: int | None) -> int:
    """Steps of the attempts that began after the job's start was intended; 0 where it was not recorded after which.

    By attempts, not by times: the trainer's clock and the daemon's may differ by minutes.
    """
    if started_after is None:
        return 0
    return sum(attempt.made for number, attempt in history.attempts.items() if number > started_after)
