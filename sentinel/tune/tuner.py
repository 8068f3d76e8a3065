"""The search at work: each probe's trainer started, followed and stopped, and the loop that decides on the next."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field

from sentinel.act.probes import ProbeJob
from sentinel.tune.reading import Reading
from sentinel.tune.record import Life, Record, Why
from sentinel.tune.search import Decision, Pacing, Seen, decide
from sentinel.tune.task import SETTING, Task
from sentinel.vocabulary.errors import PermanentError, TemporaryError
from sentinel.vocabulary.sample import Record as Line
from sentinel.vocabulary.training_settings import settings_of


@dataclass
class Probe(ProbeJob):
    """One life of a pacing's probe."""

    life: Life
    task: Task
    reading: Reading = field(default_factory=Reading)

    def start(self) -> None:
        """Writes what is to be changed, and starts the trainer. ConfigError, SlurmRefused, SlurmUnavailable."""
        self.begin(self.task.overrides(self.life.pacing))

    def take(self, records: Sequence[Line]) -> None:
        """PermanentError when the trainer runs with another pacing than this one."""
        self.reading = self.reading.after(records)
        self._prove()

    def _prove(self) -> None:
        """A pacing that did not take effect would be an answer about another one."""
        started, pacing = self.reading.started, self.life.pacing
        if started is None:
            return
        if started.resumed_from is not None:
            raise PermanentError(
                f"the probe of {pacing} has resumed from step {started.resumed_from} instead of beginning from scratch"
            )
        setting, wanted = settings_of()[SETTING[self.task.what]], self.task.schedule(pacing)
        reported = getattr(started, setting.reported_as)
        if reported is not None and reported != wanted:
            raise PermanentError(
                f"the probe of {pacing} runs with another {setting.words}, {reported}, instead of {wanted}"
            )


@dataclass
class Tuner:
    """One search, from where its record stands to its answer."""

    task: Task
    record: Record
    probe_of: Callable[[Life], Probe]
    _: KW_ONLY
    parallel: int
    poll_interval_s: float
    say: Callable[[str], None]
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    probes: dict[Pacing, Probe] = field(default_factory=dict, init=False)
    stopping: dict[Pacing, tuple[Why, Future[None]]] = field(default_factory=dict, init=False)
    question: str = field(default="", init=False)

    def run(self) -> Decision:
        """Searches to the end; returns the answer. Probes whose trainer still runs are followed on, not begun anew.

        What ends the search early stops its probes, but its own sudden death and what may pass: then they run on, and
        the next search takes them up.
        """
        with ThreadPoolExecutor(max_workers=self.parallel) as stopper, self._stopped_at_last():
            for life in self.record.running():
                self.probes[life.pacing] = self.probe_of(life)
                self.say(f"  {life.name}: started before; it continues")
            while True:
                self._look()
                self._bury()
                decision = decide(self.task.space, self._seen(), room=self.parallel)
                self._stop_what_is_known(decision, stopper)
                if decision.over and not self.probes:
                    return decision
                self._start(decision)
                self.sleep(self.poll_interval_s)

    def _seen(self) -> dict[Pacing, Seen]:
        """Of every probe what its newest life has shown; of one that was lost or failed, nothing."""
        told = {life.pacing: life.reading for life in self.record.lives if life.why not in (None, "lost", "failed")}
        told |= {pacing: probe.reading for pacing, probe in self.probes.items()}
        horizon = self.task.space.horizon_steps
        return {p: reading.seen(self.task.fluctuation, horizon) for p, reading in told.items() if reading is not None}

    def _look(self) -> None:
        for pacing, probe in self.probes.items():
            if pacing not in self.stopping:
                probe.look()

    def _stop_what_is_known(self, decision: Decision, stopper: ThreadPoolExecutor) -> None:
        for pacing, probe in self.probes.items():
            if pacing not in self.stopping and (why := self._why_it_ends(probe, decision)) is not None:
                self.stopping[pacing] = (why, stopper.submit(probe.stop))

    def _why_it_ends(self, probe: Probe, decision: Decision) -> Why | None:
        space = self.task.space
        calm = probe.reading.seen(self.task.fluctuation, space.horizon_steps).calm(space)
        if calm is not None:
            return "calm" if calm else "fluctuates"
        if probe.is_gone:
            return "failed" if probe.begun_here else "lost"
        return "not needed" if probe.life.pacing not in decision.probes else None

    def _bury(self) -> None:
        """Takes note of the probes that are seen gone. What they have reported to the last counts."""
        for pacing, (why, stopped) in list(self.stopping.items()):
            if not stopped.done():
                continue
            stopped.result()
            probe = self.probes.pop(pacing)
            del self.stopping[pacing]
            probe.read()
            life = self.record.end(probe.life, why, probe.reading, now=self.clock())
            self.say(f"  {life.name}: {_seen_of(life, self.task)}")
            if self.record.failures(pacing) > 1:
                raise PermanentError(f"the trainer of the probe of {pacing} has ended twice by itself; see {probe.log}")

    def _start(self, decision: Decision) -> None:
        if decision.probes and decision.reason != self.question:
            self.question = decision.reason
            self.say(decision.reason)
        for pacing in decision.probes:
            if pacing in self.probes or len(self.probes) >= self.parallel:
                continue
            life = self.record.begin(pacing, now=self.clock())
            self.probes[pacing] = probe = self.probe_of(life)
            probe.start()

    @contextmanager
    def _stopped_at_last(self) -> Iterator[None]:
        try:
            yield
        except TemporaryError:
            raise
        except BaseException:
            for pacing, probe in list(self.probes.items()):
                if pacing not in self.stopping:
                    probe.stop()
                    probe.read()
                    self.record.end(probe.life, "lost", probe.reading, now=self.clock())
            raise


def _seen_of(life: Life, task: Task) -> str:
    reading = life.reading
    if reading is None:
        return str(life.why)
    largest = reading.curve.largest_ratio()
    ratio = "nothing validated" if largest is None else f"perplexity at most {largest:.2f} x the best before"
    seen = reading.seen(task.fluctuation, task.space.horizon_steps)
    at = f" at step {seen.fluctuated_at}" if life.why == "fluctuates" else ""
    return f"{life.why}{at}, after {reading.global_step} steps; {ratio}"
