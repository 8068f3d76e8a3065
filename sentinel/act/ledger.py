"""What is told: events to the incident log, sentences to the person at the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sentinel.judge.history import Attempt
from sentinel.judge.recovery_check import WINDOW, BestMean
from sentinel.judge.verdict import Verdict
from sentinel.plan.approval import Approval
from sentinel.plan.baseline import Baseline
from sentinel.plan.incident import Incident, Rollback, Skip, Wait, incident_id, overrides_to_json
from sentinel.plan.proof import Check, outcome
from sentinel.plan.proof_value import Proof, failure
from sentinel.plan.rollback import Plan
from sentinel.plan.sentences import sentence
from sentinel.plan.trouble import Trouble
from sentinel.vocabulary.overrides import Overrides
from sentinel.vocabulary.sample import Sample

__all__ = ["Ledger", "Say"]

Say = Callable[[str], None]
"""Tells the person at the terminal one thing, in one line."""


class Ledger:
    """Writes the incident log's events, in its grammar, and says each as a sentence."""

    def __init__(self, append: Callable[[Mapping[str, Any]], None], clock: Callable[[], float], say: Say) -> None:
        self._append = append
        self._clock = clock
        self._say = say
        self._last_said: str | None = None

    def say(self, line: str) -> None:
        """Says a line, unless it was the last one said."""
        if line != self._last_said:
            self._last_said = line
            self._say(line)

    def record(self, event: Mapping[str, Any]) -> None:
        """One event, with the time; returns when it is on the disk."""
        self._append({**event, "time_unix_s": self._clock()})

    def opened(
        self,
        number: int,
        attempt: Attempt | None,
        baseline: Baseline,
        overrides: Overrides | None,
        *,
        reason: str,
        verdict: Verdict | None = None,
        lineage: Iterable[Sample] = (),
    ) -> str:
        """A new incident; returns its id. Without a verdict it is a person's own, and has no onset.

        `lineage` is gone through once: the attempt's whole line of descent.
        """
        onset = verdict.onset_range if verdict else None
        best, at = BestMean(WINDOW, baseline.full_seqlen), None
        early, late = onset or (0, 0)
        for sample in lineage if onset is not None else ():
            if sample.global_step < early:
                best.push(sample)
            elif sample.global_step == late:
                at = sample
        incident = incident_id(number)
        self.record(
            {
                "event": "opened",
                "incident": incident,
                "attempt": attempt.number if attempt else 0,
                "onset_range": onset,
                "alarm_step": verdict.alarm_step if verdict else None,
                "onset_tokens": at.consumed_tokens if at else None,
                "onset_samples": at.consumed_samples if at else None,
                "batch_samples": at.global_batch_samples if at else None,
                "best_mean": best.value,
                "reason": reason,
                "led_by": verdict.led_by if verdict else [],
                "baseline": baseline.to_json(),
                "overrides": overrides_to_json(overrides),
            }
        )
        self.say(f"{incident}: {reason}")
        return incident

    def baseline_completed(self, incident: str, baseline: Baseline) -> None:
        """What was missing of the incident's baseline when it was opened."""
        self.record({"event": "baseline_completed", "incident": incident, "baseline": baseline.to_json()})
        self.say(f"{incident}: the job script could be read: its settings complete the incident's baseline")

    def decided(self, incident: str, decision: Rollback) -> None:
        """A rung and its target."""
        self.record({"event": "decided", **_decision(incident, decision)})
        said = "; ".join(decision.changes) or "nothing is changed but the checkpoint"
        self.say(f"{decision.id}: {decision.rung}, from {decision.target_tag or 'scratch'} ({said})")

    def waiting(self, incident: str, wait: Wait) -> None:
        """A rung that only watches."""
        facts = {"rung": wait.rung, "hypothesis": wait.hypothesis}
        steps = {"from_step": wait.from_step, "until_step": wait.until_step}
        self.record({"event": "waiting", "incident": incident, **facts, **steps})
        self.say(f"{incident}: {wait.rung}: watching until step {wait.until_step} whether it heals by itself")

    def wait_over(self, incident: str, wait: Wait, reason: str) -> None:
        """It did not heal."""
        self.record({"event": "wait_over", "incident": incident, "rung": wait.rung, "reason": reason})
        self.say(f"{incident}: {wait.rung} did not help: {reason}")

    def rung_skipped(self, incident: str, skip: Skip) -> None:
        """A rung that can't be carried out; the next turn decides the next one."""
        facts = {"rung": skip.rung, "hypothesis": skip.hypothesis, "reason": skip.reason}
        self.record({"event": "rung_skipped", "incident": incident, **facts})
        self.say(f"{incident}: rung {skip.rung!r} is skipped: {skip.reason}; the next rung is tried")

    def proposed(self, incident: str, decision: Rollback, digest: str) -> None:
        """What a person is asked to agree to."""
        self.record({"event": "proposed", **_decision(incident, decision), "digest": digest})
        said = "; ".join(decision.changes) or "nothing is changed but the checkpoint"
        target = decision.target_tag or "scratch"
        self.say(
            f"{incident}: proposed: {decision.rung}, from {target} ({said}); `sentinel approve {incident}` does it"
        )

    def approved(self, incident: str, approval: Approval) -> None:
        """A person's yes, and that what they said it to still stands."""
        self.record({"event": "approved", "incident": incident, "digest": approval.digest, "by": approval.by})
        self.say(f"{incident}: approved by {approval.by}")

    def expired(self, incident: str, digest: str) -> None:
        """Nobody said yes in time."""
        self.record({"event": "expired", "incident": incident, "digest": digest})
        self.say(f"{incident}: nobody has approved it in time; nothing is done")

    def shadow(self, incident: str, plan: Plan, mode: str) -> None:
        """What would have been done."""
        decision = plan.decision
        facts = _decision(incident, decision) if decision else {"incident": incident}
        self.record({"event": "shadow", **facts, "refusal": plan.refusal})
        would = f"would apply {decision.rung!r} from {decision.target_tag or 'scratch'}" if decision else plan.refusal
        self.say(f"{incident}: mode is {mode}: {would}")

    def applied(self, rollback: Rollback) -> None:
        """Every action was seen done."""
        self.record({"event": "applied", "incident": rollback.overrides.incident, "rollback": rollback.id})

    def proof(self, rollback: Rollback, attempt: int, checks: tuple[Check, ...]) -> Proof:
        """What the attempt has shown against the decision, change by change; returns what that comes to."""
        answer = outcome(checks)
        event = {
            "event": _PROOF_EVENTS[answer],
            "incident": rollback.overrides.incident,
            "rollback": rollback.id,
            "attempt": attempt,
            "checks": [check.to_json() for check in checks],
        }
        self.record(event)
        if (said := sentence(event)) is not None and answer is not Proof.CONTRADICTED:  # that is said with the stop
            self.say(f"{rollback.id}: {said}")
        return answer

    def ignored(
        self, number: int, rollback: Rollback, attempt: Attempt, baseline: Baseline, checks: tuple[Check, ...]
    ) -> None:
        """A rollback whose changes did not take effect, as an incident of its own."""
        incident = incident_id(number)
        wrong = [c for c in checks if c.answer is Proof.CONTRADICTED]
        said = "; ".join(f"{c.what} should be {c.expected!r} and is {c.reported!r}" for c in wrong)
        reason = f"{rollback.id} ({rollback.rung}) did not take effect: {said}"
        self.record(
            {
                "event": "opened",
                "incident": incident,
                "attempt": attempt.number,
                "onset_range": None,
                "alarm_step": None,
                "onset_tokens": None,
                "best_mean": None,
                "reason": reason,
                "led_by": [],
                "baseline": baseline.to_json(),
                "overrides": overrides_to_json(rollback.overrides),
                "ignored": rollback.id,
            }
        )
        self.say(f"{incident}: {reason}")

    def rung_failed(self, rollback: Rollback, attempt: int, reason: str, verdict: Verdict) -> None:
        """The restart has failed; whether its rung did not help depends on the proof of its changes."""
        self.record(
            {
                "event": "rung_failed",
                "incident": rollback.overrides.incident,
                "rollback": rollback.id,
                "attempt": attempt,
                "reason": reason,
                "proof": None if rollback.proof is None else str(rollback.proof),
                "doubts": rollback.doubts,
                "onset_range": verdict.onset_range,
                "alarm_step": verdict.alarm_step,
            }
        )
        self.say(f"{rollback.id}: {rollback.rung} {failure(reason, rollback.proof, rollback.doubts)}")

    def stopped(self, incident: Incident, reason: str) -> None:
        """sentinel does not act on the incident any more."""
        self.record({"event": "stopped", "incident": incident.id, "reason": reason})
        self.say(f"{incident.id}: {reason}. A person is needed")

    def troubled(self, trouble: Trouble) -> None:
        """Something that is no divergence, and that somebody has to know of."""
        self.record(
            {
                "event": "troubled",
                "incident": None,
                "topic": trouble.topic,
                "severity": trouble.severity,
                "reason": trouble.reason,
                "since_unix_s": trouble.since_unix_s,
            }
        )
        self.say(f"{trouble.topic}: {trouble.reason}")

    def relieved(self, topic: str, reason: str) -> None:
        """That it is over."""
        self.record({"event": "relieved", "incident": None, "topic": topic, "reason": reason})
        self.say(f"{topic} no more: {reason}")

    def closed(self, incident: str, outcome: str, reason: str) -> None:
        """The end of an incident."""
        self.record({"event": "closed", "incident": incident, "outcome": outcome, "reason": reason})
        self.say(f"{incident} closed, {outcome}: {reason}")


_PROOF_EVENTS = {
    Proof.CONFIRMED: "proved",
    Proof.CONTRADICTED: "not_proved",
    Proof.NOT_VERIFIED: "not_verified",
}


def _decision(incident: str, decision: Rollback) -> dict[str, Any]:
    return {
        "incident": incident,
        "rollback": decision.id,
        "rung": decision.rung,
        "hypothesis": decision.hypothesis,
        "target": {"tag": decision.target_tag, "global_step": decision.target_step},
        "overrides": overrides_to_json(decision.overrides),
        "changes": decision.changes,
        "lost_steps": decision.lost_steps,
        "lost_gpu_hours": decision.lost_gpu_hours,
        "unconfirmed": decision.unconfirmed,
        "in_script": decision.in_script,
        "restart": decision.restart,
    }
