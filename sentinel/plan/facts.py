"""What a turn is decided from (Facts) and what it comes to (Turn), as plain data: nothing here is live, so that a
decision can be kept, and made again elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from sentinel.judge.detectors.attention_logits import LogitWarning
from sentinel.judge.events import EventKind
from sentinel.judge.history import Attempt, History
from sentinel.judge.recovery_check import Recovery
from sentinel.judge.series import Series
from sentinel.judge.unhealthy_spans import UnhealthySpan
from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.incident.baseline import OnsetReadings
from sentinel.plan.incident.incident import Event, Incident, Rollback
from sentinel.plan.observation import (
    BisectSeen,
    FoldersSeen,
    JobsSeen,
    LivenessEvidence,
    PersonsWord,
    RunSettings,
    SpoiltSpan,
)
from sentinel.plan.restart.actions import Action
from sentinel.plan.starts.audit import StartAudit
from sentinel.plan.starts.evidence import Evidence
from sentinel.plan.topics import AlertTopic, RemovedTopic, Severity
from sentinel.vocabulary.overrides import Anchor


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
class ReadingsSeen:
    """What a decision needs of the journals and of the judge beside the verdict. Steps are optimizer steps."""

    journals: tuple[JournalFacts, ...] = ()  # in the order of the attempts' numbers
    last_step: int | None = None  # the newest attempt's last global_step; None before its first
    judged_step: int | None = None  # of the newest reading that the judge has taken, of any attempt; None before it
    # the last step of the lineage that `latest` names: not of an attempt that an undo took back. None before the first
    trained_to: int | None = None
    positions: Mapping[int, Anchor] = field(default_factory=dict)  # global_step -> position, for the checkpoints' steps
    unhealthy_spans: tuple[UnhealthySpan, ...] = ()  # where the lineage's readings were far out of proportion
    spoilt_spans: tuple[SpoiltSpan, ...] = ()  # of the lineage, by the audits of its starts
    logit_warning: LogitWarning | None = None  # in force: the largest attention logit is above its limit
    plateaus: tuple[PlateauSeen, ...] = ()

    def anchor(self, step: int) -> Anchor:
        """The position at that step, as far as it is known."""
        return self.positions.get(step, Anchor(global_step=step))

    def unhealthy_at(self, step: int) -> UnhealthySpan | SpoiltSpan | None:
        """The span of unhealthy readings, or of a bad start, that a checkpoint of that step lies in; None for none."""
        spans: tuple[UnhealthySpan | SpoiltSpan, ...] = (*self.unhealthy_spans, *self.spoilt_spans)
        return next((s for s in spans if s.first_step <= step <= s.last_step), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemand:
    """What is dear to read, and read only where `needs_of` asks for it; None where it was not asked for."""

    onset: OnsetReadings | None = None  # where an incident is to be opened
    evidence: Evidence | None = None  # where a new attempt has to prove a rollback
    recovery: Recovery | None = None  # where a restart has to recover
    bisect: BisectSeen | None = None  # where a rung asks for the cause
    start: StartAudit | None = None  # of the newest attempt, while the incident log has no verdict on its start
    previews: Mapping[str, str | None] = field(default_factory=dict)
    """Digest of a decision -> why the job script can't carry it; None where it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnState:
    """What the watch knows of itself."""

    took_s: float = 0.0  # seconds that this observation took
    silent_s: float = 0.0  # seconds since this watch found a new attempt or sample, by a clock that is never set
    paging_problem: str | None = None  # why pages can't be written, as a sentence
    failure: Failure | None = None


