"""Megatron-DeepSpeed's options: what the LR and the sequence length become, and which start gets which change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sentinel.jobscript import Change, RemoveOption, SetJson, SetOption, rewrite
from sentinel.jobscript.facts import ScriptFacts
from sentinel.jobscript.megatron_options import (
    SeqlenWarmup,
    Wanted,
    changes_at,
    discrete_curriculum,
    megatron_changes,
)
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing import Adaptive, FixedLinear, LrSchedule, SeqlenSchedule
from tests.jobscript.shell_sandbox import SCRIPTS, config, run

TEXTS = {path.stem: path.read_text() for path in SCRIPTS}
RUN = ScriptFacts(
    lr=6e-5,
    min_lr=6e-6,
    seq_length=2048,
    global_batch_size=512,
    train_samples=300_000_000,
    lr_decay_samples=126_953_125,
    lr_scheduler="lr-scheduler",
)
NEWER = replace(RUN, lr_scheduler="opt_param-scheduler")
BY_STEPS = replace(RUN, train_samples=None, train_iters=500_000, lr_decay_samples=None, global_batch_size=64)
FROM_64 = FixedLinear(start=64, full=2048, total_steps=6000, anchor_step=3000)
SLW = SeqlenWarmup(schedule=FROM_64, train_tokens=300_000_000 * 2048, decay_tokens=126_953_125 * 2048)
LONGER = LrSchedule(peak=6e-5, decay_end=0, warmup=432_640, unit="samples")
ALL = Wanted(
    numbers={"seed": 44, "adam_beta2": 0.95, "clip_grad": 0.5, "loss_scale": 4096},
    peak_lr=3e-5,
    seqlen_warmup=SLW,
    lr_warmup=LONGER,
)


def values(changes: tuple[Change, ...]) -> dict[str, Any]:
    return {
        **{change.flag: change.value for change in changes if isinstance(change, SetOption)},
        **{change.flag: "removed" for change in changes if isinstance(change, RemoveOption)},
        **{".".join(change.path): change.value for change in changes if isinstance(change, SetJson)},
    }


def first(wanted: Wanted, run_: ScriptFacts = RUN) -> dict[str, Any]:
    return values(changes_at(megatron_changes(wanted, run_), "first"))


def later(wanted: Wanted, run_: ScriptFacts = RUN) -> dict[str, Any]:
    return values(changes_at(megatron_changes(wanted, run_), "later"))


def test_nothing_wanted_is_nothing_changed() -> None:
    assert megatron_changes(Wanted(), RUN) == ()


@pytest.mark.parametrize("name", ["lr-scheduler", "opt_param-scheduler", "opt-param-scheduler"])
def test_a_lower_lr_overrides_the_checkpoint_once(name: Any) -> None:
    wanted, run_ = Wanted(peak_lr=3e-5), replace(RUN, lr_scheduler=name)
    lowered = {"--lr": "3e-05", "--min-lr": "3e-06"}
    assert first(wanted, run_) == {**lowered, f"--override-{name}": None, f"--use-checkpoint-{name}": "removed"}
    assert later(wanted, run_) == lowered


@pytest.mark.parametrize("wanted", [Wanted(peak_lr=3e-5), Wanted(lr_warmup=LONGER), Wanted(seqlen_warmup=SLW)])
def test_a_scheduler_whose_option_is_not_known_is_not_overridden(wanted: Wanted) -> None:
    with pytest.raises(ConfigError, match=r"set \[launcher\] scheduler_override"):
        megatron_changes(wanted, replace(RUN, lr_scheduler=None))
    assert megatron_changes(Wanted(numbers={"seed": 44}), replace(RUN, lr_scheduler=None))


def test_slw_is_five_changes() -> None:
    changed = first(Wanted(seqlen_warmup=SLW, lr_warmup=LONGER))
    assert changed["curriculum_learning"]["schedule_type"] == "fixed_discrete"
    assert changed["--rampup-batch-size"] == "removed"
    assert (changed["--train-tokens"], changed["--train-samples"]) == (str(300_000_000 * 2048), "900000000")
    assert (changed["--lr-decay-tokens"], changed["--lr-decay-samples"]) == (str(126_953_125 * 2048), "removed")
    assert changed["--lr-warmup-samples"] == "432640"


def test_a_warmup_that_is_a_share_of_the_run_stays_as_long_as_it_was() -> None:
    """SLW ends the run by tokens: of the iterations that it may then have, the share would be another warmup."""
    by_share = replace(BY_STEPS, lr_warmup_fraction=0.01)
    changed = first(Wanted(seqlen_warmup=SLW), by_share)
    assert (changed["--lr-warmup-fraction"], changed["--lr-warmup-iters"]) == ("removed", "5000")
    assert "--lr-warmup-fraction" not in first(Wanted(peak_lr=3e-5), by_share)


SCHEDULES = [
    FixedLinear(start=64, full=2048, total_steps=6000, anchor_step=3000),
    FixedLinear(start=8, full=1024, total_steps=50, anchor_step=0),
    FixedLinear(start=8, full=16, total_steps=1, anchor_step=7),
    FixedLinear(start=20, full=72, total_steps=300, anchor_step=11),
]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_deepspeed_reads_the_staircase_as_the_schedule(schedule: SeqlenSchedule) -> None:
    from deepspeed.runtime.data_pipeline.curriculum_scheduler import CurriculumScheduler

    scheduler = CurriculumScheduler(discrete_curriculum(schedule))
    for step in range(schedule.anchor_step + 1, schedule.end_step + 20):
        assert scheduler.update_difficulty(step) == schedule.seqlen(step), step


REFUSED: list[tuple[Wanted, ScriptFacts, str]] = [
    (Wanted(lr_warmup=replace(LONGER, warmup=126_953_125)), RUN, "would not end before the decay"),
    (Wanted(lr_warmup=replace(LONGER, warmup=500_000, unit="steps")), BY_STEPS, "would not end before the decay"),
    (Wanted(seqlen_warmup=replace(SLW, schedule=replace(FROM_64, start=60))), RUN, "multiples of 8"),
    (Wanted(seqlen_warmup=replace(SLW, schedule=replace(FROM_64, start=2048))), RUN, "does not warm up"),
    (Wanted(seqlen_warmup=replace(SLW, schedule=replace(FROM_64, full=1024))), RUN, "--seq-length is 2048"),
    (Wanted(seqlen_warmup=replace(SLW, schedule=Adaptive(start=64, full=2048))), RUN, "can't be listed"),
]


@pytest.mark.parametrize(("wanted", "run_", "said"), REFUSED)
def test_what_megatron_would_refuse_is_refused_here(wanted: Wanted, run_: ScriptFacts, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        megatron_changes(wanted, run_)


def test_a_real_script_gets_all_of_it_and_its_follow_up_goes_without_what_was_for_once() -> None:
    marked = megatron_changes(ALL, RUN)
    text = TEXTS["lists_in_variables"]
    before = run(text)
    start = run(rewrite(text, changes_at(marked, "first")).text)
    follow_up = run(rewrite(text, changes_at(marked, "later")).text)
    wanted = {
        "seed": 44,
        "lr": 3e-5,
        "min_lr": 3e-6,
        "adam_beta2": 0.95,
        "clip_grad": 0.5,
        "rampup_batch_size": None,
        "train_samples": 900_000_000,
        "train_tokens": 300_000_000 * 2048,
        "lr_decay_tokens": 126_953_125 * 2048,
        "lr_decay_samples": None,
        "lr_warmup_samples": 432_640,
    }
    plain = {**before.options, **wanted}
    assert {**follow_up.options, "other": []} == {**plain, "other": []}
    assert follow_up.options["other"] == before.options["other"]
    assert {**start.options, "other": []} == {**plain, "other": []}
    once = [word for word in start.options["other"] if word not in before.options["other"]]
    assert sorted(once) == ["--initial-loss-scale", "--override-lr-scheduler", "4096"]
    for each in (start, follow_up):
        curriculum = config(each).pop("curriculum_learning")
        assert curriculum["min_difficulty"] == 64
        assert {**config(before), "curriculum_learning": curriculum} == config(each)
