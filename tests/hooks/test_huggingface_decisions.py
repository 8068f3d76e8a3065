"""What the callback applies under Hugging Face's Trainer on two ranks, with and without DeepSpeed; see
callback_decisions.py."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from deepspeed.runtime import lr_schedules
from transformers import get_scheduler

from sentinel.vocabulary.errors import OverridesError
from sentinel.vocabulary.overrides import Anchor, Free, Overrides, TrainingSettings
from sentinel.vocabulary.pacing import BatchSizeSchedule
from tests.hooks.callback_decisions import ADAM, ANCHOR, LENGTHS, LR, SAMPLES, SEQLEN, STEPS
from tests.hooks.torchrun import lines_of
from trainer_hooks.integrations.huggingface_applied import refuse
from trainer_hooks.integrations.huggingface_schedules import schedule_of, why_no_schedule

pytestmark = pytest.mark.full

AFTER = [str(step) for step in range(ANCHOR + 1, STEPS + 1)]
Lives = dict[str, dict[str, Any]]


ONE = pytest.param("1", marks=pytest.mark.soak, id="zero1")
TWO = pytest.param("2", marks=pytest.mark.soak, id="zero2")
OTHERS = (pytest.param("3", id="zero3"), pytest.param("ddp", id="ddp"), pytest.param("fsdp2", id="fsdp2"))


@pytest.fixture(scope="module", params=[ONE, TWO, *OTHERS])
def either(request: pytest.FixtureRequest) -> Lives:
    return _lives(request.param)


@pytest.fixture(scope="module", params=[ONE, *OTHERS])
def lives(request: pytest.FixtureRequest) -> Lives:
    return _lives(request.param)


_KEPT: dict[str, Lives] = {}


def _lives(zero: str) -> Lives:
    if zero not in _KEPT:
        _KEPT[zero] = {line["case"]: line for line in lines_of("callback_decisions.py", zero, ranks=2)}
    return _KEPT[zero]


def started(life: dict[str, Any]) -> dict[str, Any]:
    return next(record for record in life["journal"] if record["is"] == "RunStarted")


def column(life: dict[str, Any], name: str) -> dict[str, Any]:
    return {str(r["global_step"]): r[name] for r in life["journal"] if r["is"] == "Sample"}


def in_order(life: dict[str, Any], first: int, last: int) -> list[int]:
    return [number for step in range(first, last + 1) for number in life["samples"][str(step)]]


def test_where_nothing_is_decided_training_is_bit_for_bit_what_it_is_without_the_callback(either: Lives) -> None:
    for what in ("samples", "logged", "evaluated", "scheduler"):
        assert either["own"][what] == either["bare"][what]
    assert either["own"]["caught"] == 0


def test_trainers_own_cosine_is_reported_as_a_formula_that_gives_the_lr_of_every_step(lives: Lives) -> None:
    schedule = started(lives["own"])["lr_schedule"]
    told = type(LR)(**schedule)
    assert column(lives["own"], "lr") == {step: pytest.approx(told.lr(step=int(step))) for step in lives["own"]["true"]}


def test_without_deepspeed_loss_gradient_norm_and_variance_are_those_of_all_ranks() -> None:
    own = _lives("ddp")["own"]
    assert column(own, "loss") == {step: pytest.approx(loss, rel=1e-5) for step, loss in own["true"].items()}
    for life in (own, _lives("ddp")["adam"]):  # before clipping
        norms = column(life, "grad_norm")
        assert norms == {step: pytest.approx(life["logged"][step][1], rel=1e-5) for step in norms}
    last = next(r for r in reversed(own["journal"]) if r["is"] == "Sample")
    assert [last["adam_variance_l1"], last["adam_variance_max"]] == pytest.approx(own["variance"], rel=1e-6)
    assert {"lr", "clip_grad", "seed", "skip_samples", "seqlen", "reset_moments"} < set(started(own)["applies"])
    measured = next(r for r in own["journal"] if r["is"] == "Sample" and r["global_step"] == 10)
    assert None not in [
        measured[name] for name in ("grad_norm_spread", "loss_spread", "update_norm", "output_logit_max")
    ]


def test_qk_clip_and_factors_of_the_lr_are_applied_and_reported_or_refused_with_fsdp(lives: Lives) -> None:
    life = lives["attention"]
    if lives is _KEPT.get("fsdp2"):
        assert "QK-clip (qk_clip) can't be applied to this Trainer: FSDP deals the weights" in life["error"]
        return
    assert (life["error"], life["caught"]) == (None, 0)
    start = started(life)
    assert (start["qk_clip"], start["lr_factor_of"]) == (1e-3, {"attention.qk": 0.25, "*.mlp.*": 0.5})
    assert (started(lives["own"])["qk_clip"], started(lives["own"])["lr_factor_of"]) == (0.0, {})
    own, changed = column(lives["own"], "loss"), column(life, "loss")
    assert changed[AFTER[0]] == own[AFTER[0]]
    assert all(changed[step] != own[step] for step in AFTER[1:])


@pytest.mark.parametrize(
    ("name", "more", "known"),
    [
        ("linear", {}, True),
        ("cosine", {}, True),
        ("cosine_with_min_lr", {"min_lr_rate": 0.1}, True),
        ("constant", {}, True),
        ("constant_with_warmup", {}, True),
        ("polynomial", {"power": 2.0}, False),
        ("inverse_sqrt", {}, False),
        ("cosine_with_restarts", {"num_cycles": 2}, False),
    ],
)
@pytest.mark.parametrize("warmup", [0, 7])
def test_a_scheduler_of_trainers_is_a_formula_or_none_at_all(
    name: str, more: dict[str, float], known: bool, warmup: int
) -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=3e-3)
    scheduler = get_scheduler(name, optimizer, warmup, 100, scheduler_specific_kwargs=dict(more))
    trainer = SimpleNamespace(
        lr_scheduler=scheduler,
        args=SimpleNamespace(lr_scheduler_type=name, get_warmup_steps=lambda _: 0 if name == "constant" else warmup),
    )
    made = schedule_of(trainer, SimpleNamespace(lr_scheduler=None), 100)
    assert (made is not None) == known
    assert f"Trainer's schedule {name!r} can't" in why_no_schedule(trainer, SimpleNamespace(lr_scheduler=None))
    for step in range(1, 101):
        if made is not None:
            assert made.lr(step=step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9, abs=1e-15)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("ramp", ["linear", "log"])
@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("WarmupLR", {"warmup_max_lr": 3e-3}),
        ("WarmupDecayLR", {"warmup_max_lr": 3e-3, "total_num_steps": 100}),
        ("WarmupCosineLR", {"total_num_steps": 100, "warmup_min_ratio": 0.0, "cos_min_ratio": 0.1}),
    ],
)
def test_deepspeeds_own_scheduler_is_a_formula_where_it_warms_up_linearly(
    name: str, named: dict[str, Any], ramp: str
) -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=3e-3)
    scheduler = getattr(lr_schedules, name)(optimizer, warmup_num_steps=7, warmup_type=ramp, **named)
    made = schedule_of(None, SimpleNamespace(lr_scheduler=scheduler), 100)
    assert (made is not None) == (ramp == "linear")
    if made is None:
        why = why_no_schedule(None, SimpleNamespace(lr_scheduler=scheduler))
        assert f"DeepSpeed's {name} warms up along a logarithm" in why
        assert '"warmup_type": "linear"' in why
    for step in range(1, 101):
        if made is not None:
            assert made.lr(step=step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9, abs=1e-15)
        optimizer.step()
        scheduler.step()


def test_lr_and_adams_settings_hold_from_the_anchor_on_and_the_scheduler_keeps_its_own_state(either: Lives) -> None:
    changed = either["adam"]
    assert changed["caught"] == 0
    assert column(changed, "lr") == {step: pytest.approx(LR.lr(step=int(step))) for step in AFTER}
    assert [changed["logged"][step][2] for step in AFTER] == pytest.approx([LR.lr(step=int(s)) for s in AFTER])
    assert changed["scheduler"] == either["own"]["scheduler"]
    told = started(changed)
    for name in ("adam_beta1", "adam_beta2", "adam_eps", "weight_decay"):
        assert told[name] == getattr(ADAM, name)
    assert told["gradient_clipping"] == ADAM.clip_grad
    assert told["lr_schedule"] == LR.to_json()
    assert (told["rollback"], told["applied_once"], told["moments_reset_steps"]) == ("r1", ["r1"], [ANCHOR])


def test_skipped_samples_are_left_out_and_a_new_seed_permutes_what_is_left_of_the_epoch(lives: Lives) -> None:
    own, skipped, data = lives["own"], lives["skipped"], lives["data"]
    rest = in_order(own, ANCHOR + 1, STEPS)
    left = rest[5:]
    assert in_order(skipped, ANCHOR + 1, STEPS)[: len(left)] == left
    epoch = left[: 2 * SAMPLES - 8 * ANCHOR - 5]
    anew = in_order(data, ANCHOR + 1, 10)[: len(epoch)]
    assert anew != epoch
    assert sorted(anew) == sorted(epoch)
    third = (in_order(data, 10, 10) + in_order(lives["requeued"], 11, STEPS))[len(epoch) - 24 :][:SAMPLES]
    assert sorted(third) == list(range(SAMPLES))
    told = started(data)
    begin = 8 * ANCHOR
    assert (told["seed"], told["skipped_samples"], told["first_sample_index"]) == (11, 5, begin + 5)
    assert [[part["begin"], part["end"]] for part in told["skipped_ranges"]] == [[begin, begin + 5]]
    assert list(column(data, "consumed_samples").values()) == [begin + 5 + 8 * n for n in range(1, 5)]


def test_a_requeue_repeats_the_order_exactly_and_the_one_shot_changes_never(either: Lives) -> None:
    requeued, straight = either["requeued"], either["straight"]
    assert started(requeued)["applied_once"] == ["r1"]
    assert (started(requeued)["seed"], started(requeued)["skipped_samples"]) == (11, 5)
    later = [str(step) for step in range(11, STEPS + 1)]
    assert list(requeued["samples"]) == later
    for what in ("samples", "logged"):
        assert {step: requeued[what][step] for step in later} == {step: straight[what][step] for step in later}


def test_batches_get_shorter_with_labels_and_masks_and_the_loss_stays_the_mean_over_what_is_left(lives: Lives) -> None:
    short = lives["lengths"]
    wanted = {step: LENGTHS.seqlen(int(step)) for step in AFTER}
    assert set(wanted.values()) == {8, 12, 16}
    assert {step: {n for batch in lengths for n in batch} for step, lengths in short["lengths"].items()} == {
        step: {n} for step, n in wanted.items()
    }
    assert column(short, "seqlen") == wanted
    tokens = list(column(short, "consumed_tokens").values())
    assert [after - before for before, after in zip([8 * ANCHOR * SEQLEN, *tokens], tokens, strict=False)] == [
        8 * n for n in wanted.values()
    ]
    assert column(short, "loss") == {step: pytest.approx(short["true"][step], rel=1e-5) for step in AFTER}
    assert short["evaluated_lengths"] == [SEQLEN]  # and divided by as many labels
    assert short["evaluated"]["8"] == pytest.approx(lives["own"]["evaluated"]["8"], rel=0.02)
    told = started(short)
    assert (told["seqlen"], told["seqlen_schedule"]) == (8, LENGTHS.to_json())


def test_a_change_that_cannot_be_applied_ends_the_start_before_its_first_step(lives: Lives) -> None:
    refused = lives["refused"]
    assert "random-LTD (random_ltd) can't be applied to this Trainer" in refused["error"]
    assert refused["samples"] == {}


@pytest.mark.parametrize(
    ("standing", "words"),
    [
        (TrainingSettings(seqlen=LENGTHS, shorten="reshape"), "batch shortening (shorten)"),
        (TrainingSettings(batch_size=BatchSizeSchedule(start=2, full=8, increment=2, ramp_samples=9)), "(batch_size)"),
        (TrainingSettings(total_tokens=9), "end by tokens (total_tokens)"),
        (TrainingSettings(free=Free(options=("--x=1",))), "free-form changes (free)"),
    ],
)
def test_each_change_that_the_callback_does_not_know_is_named_in_the_refusal(
    standing: TrainingSettings, words: str
) -> None:
    decided = Overrides(incident="i", rollback="r1", anchor=Anchor(global_step=ANCHOR), standing=standing)
    with pytest.raises(OverridesError, match=re.escape(words)):
        refuse(decided, None, ("lr", "clip_grad", "seqlen", "seed"), {})


def test_the_file_kill_ends_the_training_after_the_step(lives: Lives) -> None:
    assert list(lives["killed"]["samples"]) == ["13"]
    assert lives["killed"]["journal"][-1]["reason"] == "kill_file"
