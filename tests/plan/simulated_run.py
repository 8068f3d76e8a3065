"""A run and its incident log, simulated: each job has an end, and a turn's records and actions have their effects."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from sentinel.act.past import evidence
from sentinel.act.perform import Ledger, execute
from sentinel.judge.history import Attempt, History
from sentinel.judge.recovery_check import Recovery, RecoveryOutcome
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Facts, started_for
from sentinel.plan.incident.baseline import OnsetReadings
from sentinel.plan.incident.events import STARTS, fold
from sentinel.plan.incident.incident import Approval, Incident
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.incident.log_lines import event_of
from sentinel.plan.incident.log_outcomes import Closed, Intent, Proved, UndoIntent
from sentinel.plan.observation import AttemptSeen, BisectSeen, Life, ParkedSeen, ProcessState, WriterSeen
from sentinel.plan.outcome import Memory, Outcome
from sentinel.plan.restart.actions import (
    Action,
    CutTensorBoard,
    FollowBisect,
    Park,
    PointLatest,
    PrepareJob,
    QuarantineCheckpoints,
    Release,
    Resume,
    StartJob,
    StopJob,
    VerifyCheckpoint,
    WriteOverrides,
)
from sentinel.plan.turn import decide
from sentinel.plan.turn_bisect import asks_for_cause
from sentinel.vocabulary.errors import JobStillAlive
from sentinel.vocabulary.numbers import dump_json, load_object
from sentinel.vocabulary.sample import CheckpointSaved, MemoryTarget, RunFinished, RunStarted, Sample
from tests.support.facts import look_of
from tests.support.parked_runs import JOURNAL, PARKED, WRITERS
from tests.support.recovery_plans import BASELINE, apply, checkpoint, run

_LOOK_S = 100.0
_SERIES = Series(Thresholds())


class KilledHere(BaseException):
    """The daemon was killed."""


@dataclass(frozen=True, kw_only=True)
class Story:
    """What the jobs of a run will do, and the policy that it is watched by."""

    policy: Policy
    process_states: tuple[str, ...]
    """Of each job, in the order of their starts; the first one runs already.

    diverges, recovers, heals (after a while), finishes, ignores (what it was to change), crashes, hangs,
    silent (reports nothing and makes no step), unlabelled (trains, and does not report for which rollback).
    """

    cause: BisectSeen | None = None
    """What its bisect comes to, once it was followed for three turns."""

    parks: str | None = None
    """None: its trainers can't park; else what they do: obeys, is late (never parks), dies parked, dies resuming, or is
    deaf (parks, and never takes RESUME)."""

    memory: tuple[int, ...] = ()
    """The steps whose states its trainers keep in memory, from the first attempt of a process on."""

    approves: bool = True
    prepares: bool = False
    undoing: bool = False
    """Whether an undo of the first rollback is begun and cut short once it is proved."""


@dataclass
class _Job:
    process_state: str
    rollback: str | None
    looks: int = 0
    attempt: int | None = None
    is_new: bool = False  # a process of its own, which has nothing in memory


@dataclass
class World:
    """What is true of the run; `turn` is one turn of a watch, cut short before its `cut`-th effect."""

    story: Story
    cut: int | None = None
    now_unix_s: float = 2000.0
    events: list[IncidentEvent] = field(default_factory=list)
    effects: int = 0
    started: Counter[str | None] = field(default_factory=Counter)
    turns: int = 0
    memory: Memory = field(default_factory=Memory)
    outcome: Outcome | None = None

    def __post_init__(self) -> None:
        self.history = History()
        self.state: Facts = run(
            incidents=(), checkpoints=tuple(checkpoint(s, verified=None) for s in range(10, 90, 10))
        )
        if self.story.parks is not None:
            self.state = self.state.changed(jobs=replace(self.state.jobs, writers=WRITERS))
        self.parked: ParkedSeen | None = None
        self.jobs = [_Job(self.story.process_states[0], None, looks=2)]
        self._begin(self.jobs[0])
        self.undo_begun = False
        self.by_hand: _Job | None = None  # what a person has started
        self.moved_nothing_yet = False  # whether no file of a rollback had moved when a person paused the run
        self.bisected = 0  # turns in which its bisect was followed

    def copy(self) -> World:
        """As it is now: what is done to one does not show in the other."""
        other = copy(self)
        other.history = History()
        for number, attempt in self.history.attempts.items():
            other.history.attempts[number] = replace(attempt, samples=[*attempt.samples], saved=[*attempt.saved])
        other.jobs = [replace(job) for job in self.jobs]
        other.events, other.started = [*self.events], Counter(self.started)
        return other

    # effects

    def _effect(self) -> None:
        if self.effects == self.cut:
            self.cut = None
            raise KilledHere
        self.effects += 1

    def _append(self, event: Mapping[str, Any]) -> None:
        self._effect()
        self.events.append(event_of(load_object(dump_json(event.to_json()))))

    def _perform(self, action: Action) -> None:
        self._effect()
        moves = QuarantineCheckpoints | PointLatest | CutTensorBoard | WriteOverrides
        if isinstance(action, StartJob | FollowBisect) or (isinstance(action, moves) and self.parked is None):
            assert not self.state.jobs.writers, f"{action} while {self.state.jobs.writers} may write"
        if isinstance(action, Resume):
            assert self.parked is not None, f"{action}, and nothing is parked"
        if self.state.person.paused:
            starts = StopJob | StartJob | PrepareJob | Park | Resume
            assert not isinstance(action, starts), f"{action} while the run is paused"
            assert not self.moved_nothing_yet or isinstance(action, Release), f"{action}, and nothing had moved before"
        assert self.by_hand is None or isinstance(action, VerifyCheckpoint), f"{action} upon what a person started"
        if isinstance(action, Park | Resume | Release):
            self._ask(action)
            return
        if isinstance(action, StopJob):
            self.parked = None
        self.state = apply(self.state, action)
        self.bisected += isinstance(action, FollowBisect)
        if isinstance(action, StartJob):
            self.started[action.rollback] += 1
            self.jobs.append(_Job(self._next_fate(), action.rollback, is_new=True))

    def _ask(self, action: Park | Resume | Release) -> None:
        """PARK, RESUME or RELEASE, and what becomes of it."""
        how, job = self.story.parks, self.jobs[-1]
        assert how is not None, "a trainer is asked to park that has not declared that it can"
        if how == "is late" or (how == "deaf" and isinstance(action, Resume)):
            if self.parked is not None:
                self.parked = replace(self.parked, resume_asked=True)
            raise JobStillAlive("it has not done so yet")
        if isinstance(action, Park):
            writers = tuple(writer.id for writer in self.state.jobs.writers)
            self.parked = replace(PARKED, attempt=job.attempt or 0, rollback=action.rollback, writers=writers)
            return
        self.parked = None
        if isinstance(action, Release):
            return
        self.started[action.rollback] += 1
        reason = f"resumed in place for {action.rollback}"
        self.history.push(RunFinished(attempt=action.attempt, global_step=90, time_unix_s=0.0, reason=reason))
        if how == "dies resuming":
            self._gone()
            return
        self.jobs.append(_Job(self._next_fate(), action.rollback, looks=1))

    def _next_fate(self) -> str:
        return self.story.process_states[min(len(self.jobs), len(self.story.process_states) - 1)]

    def _bisect(self, incident: Incident | None) -> BisectSeen | None:
        if self.story.cause is None or not asks_for_cause(incident, self.story.policy):
            return None
        return self.story.cause if self.bisected > 2 else BisectSeen(reason=f"{self.bisected} probes have ended")

    # time

    def _begin(self, job: _Job) -> None:
        number = len(self.history.attempts) + 1
        overrides = self.state.folders.overrides
        job.attempt = number
        label = None if job.process_state == "unlabelled" else job.rollback
        can = self.story.parks is not None
        report = RunStarted(attempt=number, time_unix_s=self.now_unix_s, rollback=label, seed=3, can_park=can)
        if overrides is not None:
            lr = overrides.standing.lr
            resumed = overrides.anchor.global_step
            report = replace(
                report,
                seed=overrides.once.seed if overrides.once and job.process_state != "ignores" else 3,
                resumed_from=resumed,
                first_sample_index=overrides.anchor.consumed_samples,
                consumed_tokens=overrides.anchor.consumed_tokens,
                applied_once=(overrides.once.id if overrides.once else overrides.rollback,),
                lr_schedule=lr.to_json() if lr else None,
                lr=lr.lr(step=resumed + 1) if lr else None,
            )
        self.history.push(report)
        if self.story.memory and not job.is_new:
            at = {"attempt": number, "global_step": self.story.memory[-1], "time_unix_s": self.now_unix_s}
            self.history.push(MemoryTarget(**at, held=self.story.memory))

    def _steps(self, job: _Job, count: int) -> None:
        assert job.attempt is not None
        begin = self.history.attempts[job.attempt].made + 31
        for step in range(begin, begin + count):
            at = {"attempt": job.attempt, "global_step": step, "time_unix_s": self.now_unix_s}
            self.history.push(Sample(**at, loss=3.0, lr=BASELINE.lr.lr(step=step) if BASELINE.lr else None))

    def _gone(self) -> None:
        self.state = self.state.changed(jobs=replace(self.state.jobs, writers=()))

    def pass_time(self) -> None:
        """A look's worth of training."""
        self.now_unix_s += _LOOK_S
        job = self.jobs[-1]
        if self.parked is not None and self.story.parks == "dies parked":
            self.parked = None
            self._gone()
        if not self.state.jobs.writers or self.parked is not None:
            return
        pending = replace(self.state.jobs.writers[0], pending=len(self.jobs) > 1 and job.looks == 0)
        if self.story.parks is None or pending.pending or self.state.jobs.writers[0].pending:
            self.state = self.state.changed(jobs=replace(self.state.jobs, writers=(pending,)))
        job.looks += 1
        if job.looks == 1 or job.process_state == "silent":
            return
        if job.attempt is None:
            self._begin(job)
            return
        if job.process_state == "hangs" and job.looks > 4:
            return
        self._steps(job, 60 if job.process_state == "unlabelled" else 3)
        if job.looks == 4 and job.process_state in ("crashes", "hangs"):
            self.history.push(
                CheckpointSaved(attempt=job.attempt, global_step=30, time_unix_s=0.0, tag="global_step30")
            )
        if job.process_state == "crashes" and job.looks == 5:
            self._gone()
        if job.looks == 9 and job.process_state in ("finishes", "heals", "recovers", "diverges"):
            self.history.push(RunFinished(attempt=job.attempt, global_step=90, time_unix_s=0.0, reason="finished"))
            self._gone()

    def verdict(self) -> Verdict:
        """Of the newest attempt."""
        latest, alive = self.history.latest, bool(self.state.jobs.writers)
        assert latest is not None
        job = next((job for job in self.jobs if job.attempt == latest.number), self.jobs[-1])
        diverged = job.process_state == "diverges" or (job.process_state == "heals" and job.looks < 6)
        if diverged and job.looks > 2:
            return Verdict(
                kind=VerdictKind.DIVERGED, reason="it does not come back", onset_range=(47, 49), alarm_step=88
            )
        if latest.end_reason == "finished":
            return Verdict(kind=VerdictKind.FINISHED, reason="it reached its planned end")
        if not alive:
            return Verdict(kind=VerdictKind.DOWN, reason="no process is left")
        if job is not self.jobs[-1]:
            return Verdict(kind=VerdictKind.STARTING, reason="the job is there and has not made a step yet")
        if job.process_state == "hangs" and job.looks > 4:
            return Verdict(kind=VerdictKind.STALLED, reason="journal and log are silent")
        return Verdict(kind=VerdictKind.HEALTHY, reason="the loss is inside its own noise band")

    def look(self) -> Facts:
        """What an observer would find now."""
        incidents = fold(self.events)
        approvals = {}
        if self.story.approves:
            proposed = {i.id: i.proposal for i in incidents if i.proposal is not None}
            approvals = {i: Approval(digest=p.digest, by="ada", time_unix_s=0.0) for i, p in proposed.items()}
        jobs = self.state.jobs
        starts = [e for e in self.events if isinstance(e, Intent) and e.action.kind in STARTS]
        latest = self.history.latest
        state = self.state.changed(
            now_unix_s=self.now_unix_s,
            jobs=replace(jobs, start=replace(jobs.start, prepares=self.story.prepares)),
            attempts=tuple(map(self._attempt_seen, self.history.attempts.values())),
            incidents=incidents,
            approvals=approvals,
            starts_unix_s=tuple(e.time_unix_s for e in starts),
            parked=self.parked,
            files_seen=() if self.parked is None else (replace(JOURNAL, attempt=self.parked.attempt),),
            last_step=latest.samples[-1].global_step if latest and latest.samples else None,
        )
        state = state.changed(bisect=self._bisect(state.open_incident))
        onset = OnsetReadings(best_mean=3.6, onset_samples=49 * 16, batch_samples=16)
        state = state.changed(verdict=self.verdict(), silent_s=700.0, stalled_after_s=600.0, onset=onset)
        facts = look_of(self.history, _SERIES, state.changed(events=tuple(self.events))).facts
        incident = state.open_incident
        rollback = incident.current if incident else None
        started = started_for(facts, rollback) if rollback is not None else None
        if incident is None or started is None:
            return facts
        recovered = self.jobs[-1].process_state == "recovers" and self.jobs[-1].looks > 5
        answer = Recovery(
            answer=RecoveryOutcome.RECOVERED if recovered else RecoveryOutcome.NOT_YET, reason="by its trend"
        )
        shown = evidence(self.history, self.history.attempts[started.number], before=incident.attempt)
        return facts.changed(evidence=shown, recovery=answer)

    def _attempt_seen(self, attempt: Attempt) -> AttemptSeen:
        runs = bool(self.state.jobs.writers) and any(job.attempt == attempt.number for job in self.jobs[-1:])
        return AttemptSeen(
            number=attempt.number,
            reported=attempt.started is not None,
            rollback=attempt.started.rollback if attempt.started else None,
            finished=attempt.finished is not None,
            process_state=None
            if runs
            else ProcessState(life=Life.GONE, sentence=f"attempt {attempt.number} has ended"),
        )

    def a_person_pauses_it(self) -> None:
        self.moved_nothing_yet = not any(r.begun for i in fold(self.events) for r in i.rollbacks)
        self.state = self.state.changed(paused=True)

    def a_person_starts_the_job(self) -> None:
        """While the watch is down; the job trains, and no rollback is its reason."""
        self.by_hand = _Job("finishes", None)
        self.jobs.append(self.by_hand)
        writers = (WriterSeen(id="process 90"),)
        self.state = self.state.changed(jobs=replace(self.state.jobs, writers=writers))

    def turn(self, memory: Memory) -> tuple[Outcome | None, Memory]:
        """One turn, as `act.watch` does it."""
        self.pass_time()
        if self.story.undoing and not self.undo_begun and any(isinstance(e, Proved) for e in self.events):
            self.undo_begun = True
            now = {"jobs": tuple(w.id for w in self.state.jobs.writers), "time_unix_s": self.now_unix_s}
            newest = max(self.history.attempts, default=0)
            self.events.append(UndoIntent(incident="incident-1", newest_attempt=newest, **now))
        found, ledger = self.look(), Ledger(self._append, lambda: self.now_unix_s, lambda _: None)
        turn = decide(found, self.story.policy, memory)
        for incident in turn.undo:
            self._gone()
            ledger.record(Closed(incident=incident.id, outcome="undone", reason="a person took it back"))
        ledger.record_all(turn.records)
        try:
            execute(turn, found.newest_attempt, self._perform, ledger)
        except JobStillAlive:
            return None, memory
        ledger.record_all(turn.alert_records)
        return turn.outcome, turn.memory

    def follow(self, turns: int = 36) -> Iterator[World]:
        """A watch until its end, or for so many turns. One that is killed is started again, and remembers nothing.

        Before each turn: the world as it is then.
        """
        while self.outcome is None and self.turns < turns:
            yield self
            self.turns += 1
            try:
                self.outcome, self.memory = self.turn(self.memory)
            except KilledHere:
                self.memory = Memory()

    @property
    def unfinished(self) -> bool:
        """Whether a rollback is decided and not carried out, or an undo is begun and not at its end."""
        return any(i.undoing or i.half_done is not None for i in fold(self.events))

    def end(self) -> dict[str, Any]:
        """What has come of it, without times, and what grows with them."""
        incidents = fold(self.events)
        return {
            "outcome": self.outcome,
            "incidents": [(i.id, i.status, i.outcome, i.ignored, re.sub(r"\d+", "…", i.note or "")) for i in incidents],
            "rollbacks": [
                (r.id, r.rung, r.target_tag, r.proof, r.applied, r.failed is not None)
                for i in incidents
                for r in i.rollbacks
            ],
            "bisects": [i.bisect for i in incidents],
            "rungs": [(len(i.waits), [s.rung for s in i.skips]) for i in incidents],
            "checkpoints": [c.tag for c in self.state.folders.checkpoints],
            "latest": self.state.folders.latest_tag,
            "tensorboard": self.state.folders.tensorboard_past,
            "overrides": self.state.folders.overrides,
            "started": dict(self.started),
        }
