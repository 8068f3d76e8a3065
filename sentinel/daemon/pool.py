"""Runs spread over worker processes, so that one interpreter's lock is no limit. A worker that dies is replaced."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from multiprocessing import Pipe
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sentinel.config import Config
from sentinel.daemon.channel import PipeChannel
from sentinel.daemon.places import Stands
from sentinel.daemon.run_metrics import Shows
from sentinel.daemon.scheduler import SignalFlag

log = logging.getLogger(__name__)

_BEFORE_ANOTHER = 50  # runs that a worker has before another is started: it takes 130 MB, these 5 % of a core
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0  # between a worker's end and its successor's start; doubled each time
_LASTED_S = 60.0  # after which a worker counts as having worked, and the pause is the first one again
_STOPS_S = 2.0  # that an interrupted worker has to say what it leaves


@dataclass(frozen=True, slots=True)
class _Given:
    number: int  # of this watch: a word about an earlier one of the same configuration is passed over
    config: Config


class _Worker:
    """One worker after the other, for one share of the runs. `is_over` and `is_due` are set by the channel's thread."""

    def __init__(
        self, options: tuple[str, ...], received: Callable[[_Worker, Any, Any], None], wake: SignalFlag
    ) -> None:
        self.runs: dict[Path, _Given] = {}
        self.is_over = False  # whether the process has ended
        self.is_due = True  # whether another is to be started
        self._ending = False
        self._options = options
        self._received = received
        self._wake = wake
        self._pause_s = _FIRST_PAUSE_S
        self._began_s = 0.0

    def start(self) -> None:
        """OSError where no process can be started."""
        self._began_s = time.monotonic()
        ours, theirs = Pipe()
        command = [sys.executable, "-m", "sentinel.daemon.worker", str(theirs.fileno()), *self._options]
        with theirs:
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._channel = PipeChannel(ours, lambda key, message: self._received(self, key, message), self._closed)
        self.is_due = self.is_over = False
        for path, given in self.runs.items():
            self.order(path, given)
        self._channel.start()

    def order(self, path: Path, given: _Given | None) -> None:
        if not self.is_due:
            self._channel.send(path, None if given is None else (given.number, given.config))

    def end(self, key: str = "end") -> None:
        self._ending, self.is_due = True, False
        self._channel.send(key, None)

    def _closed(self) -> None:
        """In the channel's thread: waits for the process, and a little before its successor may be started."""
        code = self.process.wait()
        self._channel.close()
        self.is_over = True
        self._wake.set()
        if self._ending:
            return
        if time.monotonic() - self._began_s > _LASTED_S:
            self._pause_s = _FIRST_PAUSE_S
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        goes_on = "worker process %d ended %s; its %d runs go on in another one in %.1f s"
        log.error(goes_on, self.process.pid, how, len(self.runs), self._pause_s)
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        self.is_due = not self._ending
        self._wake.set()


class Pool:
    """A place of the daemon. What a worker's runs show goes to the page; how they stand, to `stands`, in a thread."""

    def __init__(self, most: int, options: tuple[str, ...], page: Shows, stands: Stands, wake: SignalFlag) -> None:
        self._most = most
        self._answers = TemporaryDirectory(prefix="sentinel-answers-", ignore_cleanup_errors=True)
        self._options = (self._answers.name, *options)
        self._page = page
        self._stands = stands
        self._wake = wake
        self._numbers = count()
        self._workers: list[_Worker] = []
        self._of: dict[Path, _Worker] = {}
        self._ending = False

    def put(self, path: Path, config: Config) -> None:
        worker = self._of.get(path)
        if worker is not None:
            given = _Given(worker.runs[path].number, config)
        else:
            worker, given = self._with_room(), _Given(next(self._numbers), config)
        self._of[path] = worker
        worker.runs[path] = given
        worker.order(path, given)

    def remove(self, path: Path) -> None:
        if (worker := self._of.pop(path, None)) is not None:
            del worker.runs[path]
            worker.order(path, None)

    def tend(self) -> None:
        for worker in self._workers:
            if worker.is_due and not self._ending:
                try:
                    worker.start()
                except OSError as error:  # too many processes or too little memory just now
                    log.error("no worker process can be started: %s; trying again", error)

    def end(self) -> None:
        if not self._ending:
            self._ending = True
            for worker in self._workers:
                worker.end()

    def interrupt(self) -> None:
        self.end()
        for worker in self._workers:
            worker.end("now")
        until_s = time.monotonic() + _STOPS_S
        for worker in self._workers:
            try:
                worker.process.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()

    def left(self) -> list[Path]:
        return [path for worker in self._workers if worker.process.poll() != 0 for path in worker.runs]

    def is_over(self) -> bool:
        return all(worker.is_over for worker in self._workers)

    def _with_room(self) -> _Worker:
        least = min(self._workers, key=lambda worker: len(worker.runs), default=None)
        if least is not None and (len(least.runs) < _BEFORE_ANOTHER or len(self._workers) >= self._most):
            return least
        worker = _Worker(self._options, self._received, self._wake)
        worker.start()
        self._workers.append(worker)
        return worker

    def _received(self, worker: _Worker, key: Any, message: Any) -> None:
        kind, of = key
        if kind == "text" and message is None:
            self._page.withdraw(of)
        elif kind == "text":
            self._page.open()
            self._page.show(of, message)
        elif (given := worker.runs.get(of)) is not None:
            number, standing = message
            if number == given.number:
                self._stands(of, standing)
