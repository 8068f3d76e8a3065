"""Answers scrapes in threads beside the watch, which never waits for them; by HTTPS and with a token where set."""

from __future__ import annotations

import errno
import hmac
import ipaddress
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from sentinel import bounded
from sentinel.adapters.exposition.settings import Metrics
from sentinel.adapters.exposition.visitors import ASKS_WITHIN_S, Visitors
from sentinel.vocabulary.errors import ConfigError

log = logging.getLogger(__name__)

SHORTEST_TOKEN = 16  # characters of a token: a shorter one could be guessed by who may try for days


class TlsCertificate:
    """Read when it is made and whenever a file changes; while what is there can't be used, the one before serves."""

    def __init__(self, certificate: Path, key: Path | None = None) -> None:
        """`key` may be in the certificate's file. ConfigError, which names the file, where they can't be used."""
        self._certificate, self._key = certificate, key or certificate
        self._lock = threading.Lock()
        self._complaint = ""
        self._tried = self._written()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """For the next connection: TLS 1.2 and up."""
        with self._lock:
            try:
                written = self._written()
                if written != self._tried:
                    self._tried = written
                    self._context = self._load()
                self._complaint = ""
            except ConfigError as error:  # half-way through a renewal, it may be: the next change is tried again
                if str(error) != self._complaint:
                    log.warning("%s; the one before it still serves", error)
                self._complaint = str(error)
            return self._context

    def _written(self) -> tuple[int, ...]:
        found: list[int] = []
        for what, path in (("certificate", self._certificate), ("key", self._key)):
            try:
                status = path.stat()  # a change within reading shows as another status at the next look
            except OSError as error:
                raise ConfigError(f"{what}: {path} can't be read: {error.strerror}") from error
            found += (status.st_mtime_ns, status.st_size, status.st_ino)
        return tuple(found)

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        named = f"certificate: {self._certificate}"
        try:
            with bounded.private_copy(self._certificate) as certificate, bounded.private_copy(self._key) as key:
                context.load_cert_chain(certificate, key, password=lambda: b"")  # or OpenSSL asks the terminal
        except ssl.SSLError as error:
            why = f": {error.reason}" if error.reason else ""
            raise ConfigError(f"{named} and the key {self._key} can't be used together{why}") from error
        except OSError as error:
            raise ConfigError(f"{named} or its key {self._key} can't be read: {error.strerror}") from error
        return context


class Token:
    """The bearer token that a scrape has to bring, from a file; it is in no log, no error and no repr. Read for each
    request, so that a changed one counts at once; no request is answered while it can't be read."""

    def __init__(self, path: Path) -> None:
        """ConfigError, which names the file, where it holds none."""
        self._path = path
        self._complaint = ""
        self._read()

    def admits(self, authorization: str | None) -> bool:
        """Whether the header brings it, found out in a time that does not depend on where it is wrong."""
        try:
            expected = self._read()
        except ConfigError as error:
            if str(error) != self._complaint:
                log.warning("/metrics refuses every request: %s", error)
            self._complaint = str(error)
            return False
        self._complaint = ""
        scheme, _, given = (authorization or "").partition(" ")
        return is_token(given.strip(), expected) and scheme.lower() == "bearer"

    def _read(self) -> str:
        named = f"token_file: {self._path}"
        try:
            token = bounded.read_secret(self._path)
        except OSError as error:
            raise ConfigError(f"{named} can't be read: {error.strerror}") from error
        if len(token) < SHORTEST_TOKEN:
            raise ConfigError(f"{named} should hold {SHORTEST_TOKEN} characters or more")
        return token


def is_token(given: str, expected: str) -> bool:
    """Whether a header brings it, in a time that does not depend on where it is wrong. `given` is as http.server reads
    a header, a character for each byte; the token is sent as UTF-8."""
    return hmac.compare_digest(given.encode("latin-1", "replace"), expected.encode())


App = Callable[..., Iterable[bytes]]  # a WSGI application: (environment, start_response) -> the answer's body


_MOST_VISITORS = 32
_ANSWERED_WITHIN_S = 15.0  # a request and its answer: who never reads is let go


