"""What a turn comes to (Turn), and what a watch remembers of it (Memory), as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from sentinel.judge.verdict import VerdictKind
from sentinel.plan.incident.incident import Incident
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.restart.actions import Action
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

    def shifted(self, by_s: float) -> Memory:
        """The same after the wall clock was set by so much."""
        return replace(self, alert_states={topic: state.shifted(by_s) for topic, state in self.alert_states.items()})


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
