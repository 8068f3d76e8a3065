"""A worker process of `sentinel watch --all`: watches the runs that the daemon gives it, and sends it what they show.

    python -m sentinel.daemon.worker DESCRIPTOR ANSWERS [--observe] [--verbose]

DESCRIPTOR is of the pipe to the daemon; ANSWERS is the folder in which the workers share what Slurm has answered. The
process ends, with all locks released, when the daemon says so, at SIGTERM, and when the daemon is gone. The daemon
forwards the signals SIGINT and SIGHUP that a terminal sends to all processes.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event
from time import monotonic
from typing import Any

from sentinel.adapters.exposition.text import RunText
from sentinel.adapters.slurm import Queues
from sentinel.daemon.channel import PipeChannel
from sentinel.daemon.logs import log_to_stderr, say_to_stderr
from sentinel.daemon.places import InProcess, Standing
from sentinel.daemon.scheduler import Fleet, SignalFlag
from sentinel.daemon.sources import SharedSources
from sentinel.daemon.watched_run import Shared
from sentinel.daemon.wide import allow_many_files, collect_rarely

log = logging.getLogger(__name__)

INTERRUPTED = 3  # exit code after a second SIGTERM while a turn hung: another system does not answer
_ALONE_S = 30.0  # for which a worker waits for turns that hang once the daemon is gone
_SENT_S = 5.0  # that the last messages may take


class Sent:
    """What the runs show, on its way to the daemon's /metrics."""

    def __init__(self, channel: PipeChannel) -> None:
        self._channel = channel

    def open(self) -> None:
        """The daemon listens."""

    def show(self, run: str, text: RunText) -> None:
        self._channel.send(("text", run), text)

    def withdraw(self, run: str) -> None:
        self._channel.send(("text", run), None)

    def close(self, *, well: bool) -> None:
        """The daemon listens on."""


class Worker:
    """Follows orders until it is to end and no turn is under way."""

    def __init__(self, connection: Connection, answers: Path, *, observe: bool) -> None:
        self._wake, self._end, self._now = SignalFlag(), SignalFlag(), SignalFlag()
        self._orders: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
        self._numbers: dict[Path, int] = {}
        self._is_told = False  # by the daemon, to end
        self._gone_s: float | None = None  # when the daemon was gone
        self._channel = PipeChannel(connection, self._received, self._closed)
        self._fleet = Fleet(self._wake)
        shared = Shared(
            exposition=Sent(self._channel),
            queues=Queues(answers),
            sources=SharedSources(),
            say=say_to_stderr,
            stop=Event(),
            observe=observe,
            once=False,
            alone=False,
        )
        self._place = InProcess(self._fleet, shared, self._stands)

    def run(self) -> int:
        """Returns the process's exit code."""
        signal.signal(signal.SIGTERM, lambda *_: self._asked(self._end))
        for number in (signal.SIGINT, signal.SIGHUP):  # not ignored: what it starts would inherit that
            signal.signal(number, lambda *_: None)
        self._channel.start()
        while not (self._end.is_set() and self._place.is_over()):
            self._follow_orders()
            if self._end.is_set():
                self._place.end()
            if self._is_to_stop_now():
                names = ", ".join(sorted(path.stem for path in self._place.left()))
                log.error("interrupted in the middle of a turn: %s; the next watch resumes there", names)
                return INTERRUPTED
            self._fleet.round()
        self._channel.flush(_SENT_S)
        return 0

    def _is_to_stop_now(self) -> bool:
        return self._now.is_set() or (self._gone_s is not None and monotonic() > self._gone_s + _ALONE_S)

    def _follow_orders(self) -> None:
        while True:
            try:
                path, order = self._orders.get_nowait()
            except Empty:
                return
            if order is None:
                self._numbers.pop(path, None)
                self._place.remove(path)
            else:
                number, config = order
                if self._numbers.get(path, number) != number:
                    self._place.remove(path)
                self._numbers[path] = number
                self._place.put(path, config)

    def _received(self, key: Any, message: Any) -> None:
        if key == "end":
            self._is_told = True
            self._asked(self._end)
        elif key == "now":
            self._asked(self._now)
        else:
            self._orders.put((key, message))
            self._wake.set()

    def _closed(self) -> None:
        self._gone_s = monotonic()
        self._asked(self._end)

    def _asked(self, flag: SignalFlag) -> None:
        flag.set()
        self._wake.set()

    def _stands(self, path: Path, standing: Standing) -> None:
        number = self._numbers.get(path)
        if number is not None and (self._is_told or not self._end.is_set()):  # else the run goes on in another worker
            self._channel.send(("run", path), (number, standing))


def main() -> None:
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    log_to_stderr(verbose="--verbose" in sys.argv)
    allow_many_files()
    collect_rarely()
    code = Worker(Connection(descriptor), Path(sys.argv[2]), observe="--observe" in sys.argv).run()
    logging.shutdown()
    os._exit(code)  # threads of turns that hang are not waited for


if __name__ == "__main__":
    main()
