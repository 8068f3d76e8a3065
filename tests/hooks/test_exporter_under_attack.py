"""The exporter with clients that hold sockets open, files that are pipes, and renewals that stop half-way."""

from __future__ import annotations

import base64
import os
import socket
import ssl
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.exporters import basic, keys, scrape, serving, trusting
from trainer_hooks.export.certificate import Certificate
from trainer_hooks.export.metrics_server import _MOST_OF_AN_ADDRESS
from trainer_hooks.regular_files import MOST_BYTES, read_regular

__all__ = ["keys"]  # a fixture


def test_slow_sockets_do_not_keep_a_scrape_out() -> None:
    with serving() as (exporter, failed), ExitStack() as slow:
        for _ in range(3 * _MOST_OF_AN_ADDRESS):
            client = slow.enter_context(socket.create_connection(("127.0.0.1", exporter.port), timeout=60))
            client.sendall(b"GET /metrics HTTP/1.1\r\nA: ")
        assert scrape(exporter)[0].status == 200
        assert failed == []


def test_one_address_closes_its_own_connections_and_none_of_another() -> None:
    with serving(address="0.0.0.0") as (exporter, _), ExitStack() as slow:  # noqa: S104
        other = slow.enter_context(socket.create_connection(("127.0.0.1", exporter.port), 60, ("127.0.0.2", 0)))
        other.sendall(b"GET /metrics HTTP/1.1\r\n")
        own = [
            slow.enter_context(socket.create_connection(("127.0.0.1", exporter.port), timeout=60))
            for _ in range(_MOST_OF_AN_ADDRESS + 4)
        ]
        assert own[0].recv(1) == b""
        other.sendall(b"\r\n")
        assert other.recv(1 << 16).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("sent", [b"GET /metrics\r\n\r\n", b"POST /x HTTP/1.1\r\n\r\n", b"X" * 99 + b"\r\n\r\n"])
def test_who_has_no_password_is_not_told_what_is_wrong_with_a_request(tmp_path: Path, sent: bytes) -> None:
    (tmp_path / "password").write_text("secret")
    with serving(user="me", password_file=tmp_path / "password") as (exporter, _):
        with socket.create_connection(("127.0.0.1", exporter.port), timeout=60) as client:
            client.sendall(sent)
            assert client.recv(1 << 16).split(b" ")[1] == b"401"
        head = b"Authorization: " + basic("me", "secret").encode()
        with socket.create_connection(("127.0.0.1", exporter.port), timeout=60) as client:
            client.sendall(sent.removesuffix(b"\r\n") + head + b"\r\n\r\n")
            assert client.recv(1 << 16).split(b" ")[1] in (b"400", b"404")


@pytest.mark.parametrize("password", ["a;b:c d", "größer", "ключ", "\t tabs \t"])
def test_a_password_may_be_of_any_characters(tmp_path: Path, password: str) -> None:
    (tmp_path / "password").write_text(password + "\n", encoding="utf-8")
    assert base64.b64decode(basic("me", password)[6:]).decode() == f"me:{password}"
    with serving(user="me", password_file=tmp_path / "password") as (exporter, _):
        assert scrape(exporter, Authorization=basic("me", password))[0].status == 200


@pytest.mark.parametrize("wrong", ["certificate without its key", "half a certificate", "half a key", "a pipe"])
def test_a_renewal_that_stops_half_way_leaves_the_pair_before_it_in_force(
    keys: Path, tmp_path: Path, wrong: str
) -> None:
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    certificate.write_bytes((keys / "first.pem").read_bytes())
    key.write_bytes((keys / "first.key").read_bytes())
    with serving(certificate=certificate, key=key) as (exporter, failed):
        assert scrape(exporter, tls=trusting(keys / "first.pem"))[0].status == 200
        second, second_key = (keys / "second.pem").read_bytes(), (keys / "second.key").read_bytes()
        if wrong == "a pipe":
            certificate.unlink()
            os.mkfifo(certificate)
        elif wrong == "half a key":
            certificate.write_bytes(second)
            key.write_bytes(second_key[: len(second_key) // 2])
        else:
            certificate.write_bytes(second if wrong == "certificate without its key" else second[: len(second) // 2])
        for _ in range(2):
            assert scrape(exporter, tls=trusting(keys / "first.pem"))[0].status == 200
        certificate.unlink()
        certificate.write_bytes(second)
        key.write_bytes(second_key)
        assert scrape(exporter, tls=trusting(keys / "second.pem"))[0].status == 200
        assert failed == []


@pytest.mark.parametrize("name", ["password_file", "certificate"])
def test_attach_does_not_wait_for_a_pipe_in_a_files_place(tmp_path: Path, name: str) -> None:
    """In a process of its own: one that waits for a pipe can't be ended from within."""
    os.mkfifo(tmp_path / "pipe")
    more = "user='me', " if name == "password_file" else ""
    code = (
        "from trainer_hooks.export.exporter import Exporter, ExporterSettings\n"
        "from trainer_hooks.export.step_collector import StepCollector\n"
        f"Exporter(StepCollector('tr8', 1), ExporterSettings({more}{name}={str(tmp_path / 'pipe')!r}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert "it is no regular file" in done.stderr


def test_a_file_is_read_up_to_a_size(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a" * (MOST_BYTES + 1))
    with pytest.raises(OSError, match="more than 1 MiB"):
        read_regular(tmp_path / "file")
    (tmp_path / "file").write_bytes(b"a" * MOST_BYTES)
    assert len(read_regular(tmp_path / "file")) == MOST_BYTES


def test_files_without_a_pair_are_refused_at_the_start(keys: Path) -> None:
    with pytest.raises(ssl.SSLError):
        Certificate(keys / "first.pem", keys / "second.key")
