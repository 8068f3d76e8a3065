"""From the bytes of a request to the bytes of an answer, by prometheus_client's WSGI application: it negotiates the
format (text or OpenMetrics), compresses, and renders. An answer is reused for a moment, so that many scrapers at once
cost the training no more than one."""

from __future__ import annotations

import asyncio
import base64
import hmac
import http.client
import io
import re
import socket
import ssl
import time
from collections.abc import Callable
from email.message import Message
from http import HTTPStatus
from typing import Any

from prometheus_client import CollectorRegistry, make_wsgi_app

from trainer_hooks.export.step_collector import StepCollector

_RENDERING_SHARE = 0.01
"""An answer is rendered anew only when it is 1 / this times as old as the time that rendering it took."""

_MOST_KEPT_S = 10.0
"""No answer is older than this, however long rendering takes (a millisecond as a rule, 50 with a thousand layers)."""

_KEPT = 8  # different answers (formats, encodings, queries) that are kept at a time
_NO_VERSION = re.compile(r"version=(?!\d+(\.\d+){0,2}\s*([;,]|$))", re.ASCII)
"""A version of a format that is no number: the application raises on it; plain text is what everybody reads."""


class Answers:
    """Answers requests for one collector's metrics, on one thread."""

    def __init__(
        self,
        collector: StepCollector,
        *,
        password: bytes | None = None,  # user:password of HTTP's basic authentication, as UTF-8
        failed: Callable[[Exception], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        registry = CollectorRegistry()
        registry.register(collector)
        self._app = make_wsgi_app(registry)
        self._password = password
        self._failed = failed
        self._clock = clock
        self._kept: dict[tuple[str, ...], tuple[float, bytes]] = {}
        """{what the answer depends on: (how long it is good for, by the clock, the answer)}"""

    def to(self, head: bytes) -> bytes:
        """The answer to a request, given up to the empty line. An error goes to `failed` and is answered by a 500."""
        try:
            return self._to(head)
        except Exception as error:  # noqa: BLE001 - the exporter's edge: the next scrape may well be answered
            self._failed(error)
            return _plain(HTTPStatus.INTERNAL_SERVER_ERROR)

    def _to(self, head: bytes) -> bytes:
        line, _, rest = head.partition(b"\r\n")
        try:
            headers: Message = http.client.parse_headers(io.BytesIO(rest))
            is_too_large = False
        except http.client.HTTPException:
            headers, is_too_large = Message(), True
        # before anything else: who has no password is not told what is wrong with a request
        if self._password is not None and not _admits(self._password, headers.get("Authorization")):
            return _plain(HTTPStatus.UNAUTHORIZED, ("WWW-Authenticate", 'Basic realm="sentinel", charset="UTF-8"'))
        words = line.decode("latin-1").split(" ")
        folded = b"\r\n " in head or b"\r\n\t" in head  # long out of use, but for smuggling lines into an answer
        if len(words) != 3 or not words[2].startswith("HTTP/1.") or folded:
            return _plain(HTTPStatus.BAD_REQUEST)
        if is_too_large:
            return _plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        method, (path, _, query) = words[0], words[1].partition("?")
        request = (method, path, query, headers.get("Accept", ""), headers.get("Accept-Encoding", ""))
        now = self._clock()
        good_until, answer = self._kept.get(request, (0.0, b""))
        if now >= good_until:
            answer = self._render(*request)
            took = self._clock() - now
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[request] = (now + min(took / _RENDERING_SHARE, _MOST_KEPT_S), answer)
        return answer

    def _render(self, method: str, path: str, query: str, accept: str, encoding: str) -> bytes:
        if path not in ("/", "/metrics"):
            return _plain(HTTPStatus.NOT_FOUND)
        if method != "GET":
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED, ("Allow", "GET"))
        environment = {
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "HTTP_ACCEPT": "" if _NO_VERSION.search(accept) else accept,
            "HTTP_ACCEPT_ENCODING": encoding,
        }
        head: list[Any] = []
        body = b"".join(self._app(environment, lambda status, headers: head.extend((status, headers))))
        status, sent = head
        return _answer(status, sent, body)


def _admits(expected: bytes, authorization: str | None) -> bool:
    """Whether the header is right, compared in constant time."""
    scheme, _, encoded = (authorization or "").partition(" ")
    try:
        given = base64.b64decode(encoded.strip(), validate=True)
    except ValueError:
        given = b""
    return hmac.compare_digest(given, expected) and scheme.lower() == "basic"


def _plain(status: HTTPStatus, *headers: tuple[str, str]) -> bytes:
    text = f"{status.value} {status.phrase}"
    return _answer(text, [("Content-Type", "text/plain; charset=utf-8"), *headers], f"{text}\n".encode())


def _answer(status: str, headers: list[tuple[str, str]], body: bytes) -> bytes:
    """One answer, after which the connection is closed: each request is admitted anew, at the server's pace."""
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers)]
    lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


_CONNECTION_S = 5.0  # all that one connection may take: TLS, asking, and reading the answer
_MOST_HEAD_BYTES = 16_384


async def converse(client: socket.socket, tls: ssl.SSLContext | None, answer: Callable[[bytes], bytes]) -> None:
    """One request, one answer, on an accepted socket. A client's mistake is not an error of the hook."""
    handshake: dict[str, Any] = {}
    if tls is not None:
        handshake = {"ssl": tls, "ssl_handshake_timeout": _CONNECTION_S, "ssl_shutdown_timeout": 1.0}
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(_MOST_HEAD_BYTES)
    protocol, transport = asyncio.StreamReaderProtocol(reader), None
    try:
        async with asyncio.timeout(_CONNECTION_S):
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, client, **handshake)
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            writer.write(answer(await reader.readuntil(b"\r\n\r\n")))
            writer.close()  # once it is written
            await writer.wait_closed()
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass
    finally:
        if transport is None:
            client.close()
        else:
            transport.abort()
