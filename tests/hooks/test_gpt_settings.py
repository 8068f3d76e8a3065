"""Which schedules the reference trainer follows: what sentinel decided, else DeepSpeed's JSON, else its arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sentinel.vocabulary.errors import ConfigError, OverridesError
from sentinel.vocabulary.overrides import Anchor, Overrides, TrainingSettings, encode_overrides
from sentinel.vocabulary.pacing import (
    BatchSizeSchedule,
    CurriculumSchedule,
    DifficultySchedule,
    FixedLinear,
    FixedRoot,
    LrSchedule,
    MetricSchedule,
    RandomLtdSchedule,
)
from sentinel.vocabulary.pacing.deepspeed import DataEfficiency, IndexedMetric
from trainer_hooks.gpt.arguments import parse
from trainer_hooks.gpt.schedules import Schedules
from trainer_hooks.restart import read_overrides

FULL = 64
"""Tokens per sample of these runs, of 4 samples a step."""

SHARES = DifficultySchedule(kind="percentile", start=10, full=100, total_steps=9)


def by(*arguments: str, told: DataEfficiency | None = None, standing: TrainingSettings | None = None) -> Schedules:
    """The schedules of a run with these arguments, a DeepSpeed block and what sentinel decided."""
    run = ["--seqlen", str(FULL), "--global-batch", "4"]
    ends = [] if {"--steps", "--tokens"} & {*arguments} else ["--steps", "100"]
    return Schedules.of(parse([*run, *ends, *arguments]), told or DataEfficiency(), standing or TrainingSettings())


def curriculum(index: str, metric: str = "voc") -> CurriculumSchedule:
    return CurriculumSchedule(metrics={metric: MetricSchedule(difficulty=SHARES, index=index)})


def test_a_run_without_any_warmup_is_at_full_length_and_batch_from_its_first_step() -> None:
    found = by("--lr", "1e-3")
    assert found == Schedules(
        lr=LrSchedule(peak=1e-3, warmup=0, decay_end=100),
        seqlen=FixedLinear(start=FULL, full=FULL, total_steps=0),
        shorten="truncate",
        batch_size=BatchSizeSchedule(start=4, full=4, increment=1, ramp_samples=0),
        random_ltd=RandomLtdSchedule(start=FULL, full=FULL, total_steps=0),
        curriculum=None,
    )
    assert (found.seqlen.seqlen(1), found.batch_size.samples(0), found.random_ltd.kept_tokens(1)) == (FULL, 4, FULL)


def test_each_warmup_is_as_its_arguments_say() -> None:
    found = by("--seqlen-start", "8", "--seqlen-warmup-steps", "20", "--seqlen-shorten", "reshape")
    assert found.seqlen == FixedLinear(start=8, full=FULL, total_steps=20)
    assert found.shorten == "reshape"
    assert by("--seqlen-warmup-steps", "20").seqlen.warms_up is False  # from no length
    assert by("--seqlen-start", "999", "--seqlen-warmup-steps", "20").seqlen.warms_up is False
    ramp = by("--rampup-batch-size", "2", "1", "40").batch_size
    assert ramp == BatchSizeSchedule(start=2, full=4, increment=1, ramp_samples=40)
    assert by("--random-ltd", "16", "30").random_ltd == RandomLtdSchedule(start=16, full=FULL, total_steps=30)
    paced = by("--seqlen-schedule", '{"pacing": "fixed_root", "start": 8, "total_steps": 9}')
    assert paced.seqlen == FixedRoot(start=8, full=FULL, total_steps=9)


SEQLEN = FixedLinear(start=8, full=FULL, total_steps=50, anchor_step=30)
LTD = RandomLtdSchedule(start=32, full=FULL, total_steps=50, anchor_step=30)
TOLD = DataEfficiency(
    seqlen=FixedRoot(start=16, full=FULL, total_steps=9),
    shorten="reshape",
    random_ltd=RandomLtdSchedule(start=48, full=FULL, total_steps=9),
)
BY_ARGUMENTS = ("--seqlen-start", "24", "--seqlen-warmup-steps", "7", "--random-ltd", "16", "7")


def test_what_sentinel_decided_goes_before_deepspeeds_json_and_that_before_the_arguments() -> None:
    lr = LrSchedule(peak=5e-4, warmup=10, decay_end=0, anchor=30)
    standing = TrainingSettings(seqlen=SEQLEN, shorten="truncate_keep", random_ltd=LTD, lr=lr)
    decided = by(*BY_ARGUMENTS, told=TOLD, standing=standing)
    assert (decided.seqlen, decided.shorten, decided.random_ltd, decided.lr) == (SEQLEN, "truncate_keep", LTD, lr)
    told = by(*BY_ARGUMENTS, told=TOLD)
    assert (told.seqlen, told.shorten, told.random_ltd) == (TOLD.seqlen, "reshape", TOLD.random_ltd)
    recipe = by(*BY_ARGUMENTS, "--recipe", "slw", "random-ltd")
    assert (recipe.seqlen.start, recipe.random_ltd.start) == (FULL, FULL)  # the papers' 80 and 128, of 64
    grown = BatchSizeSchedule(start=1, full=4, increment=1, ramp_samples=9, anchor_samples=120)
    assert by(standing=TrainingSettings(batch_size=grown)).batch_size == grown


@pytest.mark.parametrize(
    ("arguments", "standing", "says"),
    [
        (
            (),
            TrainingSettings(seqlen=FixedLinear(start=8, full=32, total_steps=5)),
            "warms up to 32, and the model's full leng",
        ),
        (
            (),
            TrainingSettings(batch_size=BatchSizeSchedule(start=8, full=8, increment=1, ramp_samples=0)),
            "the batch warms up to 8, and --global-batch is 4",
        ),
        (("--rampup-batch-size", "2", "1", "40"), TrainingSettings(seqlen=SEQLEN), "both take tokens out of a batch"),
        (("--recipe", "voc"), TrainingSettings(), "--recipe voc needs --voc-index"),
    ],
)
def test_schedules_that_do_not_go_together_are_refused(
    arguments: tuple[str, ...], standing: TrainingSettings, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        by(*arguments, standing=standing)


def indexed(sample: str | None, metric: str | None = None) -> DataEfficiency:
    """As a `data_efficiency` block names a metric's files."""
    one = IndexedMetric(
        difficulty=SHARES, index_to_sample_path=sample, index_to_metric_path=metric, clustering_type="schedule_based"
    )
    return DataEfficiency(metrics={"seqreo": one})


