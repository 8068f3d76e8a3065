"""What a turn is decided from (Facts) and what it comes to (Turn), as plain data: nothing here is live, so that a
decision can be kept, and made again elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from sentinel.judge.detectors.attention_logits import LogitWarning
from sentinel.judge.events import EventKind
from sentinel.judge.history import History
from sentinel.judge.recovery_check import Recovery
from sentinel.judge.series import Series
from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.incident.baseline import OnsetReadings
from sentinel.plan.incident.incident import Incident, Rollback
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.observation import RunState
from sentinel.plan.restart.actions import Action
from sentinel.plan.starts.audit import StartAudit
from sentinel.plan.starts.evidence import Evidence
from sentinel.plan.topics import AlertTopic, RemovedTopic, Severity


class Outcome(IntEnum):
    """Why a watch has ended, as its exit code."""

    FINISHED = 0  # the run reached its end and is healthy
    NOT_WELL = 1  # the run reached its end with an incident that is not settled: mode observe only reports it
    PERSON_NEEDED = 4  # sentinel has stopped acting


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """The state of one topic at this look."""

    topic: AlertTopic | RemovedTopic
    reason: str | None = None  # what is wrong, as a sentence; None where nothing is, or not any more
    severity: Severity = "critical"
    within_s: float = 0.0  # seconds for which it may last before a person is alerted


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertState:
    """What is wrong, while it lasts."""

    topic: AlertTopic | RemovedTopic
    severity: Severity
    reason: str  # the last one, as a sentence
    since_unix_s: float
    alerted_unix_s: float | None = None  # when a person was last alerted; None: not yet

    def shifted(self, by_s: float) -> AlertState:
        """The same after the wall clock was set by so much."""
        alerted_unix_s = None if self.alerted_unix_s is None else self.alerted_unix_s + by_s
        return replace(self, since_unix_s=self.since_unix_s + by_s, alerted_unix_s=alerted_unix_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a watch remembers from turn to turn. All of it may be lost at any time: it costs a repetition."""

    announced: tuple[VerdictKind, int | None] | None = None  # the verdict and the attempt that were logged last
    plateaus: frozenset[int] = frozenset()  # first steps of the plateaus that were logged
    turns: int = 0
    looked_again: bool = False  # whether the last turn did nothing, since its look took too long
    alert_states: Mapping[str, AlertState] = field(default_factory=dict)  # topic -> what is wrong, alerted or not
    verified_for: frozenset[str] = frozenset()  # digests of approvals whose target was read once more since
    previews: Mapping[str, str | None] = field(default_factory=dict)  # digest -> why the job script can't carry it

    def shifted(self, by_s: float) -> Memory:
        """The same after the wall clock was set by so much."""
        return replace(self, alert_states={topic: state.shifted(by_s) for topic, state in self.alert_states.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How the turn that was decided from this look has failed."""

    reason: str
    permanent: bool = False  # whether a person is needed; else it is tried again


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalFacts:
    """What a decision needs of one attempt's journal."""

    number: int
    reported: bool = False  # whether it has reported its start
    rollback: str | None = None  # the rollback that it was started for, as it reports; None for any other
    made: int = 0  # samples so far
    saved: bool = False  # whether it has reported a checkpoint
    finished: bool = False  # whether it has reported its own end
    end_reason: str | None = None  # how it ended, "finished" only at its planned end; None while it has not


@dataclass(frozen=True, slots=True, kw_only=True)
class PlateauSeen:
    """A loss that falls more slowly than it should, and does so still."""

    onset_step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What a decision needs of the judge beside the verdict."""

    last_step: int | None = None  # of the newest reading; None before the first
    logit_warning: LogitWarning | None = None  # in force: the largest attention logit is above its limit
    plateaus: tuple[PlateauSeen, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that one turn is decided from."""

    journals: tuple[JournalFacts, ...] = ()  # in the order of their numbers
    readings: Readings = field(default_factory=Readings)
    run: RunState
    verdict: Verdict
    events: tuple[IncidentEvent, ...]  # the incident log, as it stands
    took_s: float = 0.0  # seconds that the look took
    silent_s: float = 0.0  # seconds since this watch found a new attempt or sample, by a clock that is never set
    stalled_after_s: float = math.inf  # see Thresholds
    onset: OnsetReadings | None = None  # read where an incident is to be opened
    evidence: Evidence | None = None  # read where a new attempt has to prove a rollback
    start: StartAudit | None = None  # of the newest attempt, while the incident log has no verdict on its start
    recovery: Recovery | None = None  # read where a restart has to recover
    paging_problem: str | None = None  # why pages can't be written, as a sentence
    failure: Failure | None = None
    memory: Memory = field(default_factory=Memory)

    @property
    def latest(self) -> JournalFacts | None:
        """The newest attempt; None before the first."""
        return self.journals[-1] if self.journals else None

    @property
    def newest_attempt(self) -> int | None:
        return self.journals[-1].number if self.journals else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What is done in one turn, in the order of these fields; what a field has no value for is not done."""

    reason: str  # why just this, as a sentence
    notes: tuple[str, ...] = ()  # lines for the daemon's log
    undo: tuple[Incident, ...] = ()  # whose undo was begun and is carried to its end; one at most
    pins: tuple[str, ...] | None = None  # the checkpoints that are kept from retention; None: as they were before
    message: str | None = None  # what the person at the terminal is told, beside the records
    records: tuple[IncidentEvent, ...] = ()  # events for the incident log, to be written before the action
    actions: tuple[Action, ...] = ()  # one at most: the next look sees its effect
    on_record: bool = True  # whether the action is logged: reading a checkpoint in mode observe is none upon the run
    incident: str | None = None  # what the action belongs to, for the incident log; None for a restart after a crash
    rollback: str | None = None
    down: str | None = None  # why the job stays down, where sentinel will not start it; it becomes an alert
    down_within_s: float = 0.0  # seconds for which it may be down before a person is told
    alerts: tuple[Alert, ...] = ()  # what is wrong beside the loss, and what is not any more, once the action is done
    alert_records: tuple[IncidentEvent, ...] = ()  # what of it is due, for the incident log
    verified_for: str | None = None  # digest of the approved proposal that the action verifies the target for
    outcome: Outcome | None = None  # why the watch is over; None while it goes on
    memory: Memory = field(default_factory=Memory)  # for the next look

    @property
    def does(self) -> bool:
        """Whether it acts, or records what later turns act on: such a turn is decided from a fresh look."""
        return bool(self.actions or self.records or self.undo)

    @property
    def failing(self) -> bool:
        """Whether something failed in it that is tried again."""
        return any(alert.topic == "watch_failing" and alert.reason is not None for alert in self.alerts)


def started_for(facts: Facts, rollback: Rollback) -> JournalFacts | None:
    """The newest attempt, if it reports that it was started for the rollback."""
    attempt = facts.latest
    return attempt if attempt is not None and attempt.rollback == rollback.id else None


def journals_of(history: History) -> tuple[JournalFacts, ...]:
    """Of each attempt what a decision needs."""
    return tuple(
        JournalFacts(
            number=number,
            reported=attempt.started is not None,
            rollback=attempt.started.rollback if attempt.started is not None else None,
            made=attempt.made,
            saved=bool(attempt.saved),
            finished=attempt.finished is not None,
            end_reason=attempt.end_reason,
        )
        for number, attempt in sorted(history.attempts.items())
    )


def readings_of(series: Series) -> Readings:
    """Of the judge's state what a decision needs."""
    plateaus = [e for e in series.events if e.kind is EventKind.PLATEAU and e.end_step is None]
    return Readings(
        last_step=series.last.global_step if series.last is not None else None,
        logit_warning=series.logit_warning,
        plateaus=tuple(PlateauSeen(onset_step=e.onset_step, reason=e.reason) for e in plateaus),
    )
