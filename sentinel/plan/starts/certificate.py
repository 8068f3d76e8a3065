"""certificates(…): of each checkpoint whether it is whole and healthy, and why not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from sentinel.judge.events import Event, EventKind
from sentinel.judge.history import Attempt, History
from sentinel.plan.facts import Facts
from sentinel.plan.incident.events import fold
from sentinel.plan.incident.incident import Incident
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.incident.log_outcomes import Done
from sentinel.plan.readings_seen import SpoiltSpan
from sentinel.plan.starts.audit import FIRST, StartAudit, audits_of
from sentinel.vocabulary.sample import ScrapedSample

REBUILT_STEPS = 1000  # after which Adam's second moment (beta2 = 0.999) has forgotten what a start has broken


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """One checkpoint's health record. None is unknown."""

    tag: str
    global_step: int
    whole: bool | None  # whether every file of its layout is there, and reading it has found nothing wrong
    # Whether no verdict, unhealthy reading or bad start speaks against its step; None before its start's audit is over.
    healthy: bool | None
    verdict: str | None  # the judge's on its step, as it is now: healthy, spike, diverged
    start: str | None  # of the attempt that saved it: continued, not continued, unknown
    scanned: bool  # whether it was read whole: its digests, and no nan in its floats
    digest: bool  # whether it has a manifest
    pinned: bool
    why_not: str | None = None  # why it is not whole or not healthy, as a sentence

    @property
    def certified(self) -> bool:
        return bool(self.whole) and bool(self.healthy)


def spoilt_spans(history: History, events: tuple[IncidentEvent, ...]) -> tuple[SpoiltSpan, ...]:
    """Where the newest lineage holds another model than the run's, by the audits of its starts, or may hold
    one while the last audit is not over; and where an undo has brought checkpoints back that are after the onset, until
    an attempt goes on from them."""
    latest, audits = history.latest, audits_of(events)
    spans = list(_brought_back(history, fold(events)))
    if latest is None:
        return tuple(spans)
    spans += _not_yet_audited(latest, audits)
    for attempt, until in history.descent(latest):
        found = audits.get(attempt.number)
        if found is not None and found.spoils:
            rebuilt = found.resumed_from + REBUILT_STEPS
            last = rebuilt if until is None else min(rebuilt, until)
            why = f"attempt {found.attempt} did not continue the run: {found.reason}"
            spans.append(SpoiltSpan(first_step=found.resumed_from + 1, last_step=last, reason=why))
    return tuple(spans)


def _not_yet_audited(latest: Attempt, audits: Mapping[int, StartAudit]) -> Iterator[SpoiltSpan]:
    """What the newest attempt saves in the steps that its audit waits for."""
    at = latest.started.resumed_from if latest.started is not None else None
    scraped = bool(latest.samples) and isinstance(latest.samples[-1], ScrapedSample)  # these starts have no audit
    if not at or scraped or latest.number in audits or latest.made >= FIRST or latest.finished is not None:
        return
    why = f"the audit of attempt {latest.number}'s start is not over: {latest.made} of {FIRST} steps are made"
    yield SpoiltSpan(first_step=at + 1, last_step=at + REBUILT_STEPS, reason=why, pending=True)


def taken_back(history: History, incidents: Iterable[Incident]) -> tuple[Incident, ...]:
    """The incidents that were undone and whose restarts are the newest lineage: it is not what `latest` names
    any more."""
    descent = history.descent(history.latest) if history.latest is not None else []
    line = {_of(attempt) for attempt, _ in descent}
    return tuple(i for i in incidents if any(line.intersection(r.names) for r in i.rollbacks if r.taken_back))


def standing_attempt(history: History, incidents: Iterable[Incident]) -> Attempt | None:
    """The newest attempt of the line that `latest` names: where an undo took the newest line back, the one that it took
    back from. What that one trained with is the run's, not what the undone restart was given."""
    undone = taken_back(history, incidents)
    return history.attempts.get(undone[0].attempt, history.latest) if undone else history.latest


def _brought_back(history: History, incidents: Iterable[Incident]) -> Iterator[SpoiltSpan]:
    for incident in taken_back(history, incidents):
        diverged = history.attempts.get(incident.attempt)
        if incident.onset_range is not None and diverged is not None and diverged.samples:
            first, late = incident.onset_range
            why = f"the undo of {incident.id} brought it back, and it is after the onset (step {first} to {late})"
            last = max(late, diverged.samples[-1].global_step)
            yield SpoiltSpan(first_step=first, last_step=last, reason=why)


def _of(attempt: Attempt) -> str | None:
    """The rollback that it was started for, by one of its names."""
    return attempt.started.rollback if attempt.started is not None else None


def certificates(
    facts: Facts,
    history: History,
    judged: Collection[Event],
    events: tuple[IncidentEvent, ...],
    *,
    pinned: Collection[str],
    manifests: Collection[str],
) -> tuple[Certificate, ...]:
    """By step. `judged`: the judge's events, `events`: the incident log; `manifests`: the tags that have one."""
    audits, read = audits_of(events), _read_whole(events)
    undone = {name for i in facts.incidents for r in i.rollbacks if r.taken_back for name in r.names}
    attempts = [(n, attempt) for n, attempt in sorted(history.attempts.items()) if _of(attempt) not in undone]
    saver = {saved.tag: number for number, attempt in attempts for saved in attempt.saved}
    made = []
    for c in facts.folders.checkpoints:
        verdict, why = verdict_at(c.global_step, facts, judged)
        audit = audits.get(saver.get(c.tag, 0))
        whole = False if c.verified is False else c.complete
        made.append(
            Certificate(
                tag=c.tag,
                global_step=c.global_step,
                whole=whole,
                healthy=None if verdict is None else why is None,
                verdict=verdict,
                start=None if audit is None else str(audit.verdict),
                scanned=c.tag in read or c.tag in manifests or c.verified is True,
                digest=c.tag in manifests,
                pinned=c.tag in pinned,
                why_not=why if whole else c.problem or "it is not complete",
            )
        )
    return tuple(made)


def verdict_at(step: int, facts: Facts, judged: Iterable[Event]) -> tuple[str | None, str | None]:
    """The judge's verdict on the step, and what speaks against it; (None, a sentence) where no reading is known, or the
    audit of its start is not over."""
    if step not in facts.readings.positions:
        return None, "no reading of its step is known"
    if (found := facts.readings.unhealthy_at(step)) is not None:
        pending = isinstance(found, SpoiltSpan) and found.pending
        return (None if pending else "diverged"), found.reason
    at = [e for e in judged if e.onset_range[0] <= step and (e.end_step is None or step < e.end_step)]
    if diverged := [e for e in at if e.recommend_rollback]:
        return "diverged", diverged[0].reason
    spiked = any(e.kind is EventKind.SPIKE for e in at)
    return ("spike" if spiked else "healthy"), None


def _read_whole(events: Iterable[IncidentEvent]) -> frozenset[str]:
    """Tags of the checkpoints that were read whole and found sound; one that was moved since may be another."""
    read: set[str] = set()
    for action in (event.action for event in events if isinstance(event, Done)):
        if action.kind == "verify_checkpoint":
            read.add(action.details["tag"])
        elif action.kind == "quarantine_checkpoints":
            read -= set(action.details["tags"])
    return frozenset(read)
