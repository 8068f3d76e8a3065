"""The ways to a person: each sends one page and returns when it has arrived, or raises why it has not."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import smtplib
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime, parsedate_to_datetime
from hashlib import sha256
from pathlib import Path
from time import time
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from sentinel.adapters.http_client import Cut, Refused, Unreachable, answer, bearer, cut_after, trusting
from sentinel.adapters.paging import settings
from sentinel.adapters.paging.secret import Secret
from sentinel.adapters.paging.settings import split_address
from sentinel.plan.alerts.page import Page
from sentinel.vocabulary.errors import ConfigError, PagerError
from sentinel.vocabulary.numbers import dump_json

_LONGEST_REPLIES_BYTES = 1 << 20  # of a mail server, in one conversation
_LONGEST_ASKED_S = 3600.0  # Retry-After is heeded up to this: "next year" is tried again in an hour


def post(url: str, document: Any, *, token: str | None, ca_file: Path | None, timeout_s: float) -> None:
    """Returns when the server has said 2xx. PagerError names the host only: the rest of an address may be a secret."""
    host = split_address(url, "url").hostname
    request = urllib.request.Request(url, data=dump_json(document).encode(), method="POST")  # noqa: S310 - http(s) only: split_address
    request.add_header("Content-Type", "application/json")
    request.add_header("User-Agent", "sentinel")
    if token is not None:
        request.add_unredirected_header("Authorization", bearer(token))
    try:
        with answer(request, trusting(ca_file), timeout_s):
            pass  # its text says no more
    except Refused as error:
        raise _answered(host, error) from None
    except Unreachable as error:
        raise PagerError(f"{host} can't be reached: {error}") from None


def _answered(host: str | None, error: Refused) -> PagerError:
    if error.code in (301, 302, 303, 307, 308):
        to = urlsplit(error.headers.get("Location") or "")
        where = f"{to.scheme}://{to.hostname}" if to.scheme and to.hostname else "another path of its own"
        return PagerError(f"{host} redirects to {where}: a page is only sent to the address that is configured")
    phrase = http.client.responses.get(error.code, "?")
    asked_s = _asked_s(error.headers.get("Retry-After"))
    return PagerError(f"{host} answered {error.code} {phrase}", retry_after_s=asked_s)


def _asked_s(retry_after: str | None) -> float | None:
    """Retry-After, which is seconds or a date, in seconds; None where it is neither."""
    if retry_after is None:
        return None
    try:
        is_date = not retry_after.isdigit()
        asked_s = parsedate_to_datetime(retry_after).timestamp() - time() if is_date else float(retry_after)
    except (ValueError, OverflowError):
        return None
    return min(max(asked_s, 0.0), _LONGEST_ASKED_S)


_TEST_FIRES_S = 300.0


class Channel:
    """One way to a person, as the configuration has it."""

    def __init__(self, of: settings.Channel, environ: Mapping[str, str]) -> None:
        self._of = of
        self._environ = environ

    def check(self) -> None:
        """ConfigError when a secret is not where the configuration says."""
        for what in ("url", "token", "user", "password"):
            self._secret(what).check()
        if isinstance(self._of, settings.Mail):
            self._login()

    def send(self, page: Page) -> None:
        """Returns when the page has arrived. PagerError, ConfigError."""
        match self._of:
            case settings.Webhook() as of:
                self._post(of, self._secret("url").read(), page.to_json())
            case settings.Alertmanager() as of:
                self._post(of, f"{of.url.rstrip('/')}/api/v2/alerts", _alerts(page, of.firing_for_s))
            case settings.Mail() as of:
                _send_mail(of, _mail(page, of), self._login())
            case settings.Command() as of:
                _run(of, page, self._environ)

    def _post(self, of: settings.Webhook | settings.Alertmanager, url: str, document: Any) -> None:
        token = self._secret("token")
        post(url, document, token=token.read() if token else None, ca_file=of.ca_file, timeout_s=of.timeout_s)

    def _login(self) -> tuple[str, str] | None:
        """User and password; None where the server asks for none. ConfigError."""
        user, password = self._secret("user"), self._secret("password")
        if not password:
            return None
        login = user.read(), password.read()
        for what, text in zip(("user", "password"), login, strict=True):
            if not text.isascii():
                raise ConfigError(f"{what}: should be of ASCII characters: smtplib sends no others to log in")
        return login

    def _secret(self, what: str) -> Secret:
        plain, env, file = (getattr(self._of, key, None) for key in (what, f"{what}_env", f"{what}_file"))
        return Secret(what=what, plain=plain, env=env, file=file, environ=self._environ)


def _alerts(page: Page, firing_for_s: float) -> list[dict[str, Any]]:
    """Firing until the page is resolved. One that nobody ends would end by itself after five minutes, so each says how
    long it lasts. The severity is a label, since receivers are chosen by it; so the end of a story ends both."""
    severities = ("warning", "critical") if page.resolved else (page.severity,)
    lasts_s = 0.0 if page.resolved else _TEST_FIRES_S if page.topic == "test" else firing_for_s
    labels = {"alertname": f"Sentinel{page.topic.capitalize()}", "run": page.run, "topic": page.topic}
    if page.incident:
        labels["incident"] = page.incident
    annotations = {"summary": page.summary, "description": page.text, "runbook_url": page.runbook, "id": page.id}
    ends = {"startsAt": page.time_unix_s, "endsAt": page.time_unix_s + lasts_s}
    times = {key: datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds") for key, at in ends.items()}
    return [{"labels": labels | {"severity": s}, "annotations": annotations, **times} for s in severities]


def _run(of: settings.Command, page: Page, environ: Mapping[str, str]) -> None:
    """The page is on its standard input. Its output is not kept: a script in trace mode prints tokens."""
    program, document = of.command[0], page.to_json()
    shown = ("summary", "severity", "status", "key", "id", "run", "incident", "topic", "runbook")
    facts = {f"SENTINEL_PAGE_{key.upper()}": str(document[key] or "").replace("\0", "") for key in shown}
    try:
        process = subprocess.Popen(
            of.command,
            env=dict(environ) | facts,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise PagerError(f"{program} can't be run: {error.strerror}") from error
    with process:
        try:
            process.communicate(dump_json(document).encode(), timeout=of.timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise PagerError(f"{program} did not end within {of.timeout_s:g} s") from None
    if process.returncode != 0:
        raise PagerError(f"{program} ended with exit code {process.returncode}")


def _mail(page: Page, of: settings.Mail) -> EmailMessage:
    """Mails of one story answer one another, so that a mail program shows them together."""
    mail = EmailMessage()
    mail["Subject"] = " ".join(page.title.split())
    mail["From"] = of.sender
    mail["To"] = ", ".join(of.to)
    mail["Date"] = format_datetime(datetime.fromtimestamp(page.time_unix_s, UTC))
    mail["Message-ID"], mail["References"] = _message_id(page.id), _message_id(page.key)
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Sentinel-Key"] = " ".join(page.key.split())
    mail.set_content(page.text)
    return mail


def _message_id(of: str) -> str:
    return f"<{sha256(of.encode()).hexdigest()[:32]}@sentinel.invalid>"


def _send_mail(of: settings.Mail, mail: EmailMessage, login: tuple[str, str] | None) -> None:
    with cut_after(of.timeout_s) as cut:
        try:
            context = trusting(of.ca_file) if of.security != "none" else None
            with _SmtpTls(cut, of, context) if of.security == "tls" else _Smtp(cut, of) as smtp:
                if of.security == "starttls":
                    smtp.starttls(context=context)
                if login is not None:
                    smtp.login(*login)
                smtp.send_message(mail)
        except smtplib.SMTPRecipientsRefused as error:
            raise PagerError(f"{of.host} takes mail for none of {', '.join(error.recipients)}") from None
        except smtplib.SMTPResponseException as error:  # its text is the server's, which may quote what it was sent
            raise PagerError(f"{of.host} answered {error.smtp_code} ({type(error).__name__})") from None
        except smtplib.SMTPException as error:
            raise PagerError(f"{of.host} can't be talked to: {cut.why or type(error).__name__}") from None
        except (OSError, Unreachable) as error:
            raise PagerError(f"{of.host} can't be reached: {cut.why or error}") from None


class _Replies:
    """What the server says, line by line, up to a size: one reply may have any number of lines."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._left = file, _LONGEST_REPLIES_BYTES

    def readline(self, most: int) -> bytes:
        line = self._file.readline(most)
        self._left -= len(line)
        if self._left < 0:
            raise OSError("it replies without end")
        return line

    def close(self) -> None:
        self._file.close()


class _Smtp(smtplib.SMTP):
    def __init__(self, cut: Cut, of: settings.Mail) -> None:
        self._cut = cut
        super().__init__(of.host, of.port, timeout=of.timeout_s)

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        return self._cut.connect((host, port), timeout)

    def getreply(self) -> tuple[int, bytes]:
        if self.file is None and self.sock is not None:
            self.file = _Replies(self.sock.makefile("rb"))
        return super().getreply()


class _SmtpTls(smtplib.SMTP_SSL, _Smtp):
    def __init__(self, cut: Cut, of: settings.Mail, context: ssl.SSLContext | None) -> None:
        self._cut = cut
        smtplib.SMTP_SSL.__init__(self, of.host, of.port, timeout=of.timeout_s, context=context)
