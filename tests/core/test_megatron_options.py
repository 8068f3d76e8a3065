"""Megatron-DeepSpeed's options: what the LR and the sequence length become, and which start gets which change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.plan.job_script import Change, RemoveOption, SetJson, SetOption, rewrite
from sentinel.plan.megatron_options import (
    LrWarmup,
    Marked,
    MegatronRun,
    SeqlenWarmup,
    Wanted,
    changes_at,
    megatron_changes,
)
from sentinel.plan.megatron_schedules import discrete_curriculum, lr_at, warmup_for
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Anchor
from sentinel.vocabulary.pacing import Adaptive, FixedLinear, SeqlenSchedule
from tests.core.shell_sandbox import SCRIPTS, config, run

TEXTS = {path.stem: path.read_text() for path in SCRIPTS}
RUN = MegatronRun(
    peak_lr=6e-5,
    min_lr=6e-6,
    full_seqlen=2048,
    global_batch_samples=512,
    unit="samples",
    train=300_000_000,
    decay=126_953_125,
)
BY_STEPS = replace(RUN, unit="iterations", train=500_000, decay=None, global_batch_samples=64)
ANCHOR = Anchor(global_step=3000, consumed_samples=200_000, consumed_tokens=409_600_000)
FROM_64 = FixedLinear(start=64, full=2048, total_steps=6000, anchor_step=3000)
SLW = SeqlenWarmup(schedule=FROM_64, lr_warmup_tokens=375_000_000)
ALL = Wanted(
    seed=44,
    fresh_rng=True,
    peak_lr=3e-5,
    seqlen_warmup=SLW,
    adam_beta2=0.95,
    clip_grad=0.5,
    initial_loss_scale=4096,
    save_interval=100,
    eval_interval=150,
)


def values(changes: tuple[Change, ...]) -> dict[str, Any]:
    return {
        **{change.flag: change.value for change in changes if isinstance(change, SetOption)},
        **{change.flag: "removed" for change in changes if isinstance(change, RemoveOption)},
        **{".".join(change.path): change.value for change in changes if isinstance(change, SetJson)},
    }


def first(wanted: Wanted, run_: MegatronRun = RUN, anchor: Anchor = ANCHOR) -> dict[str, Any]:
    return values(changes_at(megatron_changes(wanted, run_, anchor), "first"))


def later(wanted: Wanted, run_: MegatronRun = RUN) -> dict[str, Any]:
    return values(changes_at(megatron_changes(wanted, run_, ANCHOR), "later"))


def test_nothing_wanted_is_nothing_changed() -> None:
    assert megatron_changes(Wanted(), RUN, ANCHOR) == ()


def test_a_seed_stays_and_fresh_random_numbers_are_for_one_start() -> None:
    wanted = Wanted(seed=44, fresh_rng=True)
    assert first(wanted) == {"--seed": "44", "--no-load-rng": None}
    assert later(wanted) == {"--seed": "44"}


@pytest.mark.parametrize(("scheduler", "name"), [("older", "lr-scheduler"), ("newer", "opt_param-scheduler")])
def test_a_lower_lr_overrides_the_checkpoint_once(scheduler: Any, name: str) -> None:
    wanted, run_ = Wanted(peak_lr=3e-5), replace(RUN, scheduler=scheduler)
    assert first(wanted, run_) == {"--lr": "3e-05", f"--override-{name}": None, f"--use-checkpoint-{name}": "removed"}
    assert later(wanted, run_) == {"--lr": "3e-05"}


def test_a_token_decay_of_the_newer_scheduler_goes_on_from_the_checkpoint() -> None:
    newer = replace(RUN, scheduler="newer")
    changed = first(Wanted(seqlen_warmup=SLW), newer)
    assert changed["--override-opt_param-scheduler"] is None
    assert changed["--use-checkpoint-opt_param-scheduler"] == "removed"
    changed = later(Wanted(seqlen_warmup=SLW), newer)
    assert changed["--use-checkpoint-opt_param-scheduler"] is None
    assert changed["--override-opt_param-scheduler"] == "removed"


@given(
    consumed=st.integers(1, 10**9),
    share=st.floats(0.001, 1),
    batch=st.sampled_from([1, 7, 512, 2048]),
)
def test_the_solved_warmup_gives_the_wanted_lr_at_the_anchor(consumed: int, share: float, batch: int) -> None:
    warmup = warmup_for(6e-5 * share, peak=6e-5, consumed=consumed, batch=batch)
    assert (warmup - consumed) % batch == 0
    assert lr_at(consumed, peak=6e-5, warmup=warmup) <= 6e-5 * share * (1 + 1e-6)
    assert warmup == consumed or lr_at(consumed, peak=6e-5, warmup=warmup - batch) >= 6e-5 * share * (1 - 1e-6)


def test_the_warmup_is_not_a_ramp_from_zero_at_the_anchor() -> None:
    """AnnealingLR.get_lr, overridden, counts all samples ever consumed."""
    warmup = int(first(Wanted(lr_warmup=LrWarmup(anchor_lr=1e-5)))["--lr-warmup-samples"])
    assert ANCHOR.consumed_samples is not None
    rates = [_annealing(ANCHOR.consumed_samples + step * 512, 6e-5, warmup) for step in range(0, 4000, 100)]
    assert rates[0] == pytest.approx(1e-5, rel=0.003)
    assert rates == sorted(rates)
    assert rates[-1] == 6e-5


@pytest.mark.parametrize(
    ("run_", "flag", "length"),
    [
        (RUN, "--lr-warmup-samples", 1_200_448),
        (BY_STEPS, "--lr-warmup-iters", 18_000),
        (replace(RUN, lr_warmup_tokens=True, scheduler="newer"), "--lr-warmup-tokens", 2_457_600_000),
    ],
)
def test_a_longer_warmup_is_counted_as_the_run_counts(run_: MegatronRun, flag: str, length: int) -> None:
    changed = first(Wanted(lr_warmup=LrWarmup(anchor_lr=1e-5)), run_)
    assert {
        name: value for name, value in changed.items() if name.startswith("--lr-warmup") and value != "removed"
    } == {flag: str(length)}


def test_slw_is_five_changes() -> None:
    changed = first(Wanted(seqlen_warmup=SLW))
    assert changed["curriculum_learning"]["schedule_type"] == "fixed_discrete"
    assert changed["--rampup-batch-size"] == "removed"
    assert (changed["--train-tokens"], changed["--train-samples"]) == (str(300_000_000 * 2048), "900000000")
    assert changed["--lr-decay-tokens"] == str(126_953_125 * 2048)
    resized = int(changed["--lr-warmup-samples"])
    assert 375_000_000 / 64 <= resized < 375_000_000 / 64 + 512
    assert (resized - 200_000) % 512 == 0


def test_slw_of_a_run_in_iterations_counts_the_batch_in() -> None:
    changed = first(Wanted(seqlen_warmup=replace(SLW, lr_warmup_tokens=64 * 64 * 5000)), BY_STEPS)
    assert changed["--train-iters"] == "1500000"
    assert changed["--train-tokens"] == changed["--lr-decay-tokens"] == str(500_000 * 2048 * 64)
    assert changed["--lr-warmup-iters"] == "5000"


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


REFUSED: list[tuple[Wanted, MegatronRun, Anchor, str]] = [
    (Wanted(peak_lr=1e-6), RUN, ANCHOR, "below --min-lr"),
    (Wanted(lr_warmup=LrWarmup(anchor_lr=1e-3)), RUN, ANCHOR, "not above the peak"),
    (Wanted(lr_warmup=LrWarmup(anchor_lr=0)), RUN, ANCHOR, "above 0"),
    (Wanted(lr_warmup=LrWarmup(anchor_lr=1e-5)), RUN, Anchor(global_step=5), "consumed_samples is not known"),
    (Wanted(lr_warmup=LrWarmup(anchor_lr=1e-5)), BY_STEPS, Anchor(global_step=0), "beginning of a run"),
    (Wanted(lr_warmup=LrWarmup(anchor_lr=1e-8)), RUN, ANCHOR, "would not end before the decay"),
    (Wanted(seqlen_warmup=replace(SLW, schedule=replace(FROM_64, start=60))), RUN, ANCHOR, "multiples of 8"),
    (Wanted(seqlen_warmup=replace(SLW, schedule=replace(FROM_64, start=2048))), RUN, ANCHOR, "is no warmup"),
    (Wanted(seqlen_warmup=replace(SLW, schedule=replace(FROM_64, full=1024))), RUN, ANCHOR, "--seq-length is 2048"),
    (Wanted(seqlen_warmup=replace(SLW, schedule=Adaptive(start=64, full=2048))), RUN, ANCHOR, "can't be listed"),
    (Wanted(seqlen_warmup=replace(SLW, lr_warmup_tokens=None)), RUN, ANCHOR, "an LR warmup of its own"),
    (Wanted(seqlen_warmup=SLW, lr_warmup=LrWarmup(anchor_lr=1e-5)), RUN, ANCHOR, "not both"),
    (Wanted(seqlen_warmup=replace(SLW, lr_warmup_tokens=1)), RUN, ANCHOR, "over at the anchor"),
]


@pytest.mark.parametrize(("wanted", "run_", "anchor", "said"), REFUSED)
def test_what_megatron_would_refuse_is_refused_here(
    wanted: Wanted, run_: MegatronRun, anchor: Anchor, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        megatron_changes(wanted, run_, anchor)


def test_a_real_script_gets_all_of_it_and_its_follow_up_goes_without_what_was_for_once() -> None:
    marked = megatron_changes(ALL, RUN, ANCHOR)
    text = TEXTS["lists_in_variables"]
    before = run(text)
    start = run(rewrite(text, changes_at(marked, "first")).text)
    follow_up = run(rewrite(text, changes_at(marked, "later")).text)
    wanted = {
        "seed": 44,
        "lr": 3e-5,
        "adam_beta2": 0.95,
        "clip_grad": 0.5,
        "save_interval": 100,
        "eval_interval": 150,
        "rampup_batch_size": None,
        "train_samples": 900_000_000,
        "train_tokens": 300_000_000 * 2048,
        "lr_decay_tokens": 126_953_125 * 2048,
        "lr_warmup_samples": 200_000 + 11_054 * 512,
    }
    plain = {**before.options, **wanted}
    assert {**follow_up.options, "other": []} == {**plain, "other": []}
    assert follow_up.options["other"] == before.options["other"]
    assert {**start.options, "other": []} == {**plain, "no_load_rng": True, "other": []}
    once = [word for word in start.options["other"] if word not in before.options["other"]]
    assert sorted(once) == ["--initial-loss-scale", "--override-lr-scheduler", "4096"]
    for each in (start, follow_up):
        curriculum = config(each).pop("curriculum_learning")
        assert curriculum["min_difficulty"] == 64
        assert {**config(before), "curriculum_learning": curriculum} == config(each)


def test_every_change_is_marked() -> None:
    marked = megatron_changes(ALL, replace(RUN, scheduler="newer"), ANCHOR)
    assert all(isinstance(each, Marked) for each in marked)
    once = {getattr(each.change, "flag", "") for each in marked if each.at == "once"}
    assert once == {
        "--no-load-rng",
        "--initial-loss-scale",
        "--override-opt_param-scheduler",
        "--use-checkpoint-opt_param-scheduler",
    }


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_every_sample_script_takes_what_needs_no_json(path: Path) -> None:
    wanted = replace(ALL, seqlen_warmup=None, lr_warmup=LrWarmup(anchor_lr=1e-5))
    for start in ("first", "later"):
        changes = changes_at(megatron_changes(wanted, RUN, ANCHOR), start)  # type: ignore[arg-type]
        once = rewrite(path.read_text(), changes)
        assert rewrite(once.text, changes).diff == ""


def _annealing(consumed: int, peak: float, warmup: int) -> float:
    """The warmup of Megatron's schedulers, in their words."""
    num_steps = consumed
    if warmup > 0 and num_steps <= warmup:
        return peak * float(num_steps) / float(warmup)
    return peak
