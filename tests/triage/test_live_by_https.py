"""The live page beyond this machine: by HTTPS, with the token in a cookie that travels by HTTPS alone."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sentinel.adapters.exposition.server import TlsCertificate
from sentinel.adapters.journal import Journals
from sentinel.cli.ui import certificate_of
from sentinel.reports.triage.server import Feed, TriageServer
from sentinel.vocabulary.errors import ConfigError
from tests.adapters.pagers import certificate_for_localhost

TOKEN = "a-token-of-some-length"  # noqa: S105 - of these tests alone


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return certificate_for_localhost(tmp_path)


@pytest.fixture
def server(keys: tuple[Path, Path], tmp_path: Path) -> Iterator[TriageServer]:
    feed = Feed(Journals(tmp_path), tmp_path / "incidents.jsonl")
    made = TriageServer(("127.0.0.1", 0), feed, lambda: {"run": "tr8"}, TOKEN, TlsCertificate(*keys))
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join(10)


def asked(
    server: TriageServer, path: str, authority: Path | None, **headers: str
) -> tuple[http.client.HTTPResponse, str]:
    port = int(server.server_address[1])
    connection: http.client.HTTPConnection
    if authority is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    else:
        trusting = ssl.create_default_context(cafile=str(authority))
        connection = http.client.HTTPSConnection("localhost", port, timeout=30, context=trusting)
    with closing(connection):
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer, answer.read().decode()


def test_who_has_the_token_is_answered_by_https_and_by_nothing_else(
    server: TriageServer, keys: tuple[Path, Path]
) -> None:
    assert asked(server, "/document.json", keys[0])[0].status == 401
    answer, text = asked(server, "/document.json", keys[0], Authorization=f"Bearer {TOKEN}")
    assert (answer.status, "tr8" in text) == (200, True)
    with pytest.raises((OSError, http.client.HTTPException)):
        asked(server, "/document.json", None, Authorization=f"Bearer {TOKEN}")


def test_the_cookie_travels_by_https_alone(server: TriageServer, keys: tuple[Path, Path]) -> None:
    answer, _ = asked(server, f"/?token={TOKEN}", keys[0])
    assert answer.status == 303
    assert "Secure" in answer.getheader("Set-Cookie", "").split("; ")


def test_who_shakes_no_hands_holds_up_nobody(server: TriageServer, keys: tuple[Path, Path]) -> None:
    silent = [socket.create_connection(("127.0.0.1", server.server_address[1])) for _ in range(8)]
    assert asked(server, "/document.json", keys[0], Authorization=f"Bearer {TOKEN}")[0].status == 200
    for connection in silent:
        connection.close()


def test_a_key_without_its_certificate_is_refused(keys: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigError, match="--certificate"):
        certificate_of(None, keys[1])
    assert certificate_of(None, None) is None
