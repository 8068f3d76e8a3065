"""A run is finished at its planned end, and not where it stopped before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sentinel.judge.history import LAST_SAMPLES, History
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import Context, VerdictKind, judge
from sentinel.vocabulary.sample import CheckpointSaved, LayerVariance, RunFinished, RunStarted, Sample, Validation


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


@pytest.mark.parametrize("asked_again", [False, True])
def test_each_record_is_kept_with_its_attempt(asked_again: bool) -> None:
    """A command that reads a run once keeps all layers; whoever can ask again those of saves, and the last."""
    history = History(again=(lambda *_: []) if asked_again else None)
    first = LayerVariance(
        attempt=3, global_step=1, time_unix_s=0.0, layers=("0",), adam_variance_l1=(1.0,), adam_variance_max=(1.0,)
    )
    layers = [replace(first, global_step=step) for step in (1, 2, 3)]
    started = RunStarted(attempt=3, time_unix_s=0.0)
    validated = Validation(attempt=3, global_step=1, time_unix_s=0.0, loss=3.0)
    saved = CheckpointSaved(attempt=3, global_step=1, time_unix_s=0.0, tag="global_step1")
    finished = RunFinished(attempt=3, global_step=3, time_unix_s=0.0, reason="finished")
    for record in (started, layers[0], validated, saved, *layers[1:], finished):
        history.push(record)
    attempt = history.attempts[3]
    assert attempt.layers == ([layers[0], layers[2]] if asked_again else layers)
    assert (attempt.started, attempt.validations, attempt.saved) == (started, [validated], [saved])
    assert attempt.finished == finished
    assert attempt.made == 0
    assert history.latest is attempt


@pytest.mark.parametrize(("resumed_from", "saved_by"), [(30, 3), (20, 2), (11, 2), (10, 1), (5, 1)])
def test_a_start_goes_on_from_the_attempt_that_saved_its_checkpoint_also_where_it_names_the_one_before(
    resumed_from: int, saved_by: int
) -> None:
    """As a loop does that is resumed in place a second time, from before its first resume."""
    history = History()
    for attempt, (parent, step) in enumerate([(None, None), (1, 10), (2, 20), (3, resumed_from)], start=1):
        history.push(RunStarted(attempt=attempt, time_unix_s=0.0, parent_attempt=parent, resumed_from=step))
    parent, at = history.parent(history.attempts[4])
    assert (parent and parent.number, at) == (saved_by, resumed_from)


def test_samples_that_are_at_hand_are_not_asked_for_again() -> None:
    asked: list[int] = []
    history = History(again=lambda number, _=-1: asked.append(number) or [])
    made = [
        Sample(attempt=1, global_step=step, time_unix_s=0.0, loss=3.0) for step in range(1, 1 + LAST_SAMPLES * 5 // 4)
    ]
    for sample in made:
        history.push(sample)
    assert list(history.samples(history.attempts[1])) == made
    assert asked == []
    for step in (2000, 2001):
        history.push(Sample(attempt=1, global_step=step, time_unix_s=0.0, loss=3.0))
    assert len(history.attempts[1].samples) <= LAST_SAMPLES * 5 // 4
    assert list(history.samples(history.attempts[1])) == []
    assert asked == [1]


@pytest.mark.parametrize(
    ("seen", "kind", "words"),
    [
        ({"job_was_seen": True}, VerdictKind.DOWN, "the job is gone, and its first attempt had not begun"),
        ({}, VerdictKind.PENDING, "no attempt has begun, and no job is there"),
        ({"attempt": 2, "finished_reason": "finished"}, VerdictKind.FINISHED, "attempt 2 reached its planned end"),
        (
            {"attempt": 2, "finished_reason": "finished", "taken_back": "incident-1"},
            VerdictKind.PENDING,
            "the undo of incident-1 took attempt 2 back",  # its end is not the run's
        ),
    ],
)
def test_a_job_that_is_gone_before_its_first_step_is_down_and_after_an_undo_nothing_has_finished(
    seen: dict[str, Any], kind: VerdictKind, words: str
) -> None:
    verdict = judge(Series(Thresholds()), Context(now_unix_s=9.0, job_alive=False, **seen), Thresholds())
    assert verdict.kind is kind
    assert words in verdict.reason
