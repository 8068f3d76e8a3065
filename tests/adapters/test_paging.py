"""Webhook, mail and command against real receivers, well and misbehaving; the outbox; what a thread does about it."""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from sentinel.adapters.paging import settings
from sentinel.adapters.paging.channels import Channel
from sentinel.adapters.paging.delivery import Delivery, Outbox
from sentinel.plan.alerts.page import Page
from sentinel.vocabulary.errors import ConfigError, FilesystemUnavailable, PagerError
from tests.adapters.pagers import (
    NO_PROXY,
    Receiver,
    certificate_for_localhost,
    dribbles,
    free_port,
    hangs,
    mail_server,
    nobody_listens,
    page,
    receiver,
    says,
    until,
)

TOKEN = "a-token-that-nobody-may-see"  # noqa: S105 - the one that is looked for


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in NO_PROXY.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def web() -> Iterator[Receiver]:
    with receiver() as got:
        yield got


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate_for_localhost(tmp_path_factory.mktemp("tls"))


def webhook(url: str, environ: dict[str, str] | None = None, **keys: Any) -> Channel:
    return Channel(settings.Webhook(url=url, **{"timeout_s": 60.0} | keys), environ or {})


def test_a_webhook_gets_the_page_as_json_with_a_text_for_chats(web: Receiver) -> None:
    told = page()
    webhook(web.url).send(told)
    (document,) = web.documents
    assert document == told.to_json()
    assert document["text"].startswith("[critical] tr8 incident-1: stopped, a person is needed")
    assert (document["key"], document["status"]) == ("tr8/incident-1/divergence", "firing")
    assert web.requests[0]["headers"]["Content-Type"] == "application/json"
    assert "Authorization" not in web.requests[0]["headers"]


def test_a_token_comes_from_the_environment_or_a_file_that_may_change(web: Receiver, tmp_path: Path) -> None:
    webhook(web.url, {"T": TOKEN}, token_env="T").send(page())  # noqa: S106 - a variable's name
    file = tmp_path / "token"
    from_file = webhook(web.url, token_file=file)
    with pytest.raises(ConfigError, match=r"token_file: .* can't be read: No such file"):
        from_file.check()
    for token in ("first\n", "second\n"):
        file.write_text(token)
        from_file.send(page())
    seen = [request["headers"]["Authorization"] for request in web.requests]
    assert seen == [f"Bearer {TOKEN}", "Bearer first", "Bearer second"]


def test_an_address_can_be_a_secret_itself(web: Receiver) -> None:
    of = settings.Webhook(url_env="HOOK")
    Channel(of, {"HOOK": f"{web.url}/{TOKEN}"}).send(page())
    assert web.requests[0]["path"] == f"/page/{TOKEN}"
    with pytest.raises(ConfigError, match="url_env: the environment has no HOOK"):
        Channel(of, {}).check()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (says(500), "localhost answered 500 Internal Server Error"),
        (says(401), "localhost answered 401 Unauthorized"),
        (says(299), None),
        (says(799), r"localhost answered 799 \?"),
        (says(302, Location="http://elsewhere.example/steal"), "redirects to http://elsewhere.example: a page"),
        (says(307, Location="https://localhost/page"), "redirects to https://localhost"),
        (says(301, Location="/other"), "redirects to another path of its own"),
        (says(303, Location="file:///etc/passwd"), "redirects to another path of its own"),
    ],
)
def test_only_a_2xx_of_the_named_server_is_an_arrival(web: Receiver, answer: Any, error: str | None) -> None:
    web.answers = [answer]
    if error is None:
        webhook(web.url).send(page())
    else:
        with pytest.raises(PagerError, match=error):
            webhook(web.url, {"T": TOKEN}, token_env="T").send(page())  # noqa: S106
    assert [request["method"] for request in web.requests] == ["POST"]


