"""Looks at a run, as the turns' tests need them: healthy, or whatever a test says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.judge.history import History
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.facts import Facts, Memory, journals_of, readings_of
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.vocabulary.sample import CheckpointSaved, RunFinished, RunStarted, Sample
from tests.support.recovery_plans import incident, run

HEALTHY = Verdict(kind=VerdictKind.HEALTHY, reason="the loss is inside its own noise band")
DOWN = Verdict(kind=VerdictKind.DOWN, reason="attempt 1 is gone without a word: no process is left")
STALLED = Verdict(kind=VerdictKind.STALLED, reason="the job is alive, but journal and log have been silent for 700 s")
FINISHED = Verdict(kind=VerdictKind.FINISHED, reason="attempt 1 reached its planned end")


def history(
    steps: Mapping[int, int] | None = None,
    *,
    started_for: Mapping[int, str] | None = None,
    saved: tuple[int, ...] = (),
    ended: str | None = None,
) -> History:
    """Attempts with so many steps each; the last one has ended with that reason."""
    made = History()
    for attempt, count in (steps or {1: 3}).items():
        rollback = (started_for or {}).get(attempt)
        made.push(RunStarted(attempt=attempt, time_unix_s=float(attempt), rollback=rollback))
        for step in range(1, count + 1):
            made.push(Sample(attempt=attempt, global_step=step, time_unix_s=float(step), loss=3.0))
        if attempt in saved:
            made.push(CheckpointSaved(attempt=attempt, global_step=count, time_unix_s=0.0, tag=f"global_step{count}"))
    if ended is not None and made.latest is not None:
        number = made.latest.number
        made.push(RunFinished(attempt=number, global_step=made.latest.made, time_unix_s=9.0, reason=ended))
    return made


_OF_FACTS = tuple(Facts.__slots__)


def look(**seen: Any) -> Facts:
    """Facts; fields of `Facts` and of `RunState` by their names, and `history` and `series`, which they follow
    from. No incident, but `incidents=None` is an open one."""
    made, series = seen.pop("history", None), seen.pop("series", None)
    of_run = {key: value for key, value in seen.items() if key not in _OF_FACTS}
    if "incidents" in of_run and of_run["incidents"] is None:
        of_run["incidents"] = (incident(),)
    values: dict[str, Any] = {
        "journals": journals_of(made or history()),
        "readings": readings_of(series or Series(Thresholds())),
        "run": run(**{"incidents": (), **of_run}),
        "verdict": HEALTHY,
        "events": tuple[IncidentEvent, ...](),
        "memory": Memory(),
    }
    return Facts(**(values | {key: value for key, value in seen.items() if key in _OF_FACTS}))
