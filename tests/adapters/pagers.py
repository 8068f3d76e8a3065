"""Real receivers of pages on loopback: an HTTP server that can be made to misbehave, and a mail server."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sentinel.plan.alerts.page import Page

Answer = Callable[[BaseHTTPRequestHandler], None]


def page(time_unix_s: float | None = None, incident: str = "incident-1", **facts: Any) -> Page:
    given: dict[str, Any] = {
        "run": "tr8",
        "incident": incident,
        "topic": "divergence",
        "severity": "critical",
        "summary": "stopped, a person is needed: rollback budget of 3 is spent",
        "details": {"attempt": 1},
        "runbook": "docs/PAGING.md#divergence",
        "time_unix_s": time.time() if time_unix_s is None else time_unix_s,
    }
    return Page(**given | facts)


def until(true: Callable[[], Any], *, within_s: float = 120) -> None:
    """Waits for it. So long only a machine takes on which nothing goes on any more."""
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def free_port() -> int:
    """One that nobody has, nor is given before it is bound: the kernel's own, for who asks for any, lie above these.

    No test's seed chooses it: two workers that have just seeded `random` alike would be given the same one.
    """
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with contextlib.suppress(OSError), socket.socket() as free:
            free.bind(("", port))
            _PORTS.remove(port)
            return port


def _ports_of_this_worker() -> list[int]:
    """Of four workers each has its own; with more, two share theirs."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return list(range(10_000 + worker % 4 * 2_500, 12_500 + worker % 4 * 2_500))


_PORTS = _ports_of_this_worker()


def says(code: int, **headers: str) -> Answer:
    """Answers with a code."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(code)
        for key, value in headers.items():
            request.send_header(key.replace("_", "-"), value)
        request.send_header("Content-Length", "0")
        request.end_headers()

    return answer


def hangs(until_set: threading.Event) -> Answer:
    """Takes the request and says nothing."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        until_set.wait(60)
        request.close_connection = True

    return answer


def dribbles(until_set: threading.Event) -> Answer:
    """Sends its headers one byte after another, for ever."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.close_connection = True
        try:
            request.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
            while not until_set.wait(0.05):
                request.wfile.write(b"a")
        except OSError:
            return

    return answer


@dataclass
class Receiver:
    """What it got, and what it answers next."""

    url: str
    server: ThreadingHTTPServer
    requests: list[dict[str, Any]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    """Taken one after another; then always 200."""

    always: Answer = field(default_factory=lambda: says(200))
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def documents(self) -> list[Any]:
        return [json.loads(request["body"]) for request in self.requests]


@contextmanager
def receiver(port: int = 0, certificate: tuple[Path, Path] | None = None) -> Iterator[Receiver]:
    """A web server that keeps what is posted."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.requests.append(self.told("POST") | {"body": body})
            (got.answers.pop(0) if got.answers else got.always)(self)

        def do_GET(self) -> None:
            got.requests.append(self.told("GET") | {"body": b"null"})
            says(200)(self)

        def told(self, method: str) -> dict[str, Any]:
            at = {"method": method, "path": self.path, "time_unix_s": time.time()}
            return at | {"headers": dict(self.headers)}

        def log_message(self, *_: Any) -> None:
            return

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:  # a client that gave up is what is tested here
            return

    server = Server(("127.0.0.1", port), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    scheme = "http" if certificate is None else "https"
    got = Receiver(f"{scheme}://localhost:{server.server_port}/page", server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield got
    finally:
        got.over.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


def certificate_for_localhost(folder: Path) -> tuple[Path, Path]:
    """A certificate of our own making, and its key."""
    certificate, key = folder / "localhost.pem", folder / "localhost.key"
    line = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-days", "2", "-out", str(certificate), "-keyout", str(key)]
    subprocess.run([*line, *names, *files], check=True, capture_output=True, timeout=60)
    return certificate, key


@dataclass
class Mailbox:
    """What the mail server got, and who logged in."""

    port: int
    mails: list[EmailMessage] = field(default_factory=list)
    logins: list[tuple[str, str]] = field(default_factory=list)
    recipients: list[list[str]] = field(default_factory=list)
    refuse: set[str] = field(default_factory=set)


@contextmanager
def mail_server(
    certificate: tuple[Path, Path] | None, *, login: tuple[str, str] | None = None, tls: bool = False
) -> Iterator[Mailbox]:
    """A real SMTP server; with a certificate it offers STARTTLS, or speaks TLS from the first byte."""
    from email import message_from_bytes, policy

    from aiosmtpd.controller import Controller
    from aiosmtpd.smtp import AuthResult, LoginPassword

    box = Mailbox(free_port())
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)

    class Handler:
        async def handle_RCPT(self, _s: Any, _session: Any, envelope: Any, address: str, _options: Any) -> str:  # noqa: N802
            if address in box.refuse:
                return "550 nobody here"
            envelope.rcpt_tos.append(address)
            return "250 OK"

        async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
            box.mails.append(message_from_bytes(envelope.content, policy=policy.default))  # type: ignore[arg-type]
            box.recipients.append(list(envelope.rcpt_tos))
            return "250 OK"

    def authenticate(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        assert isinstance(data, LoginPassword)
        given = (data.login.decode(), data.password.decode())
        box.logins.append(given)
        return AuthResult(success=given == login, handled=False)

    options: dict[str, Any] = {}
    if login is not None:
        options |= {"authenticator": authenticate, "auth_required": not tls, "auth_require_tls": not tls}
    if context is not None:
        options |= {"ssl_context": context} if tls else {"tls_context": context, "require_starttls": True}
    controller = Controller(Handler(), hostname="localhost", port=box.port, ready_timeout=60, **options)
    controller.start()
    try:
        yield box
    finally:
        controller.stop()


def nobody_listens() -> str:
    return f"http://localhost:{free_port()}/page"


NO_PROXY = {"no_proxy": "localhost,127.0.0.1", "NO_PROXY": "localhost,127.0.0.1"}


def environment(**more: str) -> dict[str, str]:
    return dict(os.environ) | NO_PROXY | more
