"""The proof of each change: what the trainer reports counts, and silence only where the plan foresaw it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.plan.incident.baseline import Baseline, baseline_of
from sentinel.plan.incident.incident import Proof, Rollback, failure
from sentinel.plan.starts.evidence import Evidence, find
from sentinel.plan.starts.proof import Check, outcome, prove, unreported
from sentinel.vocabulary.numbers import dump_json, load_object
from sentinel.vocabulary.overrides import Anchor, Free, Once, Overrides, TrainingSettings
from sentinel.vocabulary.pacing import (
    Adaptive,
    BatchSizeSchedule,
    CurriculumSchedule,
    DifficultySchedule,
    FixedDiscrete,
    FixedLinear,
    FixedRoot,
    LrSchedule,
    MetricSchedule,
    RandomLtdSchedule,
)
from sentinel.vocabulary.sample import RunStarted, Sample, decode, encode
from sentinel.vocabulary.training_settings import SkippedRange, setting_of

ID = "incident-2-r1"
OLD = SkippedRange(begin=64, end=96, reseeds=((0, 3),))
NEW = SkippedRange(begin=640, end=900, reseeds=((0, 3),))
FREE = Free(environment={"NCCL_ALGO": "Ring"}, options=("--foo=1e-6",))
OVERRIDES = Overrides(
    incident="incident-2",
    rollback=ID,
    anchor=Anchor(global_step=40, consumed_samples=640),
    standing=TrainingSettings(
        adam_beta1=0.8,
        adam_beta2=0.95,
        weight_decay=0.1,
        clip_grad=0.3,
        qk_clip=100.0,
        lr_factor_of={"attention.qk": 0.25},
        skipped=(OLD,),
        free=FREE,
    ),
    once=Once(id=ID, seed=4, skip_samples=260, reset_moments=True, loss_scale=512.0),
)
DECISION = Rollback(
    id=ID,
    rung="all of it",
    hypothesis="…",
    target_tag="global_step40",
    target_step=40,
    overrides=OVERRIDES,
    changes=(),
    decided_unix_s=7.0,
    lost_steps=70,
)
STARTED = RunStarted(
    attempt=2,
    time_unix_s=9.0,
    resumed_from=40,
    rollback=ID,
    applied_once=(ID,),
    seed=4,
    first_sample_index=900,
    skipped_samples=292,
    skipped_ranges=(OLD.to_json(), NEW.to_json()),
    adam_beta1=0.8,
    adam_beta2=0.95,
    weight_decay=0.1,
    gradient_clipping=0.3,
    qk_clip=100.0,
    lr_factor_of={"attention.qk": 0.25},
    precision="fp16",
    loss_scale=512.0,
    moments_reset_steps=(40,),
    free=FREE.to_json(),
)


def answers(started: RunStarted, decision: Rollback = DECISION) -> dict[str, Proof]:
    return {check.what: check.answer for check in prove(decision, Evidence(started=started))}


def wrong(started: RunStarted, decision: Rollback = DECISION) -> list[str]:
    return [what for what, answer in answers(started, decision).items() if answer is Proof.CONTRADICTED]


def silent(started: RunStarted, decision: Rollback = DECISION) -> list[str]:
    return [what for what, answer in answers(started, decision).items() if answer is Proof.NOT_VERIFIED]


def test_a_report_that_is_what_was_decided_proves_every_change() -> None:
    assert set(answers(STARTED).values()) == {Proof.CONFIRMED}
    assert set(answers(STARTED)) >= {
        "skipped_samples",
        "moments_reset_steps",
        "loss_scale",
        "adam_beta1",
        "adam_beta2",
        "weight_decay",
        "gradient_clipping",
        "ranges skipped earlier",
        "free",
    }


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"adam_beta1": 0.9}, "adam_beta1"),
        ({"adam_beta2": 0.999}, "adam_beta2"),
        ({"weight_decay": 0.01}, "weight_decay"),
        ({"gradient_clipping": 1.0}, "gradient_clipping"),
        ({"qk_clip": 0.0}, "qk_clip"),
        ({"lr_factor_of": {}}, "lr_factor_of"),
        ({"loss_scale": 65536.0}, "loss_scale"),
        ({"moments_reset_steps": ()}, "moments_reset_steps"),
        ({"moments_reset_steps": (30,)}, "moments_reset_steps"),
        ({"skipped_ranges": (OLD.to_json(),)}, "skipped_samples"),
        ({"skipped_ranges": (NEW.to_json(),)}, "ranges skipped earlier"),
        ({"skipped_ranges": (OLD.to_json(), NEW.to_json() | {"end": 899})}, "skipped_samples"),
        ({"first_sample_index": 640}, "first_sample_index of at least 900"),
        ({"free": {"environment": {}, "options": ["--foo=1e-6"]}}, "free"),
        ({"applied_once": ()}, f"one-shot changes of {ID}"),
    ],
)
def test_a_change_that_was_silently_ignored_is_found(changed: dict[str, Any], what: str) -> None:
    assert wrong(replace(STARTED, **changed)) == [what]


@pytest.mark.parametrize(
    ("field", "what"),
    [
        ("adam_beta1", "adam_beta1"),
        ("adam_beta2", "adam_beta2"),
        ("weight_decay", "weight_decay"),
        ("gradient_clipping", "gradient_clipping"),
        ("qk_clip", "qk_clip"),
        ("lr_factor_of", "lr_factor_of"),
        ("loss_scale", "loss_scale"),
        ("moments_reset_steps", "moments_reset_steps"),
        ("free", "free"),
        ("seed", "seed"),
    ],
)
def test_silence_is_no_proof_also_where_the_plan_foresaw_it(field: str, what: str) -> None:
    said_nothing = replace(STARTED, **{field: None})
    for decision in (DECISION, replace(DECISION, unconfirmed=(what,))):
        assert (wrong(said_nothing, decision), silent(said_nothing, decision)) == ([], [what])
        assert outcome(prove(decision, Evidence(started=said_nothing))) is Proof.NOT_VERIFIED
        if field not in ("moments_reset_steps", "free"):  # a report that contradicts the plan is no silence
            assert wrong(replace(STARTED, **{field: 77}), decision) == [what]


def test_a_log_alone_that_keeps_no_record_of_one_shot_changes_contradicts_nothing() -> None:
    said_nothing = replace(STARTED, applied_once=None)
    assert (wrong(said_nothing), silent(said_nothing)) == ([], [f"one-shot changes of {ID}"])


@pytest.mark.parametrize(
    ("expected", "reported", "answer"),
    [
        (0.95, 0.95 * (1 + 1e-12), Proof.CONFIRMED),
        (0.95, 0.95 * (1 - 1e-12), Proof.CONFIRMED),
        (0.95, 0.95 * (1 + 4e-9), Proof.CONTRADICTED),
        (0.95, 0.95 * (1 - 4e-9), Proof.CONTRADICTED),
        (1.0, 1, Proof.CONFIRMED),
        (0.0, 0.0, Proof.CONFIRMED),
        (0.1, "0.1", Proof.CONTRADICTED),
        (3, 4, Proof.CONTRADICTED),
        (0.95, None, Proof.NOT_VERIFIED),
    ],
)
def test_a_setting_is_confirmed_to_nine_digits(expected: object, reported: object, answer: Proof) -> None:
    assert Check(what="adam_beta2", expected=expected, reported=reported).answer is answer


def test_that_it_has_read_the_overrides_at_all_has_to_be_confirmed_always() -> None:
    everything = unreported(OVERRIDES, Baseline())
    assert "rollback" not in everything
    assert not any(what.startswith("one-shot") for what in everything)
    said_nothing = RunStarted(attempt=2, time_unix_s=9.0, resumed_from=40, first_sample_index=900, applied_once=())
    assert wrong(said_nothing, replace(DECISION, unconfirmed=tuple(everything)))[:2] == [
        "rollback",
        f"one-shot changes of {ID}",
    ]


def test_a_trainer_that_counts_without_a_ledger_is_proved_by_the_count() -> None:
    counting = replace(STARTED, skipped_ranges=None)
    assert answers(counting)["skipped_samples"] is Proof.CONFIRMED
    assert answers(counting)["ranges skipped earlier"] is Proof.NOT_VERIFIED
    assert Check(what="skipped_samples", expected=292, reported=32).answer is Proof.CONTRADICTED


def test_a_requeue_after_the_anchor_still_has_it_all_on_the_record() -> None:
    later = replace(STARTED, resumed_from=60, first_sample_index=1220, loss_scale=2048.0)
    assert wrong(later) == []
    assert wrong(replace(later, moments_reset_steps=())) == ["moments_reset_steps"]


def test_what_the_trainer_has_reported_before_is_expected_again() -> None:
    told = Baseline(
        seed=3,
        adam_beta1=0.9,
        adam_beta2=0.999,
        weight_decay=0.01,
        clip_grad=1.0,
        qk_clip=0.0,
        lr_factor_of={},
        precision="fp16",
        skipped=(),
        moments_reset_steps=(),
        free=Free(),
    )
    assert unreported(OVERRIDES, told) == {}
    said = unreported(OVERRIDES, replace(told, adam_beta2=None, moments_reset_steps=None))
    assert list(said) == ["moments_reset_steps", "adam_beta2"]
    assert said["adam_beta2"] == "Adam's beta2: the trainer has never reported the one that it runs with"


BATCH = BatchSizeSchedule(start=16, full=64, increment=16, ramp_samples=4800, anchor_samples=640)
LTD = RandomLtdSchedule(start=16, full=128, total_steps=200, anchor_step=40, layers=(1, 2))
VOC = DifficultySchedule(kind="percentile", start=1, full=100, total_steps=300, root_degree=2, anchor_step=40)
CURRICULUM = CurriculumSchedule(metrics={"voc": MetricSchedule(difficulty=VOC, index="/voc")})
PACING = replace(
    DECISION,
    overrides=replace(
        OVERRIDES,
        standing=TrainingSettings(
            seqlen=FixedRoot(start=8, full=128, total_steps=90, anchor_step=40),
            shorten="reshape",
            batch_size=BATCH,
            random_ltd=LTD,
            curriculum=CURRICULUM,
        ),
        once=None,
    ),
)
PACED = RunStarted(
    attempt=2,
    time_unix_s=9.0,
    resumed_from=40,
    rollback=ID,
    first_sample_index=640,
    seqlen=16,
    seqlen_schedule=FixedRoot(start=8, full=128, total_steps=90, anchor_step=40).to_json(),
    seqlen_shortening="reshape",
    batch_size_schedule=BATCH.to_json(),
    random_ltd_schedule=LTD.to_json(),
    curriculum_schedule=CURRICULUM.to_json(),
)


def test_a_pacing_that_took_effect_is_proved_from_the_journals_own_line() -> None:
    read = decode(encode(PACED))
    assert isinstance(read, RunStarted)
    assert set(answers(read, PACING).values()) == {Proof.CONFIRMED}
    assert set(answers(read, PACING)) >= {
        "seqlen_schedule",
        "seqlen of the first step",
        "seqlen_shortening",
        "batch_size_schedule",
        "random_ltd_schedule",
        "curriculum_schedule",
    }


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"seqlen": 128}, "seqlen of the first step"),
        ({"seqlen_schedule": {"start": 8, "full": 128, "total_steps": 90, "anchor_step": 40}}, "seqlen_schedule"),
        ({"seqlen_shortening": "truncate"}, "seqlen_shortening"),
        ({"batch_size_schedule": replace(BATCH, ramp_samples=0).to_json()}, "batch_size_schedule"),
        ({"random_ltd_schedule": replace(LTD, anchor_step=0).to_json()}, "random_ltd_schedule"),
        ({"curriculum_schedule": {}}, "curriculum_schedule"),
    ],
)
def test_a_pacing_that_did_not_take_effect_is_found(changed: dict[str, Any], what: str) -> None:
    assert wrong(replace(PACED, **changed), PACING) == [what]


def test_a_length_that_nobody_can_foresee_is_not_asked_for() -> None:
    adaptive = Adaptive(start=8, full=128, anchor_step=40)
    standing = replace(PACING.overrides.standing, seqlen=adaptive)
    decision = replace(PACING, overrides=replace(PACING.overrides, standing=standing))
    started = replace(PACED, seqlen_schedule=adaptive.to_json(), seqlen=8)
    assert wrong(started, decision) == []
    assert wrong(replace(started, seqlen=16), decision) == ["seqlen of the first step"]
    assert wrong(replace(started, resumed_from=60, seqlen=24), decision) == []


TOKENWISE = LrSchedule(peak=1.0, warmup=100_000, decay_end=1_000_000, unit="tokens")


@pytest.mark.parametrize(
    ("schedule", "effective", "counted"),
    [
        (TOKENWISE, 60_000, 60_000),  # random-LTD has dropped the rest: they warm nothing up
        (TOKENWISE, None, 80_000),  # a trainer without it tells the consumed ones alone
        (replace(TOKENWISE, unit="steps", warmup=50, decay_end=700_000, decay_unit="tokens"), 60_000, 60_000),
    ],
)
def test_an_lr_that_counts_tokens_counts_those_that_were_not_dropped(
    schedule: LrSchedule, effective: int | None, counted: int
) -> None:
    decision = replace(DECISION, overrides=replace(OVERRIDES, standing=TrainingSettings(lr=schedule), once=None))
    first = schedule.lr(step=41, consumed_tokens=counted)
    started = replace(
        STARTED,
        first_sample_index=640,
        consumed_tokens=80_000,
        effective_tokens=effective,
        lr=first,
        lr_schedule=schedule.to_json(),
    )
    assert wrong(started, decision) == []
    other = schedule.lr(step=41, consumed_tokens=140_000 - counted)
    assert other != first
    assert wrong(replace(started, lr=other), decision) == ["lr of the first step"]


def test_a_trainer_that_knows_of_no_such_pacing_is_said_to_confirm_nothing() -> None:
    said = unreported(PACING.overrides, Baseline(full_seqlen=128))
    silent = ["seqlen_shortening", "batch_size_schedule", "random_ltd_schedule", "curriculum_schedule"]
    assert list(said) == silent
    reported = baseline_of(PACED)
    assert unreported(PACING.overrides, reported) == {}
    assert (reported.shorten, reported.batch_size, reported.random_ltd) == ("reshape", BATCH, LTD)
    assert reported.curriculum == CURRICULUM
    off = replace(PACED, random_ltd_schedule=replace(LTD, total_steps=0).to_json(), curriculum_schedule={})
    assert unreported(PACING.overrides, baseline_of(off)) == {}


ARGUMENTS = {"learning_rate": 1e-5, "max_grad_norm": 0.3, "adam_beta2": 0.95, "per_device_train_batch_size": 4}
"""What Trainer shows of its arguments when the options were passed, whatever it trains with."""

ILL = RunStarted(attempt=1, time_unix_s=1.0, settings={"learning_rate": 1e-3, "max_grad_norm": 1.0})


def told(option: str, *, lr: float | None = None, before: float | None = None, **reported: Any) -> Proof:
    """The answer for a free-form change of a run that has taken the same three steps before."""
    standing = TrainingSettings(free=Free(options=(option,)))
    decision = replace(DECISION, overrides=replace(OVERRIDES, standing=standing, once=None))
    steps = range(41, 44)
    sample = Sample(attempt=2, global_step=0, time_unix_s=9.0, loss=3.0, lr=lr, seqlen=128, global_batch_samples=16)
    shown = Evidence(
        started=RunStarted(attempt=2, time_unix_s=9.0, resumed_from=40, rollback=ID, **reported),
        samples=tuple(replace(sample, global_step=step) for step in steps),
        before=ILL,
        lr_before={} if before is None else dict.fromkeys(steps, before),
    )
    (answer,) = (c.answer for c in prove(decision, shown) if option.partition("=")[0] in c.what)
    return answer


YES, NO, UNKNOWN = Proof.CONFIRMED, Proof.CONTRADICTED, Proof.NOT_VERIFIED


@pytest.mark.parametrize(
    ("option", "shown", "answer"),
    [
        ("--learning_rate=1e-5", {"lr": 9e-4, "settings": ARGUMENTS}, NO),  # the checkpoint's scheduler is in force
        ("--lr=1e-5", {"lr": 1.0001e-5}, YES),  # as a log prints it
        ("--lr=1e-5", {"lr": 1.02e-5}, NO),
        ("--lr=1e-5", {"lr": 9e-6, "before": 9e-4}, YES),  # a hundredth of what the same steps had
        ("--lr=1e-5", {"lr": 9e-6, "before": 8e-4}, UNKNOWN),
        ("--lr=1e-5", {"lr": 9e-6}, UNKNOWN),  # it may warm up or decay
        ("--lr=2e-3", {"lr": 9e-4, "before": 9e-4}, NO),  # raised, and the same as before
        ("--lr=2e-3", {"lr": 1.8e-3, "before": 9e-4}, YES),
        ("--learning-rate=1e-5", {"settings": ARGUMENTS}, UNKNOWN),  # asked for, and no step tells its lr
        ("--learning-rate=1e-5", {"settings": {"learning_rate": 1e-3}}, NO),  # not even passed
        ("--lr=$LR", {"lr": 1e-5}, UNKNOWN),
        ("--max_grad_norm=0.3", {"gradient_clipping": 1.0, "settings": ARGUMENTS}, NO),
        ("--clip-grad=0.3", {"gradient_clipping": 0.3}, YES),
        ("--clip-grad=0.3", {"settings": ARGUMENTS}, UNKNOWN),
        ("--clip-grad=0.3", {"gradient_clipping": 0.3, "from_arguments": ("gradient_clipping",)}, UNKNOWN),
        ("--clip-grad=0.3", {"gradient_clipping": 1.0, "from_arguments": ("gradient_clipping",)}, NO),
        ("--adam-beta2=0.95", {"adam_beta2": 0.999, "settings": ARGUMENTS}, NO),
        ("--adam_beta2=0.95", {"adam_beta2": 0.95}, YES),
        ("--weight-decay=0.1", {"weight_decay": 0.0}, NO),
        ("--seed=9", {"seed": 9}, YES),
        ("--seed=9", {"seed": 8}, NO),
        ("--seq-length=128", {}, YES),
        ("--seq-length=64", {}, NO),
        ("--seq-length=256", {}, UNKNOWN),  # it may warm up
        ("--global-batch-size=8", {}, NO),
        ("--micro-batch-size=4", {"settings": ARGUMENTS}, YES),  # nothing that a checkpoint brings back
        ("--micro-batch-size=2", {"settings": ARGUMENTS}, NO),
        ("--loss-scale=512", {"loss_scale": 512.0}, YES),
        ("--warmup-steps=500", {"settings": {"warmup_steps": 500}}, UNKNOWN),
        ("--warmup-steps=500", {"settings": {"warmup_steps": 5}}, NO),
        ("--foo=1e-6", {}, UNKNOWN),  # no known setting: only an echo could tell
        ("--foo=1e-6", {"free": {"environment": {}, "options": ["--foo=1e-6"]}}, YES),
        ("--foo=1e-6", {"free": {"environment": {}, "options": []}}, NO),
    ],
)
def test_an_option_that_names_a_setting_is_looked_for_in_what_was_measured(
    option: str, shown: dict[str, Any], answer: Proof
) -> None:
    if setting_of(option.partition("=")[0]) is None:
        option, decided = "free", TrainingSettings(free=Free(options=(option,)))
        decision = replace(DECISION, overrides=replace(OVERRIDES, standing=decided, once=None))
        started = RunStarted(attempt=2, time_unix_s=9.0, resumed_from=40, rollback=ID, **shown)
        assert answers(started, decision)["free"] is answer
        return
    assert told(option, **shown) is answer


def test_the_first_steps_contradict_a_start_report_that_promises_the_schedule() -> None:
    lr = LrSchedule(peak=1e-3, warmup=100, anchor=40, decay_end=0)
    decision = replace(DECISION, overrides=replace(OVERRIDES, standing=TrainingSettings(lr=lr), once=None))
    first = lr.lr(step=41)
    started = replace(STARTED, first_sample_index=640, lr=first, lr_schedule=lr.to_json())
    sample = Sample(attempt=2, global_step=41, time_unix_s=9.0, loss=3.0, lr=first)
    shown = Evidence(started=started, samples=(sample,))
    assert outcome(prove(decision, shown)) is Proof.CONFIRMED
    for reported, found in (
        (1e-3, ["lr of the first steps"]),
        (1.005 * first, ["lr of the first steps"]),
        (1.0005 * first, []),
    ):
        steps = (replace(sample, lr=reported), replace(sample, global_step=42, lr=lr.lr(step=42)))
        checks = prove(decision, replace(shown, samples=steps))
        assert [c.what for c in checks if c.answer is Proof.CONTRADICTED] == found
        (check,) = (c for c in checks if c.what == "lr of the first steps")
        assert (check.expected, check.reported) == (first, reported)
        assert check.why == ("the lr of step 41" if found else None)


@pytest.mark.parametrize(
    ("now", "before", "answer"),
    [
        (2e-4, 8e-4, YES),
        (8e-4, 8e-4, NO),
        (8.004e-4, 8e-4, NO),  # as a log prints it
        (8.04e-4, 8e-4, YES),
        (2e-4, None, UNKNOWN),
        (3e-3, 8e-4, NO),
        (1.0005e-3, 8e-4, YES),  # the peak, as a log prints it
        (1.005e-3, 8e-4, NO),
    ],
)
def test_an_lr_that_a_job_script_carries_has_to_differ_from_what_the_same_steps_had(
    now: float, before: float | None, answer: Proof
) -> None:
    """A log of Megatron's has no schedule in samples or tokens: its first steps are all there is."""
    standing = TrainingSettings(lr=LrSchedule(peak=1e-3, warmup=800, anchor=40, decay_end=0))
    overrides = replace(OVERRIDES, standing=standing, once=None)
    decision = replace(DECISION, overrides=overrides, in_script=True)
    shown = Evidence(
        started=replace(STARTED, first_sample_index=640, lr_schedule=None),
        samples=(Sample(attempt=2, global_step=41, time_unix_s=9.0, loss=3.0, lr=now),),
        lr_before={} if before is None else {41: before},
    )
    assert outcome(prove(decision, shown)) is answer


