"""One observation of the run, with what it was made from still at hand: the history and the judge's state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from sentinel.judge.history import History
from sentinel.judge.series import Series
from sentinel.judge.verdict import Verdict
from sentinel.plan.facts import Facts, journals_of, readings_of
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.observation import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look found. `facts` is all that is decided from; the rest is for those who read on."""

    history: History
    series: Series
    facts: Facts

    @classmethod
    def of(cls, history: History, series: Series, **facts: Any) -> Self:
        """With the facts that follow from the history and the judge, and those given: fields of `Facts`."""
        made = Facts(journals=journals_of(history), readings=readings_of(series), **facts)
        return cls(history=history, series=series, facts=made)

    def known(self, **facts: Any) -> Self:
        """The same look, with these facts besides."""
        return replace(self, facts=replace(self.facts, **facts))

    @property
    def run(self) -> RunState:
        return self.facts.run

    @property
    def verdict(self) -> Verdict:
        return self.facts.verdict

    @property
    def events(self) -> tuple[IncidentEvent, ...]:
        """The incident log, as it stood."""
        return self.facts.events
