"""What a rollback costs, and what nobody will be able to confirm."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentinel.cli.rollback import _priced
from sentinel.plan.incident.baseline import Baseline
from sentinel.plan.restart.forecast import price, unconfirmed
from sentinel.vocabulary.overrides import Anchor, Once, TrainingSettings
from sentinel.vocabulary.pacing import LrSchedule
from tests.support.recovery_plans import decision, run

AT_87 = run(last_step=87, step_time_s=3.6, world_size=1000)


def test_steps_are_counted_to_the_last_one_made_and_not_to_the_last_save() -> None:
    told = price(replace(decision(), target_step=30), AT_87)
    assert told.lost_steps == 57
    assert told.lost_gpu_hours == pytest.approx(57.0)
    assert told.steps_to_next_save == 3
    assert told.waiting_gpu_hours == pytest.approx(3.0)


def test_what_is_not_known_is_said_to_be_unknown() -> None:
    told = price(decision(), run(checkpoints=(), last_step=None))
    assert (told.lost_gpu_hours, told.steps_to_next_save, told.waiting_gpu_hours) == (None, None, None)


def test_what_the_trainer_never_reports_can_not_be_confirmed() -> None:
    silent = run(last_step=None, baseline=Baseline())
    overrides = replace(
        decision().overrides,
        anchor=Anchor(global_step=30),
        standing=TrainingSettings(lr=LrSchedule(peak=1.0, warmup=1, decay_end=0), seqlen=None),
        once=Once(id="incident-1-r1", seed=7),
    )
    said = unconfirmed(replace(decision(), target_step=30, overrides=overrides), silent)
    assert [sentence.split(":")[0] for sentence in said] == [
        "the trainer has reported nothing so far",
        "the new seed",
        "LR schedule",
        "the first sample",
    ]
    assert unconfirmed(decision(), AT_87) == ()


def test_waiting_for_one_more_save_is_told_unless_the_job_is_known_to_be_gone() -> None:
    for jobs, told in (({}, True), ({"known": False}, True), ({"writers": ()}, False)):
        state = AT_87.changed(jobs=replace(AT_87.jobs, **jobs))
        assert any("waiting for one more save" in line for line in _priced(decision(), state)) is told