@pytest.mark.parametrize(
    ("warmup", "steps", "answer"), [(800, {41: 2e-4}, YES), (100, {41: 2e-4}, NO), (800, {}, UNKNOWN)]
)
def test_the_schedule_that_megatrons_own_scheduler_runs_with_is_compared_with_the_plan(
    warmup: int, steps: dict[int, float], answer: Proof
) -> None:
    lr = LrSchedule(peak=1e-3, warmup=800, decay_end=0, unit="samples")
    overrides = replace(OVERRIDES, standing=TrainingSettings(lr=lr), once=None)
    told = replace(lr, warmup=warmup, decay_start=warmup, decay_end=9000).to_json()
    samples = tuple(Sample(attempt=2, global_step=s, time_unix_s=9.0, loss=3.0, lr=v) for s, v in steps.items())
    shown = Evidence(started=replace(STARTED, first_sample_index=640, lr_schedule=told), samples=samples)
    assert outcome(prove(replace(DECISION, overrides=overrides, in_script=True), shown)) is answer


@pytest.mark.parametrize(("last", "answer"), [(140, YES), (150, NO)])
def test_the_staircase_that_a_script_performs_is_compared_by_its_lengths(last: int, answer: Proof) -> None:
    wanted = FixedLinear(start=8, full=16, total_steps=100, anchor_step=40, multiple=8)
    staircase = FixedDiscrete(start=8, full=16, difficulties=(8, 16), max_steps=(last - 1,))
    overrides = replace(OVERRIDES, standing=TrainingSettings(seqlen=wanted), once=None)
    sample = Sample(attempt=2, global_step=41, time_unix_s=9.0, loss=3.0, seqlen=8)
    started = replace(STARTED, first_sample_index=640, seqlen_schedule=staircase.to_json())
    decision = replace(DECISION, overrides=overrides, in_script=True)
    assert outcome(prove(decision, Evidence(started=started, samples=(sample,)))) is answer


