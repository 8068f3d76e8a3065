"""Adam's state on the CPU of a training on another device (offloaded), read by a thread while the next forward runs.

Nothing reads v while the optimizer writes it: the update waits for the thread. How long it waits is measured, and the
state is read so rarely that the waiting stays below `MOST_OF_A_STEP` of the time: at every step, else at multiples of
`interval_steps` times a power of two. So ranks that wait differently still read the same steps together: those of the
rank that reads most rarely.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable

import torch
from torch import Tensor

from trainer_hooks.sample.one_pass import Stop, Stopped

_log = logging.getLogger(__name__)

MOST_OF_A_STEP = 0.01  # share of the training's time that updates may wait for the reading of v
LONGEST_WAIT_S = 10.0  # of one update; what is not read by then is not reported
_RAREST = 64  # times `interval_steps`


class Pending:
    """Rows that a thread is reading: done when it has ended; None where it was stopped, or has failed."""

    def __init__(self, read: Callable[[Stop], Tensor]) -> None:
        self.rows: Tensor | None = None
        self.error: Exception | None = None
        self.stopped = False
        self._stop = Stop()
        self._read = read
        self._thread = threading.Thread(target=self._run, name="sentinel-offloaded-state", daemon=True)
        atexit.register(self.stop)  # memory that is freed at the process's end is not read any more
        self._thread.start()

    def done(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Ends it at its next tile, within a millisecond as a rule."""
        self._stop.set()
        self._thread.join()
        atexit.unregister(self.stop)

    def settle(self, most_s: float) -> float:
        """Waits until it is done; stops it after `most_s`. Returns the seconds waited. Raises what it has failed by."""
        began = time.monotonic()
        self._thread.join(most_s)
        self.stop()
        if self.error is not None:
            raise self.error
        return time.monotonic() - began

    def _run(self) -> None:
        try:
            self.rows = self._read(self._stop)
        except Stopped:
            self.stopped = True
        except Exception as error:  # noqa: BLE001 - raised where it is settled
            self.error = error


class Rarity:
    """At which steps the state is read, from what the updates have waited for it."""

    def __init__(self, interval_steps: int) -> None:
        self._interval_steps = interval_steps
        self.every = 1

    def due(self, step: int) -> bool:
        return step % self.every == 0

    def waited(self, waited_s: float, step_s: float) -> None:
        """An update has waited so long, in steps of so many seconds, the waiting included."""
        most = self._interval_steps * _RAREST
        while waited_s > MOST_OF_A_STEP * self.every * step_s and self.every < most:
            self.every = self._interval_steps if self.every == 1 else 2 * self.every
        if self.every > 1:
            oftener = 1 if self.every == self._interval_steps else self.every // 2
            if waited_s < MOST_OF_A_STEP * oftener * step_s / 2:
                self.every = oftener


def threads_of_the_reader() -> int:
    """A quarter of the cores that are this rank's share of those it may run on, and no fewer than torch's number of
    threads: torchrun sets that to 1, and the training's data loaders need cores too."""
    ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
    return max(torch.get_num_threads(), len(os.sched_getaffinity(0)) // ranks // 4)


class OffloadedReader:
    """Begins and ends the readings of one rank's offloaded state."""

    def __init__(self, interval_steps: int) -> None:
        self.rarity = Rarity(max(2, interval_steps))
        self._pending: list[Pending] = []
        self._updated_s: float | None = None  # when the update before came
        self._said = False

    def begin(self, read: Callable[[Stop], Tensor]) -> Pending:
        """A thread of its own for this pass over a part of the state."""
        pending = Pending(read)
        self._pending.append(pending)
        return pending

    def update_coming(self) -> None:
        """Before each update: waits for the threads, and measures how long. Raises what a thread has failed by."""
        now, before = time.monotonic(), self._updated_s
        pending = bool(self._pending)
        try:
            waited_s = self.settle(LONGEST_WAIT_S)
        finally:
            self._updated_s = time.monotonic()
        if pending and before is not None:
            self.rarity.waited(waited_s, now + waited_s - before)

    def settle(self, most_s: float = 0.0) -> float:
        """No thread reads the state after this. Returns the seconds waited."""
        pending, self._pending = self._pending, []
        waited_s = 0.0
        for one in pending:
            waited_s += one.settle(max(0.0, most_s - waited_s))
            if one.stopped and most_s and not self._said:
                self._said = True
                _log.warning(
                    "Adam's offloaded state is not read within %g s before the update: it is reported at fewer steps, "
                    "or not at all; training goes on",
                    most_s,
                )
        return waited_s
