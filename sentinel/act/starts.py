"""What is known of the newest attempt's start, from the journals and the checkpoints' folder."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import islice

from sentinel.act.kept_ancestor import KeptAncestor
from sentinel.act.observation import Observation
from sentinel.judge.history import Attempt, History
from sentinel.judge.verdict import VerdictKind
from sentinel.plan.facts import Facts
from sentinel.plan.incident.events import STARTS
from sentinel.plan.incident.incident import Rollback
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.incident.log_outcomes import UNDO, Intent
from sentinel.plan.observation import Checkpoint
from sentinel.plan.starts.audit import FIRST, RECENT, Ancestor, Start, StartAudit, Trail, audits_of
from sentinel.plan.starts.checks import audit
from sentinel.plan.starts.position import stops_before
from sentinel.vocabulary.overrides import Overrides
from sentinel.vocabulary.sample import Sample, ScrapedSample

_OVER = (VerdictKind.DOWN, VerdictKind.FINISHED)
_MOVES = ("quarantine_checkpoints", "point_latest", UNDO)
_REPORTED_LATE = 3  # steps that an attempt can have made without a sample: one with CUDA is a step or two late


class Starts:
    """Audits the newest attempt's start. The run before it is read once for each attempt, unless it was `kept`."""

    def __init__(self, kept: KeptAncestor | None = None) -> None:
        self._kept = kept
        self._known: tuple[tuple[int, int | None, int | None], Ancestor] | None = None

    def audit(self, look: Observation) -> StartAudit | None:
        """None where there is nothing to compare it with, or the incident log has the verdict already."""
        attempt = look.history.latest
        if attempt is None or attempt.number in audits_of(look.events):
            self._known = None  # it grows with the run's steps
            return None
        start = self.start_of(look, attempt)
        return audit(start) if start is not None else None

    def start_of(self, look: Observation, attempt: Attempt) -> Start | None:
        facts, started = look.facts, attempt.started
        samples = tuple(islice(look.history.samples(attempt), FIRST))
        if started is None or not samples or isinstance(samples[0], ScrapedSample) or _being_replaced(attempt, facts):
            return None
        newest = left_by_others(attempt, look.history, facts, look.facts.own.took_s)
        if not started.resumed_from and newest is None:
            return None
        return Start(
            started=started,
            samples=samples,
            loaded=attempt.loaded,
            over=attempt.finished is not None or look.verdict.kind in _OVER,
            ancestor=self._ancestor(look.history, attempt) if started.resumed_from else None,
            newest=newest,
            pointed=pointed_at(attempt, look),
            rollback=_in_force(attempt, facts),
        )

    def _ancestor(self, history: History, attempt: Attempt) -> Ancestor | None:
        parent, at = history.parent(attempt)
        if parent is None:
            return None
        of = (attempt.number, parent.number, at)
        if self._known is None or self._known[0] != of:
            kept = self._kept.read(history, attempt) if self._kept is not None else None
            self._known = of, kept or ancestor_of(history, parent, at)
            if self._kept is not None and kept is None:
                self._kept.keep(history, attempt, self._known[1])
        return self._known[1]


def begun_unix_s(events: Sequence[IncidentEvent]) -> tuple[float, ...]:
    """When sentinel has begun to start a job, or to resume one in place."""
    return tuple(e.time_unix_s for e in events if isinstance(e, Intent) and e.action.kind in STARTS)


def ancestor_of(history: History, parent: Attempt, at: int) -> Ancestor:
    """The run up to step `at`, by the attempt that saved it, and what that one made afterwards."""
    trail, recent, later = Trail(), deque[Sample](maxlen=RECENT), list[Sample]()
    for sample in history.lineage(parent):
        trail.add(sample)
        if sample.global_step <= at:
            recent.append(sample)
        elif sample.global_step <= at + FIRST:
            later.append(sample)
    trail.foresee(at, parent.foreseen(at))
    layers = next((one for one in parent.layers if one.global_step == at), None)
    saved = next((one for one in reversed(parent.states) if one.global_step == at), None)
    return Ancestor(
        started=parent.started,
        recent=tuple(recent),
        later=tuple(later),
        layers=layers,
        saved=saved,
        trail=trail,
        stops=stops_before(history, parent, at),
    )


