"""Rungs: what they may hold, what each makes of overrides.json, and how it is said."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.plan.baseline import Baseline
from sentinel.plan.mitigations import changes, overrides_for, plain_overrides
from sentinel.plan.rung import DEFAULT_LADDER, Rung
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Anchor, Free, Once, Overrides, decode_overrides, encode_overrides
from sentinel.vocabulary.pacing import LrSchedule
from sentinel.vocabulary.skipping import SkippedRange

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
        ({"clip_grad_factor": float("nan")}, "rung 'it': clip_grad_factor should be above 0"),
        ({"clip_grad": 0.5, "clip_grad_factor": 0.5}, "rung 'it': clip_grad and clip_grad_factor say the same"),
        ({"weight_decay": -1.0}, "rung 'it': weight_decay should be at least 0"),
        ({"loss_scale": 0.0}, "rung 'it': loss_scale should be above 0"),
        ({"wait_steps": 0}, "rung 'it': wait_steps should be above 0"),
        ({"wait_steps": 50, "reseed": True}, "rung 'it': wait_steps starts nothing, so reseed would not be applied"),
        ({"page": True, "target": "scratch"}, "rung 'it': page starts nothing, so target would not be applied"),
        ({"seqlen_total_steps": 9, "reseed": True}, "rung 'it': seqlen_total_steps needs seqlen_start"),
        ({"options": ("flag=value",)}, "rung 'it': options should be like '--flag=value', not 'flag=value'"),
        ({"options": ("--flag",)}, "rung 'it': options should be like"),
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


def test_from_scratch_there_are_no_moments_to_reset() -> None:
    assert made(anchor=Anchor(global_step=0, consumed_samples=0), reset_moments=True).once is None


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


def test_the_default_ladder_changes_one_more_thing_at_a_time_and_names_its_hypotheses() -> None:
    assert [r.name for r in DEFAULT_LADDER] == ["reseed", "reseed + SLW", "earlier + reseed + LR warmup x8"]
    assert len({r.hypothesis for r in DEFAULT_LADDER}) == len(DEFAULT_LADDER)
    assert {f.name for f in fields(Rung)} >= {"skip_samples", "wait_steps", "page"}
