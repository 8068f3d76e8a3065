"""Where an incident stands: its rollbacks, waits, skipped rungs and proofs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from sentinel.plan.baseline import Baseline
from sentinel.vocabulary.numbers import dump_json, load_object
from sentinel.vocabulary.overrides import Overrides, encode_overrides

Event = Mapping[str, Any]  # of the incident log, as a line of it holds one: see `incident_events`


class Proof(StrEnum):
    """What is known of one change."""

    CONFIRMED = "confirmed"
    CONTRADICTED = "contradicted"
    NOT_VERIFIED = "not verified"


# event -> what it says that an attempt has shown of a rollback's changes
PROOFS = {"proved": Proof.CONFIRMED, "not_verified": Proof.NOT_VERIFIED, "not_proved": Proof.CONTRADICTED}


def failure(reason: str, proof: Proof | None, doubts: Iterable[str]) -> str:
    """A failed restart as a phrase: only a rung whose every change is confirmed can be said not to have helped."""
    if proof is Proof.CONFIRMED:
        return f"did not help: {reason}"
    return f"failed, and it is not verified that {', '.join(doubts) or 'the change'} took effect: {reason}"


def proof_of(event: Event) -> tuple[Proof, tuple[str, ...]]:
    """What an event of a proof says, and the checks that it leaves in doubt. Older logs have `proved` where a change
    was never reported, as long as the plan had foreseen that."""
    checks = event.get("checks") or ()
    if event["event"] == "not_proved":
        return Proof.CONTRADICTED, tuple(c["what"] for c in checks if answer_of(c) is Proof.CONTRADICTED)
    silent = [c["what"] for c in checks if c.get("changed", True) and answer_of(c) is Proof.NOT_VERIFIED]
    return (Proof.NOT_VERIFIED if silent else Proof.CONFIRMED), tuple(silent)


def answer_of(check: Mapping[str, Any]) -> Proof:
    """The answer of a check as a log holds it; older logs have `holds`, true for a silence that was foreseen."""
    if "answer" in check:
        return Proof(check["answer"])
    if not check.get("holds", True):
        return Proof.CONTRADICTED
    return Proof.NOT_VERIFIED if "reported" in check and check["reported"] is None else Proof.CONFIRMED


# open: found, nothing decided; decided: being carried out; applied: waits for the proof; holding: proved, waits for
# recovery; stopped: a person is needed; closed
Status = Literal["open", "decided", "applied", "holding", "stopped", "closed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """What the winner of a race leaves to the run, which goes on from it."""

    probe: str  # its name
    tag: str  # its last checkpoint
    global_step: int


@dataclass(slots=True, kw_only=True)
class Rollback:
    """One restart of an incident: a rung of the ladder, tried."""

    id: str
    rung: str
    hypothesis: str
    target_tag: str | None  # None is from scratch
    target_step: int
    overrides: Overrides
    changes: tuple[str, ...]
    decided_unix_s: float
    lost_steps: int  # optimizer steps that the rollback threw away
    lost_gpu_hours: float | None = None  # what those steps took; None where pace or size of the run was not known
    unconfirmed: tuple[str, ...] = ()  # names of checks that the plan said beforehand can't be confirmed
    in_script: bool = False  # whether its changes were made in the job script, in that trainer's own form
    restart: bool = True  # whether the job is started again after the rollback
    adopts: Adoption | None = None  # the probe whose checkpoints become the run's; None: it restarts from the target
    moved_tags: tuple[str, ...] = ()  # checkpoints that its quarantine was to take, over all its intents
    begun: bool = False  # whether an action upon the run's files was intended: they may have been changed
    applied: bool = False  # whether every action of it was seen done
    taken_back: bool = False  # whether what was done of it has been taken back since
    starts: int = 0  # how often the job's start was intended
    last_start_unix_s: float | None = None
    last_start_attempt: int | None = None  # the newest attempt then, 0 for none; None where it was not recorded
    attempt: int | None = None  # the attempt that was started for it
    proof: Proof | None = None  # whether its changes took effect; None while no attempt has shown
    doubts: tuple[str, ...] = ()  # what is contradicted, or not verified: names of checks
    failed: str | None = None  # why the restart failed; only where `proof` is confirmed did the rung not help

    @property
    def proved(self) -> bool | None:
        """True where every change is confirmed, False where one is contradicted, else None."""
        return {Proof.CONFIRMED: True, Proof.CONTRADICTED: False}.get(self.proof) if self.proof else None

    @property
    def result(self) -> str | None:
        """What became of it, as a phrase, where that is settled by its proof or its failure; else None."""
        if self.proof is Proof.CONTRADICTED:
            return f"did not take effect: {', '.join(self.doubts) or 'what was changed'}"
        return None if self.failed is None else failure(self.failed, self.proof, self.doubts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A rung that only watches whether the run recovers by itself; it starts nothing and rolls nothing back."""

    rung: str
    hypothesis: str
    from_step: int
    until_step: int  # the step at which a run that is still diverged has not healed
    failed: str | None = None  # why it is over without having helped; None while it lasts


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A rung that can't be carried out: nothing was done for it, and the next rung is tried."""

    rung: str
    hypothesis: str
    reason: str  # what can't be done, and by whom; a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """Rungs that run side by side as probes, each from its own target; the healthiest becomes the run."""

    entrants: tuple[Rollback, ...]  # what each rung would do, under its probe's name, in the ladder's order
    until_step: int  # where every probe ends
    gpu_hours: float | None = None  # what the probes may take together; None where pace or size were not known
    after_attempt: int | None = None  # the run's newest attempt when the first probe was started; 0 for none
    started: frozenset[str] = frozenset()  # probes whose start was seen done
    over: str | None = None  # why it has ended, as a sentence; None while it goes on
    void: bool = False  # whether no probe could be started: none of its rungs was tried
    winner: Adoption | None = None

    def entrant(self, probe: str) -> Rollback:
        return next(e for e in self.entrants if e.id == probe)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisected:
    """The bisect that a rung of the incident has asked for."""

    after_attempt: int  # the run's newest attempt when it was begun; 0 for none
    over: str | None = None  # what it has come to, as a sentence; None while it goes on
    gpu_hours: float | None = None  # what its probes took; None while it goes on, or where it is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What a person was asked to agree to."""

    digest: str
    proposed_unix_s: float
    expired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A person's yes to a proposal."""

    digest: str  # of the decision that they saw
    by: str
    time_unix_s: float