_GROUPS = ("liveness", "folders", "settings", "readings", "person", "on_demand", "own")
_INCIDENT = re.compile(r"incident-(\d{1,9})(?:-[rp]\d+)?$", re.ASCII)  # an incident, or one of its rollbacks or probes


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that one turn is decided from, beside the policy and the watch's memory."""

    now_unix_s: float
    minute_of_day: int | None = None  # local time, minutes since midnight; None where nobody asked
    liveness: LivenessEvidence = field(default_factory=LivenessEvidence)
    folders: FoldersSeen = field(default_factory=FoldersSeen)
    settings: RunSettings = field(default_factory=RunSettings)
    readings: ReadingsSeen = field(default_factory=ReadingsSeen)
    person: PersonsWord = field(default_factory=PersonsWord)
    verdict: Verdict
    events: tuple[Event, ...] = ()  # the incident log, as it stands
    incidents: tuple[Incident, ...] = ()  # what it says
    on_demand: OnDemand = field(default_factory=OnDemand)
    own: OwnState = field(default_factory=OwnState)

    def changed(self, **values: Any) -> Facts:
        """With other values of its own fields, or of a group's, each by the field's name."""
        made = self
        for name in _GROUPS:
            group = getattr(made, name)
            if inside := {key: values.pop(key) for key in type(group).__slots__ if key in values}:
                made = replace(made, **{name: replace(group, **inside)})
        return replace(made, **values)

    @property
    def jobs(self) -> JobsSeen:
        return self.liveness.jobs

    @property
    def latest(self) -> JournalFacts | None:
        """The newest attempt; None before the first."""
        return self.readings.journals[-1] if self.readings.journals else None

    @property
    def newest_attempt(self) -> int | None:
        return self.latest.number if self.latest is not None else None

    @property
    def started_rollbacks(self) -> frozenset[str]:
        """Those that some attempt has reported to be started for."""
        return frozenset(journal.rollback for journal in self.readings.journals if journal.rollback)

    @property
    def open_incident(self) -> Incident | None:
        """The incident that is neither closed nor stopped, or None; there is one at most."""
        return next((i for i in self.incidents if i.status not in ("closed", "stopped")), None)

    @property
    def next_incident(self) -> int:
        """The number of the next incident: larger than any that the log, an attempt, a job or the quarantine names. The
        log alone does not tell: it may have been deleted with the state folder, while the attempt that trains still
        reports the rollback that it was started for."""
        named = {*(i.id for i in self.incidents), *self.folders.quarantined, *self._rollbacks_begun}
        return 1 + max((int(found[1]) for name in named if name and (found := _INCIDENT.match(name))), default=0)

    @property
    def unfinished(self) -> tuple[Incident, ...]:
        """Incidents of which an undo, or the last rollback, was begun and not brought to its end; the newest first. A
        rollback whose job was seen has been carried out, whatever the log had no time to say: what its job has written
        since is not to be taken back with it."""
        begun = self._rollbacks_begun
        half = [i for i in self.incidents if i.undoing or (i.half_done is not None and i.half_done.id not in begun)]
        return tuple(reversed(half))

    @property
    def _rollbacks_begun(self) -> set[str | None]:
        return {*self.started_rollbacks, *(w.rollback for w in self.jobs.writers)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What is done in one turn, in the order of these fields; what a field has no value for is not done."""

    reason: str  # why just this, as a sentence
    notes: tuple[str, ...] = ()  # lines for the daemon's log
    undo: tuple[Incident, ...] = ()  # whose undo was begun and is carried to its end; one at most
    pins: tuple[str, ...] | None = None  # the checkpoints that are kept from retention; None: as they were before
    message: str | None = None  # what the person at the terminal is told, beside the records
    records: tuple[Event, ...] = ()  # events for the incident log, to be written before the action
    actions: tuple[Action, ...] = ()  # one at most: the next look sees its effect
    on_record: bool = True  # whether the action is logged: reading a checkpoint in mode observe is none upon the run
    incident: str | None = None  # what the action belongs to, for the incident log; None for a restart after a crash
    rollback: str | None = None
    down: str | None = None  # why the job stays down, where sentinel will not start it; it becomes an alert
    down_within_s: float = 0.0  # seconds for which it may be down before a person is told
    alerts: tuple[Alert, ...] = ()  # what is wrong beside the loss, and what is not any more, once the action is done
    alert_records: tuple[Event, ...] = ()  # what of it is due, for the incident log
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


def readings_of(history: History, series: Series, **more: Any) -> ReadingsSeen:
    """Of the history and the judge's state what a decision needs; `more`: the fields that follow from neither alone."""
    newest = history.latest
    plateaus = [e for e in series.events if e.kind is EventKind.PLATEAU and e.end_step is None]
    return ReadingsSeen(
        journals=tuple(_journal(number, attempt) for number, attempt in sorted(history.attempts.items())),
        last_step=newest.samples[-1].global_step if newest is not None and newest.samples else None,
        judged_step=series.last.global_step if series.last is not None else None,
        logit_warning=series.logit_warning,
        plateaus=tuple(PlateauSeen(onset_step=e.onset_step, reason=e.reason) for e in plateaus),
        **more,
    )


def _journal(number: int, attempt: Attempt) -> JournalFacts:
    return JournalFacts(
        number=number,
        reported=attempt.started is not None,
        rollback=attempt.started.rollback if attempt.started is not None else None,
        made=attempt.made,
        saved=bool(attempt.saved),
        finished=attempt.finished is not None,
        end_reason=attempt.end_reason,
    )
