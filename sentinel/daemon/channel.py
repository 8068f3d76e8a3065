"""Messages between the daemon and its worker processes: neither ever waits for the other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from multiprocessing.connection import Connection
from threading import Condition, Thread
from typing import Any

log = logging.getLogger(__name__)


class PipeChannel:
    """One end of a pipe between two processes of this daemon, read and written by two threads.

    A message that is not sent yet is replaced by a later one of the same key, so what waits is bounded by the number of
    keys while the other side hangs. `received` and, once the other side is gone, `closed` are called in the reading
    thread.
    """

    def __init__(
        self, connection: Connection, received: Callable[[Any, Any], None], closed: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._received = received
        self._closed = closed
        self._waiting: dict[Hashable, Any] = {}
        self._changed = Condition()
        self._sending = False
        self._over = False

    def start(self) -> None:
        for work in (self._read, self._write):
            Thread(target=work, name=f"sentinel-channel-{work.__name__.strip('_')}", daemon=True).start()

    def send(self, key: Hashable, message: object) -> None:
        with self._changed:
            self._waiting[key] = message
            self._changed.notify_all()

    def flush(self, within_s: float) -> None:
        """Waits until all was sent, or for so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or not (self._waiting or self._sending), within_s)

    def close(self) -> None:
        """Once the other side is gone."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._connection.close()

    def _read(self) -> None:
        try:
            while True:
                self._received(*self._connection.recv())
        except (EOFError, OSError) as error:
            log.debug("the other process is gone: %r", error)
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()
            self._closed()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._sending = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._over or self._waiting)
                if self._over:
                    return
                key = next(iter(self._waiting))
                message = self._waiting.pop(key)
                self._sending = True
            try:
                self._connection.send((key, message))
            except OSError as error:
                log.debug("a message could not be sent: %s", error)
                with self._changed:
                    self._over, self._sending = True, False
                    self._changed.notify_all()
                return
