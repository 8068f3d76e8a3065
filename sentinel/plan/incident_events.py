"""The incident log's events, as they are written; `incident_fold` reads them.

One JSON object per line, each with `event`, `incident` and `time_unix_s` (added when it is
written). `sentinel.plan.sentences` says each as a sentence.

    opened      a divergence was found (attempt, onset_range, alarm_step, reason, led_by, baseline, best_mean, …),
                or a person asked for a rollback, or a rollback did not take effect (`ignored`: its id)
    baseline_completed      what its job script asks for, where Slurm did not answer when it was opened (baseline)
    shadow      what would have been done, in mode observe (rollback, rung, target, changes)
    proposed    mode approve: what a person is asked to agree to, with its digest
    approved, expired       their yes (by), or that it did not come in time (digest)
    waiting, wait_over      a rung that only watches (rung, from_step, until_step), and that it has not healed (reason)
    rung_skipped            a rung that can't be carried out (rung, hypothesis, reason): the next one is tried
    decided     a rung, a target and the overrides: what the coming intents carry out
    intent, done, failed    around each action; `incident` is null for a restart after a crash, `rollback` for the undo
                of a whole incident; an intent has the newest attempt that was known (newest_attempt)
    applied     every action of the decision has been seen done
    proved      each change is confirmed by what the new attempt reports (attempt, checks)
    not_verified            no change is contradicted, and not each is confirmed (attempt, checks, not_verified)
    not_proved  a change is contradicted: it did not take effect (attempt, checks)
    rung_failed the restart diverged again, or did not recover (reason, proof)
    stopped     sentinel does not act on this incident any more and asks for a person (reason)
    purged      a person had its quarantine deleted: it can't be undone any more
    troubled    no divergence, and somebody has to know of it: a turn that fails again and again, a job that is gone
                (topic, severity, reason, since_unix_s; `incident` is null); again every hour while it struggles
    relieved    that it is over (topic, reason)
    closed      outcome: recovered, proved or not_verified (a person's own rollback), undone, superseded or healed
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sentinel.judge.recovery_check import WINDOW, BestMean
from sentinel.judge.verdict import Verdict
from sentinel.plan.baseline import Baseline
from sentinel.plan.incident import Rollback, incident_id, overrides_to_json
from sentinel.plan.proof import Check, outcome
from sentinel.plan.proof_value import Proof
from sentinel.vocabulary.overrides import Overrides
from sentinel.vocabulary.sample import Sample

__all__ = [
    "Event",
    "OnsetReadings",
    "closed",
    "decided",
    "event",
    "ignored",
    "onset_readings",
    "opened",
    "proof",
    "rung_failed",
]

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnsetReadings:
    """What the run's past says of an onset; None where it was not reported."""

    best_mean: float | None = None
    """Best 20-sample mean of the loss before the early end of the onset, nats."""

    consumed_tokens: int | None = None
    """At the late end of the onset, as the next two."""

    consumed_samples: int | None = None
    batch_samples: int | None = None


def onset_readings(lineage: Iterable[Sample], onset_range: tuple[int, int], full_seqlen: int | None) -> OnsetReadings:
    """Goes once through the attempt's line of descent, which is ordered by step."""
    best, at, (early, late) = BestMean(WINDOW, full_seqlen), None, onset_range
    for sample in lineage:
        if sample.global_step < early:
            best.push(sample)
        elif sample.global_step == late:
            at = sample
    if at is None:
        return OnsetReadings(best_mean=best.value)
    return OnsetReadings(
        best_mean=best.value,
        consumed_tokens=at.consumed_tokens,
        consumed_samples=at.consumed_samples,
        batch_samples=at.global_batch_samples,
    )


def opened(
    number: int,
    attempt: int,
    baseline: Baseline,
    overrides: Overrides | None,
    *,
    reason: str,
    verdict: Verdict | None = None,
    onset: OnsetReadings | None = None,
) -> Event:
    """A new incident. Without a verdict it is a person's own, and has no onset. `attempt`: 0 for none."""
    readings = onset or OnsetReadings()
    return {
        "event": "opened",
        "incident": incident_id(number),
        "attempt": attempt,
        "onset_range": verdict.onset_range if verdict else None,
        "alarm_step": verdict.alarm_step if verdict else None,
        "onset_tokens": readings.consumed_tokens,
        "onset_samples": readings.consumed_samples,
        "batch_samples": readings.batch_samples,
        "best_mean": readings.best_mean,
        "reason": reason,
        "led_by": verdict.led_by if verdict else [],
        "baseline": baseline.to_json(),
        "overrides": overrides_to_json(overrides),
    }


def event(kind: str, incident: str | None, **facts: Any) -> Event:
    """One of the events above that is no more than its facts."""
    return {"event": kind, "incident": incident, **facts}


def stopped(incident: str, reason: str) -> Event:
    """sentinel does not act on the incident any more."""
    return event("stopped", incident, reason=reason)


def closed(incident: str, outcome: str, reason: str) -> Event:
    """The end of an incident."""
    return event("closed", incident, outcome=outcome, reason=reason)


def ignored(number: int, rollback: Rollback, attempt: int, baseline: Baseline, checks: tuple[Check, ...]) -> Event:
    """An incident of its own: a rollback whose changes did not take effect."""
    wrong = [c for c in checks if c.answer is Proof.CONTRADICTED]
    named = "; ".join(f"{c.what} should be {c.expected!r} and is {c.reported!r}" for c in wrong)
    reason = f"{rollback.id} ({rollback.rung}) did not take effect: {named}"
    return {**opened(number, attempt, baseline, rollback.overrides, reason=reason), "ignored": rollback.id}


def decided(kind: str, incident: str, decision: Rollback, **facts: Any) -> Event:
    """`decided`, `proposed` or `shadow`: a rung, its target and what it changes."""
    return {
        "event": kind,
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
        **facts,
    }


def proof(rollback: Rollback, attempt: int, checks: tuple[Check, ...]) -> Event:
    """What the attempt has shown of each change."""
    kind = _PROOFS[outcome(checks)]
    return event(
        kind, rollback.overrides.incident, rollback=rollback.id, attempt=attempt, checks=[c.to_json() for c in checks]
    )


def rung_failed(rollback: Rollback, attempt: int, reason: str, verdict: Verdict) -> Event:
    """The restart has failed; only where its changes are confirmed is it the rung that did not help."""
    return {
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


_PROOFS = {
    Proof.CONFIRMED: "proved",
    Proof.CONTRADICTED: "not_proved",
    Proof.NOT_VERIFIED: "not_verified",
}