ARGUED = ("--curriculum", json.dumps(curriculum("/argued", "loss").to_json()))
RARITY = ("--recipe", "voc", "--voc-index", "/rarity")


@pytest.mark.parametrize(
    ("arguments", "told", "decided", "found"),
    [
        ((*ARGUED, *RARITY), indexed("/told/to_sample"), curriculum("/decided"), {"voc": "/decided"}),
        ((*ARGUED, *RARITY), indexed("/told/to_sample"), None, {"loss": "/argued"}),
        (RARITY, indexed("/told/to_sample"), None, {"seqreo": "/told"}),
        (RARITY, DataEfficiency(), None, {"voc": "/rarity"}),
        ((), indexed(None, "/told/to_metric"), None, {"seqreo": "/told"}),
        ((*ARGUED, *RARITY), indexed("/told/to_sample"), CurriculumSchedule(metrics={}), None),  # switched off
        (("--curriculum", "{}"), DataEfficiency(), None, None),
    ],
    ids=["decided", "argued", "told", "recipe", "told by its values", "switched off", "none argued"],
)
def test_the_data_are_paced_by_the_first_that_says_how(
    arguments: tuple[str, ...],
    told: DataEfficiency,
    decided: CurriculumSchedule | None,
    found: dict[str, str] | None,
) -> None:
    paced = by(*arguments, told=told, standing=TrainingSettings(curriculum=decided)).curriculum
    assert (None if paced is None else {name: metric.index for name, metric in paced.metrics.items()}) == found
    assert paced is None or all(m.difficulty.full == 100 for m in paced.metrics.values())


def test_a_metric_without_an_index_is_refused() -> None:
    with pytest.raises(ConfigError, match="metric 'seqreo' has no index_to_sample_path"):
        by(told=indexed(None))


