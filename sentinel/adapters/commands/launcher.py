"""A scheduler that is spoken to by commands of the configuration: Kubernetes, Ray, Grid Engine, PBS, a site's own."""

from __future__ import annotations

import logging
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sentinel import bounded
from sentinel.adapters.commands.listed import CommandSettings, ListedJob, jobs_listed
from sentinel.adapters.commands.running import run
from sentinel.durable import write_atomically
from sentinel.plan.observation import JobsSeen, Life, ProcessState, WriterSeen
from sentinel.vocabulary.codec import Form, read
from sentinel.vocabulary.errors import CommandFailed, JobStillAlive, LineError, PermanentError
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.overrides import Overrides
from sentinel.vocabulary.sample import RunStarted

log = logging.getLogger(__name__)

_MOST_STARTS = 1_000  # that are kept
_RESTART = "restart"  # in a job's name, in place of a rollback
_UNLISTED = 3  # deadlines for which a start whose job is not listed may have been made
_FORM = Form(error=LineError, name="the record of starts", ignores_unknown=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStart:
    """One start, recorded before its command is run: a lost reply is found again by the name."""

    name: str
    time_unix_s: float
    answered: bool = False  # whether the command said that it has started the job


class CommandsLauncher:
    """One run's jobs, by the interface of act.neighbours.Launcher. A command that fails, is late or is not understood
    leaves the state of the job unknown, and nothing is done. A job that is not listed any more is not taken for ended
    by that alone."""

    def __init__(
        self,
        settings: CommandSettings,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._record = settings.state_dir / "commands.json"
        self._answer: tuple[float, tuple[ListedJob, ...]] | None = None  # monotonic time of the newest

    def look(self, started: Sequence[RunStarted]) -> JobsSeen:
        starts = self._starts()
        try:
            listed = self._listed(self._settings.query_interval_s)
            jobs = self._ours(listed, starts, started)
        except CommandFailed as error:
            return JobsSeen(known=False, why_unknown=str(error))
        living = [j for j in jobs if j.state != "ended"]
        name = starts[-1].name if starts else None
        newest = next((j for j in reversed(jobs) if name in (None, j.name)), None)
        process_states: dict[str | None, ProcessState] = {name: _fate(j) for j in jobs for name in (j.job, j.name)}
        if newest is not None and not living:  # of one that lives, an older attempt's end says nothing
            process_states[None] = _fate(newest)
        return JobsSeen(
            writers=tuple(
                WriterSeen(
                    id=f"job {j.job}",
                    rollback=self._rollback_of(j.name),
                    pending=j.state == "pending",
                    group=j.name,
                )
                for j in living
            ),
            process_states=process_states,
            lost=self._lost(listed, starts, started),
            was_seen=bool(jobs or starts),
            last_log=self._log_of(newest) if newest is not None and newest.state == "ended" else None,
        )

    def _lost(
        self, listed: Sequence[ListedJob], starts: Sequence[RecordedStart], started: Sequence[RunStarted]
    ) -> dict[str | None, str]:
        """The rollback (None: a restart) of the newest start, where its command said that it was made and neither
        `list` nor a trainer shows it: whether it runs is not known, so it is not started again."""
        last = starts[-1] if starts else None
        if last is None or not last.answered or last.name in {*(j.name for j in listed), *(s.job_id for s in started)}:
            return {}
        why = f"sentinel started {last.name}, which [commands] list does not show and which has reported no start"
        return {self._rollback_of(last.name): why, None: why}

    def keep(self, started: Sequence[RunStarted]) -> None:
        """That the newest start was made, once its job is listed or has reported, although its answer was lost: the
        scheduler may not know the job by the time at which it would be started again."""
        starts = self._starts()
        listed = self._answer[1] if self._answer is not None else ()
        known = {*(j.name for j in listed), *(s.job_id for s in started)}
        if starts and not starts[-1].answered and starts[-1].name in known:
            self._note([*starts[:-1], replace(starts[-1], answered=True)])

    def keep_stacks(self, folder: Path) -> None:
        """Nothing."""

    def prepare(self, rollback: str | None, started: Sequence[RunStarted], overrides: Overrides | None) -> None:
        """Nothing."""

    def preview(self, started: Sequence[RunStarted], overrides: Overrides) -> str | None:
        """None: there is no job script."""

    def start_commands(self, started: Sequence[RunStarted]) -> tuple[str, ...]:  # noqa: ARG002 - Slurm's goes by it
        name = self._new_name(None, self._starts())
        told = self._told(name)
        words = shlex.join(self._filled(self._settings.start, name=name, environment=dump_json(told)))
        given = " ".join(f"{key}={shlex.quote(value)}" for key, value in told.items())
        return (f"cd {shlex.quote(str(self._settings.working_directory))} && {given} {words}",)

    def fenced(self, started: Sequence[RunStarted], except_for: str | None) -> None:
        if left := self._left(started, except_for):
            raise JobStillAlive(", ".join(f"job {j.job} ({j.word})" for j in left))

    def stop(self, started: Sequence[RunStarted], except_for: str | None) -> None:
        for job in self._left(started, except_for):
            self._run(self._filled(self._settings.stop, name=job.name, job=job.job))
        end, pause_s = time.monotonic() + self._settings.stop_grace_s, 0.25
        while True:
            is_last = time.monotonic() > end
            try:
                self.fenced(started, except_for)
            except JobStillAlive:
                if is_last:
                    raise
            else:
                return
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, 5.0)

    def start(
        self,
        incident: str | None,
        rollback: str | None,
        started: Sequence[RunStarted],
        *,
        follow_up: bool,  # noqa: ARG002 - Slurm's launcher goes by it
    ) -> None:
        """Looks first: the start before may have been made, its reply lost, and its job may even have ended since."""
        starts = self._starts()
        alive = self._left(started, None)
        last = starts[-1] if starts and self._rollback_of(starts[-1].name) == rollback else None
        if last is not None and (any(j.name == last.name for j in alive) or self._has_ended(last, started)):
            self.keep(started)
            return
        if alive:
            raise JobStillAlive(", ".join(f"job {j.job} ({j.word})" for j in alive))
        if lost := self._lost(self._listed(self._settings.timeout_s), starts, started):
            raise JobStillAlive(lost[None])
        one = RecordedStart(name=self._new_name(rollback, starts), time_unix_s=self._clock())
        self._note([*starts, one])
        told = self._told(one.name, incident, rollback)
        given = {"name": one.name, "incident": incident, "rollback": rollback, "environment": dump_json(told)}
        self._run(self._filled(self._settings.start, **given), told)
        self._note([*starts, replace(one, answered=True)])
        self._answer = None

    def _has_ended(self, last: RecordedStart, started: Sequence[RunStarted]) -> bool:
        """Whether the start was made although its answer was lost, and its job has ended before anybody saw it."""
        if last.answered or last.name in {s.job_id for s in started}:
            return False
        return last.name in {j.name for j in self._listed(self._settings.timeout_s) if j.state == "ended"}

    def _told(self, name: str, incident: str | None = None, rollback: str | None = None) -> dict[str, str]:
        """What the trainer of the job has to find in its environment."""
        told = {"SENTINEL_INCIDENT": incident, "SENTINEL_ROLLBACK": rollback, "SENTINEL_JOB": name}
        told |= {"SENTINEL_STATE_DIR": str(self._settings.state_dir), **self._settings.environment()}
        return {key: value for key, value in told.items() if value}

    def _left(self, started: Sequence[RunStarted], except_for: str | None) -> list[ListedJob]:
        """The run's jobs that have not ended, asked afresh, but those of the spared rollback."""
        jobs = [j for j in self._ours(self._listed(0.0), self._starts(), started) if j.state != "ended"]
        return [j for j in jobs if except_for is None or self._rollback_of(j.name) != except_for]

    def _ours(
        self, listed: Sequence[ListedJob], starts: Sequence[RecordedStart], started: Sequence[RunStarted]
    ) -> list[ListedJob]:
        """Those that sentinel has started, that an attempt names, or that have the configured name. CommandFailed where
        it is not known whose a job is, or whether one was started."""
        settings = self._settings
        named = {s.job_id for s in started if s.job_id}
        found = [j for j in listed if j.name.startswith(f"{settings.prefix}-") or {j.job, j.name} & named]
        others = [j for j in listed if settings.job_name is not None and j.name == settings.job_name and j not in found]
        living = [j for j in others if j.state != "ended"]
        if len(living) > 1:
            raise CommandFailed("list", f"jobs {', '.join(j.job for j in living)} are all named {settings.job_name!r}")
        last = starts[-1] if starts else None
        reported = {*(j.name for j in listed), *(s.job_id for s in started)}
        if last is not None and last.name not in reported:
            waited_s = self._clock() - last.time_unix_s
            if 0 <= waited_s < _UNLISTED * settings.timeout_s:
                ago = f"{last.name} was started {waited_s:.0f} s ago"
                raise CommandFailed("start", f"{ago}, and is not listed" if last.answered else f"unclear whether {ago}")
        return [*others, *found]

    def _listed(self, age_s: float) -> tuple[ListedJob, ...]:
        now = time.monotonic()
        if self._answer is None or now - self._answer[0] >= age_s:
            self._answer = None
            text = self._run(self._filled(self._settings.list, name=""))
            self._answer = now, jobs_listed(text, self._settings)
        return self._answer[1]

    def _log_of(self, job: ListedJob) -> str | None:
        """The path of a copy of the ended job's output, made once; None where it can't be had."""
        path = self._settings.state_dir / "joblogs" / f"{re.sub(r'[^A-Za-z0-9._-]', '_', job.name)[:128]}.txt"
        if not path.exists() and self._settings.log:
            try:
                text = self._run(self._filled(self._settings.log, name=job.name, job=job.job))
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, text)
            except (CommandFailed, OSError) as error:
                log.warning("the output of job %s can't be had: %s", job.job, error)
        return str(path) if path.exists() else None

    def _new_name(self, rollback: str | None, starts: Sequence[RecordedStart]) -> str:
        """PREFIX-ROLLBACK-N, or PREFIX-restart-N; a number is given once."""
        listed = self._answer[1] if self._answer is not None else ()
        names = [s.name for s in starts] + [j.name for j in listed if j.name.startswith(f"{self._settings.prefix}-")]
        numbers = [int(n) for name in names if (n := name.rpartition("-")[2]).isdecimal()]
        return f"{self._settings.prefix}-{rollback or _RESTART}-{1 + max(numbers, default=0)}"

    def _rollback_of(self, name: str) -> str | None:
        """The rollback that sentinel has started the job for; None for any other job."""
        if not name.startswith(f"{self._settings.prefix}-"):
            return None
        label = name.removeprefix(f"{self._settings.prefix}-").rpartition("-")[0]
        return None if label in ("", _RESTART) else label

    def _starts(self) -> list[RecordedStart]:
        return bounded.record_or(
            list[RecordedStart](),
            self._record,
            lambda data: [read(RecordedStart, s, "", _FORM) for s in data["starts"]],
            PermanentError,
        )

    def _note(self, starts: Sequence[RecordedStart]) -> None:
        rows = [{key: getattr(s, key) for key in RecordedStart.__slots__} for s in starts[-_MOST_STARTS:]]
        write_atomically(self._record, dump_json({"starts": rows}))

    def _filled(self, words: Sequence[str], **given: str | None) -> list[str]:
        """The argument list with its placeholders filled; braces of anything else stay as they are."""
        settings = self._settings
        known = {"state_dir": str(settings.state_dir), "prefix": settings.prefix, "job_name": settings.job_name}
        unset = dict.fromkeys(("name", "job", "incident", "rollback", "environment"))
        values: dict[str, str | None] = {**known, **unset, **given}
        return [
            re.sub(r"\{(\w+)\}", lambda m: (values[m[1]] or "") if m[1] in values else m[0], word) for word in words
        ]

    def _run(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
        return run(command, self._settings.working_directory, self._settings.timeout_s, environment or {})


def _fate(job: ListedJob) -> ProcessState:
    shown = f"the scheduler shows job {job.job} ({job.name}) as {job.word}"
    return ProcessState(life=Life.GONE if job.state == "ended" else Life.ALIVE, sentence=shown)
