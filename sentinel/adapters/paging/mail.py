"""A page as a mail."""

from __future__ import annotations

import smtplib
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from hashlib import sha256

from sentinel.adapters.paging import settings
from sentinel.adapters.paging.post import Cut, cut_after, trusting
from sentinel.adapters.paging.secret import Secret
from sentinel.plan.page import Page
from sentinel.vocabulary.errors import PagerError

__all__ = ["Mail"]


class Mail:
    """Sends one mail; those of one story answer one another, so that a mail program shows them together."""

    def __init__(self, of: settings.Mail, environ: Mapping[str, str]) -> None:
        self._of = of
        self._user = Secret(what="user", plain=of.user, env=of.user_env, file=of.user_file, environ=environ)
        self._password = Secret(what="password", env=of.password_env, file=of.password_file, environ=environ)

    def check(self) -> None:
        """ConfigError when a secret is not where the configuration says."""
        self._user.check()
        self._password.check()

    def send(self, page: Page) -> None:
        """Returns when it has arrived. PagerError, ConfigError."""
        of = self._of
        login = (self._user.read(), self._password.read()) if self._password else None
        context = trusting(of.ca_file) if of.security != "none" else None
        with cut_after(of.timeout_s) as cut:
            try:
                self._deliver(_mail(page, of), login, context, cut)
            except smtplib.SMTPRecipientsRefused as error:
                raise PagerError(f"{of.host} takes mail for none of {', '.join(error.recipients)}") from None
            except smtplib.SMTPResponseException as error:  # its text is the server's, which may quote what it was told
                raise PagerError(f"{of.host} answered {error.smtp_code} ({type(error).__name__})") from None
            except smtplib.SMTPException as error:
                raise PagerError(f"{of.host} can't be talked to: {cut.why or type(error).__name__}") from None
            except OSError as error:
                raise PagerError(f"{of.host} can't be reached: {cut.why or error}") from None

    def _deliver(
        self, mail: EmailMessage, login: tuple[str, str] | None, context: ssl.SSLContext | None, cut: Cut
    ) -> None:
        of = self._of
        smtp = _SmtpTls(cut, of, context) if of.security == "tls" else _Smtp(cut, of)
        with smtp:
            if of.security == "starttls":
                smtp.starttls(context=context)
            if login is not None:
                smtp.login(*login)
            smtp.send_message(mail)


class _Smtp(smtplib.SMTP):
    def __init__(self, cut: Cut, of: settings.Mail) -> None:
        cut.watch(self)  # before it connects: a server may dawdle over its greeting, too
        super().__init__(of.host, of.port, timeout=of.timeout_s)


class _SmtpTls(smtplib.SMTP_SSL):
    def __init__(self, cut: Cut, of: settings.Mail, context: ssl.SSLContext | None) -> None:
        cut.watch(self)
        super().__init__(of.host, of.port, timeout=of.timeout_s, context=context)


def _mail(page: Page, of: settings.Mail) -> EmailMessage:
    mail = EmailMessage()
    mail["Subject"] = " ".join(page.title.split())
    mail["From"] = of.sender
    mail["To"] = ", ".join(of.to)
    mail["Date"] = format_datetime(datetime.fromtimestamp(page.time_unix_s, UTC))
    mail["Message-ID"] = _message_id(page.id)
    mail["References"] = _message_id(page.key)
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Sentinel-Key"] = " ".join(page.key.split())
    mail.set_content(page.text)
    return mail


def _message_id(of: str) -> str:
    return f"<{sha256(of.encode()).hexdigest()[:32]}@sentinel.invalid>"
