"""The page, live: read-only, on this machine unless it is told otherwise, and then only for who has the token."""

from __future__ import annotations

import hmac
import ipaddress
import logging
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from sentinel.adapters.exposition.credentials import Certificate
from sentinel.reports.triage.feed import Feed
from sentinel.reports.triage.page import page
from sentinel.vocabulary.errors import ConfigError, SentinelError
from sentinel.vocabulary.numbers import dump_json

__all__ = ["TriageServer", "is_loopback"]

log = logging.getLogger(__name__)

_COOKIE = "sentinel_triage"
_STREAMS = 32
"""Pages that may look on at a time."""

_BEAT_S = 15.0
"""A comment goes out when nothing else did, so that a page that is gone is noticed."""

_OLD_S, _OLD_MAKINGS = 60.0, 20.0
"""After this long the document is made anew even if only samples came: its verdict and correlations. Or after so many
times what it took to make, where that is longer: a run of a million steps takes most of a minute."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class TriageServer(ThreadingHTTPServer):
    """GET / is the page, /document.json its data, /events what is new, as server-sent events. There is nothing else."""

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        feed: Feed,
        make: Callable[[], dict[str, Any]],
        token: str | None = None,
        certificate: Certificate | None = None,
    ) -> None:
        """`make` reads the run and gives the document. ConfigError without a token where others can reach it. With a
        certificate, HTTPS and nothing else."""
        if token is None and not is_loopback(address[0]):
            raise ConfigError(f"{address[0]} can be reached from other machines: a token is needed")
        super().__init__(address, _Handler)
        self.feed = feed
        self.token = token
        self.certificate = certificate
        self.streams = threading.Semaphore(_STREAMS)
        self.closing = threading.Event()
        self._make = make
        self._making = threading.Lock()
        self._made: tuple[float, int, dict[str, Any]] | None = None  # until when it is good, at which change, and it

    @property
    def names(self) -> frozenset[str]:
        """Host names that a request may be meant for: another one is a page elsewhere that was bent to this address."""
        return frozenset({"127.0.0.1", "localhost", "[::1]"}) if self.token is None else frozenset()

    def document(self) -> dict[str, Any]:
        """The document; made anew when it has changed, and shared by all who ask meanwhile.

        `live_from` is where the feed stood before the run was read: what came later is in the feed from there on.
        """
        with self._making:
            changes, mark = self.feed.changes, self.feed.mark
            begun = time.monotonic()
            if self._made is None or self._made[1] != changes or begun > self._made[0]:
                made = self._make() | {"live_from": mark}
                now = time.monotonic()
                self._made = (now + max(_OLD_S, _OLD_MAKINGS * (now - begun)), changes, made)
            return self._made[2]

    def follow(self, interval_s: float) -> threading.Thread:
        """Has the feed look again and again, in a thread of its own, until the server is closed."""

        def looking() -> None:
            while not self.closing.wait(interval_s):
                self.feed.look()

        thread = threading.Thread(target=looking, name="triage-feed", daemon=True)
        thread.start()
        return thread

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the request's own thread: who is slow to shake hands holds up nobody."""
        if self.certificate is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(_Handler.timeout)
        with self.certificate.context().wrap_socket(request, server_side=True) as secure:
            super().finish_request(secure, client_address)

    def handle_error(self, *_: Any) -> None:
        log.debug("a request could not be answered", exc_info=True)

    def server_close(self) -> None:
        self.closing.set()
        super().server_close()


class _Handler(BaseHTTPRequestHandler):
    server: TriageServer
    timeout = 30
    server_version = "sentinel"
    sys_version = ""

    def do_GET(self) -> None:
        """Answers, or says why not."""
        try:
            self._get()
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            log.debug("a page went away")
        except (SentinelError, OSError) as error:
            log.warning("the page can't be made now: %s", error)
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE)

    def _get(self) -> None:
        asked = urlsplit(self.path)
        if self.server.names and (self.headers.get("Host") or "").rsplit(":", 1)[0] not in self.server.names:
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST)
            return
        given = parse_qs(asked.query).get("token", [""])[0]
        if not self._may_see(given):
            self._refuse(HTTPStatus.UNAUTHORIZED)
        elif self.server.token is not None and given:
            self._keep_token(asked.path, parse_qsl(asked.query, keep_blank_values=True))
        elif asked.path == "/":
            self._send("text/html; charset=utf-8", page(self.server.document(), live=True))
        elif asked.path == "/document.json":
            self._send("application/json", dump_json(self.server.document()))
        elif asked.path == "/events":
            self._stream(parse_qs(asked.query).get("after", [""])[0])
        else:
            self._refuse(HTTPStatus.NOT_FOUND)

    def _may_see(self, given: str) -> bool:
        if self.server.token is None:
            return True
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(_COOKIE)
        except CookieError:
            cookie = None
        bearer = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        tokens = (given, bearer, cookie.value if cookie is not None else "")
        return any(hmac.compare_digest(one.encode(), self.server.token.encode()) for one in tokens)

    def _keep_token(self, path: str, query: list[tuple[str, str]]) -> None:
        """The token moves from the address, which is copied and logged, into a cookie; what else it asks for stays."""
        self.send_response(HTTPStatus.SEE_OTHER)
        only_tls = "" if self.server.certificate is None else " Secure;"
        self.send_header("Set-Cookie", f"{_COOKIE}={self.server.token}; HttpOnly;{only_tls} SameSite=Strict; Path=/")
        here = path if path.startswith("/") and not path.startswith("//") else "/"
        rest = urlencode([(key, value) for key, value in query if key != "token"])
        self.send_header("Location", f"{here}?{rest}" if rest else here)
        self._end(0)

    def _send(self, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self._end(len(body))
        self.wfile.write(body)

    def _refuse(self, status: HTTPStatus) -> None:
        body = f"{status.value} {status.phrase}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self._end(len(body))
        self.wfile.write(body)

    def _end(self, length: int | None) -> None:
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()

    def _stream(self, mark: str) -> None:
        if not self.server.streams.acquire(blocking=False):
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE)
            return
        try:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/event-stream")
            self._end(None)
            self._tell(self.headers.get("Last-Event-ID") or mark)
        finally:
            self.server.streams.release()

    def _tell(self, mark: str) -> None:
        feed = self.server.feed
        self.wfile.write(b"retry: 2000\n\n")
        while not self.server.closing.is_set():
            messages = feed.after(mark, _BEAT_S)
            if messages is None:
                mark = feed.mark
                self.wfile.write(f"id: {mark}\nevent: changed\ndata: {{}}\n\n".encode())
            elif not messages:
                self.wfile.write(b": nothing new\n\n")
            for message in messages or ():
                mark = f"{feed.life}-{message.number}"
                self.wfile.write(f"id: {mark}\nevent: {message.kind}\ndata: {message.data}\n\n".encode())
            self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        log.debug("%s " + format, self.address_string(), *args)