class _Handler(WSGIRequestHandler):
    server: _Listener
    timeout = _ANSWERED_WITHIN_S
    server_version = "sentinel"
    sys_version = ""

    def parse_request(self) -> bool:
        is_whole = super().parse_request()
        self.server.visitors.has_asked(self.client_address)
        return is_whole

    def send_error(self, code: int, *_: Any, **__: Any) -> None:
        """What is no request: only who brings the token is told what is wrong with it."""
        status = HTTPStatus(code) if self.server.token is None else HTTPStatus.UNAUTHORIZED
        text = f"{status.value} {status.phrase}"
        self.close_connection = True
        self.wfile.write(f"HTTP/1.0 {text}\r\nContent-Type: text/plain\r\n\r\n{text}\n".encode())

    def log_message(self, *_: Any) -> None:
        """Scrapes are no news."""

    def handle(self) -> None:
        try:
            super().handle()
        except OSError as error:  # it went away half-way, or was silent for too long
            log.debug("a scrape was broken off: %s", error)


class SecuredServer(ThreadingMixIn):
    """A server of the standard library, with HTTPS where it has a certificate. Who is slow to shake hands or to ask
    holds up nobody: that is done in the request's own thread, and not for long."""

    daemon_threads = True
    block_on_close = False
    certificate: TlsCertificate | None = None
    visitors: Visitors

    def service_actions(self) -> None:
        self.visitors.end_late()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.visitors.comes(request, client_address):
            self.shutdown_request(request)  # type: ignore[attr-defined]
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # there can be no more threads just now
            self.visitors.goes(client_address)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.visitors.goes(client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        finish = super().finish_request  # type: ignore[misc]  # of the server that this is mixed into
        if self.certificate is None:
            finish(request, client_address)
            return
        request.settimeout(ASKS_WITHIN_S)
        with self.certificate.context().wrap_socket(request, server_side=True) as secure:
            finish(secure, client_address)

    def handle_error(self, *_: Any) -> None:
        log.debug("a request could not be answered", exc_info=True)


class _Listener(SecuredServer, WSGIServer):
    def __init__(
        self,
        family: socket.AddressFamily,
        place: Any,
        app: App,
        certificate: TlsCertificate | None,
        token: Token | None,
    ) -> None:
        self.address_family = family
        self.certificate = certificate
        self.token = token
        self.visitors = Visitors(_MOST_VISITORS, answered_within_s=_ANSWERED_WITHIN_S)
        super().__init__(place, _Handler)
        self.set_app(app if token is None else _guarded(app, token))

    def server_bind(self) -> None:
        """Without asking DNS for the host's own name, which may take its time."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self.address_family == socket.AF_INET6 and self.server_address[0] == "::":
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class Server:
    """Serves the application as the `[metrics]` table has it; where the port is taken, at any free one. OSError;
    ConfigError where the certificate or the token can't be had: it is not served without them."""

    def __init__(self, app: App, settings: Metrics) -> None:
        certificate = None if settings.certificate is None else TlsCertificate(settings.certificate, settings.key)
        token = None if settings.token_file is None else Token(settings.token_file)
        found = socket.getaddrinfo(
            settings.address or None, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, place = found[0][0], found[0][4]
        try:
            self._listener = _Listener(family, place, app, certificate, token)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            self._listener = _Listener(family, (place[0], 0, *place[2:]), app, certificate, token)
        self.address, self.port = str(self._listener.server_address[0]), int(self._listener.server_address[1])
        if settings.port not in (0, self.port):
            log.warning("port %d is taken, so /metrics of sentinel itself is at port %d", settings.port, self.port)
        self._thread = threading.Thread(
            target=self._listener.serve_forever, kwargs={"poll_interval": 0.2}, name="sentinel-metrics", daemon=True
        )
        self._thread.start()
        if token is not None and certificate is None and not is_loopback(self.address):
            log.warning("the token of /metrics travels in the clear: give it a certificate as well")

    def close(self) -> None:
        """Frees the port; who is being answered is not waited for."""
        self._listener.shutdown()
        self._listener.server_close()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address: as a bound socket gives it, or as it is configured."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _guarded(app: App, token: Token) -> App:
    def answer(environment: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if token.admits(environment.get("HTTP_AUTHORIZATION")):
            return app(environment, start_response)
        status = f"{HTTPStatus.UNAUTHORIZED.value} {HTTPStatus.UNAUTHORIZED.phrase}"
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("WWW-Authenticate", 'Bearer realm="sentinel"')]
        start_response(status, headers)
        return [f"{status}\n".encode()]

    return answer
