"""The page, live and read-only: new samples as numbered messages; on this machine, or with a token on others."""

from __future__ import annotations

import hmac
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from sentinel.act.source import Source, read_all
from sentinel.adapters.exposition.server import SecuredServer, TlsCertificate, is_loopback, is_token
from sentinel.adapters.exposition.visitors import Visitors
from sentinel.reports.triage.document import page
from sentinel.vocabulary.errors import ConfigError, SentinelError
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.sample import Record, RunFinished, RunStarted, Sample

log = logging.getLogger(__name__)

_KEPT = 50_000  # messages that a page may have missed; one that has missed more loads the document again
_COOKIE = "sentinel_triage"
_STREAMS = 32  # pages that may follow the run at a time
_MOST_CONNECTIONS = 128
_BEAT_S = 15.0  # a comment is sent when no message was, so that a closed page is noticed

# After this long the document is made anew even if only samples came: its verdict and correlations. Or after so many
# times what it took to make, where that is longer: a run of a million steps takes most of a minute.
_OLD_S, _OLD_MAKINGS = 60.0, 20.0


@dataclass(frozen=True, slots=True)
class Message:
    """`sample` with the sample as JSON, or `changed`: the document has changed."""

    number: int
    kind: str
    data: str


class Feed:
    """Polls the run's source and its incident log for messages, for any number of pages; thread-safe."""

    def __init__(self, source: Source, incident_log: Path) -> None:
        self._source = source
        self._incident_log = incident_log
        self._messages: deque[Message] = deque(maxlen=_KEPT)
        self._news = threading.Condition()
        self._number = 0
        self.changes = 0  # how often the document changed, beyond its newest samples
        self.life = secrets.token_hex(4)  # distinguishes this process's numbers from those of one before it
        self._log_seen = self._log_size()
        self._attempts = {record.attempt for record in read_all(source)}  # what is there already is the document's

    @property
    def mark(self) -> str:
        """Where the feed stands: `LIFE-NUMBER`, as a page names it."""
        with self._news:
            return f"{self.life}-{self._number}"

    def look(self) -> None:
        """Reads what is new. What can't be read now is tried again at the next look."""
        try:
            records = list(self._source.new())
        except (OSError, SentinelError) as error:
            log.warning("the readings can't be read now: %s", error)
            records = []
        size = self._log_size()
        with self._news:
            for record in records:
                self._take(record)
            if size != self._log_seen:
                self._log_seen = size
                self._append("changed")
            self._news.notify_all()

    def after(self, mark: str, timeout_s: float) -> list[Message] | None:
        """The messages after a mark, waiting for the first of them; [] when none came; None: load the document anew."""
        life, _, number = mark.rpartition("-")
        if life != self.life or not number.isdigit():
            return None
        with self._news:
            self._news.wait_for(lambda: self._number > int(number), timeout_s)
            oldest = self._messages[0].number if self._messages else self._number + 1
            if int(number) > self._number or int(number) < oldest - 1:
                return None
            return [message for message in self._messages if message.number > int(number)]

    def _take(self, record: Record) -> None:
        if record.attempt not in self._attempts:
            self._attempts.add(record.attempt)
            self._append("changed")
        if isinstance(record, Sample):
            self._append("sample", dump_json(asdict(record)))
        elif isinstance(record, RunStarted | RunFinished):
            self._append("changed")

    def _append(self, kind: str, data: str = "{}") -> None:
        self.changes += kind == "changed"
        self._number += 1
        self._messages.append(Message(self._number, kind, data))

    def _log_size(self) -> int:
        try:
            return self._incident_log.stat().st_size
        except OSError:
            return 0


