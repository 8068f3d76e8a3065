"""The search at work: each probe's trainer started, followed and stopped, and the loop that decides on the next."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from sentinel.act.neighbours import Launcher
from sentinel.act.source import Source
from sentinel.adapters.overrides_file import OverridesFile
from sentinel.tune.reading import Reading
from sentinel.tune.record import Life, Record, Why
from sentinel.tune.search import Decision, Pacing, Seen, decide
from sentinel.tune.task import Task
from sentinel.vocabulary.errors import PermanentError, TemporaryError

LOG = "job.log"  # What the trainer prints, in the probe's folder
_LOOKS_UNTIL_GONE = 3  # So many looks in a row at a trainer that is not there and reports nothing, and it is gone


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


Say = Callable[[str], None]


class Tuner:
    """One search, from where its record stands to its answer."""

    def __init__(
        self,
        task: Task,
        record: Record,
        probe_of: Callable[[Life], Probe],
        *,
        parallel: int,
        poll_interval_s: float,
        say: Say,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._task = task
        self._record = record
        self._probe_of = probe_of
        self._parallel = parallel
        self._poll_interval_s = poll_interval_s
        self._say = say
        self._clock = clock
        self._sleep = sleep
        self._probes: dict[Pacing, Probe] = {}
        self._stopping: dict[Pacing, tuple[Why, Future[None]]] = {}
        self._asked = ""

    def run(self) -> Decision:
        """Searches to the end; returns the answer. Probes whose trainer still runs are followed on, not begun anew.

        What ends the search early stops its probes, but its own sudden death and what may pass: then they run on, and
        the next search takes them up.
        """
        with ThreadPoolExecutor(max_workers=self._parallel) as stopper, self._stopped_at_last():
            for life in self._record.running():
                self._probes[life.pacing] = self._probe_of(life)
                self._say(f"  {life.name}: begun before; taken up where it stands")
            while True:
                self._look()
                self._bury()
                decision = decide(self._task.space, self._seen(), room=self._parallel)
                self._stop_what_is_known(decision, stopper)
                if decision.over and not self._probes:
                    return decision
                self._start(decision)
                self._sleep(self._poll_interval_s)

    def _seen(self) -> dict[Pacing, Seen]:
        """Of every probe what its newest life has shown; of one that was lost or failed, nothing."""
        told = {life.pacing: life.reading for life in self._record.lives if life.why not in (None, "lost", "failed")}
        told |= {pacing: probe.reading for pacing, probe in self._probes.items()}
        horizon = self._task.space.horizon_steps
        return {p: reading.seen(self._task.fluctuation, horizon) for p, reading in told.items() if reading is not None}

    def _look(self) -> None:
        for pacing, probe in self._probes.items():
            if pacing not in self._stopping:
                probe.look()

    def _stop_what_is_known(self, decision: Decision, stopper: ThreadPoolExecutor) -> None:
        for pacing, probe in self._probes.items():
            if pacing not in self._stopping and (why := self._why_it_ends(probe, decision)) is not None:
                self._stopping[pacing] = (why, stopper.submit(probe.stop))

    def _why_it_ends(self, probe: Probe, decision: Decision) -> Why | None:
        space = self._task.space
        calm = probe.reading.seen(self._task.fluctuation, space.horizon_steps).calm(space)
        if calm is not None:
            return "calm" if calm else "fluctuates"
        if probe.is_gone:
            return "failed" if probe.begun_here else "lost"
        return "not needed" if probe.life.pacing not in decision.probes else None

    def _bury(self) -> None:
        """Takes note of the probes that are seen gone. What they have reported to the last counts."""
        for pacing, (why, stopped) in list(self._stopping.items()):
            if not stopped.done():
                continue
            stopped.result()
            probe = self._probes.pop(pacing)
            del self._stopping[pacing]
            probe.read()
            life = self._record.end(probe.life, why, probe.reading, now=self._clock())
            self._say(f"  {life.name}: {_told(life, self._task)}")
            if self._record.failures(pacing) > 1:
                raise PermanentError(f"the trainer of the probe of {pacing} has ended twice by itself; see {probe.log}")

    def _start(self, decision: Decision) -> None:
        if decision.probes and decision.reason != self._asked:
            self._asked = decision.reason
            self._say(decision.reason)
        for pacing in decision.probes:
            if pacing in self._probes or len(self._probes) >= self._parallel:
                continue
            life = self._record.begin(pacing, now=self._clock())
            self._probes[pacing] = probe = self._probe_of(life)
            probe.start()

    @contextmanager
    def _stopped_at_last(self) -> Iterator[None]:
        try:
            yield
        except TemporaryError:
            raise
        except BaseException:
            for pacing, probe in list(self._probes.items()):
                if pacing not in self._stopping:
                    probe.stop()
                    probe.read()
                    self._record.end(probe.life, "lost", probe.reading, now=self._clock())
            raise


def _told(life: Life, task: Task) -> str:
    reading = life.reading
    if reading is None:
        return str(life.why)
    largest = reading.curve.largest_ratio()
    ratio = "nothing validated" if largest is None else f"perplexity at most {largest:.2f} x the best before"
    seen = reading.seen(task.fluctuation, task.space.horizon_steps)
    at = f" at step {seen.fluctuated_at}" if life.why == "fluctuates" else ""
    return f"{life.why}{at}, after {reading.global_step} steps; {ratio}"
