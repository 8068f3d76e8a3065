"""One look at the run: journals, processes, checkpoints, TensorBoard, overrides and the incident log."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sentinel.adapters.checkpoints import Checkpoints
from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.journal import Journals
from sentinel.adapters.local import LocalJobs, Writer
from sentinel.adapters.overrides_file import OverridesFile
from sentinel.adapters.tensorboard import TensorBoard
from sentinel.judge.history import Attempt, History
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import Context, Verdict, judge
from sentinel.plan.incident import fold
from sentinel.plan.mitigations import Baseline
from sentinel.plan.run_state import Checkpoint, RunState, WriterSeen
from sentinel.vocabulary.overrides import Anchor
from sentinel.vocabulary.pacing import LrSchedule, SeqlenSchedule
from sentinel.vocabulary.sample import RunStarted

__all__ = ["Look", "Neighbours", "Observer", "baseline_of", "warmup_end"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """The adapters that a watch looks at and acts through."""

    state_dir: Path
    journals: Journals
    incident_log: IncidentLog
    checkpoints: Checkpoints
    jobs: LocalJobs
    overrides: OverridesFile
    tensorboard: TensorBoard | None
    job_log: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look found."""

    history: History
    series: Series
    run: RunState
    verdict: Verdict
    writers: tuple[Writer, ...]
    events: tuple[Mapping[str, Any], ...]
    """The incident log, as it stands."""


class Observer:
    """Looks at the run; keeps the history that it has read, and which checkpoints were verified."""

    def __init__(self, neighbours: Neighbours, thresholds: Thresholds) -> None:
        self._near = neighbours
        self._thresholds = thresholds
        self._history = History()
        self._series = Series(thresholds)
        self._followed: tuple[int, bool] | None = None
        self._pushed = 0
        self._verified: dict[str, Checkpoint] = {}

    @property
    def hand_started(self) -> tuple[str, int, float] | None:
        """(host, pid, start time) of the newest attempt's rank 0, as its journal names it."""
        return _hand_started(self._history.latest)

    def look(self, now_unix_s: float) -> Look:
        """One look, now."""
        readable = self._read()
        attempt = self._history.latest
        self._follow(attempt)
        writers = self._near.jobs.writers(self.hand_started)
        events = tuple(self._near.incident_log.read())
        run = self._run_state(now_unix_s, attempt, writers, events)
        verdict = judge(self._series, self._context(now_unix_s, attempt, writers, readable), self._thresholds)
        return Look(
            history=self._history, series=self._series, run=run, verdict=verdict, writers=writers, events=events
        )

    def verified(self, checkpoint: Checkpoint) -> None:
        """Remembers what reading a checkpoint whole has shown, until the daemon ends."""
        self._verified[checkpoint.tag] = checkpoint

    def forget(self, tags: tuple[str, ...]) -> None:
        """Forgets what was verified of checkpoints that were moved: others may come under their names."""
        for tag in tags:
            self._verified.pop(tag, None)

    def _follow(self, attempt: Attempt | None) -> None:
        """Keeps the series on the newest attempt's line of descent."""
        if attempt is None:
            return
        followed = (attempt.number, attempt.started is not None)
        if followed != self._followed:
            self._series = Series(self._thresholds, self._history.lineage(attempt))
            self._followed, self._pushed = followed, len(attempt.samples)
        for sample in attempt.samples[self._pushed :]:
            self._series.push(sample)
        self._pushed = len(attempt.samples)

    def _run_state(
        self,
        now_unix_s: float,
        attempt: Attempt | None,
        writers: tuple[Writer, ...],
        events: tuple[Mapping[str, Any], ...],
    ) -> RunState:
        near = self._near
        history = self._history
        started = [a.started for a in history.attempts.values() if a.started is not None]
        return RunState(
            now_unix_s=now_unix_s,
            writers=tuple(WriterSeen(pid=w.pid, rollback=w.rollback) for w in writers),
            checkpoints=tuple(self._seen(c) for c in near.checkpoints.list()),
            latest_tag=near.checkpoints.latest(),
            overrides=near.overrides.read(),
            tensorboard_past=near.tensorboard.last_step() if near.tensorboard else None,
            started_rollbacks=frozenset(s.rollback for s in started if s.rollback),
            baseline=baseline_of(attempt.started if attempt else None),
            seeds_used=frozenset(s.seed for s in started if s.seed is not None),
            positions=self._positions(attempt),
            incidents=fold(events),
            kill_file=(near.state_dir / "KILL").exists(),
            paused=(near.state_dir / "PAUSED").exists(),
        )

    def _seen(self, checkpoint: Checkpoint) -> Checkpoint:
        known = self._verified.get(checkpoint.tag)
        if known is None or not checkpoint.complete:
            return checkpoint
        return replace(checkpoint, verified=known.verified, problem=known.problem)

    def _positions(self, attempt: Attempt | None) -> dict[int, Anchor]:
        if attempt is None:
            return {}
        return {
            s.global_step: Anchor(
                global_step=s.global_step, consumed_samples=s.consumed_samples, consumed_tokens=s.consumed_tokens
            )
            for s in self._history.lineage(attempt)
        }

    def _read(self) -> bool:
        """Takes what is new in the journals; False when they can't be got at (a filesystem that is away)."""
        try:
            for record in self._near.journals.poll():
                self._history.push(record)
        except OSError as error:
            log.warning("the journals can't be read: %s", error)
            return False
        return True

    def _context(
        self, now_unix_s: float, attempt: Attempt | None, writers: tuple[Writer, ...], readable: bool
    ) -> Context:
        last = attempt.samples[-1] if attempt and attempt.samples else None
        started = attempt.started if attempt else None
        return Context(
            now_unix_s=now_unix_s,
            job_alive=bool(writers),
            readable=readable,
            attempt=attempt.number if attempt else None,
            finished_reason=attempt.finished.reason if attempt and attempt.finished else None,
            last_sample_unix_s=last.time_unix_s if last else None,
            attempt_started_unix_s=started.time_unix_s if started else None,
            second_witness_unix_s=_modified(self._near.job_log),
            warmup_end_step=warmup_end(started) if started else None,
        )


def baseline_of(started: RunStarted | None) -> Baseline:
    """What an attempt reported to run with, as mitigations change it. ConfigError for a schedule of another kind."""
    if started is None:
        return Baseline()
    return Baseline(
        seed=started.seed,
        lr=LrSchedule.from_json(started.lr_schedule) if started.lr_schedule else None,
        seqlen=SeqlenSchedule.from_json(started.seqlen_schedule) if started.seqlen_schedule else None,
        full_seqlen=started.full_seqlen,
    )


def warmup_end(started: RunStarted) -> int | None:
    """The step at which the attempt's LR and sequence length have warmed up; None where neither is known in steps."""
    baseline = baseline_of(started)
    ends = []
    if baseline.lr is not None and baseline.lr.unit == "steps":
        ends.append(baseline.lr.warmup_end)
    if baseline.seqlen is not None:
        ends.append(baseline.seqlen.end_step)
    return max(ends, default=None)


def _hand_started(attempt: Attempt | None) -> tuple[str, int, float] | None:
    """The process that the newest attempt's journal names, for trainers that somebody else started."""
    started = attempt.started if attempt else None
    if started is None or started.host is None or started.pid is None or started.process_start_unix_s is None:
        return None
    return started.host, started.pid, started.process_start_unix_s


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None
