"""What a restart runs with at its next saves: the new schedules', and nothing made up where they do not tell."""

from __future__ import annotations

from dataclasses import replace

from sentinel.plan.restart.forecast import Coming, coming_saves
from sentinel.vocabulary.overrides import Anchor, TrainingSettings
from sentinel.vocabulary.pacing import (
    Adaptive,
    BatchSizeSchedule,
    CurriculumSchedule,
    DifficultySchedule,
    FixedLinear,
    LrSchedule,
    MetricSchedule,
    RandomLtdSchedule,
)
from tests.plan.test_recovery_plan import BASELINE, decision, run

AT_87 = run(last_step=87, baseline=replace(BASELINE, full_seqlen=128))
SLW = FixedLinear(start=8, full=128, total_steps=40, anchor_step=30)
FULL_BATCH = BatchSizeSchedule(start=4, full=4, increment=1, ramp_samples=0)


def coming(standing: TrainingSettings) -> tuple[Coming, ...]:
    anchor = Anchor(global_step=30, consumed_samples=120, consumed_tokens=120 * 128)
    made = decision()
    overrides = replace(made.overrides, anchor=anchor, standing=standing)
    return coming_saves(replace(made, target_step=30, overrides=overrides), AT_87)


def test_lr_and_seqlen_of_the_coming_saves_are_those_of_the_new_schedules() -> None:
    lr = LrSchedule(peak=1.0, warmup=100, decay_end=0, anchor=30)
    assert [(c.global_step, c.lr, c.seqlen) for c in coming(TrainingSettings(lr=lr, seqlen=SLW))] == [
        (31, 0.01, 8),
        (40, 0.10, 32),
        (50, 0.20, 64),
        (60, 0.30, 96),
        (70, 0.40, 128),
    ]


def test_a_batch_that_warms_up_is_counted_in_the_samples_that_it_takes_itself() -> None:
    ramp = BatchSizeSchedule(start=1, full=4, increment=1, ramp_samples=45, anchor_samples=120)
    sizes = []
    consumed = 120
    for _ in range(31, 71):
        sizes.append(ramp.samples(consumed))
        consumed += sizes[-1]
    told = coming(TrainingSettings(batch_size=ramp))
    assert [c.global_batch_samples for c in told] == [sizes[step - 31] for step in (31, 40, 50, 60, 70)]
    assert len({c.global_batch_samples for c in told}) > 2


def test_an_lr_by_tokens_goes_by_those_that_the_short_steps_take() -> None:
    lr = LrSchedule(peak=1.0, warmup=20_000, decay_end=0, anchor=120 * 128, unit="tokens")
    told = {c.global_step: c.lr for c in coming(TrainingSettings(lr=lr, seqlen=SLW, batch_size=FULL_BATCH))}
    taken = sum(4 * SLW.seqlen(step) for step in range(31, 60))
    assert told[31] == 0.0
    assert told[60] == taken / 20_000
    by_tokens = replace(lr, unit="steps", warmup=10, anchor=30, decay_start=100, decay_end=40_000, decay_unit="tokens")
    decayed = {c.global_step: c.lr for c in coming(TrainingSettings(lr=by_tokens, seqlen=SLW, batch_size=FULL_BATCH))}
    assert decayed[60] == by_tokens.lr(step=60, consumed_tokens=120 * 128 + taken) < 0.6
    reshaped = {
        c.global_step: c.lr
        for c in coming(TrainingSettings(lr=lr, seqlen=SLW, batch_size=FULL_BATCH, shorten="reshape"))
    }
    assert reshaped[60] == sum(4 * (128 // SLW.seqlen(s)) * SLW.seqlen(s) for s in range(31, 60)) / 20_000


def test_what_is_dropped_and_what_is_drawn_from_is_told() -> None:
    ltd = RandomLtdSchedule(start=16, full=128, total_steps=40, anchor_step=30)
    voc = DifficultySchedule(kind="percentile", start=1, full=100, total_steps=40, anchor_step=30)
    curriculum = CurriculumSchedule(metrics={"voc": MetricSchedule(difficulty=voc, index="/voc")})
    first, *_, last = coming(TrainingSettings(random_ltd=ltd, curriculum=curriculum, batch_size=FULL_BATCH))
    said = "at step 31: lr not known, seqlen 128, 4 samples, random-LTD keeps 16 tokens, voc up to 3 %"
    assert str(first) == said
    assert (last.kept_tokens, last.curriculum) == (None, "voc up to 100 %")


def test_what_nobody_can_foresee_is_left_open() -> None:
    by_tokens = LrSchedule(peak=1.0, warmup=20_000, decay_end=0, unit="tokens")
    ltd = RandomLtdSchedule(start=16, full=128, total_steps=40, anchor_step=30)
    dropping = coming(TrainingSettings(lr=by_tokens, random_ltd=ltd, batch_size=FULL_BATCH))
    assert {c.lr for c in dropping} == {None}  # the layers that drop are the trainer's to count
    waiting = coming(
        TrainingSettings(lr=by_tokens, seqlen=Adaptive(start=8, full=128, anchor_step=30), batch_size=FULL_BATCH)
    )
    assert [(c.seqlen, c.lr is None) for c in waiting][:2] == [(8, False), (None, True)]
    assert "seqlen not known" in str(waiting[1])
    assert coming_saves(decision(), run(checkpoints=())) == ()
