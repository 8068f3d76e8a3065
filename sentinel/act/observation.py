"""One observation of the run, with what it was made from still at hand: the history and the judge's state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from sentinel.judge.history import History
from sentinel.judge.series import Series
from sentinel.judge.verdict import Verdict
from sentinel.plan.facts import Facts
from sentinel.plan.incident.log_events import IncidentEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one look found. `facts` is all that is decided from; the rest is for those who read on."""

    history: History
    series: Series
    facts: Facts

    def known(self, **values: Any) -> Self:
        """The same look, with these facts besides: see `Facts.changed`."""
        return replace(self, facts=self.facts.changed(**values))

    @property
    def verdict(self) -> Verdict:
        return self.facts.verdict

    @property
    def events(self) -> tuple[IncidentEvent, ...]:
        """The incident log, as it stood."""
        return self.facts.events
