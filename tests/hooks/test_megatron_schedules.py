"""The schedules that Megatron's own schedulers run with, as the hook reports them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainer_hooks.integrations.megatron import lr_schedule, seqlen_schedule

OLDER = {"warmup_steps": 200, "decay_steps": 4000, "decay_tokens": None, "decay_style": "cosine", "warmup_tokens": 0}
NEWER = {f"lr_{name}": value for name, value in (OLDER | {"warmup_tokens": None}).items()}
BY_STEPS = {"train_iters": 1000, "train_samples": None, "global_batch_size": 4}
BY_SAMPLES = BY_STEPS | {"train_samples": 4000}
COSINE = {"peak": 1e-3, "minimum": 1e-5, "anchor": 0}


@pytest.mark.parametrize("scheduler", [OLDER, NEWER], ids=["AnnealingLR", "OptimizerParamScheduler"])
@pytest.mark.parametrize(
    ("changed", "args", "wanted"),
    [
        ({}, BY_STEPS, {"warmup": 50, "decay_start": 50, "decay_end": 1000, "unit": "steps"}),
        ({}, BY_SAMPLES, {"warmup": 200, "decay_start": 200, "decay_end": 4000, "unit": "samples"}),
        ({"decay_style": "linear"}, BY_STEPS, {"warmup": 50, "decay_start": 0, "decay_end": 0, "unit": "steps"}),
        ({"decay_tokens": 9000}, BY_STEPS, {"warmup": 50, "decay_start": 0, "decay_end": 0, "unit": "steps"}),
    ],
)
def test_the_lr_is_the_schedulers_own_in_the_unit_of_the_options(
    scheduler: dict[str, Any], changed: dict[str, Any], args: dict[str, Any], wanted: dict[str, Any]
) -> None:
    prefix = "" if scheduler is OLDER else "lr_"
    own = scheduler | {f"{prefix}{name}": value for name, value in changed.items()}
    made = SimpleNamespace(max_lr=1e-3, min_lr=1e-5, **own)
    assert lr_schedule(made, SimpleNamespace(**args)) == COSINE | wanted


def test_a_warmup_in_tokens_is_the_one_of_the_options_and_not_where_one_in_samples_has_ended() -> None:
    made = SimpleNamespace(max_lr=1e-3, min_lr=1e-5, **NEWER | {"lr_warmup_tokens": 500, "lr_decay_tokens": 9000})
    in_tokens = lr_schedule(made, SimpleNamespace(**BY_STEPS, lr_warmup_tokens=500))
    assert in_tokens == COSINE | {"warmup": 500, "decay_start": 500, "decay_end": 9000, "unit": "tokens"}
    ended = lr_schedule(made, SimpleNamespace(**BY_STEPS, lr_warmup_tokens=None))
    assert ended is not None
    assert (ended["warmup"], ended["unit"]) == (50, "steps")


def test_another_scheduler_has_no_schedule_that_is_known() -> None:
    assert lr_schedule(SimpleNamespace(base_lrs=[1.0]), SimpleNamespace(**BY_STEPS)) is None
    assert lr_schedule(None, SimpleNamespace(**BY_STEPS)) is None


def test_the_length_is_the_jsons_curriculum_and_the_full_one_where_it_has_none() -> None:
    stairs = {"difficulty": [8, 64], "max_step": [20]}
    block = {"enabled": True, "curriculum_type": "seqlen", "min_difficulty": 8, "max_difficulty": 64}
    block |= {"schedule_type": "fixed_discrete", "schedule_config": stairs}
    told = seqlen_schedule(SimpleNamespace(seq_length=64, deepspeed_config_dict={"curriculum_learning": block}))
    assert told is not None
    assert (told["difficulties"], told["max_steps"]) == ([8, 64], [20])
    without = seqlen_schedule(SimpleNamespace(seq_length=64, deepspeed_configuration={}))
    assert without is not None
    assert (without["start"], without["full"]) == (64, 64)
    assert seqlen_schedule(SimpleNamespace(seq_length=64)) is None
    assert seqlen_schedule(SimpleNamespace(seq_length=64, deepspeed_config_dict={}, random_ltd=True)) is None