SLW = ("--seqlen-start", "8", "--seqlen-warmup-steps", "1000")
"""At 8 tokens for the run's first steps: 32 tokens a step."""


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (("--lr-warmup", "10"), {"warmup": 10, "decay_start": 10, "decay_end": 100}),
        (("--lr-warmup", "10", "--lr-decay", "60"), {"warmup": 10, "decay_start": 10, "decay_end": 60}),
        (("--lr-decay", "0"), {"warmup": 0, "decay_end": 0}),
        (("--lr-min", "1e-5"), {"warmup": 0, "decay_end": 100, "minimum": 1e-5}),
        (
            ("--lr-unit", "tokens", "--tokens", "9000", "--lr-warmup", "700"),
            {"warmup": 700, "decay_start": 700, "decay_end": 9000, "unit": "tokens"},
        ),
        (
            ("--lr-unit", "tokens", "--tokens", "9000", "--lr-warmup-tokens", "700"),
            {"warmup": 700, "decay_start": 700, "decay_end": 9000, "unit": "tokens"},
        ),
        (("--lr-warmup-tokens", str(5 * 4 * FULL)), {"warmup": 5, "decay_start": 5, "decay_end": 100}),
        (("--lr-warmup-tokens", str(5 * 4 * 8), *SLW), {"warmup": 5, "decay_start": 5, "decay_end": 100}),
        (
            ("--lr-warmup-tokens", "320", "--seqlen-schedule", '{"pacing": "adaptive", "start": 8}'),
            {"warmup": 10, "decay_start": 10, "decay_end": 100},  # at the first length, as long as it is not known
        ),
        (("--lr-warmup-tokens", "0", "--lr-warmup", "10"), {"warmup": 10, "decay_start": 10, "decay_end": 100}),
        (
            ("--lr-decay-unit", "tokens", "--tokens", "9000", "--lr-warmup", "5"),
            {"warmup": 5, "decay_start": 5 * 4 * FULL, "decay_end": 9000, "decay_unit": "tokens"},
        ),
        (
            ("--lr-decay-unit", "tokens", "--tokens", "9000", "--lr-warmup", "5", *SLW),
            {"warmup": 5, "decay_start": 5 * 4 * 8, "decay_end": 9000, "decay_unit": "tokens"},
        ),
        (
            (
                *("--lr-decay-unit", "tokens", "--tokens", "9000", "--lr-warmup", "5"),
                *("--seqlen-schedule", '{"pacing": "adaptive", "start": 8}'),
            ),
            {"warmup": 5, "decay_start": 4 * 8 + 4 * 4 * FULL, "decay_end": 9000, "decay_unit": "tokens"},
        ),
        (
            ("--lr-decay-unit", "tokens", "--tokens", "9000", "--lr-warmup", "5", "--random-ltd", "16", "100000"),
            {"warmup": 5, "decay_start": 5 * 4 * (2 * FULL + 2 * 16) // 4, "decay_end": 9000, "decay_unit": "tokens"},
        ),
        (
            ("--lr-unit", "tokens", "--lr-decay-unit", "steps", "--lr-warmup", str(5 * 4 * FULL)),
            {"warmup": 5 * 4 * FULL, "decay_start": 5, "decay_end": 100, "unit": "tokens", "decay_unit": "steps"},
        ),
    ],
)
def test_the_lr_warms_up_and_decays_in_the_units_that_were_asked_for(
    arguments: tuple[str, ...], found: dict[str, Any]
) -> None:
    assert by("--lr", "1e-3", *arguments).lr == LrSchedule(peak=1e-3, **found)


def test_the_lr_goes_by_the_runs_own_lengths_whatever_was_decided_since() -> None:
    """Its decay would begin elsewhere after each restart."""
    asked = ("--lr-decay-unit", "tokens", "--tokens", "9000", "--lr-warmup", "5")
    assert by(*asked, standing=TrainingSettings(seqlen=SEQLEN)).lr == by(*asked).lr


def test_a_recipes_lr_goes_by_tokens() -> None:
    found = by("--recipe", "slw", "--lr", "1e-3", "--lr-warmup-tokens", "700", "--data-share", "0.5").lr
    assert found == LrSchedule(
        peak=2e-3, warmup=700, decay_start=700, decay_end=100 * 4 * FULL, minimum=1e-6, unit="tokens"
    )


def test_what_sentinel_decided_is_read_where_it_is_and_refused_where_it_is_not_readable(tmp_path: Path) -> None:
    assert read_overrides(tmp_path) is None
    decided = Overrides(
        incident="i", rollback="r", anchor=Anchor(global_step=30), standing=TrainingSettings(seqlen=SEQLEN)
    )
    (tmp_path / "overrides.json").write_text(encode_overrides(decided))
    assert read_overrides(tmp_path) == decided
    (tmp_path / "overrides.json").write_text("{")
    with pytest.raises(OverridesError):
        read_overrides(tmp_path)
    (tmp_path / "overrides.json").unlink()
    (tmp_path / "overrides.json").mkdir()
    with pytest.raises(OverridesError, match=r"overrides\.json: Is a directory"):
        read_overrides(tmp_path)
