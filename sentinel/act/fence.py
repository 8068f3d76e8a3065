"""The fence: whether anything of the run may still write, by all liveness evidence, asked afresh."""

from __future__ import annotations

from statistics import median

from sentinel.act.liveness_evidence import Witnessing
from sentinel.act.neighbours import Neighbours
from sentinel.act.saved_files import quiet_s_of
from sentinel.act.source_reader import SourceReader
from sentinel.judge.thresholds import Thresholds
from sentinel.plan.observation import JobsSeen, Life, LivenessEvidence
from sentinel.plan.restart.in_place.parked import why_not_parked
from sentinel.plan.restart.liveness import life_of, settles
from sentinel.vocabulary.errors import JobStillAlive


class Fence:
    """Checked before anything is moved, and before a job begins."""

    def __init__(
        self, neighbours: Neighbours, reader: SourceReader, witnessing: Witnessing, thresholds: Thresholds
    ) -> None:
        self._near, self._reader, self._witnessing = neighbours, reader, witnessing
        self._thresholds = thresholds
        self._quiet_s = thresholds.quiet_s or quiet_s_of(neighbours.checkpoints.files.path)

    def check(self, except_for: str | None, *, or_parked: bool = False) -> None:
        """JobStillAlive unless all is gone but what was started for the rollback `except_for`, or, with `or_parked`, is
        parked for that rollback."""
        alive: JobStillAlive | None = None
        try:
            self._near.launcher.fenced(self._reader.started, except_for)
        except JobStillAlive as error:
            if not or_parked:
                raise
            alive = error
        found = self.witnesses()  # the launcher has been asked just now
        known = life_of(found, except_for=except_for)
        if known.life is not Life.GONE and not (or_parked and known.life is Life.PARKED):
            raise alive or JobStillAlive(known.sentence)
        if (why := settles(found, except_for=except_for)) is not None:
            raise JobStillAlive(why)
        if known.life is Life.PARKED:
            return
        if alive is not None:
            raise alive
        if (answers := self._witnessing.answers(self._reader.history, except_for)) is not None:
            raise JobStillAlive(answers)

    def not_parked(self, rollback: str) -> str | None:
        """Why the newest attempt is not parked for that rollback, by all witnesses, asked afresh; None where it is."""
        self._reader.read_new()
        return why_not_parked(self.witnesses(), rollback)

    def parked_process(self) -> int | None:
        """The number of the newest attempt's process, where it is parked and seen alive on this machine."""
        parked, newest = self._witnessing.parked(self._reader.history), self._reader.history.latest
        if parked is None or parked.process is None or parked.process.life is not Life.ALIVE:
            return None
        return newest.started.pid if newest is not None and newest.started is not None else None

    def witnesses(self) -> LivenessEvidence:
        """Asked afresh: nothing remembered may fence."""
        return self.evidence(self._near.launcher.look(self._reader.started), fresh=True)

    def evidence(self, jobs: JobsSeen, *, fresh: bool) -> LivenessEvidence:
        """The evidence beside the `jobs` that the launcher sees; without `fresh` as far as a poll asks for it."""
        history, thresholds = self._reader.history, self._thresholds
        attempts, newest = self._witnessing.attempts(history, jobs), history.latest
        enough_s = min(thresholds.gone_after_s, self._quiet_s)
        times = [s.step_time_s for s in newest.samples[-100:] if s.step_time_s is not None] if newest else []
        parked = self._witnessing.parked(history)
        asked = {"fresh": fresh, "parked": parked is not None}
        return LivenessEvidence(
            jobs=jobs,
            attempts=attempts,
            parked=parked,
            files_seen=self._witnessing.files_seen(attempts, jobs, self._near.logs(jobs), enough_s, **asked),
            heartbeats=self._witnessing.heartbeats(jobs, **asked),
            gone_after_s=thresholds.gone_after_s,
            stalled_after_s=thresholds.stalled_after_s,
            quiet_s=self._quiet_s,
            step_time_s=median(times) if times else None,
        )
