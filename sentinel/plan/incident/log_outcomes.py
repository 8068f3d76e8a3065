"""The events of the incident log from a decision on: actions, proofs, ends; alerts and starts beside the incidents; and
what only older releases have written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from sentinel.plan.incident.incident import Proof
from sentinel.plan.incident.log_events import AdoptedProbe, IncidentEvent, OfIncident
from sentinel.vocabulary.codec import Form, read
from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.names import checked_name

FORM = Form(error=LineError, name="it", ignores_unknown=True, checks_ranges=False)
UNDO = "undo"  # the kind of the one action that is no `Action`: all that an undo does


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAction:
    """An action as the log holds it, also one of another version."""

    kind: str  # as `actions.KINDS` names them
    details: Mapping[str, Any]  # its fields

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RecordedAction:
        if not isinstance(kind := data["kind"], str):
            raise LineError(f"action.kind should be a string, not {type(kind).__name__}")
        return cls(kind=kind, details={key: value for key, value in data.items() if key != "kind"})

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.details}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionEvent(IncidentEvent):
    """An event around an action. Its incident is None for a restart after a crash."""

    rollback: str | None = None  # that it belongs to; None for a restart after a crash, or the undo of a whole incident
    action: RecordedAction


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent(ActionEvent, kind="intent"):
    """An action is begun."""

    newest_attempt: int | None = None  # None for none; without the key (`has`) an older release has no word

    @property
    def after_attempt(self) -> int | None:
        """The newest attempt then, 0 for none; None where an older release has no word."""
        return (self.newest_attempt or 0) if self.has("newest_attempt") else None


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoIntent(Intent):
    """An undo is begun, or begins to move files."""

    seldom = ("moves",)

    action: RecordedAction = RecordedAction(kind=UNDO, details={})
    jobs: tuple[str, ...] = ()  # what ran or waited, as a launcher names it
    moves: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Done(ActionEvent, kind="done"):
    """The action's effect was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(ActionEvent, kind="failed"):
    """The action has failed."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied(OfIncident, kind="applied"):
    """Every action of the decision was seen done."""

    rollback: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlaceGivenUp(OfIncident, kind="in_place_given_up"):
    """The training can't be resumed in its own processes: the rollback goes on by a new job."""

    rollback: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCheck:
    """One thing that was to be so after a restart."""

    what: str
    expected: Any = None
    reported: Any = None  # what was seen; None where nothing was
    changed: bool = True  # by the decision
    why: str | None = None  # how the answer was come to
    answer: Proof

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RecordedCheck:
        """Older logs have `holds` for the answer, true for a silence that was foreseen."""
        if "answer" in data:
            return read(cls, data, "check", FORM)
        silent = Proof.NOT_VERIFIED if "reported" in data and data["reported"] is None else Proof.CONFIRMED
        return read(cls, {**data, "answer": silent if data.get("holds", True) else Proof.CONTRADICTED}, "check", FORM)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksShown(OfIncident):
    """What an attempt has shown of a rollback's changes."""

    found: ClassVar[Proof]  # what the event's kind says; of an older log, `proof` may differ

    rollback: str
    attempt: int
    checks: tuple[RecordedCheck, ...] = ()

    @property
    def proof(self) -> tuple[Proof, tuple[str, ...]]:
        """What it says, and the checks that it leaves in doubt. Older logs have `proved` where a change was never
        reported, as long as the plan had foreseen that."""
        if self.found is Proof.CONTRADICTED:
            return self.found, tuple(c.what for c in self.checks if c.answer is Proof.CONTRADICTED)
        silent = tuple(c.what for c in self.checks if c.changed and c.answer is Proof.NOT_VERIFIED)
        return (Proof.NOT_VERIFIED if silent else Proof.CONFIRMED), silent


@dataclass(frozen=True, slots=True, kw_only=True)
class Proved(ChecksShown, kind="proved"):
    """Every change is confirmed by what the new attempt reports."""

    found = Proof.CONFIRMED


@dataclass(frozen=True, slots=True, kw_only=True)
class NotVerified(ChecksShown, kind="not_verified"):
    """No change is contradicted, and not every one is confirmed."""

    found = Proof.NOT_VERIFIED


@dataclass(frozen=True, slots=True, kw_only=True)
class NotProved(ChecksShown, kind="not_proved"):
    """A change is contradicted: it did not take effect."""

    found = Proof.CONTRADICTED


@dataclass(frozen=True, slots=True, kw_only=True)
class RungFailed(OfIncident, kind="rung_failed"):
    """The restart diverged again, or did not recover; only where its changes are confirmed did the rung not help."""

    rollback: str
    attempt: int | None = None
    reason: str
    proof: Proof | None = None  # None: no attempt has shown; without the key (`has`) an older release has no word
    doubts: tuple[str, ...] = ()  # names of checks
    onset_range: tuple[int, int] | None = None  # of the new divergence, optimizer steps; None where there is none
    alarm_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectBegun(OfIncident, kind="bisect_begun"):
    """A rung asks for the cause."""

    rung: str
    newest_attempt: int  # 0 for none


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectEnded(OfIncident, kind="bisect_ended"):
    """What the bisect has come to."""

    reason: str
    gpu_hours: float | None  # None where that is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentStopped(OfIncident, kind="stopped"):
    """Sentinel does not act on this incident any more and asks for a person."""

    seldom = ("last_lines",)

    reason: str
    last_lines: str | None = None  # of the job's log, where the job has died


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged(OfIncident, kind="purged"):
    """A person had its quarantine deleted: it can't be undone any more."""

    folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed(OfIncident, kind="closed"):
    """Its end."""

    seldom = ("judged_step",)

    judged_step: int | None = None  # the last step that had been judged, where its restart recovered or held
    outcome: str  # recovered, held, proved or not_verified (a person's own rollback), undone, superseded or healed
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertFiring(IncidentEvent, kind="alert_firing"):
    """Something is wrong beside the incidents, such as a job that is gone; a person is alerted."""

    seldom = ("last_lines",)

    topic: str
    severity: str = "warning"
    reason: str
    since_unix_s: float
    last_lines: str | None = None  # of the job's log, where the job has died

    def shifted(self, by_s: float) -> Self:
        later = super(AlertFiring, self).shifted(by_s)
        return replace(later, since_unix_s=self.since_unix_s + by_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertResolved(IncidentEvent, kind="alert_resolved"):
    """It is over."""

    topic: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAudited(IncidentEvent, kind="start_audited"):
    """Whether an attempt goes on with the run."""

    attempt: int
    resumed_from: int  # optimizer step; 0 from scratch
    verdict: str  # continued, not continued or unknown
    fault: str | None  # in the words of docs/STARTS.md
    reason: str
    checks: tuple[RecordedCheck, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceBegun(OfIncident, kind="race_begun"):
    """An older release tried rungs side by side, as probes beside the run."""

    entrants: tuple[Mapping[str, Any], ...]  # decisions, each under its probe's name
    until_step: int
    gpu_hours: float | None  # what the probes may take together

    @property
    def rungs(self) -> dict[str, str]:
        """By probe."""
        return {checked_name(e["rollback"], "rollback"): str(e["rung"]) for e in self.entrants}


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceEnded(OfIncident, kind="race_ended"):
    """Why, and whose checkpoints become the run's; or that no probe could run (`void`)."""

    seldom = ("void",)

    winner: AdoptedProbe | None
    reason: str
    void: bool = False
