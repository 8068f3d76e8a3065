"""What a turn is decided from, as plain data: nothing here is live, so that a decision can be kept, and made again
elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sentinel.judge.events import EventKind
from sentinel.judge.history import Attempt, History
from sentinel.judge.recovery_check import Recovery
from sentinel.judge.series import Series
from sentinel.judge.verdict import Verdict
from sentinel.plan.incident.baseline import OnsetReadings
from sentinel.plan.incident.incident import Incident, Rollback
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.observation import BisectSeen, FoldersSeen, JobsSeen, LivenessEvidence, PersonsWord, RunSettings
from sentinel.plan.readings_seen import JournalFacts, PlateauSeen, ReadingsSeen
from sentinel.plan.starts.audit import StartAudit
from sentinel.plan.starts.evidence import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How the turn that was decided from this look has failed."""

    reason: str
    permanent: bool = False  # whether a person is needed; else it is tried again


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
    events: tuple[IncidentEvent, ...] = ()  # the incident log, as it stands
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
    refused = attempt.released if attempt.released is not None and attempt.released.not_parked is not None else None
    return JournalFacts(
        number=number,
        reported=attempt.started is not None,
        rollback=attempt.started.rollback if attempt.started is not None else None,
        made=attempt.made,
        saved=bool(attempt.saved),
        finished=attempt.finished is not None,
        end_reason=attempt.end_reason,
        can_park=attempt.started is not None and attempt.started.can_park,
        memory=attempt.memory.held if attempt.memory is not None and attempt.finished is None else (),
        not_parked_for=refused.rollback if refused is not None else None,
        why_not_parked=refused.not_parked if refused is not None else None,
    )
