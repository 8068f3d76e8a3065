"""The incident log's grammar: events as they are written, and the fold that tells where each incident stands.

One JSON object per line, each with `event`, `incident` and `time_unix_s`:

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

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sentinel.plan.baseline import Baseline
from sentinel.plan.proof_value import PROOFS, Proof, failure, proof_of
from sentinel.vocabulary.errors import IncidentLogError, LineError, SentinelError
from sentinel.vocabulary.names import checked_name, why_not_a_name
from sentinel.vocabulary.numbers import dump_json, load_object, seconds_problem, to_number
from sentinel.vocabulary.overrides import Overrides, decode_overrides, encode_overrides

__all__ = [
    "Incident",
    "Proposal",
    "Rollback",
    "Skip",
    "Status",
    "Wait",
    "checked_event",
    "fold",
    "incident_id",
    "overrides_to_json",
    "rollback_id",
]

_UPON_FILES = frozenset({"quarantine_checkpoints", "point_latest", "cut_tensorboard", "write_overrides"})

Status = Literal["open", "decided", "applied", "holding", "stopped", "closed"]
"""open: found, nothing decided; decided: being carried out; applied: waits for the proof; holding: proved, waits for
recovery; stopped: a person is needed; closed."""


@dataclass(slots=True, kw_only=True)
class Rollback:
    """One restart of an incident: a rung of the ladder, tried."""

    id: str
    rung: str
    hypothesis: str
    target_tag: str | None
    """None is from scratch."""

    target_step: int
    overrides: Overrides
    changes: tuple[str, ...]
    decided_unix_s: float
    lost_steps: int
    """Optimizer steps that the rollback threw away."""

    lost_gpu_hours: float | None = None
    """What those steps took; None where pace or size of the run was not known."""

    unconfirmed: tuple[str, ...] = ()
    """What of it the plan said beforehand that this trainer can't confirm: names of checks."""

    in_script: bool = False
    """Whether its changes were made in the job script, in that trainer's own form."""

    restart: bool = True
    """Whether the job is started again after the rollback."""

    moved_tags: tuple[str, ...] = ()
    """Checkpoints that its quarantine was to take, over all its intents."""

    begun: bool = False
    """Whether anything of the run's files may have been changed for it: an action upon them was intended."""

    applied: bool = False
    """Whether every action of it was seen done."""

    taken_back: bool = False
    """Whether what was done of it has been taken back since."""

    starts: int = 0
    """How often the job's start was intended."""

    last_start_unix_s: float | None = None
    last_start_attempt: int | None = None
    """The newest attempt when the job's start was last intended, 0 for none; None where that was not recorded."""

    attempt: int | None = None
    """The attempt that was started for it."""

    proof: Proof | None = None
    """Whether its changes took effect; None while no attempt has shown."""

    doubts: tuple[str, ...] = ()
    """What is contradicted, or not verified: names of checks."""

    failed: str | None = None
    """Why the restart failed; None while it has not. Only where `proof` is confirmed did the rung not help."""

    @property
    def proved(self) -> bool | None:
        """True where every change is confirmed, False where one is contradicted, else None."""
        return {Proof.CONFIRMED: True, Proof.CONTRADICTED: False}.get(self.proof) if self.proof else None

    @property
    def result(self) -> str | None:
        """What became of it, as a phrase, where that is settled by its proof or its failure; else None."""
        named = ", ".join(self.doubts) or "what was changed"
        if self.proof is Proof.CONTRADICTED:
            return f"did not take effect: {named}"
        if self.failed is None:
            return None
        return failure(self.failed, self.proof, self.doubts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A rung that only watches whether the run heals by itself; it starts nothing and rolls nothing back."""

    rung: str
    hypothesis: str
    from_step: int
    until_step: int
    """The step at which a run that is still diverged has not healed."""

    failed: str | None = None
    """Why it is over without having helped; None while it lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A rung that can't be carried out: nothing was done for it, and the next rung is tried."""

    rung: str
    hypothesis: str
    reason: str
    """What can't be done, and by whom; a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What a person was asked to agree to."""

    digest: str
    proposed_unix_s: float
    expired: bool = False


@dataclass(slots=True, kw_only=True)
class Incident:
    """One divergence, from onset to closing."""

    id: str
    opened_unix_s: float
    attempt: int
    """The attempt that diverged."""

    onset_range: tuple[int, int] | None
    alarm_step: int | None
    onset_tokens: int | None
    """consumed_tokens at the late end of the onset; None where tokens were not reported."""

    onset_samples: int | None = None
    """consumed_samples at the late end of the onset; None where samples were not reported."""

    batch_samples: int | None = None
    """Samples of the step at the late end of the onset; None where that was not reported."""

    best_mean: float | None
    """Best 20-sample mean of the loss before the onset, nats."""

    reason: str
    led_by: tuple[str, ...]
    baseline: Baseline
    ignored: str | None = None
    """The rollback that did not take effect, where that is what the incident is about; it waits for a person from its
    beginning, and ends with the incident of that rollback."""

    overrides_before: Overrides | None = None
    """overrides.json as it was when the incident began; None where there was none."""

    status: Status = "open"
    rollbacks: list[Rollback] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)
    shadows: int = 0
    proposal: Proposal | None = None
    """The last one; a decision takes it away."""

    purged: bool = False
    outcome: str | None = None
    note: str | None = None
    """The sentence that it was stopped or closed with."""

    closed_unix_s: float | None = None
    undoing: str | None = None
    """What an undo was begun of and not brought to its end: a rollback's id, or its own for all of it; else None."""

    @property
    def half_done(self) -> Rollback | None:
        """The rollback that was decided and has not been carried out to its end, or None."""
        if not self.rollbacks or self.outcome == "undone":
            return None
        last = self.rollbacks[-1]
        return None if last.applied or last.taken_back or last.failed is not None else last

    @property
    def current(self) -> Rollback | None:
        """The rollback that is in force, or None when the next one is still to be decided."""
        if self.rollbacks and self.rollbacks[-1].failed is None:
            return self.rollbacks[-1]
        return None

    @property
    def waiting(self) -> Wait | None:
        """The wait that is under way, or None."""
        return self.waits[-1] if self.waits and self.waits[-1].failed is None else None

    @property
    def tried(self) -> int:
        """How many rungs of the ladder have had their turn."""
        return len(self.rollbacks) + len(self.waits) + len(self.skips)


