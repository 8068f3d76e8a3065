"""One connection to the exporter: one request, one answer, and a few seconds for both."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, cast

__all__ = ["Connection"]

_CONNECTION_S = 5.0  # all that one connection may take: TLS, asking, and reading the answer
_MOST_HEAD_BYTES = 16_384


class Connection(asyncio.Protocol):
    """One request, one answer. A client's mistake is not an error of the hook."""

    def __init__(self, answer: Callable[[bytes], bytes], gone: Callable[[Connection], None]) -> None:
        self._answer = answer
        self._gone = gone
        self._head = b""
        self._transport: asyncio.Transport | None = None
        loop = asyncio.get_running_loop()
        self._limit = loop.call_later(_CONNECTION_S, self.abort)
        self._opening: asyncio.Task[Any] | None = None

    def open(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Starts on an accepted socket; with TLS by a handshake."""
        loop = asyncio.get_running_loop()
        handshake: dict[str, Any] = {}
        if tls is not None:
            handshake = {"ssl": tls, "ssl_handshake_timeout": _CONNECTION_S, "ssl_shutdown_timeout": 1.0}
        self._opening = loop.create_task(loop.connect_accepted_socket(lambda: self, connection, **handshake))
        self._opening.add_done_callback(partial(self._opened, connection))

    def _opened(self, connection: socket.socket, opening: asyncio.Task[Any]) -> None:
        if opening.cancelled() or opening.exception() is not None:
            connection.close()
            self.connection_lost(None)

    def abort(self) -> None:
        """Closes it at once."""
        if self._transport is not None:
            self._transport.abort()
        elif self._opening is not None:
            self._opening.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._head += data
        head, end, _ = self._head.partition(b"\r\n\r\n")
        if self._transport is None or len(self._head) > _MOST_HEAD_BYTES:
            self.abort()
        elif end:
            self._transport.write(self._answer(head + end))
            self._transport.close()  # once it is written

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._limit.cancel()
        self._gone(self)
