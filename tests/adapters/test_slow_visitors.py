"""Servers of sentinel's own with clients that hold sockets open, send a byte now and then, or ask for what is not."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.exposition.server import TlsCertificate, Token
from sentinel.adapters.exposition.visitors import ASKS_WITHIN_S, Visitors
from sentinel.adapters.journal import Journals
from sentinel.reports.triage.server import Feed, TriageServer
from sentinel.vocabulary.errors import ConfigError
from tests.adapters.pagers import certificate_for_localhost
from tests.support.scraping import scrape, serving

TOKENS = [
    "a;token;of=some,length",
    'a "quoted" token here',
    "größer-als-gedacht-ist-er",
    "ключ-от-всех-дверей",
    "a token of some words",
    "~!@#$%^&*()_+[]{}|<>?",
]


@contextmanager
def triage(tmp_path: Path, token: str | None) -> Iterator[TriageServer]:
    feed = Feed(Journals(tmp_path), tmp_path / "incidents.jsonl")
    server = TriageServer(("127.0.0.1", 0), feed, lambda: {"run": "tr8"}, token)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def said(port: int, sent: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(sent)
        return client.recv(1 << 16)


@contextmanager
def dripping(port: int, number: int) -> Iterator[list[socket.socket]]:
    """So many connections that never end their heads, and send a byte each 50 ms."""
    over = threading.Event()
    with ExitStack() as open_ones:
        made = []
        for _ in range(number):
            made.append(open_ones.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)))
            made[-1].sendall(b"GET /metrics HTTP/1.1\r\nX-Long: ")

        def drip() -> None:
            while not over.wait(0.05):
                for one in made:
                    with suppress(OSError):
                        one.send(b"a")

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            over.set()
            thread.join(30)


@pytest.mark.full
def test_slow_sockets_do_not_blind_the_metrics() -> None:
    with serving() as server, dripping(server.port, 64):
        for _ in range(3):
            assert scrape(server)[0] == 200


@pytest.mark.full
def test_slow_sockets_do_not_blind_the_page(tmp_path: Path) -> None:
    with triage(tmp_path, None) as server, dripping(server.server_address[1], 200):
        assert b"200 OK" in said(server.server_address[1], b"GET /document.json HTTP/1.1\r\nHost: localhost\r\n\r\n")


@pytest.mark.full
def test_a_head_has_one_deadline_however_its_bytes_are_spread() -> None:
    with serving() as server, dripping(server.port, 1) as (client,):
        began_s = time.monotonic()
        with suppress(ConnectionError):
            assert client.recv(1) == b""
        assert time.monotonic() - began_s < ASKS_WITHIN_S + 20


def test_an_address_ends_its_own_connections_and_those_that_have_asked_stay() -> None:
    now = [0.0]
    visitors = Visitors(12, answered_within_s=2.0, clock=lambda: now[0])
    pairs = [socket.socketpair() for _ in range(40)]

    def comes(number: int, address: str) -> bool:
        return visitors.comes(pairs[number][0], (address, number))

    def is_open(number: int) -> bool:
        pairs[number][1].setblocking(False)
        try:
            return pairs[number][1].recv(1) != b""
        except BlockingIOError:
            return True

    try:
        assert comes(0, "10.0.0.9")
        visitors.has_asked(("10.0.0.9", 0))
        assert comes(1, "10.0.0.8")
        assert all(comes(number, f"2001:db8::{number:x}") for number in range(2, 12))  # of one network
        assert [is_open(number) for number in range(12)] == [True, True, False, False] + [True] * 8
        assert all(comes(number, f"10.0.1.{number}") for number in range(12, 20))  # no room: the oldest that wait go
        assert is_open(0)
        assert not is_open(1)
        for number in range(20):
            visitors.has_asked((f"10.0.1.{number}", number))
        now[0] = 3.0
        visitors.end_late()
        assert not any(is_open(number) for number in (0, *range(12, 20)))
        now[0] = ASKS_WITHIN_S + 1
        visitors.end_late()
        assert not any(is_open(number) for number in range(20))
    finally:
        for number, pair in enumerate(pairs):
            visitors.goes(("10.0.0.9", number))
            for one in pair:
                one.close()


def test_there_is_no_room_where_all_are_being_answered() -> None:
    visitors = Visitors(1, answered_within_s=None)
    left, right = socket.socketpair()
    with left, right:
        assert visitors.comes(left, ("10.0.0.1", 1))
        visitors.has_asked(("10.0.0.1", 1))
        assert not visitors.comes(right, ("10.0.0.2", 1))
        visitors.goes(("10.0.0.1", 1))
        assert visitors.comes(right, ("10.0.0.2", 1))
        visitors.goes(("10.0.0.2", 1))


NO_REQUESTS = [b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"A" * 70_000 + b"\r\n\r\n", b"POST /x HTTP/1.1\r\n\r\n"]
NO_REQUESTS += [b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n"]


@pytest.mark.parametrize("sent", NO_REQUESTS)
def test_who_has_no_token_is_told_only_that(tmp_path: Path, sent: bytes) -> None:
    (tmp_path / "token").write_text(TOKENS[0])
    with serving(token_file=tmp_path / "token") as server:
        assert said(server.port, sent).split(b" ")[1] == b"401"
    with triage(tmp_path, TOKENS[0]) as page:
        assert said(page.server_address[1], sent).split(b" ")[1] == b"401"


@pytest.mark.parametrize("token", TOKENS)
def test_a_token_may_hold_whatever_a_header_can_carry(tmp_path: Path, token: str) -> None:
    (tmp_path / "token").write_text(token, encoding="utf-8")
    bearer = f"Bearer {token}".encode().decode("latin-1")
    with serving(token_file=tmp_path / "token") as server:
        assert scrape(server, Authorization=bearer)[0] == 200
        assert scrape(server, Authorization=bearer[:-1])[0] == 401
    with triage(tmp_path, token) as page:
        asked = b"GET /document.json%s HTTP/1.1\r\nHost: a\r\n%s\r\n"
        port: int = page.server_address[1]
        assert b"200 OK" in said(port, asked % (b"", f"Authorization: Bearer {token}\r\n".encode()))
        by_address = said(port, asked % (b"?token=" + http_quoted(token), b""))
        cookie = next(line for line in by_address.split(b"\r\n") if line.startswith(b"Set-Cookie: ")).partition(b" ")[2]
        assert token.encode() not in by_address
        assert b"200 OK" in said(port, asked % (b"", b"Cookie: " + cookie.partition(b"; ")[0] + b"\r\n"))
        assert b"401" in said(port, asked % (b"", b"Cookie: sentinel_triage=" + b"0" * 64 + b"\r\n"))


def http_quoted(text: str) -> bytes:
    return "".join(f"%{byte:02X}" for byte in text.encode()).encode()


@pytest.mark.parametrize("text", ["two lines of\na token here", "a token\x00with a NUL", "a token\x1b[31mof escapes"])
def test_a_token_that_no_header_carries_is_refused_at_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(ConfigError, match="should hold one line, of characters that can be seen"):
        Token(tmp_path / "token")


def test_a_pipe_in_a_certificates_place_is_no_certificate(tmp_path: Path) -> None:
    """At the start in a process of its own: one that waits for a pipe can't be ended from within."""
    certificate, key = certificate_for_localhost(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    code = (
        "from pathlib import Path\nfrom sentinel.adapters.exposition.server import TlsCertificate\n"
        "from sentinel.adapters.http_client import Unreachable, trusting\n"
        f"pipe = Path({str(tmp_path / 'pipe')!r})\n"
        "try:\n    trusting(pipe)\nexcept Unreachable as error:\n    print(error)\n"
        "TlsCertificate(pipe)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert "ca_file" in done.stdout
    assert "it is no regular file" in done.stdout
    assert "ConfigError" in done.stderr
    served = TlsCertificate(certificate, key)
    before = served.context()
    certificate.unlink()
    os.mkfifo(certificate)
    assert served.context() is before


def test_half_a_key_leaves_the_pair_before_it_in_force(tmp_path: Path) -> None:
    certificate, key = certificate_for_localhost(tmp_path)
    with serving(certificate=certificate, key=key) as server:
        whole, trusted = key.read_bytes(), tmp_path / "trusted.pem"
        trusted.write_bytes(certificate.read_bytes())
        key.write_bytes(whole[: len(whole) // 2])
        assert scrape(server, trusted)[0] == 200
        key.write_bytes(whole)
        assert scrape(server, trusted)[0] == 200


def test_an_answer_that_nobody_reads_frees_its_place(tmp_path: Path) -> None:
    with serving() as server:
        connection: Any = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        with closing(connection):
            connection.request("GET", "/metrics")
            visits = server._listener.visitors
            connection.getresponse().read()
        until = time.monotonic() + 60
        while visits._visits and time.monotonic() < until:
            time.sleep(0.02)
        assert not visits._visits
