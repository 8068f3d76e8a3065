"""The loop: look at the probes, decide, stop those that tell no more, start the next ones, sleep."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from sentinel.tune.probe import Probe
from sentinel.tune.record import Life, Record, Why
from sentinel.tune.search import Decision, Pacing, Seen, decide
from sentinel.tune.task import Task
from sentinel.vocabulary.errors import PermanentError, TemporaryError

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
