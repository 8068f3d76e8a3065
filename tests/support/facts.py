"""Facts by the names of their fields, whichever group each is in."""

from __future__ import annotations

from typing import Any

from sentinel.act.observation import Observation
from sentinel.judge.history import History
from sentinel.judge.series import Series
from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.facts import Facts, readings_of
from sentinel.plan.readings_seen import JournalFacts

HEALTHY = Verdict(kind=VerdictKind.HEALTHY, reason="the loss is inside its own noise band")


def facts_of(*, now_unix_s: float = 0.0, verdict: Verdict = HEALTHY, **values: Any) -> Facts:
    return Facts(now_unix_s=now_unix_s, verdict=verdict).changed(**values)


def journals_for(*rollbacks: str) -> tuple[JournalFacts, ...]:
    """One attempt's for each, which has reported that it was started for the rollback."""
    return tuple(JournalFacts(number=n, reported=True, rollback=one) for n, one in enumerate(rollbacks, 1))


def look_of(history: History, series: Series, facts: Facts) -> Observation:
    """The look at these facts, with what follows from the history and the judge."""
    read = readings_of(history, series)
    fields = ("journals", "judged_step", "logit_warning", "plateaus")
    return Observation(
        history=history, series=series, facts=facts.changed(**{name: getattr(read, name) for name in fields})
    )
