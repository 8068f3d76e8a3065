"""The loop: observe, judge, plan, execute, prove, sleep."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

from sentinel.act.execute import Perform, execute
from sentinel.act.observe import Look, Neighbours, Observer, baseline_of, warmup_end
from sentinel.judge.history import Attempt, History
from sentinel.judge.recovered import Answer, Danger, best_mean, recovery
from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.actions import VerifyCheckpoint, describe
from sentinel.plan.incident import Incident, Rollback, baseline_to_json, incident_id, overrides_to_json
from sentinel.plan.policy import Policy
from sentinel.plan.proof import prove
from sentinel.plan.recovery import Plan, plan_recovery, plan_restart, plan_rollback
from sentinel.vocabulary.errors import PermanentError, TemporaryError

__all__ = ["Done", "Watch", "carry_out", "decided_event"]

log = logging.getLogger(__name__)

Say = Callable[[str], None]
"""Tells the person at the terminal one thing, in one line."""


class Done(IntEnum):
    """Why a watch has ended, as its exit code."""

    FINISHED = 0
    """The run ran to its end and is well."""

    NOT_WELL = 1
    """The run ended, and is not well: diverged or down."""

    PERSON_NEEDED = 4
    """sentinel has stopped acting."""


class Watch:
    """Follows one run. `tick` is one turn; it returns why the watch is over, or None."""

    def __init__(
        self,
        neighbours: Neighbours,
        observer: Observer,
        perform: Perform,
        policy: Policy,
        *,
        clock: Callable[[], float],
        say: Say,
    ) -> None:
        self._near = neighbours
        self._observer = observer
        self._perform = perform
        self._policy = policy
        self._clock = clock
        self._say = say
        self._said: tuple[VerdictKind, int | None] | None = None
        self.last: Look | None = None
        """What the last turn saw."""

    def tick(self) -> Done | None:
        """One turn of the loop. A TemporaryError is logged and will be tried again; a PermanentError is raised."""
        look = self.last = self._observer.look(self._clock())
        self._announce(look)
        try:
            return self._turn(look)
        except TemporaryError as error:
            log.warning("%s; trying again", error)
            return None

    def _turn(self, look: Look) -> Done | None:
        incident = look.run.open_incident
        if incident is None:
            return self._without_incident(look)
        if look.verdict.kind is VerdictKind.DIVERGED and self._tried_in_vain(incident, look):
            return None
        if incident.current is None:
            return self._recover(incident, look)
        if incident.status in ("decided", "applied"):
            return self._carry_on(incident, incident.current, look)
        return self._hold(incident, incident.current, look)

    def _without_incident(self, look: Look) -> Done | None:
        attempt = look.history.latest
        stopped = [i for i in look.run.incidents if i.status == "stopped"]
        if stopped:
            self._say(f"{stopped[-1].id} waits for a person: {stopped[-1].note}")
            return Done.PERSON_NEEDED
        if look.verdict.kind is VerdictKind.DIVERGED and attempt is not None:
            self._open(look, attempt)
            return None
        if look.verdict.kind is VerdictKind.DOWN:
            return self._restart(look)
        return Done.FINISHED if look.verdict.kind is VerdictKind.FINISHED else None

    def _open(self, look: Look, attempt: Attempt) -> None:
        verdict = look.verdict
        onset = verdict.onset_range
        before = [s for s in look.history.lineage(attempt) if onset is None or s.global_step < onset[0]]
        baseline = baseline_of(attempt.started)
        at = look.history.position(attempt, onset[1]) if onset else None
        self._record(
            {
                "event": "opened",
                "incident": incident_id(len(look.run.incidents) + 1),
                "attempt": attempt.number,
                "onset_range": onset,
                "alarm_step": verdict.alarm_step,
                "onset_tokens": at.consumed_tokens if at else None,
                "best_mean": best_mean(before, full_seqlen=baseline.full_seqlen),
                "reason": verdict.reason,
                "led_by": verdict.led_by,
                "baseline": baseline_to_json(baseline),
                "overrides": overrides_to_json(look.run.overrides),
            }
        )
        self._say(f"incident: {verdict.reason}")

    def _recover(self, incident: Incident, look: Look) -> Done | None:
        """Decides the next rung and begins to carry it out; in mode observe only says so."""
        plan = plan_recovery(look.verdict, look.run, self._policy)
        if self._policy.mode != "act":
            return self._shadow(incident, plan, look)
        if plan.refusal is not None:
            if "cooldown" in plan.refusal or look.run.paused:
                log.info("%s", plan.refusal)
                return None
            return self._stop(incident, plan.refusal)
        if plan.decision is not None:
            self._record(decided_event(incident.id, plan.decision))
            said = "; ".join(plan.decision.changes) or "no change but the checkpoint"
            self._say(
                f"{plan.decision.id}: {plan.decision.rung} ({said}), from {plan.decision.target_tag or 'scratch'}"
            )
        if plan.actions:
            self._do(plan, incident.id, plan.decision.id if plan.decision else None)
        return None

    def _shadow(self, incident: Incident, plan: Plan, look: Look) -> Done | None:
        if look.verdict.kind is not VerdictKind.DIVERGED:
            if look.verdict.kind in (VerdictKind.HEALTHY, VerdictKind.FINISHED):
                self._close(incident, "healed", f"the run is {look.verdict.kind} again, without us")
            return Done.NOT_WELL if look.verdict.kind is VerdictKind.DOWN else None
        if plan.actions and isinstance(plan.actions[0], VerifyCheckpoint):  # reading is no action upon the run
            self._perform(plan.actions[0])
            return None
        if not incident.shadows:
            decision = plan.decision
            event = decided_event(incident.id, decision) if decision else {"incident": incident.id}
            self._record(event | {"event": "shadow", "refusal": plan.refusal})
            would = (
                f"would apply {decision.rung!r} from {decision.target_tag or 'scratch'}" if decision else plan.refusal
            )
            self._say(f"{incident.id}: mode is {self._policy.mode}: {would}")
        ended = not look.run.writers
        return Done.NOT_WELL if ended else None

    def _carry_on(self, incident: Incident, rollback: Rollback, look: Look) -> Done | None:
        """Carries a decision out, from wherever it stands, until the new attempt has said what it runs with."""
        plan = plan_rollback(rollback, look.run, self._policy)
        if plan.refusal is not None:
            return self._stop(incident, plan.refusal)
        if plan.actions:
            self._do(plan, incident.id, rollback.id)
            return None
        if incident.status == "decided":
            self._record({"event": "applied", "incident": incident.id, "rollback": rollback.id})
        if not rollback.restart:
            self._close(incident, "superseded", "rolled back; starting the job again is left to the person who asked")
            return None
        attempt = look.history.latest
        if attempt is not None and attempt.started is not None and attempt.started.rollback == rollback.id:
            return self._prove(incident, rollback, attempt)
        asked = rollback.last_start_unix_s
        if asked is not None and look.run.now_unix_s - asked > self._policy.confirm_within_s:
            return self._stop(
                incident,
                f"{rollback.id} was started {self._policy.confirm_within_s:.0f} s ago and has "
                "not reported what it runs with",
            )
        return None

    def _prove(self, incident: Incident, rollback: Rollback, attempt: Attempt) -> Done | None:
        started = attempt.started
        if started is None:
            return None
        checks = prove(rollback, started)
        holds = all(check.holds for check in checks)
        self._record(
            {
                "event": "proved" if holds else "not_proved",
                "incident": incident.id,
                "rollback": rollback.id,
                "attempt": attempt.number,
                "checks": [check.to_json() for check in checks],
            }
        )
        if holds:
            self._say(f"{rollback.id}: attempt {attempt.number} runs with what was decided ({len(checks)} checks)")
            return None
        wrong = next(check for check in checks if not check.holds)
        return self._stop(
            incident,
            f"{rollback.id} did not take effect: {wrong.what} should be {wrong.expected!r}, "
            f"and attempt {attempt.number} reports {wrong.reported!r}",
        )

    def _hold(self, incident: Incident, rollback: Rollback, look: Look) -> Done | None:
        if look.verdict.kind is VerdictKind.DOWN:
            return self._restart(look)
        attempt = look.history.latest
        if attempt is None or attempt.started is None:
            return None
        if incident.onset_range is None:  # a person's own rollback: there is no illness to recover from
            self._close(incident, "proved", f"attempt {attempt.number} runs with what was asked for")
            return None
        finished = look.verdict.kind is VerdictKind.FINISHED
        lineage = look.history.lineage(attempt)
        answer = recovery(
            _before(look.history, incident),
            [s for s in lineage if s.global_step > rollback.target_step],
            look.series,
            _danger(incident, attempt, self._policy),
            full_seqlen=attempt.started.full_seqlen,
            finished=finished,
        )
        if answer.answer is Answer.RECOVERED:
            self._close(incident, "recovered", answer.reason)
        elif answer.answer is Answer.FAILED:
            self._rung_failed(incident, rollback, attempt.number, answer.reason, look.verdict)
        return None

    def _tried_in_vain(self, incident: Incident, look: Look) -> bool:
        """Whether the restart that is in force has diverged again; then its rung has failed."""
        attempt = look.history.latest
        rollback = incident.current
        if rollback is None or incident.status != "holding" or attempt is None or attempt.started is None:
            return False
        if attempt.started.rollback != rollback.id:
            return False
        self._rung_failed(incident, rollback, attempt.number, f"diverged again: {look.verdict.reason}", look.verdict)
        return True

    def _rung_failed(self, incident: Incident, rollback: Rollback, attempt: int, reason: str, verdict: Verdict) -> None:
        self._record(
            {
                "event": "rung_failed",
                "incident": incident.id,
                "rollback": rollback.id,
                "attempt": attempt,
                "reason": reason,
                "onset_range": verdict.onset_range,
                "alarm_step": verdict.alarm_step,
            }
        )
        self._say(f"{rollback.id}: {rollback.rung} did not help: {reason}")

    def _restart(self, look: Look) -> Done | None:
        """A job that is gone without a word is started again, where the run's owner wants that."""
        reason = look.verdict.reason
        attempt = look.history.latest
        ended = attempt.finished.reason if attempt and attempt.finished else None
        asked_to = ended is not None and not ended.startswith("error")
        if self._policy.mode != "act" or look.run.paused or asked_to:
            self._say(reason)
            return Done.NOT_WELL
        plan = plan_restart(look.run, self._policy, restarts_spent=_fruitless_starts(look))
        if plan.refusal is not None:
            self._say(plan.refusal)
            return Done.PERSON_NEEDED
        if plan.actions:
            self._say(f"{reason}; {plan.reason}")
            self._do(plan, None, None)
        return None

    def _do(self, plan: Plan, incident: str | None, rollback: str | None) -> None:
        """The plan's first action; the next turn looks again and plans for what is then still missing."""
        action = plan.actions[0]
        self._say(describe(action))
        execute(action, incident, rollback, self._perform, self._record)

    def _stop(self, incident: Incident, reason: str) -> Done:
        self._record({"event": "stopped", "incident": incident.id, "reason": reason})
        self._say(f"{incident.id}: {reason}. A person is needed")
        return Done.PERSON_NEEDED

    def _close(self, incident: Incident, outcome: str, reason: str) -> None:
        self._record({"event": "closed", "incident": incident.id, "outcome": outcome, "reason": reason})
        self._say(f"{incident.id} closed, {outcome}: {reason}")

    def _record(self, event: Mapping[str, Any]) -> None:
        self._near.incident_log.append({**event, "time_unix_s": self._clock()})

    def _announce(self, look: Look) -> None:
        attempt = look.history.latest
        key = (look.verdict.kind, attempt.number if attempt else None)
        if key != self._said:
            self._said = key
            at = f" at step {look.verdict.global_step}" if look.verdict.global_step is not None else ""
            log.info("attempt %s is %s%s: %s", key[1], key[0], at, look.verdict.reason)


