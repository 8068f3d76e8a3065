"""Rungs: what they may hold, what each makes of overrides.json, and how it is said."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.plan.choose.ladder import DEFAULT_LADDER, Rung
from sentinel.plan.choose.mitigation import changed_keys, changes, not_applied, overrides_for, plain_overrides
from sentinel.plan.incident.baseline import Baseline, baseline_of, filled, with_own_start
from sentinel.plan.incident.incident import Rollback
from sentinel.plan.observation import RunSettings, StartSeen
from sentinel.plan.starts.evidence import Evidence
from sentinel.plan.starts.proof import prove
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.overrides import Anchor, Free, Once, Overrides, decode_overrides, encode_overrides, words_of
from sentinel.vocabulary.pacing import (
    Adaptive,
    BatchSizeSchedule,
    CurriculumSchedule,
    Custom,
    DifficultySchedule,
    FixedDiscrete,
    FixedLinear,
    FixedRoot,
    LrSchedule,
    MetricSchedule,
    Mixed,
    RandomLtdSchedule,
)
from sentinel.vocabulary.sample import RunStarted
from sentinel.vocabulary.training_settings import OptimizerSettings, SkippedRange

EARLIER = SkippedRange(begin=64, end=96, reseeds=((0, 3),))
BASELINE = Baseline(
    seed=3,
    lr=LrSchedule(peak=1e-2, warmup=20, decay_end=240),
    full_seqlen=128,
    adam_beta1=0.9,
    adam_beta2=0.999,
    weight_decay=0.01,
    clip_grad=1.0,
    precision="fp16",
    loss_scale=65536.0,
    skipped=(EARLIER,),
    moments_reset_steps=(),
    free=Free(options=("--eps=1e-8", "--other=1")),
)
ANCHOR = Anchor(global_step=40, consumed_samples=640, consumed_tokens=81920)


def rung(**keys: Any) -> Rung:
    return Rung(name="it", hypothesis="…", **keys)


def made(
    baseline: Baseline = BASELINE, anchor: Anchor = ANCHOR, onset_past: int | None = 900, **keys: Any
) -> Overrides:
    named = {"incident": "incident-2", "rollback": "incident-2-r1"}
    return overrides_for(rung(**keys), baseline, **named, anchor=anchor, new_seed=4, onset_past=onset_past)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({}, "rung 'it' changes nothing"),
        ({"target": "near"}, "rung 'it' changes nothing"),
        ({"skip_samples": 0}, "rung 'it': skip_samples should be above 0, not 0"),
        ({"adam_beta2": 1.0}, "rung 'it': adam_beta2 should be at least 0 and below 1, not 1.0"),
        ({"adam_beta1": -0.1}, "rung 'it': adam_beta1 should be at least 0 and below 1"),
        ({"clip_grad": 0.0}, "rung 'it': clip_grad should be above 0"),
        ({"qk_clip": 0.0}, "rung 'it': qk_clip should be above 0"),
        ({"lr_factor_of": {}}, "rung 'it' changes nothing"),
        ({"lr_factor_of": {"attention.qk": 1.0}}, "rung 'it': lr_factor_of.attention.qk = 1 changes nothing"),
        ({"lr_factor_of": {"attention.qk": 0.0}}, "rung 'it': lr_factor_of.attention.qk should be above 0"),
        ({"lr_factor_of": {"attention.kq": 0.5}}, "rung 'it': lr_factor_of has no role 'attention.kq'"),
        ({"clip_grad_factor": float("nan")}, "rung 'it': clip_grad_factor should be a finite number above 0"),
        ({"clip_grad": 0.5, "clip_grad_factor": 0.5}, "rung 'it': clip_grad and clip_grad_factor say the same"),
        ({"weight_decay": -1.0}, "rung 'it': weight_decay should be at least 0"),
        ({"loss_scale": 0.0}, "rung 'it': loss_scale should be above 0"),
        ({"wait_steps": 0}, "rung 'it': wait_steps should be above 0"),
        ({"wait_steps": 50, "reseed": True}, "rung 'it': wait_steps starts nothing, so reseed would not be applied"),
        ({"page": True, "target": "scratch"}, "rung 'it': page starts nothing, so target would not be applied"),
        ({"seqlen_total_steps": 9, "reseed": True}, "rung 'it': seqlen_total_steps needs seqlen_start"),
        ({"seqlen_pacing": "adaptive", "reseed": True}, "rung 'it': seqlen_pacing needs seqlen_start"),
        ({"seqlen_shorten": "reshape", "reseed": True}, "rung 'it': seqlen_shorten needs seqlen_start"),
        (
            {"seqlen_start": 8, "seqlen_root_degree": 2.0},
            "seqlen_root_degree says nothing where",
        ),
        (
            {"seqlen_start": 8, "seqlen_pacing": "adaptive", "seqlen_total_steps": 9},
            "seqlen_total_steps says nothing where seqlen_pacing is adaptive",
        ),
        ({"seqlen_start": 8, "seqlen_pacing": "custom"}, "seqlen_pacing custom needs seqlen_function"),
        ({"seqlen_start": 8, "seqlen_multiple": 0}, "rung 'it': seqlen_multiple should be above 0, not 0"),
        ({"batch_size_start": 8}, "rung 'it': batch_size_start needs batch_size_samples"),
        (
            {"batch_size_start": 8, "batch_size_samples": 99, "seqlen_start": 8},
            "rung 'it': sequence length warmup and batch-size warmup both take tokens out of a batch, so leave one out",
        ),
        ({"random_ltd_start": 16}, "rung 'it': random_ltd_start needs random_ltd_total_steps"),
        ({"curriculum_metric": "voc"}, "rung 'it': curriculum_metric needs curriculum_index"),
        ({"curriculum_metric": "voc", "curriculum_index": "x"}, "curriculum_metric needs curriculum_total_steps"),
        (
            {
                "curriculum_metric": "voc",
                "curriculum_index": "x",
                "curriculum_total_steps": 9,
                "curriculum_kind": "value",
            },
            "rung 'it': curriculum_kind value needs curriculum_start and curriculum_full",
        ),
        ({"options": ("flag=value",)}, "rung 'it': options should be like '--flag=value', or '--flag'"),
        ({"options": ("--=value",)}, "rung 'it': options should be like"),
        ({"remove_options": ("--fp16=1",)}, "rung 'it': remove_options should be like '--flag', without a value"),
        ({"remove_options": ("--fp16",), "options": ("--fp16",)}, "rung 'it': --fp16 is both in options and"),
        ({"environment": ("NAME",)}, "rung 'it': environment should be like 'NAME=value', not 'NAME'"),
        ({"environment": ("--name=value",)}, "rung 'it': environment should be like"),
    ],
)
def test_a_rung_that_makes_no_sense_is_refused_by_name_and_key(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rung(**keys)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "once", "standing", "said"),
    [
        ({"skip_samples": 64}, {"skip_samples": 64}, {}, "64 samples of the data skipped: 640 to 703"),
        ({"skip_samples": "past_onset"}, {"skip_samples": 260}, {}, "260 samples of the data skipped: 640 to 899"),
        ({"reset_moments": True}, {"reset_moments": True}, {}, "Adam's moments and step count set to 0, once"),
        ({"loss_scale": 512.0}, {"loss_scale": 512.0}, {}, "loss scale set to 512, once"),
        ({"adam_beta1": 0.8}, {}, {"adam_beta1": 0.8}, "Adam's beta1 0.9 -> 0.8"),
        ({"adam_beta2": 0.95}, {}, {"adam_beta2": 0.95}, "Adam's beta2 0.999 -> 0.95"),
        ({"weight_decay": 0.1}, {}, {"weight_decay": 0.1}, "weight decay 0.01 -> 0.1"),
        ({"clip_grad": 0.3}, {}, {"clip_grad": 0.3}, "gradient clipping 1 -> 0.3"),
        ({"clip_grad_factor": 0.5}, {}, {"clip_grad": 0.5}, "gradient clipping 1 -> 0.5"),
        (
            {"options": ("--eps=1e-6",)},
            {},
            {"free": Free(options=("--other=1", "--eps=1e-6"))},
            "--eps=1e-6",
        ),
        (
            {"environment": ("NCCL_ALGO=Ring",)},
            {},
            {"free": Free(environment={"NCCL_ALGO": "Ring"}, options=("--eps=1e-8", "--other=1"))},
            "NCCL_ALGO=Ring",
        ),
    ],
)
def test_a_rung_changes_what_it_names_and_leaves_the_rest_as_it_was(
    keys: dict[str, Any], once: dict[str, Any], standing: dict[str, Any], said: str
) -> None:
    overrides = made(**keys)
    as_it_was = plain_overrides(BASELINE, incident="incident-2", rollback="incident-2-r1", anchor=ANCHOR)
    assert overrides.once == (Once(id="incident-2-r1", **once) if once else None)
    assert overrides.standing == replace(as_it_was.standing, **standing)
    assert changes(overrides, BASELINE) == (said,)


PACED = replace(
    BASELINE,
    seqlen=FixedLinear(start=128, full=128, total_steps=0),
    shorten="truncate",
    batch_size=BatchSizeSchedule(start=64, full=64, increment=1, ramp_samples=0),
    random_ltd=RandomLtdSchedule(start=128, full=128, total_steps=0, layers=(1, 2)),
    curriculum=CurriculumSchedule(metrics={}),
    total_steps=240,
)
ALONE = {"seqlen_by_tokens": False}
SLW = {"start": 8, "full": 128, "anchor_step": 40}
VOC = DifficultySchedule(
    kind="percentile", start=1, full=100, total_steps=300, root_degree=2, anchor_step=ANCHOR.global_step
)


@pytest.mark.parametrize(
    ("keys", "standing", "said"),
    [
        (
            {**ALONE, "seqlen_start": 8},
            {"seqlen": FixedLinear(**SLW, total_steps=60)},
            "sequence length 8 -> 128 over 60 steps from 40",
        ),
        (
            {
                **ALONE,
                "seqlen_start": 8,
                "seqlen_pacing": "fixed_root",
                "seqlen_total_steps": 90,
                "seqlen_multiple": 16,
            },
            {"seqlen": FixedRoot(**SLW, total_steps=90, multiple=16)},
            "sequence length 8 -> 128 by the root of degree 2 over 90 steps from 40",
        ),
        (
            {**ALONE, "seqlen_start": 8, "seqlen_pacing": "fixed_discrete", "seqlen_total_steps": 90},
            {"seqlen": FixedDiscrete(**SLW, difficulties=(8, 128), max_steps=(90,))},
            "sequence length 8 -> 128 in 2 stages up to step 131, from 40",
        ),
        (
            {**ALONE, "seqlen_start": 8, "seqlen_pacing": "mixed"},
            {"seqlen": Mixed(**SLW)},
            "sequence length 8 -> 128 in turn, 900 and 100 steps, for ever from 40",
        ),
        (
            {**ALONE, "seqlen_start": 8, "seqlen_pacing": "adaptive"},
            {"seqlen": Adaptive(**SLW)},
            "sequence length 8 -> 128 as validations allow, within 1.3 x the best perplexity, from 40",
        ),
        (
            {**ALONE, "seqlen_start": 8, "seqlen_pacing": "custom", "seqlen_function": "recipes:by_loss"},
            {"seqlen": Custom(**SLW, function="recipes:by_loss")},
            "sequence length 8 -> 128 by recipes:by_loss from 40",
        ),
        (
            {"batch_size_start": 16, "batch_size_samples": 4800},
            {"batch_size": BatchSizeSchedule(start=16, full=64, increment=16, ramp_samples=4800, anchor_samples=640)},
            "global batch 16 -> 64 by 16 over 4800 samples from 640",
        ),
        (
            {"random_ltd_start": 16, "random_ltd_total_steps": 200},
            {"random_ltd": RandomLtdSchedule(start=16, full=128, total_steps=200, anchor_step=40, layers=(1, 2))},
            "random-LTD 16 -> 128 tokens over 200 steps from 40",
        ),
        (
            {"curriculum_metric": "voc", "curriculum_index": "/voc", "curriculum_total_steps": 300},
            {"curriculum": CurriculumSchedule(metrics={"voc": MetricSchedule(difficulty=VOC, index="/voc")})},
            "curriculum voc 1 % -> 100 % up to step 340 from 40",
        ),
    ],
)
def test_a_rung_switches_a_pacing_on_from_the_target(keys: dict[str, Any], standing: dict[str, Any], said: str) -> None:
    overrides = made(baseline=PACED, **keys)
    as_it_was = plain_overrides(PACED, incident="incident-2", rollback="incident-2-r1", anchor=ANCHOR)
    assert overrides.standing == replace(as_it_was.standing, **standing)
    assert changes(overrides, PACED) == (said,)
    assert decode_overrides(encode_overrides(overrides)) == overrides
    went_on = replace(PACED, **standing)  # the next incident begins from it
    assert Baseline.from_json(json.loads(dump_json(went_on.to_json()))) == went_on
    assert changes(overrides, went_on) == ()


def test_how_batches_get_shorter_is_said_beside_the_warmup() -> None:
    overrides = made(baseline=PACED, seqlen_start=8, seqlen_shorten="truncate_keep", **ALONE)
    assert overrides.standing.shorten == "truncate_keep"
    assert changes(overrides, PACED)[1:] == ("batch shortening truncate_keep",)


RAMP = BatchSizeSchedule(start=16, full=64, increment=16, ramp_samples=4800)


def test_switching_slw_on_ends_a_batch_size_warmup() -> None:
    overrides = made(baseline=replace(PACED, batch_size=RAMP), seqlen_start=8, **ALONE)
    assert overrides.standing.batch_size == replace(RAMP, ramp_samples=0)
    assert changes(overrides, replace(PACED, batch_size=RAMP))[1:] == ("global batch 64, not warmed up",)


@pytest.mark.parametrize(
    ("baseline", "anchor", "keys", "says"),
    [
        (
            BASELINE,
            ANCHOR,
            {"batch_size_start": 8, "batch_size_samples": 9},
            "the trainer has not reported the full batch",
        ),
        (
            PACED,
            Anchor(global_step=40),
            {"batch_size_start": 8, "batch_size_samples": 9},
            "the trainer has not reported consumed_samples at the target",
        ),
        (PACED, ANCHOR, {"batch_size_start": 24, "batch_size_samples": 9}, "does not grow in increments of 24"),
        (
            replace(PACED, seqlen=FixedLinear(start=8, full=128, total_steps=60)),
            ANCHOR,
            {"batch_size_start": 16, "batch_size_samples": 9},
            "so leave one out",
        ),
        (
            PACED,
            ANCHOR,
            {"random_ltd_start": 256, "random_ltd_total_steps": 9},
            "random-LTD start should lie between 1 and the full length 128, not 256: there is nothing to drop above it",
        ),
        (Baseline(), ANCHOR, {"random_ltd_start": 16, "random_ltd_total_steps": 9}, "reported the full length"),
        (
            PACED,
            ANCHOR,
            {
                "curriculum_metric": "voc",
                "curriculum_index": "x",
                "curriculum_total_steps": 9,
                "curriculum_start": 200,
            },
            "difficulty start should lie between",
        ),
    ],
)
def test_a_pacing_that_this_run_can_not_have_is_refused_with_the_reason(
    baseline: Baseline, anchor: Anchor, keys: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        made(baseline=baseline, anchor=anchor, **keys)
    assert "rung 'it'" in str(caught.value)
    assert says in str(caught.value)


def test_a_batch_size_warmup_may_follow_an_slw_that_is_over() -> None:
    over = replace(PACED, seqlen=FixedLinear(start=8, full=128, total_steps=30))
    standing = made(baseline=over, batch_size_start=16, batch_size_samples=4800).standing
    assert standing.batch_size is not None
    assert standing.batch_size.warms_up


def test_what_an_earlier_incident_changed_is_not_lost_with_its_overrides() -> None:
    standing = made(reseed=True).standing
    assert (standing.adam_beta2, standing.clip_grad, standing.skipped) == (0.999, 1.0, (EARLIER,))
    assert (
        made(baseline=Baseline(seed=3), reseed=True).standing
        == plain_overrides(Baseline(), incident="i", rollback="r", anchor=ANCHOR).standing
    )


def test_a_trainer_that_has_not_reported_it_is_said_to_have_had_something_unknown() -> None:
    overrides = made(baseline=Baseline(), adam_beta2=0.95)
    assert changes(overrides, Baseline()) == ("Adam's beta2 (not reported) -> 0.95",)


def test_qk_clip_and_factors_of_the_lr_are_changes_of_their_own_and_stay_through_later_rungs() -> None:
    keys = {"qk_clip": 100.0, "lr_factor_of": {"attention.qk": 0.25}}
    overrides = made(**keys)
    assert set(changed_keys(overrides, BASELINE)) == {"qk_clip", "lr_factor_of"}
    assert decode_overrides(encode_overrides(overrides)) == overrides
    assert set(changes(overrides, BASELINE)) == {"QK-clip (not reported) -> 100", "LR of attention.qk x 0.25"}
    now = replace(BASELINE, **keys)
    later = made(baseline=now, lr_factor_of={"*.mlp_in.*": 0.5})
    assert later.standing.qk_clip == 100
    assert later.standing.lr_factor_of == {"attention.qk": 0.25, "*.mlp_in.*": 0.5}
    assert changes(later, now) == ("LR of *.mlp_in.* x 0.5",)


def test_what_is_off_is_left_out_of_overrides() -> None:
    standing = made(baseline=replace(BASELINE, qk_clip=0.0, lr_factor_of={}), adam_beta2=0.95).standing
    assert (standing.qk_clip, standing.lr_factor_of) == (None, None)


@pytest.mark.parametrize("name", [f.name for f in fields(OptimizerSettings)])
def test_a_setting_of_the_optimizer_is_a_rung_from_its_key_to_its_proof(name: str) -> None:
    """A new one needs no other test here: it is an entry of OptimizerSettings."""
    overrides = made(**{name: 0.25})
    assert changed_keys(overrides, BASELINE) == (name,)
    assert decode_overrides(encode_overrides(overrides)) == overrides
    before = getattr(BASELINE, name)
    said = f"{words_of(name)} {'(not reported)' if before is None else f'{before:g}'} -> 0.25"
    assert changes(overrides, BASELINE) == (said,)
    decision = Rollback(
        id="r",
        rung="it",
        hypothesis="…",
        target_tag=None,
        target_step=40,
        overrides=overrides,
        changes=(said,),
        decided_unix_s=7.0,
        lost_steps=0,
    )
    for shown, answer in ((0.25, "confirmed"), (0.5, "contradicted"), (None, "not verified")):
        started = RunStarted(attempt=2, time_unix_s=9.0, resumed_from=40, rollback="r", **{name: shown})
        checks = prove(decision, Evidence(started=started), BASELINE)
        assert [str(check.answer) for check in checks if check.what == name] == [answer]


def test_a_setting_that_a_free_form_option_names_is_left_to_the_option() -> None:
    before = replace(BASELINE, adam_eps=1e-8)
    overrides = made(baseline=before, options=("--eps=1e-7", "--max_grad_norm=0.3"))
    standing = overrides.standing
    assert (standing.adam_eps, standing.clip_grad, standing.adam_beta2) == (None, None, 0.999)
    assert changed_keys(overrides, before) == ("free",)
    assert made(baseline=before, reseed=True).standing.adam_eps == 1e-8


def test_from_scratch_there_are_no_moments_to_reset() -> None:
    assert made(anchor=Anchor(global_step=0, consumed_samples=0), reset_moments=True, adam_beta2=0.95).once is None


@pytest.mark.parametrize(
    ("baseline", "at", "keys"),
    [
        (BASELINE, 0, {"reset_moments": True}),
        (BASELINE, 0, {"lr_warmup_factor": 1.0}),
        (replace(BASELINE, qk_clip=100.0), 30, {"qk_clip": 100.0}),
        (replace(BASELINE, adam_beta2=0.95), 30, {"adam_beta2": 0.95}),
    ],
)
def test_a_rung_that_sets_what_the_run_trains_with_already_is_no_restart(
    baseline: Baseline, at: int, keys: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="the run trains with what it sets already"):
        made(baseline, Anchor(global_step=at, consumed_samples=16 * at, consumed_tokens=2048 * at), **keys)


@pytest.mark.parametrize(
    ("given_", "keys", "says"),
    [
        ({"onset_past": None}, {"skip_samples": "past_onset"}, "consumed_samples at the onset is unknown"),
        ({"onset_past": 640}, {"skip_samples": "past_onset"}, "the target is past it already"),
        ({"anchor": Anchor(global_step=40)}, {"skip_samples": "past_onset"}, "at the target is unknown"),
        (
            {"baseline": replace(BASELINE, precision="bf16")},
            {"loss_scale": 512.0},
            "which only fp16 has; the run is bf16",
        ),
        ({"baseline": Baseline()}, {"clip_grad_factor": 0.5}, "has not reported its own: give clip_grad"),
        ({"baseline": Baseline(clip_grad=0.0)}, {"clip_grad_factor": 0.5}, "the run does not clip: give clip_grad"),
        ({}, {"wait_steps": 50}, "rung 'it' starts nothing"),
        ({}, {"page": True}, "rung 'it' starts nothing"),
    ],
)
def test_a_rung_that_can_not_be_applied_to_this_run_says_why(
    given_: dict[str, Any], keys: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        made(**given_, **keys)
    assert "rung 'it'" in str(caught.value)
    assert says in str(caught.value)


KEYS = st.fixed_dictionaries(
    {},
    optional={
        "reseed": st.just(True),
        "skip_samples": st.just("past_onset") | st.integers(1, 10**6),
        "adam_beta1": st.floats(0, 0.999),
        "adam_beta2": st.floats(0, 0.999),
        "weight_decay": st.floats(0, 10),
        "clip_grad": st.floats(0.001, 10),
        "reset_moments": st.just(True),
        "loss_scale": st.floats(1, 2**24),
        "lr_factor": st.floats(0.1, 2),
        "options": st.just(("--a=b",)),
    },
).filter(bool)


@given(KEYS)
def test_every_rung_makes_overrides_that_are_read_again_and_told_in_words(keys: dict[str, Any]) -> None:
    overrides = made(**keys)
    assert decode_overrides(encode_overrides(overrides)) == overrides
    same = {k for k in ("adam_beta1", "adam_beta2", "weight_decay", "clip_grad") if keys.get(k) == getattr(BASELINE, k)}
    assert len(changes(overrides, BASELINE)) == len(keys) - len(same) - (keys.get("lr_factor") == 1.0)


@given(KEYS)
def test_a_baseline_is_read_from_the_log_as_it_was_written(keys: dict[str, Any]) -> None:
    told = {key: keys[key] for key in ("adam_beta1", "adam_beta2", "weight_decay", "clip_grad") if key in keys}
    baseline = replace(BASELINE, **told)
    assert Baseline.from_json(baseline.to_json()) == baseline


def test_a_baseline_of_an_older_log_is_read() -> None:
    old = {"seed": 3, "lr": None, "seqlen": None, "full_seqlen": 128}
    assert Baseline.from_json(old) == Baseline(seed=3, full_seqlen=128)


def test_the_default_ladder_ends_with_a_lower_lr_and_names_its_hypotheses() -> None:
    names = ["reseed", "reseed + LR warmup x8", "earlier + reseed + SLW", "earlier + LR / 4"]
    assert [r.name for r in DEFAULT_LADDER if r.instability is None] == names
    assert len({r.hypothesis for r in DEFAULT_LADDER}) == len(DEFAULT_LADDER)
    assert {f.name for f in fields(Rung)} >= {"skip_samples", "wait_steps", "page"}


WHOLE = replace(
    BASELINE,
    lr=LrSchedule(peak=1e-2, warmup=60, decay_start=60, decay_end=240),
    total_steps=240,
    batch_size=BatchSizeSchedule(start=16, full=16, increment=1, ramp_samples=0),
)


def test_a_length_that_warms_up_takes_the_end_the_decay_and_the_warmup_with_it() -> None:
    decided = made(WHOLE, seqlen_start=8).standing
    lr = decided.lr
    assert decided.total_tokens == 240 * 16 * 128
    assert lr is not None
    assert (lr.decay_unit, lr.decay_start, lr.decay_end) == ("tokens", 60 * 16 * 128, 240 * 16 * 128)
    assert decided.seqlen is not None
    seen = 40 * 16 * 128 + sum(16 * decided.seqlen.seqlen(step) for step in range(41, lr.warmup + 1))
    assert 0 <= seen - 60 * 16 * 128 < 16 * 128
    said = changes(made(WHOLE, seqlen_start=8), WHOLE)
    assert {f"LR warmup 60 -> {lr.warmup} steps from 0", "the run ends at 491520 tokens"} <= set(said)
    again = replace(WHOLE, total_steps=None, total_tokens=491520, lr=lr, seqlen=decided.seqlen)
    assert plain_overrides(again, incident="i", rollback="r", anchor=ANCHOR).standing.total_tokens == 491520


def test_what_goes_with_a_shorter_length_can_be_left_out_or_asked_for() -> None:
    alone = made(WHOLE, seqlen_start=8, seqlen_by_tokens=False).standing
    assert (alone.total_tokens, alone.lr) == (None, WHOLE.lr)
    reshaped = made(WHOLE, seqlen_start=8, seqlen_shorten="reshape").standing
    assert (reshaped.total_tokens, reshaped.lr) == (None, WHOLE.lr)
    said = changes(made(seqlen_start=8), BASELINE)
    assert said[-1].startswith(
        "the end and the LR stay as they are, as far as the trainer has not reported the global batch"
    )
    with pytest.raises(ConfigError, match="the trainer has not reported the global batch, where the run ends"):
        made(seqlen_start=8, seqlen_by_tokens=True)
    with pytest.raises(ConfigError, match="a reshape keeps the tokens of a step"):
        made(WHOLE, seqlen_start=8, seqlen_by_tokens=True, seqlen_shorten="reshape")
    with pytest.raises(ConfigError, match="a job script gets all that goes with SLW"):
        made(replace(WHOLE, lr_from_start=True), seqlen_start=8, seqlen_by_tokens=False)
    with pytest.raises(ConfigError, match="seqlen_by_tokens needs seqlen_start"):
        rung(seqlen_by_tokens=True)


@pytest.mark.parametrize(("parameters", "start"), [(None, 8), (7e8, 8), (7e9, 64)])
def test_the_default_slw_starts_at_what_suits_the_size_of_the_model(parameters: float | None, start: int) -> None:
    seqlen = made(replace(BASELINE, parameters=parameters), seqlen_start="by_size").standing.seqlen
    assert seqlen is not None
    assert seqlen.start == start


@given(
    warmup=st.integers(1, 500_000),
    consumed=st.integers(0, 400_000),
    factor=st.floats(1.01, 20),
    ramp=st.sampled_from([0, 3000, 6_000_000]),
)
def test_a_longer_warmup_of_megatron_is_longer_at_every_step(
    warmup: int, consumed: int, factor: float, ramp: int
) -> None:
    """peak x consumed / warmup at every start: with a batch ramp, too, which steps would not tell."""
    own = LrSchedule(peak=6e-5, warmup=warmup, decay_end=0, unit="samples")
    batch = BatchSizeSchedule(start=16, full=2048, increment=16, ramp_samples=ramp)
    of_script = replace(BASELINE, lr=own, lr_from_start=True, batch_size=batch, full_seqlen=2048)
    anchor = Anchor(global_step=1000, consumed_samples=consumed, consumed_tokens=consumed * 2048)
    if consumed >= round(factor * warmup):
        with pytest.raises(ConfigError, match="is over at the target"):
            made(of_script, anchor, lr_warmup_factor=factor)
        return
    if round(factor * warmup) == warmup:
        with pytest.raises(ConfigError, match="what it sets already"):
            made(of_script, anchor, lr_warmup_factor=factor)
        return
    longer = made(of_script, anchor, lr_warmup_factor=factor).standing.lr
    assert longer is not None
    assert longer.warmup == round(factor * warmup)
    for at in range(consumed, 2 * longer.warmup, max(1, longer.warmup // 50)):
        lr, before = longer.lr(step=0, consumed_samples=at), own.lr(step=0, consumed_samples=at)
        assert lr <= before
        assert at >= longer.warmup or at == 0 or lr == pytest.approx(own.peak * at / (factor * warmup), rel=1 / warmup)


@pytest.mark.parametrize(
    ("unit", "decay_unit", "at_a_step"),
    [
        ("steps", "tokens", False),
        ("tokens", "tokens", False),
        ("samples", "samples", False),
        ("samples", "tokens", True),
    ],
)
def test_only_a_warmup_in_samples_before_a_decay_in_tokens_ends_with_a_step(
    unit: str, decay_unit: str, at_a_step: bool
) -> None:
    own = LrSchedule(peak=6e-5, warmup=1001, decay_start=1001, decay_end=10**9, unit=unit, decay_unit=decay_unit)
    batch = BatchSizeSchedule(start=64, full=64, increment=1, ramp_samples=0)
    of_script = replace(BASELINE, lr=own, lr_from_start=True, batch_size=batch, full_seqlen=2048)
    at = Anchor(global_step=10, consumed_samples=640, consumed_tokens=640)
    longer = made(of_script, at, lr_warmup_factor=3).standing.lr
    assert longer is not None
    assert longer.warmup == (3008 if at_a_step else 3003)
    for unknown in ("batch_size", "full_seqlen"):
        plain = made(replace(of_script, **{unknown: None}), at, lr_warmup_factor=3).standing.lr  # type: ignore[arg-type]
        assert plain is not None
        assert plain.warmup == 3003


def test_a_run_without_a_warmup_has_none_to_make_longer() -> None:
    none = replace(BASELINE, lr=LrSchedule(peak=6e-5, warmup=0, decay_end=0))
    with pytest.raises(ConfigError, match="makes the LR warmup longer, and the run has none"):
        made(none, lr_warmup_factor=8)


def test_a_rung_takes_options_away_and_the_next_one_may_bring_them_back() -> None:
    removed = made(remove_options=("--fp16", "--eps"), options=("--bf16",)).standing.free
    assert removed == Free(options=("--other=1", "--bf16"), removed=("--fp16", "--eps"))
    said = changes(made(remove_options=("--fp16",)), BASELINE)
    assert said == ("--fp16 removed",)
    back = made(replace(BASELINE, free=removed), options=("--fp16",)).standing.free
    assert back == Free(options=("--other=1", "--bf16", "--fp16"), removed=("--eps",))


def test_a_warmup_by_tokens_is_not_counted_anew_where_random_ltd_has_dropped_some() -> None:
    by_tokens = LrSchedule(peak=1e-2, warmup=20_000, decay_end=0, unit="tokens")
    ltd = RandomLtdSchedule(start=16, full=128, total_steps=30)
    told = replace(BASELINE, lr=by_tokens, random_ltd=replace(ltd, total_steps=0))
    again = made(told, lr_warmup_factor=2.0).standing.lr
    assert again == replace(by_tokens, warmup=40_000, anchor=ANCHOR.consumed_tokens)
    with pytest.raises(ConfigError, match="the trainer has not reported how many they are"):
        made(replace(told, random_ltd=ltd), lr_warmup_factor=2.0)
    assert made(replace(told, random_ltd=ltd), lr_factor=0.5).standing.lr == replace(by_tokens, peak=5e-3)


def test_a_lower_lr_multiplies_the_whole_curve_the_minimum_too() -> None:
    own = LrSchedule(peak=4e-3, warmup=60, decay_start=60, decay_end=240, minimum=4e-4)
    baseline = replace(WHOLE, lr=own)
    lowered = made(baseline, lr_factor=0.125)  # to a peak of 5e-4, which is nearly the old minimum
    assert lowered.standing.lr is not None
    for step in (30, 61, 150, 240, 300):
        assert lowered.standing.lr.lr(step=step) == pytest.approx(own.lr(step=step) / 8)
    assert changes(lowered, baseline)[-1] == "peak lr 0.004 -> 0.0005, and with it the minimum 0.0004 -> 5e-05"


LOWERED = replace(WHOLE, lr=replace(WHOLE.lr, peak=2.5e-3), own_peak_lr=1e-2, own_lr_warmup=20, own_clip_grad=2.0)
AT = {"incident": "incident-2", "rollback": "incident-2-r1", "anchor": Anchor(global_step=30), "new_seed": 9}


@pytest.mark.parametrize(
    ("rung", "peak", "warmup", "clip"),
    [
        ({"lr_factor": 0.1}, 1e-3, 60, None),
        ({"lr_factor": 0.5, "compound": True}, 1.25e-3, 60, None),
        ({"lr_warmup_factor": 8}, 2.5e-3, 160, None),
        ({"lr_warmup_factor": 8, "compound": True}, 2.5e-3, 480, None),
        ({"clip_grad_factor": 0.25}, 2.5e-3, 60, 0.5),
        ({"clip_grad_factor": 0.5, "compound": True}, 2.5e-3, 60, 0.5),
    ],
)
def test_a_factor_is_of_what_the_run_began_with_unless_it_compounds(
    rung: dict[str, Any], peak: float, warmup: int, clip: float | None
) -> None:
    baseline = replace(LOWERED, clip_grad=1.0)
    standing = overrides_for(Rung(name="n", hypothesis="h", **rung), baseline, **AT).standing
    assert standing.lr is not None
    assert (standing.lr.peak, standing.lr.warmup) == (pytest.approx(peak), warmup)
    assert standing.clip_grad == (1.0 if clip is None else clip)


def test_a_factor_that_would_take_back_an_earlier_lowering_skips_its_rung() -> None:
    with pytest.raises(ConfigError, match=r"0.25 of the peak LR that the run began with is 0.0025, and it runs with"):
        overrides_for(Rung(name="n", hypothesis="h", lr_factor=0.25), LOWERED, **AT)
    with pytest.raises(ConfigError, match="compound says how factors count"):
        Rung(name="n", hypothesis="h", reseed=True, compound=True)


def test_what_the_run_began_with_is_said_where_it_is_not_what_it_trains_with() -> None:
    made = overrides_for(Rung(name="n", hypothesis="h", lr_factor=0.1), LOWERED, **AT)
    assert "peak lr 0.0025 -> 0.001 (the run began with 0.01)" in changes(made, LOWERED)


def test_the_runs_own_start_is_its_first_attempt_and_not_a_restart_of_sentinels() -> None:
    first = RunStarted(attempt=1, time_unix_s=0.0, lr_schedule=WHOLE.lr.to_json(), gradient_clipping=1.0)
    found = with_own_start(replace(LOWERED, own_peak_lr=None, own_lr_warmup=None, own_clip_grad=None), first)
    assert (found.own_peak_lr, found.own_lr_warmup, found.own_clip_grad) == (1e-2, 60, 1.0)
    assert with_own_start(BASELINE, replace(first, rollback="incident-1-r1")) == BASELINE
    assert with_own_start(BASELINE, None) == BASELINE


def test_weight_decay_of_a_run_that_decays_nothing_is_known_beforehand_to_change_nothing() -> None:
    baseline = replace(BASELINE, weight_decay=0.0)
    made = overrides_for(Rung(name="n", hypothesis="h", weight_decay=0.1), baseline, **AT)
    assert "reports 0 for all of them" in (not_applied(made, baseline, RunSettings(), StartSeen()) or "")
    assert not_applied(made, BASELINE, RunSettings(), StartSeen()) is None


def test_an_lr_rung_over_a_schedule_that_is_no_formula_is_refused_with_the_trainers_reason() -> None:
    why = "DeepSpeed's WarmupLR warms up along a logarithm"
    reported = baseline_of(RunStarted(attempt=1, time_unix_s=0.0, lr_schedule_unknown=why))
    asked_for = filled(reported, BASELINE)  # its arguments have an LR, and another scheduler makes the LR
    for rung in (Rung(name="n", hypothesis="h", lr_warmup_factor=2), Rung(name="n", hypothesis="h", lr_factor=0.5)):
        with pytest.raises(ConfigError, match=why):
            overrides_for(rung, asked_for, **AT)
