"""One look at the run: journals, processes, checkpoints, TensorBoard, overrides and the incident log."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING, Any

from sentinel.act.bisect import Bisecting
from sentinel.act.following import Following, References
from sentinel.act.neighbours import Neighbours
from sentinel.act.source import RereadSource, SampleCache
from sentinel.act.witnesses import Overlap, Witnessing
from sentinel.durable import os_errors_named
from sentinel.judge.history import Attempt, History
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import UNAVAILABLE, Context, judge
from sentinel.plan.baseline import baseline_of, filled, warmup_end
from sentinel.plan.certificate import spoilt_spans, standing_attempt
from sentinel.plan.incident import Event, Incident
from sentinel.plan.incident_events import fold
from sentinel.plan.liveness import life_of, rollback_of
from sentinel.plan.look import Look
from sentinel.plan.observation import Checkpoint, JobsSeen, Life, RunState
from sentinel.plan.policy import Policy
from sentinel.plan.turn_probes import asks_for_cause
from sentinel.plan.waiting import priced_verdict
from sentinel.vocabulary.errors import ConfigError, JobStillAlive, ScrapeError, ScriptRefused
from sentinel.vocabulary.overrides import Overrides
from sentinel.vocabulary.sample import RunStarted

if TYPE_CHECKING:  # whose probes are looked at by an Observer, too
    from sentinel.act.racing import Racing

log = logging.getLogger(__name__)


class Observer:
    """Looks at the run; keeps what it needs of the history that it has read, and which checkpoints were verified. What
    it keeps does not grow with the run's steps, nor does what a look costs: the journals tell the rest again."""

    def __init__(
        self,
        neighbours: Neighbours,
        thresholds: Thresholds,
        *,
        room_for_saves: int = 0,
        planned: Sequence[int] = (),
        references: References | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.racing: Racing | None = None  # of a watch, and of a command that acts
        self.bisects: Bisecting | None = None
        self._near = neighbours
        self._thresholds = thresholds
        self._room_for_saves = room_for_saves
        self._asked_for_room = False
        self._policy = policy or Policy()
        source = neighbours.source
        self._source = source if isinstance(source, RereadSource) else SampleCache(source)
        self._history = History(again=self._source.again)
        self._has_read = False
        self._references = references or References()
        self._following = Following(self._history, thresholds, planned)
        self._verified: dict[str, Checkpoint] = {}
        self._overlap = Overlap()
        self._witnessing = Witnessing(neighbours.state_dir, neighbours.checkpoints.folder)

    @property
    def started(self) -> tuple[RunStarted, ...]:
        """What the attempts reported at their starts, the newest last."""
        attempts = self._history.attempts
        return tuple(s for number in sorted(attempts) if (s := attempts[number].started) is not None)

    @os_errors_named("the run's folders")
    def look(self, now_unix_s: float, *, room: bool = False) -> Look:
        """One look, now. FilesystemUnavailable or FilesystemRefused when something there can't be read. `room` asks for
        the free space as well, which is else counted while an incident is open."""
        began_s, self._asked_for_room = monotonic(), room
        self._following.compare_with(self._references.at(now_unix_s))
        if not self._has_read:  # what there is to read may be long: what is looked for in it is better known before
            self._following.expect(c.global_step for c in self._near.checkpoints.list())
        unavailable = self._read()
        self._following.catch_up()
        attempt, series = self._history.latest, self._following.series
        jobs = self._near.launcher.look(self.started)
        events = tuple(self._near.incident_log.read())
        self._attribute(attempt, jobs, events)
        run = self._with_bisect(self._run_state(now_unix_s, attempt, jobs, events))
        verdict = judge(series, self._context(attempt, run, unavailable), self._thresholds)
        verdict = priced_verdict(verdict, series, run, self._policy)
        races = self.racing
        return Look(
            history=self._history,
            series=series,
            run=run,
            verdict=verdict,
            events=events,
            race=races.standings(run.open_incident, now_unix_s) if races else (),
            races_at_once=races.at_once if races else 1,
            took_s=monotonic() - began_s,
            silent_s=self._witnessing.unheard_s(self._history),
            stalled_after_s=self._thresholds.stalled_after_s,
        )

    def fenced(self, spare: str | None) -> None:
        """Asks all witnesses afresh; JobStillAlive unless all but what was started for the rollback `spare` is gone."""
        self._near.launcher.fenced(self.started, spare)
        known = life_of(self.witnesses(), spare=spare)
        if known.life is not Life.GONE:
            raise JobStillAlive(known.sentence)
        if (answers := self._witnessing.answers(self._history, spare)) is not None:
            raise JobStillAlive(answers)

    def witnesses(self) -> RunState:
        return RunState(now_unix_s=0.0, **self._witnesses(self._near.launcher.look(self.started)))

    def _witnesses(self, jobs: JobsSeen) -> dict[str, Any]:
        attempts, gone_after_s = self._witnessing.attempts(self._history, jobs), self._thresholds.gone_after_s
        signs = self._witnessing.signs(attempts, jobs, self._logs(jobs), gone_after_s)
        newest = self._history.latest
        times = [s.step_time_s for s in newest.samples[-100:] if s.step_time_s is not None] if newest else []
        pace = {"gone_after_s": gone_after_s, "step_time_s": median(times) if times else None}
        return {"jobs": jobs, "attempts": attempts, "signs": signs, **pace}

    @os_errors_named("the run's folders")
    def keep_jobs(self) -> None:
        self._near.launcher.keep(self.started)

    def script_refusal(self, overrides: Overrides) -> str | None:
        try:
            self._near.launcher.preview(self.started, overrides)
        except (ConfigError, ScriptRefused) as error:
            return str(error)
        return None

    def verified(self, checkpoint: Checkpoint) -> None:
        """Remembers what reading a checkpoint whole has shown, until the daemon ends."""
        self._verified[checkpoint.tag] = checkpoint

    def forget(self, tags: tuple[str, ...]) -> None:
        """Forgets what was verified of checkpoints that were moved: others may come under their names."""
        for tag in tags:
            self._verified.pop(tag, None)

    def _attribute(self, attempt: Attempt | None, jobs: JobsSeen, events: tuple[Event, ...]) -> None:
        """Says of an attempt that was read from a log for which rollback it was started."""
        started = attempt.started if attempt else None
        if self._near.source_log is None or attempt is None or started is None or started.rollback is not None:
            return
        if (rollback := rollback_of(started, jobs, fold(events))) is not None:
            attempt.started = replace(started, rollback=rollback)

    def _run_state(
        self, now_unix_s: float, attempt: Attempt | None, jobs: JobsSeen, events: tuple[Event, ...]
    ) -> RunState:
        near, started, incidents, checkpoints = self._near, self.started, fold(events), self._checkpoints()
        board, of_attempt = near.tensorboard, attempt.started if attempt else None
        git = board.git_work_tree() if board else None
        local, standing = datetime.fromtimestamp(now_unix_s).astimezone(), standing_attempt(self._history, incidents)
        return RunState(
            now_unix_s=now_unix_s,
            minute_of_day=60 * local.hour + local.minute,
            **self._witnesses(jobs),
            overlap=self._overlap.sentence(self._history),
            starts_unix_s=_starts(events),
            checkpoints=checkpoints,
            latest_tag=near.checkpoints.latest(),
            disagreement=near.checkpoints.disagreement(),
            room_problem=self._room_problem(incidents),
            overrides=near.overrides.read(),
            tensorboard_past=board.last_step() if board else None,
            tensorboard_samples=board.last_samples() if board else None,
            tensorboard_git=None if git is None else str(git),
            wandb=near.wandb.seen() if near.wandb else None,
            started_rollbacks=frozenset(s.rollback for s in started if s.rollback),
            baseline=filled(baseline_of(standing.started if standing else None), jobs.script_baseline),
            applies=next((frozenset(s.applies) for s in reversed(started) if s.applies is not None), None),
            trainer=next((s.trainer for s in reversed(started) if s.trainer is not None), None),
            seeds_used=frozenset(s.seed for s in (*started, jobs.script_baseline) if s and s.seed is not None),
            positions=self._following.positions({c.global_step for c in checkpoints}),
            unhealthy_spans=self._following.unhealthy_spans,
            spoilt_spans=spoilt_spans(self._history, events),
            last_step=attempt.samples[-1].global_step if attempt and attempt.samples else None,
            world_size=of_attempt.world_size if of_attempt else None,
            incidents=incidents,
            adoptions=self.racing.adoptions(incidents) if self.racing else {},
            no_races=self._no_races(incidents),
            quarantined=near.checkpoints.quarantined_incidents(),
            approvals=near.approvals.read(),
            kill_file=(near.state_dir / "KILL").exists(),
            paused=(near.state_dir / "PAUSED").exists(),
        )

    def stop_probes(self, incidents: Sequence[Incident]) -> None:
        """Stops what still runs of the incidents' races and bisects: a person has decided otherwise."""
        if self.racing is not None:
            self.racing.stop_all(incidents)
        if self.bisects is not None:
            self.bisects.stop_all(incidents)

    def _with_bisect(self, run: RunState) -> RunState:
        incident = run.open_incident
        if self.bisects is None or incident is None or not asks_for_cause(incident, self._policy):
            return run
        return replace(run, bisect=self.bisects.seen(incident, self._history, run))

    def _checkpoints(self) -> tuple[Checkpoint, ...]:
        """Those that are there, with what was verified of them, and those of which only the pin is."""
        found = list(self._near.checkpoints.list())
        for n, c in enumerate(found):
            if c.complete and (known := self._verified.get(c.tag)) is not None:
                found[n] = replace(c, verified=known.verified, problem=known.problem)
        pins = self._near.checkpoints.pins
        gone = set(pins.usable()) - {c.tag for c in found}
        found += [Checkpoint(tag=t, global_step=pins.step_of(t), complete=True, only_pinned=True) for t in gone]
        return tuple(sorted(found, key=lambda c: c.global_step))

    def _no_races(self, incidents: tuple[Incident, ...]) -> str | None:
        if self.racing is None:
            return "[policy] race is 1"
        return self.racing.problem(next((i for i in incidents if i.status == "open"), None))

    def _room_problem(self, incidents: tuple[Incident, ...]) -> str | None:
        """Looked at where something is to be decided: it walks a whole checkpoint to count."""
        if not self._room_for_saves or not (self._asked_for_room or any(i.status == "open" for i in incidents)):
            return None
        try:
            room = self._near.checkpoints.room_for_saves(self._room_for_saves)
        except OSError as error:
            return f"the free space can't be counted: {error}"
        return room.problem if room else None

    def _read(self) -> str | None:
        """Takes what is new in the source. Why it can't, where it can't: a filesystem or a Prometheus that is away, a
        log that can be read in two ways."""
        try:
            for _ in range(1 if self._has_read else 2):  # as read_all: a source may hold its newest step until then
                for record in self._source.new():
                    self._history.push(record)
                    self._following.take(record)
            self._has_read = True
        except (OSError, ScrapeError) as error:
            log.warning("the readings can't be read: %s", error)
            return UNAVAILABLE
        except ConfigError as error:
            return f"the log is not judged, the state of the run is unknown: {error}"
        return None

    def _logs(self, jobs: JobsSeen) -> list[Path]:
        near = self._near
        logs = [near.job_log, *([Path(jobs.log_path)] if jobs.log_path else [])]
        return logs if near.source_log is None else [*logs, near.source_log]

    def _context(self, attempt: Attempt | None, run: RunState, unavailable: str | None) -> Context:
        jobs, known = run.jobs, life_of(run)
        started = attempt.started if attempt else None
        return Context(
            now_unix_s=run.now_unix_s,
            job_alive=_ALIVE[known.life],
            why_unknown=known.sentence if known.life is Life.UNKNOWN else None,
            elsewhere=jobs.elsewhere,
            pending=bool(jobs.writers) and all(w.pending for w in jobs.writers),
            job_was_seen=jobs.was_seen,
            unavailable=unavailable,
            attempt=attempt.number if attempt else None,
            finished_reason=attempt.end_reason if attempt else None,
            job_seen_unix_s=self._witnessing.job_seen_unix_s(jobs, run.now_unix_s),
            **self._witnessing.times(
                self._history,
                self._near.source_log,
                self._logs(jobs),
                now_unix_s=run.now_unix_s,
                enough_s=self._thresholds.stalled_after_s,
            ),
            warmup_end_step=warmup_end(started) if started else None,
        )


_ALIVE = {Life.ALIVE: True, Life.GONE: False, Life.UNKNOWN: None}


def _starts(events: tuple[Event, ...]) -> tuple[float, ...]:
    begun = [e for e in events if e["event"] == "intent" and e["action"]["kind"] == "start_job"]
    return tuple(float(e["time_unix_s"]) for e in begun)
