"""Where an incident stands: its rollbacks and their proofs, what a person was asked for, its other rungs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal

from sentinel.judge.analysis.departures import NOTHING_KNOWN, FirstMoved
from sentinel.judge.analysis.instability import Instability
from sentinel.plan.incident.baseline import Baseline
from sentinel.plan.incident.other_rungs import Bisected, SideBySide, Skip, Wait
from sentinel.vocabulary.codec import Form, Spelt, read
from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.numbers import dump_json, load_object
from sentinel.vocabulary.overrides import Overrides, decode_overrides, encode_overrides

WrittenOverrides = Annotated[Overrides, Spelt(lambda data: decode_overrides(dump_json(data)))]
"""As the incident log holds them."""


class Proof(StrEnum):
    """What is known of one change."""

    CONFIRMED = "confirmed"
    CONTRADICTED = "contradicted"
    NOT_VERIFIED = "not verified"


def failure(reason: str, proof: Proof | None, doubts: Iterable[str]) -> str:
    """A failed restart as a phrase: only a rung whose every change is confirmed can be said not to have helped."""
    if proof is Proof.CONFIRMED:
        return f"did not help: {reason}"
    if proof is Proof.CONTRADICTED:
        return f"did not take effect: {reason}"
    return f"failed, and it is not verified that {', '.join(doubts) or 'the change'} took effect: {reason}"


# open: found, nothing decided; decided: being carried out; applied: waits for the proof; holding: proved, waits for
# recovery; stopped: a person is needed; closed
Status = Literal["open", "decided", "applied", "holding", "stopped", "closed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A save folder: the same one by its path, or by its inode where it was renamed or is mounted elsewhere."""

    path: str  # without links
    inode: int | None = None  # None where it is not there, or can't be looked at

    def is_other(self, now: Place) -> bool:
        return now.path != self.path and (self.inode is None or now.inode != self.inode)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDisk:
    """What a rollback to a state in memory becomes where that is lost with its process: the same rung, from the newest
    healthy checkpoint on disk. `latest` names that one from the start."""

    tag: str | None  # None is from scratch
    global_step: int
    overrides: WrittenOverrides
    changes: tuple[str, ...] = ()
    lost_steps: int = 0
    lost_gpu_hours: float | None = None
    unconfirmed: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        of_json = {"overrides": overrides_to_json(self.overrides)}
        return {name: getattr(self, name) for name in self.__slots__} | of_json

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> OnDisk:
        return read(cls, data, "on_disk", Form(error=LineError, ignores_unknown=True))


