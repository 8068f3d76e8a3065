"""The alerts as a real Alertmanager takes them, groups them and sends them on."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.paging import settings
from sentinel.adapters.paging.channels import Channel
from sentinel.plan.alerts.page import trial_page
from sentinel.vocabulary.errors import PagerError
from tests.adapters import servers
from tests.adapters.pagers import NO_PROXY, Receiver, free_port, page, receiver, until

CONFIGURATION = """\
route:
  receiver: phone
  group_by: [run, incident]
  group_wait: 10ms
  group_interval: 200ms
  repeat_interval: 1h
inhibit_rules:
  - source_matchers: [severity = critical]
    target_matchers: [severity = warning]
    equal: [alertname, run, incident]
receivers:
  - name: phone
    webhook_configs: [{{url: "{url}", send_resolved: true}}]
"""


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in NO_PROXY.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def phone() -> Iterator[Receiver]:
    with receiver() as got:
        yield got


@pytest.fixture
def alertmanager(tmp_path: Path, phone: Receiver) -> Iterator[str]:
    with servers.alertmanager(tmp_path, CONFIGURATION.format(url=phone.url)) as server:
        yield server.url


def _alerts(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/api/v2/alerts", timeout=60) as answer:  # noqa: S310 - our own
        return list(json.load(answer))


def _channel(url: str) -> Channel:
    return Channel(settings.Alertmanager(url=f"{url}/"), {})


def test_an_incident_fires_becomes_critical_and_is_resolved(alertmanager: str, phone: Receiver) -> None:
    channel, now = _channel(alertmanager), time.time()
    channel.send(page(now - 600, severity="warning", summary="opened: the loss is nan"))
    until(lambda: phone.requests)
    channel.send(page(now - 300))
    channel.send(page(now - 300))  # delivered twice is one alert
    until(lambda: _severities(phone) == {"critical"})
    assert {alert["labels"]["severity"] for alert in _alerts(alertmanager)} == {"warning", "critical"}
    (critical,) = [a for a in _alerts(alertmanager) if a["labels"]["severity"] == "critical"]
    assert critical["labels"] == {
        "alertname": "SentinelDivergence",
        "run": "tr8",
        "incident": "incident-1",
        "topic": "divergence",
        "severity": "critical",
    }
    assert critical["annotations"]["runbook_url"] == "docs/PAGING.md#divergence"
    channel.send(page(now, resolved=True, summary="closed, recovered"))
    until(lambda: not _alerts(alertmanager))
    until(lambda: phone.documents[-1]["status"] == "resolved")


def _severities(phone: Receiver) -> set[str]:
    """Of what the last notification says is firing."""
    return {a["labels"]["severity"] for a in phone.documents[-1]["alerts"] if a["status"] == "firing"}


def test_what_nobody_was_told_of_ends_without_a_word(alertmanager: str, phone: Receiver) -> None:
    channel = _channel(alertmanager)
    channel.send(page(resolved=True))
    channel.send(page(incident="incident-2"))
    until(lambda: phone.requests)
    assert {a["labels"]["incident"] for d in phone.documents for a in d["alerts"]} == {"incident-2"}


def test_a_test_ends_by_itself_and_trouble_without_an_incident_has_no_such_label(alertmanager: str) -> None:
    now = time.time()
    _channel(alertmanager).send(trial_page("tr8", now))
    until(lambda: _alerts(alertmanager))
    (alert,) = _alerts(alertmanager)
    assert "incident" not in alert["labels"]
    assert alert["endsAt"] < time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now + 301))


def test_an_alertmanager_that_is_not_there_is_a_page_that_waits() -> None:
    with pytest.raises(PagerError, match="localhost can't be reached"):
        _channel(f"http://localhost:{free_port()}").send(page())
