"""The ways to a person: each sends one page and returns when it has arrived, or raises why it has not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from sentinel.adapters.paging import settings
from sentinel.adapters.paging.alertmanager import Alertmanager
from sentinel.adapters.paging.command import Command
from sentinel.adapters.paging.mail import Mail
from sentinel.adapters.paging.webhook import Webhook
from sentinel.plan.page import Page

__all__ = ["Channel", "channel_of"]


class Channel(Protocol):
    """One way to a person."""

    def check(self) -> None:
        """ConfigError when a secret is not where the configuration says."""
        ...

    def send(self, page: Page) -> None:
        """Returns when the page has arrived. PagerError, ConfigError."""
        ...


def channel_of(of: settings.Channel, environ: Mapping[str, str]) -> Channel:
    """The channel that a table of the configuration describes."""
    match of:
        case settings.Webhook():
            return Webhook(of, environ)
        case settings.Mail():
            return Mail(of, environ)
        case settings.Command():
            return Command(of, environ)
        case settings.Alertmanager():
            return Alertmanager(of, environ)
