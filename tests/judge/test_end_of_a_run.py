"""A run is finished at its planned end, and not where it stopped before."""

from __future__ import annotations

import pytest

from sentinel.judge.history import History
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import Context, VerdictKind, judge
from sentinel.vocabulary.sample import RunFinished, RunStarted, Sample


@pytest.mark.parametrize(
    ("planned_steps", "planned_tokens", "reason", "told"),
    [
        (100, None, "finished", "finished"),
        (101, None, "finished", "stopped at step 100, before its planned end of 101 steps"),
        (None, None, "finished", "finished"),  # no end is known: the trainer's word is all there is
        (None, 1600, "finished", "finished"),
        (None, 1601, "finished", "stopped at step 100, before its planned end of 1601 tokens"),
        (200, 1600, "finished", "finished"),  # whichever comes first
        (100, 9999, "finished", "finished"),
        (200, 9999, "finished", "stopped at step 100, before its planned end of 200 steps or 9999 tokens"),
        (200, None, "sigterm", "sigterm"),
        (100, None, None, None),
    ],
)
def test_only_the_planned_end_is_finished(
    planned_steps: int | None, planned_tokens: int | None, reason: str | None, told: str | None
) -> None:
    history = History()
    history.push(RunStarted(attempt=1, time_unix_s=1.0, total_steps=planned_steps, total_tokens=planned_tokens))
    history.push(Sample(attempt=1, global_step=100, time_unix_s=2.0, loss=3.0, consumed_tokens=1600))
    if reason is not None:
        history.push(RunFinished(attempt=1, global_step=100, time_unix_s=3.0, reason=reason))
    assert history.latest is not None
    assert history.latest.end_reason == told
    seen = Context(
        now_unix_s=4.0, job_alive=False, attempt=1, finished_reason=history.latest.end_reason, last_sample_unix_s=2.0
    )
    verdict = judge(Series(Thresholds()), seen, Thresholds())
    assert verdict.kind is (VerdictKind.FINISHED if told == "finished" else VerdictKind.DOWN)