def test_what_stays_as_it_was_has_to_stay_and_need_not_be_shown_again() -> None:
    before = Baseline(adam_beta2=0.999)
    standing = TrainingSettings(adam_beta2=0.999)
    decision = replace(DECISION, overrides=replace(OVERRIDES, standing=standing))
    started = replace(STARTED, adam_beta2=None)
    assert outcome(prove(decision, Evidence(started=started), before)) is Proof.CONFIRMED
    lost = replace(started, adam_beta2=0.95)
    assert outcome(prove(decision, Evidence(started=lost), before)) is Proof.CONTRADICTED


def test_the_plan_says_beforehand_which_settings_only_an_argument_shows() -> None:
    free = Free(options=("--clip-grad=0.3", "--weight-decay=0.1", "--adam-beta1=0.8"))
    overrides = replace(OVERRIDES, standing=TrainingSettings(adam_beta2=0.95, free=free), once=None)
    told = Baseline(adam_beta2=0.999, clip_grad=1.0, adam_beta1=0.9, from_arguments=("adam_beta2", "clip_grad"))
    said = unreported(overrides, told)
    assert list(said) == ["adam_beta2", "--clip-grad (clip_grad)", "--weight-decay (weight_decay)"]
    assert said["--clip-grad (clip_grad)"].endswith("and a checkpoint can bring the old value back")
    assert unreported(replace(overrides, standing=TrainingSettings(adam_beta2=0.999)), told) == {}
    assert Baseline.from_json(load_object(dump_json(told.to_json()))) == told


