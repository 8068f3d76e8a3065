"""Looks at a run, as the turns' tests need them: healthy, or whatever a test says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.judge.history import History
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.facts import Facts, readings_of
from sentinel.vocabulary.sample import CheckpointSaved, RunFinished, RunStarted, Sample
from tests.support.facts import HEALTHY
from tests.support.recovery_plans import incident, run

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


def look(**seen: Any) -> Facts:
    """Facts by the names of their fields, and `history` and `series`, which they follow from. No incident, but
    `incidents=None` is an open one."""
    made, series = seen.pop("history", None), seen.pop("series", None)
    if "incidents" in seen and seen["incidents"] is None:
        seen["incidents"] = (incident(),)
    read = readings_of(made or history(), series or Series(Thresholds()))
    values = {"incidents": (), "verdict": HEALTHY, "journals": read.journals, **seen}
    if made is not None or series is not None:
        values = {field: getattr(read, field) for field in _READ} | values
    return run(**values)


_READ = ("judged_step", "logit_warning", "plateaus")
