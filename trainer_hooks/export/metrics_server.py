"""A thread that answers HTTP requests beside the training without delaying it: it shares Python's lock with the
training thread, so it may use a small share of one core's time only. Beyond it, new connections wait in the kernel's
queue. Connections are few and last a few seconds at most; when there are too many, the oldest is closed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from trainer_hooks.export.answers import converse

log = logging.getLogger(__name__)

_SHARE = 0.01  # of one core's time, in the long run
_SAVED_UP_S = 0.01
"""Time of a core that may be spent at once after a quiet while: some scrapers come in the same moment."""

_LONGEST_PAUSE_S = 1.0  # between two connections, however much the first has cost: debts beyond it are forgiven
_BACKLOG = 32  # connections that may wait in the kernel's queue
_MOST_CONNECTIONS = 64
_MOST_OF_AN_ADDRESS = 16  # beyond it the oldest connection of that address is closed, and none of another
_COMES_BACK_S = 1.0
_CHECKS_ITSELF_S = 10.0
_CLOSE_S = 5.0


def listen(address: str, port: int) -> socket.socket:
    """Where the port is taken, at any free one. An empty address is every one. OSError; ValueError for no port."""
    if not 0 <= port < 1 << 16:  # or the resolver would make another one of it
        raise ValueError(f"a port is 0 to 65535, not {port}")
    found = socket.getaddrinfo(address or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, place = found[0][0], found[0][4]
    try:
        return _bound(family, place)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
    server = _bound(family, (place[0], 0, *place[2:]))
    log.warning(
        "sentinel: port %d is taken, so /metrics is at port %d; training goes on", port, server.getsockname()[1]
    )
    return server


def _bound(family: int, place: tuple[Any, ...]) -> socket.socket:
    both = place[0] == "::" and socket.has_dualstack_ipv6()
    server = socket.create_server(place, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    server.setblocking(False)
    return server


class Allowance:
    """What a thread may still spend of a core's time. `spent` is its clock of that, `at` any clock, both in seconds."""

    def __init__(self, spent: float, at: float) -> None:
        self._spent = spent
        self._at = at
        self._saved = _SAVED_UP_S

    def wait_s(self, spent: float, at: float) -> float:
        """How long to pause before the next piece of work, seconds."""
        saved = min(self._saved + (at - self._at) * _SHARE, _SAVED_UP_S)
        self._saved = max(saved - (spent - self._spent), -_SHARE * _LONGEST_PAUSE_S)
        self._spent, self._at = spent, at
        return max(0.0, -self._saved / _SHARE)


class MetricsServer:
    """Serves `answer` at a listening socket, in a thread of its own that comes back after an error."""

    def __init__(
        self,
        listening: socket.socket,
        answer: Callable[[bytes], bytes],
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        failed: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        self._listening = listening
        self._place = listening.getsockname()
        self.address, self.port = str(self._place[0]), int(self._place[1])
        self._answer = answer
        self._tls = tls
        self._failed = failed
        self._connections: dict[asyncio.Task[None], str] = {}  # with the client's address; the oldest first
        self._loop: asyncio.AbstractEventLoop | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._closing = threading.Event()
        known = weakref.ref(self)

        def close_in_child() -> None:  # a data loader's workers are forks of the trainer: they would keep the port
            if (ours := known()) is not None:
                ours._listening.close()

        os.register_at_fork(after_in_child=close_in_child)
        self._thread = threading.Thread(target=self._run, name="sentinel-exporter", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finishes the answers under way, within a deadline, and frees the port."""
        self._closing.set()
        loop, accepting = self._loop, self._accepting
        if loop is not None and accepting is not None:
            with contextlib.suppress(RuntimeError):  # it has just ended by itself
                loop.call_soon_threadsafe(accepting.cancel)
        self._thread.join(_CLOSE_S)
        self._let_go()

    def _run(self) -> None:
        while True:
            try:
                with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                    self._loop = runner.get_loop()
                    self._loop.set_exception_handler(self._loop_failed)
                    runner.run(self._serve())
            except asyncio.CancelledError:
                pass
            except Exception as error:  # noqa: BLE001 - the thread's edge: it comes back
                self._failed(error)
            self._loop = self._accepting = None
            if self._closing.wait(_COMES_BACK_S):
                return
            try:
                if not self._listens():
                    self._let_go()
                    self._listening = _bound(self._listening.family, self._place)  # which are announced
            except OSError as error:
                self._failed(error)

    def _loop_failed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._failed(error if isinstance(error, Exception) else RuntimeError(str(context.get("message"))))

    async def _serve(self) -> None:
        self._accepting = asyncio.current_task()
        allowance = Allowance(time.thread_time(), time.monotonic())
        try:
            while not self._closing.is_set():
                if (accepted := await self._next()) is None:
                    continue
                client, address = accepted
                self._make_place_for(address)
                tls = None if self._tls is None else self._tls()
                connection = asyncio.get_running_loop().create_task(converse(client, tls, self._answer))
                connection.add_done_callback(self._forget)
                self._connections[connection] = address
                await asyncio.sleep(allowance.wait_s(time.thread_time(), time.monotonic()))
        finally:
            if self._connections:
                await asyncio.wait(set(self._connections), timeout=1.0)  # the end of the loop cancels the others
            self._connections.clear()

    def _make_place_for(self, address: str) -> None:
        of_it = [connection for connection, other in self._connections.items() if other == address]
        if len(of_it) < _MOST_OF_AN_ADDRESS:
            of_it = [*self._connections] if len(self._connections) >= _MOST_CONNECTIONS else []
        for oldest in of_it[:1]:
            self._forget(oldest)
            oldest.cancel()

    def _forget(self, connection: asyncio.Task[None]) -> None:
        self._connections.pop(connection, None)

    async def _next(self) -> tuple[socket.socket, str] | None:
        """The next connection and its address; None after a while without any. OSError where the socket is no longer
        ours."""
        try:
            connection, place = self._listening.accept()
        except BlockingIOError:
            await self._wait_for_connection()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED):
                raise
            await asyncio.sleep(_COMES_BACK_S)
        else:
            connection.setblocking(False)
            return connection, str(place[0])
        return None

    async def _wait_for_connection(self) -> None:
        """For a while. OSError where the socket no longer listens: other code of the process has closed it, say."""
        loop, readable, descriptor = asyncio.get_running_loop(), asyncio.Event(), self._listening.fileno()
        loop.add_reader(descriptor, readable.set)
        try:
            async with asyncio.timeout(_CHECKS_ITSELF_S):
                await readable.wait()
        except TimeoutError:
            if not self._listens():
                raise OSError(errno.EBADF, "its socket was closed by other code") from None
        finally:
            loop.remove_reader(descriptor)

    def _listens(self) -> bool:
        """Whether the descriptor is still our socket, and listens."""
        return self._is_ours() and self._listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1

    def _is_ours(self) -> bool:
        try:
            return bool(self._listening.getsockname() == self._place)
        except OSError:  # closed, or another kind of file by now
            return False

    def _let_go(self) -> None:
        if self._is_ours():
            self._listening.close()
        else:
            self._listening.detach()  # its number belongs to another file by now
