"""The exporter by real scrapes: formats, TLS, passwords, clients that misbehave, and a thread that comes back."""

# ruff: noqa: S104 - what listens everywhere is what is tried

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from sentinel.vocabulary.sample import LayerVariance, Sample
from tests.adapters.pagers import until
from tests.support.exporters import basic, collector, keys, scrape, serving, trusting
from trainer_hooks.export import answers, metrics_server
from trainer_hooks.export.exporter import Exporter, ExporterSettings, announce
from trainer_hooks.export.metrics_server import Allowance

__all__ = ["keys"]  # a fixture
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
A_MEGABYTE = LayerVariance(
    attempt=1,
    global_step=1,
    time_unix_s=1.0,
    layers=tuple(f"{'a_long_name.' * 50}{n}" for n in range(1_000)),
    adam_variance_l1=(1.0,) * 1_000,
    adam_variance_max=(1.0,) * 1_000,
)


def values(text: bytes) -> dict[str, float]:
    return {s.name: s.value for family in read_text(text.decode()) for s in family.samples}


def test_it_speaks_text_openmetrics_and_gzip() -> None:
    with serving() as (exporter, _):
        plain, text = scrape(exporter)
        assert plain.getheader("Content-Type", "").startswith("text/plain; version=0.0.4")
        assert values(text)["sentinel_loss"] == 7.0
        answer, text = scrape(exporter, Accept=OPENMETRICS)
        assert answer.getheader("Content-Type", "").startswith("application/openmetrics-text; version=1.0.0")
        assert "sentinel_steps" in {family.name for family in read_openmetrics(text.decode())}
        answer, packed = scrape(exporter, Accept_Encoding="gzip")
        assert answer.getheader("Content-Encoding") == "gzip"
        assert values(gzip.decompress(packed))["sentinel_loss"] == 7.0
        _, text = scrape(exporter, "/metrics?name[]=sentinel_loss")
        assert values(text) == {"sentinel_loss": 7.0}


def test_steps_show_in_the_scrapes_that_follow_them() -> None:
    steps = collector()
    with serving(steps) as (exporter, _):
        scrape(exporter)
        steps.push(Sample(attempt=1, global_step=8, time_unix_s=2.0, loss=8.0))
        until(lambda: values(scrape(exporter)[1])["sentinel_loss"] == 8.0)  # an answer may be kept for a moment


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", b"404"),
        (b"GET / HTTP/1.0\r\n\r\n", b"200"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", b"405"),
        (b"\x16\x03\x01 a TLS hello to a plain port\r\n\r\n", b"400"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nAccept: text/plain;version=1.0.0\r\n X-Smuggled: 1\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=none\r\n\r\n", b"200"),
        (b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", b"431"),
    ],
)
def test_what_is_no_scrape_gets_an_answer_that_says_so(sent: bytes, status: bytes) -> None:
    with serving() as (exporter, failed):
        with socket.create_connection(("127.0.0.1", exporter.port), timeout=60) as client:
            client.sendall(sent)
            assert client.recv(1 << 16).split(b" ")[1] == status
        scrape(exporter)
        assert failed == []


def test_nothing_listens_beyond_this_machine_unless_asked_to() -> None:
    with serving() as (exporter, _):
        listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        assert f"0100007F:{exporter.port:04X}" in listening
        assert f"00000000:{exporter.port:04X}" not in listening


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "::1", "localhost", ""])
def test_it_listens_where_it_is_asked_to(address: str) -> None:
    with serving(address=address) as (exporter, _):
        assert scrape(exporter)[0].status == 200
        if address == "::":  # and IPv4 too
            socket.create_connection(("127.0.0.1", exporter.port), timeout=60).close()


