"""Asks every witness of a run's life: jobs, processes and files."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sentinel.act.file_activity import FileSilence, FileTimes, Silence, matching
from sentinel.act.saved_files import SavedFiles
from sentinel.adapters.checkpoints import SaveFolder
from sentinel.adapters.heartbeats import Heartbeats, process_name
from sentinel.adapters.journal import parked_at_end
from sentinel.adapters.parking import RequestFiles
from sentinel.adapters.process_states import Announced, state_of_process
from sentinel.judge.history import Attempt, History
from sentinel.plan.observation import AttemptSeen, FileSeen, HeartbeatSeen, JobsSeen, Life, ParkedSeen, ProcessState
from sentinel.vocabulary.heartbeat import BESIDE_CHECKPOINTS, FOLDER
from sentinel.vocabulary.parking import ResumeRequest
from sentinel.vocabulary.sample import RunStarted

_NEWEST = 4  # attempts that are asked about anew at each look, whatever is known of them
_LATE_S = 60.0  # seconds for which samples of before an attempt's end may still show, through a filesystem's cache


class Witnessing:
    """What is looked for again at each look, and how it compares with what this watch saw before."""

    def __init__(
        self,
        state_dir: Path,
        checkpoints: SaveFolder,
        tensorboard: Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._signs = FileTimes(state_dir, checkpoints.path, clock=clock)
        self._saved = SavedFiles(checkpoints, except_for=tensorboard, clock=clock)
        self._clock = clock
        self._state_dir, self._requests = state_dir, RequestFiles(state_dir)
        self._attempts = state_dir / "attempts"
        self._announced = Announced(state_dir)
        beating = (state_dir / FOLDER, checkpoints.path / BESIDE_CHECKPOINTS)
        self._heartbeats = Heartbeats(beating, self._signs.age_s)
        self._settled: dict[int, tuple[int, AttemptSeen]] = {}  # attempt -> samples, and what was known of it
        self._unheard = Silence(clock)
        self._of_readings, self._of_logs, self._of_saves = (
            FileSilence(self._signs.now_there_unix_s, clock) for _ in range(3)
        )
        # attempt -> since when it is seen gone, and how many samples it had when that could still change
        self._ended: dict[int, tuple[float, int]] = {}
        self._running: tuple[frozenset[str], float] = (frozenset(), 0.0)  # jobs, and since when they are seen

    def job_seen_unix_s(self, jobs: JobsSeen, now_unix_s: float) -> float | None:
        """Since when the jobs that run now are seen to run, on the axis of `now`; None where none is seen. A look that
        nobody answered changes nothing, nor does the end of one of several; a watch that is started again counts
        anew."""
        running = frozenset(writer.id for writer in jobs.writers if not writer.pending)
        if jobs.known:
            goes_on = bool(running) and running <= self._running[0]
            self._running = (running, self._running[1] if goes_on else self._clock())
        return now_unix_s - (self._clock() - self._running[1]) if running else None

    def attempts(self, history: History, jobs: JobsSeen) -> tuple[AttemptSeen, ...]:
        """All of them: an old one may live. Whose end is certain is not asked about again, while it does not grow."""
        numbers = sorted(history.attempts)
        return tuple(self._witness(history.attempts[number], jobs, number in numbers[-_NEWEST:]) for number in numbers)

    def parked(self, history: History) -> ParkedSeen | None:
        """The newest attempt, where its journal ends with `parked` on the disk too, now. OSError."""
        newest = history.latest
        if newest is None or newest.parked is None or newest.started is None:
            return None
        record, started = parked_at_end(self._state_dir), newest.started
        if record is None or record.attempt != newest.number:
            return None
        asked = self._requests.read(ResumeRequest)
        return ParkedSeen(
            attempt=record.attempt,
            rollback=record.rollback,
            global_step=record.global_step,
            writers=(f"process {started.pid}", *([started.job_id] if started.job_id is not None else [])),
            process=state_of_process(started),
            identity=process_name(started),
            job_id=started.job_id,
            resume_asked=asked is not None and (asked.rollback, asked.attempt) == (record.rollback, record.attempt),
        )

    def heartbeats(self, jobs: JobsSeen, *, fresh: bool, parked: bool = False) -> tuple[HeartbeatSeen, ...]:
        """Those that live; not asked for by a poll of a run whose job is seen, all of them where it is `parked`.
        OSError."""
        if not jobs.known or (not (fresh or parked) and any(not writer.pending for writer in jobs.writers)):
            return ()
        return self._heartbeats.living(fresh=True, most=None) if parked else self._heartbeats.living(fresh=fresh)

    def files_seen(
        self,
        attempts: Sequence[AttemptSeen],
        jobs: JobsSeen,
        logs: Sequence[Path],
        enough_s: float,
        *,
        fresh: bool,
        parked: bool = False,
    ) -> tuple[FileSeen, ...]:
        """When files were written last; nothing where the jobs that are seen explain them anyway and none is `parked`,
        nor where the jobs are not known: then the run's state is unknown, whatever the files say. An age of `enough_s`
        decides. `fresh`: all checkpoints' files."""
        if not jobs.known:
            return ()
        doubtful = [a for a in attempts if not _is_settled(a)]
        if parked:  # ages are compared with one another: all of them by the filesystem's clock
            asked = {a.number for a in (*doubtful, *attempts[-_NEWEST:])}
            return self._signs.look(sorted(asked), logs, self._saved.newest(fresh=True), sure_s=0.0)
        if any(not writer.pending for writer in jobs.writers):
            return self._signs.of_journals([a.number for a in doubtful if a.process_state is not None], sure_s=_LATE_S)
        asked = {a.number for a in (*doubtful, *attempts[-_NEWEST:])}
        return self._signs.look(sorted(asked), logs, self._saved.newest(fresh=fresh), sure_s=min(_LATE_S, enough_s))

    def answers(self, history: History, except_for: str | None) -> str | None:
        """That the exporter of the newest attempt answers, as a sentence; not where it was started for `except_for`."""
        newest = history.latest
        if newest is None or (
            except_for is not None and newest.started is not None and newest.started.rollback == except_for
        ):
            return None
        return self._announced.answers_as(newest.number)

    def unheard_s(self, history: History) -> float:
        """Seconds for which this watch itself has heard nothing new of the run."""
        return self._unheard.lasts_s(history)

    def times(
        self,
        history: History,
        source_log: Path | None,
        logs: Sequence[Path],
        *,
        now_unix_s: float,
        enough_s: float,
        fresh: bool,
    ) -> dict[str, float | None]:
        """When the run was heard of last, on the axis of `now`: see judge.verdict.Context. The logs and checkpoints are
        looked at once the readings are silent for `enough_s`; `fresh`: all the checkpoints' files. A hook that can't
        write a sample, since the disk is full, still sets its journal's modification time."""
        attempt, unheard_s = history.latest, self.unheard_s(history)
        journal = [self._attempts / f"{attempt.number:04d}.jsonl"] if attempt is not None else []
        heard_s = self._of_readings.lasts_s(matching(journal if source_log is None else [source_log]))
        written_s = heard_s
        hears = attempt is not None and bool(attempt.samples) and self._unheard.is_known and unheard_s < enough_s
        if (heard_s is None and not hears) or (heard_s is not None and heard_s >= enough_s):  # None: no file, as of W&B
            saved = self._saved.newest(fresh=fresh)
            others = (self._of_logs.lasts_s(matching(logs)), self._of_saves.lasts_s([saved] if saved else ()))
            written_s = min((s for s in (heard_s, *others) if s is not None), default=None)
        last = attempt.samples[-1].time_unix_s if attempt is not None and attempt.samples else None
        begun = attempt.started.time_unix_s if attempt is not None and attempt.started is not None else None
        if heard_s is not None:  # the trainer's clock is compared with itself alone
            if begun is not None:
                begun = now_unix_s - heard_s - max(0.0, (begun if last is None else last) - begun)
            last = None if last is None else now_unix_s - heard_s
        elif last is not None and self._unheard.is_known:
            last = max(last, now_unix_s - unheard_s)
        return {
            "last_sample_unix_s": last,
            "attempt_started_unix_s": begun,
            "second_witness_unix_s": None if written_s is None else now_unix_s - written_s,
        }

    def _witness(self, attempt: Attempt, jobs: JobsSeen, is_new: bool) -> AttemptSeen:
        known = self._settled.get(attempt.number)
        if known is not None and not is_new and known[0] == attempt.made:
            return known[1]
        seen = self._seen(attempt, jobs)
        if (
            seen.process_state is not None
            and seen.process_state.life is Life.GONE
            and seen.process_state.certain
            and not seen.grew_after_end
        ):
            self._settled[attempt.number] = (attempt.made, seen)
        return seen

    def _seen(self, attempt: Attempt, jobs: JobsSeen) -> AttemptSeen:
        started = attempt.started
        process_state = _fate(started, jobs) if started is not None else _of_the_last(jobs)
        return AttemptSeen(
            number=attempt.number,
            reported=started is not None,
            rollback=started.rollback if started is not None else None,
            job_id=started.job_id if started is not None else None,
            finished=attempt.finished is not None,
            process_state=process_state,
            grew_after_end=self._grew_after_end(attempt, process_state),
        )

    def _grew_after_end(self, attempt: Attempt, process_state: ProcessState | None) -> bool:
        if process_state is None or process_state.life is not Life.GONE:
            self._ended.pop(attempt.number, None)
            return False
        since_s, made = self._ended.setdefault(attempt.number, (self._clock(), attempt.made))
        if self._clock() - since_s < _LATE_S:
            self._ended[attempt.number] = (since_s, attempt.made)
        return attempt.made > made