def incident_id(number: int) -> str:
    """incident-1 is the run's first."""
    return f"incident-{number}"


def rollback_id(incident: str, number: int) -> str:
    """incident-1-r2 is the second rollback of incident-1; unique over the run's life."""
    return f"{incident}-r{number}"


def overrides_to_json(overrides: Overrides | None) -> dict[str, Any] | None:
    """overrides.json as `opened` and `decided` record it."""
    return None if overrides is None else load_object(encode_overrides(overrides))


def checked_event(event: dict[str, Any]) -> dict[str, Any]:
    """What every event has, and every reader of the log relies on. LineError says what is wrong."""
    if not isinstance(event.get("event"), str):
        raise LineError(f"event should be a string, not {type(event.get('event')).__name__}")
    if event.get("incident") is not None and (why := _not_an_id(event["incident"])) is not None:
        raise LineError(f"incident {why}")
    time_unix_s = to_number(event.get("time_unix_s"), "time_unix_s")
    if time_unix_s is None or math.isnan(time_unix_s):
        raise LineError("time_unix_s is missing")
    if (why := seconds_problem(time_unix_s)) is not None:
        raise LineError(f"time_unix_s {why}")
    return event


def _not_an_id(incident: object) -> str | None:
    return why_not_a_name(incident) if isinstance(incident, str) else "should be a string"


def fold(events: Iterable[Mapping[str, Any]]) -> tuple[Incident, ...]:
    """Where each incident stands, in the order they were opened. IncidentLogError for an event that makes no sense."""
    incidents: dict[str, Incident] = {}
    for number, event in enumerate(events, 1):
        try:
            _take(incidents, event)
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, SentinelError) as error:
            raise IncidentLogError(f"event {number} of the incident log makes no sense: {error!r}") from error
    return tuple(incidents.values())


def _take(incidents: dict[str, Incident], event: Mapping[str, Any]) -> None:
    kind = event["event"]
    if kind == "opened":
        incidents[checked_name(event["incident"], "incident")] = _opened(event)
        return
    if event["incident"] is None:  # a restart after a crash: no incident's story
        return
    incident = incidents[event["incident"]]
    if kind in ("intent", "done") and event["action"]["kind"] == "undo":
        _undone(incident, event)
        return
    _of_incident(incident, kind, event)
    if kind == "closed":
        for other in incidents.values():
            if other.ignored in {r.id for r in incident.rollbacks} and other.status != "closed":
                _of_incident(other, kind, event)
    if incident.rollbacks:
        _of_rollback(incident, incident.rollbacks[-1], kind, event)


