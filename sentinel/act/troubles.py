"""Keeps what is wrong with the run beside its loss, and has somebody told when it lasts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sentinel.act.ledger import Ledger
from sentinel.plan.trouble import Severity, Trouble, TroubleTopic, struggling, troubles_of

__all__ = ["Troubles"]


class Troubles:
    """What lasts, by topic. What was told stands in the incident log; the rest begins anew with each daemon."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._met: dict[str, Trouble] = {}

    def take_up(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Knows again what an earlier daemon has told and nobody has ended."""
        for topic, trouble in troubles_of(events).items():
            self._met.setdefault(topic, trouble)

    def met(
        self, topic: TroubleTopic, reason: str, now_unix_s: float, *, severity: Severity, within_s: float = 0.0
    ) -> None:
        """It is so now; tells it when it has been so for `within_s`."""
        known = self._met.get(topic)
        trouble = (
            Trouble(topic=topic, severity=severity, reason=reason, since_unix_s=now_unix_s)
            if known is None
            else replace(known, severity=severity, reason=reason)
        )
        self._met[topic] = trouble
        if struggling(trouble, now_unix_s, within_s=within_s):
            self._ledger.troubled(trouble)
            self._met[topic] = replace(trouble, told_unix_s=now_unix_s)

    def over(self, topic: TroubleTopic, now_unix_s: float) -> None:
        """It is not so, or not any more."""
        trouble = self._met.pop(topic, None)
        if trouble is not None and trouble.told_unix_s is not None:
            self._ledger.relieved(topic, f"it lasted {now_unix_s - trouble.since_unix_s:.0f} s")
