"""One life of a probe at work: its trainer started, followed and stopped, in a folder of its own."""

from __future__ import annotations

from pathlib import Path

from sentinel.act.neighbours import Launcher
from sentinel.act.source import Source
from sentinel.adapters.overrides_file import OverridesFile
from sentinel.tune.reading import Reading
from sentinel.tune.record import Life
from sentinel.tune.task import Task
from sentinel.vocabulary.errors import PermanentError

LOG = "job.log"  # What the trainer prints, in the probe's folder
_LOOKS_UNTIL_GONE = 3
"""So many looks in a row at a trainer that is not there and has reported nothing new, and it is gone."""


class Probe:
    """Its folder holds overrides.json, the trainer's journals and log, and its checkpoints, if it makes any."""

    def __init__(self, life: Life, folder: Path, launcher: Launcher, source: Source, task: Task) -> None:
        self.life = life
        self.reading = Reading()
        self.begun_here = False
        """Whether this process has started its trainer, and not one that was killed since."""
        self._folder = folder
        self._launcher = launcher
        self._source = source
        self._task = task
        self._looks_without = 0

    @property
    def log(self) -> Path:
        """What its trainer prints."""
        return self._folder / LOG

    def start(self) -> None:
        """Writes what is to be changed, and starts the trainer. ConfigError, SlurmRefused, SlurmUnavailable."""
        overrides = self._task.overrides(self.life.pacing)
        self._folder.mkdir(parents=True, exist_ok=True)
        OverridesFile(self._folder / "overrides.json").write(overrides)
        if self._launcher.look([]).prepares:
            self._launcher.prepare(overrides.rollback, [], overrides)
        self.begun_here = True
        self._launcher.start(overrides.incident, overrides.rollback, [], follow_up=False)

    def look(self) -> None:
        """Reads what is new, and sees whether the trainer still runs where nothing is. PermanentError as `read`."""
        if self.read() or self._lives():
            self._looks_without = 0
        else:
            self._looks_without += 1

    def read(self) -> bool:
        """Whether anything new was reported. PermanentError when the trainer runs with another pacing than this one."""
        records = self._source.poll()
        self.reading = self.reading.after(records)
        self._prove()
        return bool(records)

    @property
    def is_gone(self) -> bool:
        """Whether nothing of it runs any more, and all that it has reported was read."""
        return self._looks_without >= _LOOKS_UNTIL_GONE

    def stop(self) -> None:
        """Returns when nothing of it runs any more. JobStillAlive, SlurmUnavailable."""
        self._launcher.stop([], None)

    def _lives(self) -> bool:
        seen = self._launcher.look([])
        return bool(seen.writers) or not seen.known

    def _prove(self) -> None:
        """A pacing that did not take effect would be an answer about another one."""
        started, pacing = self.reading.started, self.life.pacing
        if started is None:
            return
        if started.resumed_from is not None:
            raise PermanentError(
                f"the probe of {pacing} has resumed from step {started.resumed_from} instead of beginning from scratch"
            )
        wanted = self._task.schedule(pacing).to_json()
        if started.seqlen_schedule is not None and started.seqlen_schedule != wanted:
            raise PermanentError(
                f"the probe of {pacing} runs with the sequence lengths {started.seqlen_schedule} instead of {wanted}"
            )
