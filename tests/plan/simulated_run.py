"""A run and its incident log, simulated: each job has a fate, and a turn's records and actions have their effects."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from sentinel.act.past import evidence
from sentinel.act.perform import Ledger, execute
from sentinel.judge.history import History
from sentinel.judge.recovery_check import Answer, Recovery
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.actions import (
    Action,
    AdoptProbe,
    CutTensorBoard,
    FollowBisect,
    PointLatest,
    QuarantineCheckpoints,
    StartJob,
    StartProbe,
    StopProbe,
    WriteOverrides,
)
from sentinel.plan.baseline import OnsetReadings
from sentinel.plan.incident import Adoption, Approval, Incident, Proof
from sentinel.plan.incident_events import closed, fold
from sentinel.plan.look import Look, Memory, Outcome, started_for
from sentinel.plan.observation import BisectSeen, Life, RunState, Standing
from sentinel.plan.policy import Policy
from sentinel.plan.turn import next_turn
from sentinel.plan.turn_probes import asks_for_cause
from sentinel.vocabulary.numbers import dump_json, load_object
from sentinel.vocabulary.sample import CheckpointSaved, RunFinished, RunStarted, Sample
from tests.plan.test_recovery_plan import BASELINE, apply, checkpoint, run

_LOOK_S = 100.0
_SERIES = Series(Thresholds())


class KilledHere(BaseException):
    """The daemon was killed."""


@dataclass(frozen=True, kw_only=True)
class Story:
    """What the jobs of a run will do, and the policy that it is watched by."""

    policy: Policy
    fates: tuple[str, ...]
    """Of each job, in the order of their starts; the first one runs already.

    diverges, recovers, heals (after a while), finishes, ignores (what it was to change), crashes, hangs,
    silent (reports nothing and makes no step), unlabelled (trains, and does not report for which rollback).
    """

    probes: tuple[str, ...] = ()
    """Of each probe of its races, in the order of their starts: well, ill, lost, refused. () races none."""

    cause: BisectSeen | None = None
    """What its bisect comes to, once it was followed for three turns."""

    approves: bool = True
    prepares: bool = False
    undoing: bool = False
    """Whether an undo of the first rollback is begun and cut short once it is proved."""


@dataclass
class _Job:
    fate: str
    rollback: str | None
    looks: int = 0
    attempt: int | None = None


@dataclass
class World:
    """What is true of the run; `turn` is one turn of a watch, cut short before its `cut`-th effect."""

    story: Story
    cut: int | None = None
    now_unix_s: float = 2000.0
    events: list[dict[str, Any]] = field(default_factory=list)
    effects: int = 0
    started: Counter[str | None] = field(default_factory=Counter)
    turns: int = 0
    memory: Memory = field(default_factory=Memory)
    outcome: Outcome | None = None

    def __post_init__(self) -> None:
        self.history = History()
        self.state: RunState = run(
            incidents=(), checkpoints=tuple(checkpoint(s, verified=None) for s in range(10, 90, 10))
        )
        self.jobs = [_Job(self.story.fates[0], None, looks=2)]
        self._begin(self.jobs[0])
        self.undo_begun = False
        self.probes: dict[str, list[Any]] = {}  # by its name: its fate, and the looks at it so far
        self.bisected = 0  # turns in which its bisect was followed

    def copy(self) -> World:
        """As it is now: what is done to one does not show in the other."""
        other = copy(self)
        other.history = History()
        for number, attempt in self.history.attempts.items():
            other.history.attempts[number] = replace(attempt, samples=[*attempt.samples], saved=[*attempt.saved])
        other.jobs = [replace(job) for job in self.jobs]
        other.probes = {name: [*seen] for name, seen in self.probes.items()}
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
        self.events.append(load_object(dump_json(dict(event))))

    def _perform(self, action: Action) -> None:
        self._effect()
        moves = (
            QuarantineCheckpoints | PointLatest | CutTensorBoard | WriteOverrides | StartJob | StartProbe | AdoptProbe
        ) | FollowBisect
        if isinstance(action, moves):
            assert not self.state.jobs.writers, f"{action} while {self.state.jobs.writers} may write"
        self.state = apply(self.state, action)
        self.bisected += isinstance(action, FollowBisect)
        if isinstance(action, StartProbe):
            self.probes.setdefault(action.probe, [self.story.probes[len(self.probes)], 0])
        elif isinstance(action, StopProbe):
            self.probes[action.probe][1] = 99
        elif isinstance(action, AdoptProbe):
            at = {"attempt": len(self.history.attempts) + 1, "time_unix_s": self.now_unix_s}
            self.history.push(RunStarted(**at, rollback=action.probe, resumed_from=action.after_step, seed=4))
            self.history.push(Sample(**at, global_step=150, loss=2.0))
            self.history.push(RunFinished(**at, global_step=150, reason="finished"))
        elif isinstance(action, StartJob):
            self.started[action.rollback] += 1
            fate = self.story.fates[min(len(self.jobs), len(self.story.fates) - 1)]
            self.jobs.append(_Job(fate, action.rollback))

    def _latest(self) -> int:
        return int((self.state.latest_tag or "global_step0").removeprefix("global_step"))

    def _standings(self, incident: Incident | None) -> tuple[Standing, ...]:
        race = incident.race if incident is not None else None
        return () if race is None else tuple(self._standing(e.id, race.until_step) for e in race.entrants)

    def _standing(self, name: str, until_step: int) -> Standing:
        fate, looks = self.probes.get(name, (None, 0))
        if fate is None:
            return Standing(probe=name)
        if fate == "refused":
            return Standing(probe=name, life=Life.GONE, refused="its command names no checkpoints")
        ended, last = looks > 2, min(30 + 60 * looks, until_step)
        if fate == "ill" and looks > 1:
            return Standing(probe=name, life=Life.GONE if looks > 90 else Life.ALIVE, last_step=last, ill="diverged")
        if fate == "lost" and ended:
            return Standing(probe=name, life=Life.GONE, last_step=until_step - 1)
        if not ended:
            return Standing(probe=name, life=Life.ALIVE, last_step=last)
        saved = Adoption(probe=name, tag=f"global_step{until_step}", global_step=until_step)
        known = {"proof": Proof.CONFIRMED, "saved": saved, "loss": 3.0}
        return Standing(probe=name, life=Life.GONE, last_step=until_step, **known)

    def _bisect(self, incident: Incident | None) -> BisectSeen | None:
        if self.story.cause is None or not asks_for_cause(incident, self.story.policy):
            return None
        return self.story.cause if self.bisected > 2 else BisectSeen(reason=f"{self.bisected} probes have ended")

    # time

    def _begin(self, job: _Job) -> None:
        number = len(self.history.attempts) + 1
        overrides = self.state.overrides
        job.attempt = number
        label = None if job.fate == "unlabelled" else job.rollback
        report = RunStarted(attempt=number, time_unix_s=self.now_unix_s, rollback=label, seed=3)
        if overrides is not None:
            lr = overrides.standing.lr
            resumed = max(overrides.anchor.global_step, self._latest() if self.state.adoptions else 0)
            report = replace(
                report,
                seed=overrides.once.seed if overrides.once and job.fate != "ignores" else 3,
                resumed_from=resumed,
                first_sample_index=overrides.anchor.consumed_samples,
                consumed_tokens=overrides.anchor.consumed_tokens,
                applied_once=(overrides.once.id if overrides.once else overrides.rollback,),
                lr_schedule=lr.to_json() if lr else None,
                lr=lr.lr(step=resumed + 1) if lr else None,
            )
        self.history.push(report)

    def _steps(self, job: _Job, count: int) -> None:
        assert job.attempt is not None
        begin = self.history.attempts[job.attempt].made + (self._latest() + 1 if self.state.adoptions else 31)
        for step in range(begin, begin + count):
            at = {"attempt": job.attempt, "global_step": step, "time_unix_s": self.now_unix_s}
            self.history.push(Sample(**at, loss=3.0, lr=BASELINE.lr.lr(step=step) if BASELINE.lr else None))

    def _gone(self) -> None:
        self.state = replace(self.state, jobs=replace(self.state.jobs, writers=()))

    def pass_time(self) -> None:
        """A look's worth of training."""
        self.now_unix_s += _LOOK_S
        for seen in self.probes.values():
            seen[1] += 1
        job = self.jobs[-1]
        if not self.state.jobs.writers:
            return
        pending = replace(self.state.jobs.writers[0], pending=len(self.jobs) > 1 and job.looks == 0)
        self.state = replace(self.state, jobs=replace(self.state.jobs, writers=(pending,)))
        job.looks += 1
        if job.looks == 1 or job.fate == "silent":
            return
        if job.attempt is None:
            self._begin(job)
            return
        if job.fate == "hangs" and job.looks > 4:
            return
        self._steps(job, 60 if job.fate == "unlabelled" else 3)
        if job.looks == 4 and job.fate in ("crashes", "hangs"):
            self.history.push(
                CheckpointSaved(attempt=job.attempt, global_step=30, time_unix_s=0.0, tag="global_step30")
            )
        if job.fate == "crashes" and job.looks == 5:
            self._gone()
        if job.looks == 9 and job.fate in ("finishes", "heals", "recovers", "diverges"):
            self.history.push(RunFinished(attempt=job.attempt, global_step=90, time_unix_s=0.0, reason="finished"))
            self._gone()

    def verdict(self) -> Verdict:
        """Of the newest attempt."""
        latest, alive = self.history.latest, bool(self.state.jobs.writers)
        assert latest is not None
        job = next((job for job in self.jobs if job.attempt == latest.number), self.jobs[-1])
        diverged = job.fate == "diverges" or (job.fate == "heals" and job.looks < 6)
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
        if job.fate == "hangs" and job.looks > 4:
            return Verdict(kind=VerdictKind.STALLED, reason="journal and log are silent")
        return Verdict(kind=VerdictKind.HEALTHY, reason="the loss is inside its own noise band")

    def look(self, memory: Memory) -> Look:
        """What an observer would find now."""
        incidents = fold(self.events)
        approvals = {}
        if self.story.approves:
            proposed = {i.id: i.proposal for i in incidents if i.proposal is not None}
            approvals = {i: Approval(digest=p.digest, by="ada", time_unix_s=0.0) for i, p in proposed.items()}
        started = frozenset(
            a.started.rollback for a in self.history.attempts.values() if a.started and a.started.rollback
        )
        prepares = replace(self.state.jobs, prepares=self.story.prepares)
        starts = [e for e in self.events if e["event"] == "intent" and e["action"]["kind"] == "start_job"]
        latest = self.history.latest
        state = replace(
            self.state,
            now_unix_s=self.now_unix_s,
            jobs=prepares,
            incidents=incidents,
            approvals=approvals,
            started_rollbacks=started,
            starts_unix_s=tuple(e["time_unix_s"] for e in starts),
            last_step=latest.samples[-1].global_step if latest and latest.samples else None,
            no_races=None if self.story.probes else "no probes are run here",
        )
        state = replace(state, bisect=self._bisect(state.open_incident))
        onset = OnsetReadings(best_mean=3.6, onset_samples=49 * 16, batch_samples=16)
        found = Look(
            history=self.history,
            series=_SERIES,
            run=state,
            verdict=self.verdict(),
            events=tuple(self.events),
            silent_s=700.0,
            stalled_after_s=600.0,
            onset=onset,
            race=self._standings(state.open_incident),
            races_at_once=2,
            memory=memory,
        )
        incident = state.open_incident
        rollback = incident.current if incident else None
        attempt = started_for(found, rollback) if rollback is not None else None
        if incident is None or attempt is None:
            return found
        recovered = self.jobs[-1].fate == "recovers" and self.jobs[-1].looks > 5
        answer = Recovery(answer=Answer.RECOVERED if recovered else Answer.NOT_YET, reason="by its trend")
        return replace(found, evidence=evidence(self.history, attempt, before=incident.attempt), recovery=answer)

    def turn(self, memory: Memory) -> tuple[Outcome | None, Memory]:
        """One turn, as `act.watch` does it."""
        self.pass_time()
        if self.story.undoing and not self.undo_begun and any(e["event"] == "proved" for e in self.events):
            self.undo_begun = True
            undo = {"event": "intent", "incident": "incident-1", "rollback": None, "action": {"kind": "undo"}}
            self.events.append({**undo, "time_unix_s": self.now_unix_s})
        found, ledger = self.look(memory), Ledger(self._append, lambda: self.now_unix_s, lambda _: None)
        turn = next_turn(found, self.story.policy)
        for incident in turn.undo:
            self._gone()
            ledger.record(closed(incident.id, "undone", "a person took it back"))
        ledger.record_all(turn.records)
        execute(turn, found.newest_attempt, self._perform, ledger)
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
            "races": [(r.until_step, r.over, r.void, r.winner) for i in incidents for r in i.races],
            "bisects": [i.bisect for i in incidents],
            "rungs": [(len(i.waits), [s.rung for s in i.skips]) for i in incidents],
            "checkpoints": [c.tag for c in self.state.checkpoints],
            "latest": self.state.latest_tag,
            "tensorboard": self.state.tensorboard_past,
            "overrides": self.state.overrides,
            "started": dict(self.started),
        }