CLIPPING_ALONE = Overrides(
    incident="incident-2", rollback=ID, anchor=Anchor(global_step=40), standing=TrainingSettings(clip_grad=0.3)
)
SENTENCE = "clipping can be confirmed only by the trainer's own start report, samples cannot show it"


@pytest.mark.parametrize("norms", [(0.1, 0.2, 0.29), (0.3, 0.3, 0.3), (0.3, 4.0, 70.0)])
@pytest.mark.parametrize("told", [{}, {"gradient_clipping": 0.3, "from_arguments": ("gradient_clipping",)}])
@pytest.mark.parametrize("free", [False, True])
def test_no_gradient_norm_confirms_or_contradicts_clipping_and_the_rung_stays_unverified(
    norms: tuple[float, ...], told: dict[str, Any], free: bool
) -> None:
    standing = TrainingSettings(free=Free(options=("--clip-grad=0.3",))) if free else CLIPPING_ALONE.standing
    decision = replace(DECISION, overrides=replace(CLIPPING_ALONE, standing=standing))
    samples = tuple(
        Sample(attempt=2, global_step=40 + n, time_unix_s=10.0 + n, loss=3.0, grad_norm=norm)
        for n, norm in enumerate(norms, 1)
    )
    started = RunStarted(attempt=2, time_unix_s=9.0, resumed_from=40, rollback=ID, settings={"clip_grad": 0.3}, **told)
    checks = prove(decision, Evidence(started=started, samples=samples), Baseline(clip_grad=1.0))
    doubted = [check for check in checks if check.changed and check.answer is Proof.NOT_VERIFIED]
    assert [check.why for check in doubted] == [SENTENCE]
    assert outcome(checks) is Proof.NOT_VERIFIED
    assert "did not help" not in failure("it diverged again", outcome(checks), [check.what for check in doubted])
    said = unreported(decision.overrides, Baseline(clip_grad=1.0, from_arguments=("clip_grad",)))
    assert [SENTENCE in sentence for sentence in said.values()] == [True]
    assert unreported(decision.overrides, Baseline(clip_grad=1.0)) == {}


def test_the_ladder_page_says_what_can_show_clipping() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs" / "LADDER.md").read_text().split())
    assert SENTENCE[1:] in page


@pytest.mark.parametrize(
    ("off", "answer"),
    [(0.0, Proof.CONFIRMED), (0.0019, Proof.CONFIRMED), (0.0021, Proof.NOT_VERIFIED), (-0.0021, Proof.NOT_VERIFIED)],
)
def test_a_peak_is_confirmed_by_the_ratio_of_the_same_steps_as_exactly_as_two_logs_print_them(
    off: float, answer: Proof
) -> None:
    """Each of the two is printed to four digits."""
    before = RunStarted(attempt=1, time_unix_s=0.0, lr_schedule={"peak": 1e-3})
    step = Sample(attempt=2, global_step=11, time_unix_s=0.0, loss=3.0, lr=1e-4 * (1 + off))
    started = RunStarted(attempt=2, time_unix_s=0.0)
    shown = Evidence(started=started, samples=(step,), before=before, lr_before={11: 2e-4})
    assert find("lr", 5e-4, shown).answer is answer
