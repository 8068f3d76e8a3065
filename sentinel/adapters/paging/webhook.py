"""A page as the JSON body of a POST."""

from __future__ import annotations

from collections.abc import Mapping

from sentinel.adapters.paging import settings
from sentinel.adapters.paging.post import post
from sentinel.adapters.paging.secret import Secret
from sentinel.plan.page import Page

__all__ = ["Webhook"]


class Webhook:
    """POSTs the page as JSON."""

    def __init__(self, of: settings.Webhook, environ: Mapping[str, str]) -> None:
        self._of = of
        self._url = Secret(what="url", plain=of.url, env=of.url_env, file=of.url_file, environ=environ)
        self._token = Secret(what="token", env=of.token_env, file=of.token_file, environ=environ)

    def check(self) -> None:
        """ConfigError when a secret is not where the configuration says."""
        self._url.check()
        self._token.check()

    def send(self, page: Page) -> None:
        """Returns when it has arrived. PagerError, ConfigError."""
        token = self._token.read() if self._token else None
        post(self._url.read(), page.to_json(), token=token, ca_file=self._of.ca_file, timeout_s=self._of.timeout_s)