@pytest.mark.parametrize(
    ("asked", "least_s", "most_s"),
    [
        ("7", 7, 7),
        ("in 500 s, as a date", 400, 500),
        ("99999999", 3600, 3600),
        ("Fri, 01 Jan 1999 00:00:00 GMT", 0, 0),
    ],
)
def test_a_server_may_ask_to_be_left_alone(web: Receiver, asked: str, least_s: float, most_s: float) -> None:
    if asked.startswith("in 500 s"):
        asked = format_datetime(datetime.now(UTC) + timedelta(seconds=500))
    web.answers = [says(429, Retry_After=asked), says(503, Retry_After="when I feel like it")]
    with pytest.raises(PagerError, match="429 Too Many Requests") as caught:
        webhook(web.url).send(page())
    assert caught.value.retry_after_s is not None
    assert least_s <= caught.value.retry_after_s <= most_s
    with pytest.raises(PagerError, match="503") as caught:
        webhook(web.url).send(page())
    assert caught.value.retry_after_s is None


@pytest.mark.parametrize("how", [hangs, dribbles])
def test_a_server_that_never_answers_is_left_after_its_time(web: Receiver, how: Any) -> None:
    web.always = how(web.over)
    with pytest.raises(PagerError, match=r"localhost can't be reached: (no answer within 0\.5 s|timed out)"):
        webhook(web.url, timeout_s=0.5).send(page())


def test_nobody_there_is_said_without_the_address() -> None:
    with pytest.raises(PagerError, match=r"localhost can't be reached: .*refused") as caught:
        webhook(f"{nobody_listens()}/{TOKEN}").send(page())
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("token", [f"{TOKEN}\nX-Injected: 1", f"{TOKEN}\x00", "", " \n"])
def test_a_token_that_no_header_can_hold_is_refused_without_being_quoted(web: Receiver, token: str) -> None:
    channel = webhook(web.url, {"T": token}, token_env="T")  # noqa: S106
    for call in (channel.check, lambda: channel.send(page())):
        with pytest.raises(ConfigError, match="token: T should hold one line") as caught:
            call()
        assert TOKEN not in str(caught.value)
    assert not web.requests


def test_https_trusts_who_is_to_be_trusted(certificate: tuple[Path, Path]) -> None:
    with receiver(certificate=certificate) as got:
        with pytest.raises(PagerError, match="certificate verify failed"):
            webhook(got.url).send(page())
        webhook(got.url, ca_file=certificate[0]).send(page())
        assert len(got.requests) == 1


def mail(port: int, environ: dict[str, str] | None = None, **keys: Any) -> Channel:
    facts: dict[str, Any] = {"host": "localhost", "port": port, "sender": "s@example.com", "to": ("a@example.com",)}
    return Channel(settings.Mail(**facts | {"timeout_s": 60.0} | keys), environ or {})


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_mail_is_sent_with_tls_and_a_login(certificate: tuple[Path, Path], security: str) -> None:
    keys = {"security": security, "user": "sentinel", "password_env": "P", "ca_file": certificate[0]}
    with mail_server(certificate, login=("sentinel", TOKEN), tls=security == "tls") as box:
        channel = mail(box.port, {"P": TOKEN}, **keys)
        channel.send(page(1000.0))
        channel.send(page(2000.0, resolved=True))
        with pytest.raises(PagerError, match=r"localhost answered 535 \(SMTPAuthenticationError\)"):
            mail(box.port, {"P": "wrong"}, **keys).send(page())
        with pytest.raises(PagerError, match="certificate verify failed"):
            mail(box.port, {"P": TOKEN}, **keys | {"ca_file": None}).send(page())
    first, second = box.mails
    assert first["Subject"] == "[critical] tr8 incident-1: stopped, a person is needed: rollback budget of 3 is spent"
    assert second["Subject"].startswith("[resolved] tr8 incident-1")
    assert first["References"] == second["References"]  # one story
    assert first["Message-ID"] != second["Message-ID"]
    assert "what to do: docs/PAGING.md#divergence" in first.get_content()
    assert (first["From"], box.recipients[0]) == ("s@example.com", ["a@example.com"])