def _being_replaced(attempt: Attempt, facts: Facts) -> bool:
    """Whether a rollback is being carried out that the attempt was not started for: overrides.json is not of it."""
    incident = facts.open_incident
    current = incident.current if incident is not None and incident.status in ("decided", "applied") else None
    return current is not None and attempt.number <= (current.last_start_attempt or attempt.number)


def left_by_others(attempt: Attempt, history: History, facts: Facts, took_s: float) -> Checkpoint | None:
    """The newest checkpoint that was there when the attempt began: one that an earlier attempt has reported, or whose
    step it has passed. What the attempt itself may have saved, or may be saving now, is none: that has the step of one
    that it has made, or could have made since its journal was read, in a look of `took_s` seconds."""
    earlier = [one for number, one in history.attempts.items() if number < attempt.number]
    own = {saved.tag for saved in attempt.saved}
    others = {saved.tag for one in earlier for saved in one.saved}
    reached = max((one.samples[-1].global_step for one in earlier if one.samples), default=0)
    resumed, last = (attempt.started.resumed_from or 0) if attempt.started else 0, facts.readings.last_step or 0
    if attempt.finished is None:
        step_s = facts.liveness.step_time_s
        last += _REPORTED_LATE + (math.ceil(2 * took_s / step_s) if step_s else FIRST)

    def left(c: Checkpoint) -> bool:
        known = c.tag in others or c.global_step <= reached
        return known and not c.only_pinned and c.tag not in own and not resumed < c.global_step <= last

    found = [c for c in facts.folders.checkpoints if left(c)]
    return found[-1] if found and found[-1].global_step else None


def pointed_at(attempt: Attempt, look: Observation) -> frozenset[int] | None:
    """By `latest`: a rollback and a restart write it. Once it names what the attempt itself has saved, and that began
    from scratch: by the saves of the last attempt before that has any; `latest` has named each."""
    facts = look.facts
    if facts.folders.checkpoints and facts.folders.latest_tag not in {saved.tag for saved in attempt.saved}:
        return frozenset(c.global_step for c in facts.folders.checkpoints if c.tag == facts.folders.latest_tag)
    before = [one for number, one in look.history.attempts.items() if number < attempt.number and one.saved]
    if not facts.folders.checkpoints or not before or (attempt.started and attempt.started.resumed_from):
        return None
    last = max(before, key=lambda one: one.number)
    return None if _moved_since(last, look) else frozenset(saved.global_step for saved in last.saved)


def _moved_since(attempt: Attempt, look: Observation) -> bool:
    """Whether sentinel may have changed a checkpoint, or `latest`, since the attempt was the newest."""
    moves = (e.newest_attempt for e in look.events if isinstance(e, Intent) and e.action.kind in _MOVES)
    return any(at is None or at >= attempt.number for at in moves)


def _in_force(attempt: Attempt, facts: Facts) -> Rollback | None:
    """Whose changes overrides.json holds; None where it was written after the attempt began."""
    if facts.folders.overrides is None or attempt.started is None:
        return None
    known = (r for i in facts.incidents for r in i.rollbacks if r.id == facts.folders.overrides.rollback)
    rollback = next(known, None)
    if rollback is None:
        return _unrecorded(facts.folders.overrides)
    if attempt.started.rollback == rollback.id:
        return rollback
    if rollback.after_attempt is not None:
        return rollback if attempt.number > rollback.after_attempt else None
    return (
        rollback if attempt.started.time_unix_s >= rollback.decided_unix_s else None
    )  # a decision of an older version


def _unrecorded(overrides: Overrides) -> Rollback:
    """Of an incident log that is not there any more."""
    return Rollback(
        id=overrides.rollback,
        rung=overrides.rollback,
        hypothesis="",
        target_tag=None,
        target_step=overrides.anchor.global_step,
        overrides=overrides,
        changes=(),
        decided_unix_s=0.0,
        lost_steps=0,
    )