@dataclass(slots=True, kw_only=True)
class Rollback:
    """One restart of an incident: a rung of the ladder, tried."""

    id: str
    rung: str
    hypothesis: str
    target_tag: str | None  # None is from scratch; memory:STEP: a state in the memory of the trainer's processes
    target_step: int
    overrides: Overrides
    changes: tuple[str, ...]
    decided_unix_s: float
    lost_steps: int  # optimizer steps that the rollback threw away
    lost_gpu_hours: float | None = None  # what those steps took; None where pace or size of the run was not known
    unconfirmed: tuple[str, ...] = ()  # names of checks that the plan said beforehand can't be confirmed
    in_script: bool = False  # whether its changes were made in the job script, in that trainer's own form
    restart: bool = True  # whether the job is started again after the rollback
    in_place: bool = False  # whether the training is resumed in its own processes, and not by a new job
    on_disk: OnDisk | None = None  # of a target in memory; None for a checkpoint
    given_up: str | None = None  # why it is not resumed in place after all; then by a new job
    park_asked_unix_s: float | None = None  # since when its trainer is asked to park; None while it is not
    resumed: bool = False  # whether its trainer's resume was intended, and no start of a job since
    after_attempt: int | None = None  # the newest attempt at the decision, 0 for none; None: an older log has no word
    known_jobs: tuple[str, ...] = ()  # what ran or waited at the decision, as a launcher names it
    place: Place | None = None  # the save folder that it was decided for; None: an older log has no word
    probe: str | None = None  # an older release's probe whose checkpoints became the run's; None from the target itself
    moved_tags: tuple[str, ...] = ()  # checkpoints that its quarantine was to take, over all its intents
    to_stop: tuple[str, ...] = ()  # what was to be stopped before its files are moved, over all its intents
    begun: bool = False  # whether an action upon the run's files was intended: they may have been changed
    applied: bool = False  # whether every action of it was seen done
    taken_back: bool = False  # whether what was done of it has been taken back since
    starts: int = 0  # how often the job's start, or its resume in place, was intended
    last_start_unix_s: float | None = None
    last_start_attempt: int | None = None  # the newest attempt then, 0 for none; None where it was not recorded
    attempt: int | None = None  # the attempt that was started for it
    proof: Proof | None = None  # whether its changes took effect; None while no attempt has shown
    doubts: tuple[str, ...] = ()  # what is contradicted, or not verified: names of checks
    failed: str | None = None  # why the restart failed; only where `proof` is confirmed did the rung not help

    @property
    def names(self) -> tuple[str, ...]:
        """What an attempt that was started for it may report: its own name, or that of the probe that became the
        run."""
        return (self.id,) if self.probe is None else (self.id, self.probe)

    @property
    def saved_tag(self) -> str | None:
        """The checkpoint that `latest` is to name, and that is to be whole; None is from scratch."""
        return self.target_tag if self.on_disk is None else self.on_disk.tag

    @property
    def saved_step(self) -> int:
        """Of `saved_tag`."""
        return self.target_step if self.on_disk is None else self.on_disk.global_step

    def give_up_in_place(self, reason: str) -> None:
        """From now on by a new job; a state in memory is no target of that."""
        self.in_place, self.given_up, self.applied = False, reason, False
        if (found := self.on_disk) is not None:
            self.target_tag, self.target_step, self.overrides = found.tag, found.global_step, found.overrides
            self.changes, self.unconfirmed = found.changes, found.unconfirmed
            self.lost_steps, self.lost_gpu_hours, self.on_disk = found.lost_steps, found.lost_gpu_hours, None

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
    baseline: Baseline
    moved_first: FirstMoved | None = None  # None without an onset, and in the logs of older versions
    ignored: str | None = None  # the rollback whose missing effect it is about: it ends with that one's incident
    overrides_before: Overrides | None = None  # overrides.json when the incident began; None where there was none
    status: Status = "open"
    rollbacks: list[Rollback] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)
    side_by_side: list[SideBySide] = field(default_factory=list)
    bisect: Bisected | None = None
    shadows: int = 0
    proposal: Proposal | None = None  # the last one; a decision takes it away
    purged: bool = False
    outcome: str | None = None
    note: str | None = None  # the sentence that it was stopped or closed with
    closed_unix_s: float | None = None
    closed_step: int | None = None  # the last judged step then, where its restart recovered or held
    tried_before: tuple[str, ...] = ()  # rungs that the run was restarted by before, whose recovery did not hold
    undoing: str | None = None  # what an unfinished undo was begun of: a rollback's id, or its own for all of it
    undo_after_attempt: int | None = None  # the newest attempt then, 0 for none; None: an older log has no word
    undo_known_jobs: tuple[str, ...] = ()  # what ran or waited then, as a launcher names it
    undo_moves: bool = False  # whether that undo has begun to move files

    @property
    def leading(self) -> FirstMoved:
        """What moved first, and where that is not recorded the record that names nothing."""
        return self.moved_first or NOTHING_KNOWN

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
    def unfinished_probes(self) -> SideBySide | None:
        """Rungs that an older release has begun to try side by side, and has not brought to an end; else None."""
        last = self.side_by_side[-1] if self.side_by_side else None
        if last is None or (last.over and last.winner in (None, *(r.probe for r in self.rollbacks))):
            return None
        return last

    @property
    def bisecting(self) -> bool:
        """Whether the bisect that a rung has asked for goes on."""
        return self.bisect is not None and self.bisect.over is None

    @property
    def instability(self) -> Instability | None:
        """That its onset shows; None where it shows none, or none is known."""
        shown = self.leading.instability
        return None if shown is None else shown.kind

    @property
    def tried(self) -> tuple[str, ...]:
        """Names of the rungs that were tried, or could not be."""
        return (*self.restarted_by, *(wait.rung for wait in self.waits), *(skip.rung for skip in self.skips))

    @property
    def restarted_by(self) -> tuple[str, ...]:
        """Names of the rungs that it was restarted by, or a probe of it."""
        beside = (name for tried in self.side_by_side if not tried.void for name in tried.rungs.values())
        return (*(r.rung for r in self.rollbacks if r.probe is None), *beside)

    @property
    def failed_restarts(self) -> int:
        """Rollbacks so far, rungs that were tried beside the run, and those before it whose recovery did not hold."""
        beside = sum(len(tried.rungs) for tried in self.side_by_side)
        return sum(r.probe is None for r in self.rollbacks) + beside + len(self.tried_before)

    @property
    def spent_gpu_hours(self) -> float:
        """What its rollbacks threw away and its probes took, as far as that was known."""
        probes = [tried.gpu_hours for tried in self.side_by_side] + [self.bisect.gpu_hours if self.bisect else None]
        return sum(hours or 0.0 for hours in (*(r.lost_gpu_hours for r in self.rollbacks), *probes))


def incident_id(number: int) -> str:
    return f"incident-{number}"


def rollback_id(incident: str, number: int) -> str:
    """incident-1-r2 is the second rollback of incident-1; unique over the run's life."""
    return f"{incident}-r{number}"


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
    if decision.in_place:
        document["in_place"] = True
    if decision.on_disk is not None:
        document["on_disk"] = decision.on_disk.to_json()
    return hashlib.sha256(dump_json(document).encode()).hexdigest()
