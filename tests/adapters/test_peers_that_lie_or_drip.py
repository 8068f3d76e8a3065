"""Servers that send a byte now and then, never end, or answer what was not asked: each costs one request, no more."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.adapters.paging.channels import Channel
from sentinel.adapters.paging.settings import Mail, Webhook
from sentinel.adapters.process_states import Announced
from sentinel.adapters.prometheus.api import Api, Door, TooMuch, series_in
from sentinel.adapters.prometheus.source import ScrapedRuns
from sentinel.vocabulary.errors import ConfigError, GrafanaUnavailable, PagerError, ScrapeError, TemporaryError
from sentinel.vocabulary.metrics import COUNTERS, PREFIX
from tests.adapters.deceivers import Drip, Flood, Spoils, deceiving, silent
from tests.adapters.pagers import page

WITHIN_S = 0.5
FAR_LESS_S = 20.0  # a loaded machine takes its time; without a deadline these never end
OK = b"HTTP/1.1 200 OK\r\n"
ANSWER: Any = {
    "status": "success",
    "data": {
        "resultType": "matrix",
        "result": [
            {
                "metric": {"__name__": f"sentinel_{name}", "run": "tr8", "attempt": "1"},
                "values": [[990.0, "1"], [995.0, "2"]],
            }
            for name in ("loss", "global_step", "skipped", *(counter.name.removeprefix(PREFIX) for counter in COUNTERS))
        ],
    },
}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")


@contextmanager
def soon() -> Iterator[None]:
    began_s = time.monotonic()
    yield
    assert time.monotonic() - began_s < FAR_LESS_S


DRIPS = {
    "its headers": Drip(OK + b"X-Long: "),
    "headers without end": Drip(OK, b"X-A: b\r\n"),
    "its body": Drip(OK + b"Content-Length: 1000000\r\n\r\n"),
    "a body without a length": Drip(OK + b"\r\n"),
    "a body in chunks": Drip(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
    "a chunk's size": Drip(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
    "what it refuses with": Drip(b"HTTP/1.1 503 Busy\r\nContent-Length: 1000000\r\n\r\n"),
    "a hundred continues": Flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "nothing": silent,
}


@pytest.mark.parametrize("spoils", DRIPS.values(), ids=DRIPS)
def test_a_prometheus_that_drips_costs_one_request_of_its_time(spoils: Spoils) -> None:
    with deceiving(spoils) as port, soon(), pytest.raises(ScrapeError):
        Api(Door(url=f"http://127.0.0.1:{port}", timeout_s=WITHIN_S)).scraped("{}", 0, 1)


def test_a_drip_is_told_as_what_it_is() -> None:
    with deceiving(DRIPS["its body"]) as port, pytest.raises(ScrapeError, match=r"no answer within 0\.5 s"):
        Api(Door(url=f"http://127.0.0.1:{port}", timeout_s=WITHIN_S)).scraped("{}", 0, 1)


@pytest.mark.parametrize("spoils", [silent, Drip(b"\x16\x03\x03\x40\x00", b"\x02")], ids=["silence", "a drip"])
def test_a_handshake_of_tls_has_the_same_deadline(spoils: Spoils) -> None:
    with deceiving(spoils) as port, soon(), pytest.raises(ScrapeError):
        Api(Door(url=f"https://127.0.0.1:{port}", timeout_s=WITHIN_S)).scraped("{}", 0, 1)


def test_a_body_without_end_is_read_up_to_a_size() -> None:
    with deceiving(Flood(OK + b"\r\n")) as port, pytest.raises(TooMuch):
        Api(Door(url=f"http://127.0.0.1:{port}", timeout_s=60)).scraped("{}", 0, 1)


@pytest.mark.parametrize("spoils", [*DRIPS.values()][:-2], ids=[*DRIPS][:-2])
def test_a_receiver_of_pages_that_drips_costs_one_try(spoils: Spoils) -> None:
    with deceiving(spoils) as port, soon():
        of = Webhook(url=f"http://127.0.0.1:{port}", timeout_s=WITHIN_S)
        with suppress(PagerError):  # of a body that drips nothing is read: the page has arrived
            Channel(of, {}).send(page())


@pytest.mark.parametrize("how", ["its body", "what it refuses with", "its headers"])
def test_a_grafana_that_drips_costs_one_try(how: str) -> None:
    pytest.importorskip("grafana_client", reason="not installed: pip install grafana-client")
    from sentinel.adapters.grafana.api import Grafana

    with (
        deceiving(DRIPS[how]) as port,
        soon(),
        Grafana(f"http://127.0.0.1:{port}", "token", timeout_s=WITHIN_S, tries=1) as there,
        pytest.raises(GrafanaUnavailable),
    ):
        there.dashboard("fleet")


SMTP_DRIPS = {
    "its greeting": Drip(b"220 ", listens=False),
    "lines of a greeting": Drip(b"", b"220-a\r\n", listens=False),
    "a greeting without end": Flood(b"", b"220-" + b"a" * 500 + b"\r\n", listens=False),
    "nothing": silent,
}


@pytest.mark.parametrize("security", ["none", "tls"])
@pytest.mark.parametrize("spoils", SMTP_DRIPS.values(), ids=SMTP_DRIPS)
def test_a_mail_server_that_drips_costs_one_try(spoils: Spoils, security: Any) -> None:
    with deceiving(spoils) as port, soon():
        of = Mail(host="127.0.0.1", port=port, security=security, sender="a@b", to=("c@d",), timeout_s=WITHIN_S)
        with pytest.raises(PagerError):
            Channel(of, {}).send(page())


def test_a_reply_without_end_of_a_mail_server_is_read_up_to_a_size() -> None:
    with deceiving(SMTP_DRIPS["a greeting without end"]) as port, soon():
        of = Mail(host="127.0.0.1", port=port, security="none", sender="a@b", to=("c@d",), timeout_s=600.0)
        with pytest.raises(PagerError):
            Channel(of, {}).send(page())


def test_a_password_that_smtp_does_not_carry_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("größer-als-gedacht")
    of = Mail(host="h", sender="a@b", to=("c@d",), user="me", password_file=tmp_path / "password")
    with pytest.raises(ConfigError, match="password: should be of ASCII"):
        Channel(of, {}).check()


@pytest.mark.parametrize("body", [b"sentinel_steps_total 1 }{\n", b"# TYPE a b c\n", b"\xff\xfe", b'a{b="c\n'])
def test_an_exporter_that_answers_nonsense_says_nothing(tmp_path: Path, body: bytes) -> None:
    says = Drip(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    with deceiving(says) as port:
        labels = {"run": "tr8", "attempt": "1"}
        (tmp_path / "scrape.json").write_text(json.dumps([{"targets": [f"127.0.0.1:{port}"], "labels": labels}]))
        assert Announced(tmp_path, within_s=5.0).answers_as(1) is None


@pytest.mark.parametrize(
    "text", ["[" * 60_000, '[{"targets": [1, 2], "labels": {}}]', '[{"labels": []}]', "\\ud800", "null"]
)
def test_an_announcement_that_is_none_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "scrape.json").write_text(text)
    assert Announced(tmp_path).answers_as(1) is None


class Told(Api):
    """Answers with these bytes, whatever is asked."""

    def __init__(self, body: bytes) -> None:
        super().__init__(Door(url="http://prometheus"))
        self._body = body

    def _query(self, **_: str) -> bytes:
        return self._body


def asked(body: bytes) -> None:
    """A poll of a run: records, or an error of that poll."""
    with suppress(TemporaryError):
        ScrapedRuns(Told(body), now=lambda: 1000.0).run("tr8", 100.0).new()


NESTED = b"[" * 200_000
WRONG = {
    "a time beyond all": json.dumps(ANSWER).replace("990.0", "1e300").encode(),
    "a time of the year 5000": json.dumps(ANSWER).replace("990.0", "95617584000").encode(),
    "a time that is no number": json.dumps(ANSWER).replace("990.0", '"NaN"').encode(),
    "an infinite time": json.dumps(ANSWER).replace("990.0", '"Infinity"').encode(),
    "a time with more digits than are read": json.dumps(ANSWER).replace("990.0", "9" * 5000).encode(),
    "arrays in arrays": b'{"status":"success","data":' + NESTED,
    "arrays in arrays beside the data": b'{"status":"success","warnings":' + NESTED,
    "no UTF-8": json.dumps(ANSWER).encode().replace(b"tr8", b"tr\xff"),
    "half of a pair": json.dumps(ANSWER).replace("tr8", "tr\\ud800").encode(),
    "nothing": b"",
}


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
def test_an_answer_that_is_wrong_is_an_error_of_that_poll(body: bytes) -> None:
    asked(body)
    if b"ud800" not in body:
        with pytest.raises(ValueError):  # noqa: PT011 - of many kinds
            series_in(body, 0.0, 1000.0)


def test_a_time_that_was_not_asked_about_does_not_become_the_newest() -> None:
    lies, honest = json.dumps(ANSWER).replace("995.0", "1e10").encode(), json.dumps(ANSWER).encode()
    api = Told(lies)
    run = ScrapedRuns(api, now=lambda: 1000.0).run("tr8", 100.0)
    with pytest.raises(ScrapeError):
        run.new()
    api._body = honest
    assert len(run.new()) > 0


extremes = st.sampled_from(
    [1e300, -1e300, math.inf, math.nan, -0.0, 2**64, -(2**63), 10**400, "NaN", "+Inf", "1e999", ""]
)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | extremes,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def spoiled(draw: st.DrawFn) -> bytes:
    """The answer with one of its values, at any depth, replaced by another; and sometimes with some of its bytes."""
    document = json.loads(json.dumps(ANSWER))
    at: Any = document
    while True:
        key = draw(st.sampled_from([*at] if isinstance(at, dict) else [*range(len(at))]))
        if not isinstance(at[key], dict | list) or not at[key] or draw(st.booleans()):
            break
        at = at[key]
    at[key] = draw(values)
    body = bytearray(json.dumps(document).encode())
    for _ in range(draw(st.integers(0, 2))):
        body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    return bytes(body)


@settings(max_examples=300, deadline=None)
@given(spoiled() | st.binary(max_size=50))
def test_no_answer_is_more_than_an_error_of_its_poll(body: bytes) -> None:
    asked(body)
