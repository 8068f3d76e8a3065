"""One look at the run: journals, processes, checkpoints, TensorBoard, overrides and the incident log."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from time import monotonic

from sentinel.act.data_account import EndAccount
from sentinel.act.fence import Fence
from sentinel.act.folder_reader import FolderReader
from sentinel.act.following import References
from sentinel.act.judge_cache import JudgeCache
from sentinel.act.liveness_evidence import Witnessing
from sentinel.act.neighbours import CauseSearch, Neighbours
from sentinel.act.observation import Observation
from sentinel.act.overlap import Overlap, stranger
from sentinel.act.settings_seen import settings_seen
from sentinel.act.source_reader import SourceReader
from sentinel.act.starts import begun_unix_s
from sentinel.act.wall_clock import EventTimes
from sentinel.adapters.state_files import KILL, PAUSED, holds
from sentinel.durable import os_errors_named
from sentinel.judge.history import Attempt, sentence_of
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import Context, judge
from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Facts, OwnState, readings_of
from sentinel.plan.incident.baseline import warmup_end
from sentinel.plan.incident.events import fold
from sentinel.plan.incident.incident import Incident
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.observation import JobsSeen, Life, LivenessEvidence, PersonsWord
from sentinel.plan.restart.liveness import life_of, rollback_of
from sentinel.plan.starts.certificate import spoilt_spans, standing_attempt, taken_back
from sentinel.plan.turn_bisect import asks_for_cause
from sentinel.vocabulary.errors import ConfigError, ScriptRefused
from sentinel.vocabulary.overrides import Overrides
from sentinel.vocabulary.sample import RunStarted


class Observer:
    """Looks at the run; keeps what it needs of the history that it has read, and which checkpoints were verified. What
    it keeps does not grow with the run's steps, nor does what a look costs: the journals tell the rest again."""

    def __init__(
        self,
        neighbours: Neighbours,
        thresholds: Thresholds,
        *,
        name: str | None = None,
        room_for_saves: int = 0,
        planned: Sequence[int] = (),
        references: References | None = None,
        policy: Policy | None = None,
        cache: JudgeCache | None = None,
    ) -> None:
        self.bisects: CauseSearch | None = None  # of a watch, and of a command that acts
        self._near = neighbours
        self._thresholds = thresholds
        self._name = name
        self.folders = FolderReader(neighbours, room_for_saves)
        self._policy = policy or Policy()
        self._reader = SourceReader(neighbours.source, thresholds, planned, cache)
        self._history, self._following = self._reader.history, self._reader.following
        self._references = references or References()
        self._overlap = Overlap()
        self._times = EventTimes()
        board = neighbours.tensorboard
        self._witnessing = Witnessing(
            neighbours.state_dir, neighbours.checkpoints.files, board.folder if board is not None else None
        )
        self.fence = Fence(neighbours, self._reader, self._witnessing, thresholds)
        self._end_account = EndAccount(neighbours.state_dir, neighbours.source, name)

    @property
    def started(self) -> tuple[RunStarted, ...]:
        """What the attempts reported at their starts, the newest last."""
        return self._reader.started

    @property
    def newest_attempt(self) -> int | None:
        return max(self._history.attempts, default=None)

    @os_errors_named("the run's folders")
    def look(self, now_unix_s: float, *, room: bool = False, fresh: bool = False) -> Observation:
        """One look, now. FilesystemUnavailable or FilesystemRefused when something there can't be read. `room` asks for
        the free space as well, which is else counted while an incident is open. `fresh`: nothing that earlier looks
        remember of the checkpoints counts; what acts, acts on such a look."""
        began_s = monotonic()
        self._following.compare_with(self._references.at(began_s))
        unavailable = self._reader.read_and_judge(self._near.checkpoints.steps)
        attempt = self._history.latest
        jobs = self._near.launcher.look(self.started)
        events, now_unix_s = self._times.of(self._near.incident_log.read(), now_unix_s)
        self._attribute(attempt, jobs, events)
        facts = self._facts(now_unix_s, jobs, events, unavailable, room=room, fresh=fresh)
        facts = facts.changed(took_s=monotonic() - began_s)
        return Observation(history=self._history, series=self._following.series, facts=facts)

    def keep_state(self, *, at_once: bool = False) -> None:
        """See `SourceReader.keep_state`."""
        self._reader.keep_state(at_once=at_once)

    @os_errors_named("the run's folders")
    def keep_jobs(self) -> None:
        self._near.launcher.keep(self.started)

    def script_refusal(self, overrides: Overrides) -> str | None:
        try:
            self._near.launcher.preview(self.started, overrides)
        except (ConfigError, ScriptRefused) as error:
            return str(error)
        return None

    def _attribute(self, attempt: Attempt | None, jobs: JobsSeen, events: tuple[IncidentEvent, ...]) -> None:
        """Says of an attempt that was read from a log for which rollback it was started."""
        started = attempt.started if attempt else None
        if self._near.source_log is None or attempt is None or started is None or started.rollback is not None:
            return
        if (rollback := rollback_of(started, jobs, fold(events))) is not None:
            attempt.started = replace(started, rollback=rollback)

    def _facts(
        self,
        now_unix_s: float,
        jobs: JobsSeen,
        events: tuple[IncidentEvent, ...],
        unavailable: str | None,
        *,
        room: bool,
        fresh: bool,
    ) -> Facts:
        incidents = fold(events)
        folders = self.folders.read(incidents, room=room, fresh=fresh)
        liveness = replace(
            self.fence.evidence(jobs, fresh=fresh),
            overlap=self._overlap.sentence(self._history),
            stranger=stranger(self.started, self._name) if folders.checkpoints else None,
            starts_unix_s=begun_unix_s(events),
        )
        local, standing = datetime.fromtimestamp(now_unix_s).astimezone(), standing_attempt(self._history, incidents)
        context = self._context(now_unix_s, liveness, incidents, unavailable, fresh=fresh)
        facts = Facts(
            now_unix_s=now_unix_s,
            minute_of_day=60 * local.hour + local.minute,
            liveness=liveness,
            folders=folders,
            settings=settings_seen(self._history, standing, jobs),
            readings=readings_of(
                self._history,
                self._following.series,
                trained_to=standing.samples[-1].global_step if standing and standing.samples else None,
                positions=self._following.positions(
                    {*(c.global_step for c in folders.checkpoints), *self._in_memory()}
                ),
                unhealthy_spans=self._following.unhealthy_spans,
                spoilt_spans=spoilt_spans(self._history, events),
            ),
            person=PersonsWord(
                approvals=self._near.approvals.read(),
                kill_file=holds(self._near.state_dir, KILL),
                paused=holds(self._near.state_dir, PAUSED),
            ),
            verdict=judge(self._following.series, context, self._thresholds),
            events=events,
            incidents=incidents,
            own=OwnState(silent_s=self._witnessing.unheard_s(self._history)),
        )
        return self._with_bisect(facts)

    def _in_memory(self) -> tuple[int, ...]:
        """The steps whose states the newest attempt keeps in memory."""
        newest = self._history.latest
        return newest.memory.held if newest is not None and newest.memory is not None else ()

    def stop_probes(self, incidents: Sequence[Incident]) -> None:
        """Stops what still runs of the incidents' bisects: a person has decided otherwise."""
        if self.bisects is not None:
            self.bisects.stop_all(incidents)

    def _with_bisect(self, facts: Facts) -> Facts:
        incident = facts.open_incident
        if self.bisects is None or incident is None or not asks_for_cause(incident, self._policy):
            return facts
        return facts.changed(bisect=self.bisects.seen(incident, self._history, facts))

    def _context(
        self,
        now_unix_s: float,
        liveness: LivenessEvidence,
        incidents: tuple[Incident, ...],
        unavailable: str | None,
        *,
        fresh: bool,
    ) -> Context:
        attempt, jobs, known = self._history.latest, liveness.jobs, life_of(liveness)
        started = attempt.started if attempt else None
        return Context(
            now_unix_s=now_unix_s,
            job_alive=_ALIVE[known.life],
            why_unknown=known.sentence if known.life is Life.UNKNOWN else None,
            elsewhere=jobs.elsewhere,
            pending=bool(jobs.writers) and all(w.pending for w in jobs.writers),
            job_was_seen=jobs.was_seen or (attempt is None and self._has_journals()),
            taken_back=next((i.id for i in reversed(taken_back(self._history, incidents))), None),
            unavailable=unavailable,
            attempt=attempt.number if attempt else None,
            finished_reason=attempt.end_reason if attempt else None,
            gone=attempt is not None and any(a.number == attempt.number and a.is_gone for a in liveness.attempts),
            unclosed=self._end_account.unclosed(self._history, attempt, incidents),
            job_seen_unix_s=self._witnessing.job_seen_unix_s(jobs, now_unix_s),
            **self._witnessing.times(
                *(self._history, self._near.source_log, self._near.logs(jobs)),
                now_unix_s=now_unix_s,
                enough_s=self._thresholds.stalled_after_s,
                fresh=fresh,
            ),
            still=sentence_of(attempt.still) if attempt else None,
            warmup_end_step=warmup_end(started) if started else None,
        )

    def _has_journals(self) -> bool:
        """Whether an attempt was minted, which may have ended before its first record."""
        with contextlib.suppress(OSError):
            return any(path.suffix == ".jsonl" for path in (self._near.state_dir / "attempts").iterdir())
        return False


_ALIVE = {Life.ALIVE: True, Life.PARKED: True, Life.GONE: False, Life.UNKNOWN: None}
