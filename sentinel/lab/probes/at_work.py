"""Probes at work: each one's trainer started in a folder of its own, followed, stopped, and put on record.

A probe writes below its own folder alone. What was begun is on the disk before anything is started, so a process that
is killed at any instant goes on by looking: a trainer that still runs is followed on, one that was lost begins anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from sentinel.act.neighbours import Launcher
from sentinel.act.source import Source
from sentinel.adapters.checkpoints.probes import place_checkpoint
from sentinel.adapters.state_files import OverridesFile
from sentinel.judge.history import Attempt, History
from sentinel.lab.probes.probe import Ended, Limits, Probe, ProbeResult
from sentinel.lab.probes.record import ProbeLife, ProbeRecord
from sentinel.vocabulary.errors import TemporaryError

LOG = "job.log"  # What the trainer prints, in the probe's folder
COPIES = ".checkpoints"  # Beside the probes' folders: the copies that they begin from
_LOOKS_UNTIL_GONE = 3  # So many looks in a row at a trainer that is not there and reports nothing, and it is gone


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

    def begin(self, probe: Probe, run_checkpoints: Path) -> None:
        """Places a copy of its checkpoint, writes what is to be changed, and starts the trainer. CheckpointError,
        ConfigError, SlurmRefused, SlurmUnavailable."""
        overrides = probe.overrides
        incident, rollback = (overrides.incident, overrides.rollback) if overrides else (None, None)
        place_checkpoint(run_checkpoints, probe.tag, self.folder.parent / COPIES, self.folder / "checkpoints")
        if overrides is not None:
            OverridesFile(self.folder / "overrides.json").write(overrides)
        if self.launcher.look([]).start.prepares:
            self.launcher.prepare(rollback, [], overrides)
        self.begun_here = True
        self.launcher.start(incident, rollback, [], follow_up=False)

    def look(self) -> None:
        """Reads what is new, and sees whether the trainer still runs where nothing is."""
        self.looks_without = 0 if self.read() or self._lives() else self.looks_without + 1

    def read(self) -> bool:
        """Whether anything new was reported."""
        records = list(self.source.new())
        for record in records:
            self.history.push(record)
        return bool(records)

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


@dataclass
class Probes:
    """The probes of one question, from where their record stands. `over` says why a probe has shown enough, as a
    sentence; `result` what it has shown, with how it ended and after how many seconds; `asked` whether a probe on
    record is still one of the question's: from another checkpoint, or to another step, it tells nothing. `again`:
    whether one that is not needed any more may be asked for once more, and a trainer that fails gets a second try."""

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
    again: bool = False
    record: ProbeRecord
    jobs: dict[str, ProbeJob] = field(default_factory=dict, init=False)
    refusal: str | None = field(default=None, init=False)  # Why no further probe may begin

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
            self._take_up()
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
            self._end(life, None, stopped=True)

    def _any_left(self, wanted: Sequence[Probe]) -> bool:
        return self.refusal is None and any(probe.name not in self.results for probe in wanted)

    def _take_up(self) -> None:
        for life in self.record.running:
            if life.name not in self.jobs:
                self.say(f"  {life.name}: started before; it continues")
                self._job(life)

    def _job(self, life: ProbeLife) -> ProbeJob:
        if life.name not in self.jobs:
            self.jobs[life.name] = self.job_of(life.probe, self.folder / life.name)
        return self.jobs[life.name]

    def _follow(self, life: ProbeLife, *, needed: bool) -> None:
        job, probe = self._job(life), life.probe
        job.look()
        seconds, why = self.clock() - life.began_unix_s, self.over(probe, job.shown)
        ended: Ended | None = None
        lost = stopped = False
        if why is None and job.is_gone and not job.begun_here and (job.shown is None or job.shown.finished is None):
            ended, lost, why = "stopped", True, "its trainer is gone; it begins anew"
        elif why is None and job.is_gone:
            ended, lost = "failed", self.again and not self.record.failures(probe)
            why = f"its trainer has ended; see {job.log}"
        elif why is None and not needed:
            ended, stopped, why = "stopped", self.again, "it is not needed any more"
        elif why is None and seconds > self.limits.probe_s:
            ended, why = "stopped", "its time is over"
        if why is None:
            self._tell_quarter(life, job)
            return
        result = self._end(life, ended, lost=lost, stopped=stopped)
        self.say(f"  {life.name}: {result.sentence}" + (f" ({why})" if ended else ""))

    def _end(self, life: ProbeLife, ended: Ended | None, *, lost: bool = False, stopped: bool = False) -> ProbeResult:
        """Stops its trainer, and notes what it has shown to the last."""
        job, seconds = self._job(life), self.clock() - life.began_unix_s
        job.stop()
        job.read()
        result = self.result(life.probe, job.shown, ended, seconds)
        self.record.end(life, result, now=self.clock(), lost=lost, stopped=stopped)
        return result

    def _tell_quarter(self, life: ProbeLife, job: ProbeJob) -> None:
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
            job = self._job(self.record.next(probe))  # refused before it is begun
            life = self.record.begin(probe, now=self.clock())
            self.say(
                f"  {life.name}: {probe.change or 'nothing changed'}, step {probe.global_step} to {probe.until_step}"
            )
            job.begin(probe, self.run_checkpoints)
