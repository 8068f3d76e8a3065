"""The `[paging]` table and its channels. A token or a password is named by the variable, or the file, that holds it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

from sentinel.plan.alerts.page import RUNBOOK
from sentinel.plan.topics import Severity
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import AT_LEAST_0, POSITIVE, POSITIVE_OR_INF, Range

# Whoever has an incoming webhook's address of these can post: it is a password.
_SECRET_ADDRESSES = frozenset({"hooks.slack.com", "hooks.slack-gov.com", "discord.com", "discordapp.com"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Channel:
    name: str
    """What logs and `sentinel page` call it; each channel has its own."""

    severity: Severity = "warning"
    """warning: every page; critical: only those that need a person now, and their ends."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", self.name):
            raise ConfigError(
                f"name should be of letters, digits, - and _, 100 at most, not {self.name[:60]!a}: it names a folder"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Posted(_Channel):
    token_env: str | None = None
    """The environment variable that holds a bearer token; leave both out where none is wanted."""

    token_file: Path | None = None
    """The file that holds a bearer token; read anew for each page."""

    ca_file: Path | None = None
    """Certificates to trust beside the system's own."""

    timeout_s: Annotated[float, POSITIVE] = 10.0
    """Seconds that one try may take, all in all."""

    def __post_init__(self) -> None:
        _Channel.__post_init__(self)
        _one_of(self, "token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook(_Posted):
    """A `[[paging.webhook]]` table: a POST of the page as JSON, with a `text` that chat programs show."""

    name: str = "webhook"
    url: str | None = None
    """http:// or https://, without a password in it. An address that is itself a secret, as Slack's are, does not
    belong here but where url_env or url_file says."""

    url_env: str | None = None
    """The environment variable that holds the address."""

    url_file: Path | None = None
    """The file that holds the address; read anew for each page."""

    def __post_init__(self) -> None:
        _Posted.__post_init__(self)
        _one_of(self, "url", needed=True)
        if self.url is not None and split_address(self.url, "url").hostname in _SECRET_ADDRESSES:
            raise ConfigError("url: who has this address can post there, so it is a password: use url_env or url_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail(_Channel):
    """A `[[paging.mail]]` table: one mail for each page, by SMTP."""

    name: str = "mail"
    host: str
    """The mail server."""

    port: Annotated[int, Range(least=1, most=65535)] = 587
    """587 for starttls, 465 for tls, 25 for none, as a rule."""

    security: Literal["starttls", "tls", "none"] = "starttls"
    """none sends in the clear, and takes no password."""

    sender: str
    """The address that it comes from."""

    to: tuple[str, ...]
    """Whom it goes to."""

    user: str | None = None
    """Leave all of user, user_env and user_file out where the server asks for none."""

    user_env: str | None = None
    """The environment variable that holds the user."""

    user_file: Path | None = None
    """The file that holds the user."""

    password_env: str | None = None
    """The environment variable that holds the password."""

    password_file: Path | None = None
    """The file that holds the password, of ASCII characters; read anew for each mail."""

    ca_file: Path | None = None
    """Certificates to trust beside the system's own."""

    timeout_s: Annotated[float, POSITIVE] = 30.0
    """Seconds that one try may take, all in all."""

    def __post_init__(self) -> None:
        _Channel.__post_init__(self)
        _one_of(self, "user")
        _one_of(self, "password")
        if not self.to:
            raise ConfigError("to: should name at least one address")
        has_user, has_password = (_given(self, what) for what in ("user", "password"))
        if bool(has_user) != bool(has_password):
            raise ConfigError(
                "a user and a password go together: user, user_env or user_file, and password_env or …_file"
            )
        if self.security == "none" and has_password:
            raise ConfigError("security is 'none': the password would travel in the clear; use 'starttls' or 'tls'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(_Channel):
    """A `[[paging.command]]` table: a program of yours, with the page as JSON on its standard input."""

    name: str = "command"
    command: tuple[str, ...]
    """The program and its arguments, as a list; run without a shell, with SENTINEL_PAGE_SUMMARY, _SEVERITY, _STATUS,
    _KEY, _ID, _RUN, _INCIDENT, _TOPIC and _RUNBOOK set. Exit code 0 says that the page has arrived. Its output is
    not kept."""

    timeout_s: Annotated[float, POSITIVE] = 30.0
    """Seconds after which it and all that it started are killed, and it is tried again."""

    def __post_init__(self) -> None:
        _Channel.__post_init__(self)
        if not self.command or not self.command[0]:
            raise ConfigError("command: its first element should name a program")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alertmanager(_Posted):
    """A `[[paging.alertmanager]]` table: alerts with the labels alertname, run, incident, topic and severity."""

    name: str = "alertmanager"
    url: str
    """Its own address, without /api/v2/alerts; where there are several of a cluster, one table for each."""

    firing_for_s: Annotated[float, POSITIVE] = 604_800.0
    """Seconds after which an alert ends by itself that sentinel was never there to end."""

    def __post_init__(self) -> None:
        _Posted.__post_init__(self)
        split_address(self.url, "url")


Channel = Webhook | Mail | Command | Alertmanager


@dataclass(frozen=True, slots=True, kw_only=True)
class Paging:
    """The `[paging]` table: who is paged, and how long delivery is tried."""

    retry_up_to_s: Annotated[float, POSITIVE] = 300.0
    """Longest pause, in seconds, between two tries at a channel that does not take a page; it begins with one second
    and doubles."""

    give_up_after_s: Annotated[float, POSITIVE_OR_INF] = 86_400.0
    """Age in seconds at which a page is not tried any more; it is kept in STATE_DIR/pages/CHANNEL/given-up."""

    deliver_within_s: Annotated[float, AT_LEAST_0] = 3_600.0
    """When a person is needed and watch ends: seconds that it stays, without its lock, until the page is through. Any
    other end waits a few seconds."""

    runbook: str = RUNBOOK
    """What pages name as the place that says what to do: the address at which you keep docs/PAGING.md."""

    webhook: tuple[Webhook, ...] = ()
    """Addresses that a page is posted to."""

    mail: tuple[Mail, ...] = ()
    """Mail servers and whom they tell."""

    command: tuple[Command, ...] = ()
    """Programs that take a page."""

    alertmanager: tuple[Alertmanager, ...] = ()
    """Alertmanagers that a page is an alert of."""

    def __post_init__(self) -> None:
        twice = [name for name, count in Counter(c.name for c in self.channels).items() if count > 1]
        if twice:
            raise ConfigError(f"two channels are called {twice[0]!r}: give each a name of its own")

    @property
    def channels(self) -> tuple[Channel, ...]:
        return (*self.webhook, *self.mail, *self.command, *self.alertmanager)


def split_address(url: str, key: str) -> SplitResult:
    """The parts of an address that may be used. ConfigError does not quote the address, which may hold a secret."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # a port that is no number is a ValueError
    except ValueError as error:
        raise ConfigError(f"{key} is no address: it should look like https://host/path") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{key} should be an address that begins with https:// or http:// and a host")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(f"{key} has a space or a character in it that an address can't have")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            f"{key} has a user or a password in it: they do not belong into an address; token_env or token_file says "
            "where the token is, url_env or url_file where an address is that is secret as a whole"
        )
    return parts


def _given(channel: _Channel, what: str) -> list[str]:
    keys = (what, f"{what}_env", f"{what}_file")
    return [key for key in keys if getattr(channel, key, None) is not None]


def _one_of(channel: _Channel, what: str, *, needed: bool = False) -> None:
    given = _given(channel, what)
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} say the same thing twice: leave one")
    if needed and not given:
        raise ConfigError(f"needs one of the keys {what!r}, '{what}_env' and '{what}_file'")
    variable = getattr(channel, f"{what}_env", None)
    if variable is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        raise ConfigError(
            f"{what}_env should be the name of an environment variable; what it holds does not belong here"
        )


# What `sentinel init` shows, commented out.
EXAMPLES: dict[str, Channel] = {
    "webhook": Webhook(name="chat", url_env="CHAT_WEBHOOK_URL"),
    "mail": Mail(
        host="smtp.example.com",
        sender="sentinel@example.com",
        to=("oncall@example.com",),
        user="sentinel",
        password_file=Path("/run/secrets/smtp"),
    ),
    "command": Command(command=("/usr/local/bin/page-oncall", "--team", "training"), severity="critical"),
    "alertmanager": Alertmanager(url="http://alertmanager.example.com:9093"),
}
