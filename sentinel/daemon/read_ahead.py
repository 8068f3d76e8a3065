"""The newest healthy checkpoint is verified while the run is well, so that a rollback to it need not wait."""

from __future__ import annotations

import contextvars
import logging
import time
from collections.abc import Callable
from threading import BoundedSemaphore, Event, Thread

from sentinel.act.observation import Observation
from sentinel.adapters.checkpoints import Checkpoints, Pace, ReadingStoppedError, lower_priority
from sentinel.judge.verdict import VerdictKind
from sentinel.plan.choose.target import healthy_until
from sentinel.plan.observation import Checkpoint
from sentinel.vocabulary.errors import SentinelError

log = logging.getLogger(__name__)

READ_AHEAD_MB_PER_S = 100.0  # on a filesystem of this machine alone
_WELL = (VerdictKind.HEALTHY, VerdictKind.WARMING_UP)
_AGAIN_S = 600.0  # after which a checkpoint that was not found whole, or could not be read, is read again
_SETTLES_S = 5.0  # a file that was written this moment may change without a newer time: it would not be remembered
_READING = BoundedSemaphore(1)  # one checkpoint at a time in a process: of many runs on one disk, none adds to another


class ReadAhead:
    """Of one run. `follow` and `stop` return at once: the reading is in a thread of its own, which ends with it."""

    def __init__(
        self, checkpoints: Checkpoints, bytes_per_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """bytes_per_s: no more than that is read; 0 is none."""
        self._checkpoints, self._bytes_per_s = checkpoints, bytes_per_s
        self._clock = clock
        self._done: str | None = None  # the last one that was verified
        self._again_s: dict[str, float] = {}  # tag -> when one that failed may be read again
        self._reading: Thread | None = None
        self._stop = Event()

    @property
    def is_reading(self) -> bool:
        return self._reading is not None and self._reading.is_alive()

    def follow(self, look: Observation | None) -> None:
        """After a turn: begins to read where there is something new, and stops where the run is not well."""
        target = None if look is None else _newest_healthy(look)
        if target is None:
            self.stop()
        elif (
            self._bytes_per_s and not self.is_reading and self._is_new(target.tag) and _READING.acquire(blocking=False)
        ):
            self._stop = Event()
            copied = contextvars.copy_context()  # the prefix of the run's log lines
            work = (self._read, target.tag, self._stop)
            self._reading = Thread(target=copied.run, args=work, name="sentinel-read-ahead", daemon=True)
            try:
                self._reading.start()
            except RuntimeError as error:
                self._reading = None
                _READING.release()
                log.warning("can't start a thread to read %s ahead: %s", target.tag, error)

    def stop(self) -> None:
        """What was not read to its end counts as not read."""
        self._stop.set()
        self._done = None  # after a rollback another checkpoint may come under its name

    def _is_new(self, tag: str) -> bool:
        return tag != self._done and self._clock() >= self._again_s.get(tag, 0.0)

    def _read(self, tag: str, stop: Event) -> None:
        try:
            lower_priority()
            if stop.wait(_SETTLES_S):
                raise ReadingStoppedError
            self._again_s = {tag: self._clock() + _AGAIN_S}
            verified = self._checkpoints.verify(tag, pace=Pace(self._bytes_per_s, stop))
            if verified.problem is not None:
                log.warning("%s was read ahead of a rollback and is not whole: %s", tag, verified.problem)
            elif verified.verification is not None:
                self._done = tag
                log.info("%s was read ahead of a rollback: %s", tag, verified.verification.sentence)
        except ReadingStoppedError:
            self._again_s = {}
            log.info("%s is not read ahead any more: the run is not well, or its watch ends", tag)
        except (SentinelError, OSError) as error:
            log.debug("%s can't be read ahead: %s", tag, error)
        finally:
            _READING.release()


def _newest_healthy(look: Observation) -> Checkpoint | None:
    """The checkpoint that a rollback would go back to if the run diverged from now on; None where it is not well."""
    if look.verdict.kind not in _WELL or look.facts.open_incident is not None or look.series.last is None:
        return None
    whole, _ = healthy_until(look.series.last.global_step, look.facts.folders, look.facts.readings)
    there = [checkpoint for checkpoint in whole if not checkpoint.only_pinned]
    return there[-1] if there else None