@dataclass(slots=True, kw_only=True)
class Incident:
    """One divergence, from onset to closing."""

    id: str
    opened_unix_s: float
    attempt: int  # the attempt that diverged
    onset_range: tuple[int, int] | None
    alarm_step: int | None
    onset_tokens: int | None  # consumed_tokens at the late end of the onset; None where tokens were not reported
    onset_samples: int | None = None  # consumed_samples there; None where samples were not reported
    batch_samples: int | None = None  # samples of that step; None where that was not reported
    best_mean: float | None  # best 20-sample mean of the loss before the onset, nats
    reason: str
    led_by: tuple[str, ...]
    baseline: Baseline
    ignored: str | None = None  # the rollback whose missing effect it is about: it ends with that one's incident
    overrides_before: Overrides | None = None  # overrides.json when the incident began; None where there was none
    status: Status = "open"
    rollbacks: list[Rollback] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)
    races: list[Race] = field(default_factory=list)
    bisect: Bisected | None = None
    shadows: int = 0
    proposal: Proposal | None = None  # the last one; a decision takes it away
    purged: bool = False
    outcome: str | None = None
    note: str | None = None  # the sentence that it was stopped or closed with
    closed_unix_s: float | None = None
    undoing: str | None = None  # what an unfinished undo was begun of: a rollback's id, or its own for all of it

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
        return self.rollbacks[-1] if self.rollbacks and self.rollbacks[-1].failed is None else None

    @property
    def waiting(self) -> Wait | None:
        return self.waits[-1] if self.waits and self.waits[-1].failed is None else None

    @property
    def race(self) -> Race | None:
        """The race that goes on, or whose winner is still to be adopted; else None."""
        last = self.races[-1] if self.races else None
        if last is None or (last.over is not None and last.winner is None):
            return None
        adopted = {r.adopts.probe for r in self.rollbacks if r.adopts is not None}
        return None if last.winner is not None and last.winner.probe in adopted else last

    @property
    def bisecting(self) -> bool:
        """Whether the bisect that a rung has asked for goes on."""
        return self.bisect is not None and self.bisect.over is None

    @property
    def tried(self) -> int:
        """Rungs of the ladder, from its first one, that were tried or could not be."""
        raced = sum(len(race.entrants) for race in self.races if not race.void)
        return sum(r.adopts is None for r in self.rollbacks) + raced + len(self.waits) + len(self.skips)

    @property
    def failed_restarts(self) -> int:
        """Rollbacks and probes so far."""
        return sum(r.adopts is None for r in self.rollbacks) + sum(len(race.entrants) for race in self.races)

    @property
    def spent_gpu_hours(self) -> float:
        """What its rollbacks threw away, its races were to take and its bisect took, as far as that was known."""
        probes = sum(r.gpu_hours or 0.0 for r in self.races) + (self.bisect.gpu_hours or 0.0 if self.bisect else 0.0)
        return sum(r.lost_gpu_hours or 0.0 for r in self.rollbacks) + probes


def incident_id(number: int) -> str:
    return f"incident-{number}"


def rollback_id(incident: str, number: int) -> str:
    """incident-1-r2 is the second rollback of incident-1; unique over the run's life."""
    return f"{incident}-r{number}"


def probe_id(incident: str, number: int) -> str:
    """incident-1-p2 is the second probe that incident-1's races have begun."""
    return f"{incident}-p{number}"


def overrides_to_json(overrides: Overrides | None) -> dict[str, Any] | None:
    return None if overrides is None else load_object(encode_overrides(overrides))


def digest_of(decision: Rollback) -> str:
    """SHA-256, in hex, of what a person agrees to: rung, target, every override, and what can't be confirmed of it. Not
    of the time of the decision, nor of the steps that are lost meanwhile."""
    document = {
        "rollback": decision.id,
        "rung": decision.rung,
        "target": decision.target_tag,
        "target_step": decision.target_step,
        "overrides": overrides_to_json(decision.overrides),
        "unconfirmed": decision.unconfirmed,
        "restart": decision.restart,
    }
    return hashlib.sha256(dump_json(document).encode()).hexdigest()