def _of_incident(incident: Incident, kind: str, event: Mapping[str, Any]) -> None:
    time_unix_s = float(event["time_unix_s"])
    if kind == "decided":
        incident.rollbacks.append(_decided(event, time_unix_s))
        incident.status, incident.proposal = "decided", None
    elif kind == "proposed":
        incident.proposal = Proposal(digest=event["digest"], proposed_unix_s=time_unix_s)
    elif kind == "expired" and incident.proposal is not None:
        incident.proposal = replace(incident.proposal, expired=True)
    elif kind == "waiting":
        steps = {"from_step": event["from_step"], "until_step": event["until_step"]}
        incident.waits.append(Wait(rung=event["rung"], hypothesis=event["hypothesis"], **steps))
    elif kind == "wait_over":
        incident.waits[-1] = replace(incident.waits[-1], failed=event["reason"])
    elif kind == "rung_skipped":
        incident.skips.append(Skip(rung=event["rung"], hypothesis=event["hypothesis"], reason=event["reason"]))
    elif kind == "shadow":
        incident.shadows += 1
    elif kind == "stopped":
        incident.status, incident.note = "stopped", event["reason"]
    elif kind == "closed":
        incident.status, incident.outcome, incident.note = "closed", event["outcome"], event["reason"]
        incident.closed_unix_s = time_unix_s
        incident.undoing = None
    elif kind == "baseline_completed":
        incident.baseline = Baseline.from_json(event["baseline"])
    elif kind == "purged":
        incident.purged = True


def _of_rollback(incident: Incident, rollback: Rollback, kind: str, event: Mapping[str, Any]) -> None:
    if kind == "intent":
        _intended(rollback, event)
    elif kind == "applied":
        rollback.applied = True
        incident.status = "applied"
    elif kind in PROOFS:
        rollback.attempt = event["attempt"]
        rollback.proof, rollback.doubts = proof_of(event)
        incident.status = incident.status if kind == "not_proved" else "holding"
    elif kind == "rung_failed":
        rollback.failed = event["reason"]
        incident.status = "open"


def _undone(incident: Incident, event: Mapping[str, Any]) -> None:
    """An undo begins, or has been done: of the whole incident, or of one rollback."""
    if event["event"] == "intent":
        incident.undoing = event["rollback"] or incident.id
        return
    for rollback in incident.rollbacks:
        rollback.taken_back |= event["rollback"] in (None, rollback.id)


def _intended(rollback: Rollback, event: Mapping[str, Any]) -> None:
    action, time_unix_s = event["action"], float(event["time_unix_s"])
    if action["kind"] in _UPON_FILES:
        rollback.begun, rollback.taken_back = True, False
    if action["kind"] == "start_job":
        rollback.starts += 1
        rollback.last_start_unix_s = time_unix_s
        rollback.last_start_attempt = (event["newest_attempt"] or 0) if "newest_attempt" in event else None
    elif action["kind"] == "quarantine_checkpoints":
        tags = [checked_name(tag, "tags") for tag in action["tags"]]
        rollback.moved_tags = (*rollback.moved_tags, *tags)


def _opened(event: Mapping[str, Any]) -> Incident:
    onset = event["onset_range"]
    return Incident(
        id=event["incident"],
        opened_unix_s=float(event["time_unix_s"]),
        attempt=event["attempt"],
        onset_range=None if onset is None else (onset[0], onset[1]),
        alarm_step=event["alarm_step"],
        onset_tokens=event["onset_tokens"],
        onset_samples=event.get("onset_samples"),
        batch_samples=event.get("batch_samples"),
        best_mean=to_number(event["best_mean"], "best_mean"),
        reason=event["reason"],
        led_by=tuple(event["led_by"]),
        baseline=Baseline.from_json(event["baseline"]),
        ignored=event.get("ignored"),
        status="stopped" if event.get("ignored") else "open",
        note=event["reason"] if event.get("ignored") else None,
        overrides_before=_overrides(event.get("overrides")),
    )


def _overrides(document: Any) -> Overrides | None:
    return None if document is None else decode_overrides(dump_json(document))


def _decided(event: Mapping[str, Any], time_unix_s: float) -> Rollback:
    return Rollback(
        id=checked_name(event["rollback"], "rollback"),
        rung=event["rung"],
        hypothesis=event["hypothesis"],
        target_tag=None if event["target"]["tag"] is None else checked_name(event["target"]["tag"], "target"),
        target_step=event["target"]["global_step"],
        overrides=decode_overrides(dump_json(event["overrides"])),
        changes=tuple(event["changes"]),
        decided_unix_s=time_unix_s,
        lost_steps=event["lost_steps"],
        lost_gpu_hours=event.get("lost_gpu_hours"),
        unconfirmed=tuple(event.get("unconfirmed", ())),
        in_script=event.get("in_script", False),
        restart=event.get("restart", True),
    )