def carry_out(
    rollback: Rollback,
    incident: str,
    observer: Observer,
    perform: Perform,
    record: Callable[[Mapping[str, Any]], None],
    policy: Policy,
    clock: Callable[[], float],
) -> None:
    """Carries one decision out to its end, looking again after each action; for a person's own `rollback`."""
    for _ in range(50):
        plan = plan_rollback(rollback, observer.look(clock()).run, policy)
        if plan.refusal is not None:
            raise PermanentError(plan.refusal)
        if not plan.actions:
            return
        execute(plan.actions[0], incident, rollback.id, perform, record)
    raise PermanentError(f"{rollback.id}: the same actions are planned again and again; their effect is not seen")


def decided_event(incident: str, decision: Rollback) -> dict[str, Any]:
    """The decision as the incident log records it, without the time."""
    return {
        "event": "decided",
        "incident": incident,
        "rollback": decision.id,
        "rung": decision.rung,
        "hypothesis": decision.hypothesis,
        "target": {"tag": decision.target_tag, "global_step": decision.target_step},
        "overrides": overrides_to_json(decision.overrides),
        "changes": decision.changes,
        "lost_steps": decision.lost_steps,
        "restart": decision.restart,
    }


def _before(history: History, incident: Incident) -> list[Any]:
    attempt = history.attempts.get(incident.attempt)
    if attempt is None or incident.onset_range is None:
        return []
    return [s for s in history.lineage(attempt) if s.global_step < incident.onset_range[0]]


def _danger(incident: Incident, attempt: Attempt, policy: Policy) -> Danger:
    started = attempt.started
    end = warmup_end(started) if started else None
    return Danger(
        onset_step=incident.onset_range[1] if incident.onset_range else 0,
        onset_tokens=incident.onset_tokens,
        warmup_end_step=end or 0,
        best_before=incident.best_mean,
        hold_steps=policy.hold_steps,
        total_steps=started.total_steps if started else None,
    )


def _fruitless_starts(look: Look) -> int:
    """Starts of the job since a checkpoint was last saved, or a rollback decided."""
    saved = [c.time_unix_s for a in look.history.attempts.values() for c in a.saved]
    decided = [r.decided_unix_s for i in look.run.incidents for r in i.rollbacks]
    since = max([*saved, *decided], default=0.0)
    return sum(
        e["event"] == "intent" and e["action"]["kind"] == "start_job" and float(e["time_unix_s"]) > since
        for e in look.events
    )
