"""A page as an alert of Alertmanager: firing until it is resolved."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sentinel.adapters.paging import settings
from sentinel.adapters.paging.post import post
from sentinel.adapters.paging.secret import Secret
from sentinel.plan.page import Page

__all__ = ["Alertmanager"]

_TEST_FIRES_S = 300.0


class Alertmanager:
    """POSTs alerts. One that nobody ends would end by itself after five minutes, so each says how long it lasts."""

    def __init__(self, of: settings.Alertmanager, environ: Mapping[str, str]) -> None:
        self._of = of
        self._token = Secret(what="token", env=of.token_env, file=of.token_file, environ=environ)

    def check(self) -> None:
        """ConfigError when a secret is not where the configuration says."""
        self._token.check()

    def send(self, page: Page) -> None:
        """Returns when it has arrived. PagerError, ConfigError."""
        of = self._of
        token = self._token.read() if self._token else None
        alerts = _alerts(page, of.firing_for_s)
        post(f"{of.url.rstrip('/')}/api/v2/alerts", alerts, token=token, ca_file=of.ca_file, timeout_s=of.timeout_s)


def _alerts(page: Page, firing_for_s: float) -> list[dict[str, Any]]:
    """The severity is a label, since receivers are chosen by it; so the end of a story ends both of its alerts."""
    severities = ("warning", "critical") if page.resolved else (page.severity,)
    lasts_s = 0.0 if page.resolved else _TEST_FIRES_S if page.topic == "test" else firing_for_s
    labels = {"alertname": f"Sentinel{page.topic.capitalize()}", "run": page.run, "topic": page.topic}
    if page.incident:
        labels["incident"] = page.incident
    annotations = {"summary": page.summary, "description": page.text, "runbook_url": page.runbook, "id": page.id}
    times = {"startsAt": _rfc3339(page.time_unix_s), "endsAt": _rfc3339(page.time_unix_s + lasts_s)}
    return [{"labels": labels | {"severity": s}, "annotations": annotations, **times} for s in severities]


def _rfc3339(time_unix_s: float) -> str:
    return datetime.fromtimestamp(time_unix_s, UTC).isoformat(timespec="milliseconds")
