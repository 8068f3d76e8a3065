"""What a rollback costs, and what is to be expected of the restart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentinel.plan.baseline import Baseline
from sentinel.plan.price import coming_saves, price, unconfirmed
from sentinel.vocabulary.overrides import Anchor, Once, Standing
from sentinel.vocabulary.pacing import LrSchedule, SeqlenSchedule
from tests.core.test_recovery_plan import decision, run

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
    assert coming_saves(decision(), run(checkpoints=())) == ()


def test_lr_and_seqlen_of_the_coming_saves_are_those_of_the_new_schedules() -> None:
    lr = LrSchedule(peak=1.0, warmup=100, decay_end=0, anchor=30)
    seqlen = SeqlenSchedule(start=8, full=128, total_steps=40, anchor_step=30)
    overrides = replace(decision().overrides, standing=Standing(lr=lr, seqlen=seqlen))
    coming = coming_saves(replace(decision(), target_step=30, overrides=overrides), AT_87)
    assert [(c.global_step, c.lr, c.seqlen) for c in coming] == [
        (31, 0.01, 8),
        (40, 0.10, 32),
        (50, 0.20, 64),
        (60, 0.30, 96),
        (70, 0.40, 128),
    ]


def test_what_the_trainer_never_reports_can_not_be_confirmed() -> None:
    silent = run(last_step=None, baseline=Baseline())
    overrides = replace(
        decision().overrides,
        anchor=Anchor(global_step=30),
        standing=Standing(lr=LrSchedule(peak=1.0, warmup=1, decay_end=0), seqlen=None),
        once=Once(id="incident-1-r1", seed=7),
    )
    said = unconfirmed(replace(decision(), target_step=30, overrides=overrides), silent)
    assert [sentence.split(":")[0] for sentence in said] == [
        "the trainer has reported nothing so far",
        "the new seed",
        "the LR schedule",
        "the first sample",
    ]
    assert unconfirmed(decision(), AT_87) == ()
