"""Probes at work: each one's trainer started in a folder of its own, followed, stopped, and put on record.

A probe writes below its own folder alone. What was begun is on the disk before anything is started, so a process that
is killed at any instant goes on by looking: a trainer that still runs is followed on, one that was lost begins anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from sentinel.act.neighbours import Launcher
from sentinel.act.source import Source
from sentinel.adapters.checkpoints.copies import place_checkpoint
from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.state_files import OverridesFile
from sentinel.durable import os_errors_named
from sentinel.judge.history import Attempt, History
from sentinel.plan.probe import Ended, Limits, Probe, ProbeResult
from sentinel.vocabulary.codec import JSON, document, read
from sentinel.vocabulary.errors import PermanentError, TemporaryError
from sentinel.vocabulary.overrides import Overrides
from sentinel.vocabulary.sample import Record

LOG = "job.log"  # What the trainer prints, in the probe's folder
COPIES = ".checkpoints"  # Beside the probes' folders: the copies that they begin from
_LOOKS_UNTIL_GONE = 3  # So many looks in a row at a trainer that is not there and reports nothing, and it is gone
_LIVES = 3  # Times that a probe's trainer may be lost: then it is for a person


@dataclass
class ProbeJob:
    """One life of a probe: its folder holds overrides.json, the trainer's journals and log, and its checkpoints."""

    folder: Path
    launcher: Launcher
    source: Source
    history: History = field(default_factory=History, init=False)
    begun_here: bool = field(default=False, init=False)  # Whether this process has started its trainer
    looks_without: int = field(default=0, init=False)  # Looks in a row at a trainer that is gone and silent
    quarters_told: int = field(default=0, init=False)  # Of its steps, as a person was told

    @property
    def log(self) -> Path:
        """What its trainer prints."""
        return self.folder / LOG

    def begin(self, overrides: Overrides | None) -> None:
        """Writes what is to be changed, and starts the trainer. ConfigError, SlurmRefused, SlurmUnavailable."""
        incident, rollback = (overrides.incident, overrides.rollback) if overrides else (None, None)
        with os_errors_named(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        if overrides is not None:
            OverridesFile(self.folder / "overrides.json").write(overrides)
        if self.launcher.look([]).prepares:
            self.launcher.prepare(rollback, [], overrides)
        self.begun_here = True
        self.launcher.start(incident, rollback, [], follow_up=False)

    def look(self) -> None:
        """Reads what is new, and sees whether the trainer still runs where nothing is."""
        self.looks_without = 0 if self.read() or self._lives() else self.looks_without + 1

    def read(self) -> bool:
        """Whether anything new was reported."""
        records = self.source.poll()
        self.take(records)
        return bool(records)

    def take(self, records: Sequence[Record]) -> None:
        """What was reported since the last read."""
        for record in records:
            self.history.push(record)

    @property
    def shown(self) -> Attempt | None:
        """The newest attempt of its trainer; None before the first."""
        return self.history.latest

    @property
    def is_gone(self) -> bool:
        """Whether nothing of it runs any more, and all that it has reported was read."""
        return self.looks_without >= _LOOKS_UNTIL_GONE

    def stop(self) -> None:
        """Returns when nothing of it runs any more. JobStillAlive, SlurmUnavailable."""
        self.launcher.stop([], None)

    def _lives(self) -> bool:
        seen = self.launcher.look([])
        return bool(seen.writers) or not seen.known


@dataclass(kw_only=True)
class Life:
    """One training of one probe."""

    probe: Probe
    number: int  # A probe that was lost, stopped or failed begins anew, in a folder of its own
    began_unix_s: float
    result: ProbeResult | None = None
    lost: bool = False
    stopped: bool = False  # By sentinel itself: it counts as lost, and not against the trainer

    @property
    def name(self) -> str:
        """Of its folder."""
        return self.probe.name if self.number == 1 else f"{self.probe.name}-life{self.number}"


class ProbeRecord:
    """FOLDER/probes.jsonl: each life of each probe when it begins (before anything is started) and ends. `anew`: what
    its trainer failed of begins once more."""

    def __init__(self, folder: Path, *, anew: bool = True) -> None:
        self._log = IncidentLog(folder / "probes.jsonl", check=dict)
        self.lives: list[Life] = []
        for event in self._log.read():
            self._take(event)
        for life in self.lives if anew else ():  # a person who asks again has mended what its trainer failed of
            if life.result is not None and (life.result.ended, life.result.outcome) == ("failed", "unknown"):
                life.result, life.lost, life.stopped = None, True, True

    def next(self, probe: Probe) -> Life:
        """The life that the probe would begin now. PermanentError where its trainer was lost too often."""
        lives = [life for life in self.lives if life.probe.name == probe.name]
        if sum(life.lost and not life.stopped for life in lives) >= _LIVES:
            raise PermanentError(f"the trainer of probe {probe.name} was lost {_LIVES} times; see its job.log")
        return Life(probe=probe, number=1 + len(lives), began_unix_s=0.0)

    def begin(self, probe: Probe, *, now: float) -> Life:
        """Notes that a life begins; returns when that is on the disk. PermanentError as of `next`."""
        number = self.next(probe).number
        self._write({"event": "began", "life": number, "probe": document(probe), "time_unix_s": now})
        return self.lives[-1]

    def end(self, life: Life, result: ProbeResult | None, *, now: float, stopped: bool = False) -> None:
        """Notes how it has ended; None where its trainer was lost, or `stopped` by sentinel."""
        told = None if result is None else document(result)
        which = {"event": "ended", "life": life.number, "name": life.probe.name}
        self._write({**which, "result": told, "stopped": stopped, "time_unix_s": now})

    @property
    def running(self) -> list[Life]:
        """Those that have begun and not ended."""
        return [life for life in self.lives if life.result is None and not life.lost]

    def results(self, asked: Callable[[Probe], bool]) -> dict[str, ProbeResult]:
        """Of the probes that are asked for, by name, in the order in which they have begun."""
        return {life.probe.name: life.result for life in self.lives if life.result is not None and asked(life.probe)}

    @property
    def spent(self) -> tuple[ProbeResult, ...]:
        """Of all probes that have ended, also those that are not asked for any more."""
        return tuple(life.result for life in self.lives if life.result is not None)

    def _write(self, event: dict[str, Any]) -> None:
        self._log.append(event)
        self._take(event)

    def _take(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "began":
            probe = read(Probe, event["probe"], "probe", JSON)
            self.lives.append(Life(probe=probe, number=event["life"], began_unix_s=event["time_unix_s"]))
            return
        for life in self.lives:
            if (life.probe.name, life.number) == (event["name"], event["life"]):
                told = event["result"]
                life.result = None if told is None else read(ProbeResult, told, "result", JSON)
                life.lost, life.stopped = told is None, bool(event.get("stopped"))


@dataclass
class Probes:
    """The probes of one question, from where their record stands. `over` says why a probe has shown enough, as a
    sentence; `result` what it has shown, with how it ended and after how many seconds; `asked` whether a probe on
    record is still one of the question's: from another checkpoint, or to another step, it tells nothing."""

    folder: Path
    run_checkpoints: Path
    job_of: Callable[[Probe, Path], ProbeJob]
    over: Callable[[Probe, Attempt | None], str | None]
    result: Callable[[Probe, Attempt | None, Ended | None, float], ProbeResult]
    _: KW_ONLY
    limits: Limits
    asked: Callable[[Probe], bool] = lambda _: True
    say: Callable[[str], None] = lambda _: None
    clock: Callable[[], float] = time.time
    record: ProbeRecord = field(init=False)
    jobs: dict[str, ProbeJob] = field(default_factory=dict, init=False)
    refusal: str | None = field(default=None, init=False)  # Why no further probe may begin

    def __post_init__(self) -> None:
        self.record = ProbeRecord(self.folder)

    @property
    def results(self) -> dict[str, ProbeResult]:
        return self.record.results(self.asked)

    def turn(self, wanted: Sequence[Probe]) -> bool:
        """Follows what runs, stops what is over or not wanted any more, and begins what is wanted and there is room
        for. Whether anything runs now."""
        self._take_up()
        for life in self.record.running:
            needed = self.asked(life.probe) and any(probe.name == life.probe.name for probe in wanted)
            self._follow(life, needed=needed)
        self._begin(wanted)
        return bool(self.record.running)

    def run(
        self,
        next_probes: Callable[[Mapping[str, ProbeResult]], Sequence[Probe]],
        *,
        poll_interval_s: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Mapping[str, ProbeResult]:
        """Goes on until `next_probes` of the results so far asks for nothing that has not ended, or no more may begin.
        What may pass leaves the probes running, as sudden death does; what else ends it early stops them."""
        try:
            while self.turn(next_probes(self.results)) or self._any_left(next_probes(self.results)):
                sleep(poll_interval_s)
        except TemporaryError:
            raise
        except BaseException:
            self.stop_all()
            raise
        return self.results

    def stop_all(self) -> None:
        """Stops every probe; those that were running begin anew when the question is taken up."""
        for life in self.record.running:
            self.say(f"  {life.name}: is being stopped (until it is, a second Ctrl-C lets it run on)")
            self._job(life).stop()
            self.record.end(life, None, now=self.clock(), stopped=True)

    def _any_left(self, wanted: Sequence[Probe]) -> bool:
        return self.refusal is None and any(probe.name not in self.results for probe in wanted)

    def _take_up(self) -> None:
        for life in self.record.running:
            if life.name not in self.jobs:
                self.say(f"  {life.name}: started before; it continues")
                self._job(life)

    def _job(self, life: Life) -> ProbeJob:
        if life.name not in self.jobs:
            self.jobs[life.name] = self.job_of(life.probe, self.folder / life.name)
        return self.jobs[life.name]

    def _follow(self, life: Life, *, needed: bool) -> None:
        job, probe = self._job(life), life.probe
        job.look()
        seconds, why = self.clock() - life.began_unix_s, self.over(probe, job.shown)
        ended: Ended | None = None
        if why is None and job.is_gone:
            if not job.begun_here and (job.shown is None or job.shown.finished is None):
                self.say(f"  {life.name}: its trainer is gone; it begins anew")
                self.record.end(life, None, now=self.clock())
                return
            ended, why = "failed", f"its trainer has ended; see {job.log}"
        elif why is None and (seconds > self.limits.probe_s or not needed):
            ended, why = "stopped", "its time is over" if needed else "it is not needed any more"
        if why is None:
            self._tell_quarter(life, job)
            return
        job.stop()
        job.read()
        result = self.result(probe, job.shown, ended, seconds)
        self.record.end(life, result, now=self.clock())
        self.say(f"  {life.name}: {result.outcome}: {result.why}" + (f" ({why})" if ended else ""))

    def _tell_quarter(self, life: Life, job: ProbeJob) -> None:
        """Says how far a probe has come, three times on its way."""
        probe, last = life.probe, job.shown.samples[-1:] if job.shown is not None else []
        quarter = 4 * (last[0].global_step - probe.global_step) // (probe.until_step - probe.global_step) if last else 0
        if quarter > job.quarters_told:
            job.quarters_told = quarter
            self.say(f"  {life.name}: at step {last[0].global_step} of {probe.until_step}")

    def _begin(self, wanted: Sequence[Probe]) -> None:
        for probe in wanted:
            running = self.record.running
            if probe.name in self.results or any(life.probe.name == probe.name for life in running):
                continue
            if len(running) >= self.limits.parallel:
                return
            self.refusal = self.limits.refusal(self.record.spent, len(running))
            if self.refusal is not None:
                return
            job, copies = self._job(self.record.next(probe)), self.folder / COPIES  # refused before it is begun
            life = self.record.begin(probe, now=self.clock())
            self.say(
                f"  {life.name}: {probe.change or 'nothing changed'}, step {probe.global_step} to {probe.until_step}"
            )
            place_checkpoint(self.run_checkpoints, probe.tag, copies, job.folder / "checkpoints")
            job.begin(probe.overrides)