def test_a_taken_port_is_replaced_by_a_free_one_and_said(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as (first, _), serving(port=first.port) as (second, _):
        assert second.port != first.port
        assert scrape(second)[0].status == 200
        (said,) = caplog.messages
        assert str(first.port) in said
        assert str(second.port) in said


# TLS and passwords


def test_with_a_certificate_it_speaks_https_and_nothing_else(keys: Path) -> None:
    with serving(certificate=keys / "first.pem", key=keys / "first.key") as (exporter, failed):
        answer, text = scrape(exporter, tls=trusting(keys / "first.pem"))
        assert answer.status == 200
        assert values(text)["sentinel_loss"] == 7.0
        with pytest.raises(ssl.SSLCertVerificationError):
            scrape(exporter, tls=trusting(keys / "second.pem"))
        with pytest.raises((http.client.BadStatusLine, ConnectionError)):
            scrape(exporter)
        assert scrape(exporter, tls=trusting(keys / "first.pem"))[0].status == 200
        assert failed == []


def test_https_is_announced_by_the_scheme(keys: Path, tmp_path: Path) -> None:
    with serving(certificate=keys / "first.pem", key=keys / "first.key", announce="node3") as (exporter, _):
        announce(exporter, tmp_path / "scrape.json", {"run": "tr8"})
        (group,) = json.loads((tmp_path / "scrape.json").read_text())
    assert group["labels"] == {"run": "tr8", "__scheme__": "https"}


def test_a_renewed_certificate_is_taken_up(keys: Path, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes((keys / "first.pem").read_bytes() + (keys / "first.key").read_bytes())
    with serving(certificate=both) as (exporter, _):
        assert scrape(exporter, tls=trusting(keys / "first.pem"))[0].status == 200
        both.write_text("half-way through a renewal")
        os.utime(both, ns=(1, 1))
        assert scrape(exporter, tls=trusting(keys / "first.pem"))[0].status == 200
        both.write_bytes((keys / "second.pem").read_bytes() + (keys / "second.key").read_bytes())
        os.utime(both, ns=(2, 2))
        assert scrape(exporter, tls=trusting(keys / "second.pem"))[0].status == 200


def test_only_who_knows_the_password_is_answered(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("pässword:1\n", encoding="utf-8")
    with serving(user="prometheus", password_file=tmp_path / "password") as (exporter, _):
        assert scrape(exporter, Authorization=basic("prometheus", "pässword:1"))[0].status == 200
        for wrong in (
            basic("prometheus", "pässword:2"),
            basic("prometheus", "pässword:1\n"),
            basic("prometheus", ""),
            basic("somebody", "pässword:1"),
            basic("prometheus", "pässword:1").replace("Basic", "Bearer"),
            "Basic not base64",
            "Basic",
            "",
        ):
            answer, body = scrape(exporter, Authorization=wrong)
            assert answer.status == 401, wrong
            assert answer.getheader("WWW-Authenticate", "").startswith("Basic ")
            assert b"sentinel_loss" not in body
        assert scrape(exporter)[0].status == 401


def test_the_password_is_in_no_log_and_no_repr(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    (tmp_path / "password").write_text("hunter2")
    settings = ExporterSettings(user="prometheus", password_file=tmp_path / "password")
    with serving(user="prometheus", password_file=tmp_path / "password") as (exporter, _):
        scrape(exporter, Authorization=basic("prometheus", "hunter2"))
        scrape(exporter, Authorization=basic("prometheus", "hunter3"))
        told = caplog.text + repr(settings) + repr(exporter) + repr(exporter._server._answer)
    assert "hunter" not in told
    assert basic("prometheus", "hunter2").split()[1] not in told


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("encrypted", [False, True])
def test_a_password_that_would_travel_in_the_clear_is_said_once(
    address: str, encrypted: bool, keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "password").write_text("hunter2")
    tls = {"certificate": keys / "first.pem", "key": keys / "first.key"} if encrypted else {}
    with serving(address=address, user="prometheus", password_file=tmp_path / "password", **tls):
        assert len(caplog.messages) == (address == "0.0.0.0" and not encrypted)


def test_settings_that_are_wrong_are_told_at_once_and_leave_no_thread(keys: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    wrong: list[dict[str, object]] = [
        {"certificate": "/no/such.pem"},
        {"certificate": keys / "first.pem"},  # no key in it
        {"certificate": keys / "first.pem", "key": keys / "second.key"},
        {"certificate": keys / "first.pem", "key": keys / "encrypted.key"},  # and nobody is asked at the terminal
        {"key": keys / "first.key"},
        {"user": "prometheus"},
        {"password_file": tmp_path / "empty"},
        {"user": "prometheus", "password_file": "/no/such"},
        {"user": "prometheus", "password_file": tmp_path / "empty"},
        {"address": "203.0.113.1"},
        {"address": "no-such-host.invalid"},
        {"port": 70_000},
    ]
    before = threading.active_count()
    for settings in wrong:
        with pytest.raises((OSError, ValueError, OverflowError)):
            Exporter(collector(), ExporterSettings(**settings))  # type: ignore[arg-type]
    assert threading.active_count() == before


# Clients that misbehave


@pytest.mark.full
def test_a_thousand_silent_connections_hold_up_nobody() -> None:
    with ExitStack() as stack, serving() as (exporter, failed):
        silent = []
        for n in range(1_000):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", exporter.port))
            silent.append(client)
            if n % 2:
                with suppress(OSError):
                    client.send(b"GET /metrics HTTP/1.1\r\nA: ")  # and then nothing
        for _ in range(3):
            assert scrape(exporter)[0].status == 200
        assert len(exporter._server._connections) <= 64
        assert failed == []


@pytest.mark.full
def test_silent_connections_hold_up_nobody_with_tls_either(keys: Path) -> None:
    with ExitStack() as stack, serving(certificate=keys / "first.pem", key=keys / "first.key") as (exporter, failed):
        for _ in range(200):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", exporter.port))
        assert scrape(exporter, tls=trusting(keys / "first.pem"))[0].status == 200
        assert len(exporter._server._connections) <= 64
        assert failed == []


def test_clients_that_never_read_hold_up_nobody_and_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    patience_s = iter([1.0] * 5)  # of theirs; who reads has all the time that it needs

    def comes(*given: Any) -> Coroutine[Any, Any, None]:
        monkeypatch.setattr(answers, "_CONNECTION_S", next(patience_s, 60.0))
        return answers.converse(*given)

    monkeypatch.setattr(metrics_server, "converse", comes)
    with ExitStack() as stack, serving(collector(lambda: A_MEGABYTE)) as (exporter, failed):
        for _ in range(5):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", exporter.port))
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        answer, text = scrape(exporter)
        assert answer.status == 200
        assert len(text) > 1_000_000
        until(lambda: not exporter._server._connections)
        assert failed == []


def test_a_head_without_an_end_is_not_kept() -> None:
    with serving() as (exporter, failed), socket.create_connection(("127.0.0.1", exporter.port), timeout=60) as client:
        with pytest.raises(ConnectionError):
            client.sendall((b"A: " + b"b" * 1000 + b"\r\n") * 10_000)
        assert failed == []


def test_a_storm_starves_nobody() -> None:
    with serving() as (exporter, failed):
        done = threading.Event()

        def storm(_: int) -> int:
            answers = 0
            while not done.is_set() or not answers:
                answers += scrape(exporter)[0].status == 200
            return answers

        with ThreadPoolExecutor(8) as pool:
            counts = pool.map(storm, range(8))
            time.sleep(1)
            done.set()
        assert min(counts) > 0
        assert failed == []


@given(costs=st.lists(st.floats(1e-5, 8e-3), min_size=1, max_size=300), quiet=st.floats(0, 100))
def test_a_storm_gets_a_share_of_the_machine_and_no_more(costs: list[float], quiet: float) -> None:
    """1 % of the time, and what it had saved up in quiet, however much a scrape costs."""
    allowance, spent, at = Allowance(0.0, 0.0), 0.0, quiet
    for cost in costs:
        spent, at = spent + cost, at + cost
        at += allowance.wait_s(spent, at)
    assert spent <= 0.01 + 0.01 * (at - quiet) + 1e-9


# Errors of our own


def test_an_error_while_rendering_is_a_500_that_is_told_and_the_next_scrape_is_well() -> None:
    ill = True

    def layers() -> None:
        if ill:
            raise RuntimeError("no layers today")

    with serving(collector(layers)) as (exporter, failed):
        assert scrape(exporter)[0].status == 500
        assert [str(error) for error in failed] == ["no layers today"]
        ill = False
        assert scrape(exporter)[0].status == 200
        assert len(failed) == 1


def stop_the_loop(exporter: Exporter) -> None:
    loop = exporter._server._loop
    assert loop is not None
    loop.call_soon_threadsafe(loop.stop)


def break_the_socket(exporter: Exporter) -> None:
    exporter._server._listening.shutdown(socket.SHUT_RDWR)


def close_its_descriptor(exporter: Exporter) -> None:
    os.close(exporter._server._listening.fileno())


@pytest.mark.parametrize("fault", [stop_the_loop, break_the_socket, close_its_descriptor])
def test_a_thread_that_dies_comes_back_at_the_same_port(
    fault: Callable[[Exporter], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "_CHECKS_ITSELF_S", 0.2)
    with serving() as (exporter, failed):
        assert scrape(exporter)[0].status == 200
        fault(exporter)
        until(lambda: failed)
        until(lambda: scrape_or_none(exporter) == 200)
        assert len(failed) == 1
        assert not isinstance(failed[0], asyncio.CancelledError)


def test_a_descriptor_that_is_somebody_elses_by_now_is_not_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "_CHECKS_ITSELF_S", 0.2)
    with serving() as (exporter, failed):
        number = exporter._server._listening.fileno()
        with (tmp_path / "theirs").open("wb") as file:
            os.dup2(file.fileno(), number)
        until(lambda: failed and scrape_or_none(exporter) == 200)
        os.write(number, b"still open")
        os.close(number)
        assert (tmp_path / "theirs").read_bytes() == b"still open"


def scrape_or_none(exporter: Exporter) -> int | None:
    try:
        return scrape(exporter)[0].status
    except OSError:
        return None


def test_it_closes_while_it_is_being_scraped() -> None:
    exporter = Exporter(collector(), ExporterSettings())
    done = threading.Event()

    def storm() -> None:
        while not done.is_set():
            try:
                scrape(exporter)
            except (OSError, http.client.HTTPException):
                done.wait(0.01)

    with ThreadPoolExecutor(8) as pool:
        for _ in range(8):
            pool.submit(storm)
        time.sleep(0.3)
        exporter.close()
        done.set()
    assert not exporter._server._thread.is_alive()
    with socket.create_server(("127.0.0.1", exporter.port)):  # the port is free
        pass


def test_a_fork_does_not_keep_the_port() -> None:
    with serving() as (exporter, _):
        (ready, go), (told, tell) = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            os.write(tell, b"x")  # it is past what runs in every fork
            os.read(ready, 1)
            os._exit(0)
        os.read(told, 1)
        scrape(exporter)
    try:
        with socket.create_server(("127.0.0.1", exporter.port)):
            pass
    finally:
        os.write(go, b"x")
        os.waitpid(child, 0)
        for end in (ready, go, told, tell):
            os.close(end)