def test_a_mail_server_that_takes_no_tls_gets_no_password() -> None:
    with mail_server(None, login=("sentinel", TOKEN)) as box:
        with pytest.raises(PagerError, match=r"localhost can't be talked to: SMTPNotSupportedError"):
            mail(box.port, {"P": TOKEN}, user="sentinel", password_env="P").send(page())  # noqa: S106
        assert not box.logins
    with mail_server(None) as box:
        mail(box.port, security="none").send(page(summary="two\nlines"))
        assert "two lines" in box.mails[0]["Subject"]


def test_of_several_recipients_one_that_is_refused_keeps_no_mail_from_the_others() -> None:
    with mail_server(None) as box:
        box.refuse = {"gone@example.com"}
        mail(box.port, security="none", to=("gone@example.com", "here@example.com")).send(page())
        assert box.recipients == [["here@example.com"]]
        with pytest.raises(PagerError, match=r"localhost takes mail for none of gone@example\.com"):
            mail(box.port, security="none", to=("gone@example.com",)).send(page())


def test_a_mail_server_that_says_nothing_is_left_after_its_time() -> None:
    with socket.create_server(("localhost", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(PagerError, match=r"localhost can't be (reached|talked to)"):
            mail(port, security="none", timeout_s=0.5).send(page())
    with pytest.raises(PagerError, match=r"localhost can't be reached: .*refused"):
        mail(free_port(), security="none").send(page())


def command(*words: str, environ: dict[str, str] | None = None, **keys: Any) -> Channel:
    return Channel(settings.Command(command=words, **{"timeout_s": 60.0} | keys), environ or {})


KEEPS = """
import json, os, sys
told = json.load(sys.stdin)
mine = {key: value for key, value in os.environ.items() if key.startswith("SENTINEL_")}
json.dump([told, mine, sys.argv[2:]], open(sys.argv[1], "w"))
"""


def test_a_command_gets_the_page_on_its_input_and_in_its_environment(tmp_path: Path) -> None:
    told = page(summary="$(touch owned); `touch owned`\0")
    command(sys.executable, "-c", KEEPS, str(tmp_path / "got"), "$HOME", "; touch owned").send(told)
    document, variables, words = json.loads((tmp_path / "got").read_text())
    assert document == told.to_json()
    assert words == ["$HOME", "; touch owned"]  # no shell
    assert variables["SENTINEL_PAGE_SUMMARY"] == "$(touch owned); `touch owned`"
    assert variables["SENTINEL_PAGE_KEY"] == "tr8/incident-1/divergence"
    assert variables["SENTINEL_PAGE_STATUS"] == "firing"


def test_a_command_that_fails_is_said_by_its_exit_code_and_nothing_that_it_prints() -> None:
    failing = command(sys.executable, "-c", f"print({TOKEN!r}); import sys; sys.exit({TOKEN!r})")
    with pytest.raises(PagerError, match="ended with exit code 1") as caught:
        failing.send(page())
    assert TOKEN not in str(caught.value)
    with pytest.raises(PagerError, match="/nowhere/page can't be run: No such file"):
        command("/nowhere/page").send(page())


def test_a_command_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    started = tmp_path / "pids"
    script = f"sleep 300 & echo $! $$ > {started}.new; mv {started}.new {started}; wait"
    for timeout_s in (1.0, 5.0, 60.0):  # until it has come so far as to start something
        hanging = command("/bin/bash", "-c", script, environ={"PATH": "/usr/bin:/bin"}, timeout_s=timeout_s)
        with pytest.raises(PagerError, match=f"did not end within {timeout_s:g} s"):
            hanging.send(page())
        if started.exists():
            break
    pids = [int(word) for word in started.read_text().split()]
    until(lambda: not any(_lives(pid) for pid in pids))


def _lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Recorded:
    """A channel that does as it is told; the real ones are above."""

    def __init__(self, *outcomes: PagerError | Exception | None) -> None:
        self.outcomes = list(outcomes)
        self.tried: list[str] = []
        self.arrived: list[str] = []

    def check(self) -> None:
        return

    def send(self, page: Page) -> None:
        self.tried.append(page.id)
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if outcome is not None:
            raise outcome
        self.arrived.append(page.id)


def delivery(channel: Channel, outbox: Outbox, *, give_up_after_s: float = 86_400.0) -> Delivery:
    return Delivery("chat", channel, outbox, retry_up_to_s=0.05, give_up_after_s=give_up_after_s)


def test_a_page_waits_on_the_disk_until_it_has_arrived(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "chat")
    told = page(summary="ärger ✗")
    outbox.put(told)
    outbox.put(told)  # the same page again is one page
    assert Outbox(tmp_path / "chat").waiting() == [told]
    outbox.delivered(told)
    outbox.delivered(told)  # by another sentinel meanwhile
    assert outbox.empty()


def test_what_can_not_be_read_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outbox = Outbox(tmp_path / "chat")
    outbox.put(page(incident="incident-2"))
    (tmp_path / "chat" / "0-divergence-incident-1.json").write_bytes(b'{"id": "\xff')
    assert [p.incident for p in outbox.waiting()] == ["incident-2"]
    assert "is no page that can be read" in caplog.text
    assert outbox.given_up() == 1


def test_what_failed_is_tried_again_until_it_arrives(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    outbox, told = Outbox(tmp_path / "chat"), page()
    outbox.put(told)
    channel = Recorded(*[PagerError("the host answered 500")] * 5, ValueError(TOKEN))
    worker = delivery(channel, outbox)
    worker.start()
    until(lambda: f"page {told.id} has arrived by chat" in caplog.text)
    worker.stop()
    assert outbox.empty()
    assert channel.tried == [told.id] * 7
    assert caplog.text.count("answered 500") == 1  # once for each reason
    assert "ValueError: an error of sentinel's own" in caplog.text
    assert TOKEN not in caplog.text


def test_what_the_outbox_says_no_to_ends_no_delivery(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A page is given up, and the folder that it is kept in can't be forced to the disk just now."""

    class Refusing(Outbox):
        refuses = True

        def give_up(self, page: Page) -> None:
            if self.refuses:
                raise FilesystemUnavailable("given-up can't be read or written now: Input/output error")
            super().give_up(page)

    outbox, old = Refusing(tmp_path / "chat"), page(time_unix_s=time.time() - 100)
    outbox.put(old)
    worker = delivery(Recorded(), outbox, give_up_after_s=10)
    worker.start()
    until(lambda: "the outbox can't be used: given-up" in caplog.text)
    outbox.refuses = False
    until(lambda: outbox.given_up() == 1)
    worker.stop()


def test_a_thread_that_is_gone_or_can_not_be_started_is_made_up_for_by_the_next_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox, channel, told = Outbox(tmp_path / "chat"), Recorded(), page()
    worker, start = delivery(channel, outbox), threading.Thread.start

    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    outbox.put(told)
    monkeypatch.setattr(threading.Thread, "start", refused)
    worker.start()
    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(outbox, "waiting", refused)  # what nobody foresaw, in the thread itself
    worker.wake()
    until(lambda: worker._thread is not None and not worker._thread.is_alive())
    monkeypatch.undo()
    worker.wake()
    until(lambda: channel.arrived == [told.id])
    worker.stop()


def test_within_a_story_the_order_is_kept_and_other_stories_do_not_wait(tmp_path: Path) -> None:
    now = time.time()
    outbox = Outbox(tmp_path / "chat")
    begin, end, other = page(now - 3), page(now - 2, resolved=True), page(now - 1, incident="incident-2")
    for told in (end, other, begin):
        outbox.put(told)
    channel = Recorded(PagerError("no"))
    worker = delivery(channel, outbox)
    worker.start()
    until(outbox.empty)
    worker.stop()
    assert channel.tried[:2] == [begin.id, other.id]
    assert channel.arrived == [other.id, begin.id, end.id]


def test_a_new_page_does_not_wait_for_the_pause_to_be_over_unless_it_was_asked_for(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "chat")
    outbox.put(page())
    channel = Recorded(PagerError("no"), None, None)
    worker = Delivery("chat", channel, outbox, retry_up_to_s=3600, give_up_after_s=86_400)
    worker._pause_s = lambda _: 3600.0  # type: ignore[method-assign] # it would be a second, the first time
    worker.start()
    until(lambda: channel.tried)
    outbox.put(page(incident="incident-2"))
    worker.wake()
    until(outbox.empty)
    channel.outcomes = [PagerError("busy", retry_after_s=0.6)]
    asked = time.monotonic()
    outbox.put(page())
    worker.wake()
    while not outbox.empty():
        worker.wake()
        time.sleep(0.02)
    assert time.monotonic() - asked >= 0.6
    worker.stop()


def test_a_page_that_is_too_old_is_given_up_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outbox, channel = Outbox(tmp_path / "chat"), Recorded()
    old, new = page(time.time() - 90_000), page(incident="incident-2")
    outbox.put(old)
    outbox.put(new)
    worker = delivery(channel, outbox)
    worker.start()
    until(outbox.empty)
    worker.stop()
    assert channel.tried == [new.id]
    assert f"page {old.id} is given up after" in caplog.text
    assert outbox.given_up() == 1


def test_a_new_thread_takes_up_what_the_last_one_was_sending(tmp_path: Path, web: Receiver) -> None:
    outbox, told = Outbox(tmp_path / "chat"), page()
    outbox.put(told)
    web.answers = [hangs(web.over)]
    first = delivery(webhook(web.url, timeout_s=60.0), outbox)
    first.start()
    until(lambda: web.requests)
    first.stop()
    second = delivery(webhook(web.url), outbox)
    second.start()
    until(outbox.empty)
    second.stop()
    assert [document["id"] for document in web.documents] == [told.id] * 2


@pytest.mark.parametrize("tries", range(1, 60, 7))
def test_pauses_double_with_jitter_up_to_a_limit(tmp_path: Path, tries: int) -> None:
    worker = Delivery("chat", Recorded(), Outbox(tmp_path), retry_up_to_s=300, give_up_after_s=1)
    pauses = [worker._pause_s(tries) for _ in range(50)]
    longest = min(300.0, 2.0 ** (tries - 1))
    assert all(longest / 2 <= pause <= longest for pause in pauses)
    assert len(set(pauses)) > 1


def test_there_is_a_thread_while_there_is_something_to_deliver_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.adapters.paging.delivery._LOOK_AGAIN_S", 0.05)
    outbox, channel = Outbox(tmp_path / "chat"), Recorded()
    worker = Delivery("quiet", channel, outbox, retry_up_to_s=0.05, give_up_after_s=86_400)

    def threads() -> int:
        found = [thread for thread in threading.enumerate() if thread.name == "page-quiet"]
        assert all(thread.daemon for thread in found)  # none keeps a process from ending
        return len(found)

    worker.wake()
    assert threads() == 0  # it was not started
    worker.start()
    assert threads() == 0
    for number in range(2):
        told = page(incident=f"incident-{number}")
        outbox.put(told)
        worker.wake()
        until(lambda told=told: told.id in channel.arrived and not threads())  # type: ignore[misc]
    by_another = page(incident="incident-9")
    outbox.put(by_another)  # another command of the run has, and does not tell
    until(lambda: worker.look() or by_another.id in channel.arrived)  # type: ignore[func-returns-value]
    worker.stop()
    until(lambda: not threads())
    worker.wake()
    assert threads() == 0