def _is_settled(attempt: AttemptSeen) -> bool:
    """Whether its life or its end is known whatever its files say."""
    process_state = attempt.process_state
    if process_state is None:
        return attempt.finished
    return process_state.life is Life.ALIVE or (
        process_state.life is Life.GONE and process_state.certain and not attempt.grew_after_end
    )


def _of_the_last(jobs: JobsSeen) -> ProcessState | None:
    """What became of an attempt that names no job, as a log's, from the job that was seen last. One that lives and
    is seen is a writer, and may be a later attempt's."""
    process_state = jobs.process_states.get(None)
    return None if process_state is not None and process_state.life is Life.ALIVE and jobs.writers else process_state


def _fate(started: RunStarted, jobs: JobsSeen) -> ProcessState | None:
    """Alive if either of them is: its job, whoever's it is, and its process, where that can be seen."""
    process = state_of_process(started)
    names_nothing = started.job_id is None and started.host is None
    job = (
        _of_the_last(jobs)
        if names_nothing
        else jobs.process_states.get(started.job_id)
        if started.job_id is not None
        else None
    )
    found = [process_state for process_state in (job, process) if process_state is not None]
    order = (Life.ALIVE, Life.GONE, Life.UNKNOWN)
    return min(
        found,
        key=lambda process_state: (
            order.index(process_state.life),
            process_state.life is Life.GONE and not process_state.certain,
        ),
        default=None,
    )