class TriageServer(SecuredServer, HTTPServer):
    """GET / is the page, /document.json its data, /events what is new, as server-sent events. There is nothing else."""

    def __init__(
        self,
        address: tuple[str, int],
        feed: Feed,
        make: Callable[[], dict[str, Any]],
        token: str | None = None,
        certificate: TlsCertificate | None = None,
    ) -> None:
        """`make` reads the run and returns the document. ConfigError without a token where other machines can reach
        it. With a certificate: HTTPS only."""
        if token is None and not is_loopback(address[0]):
            raise ConfigError(f"{address[0]} can be reached from other machines: a token is needed")
        self.visitors = Visitors(_MOST_CONNECTIONS, answered_within_s=None)
        super().__init__(address, _Handler)
        self.feed = feed
        self.token = token
        # what a browser keeps in place of the token: a cookie can't hold every character, and is not asked for again
        self.cookie = None if token is None else hmac.digest(token.encode(), b"sentinel triage", "sha256").hex()
        self.certificate = certificate
        self.streams = threading.Semaphore(_STREAMS)
        self.closing = threading.Event()
        self._make = make
        self._making = threading.Lock()
        self._made: tuple[float, int, dict[str, Any]] | None = None  # until when it is good, at which change, and it

    def document(self) -> dict[str, Any]:
        """The document; made anew when it has changed, and shared by all requests meanwhile. `live_from` is where the
        feed stood before the run was read: what came later is in the feed from there on."""
        with self._making:
            changes, mark = self.feed.changes, self.feed.mark
            begun = time.monotonic()
            if self._made is None or self._made[1] != changes or begun > self._made[0]:
                made = self._make() | {"live_from": mark}
                now = time.monotonic()
                self._made = (now + max(_OLD_S, _OLD_MAKINGS * (now - begun)), changes, made)
            return self._made[2]

    def follow(self, interval_s: float) -> threading.Thread:
        """Has the feed look at intervals, in a thread of its own, until the server is closed."""

        def looking() -> None:
            while not self.closing.wait(interval_s):
                self.feed.look()

        thread = threading.Thread(target=looking, name="triage-feed", daemon=True)
        thread.start()
        return thread

    def server_close(self) -> None:
        self.closing.set()
        super().server_close()


class _Handler(BaseHTTPRequestHandler):
    server: TriageServer
    timeout = 30
    server_version = "sentinel"
    sys_version = ""

    def parse_request(self) -> bool:
        is_whole = super().parse_request()
        self.server.visitors.has_asked(self.client_address)
        return is_whole

    def send_error(self, code: int, *_: Any, **__: Any) -> None:
        """What is no GET: only who brings the token is told what is wrong with it."""
        self.close_connection, self.request_version = True, "HTTP/1.0"  # of HTTP/0.9 an answer would have no status
        admitted = self.server.token is None or ("headers" in vars(self) and self._may_see(""))
        self._refuse(HTTPStatus(code) if admitted else HTTPStatus.UNAUTHORIZED)

    def do_GET(self) -> None:
        try:
            self._get()
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            log.debug("a page went away")
        except (SentinelError, OSError) as error:
            log.warning("the page can't be made now: %s", error)
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE)

    def _get(self) -> None:
        url, token = urlsplit(self.path), self.server.token
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        given = parse_qs(url.query).get("token", [""])[0]
        if token is None and host not in ("127.0.0.1", "localhost", "[::1]"):  # a name elsewhere that resolves to here
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST)
        elif not self._may_see(given):
            self._refuse(HTTPStatus.UNAUTHORIZED)
        elif token is not None and given:
            self._keep_token(url.path, parse_qsl(url.query, keep_blank_values=True))
        elif url.path == "/":
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", page(self.server.document(), live=True))
        elif url.path == "/document.json":
            self._send(HTTPStatus.OK, "application/json", dump_json(self.server.document()))
        elif url.path == "/events":
            self._stream(parse_qs(url.query).get("after", [""])[0])
        else:
            self._refuse(HTTPStatus.NOT_FOUND)

    def _may_see(self, given: str) -> bool:
        token, expected = self.server.token, self.server.cookie
        if token is None or expected is None:
            return True
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(_COOKIE)
        except CookieError:
            cookie = None
        bearer = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        by_cookie = hmac.compare_digest(cookie.value.encode() if cookie is not None else b"", expected.encode())
        by_address = hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())
        return by_cookie or by_address or is_token(bearer.strip(), token)

    def _keep_token(self, path: str, query: list[tuple[str, str]]) -> None:
        """Moves the token from the address, which is copied and logged, into a cookie; the rest of the query stays."""
        only_tls = "" if self.server.certificate is None else " Secure;"
        here = path if path.startswith("/") and not path.startswith("//") else "/"
        rest = urlencode([(key, value) for key, value in query if key != "token"])
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Set-Cookie", f"{_COOKIE}={self.server.cookie}; HttpOnly;{only_tls} SameSite=Strict; Path=/")
        self.send_header("Location", f"{here}?{rest}" if rest else here)
        self._end_headers(0)

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode("utf-8", "backslashreplace")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self._end_headers(len(body))
        self.wfile.write(body)

    def _refuse(self, status: HTTPStatus) -> None:
        self._send(status, "text/plain; charset=utf-8", f"{status.value} {status.phrase}\n")

    def _end_headers(self, length: int | None) -> None:
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
            self._end_headers(None)
            self._send_messages(self.headers.get("Last-Event-ID") or mark)
        finally:
            self.server.streams.release()

    def _send_messages(self, mark: str) -> None:
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
