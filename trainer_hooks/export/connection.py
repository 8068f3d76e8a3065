"""One connection to the exporter: a question, an answer, and a few seconds for both."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, cast

__all__ = ["Visitor"]

_CONNECTION_S = 5.0  # all that one connection may take: TLS, asking, and reading the answer
_MOST_HEAD_BYTES = 16_384


class Visitor(asyncio.Protocol):
    """One connection: one question, one answer. What a client does wrong is no error of ours."""

    def __init__(self, answer: Callable[[bytes], bytes], gone: Callable[[Visitor], None]) -> None:
        self._answer = answer
        self._gone = gone
        self._head = b""
        self._transport: asyncio.Transport | None = None
        loop = asyncio.get_running_loop()
        self._limit = loop.call_later(_CONNECTION_S, self.show_out)
        self._coming: asyncio.Task[Any] | None = None

    def let_in(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Begins the conversation; with TLS there is a handshake first."""
        loop = asyncio.get_running_loop()
        handshake: dict[str, Any] = {}
        if tls is not None:
            handshake = {"ssl": tls, "ssl_handshake_timeout": _CONNECTION_S, "ssl_shutdown_timeout": 1.0}
        self._coming = loop.create_task(loop.connect_accepted_socket(lambda: self, connection, **handshake))
        self._coming.add_done_callback(partial(self._has_come, connection))

    def _has_come(self, connection: socket.socket, coming: asyncio.Task[Any]) -> None:
        if coming.cancelled() or coming.exception() is not None:
            connection.close()
            self.connection_lost(None)

    def show_out(self) -> None:
        """Ends it here and now."""
        if self._transport is not None:
            self._transport.abort()
        elif self._coming is not None:
            self._coming.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._head += data
        head, end, _ = self._head.partition(b"\r\n\r\n")
        if self._transport is None or len(self._head) > _MOST_HEAD_BYTES:
            self.show_out()
        elif end:
            self._transport.write(self._answer(head + end))
            self._transport.close()  # once it is written

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._limit.cancel()
        self._gone(self)
