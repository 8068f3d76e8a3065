"""overrides.json: every decision is read as it was written, and what is wrong is refused by its key."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.vocabulary.errors import ConfigError, OverridesError
from sentinel.vocabulary.names import why_not_a_name
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.overrides import (
    Anchor,
    Free,
    Once,
    Overrides,
    TrainingSettings,
    decode_overrides,
    encode_overrides,
)
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
from sentinel.vocabulary.sample import RunStarted, decode, encode
from sentinel.vocabulary.training_settings import SkippedRange

WHOLE = st.integers(0, 10**12)
SHARE = st.floats(0, 1, exclude_max=True)
POSITIVE = st.floats(1e-9, 1e9)
NAME = st.text(min_size=1, max_size=20).filter(lambda text: why_not_a_name(text) is None)
WORD = st.text(min_size=1)
RANGES = st.builds(
    lambda begin, count, reseeds: SkippedRange(begin=begin, end=begin + count, reseeds=tuple(reseeds)),
    WHOLE,
    st.integers(1, 10**9),
    st.lists(st.tuples(WHOLE, WHOLE), max_size=3),
)
LENGTHS = {"start": st.integers(1, 8), "full": st.integers(8, 4096), "anchor_step": WHOLE}
SEQLEN = st.one_of(
    st.builds(FixedLinear, **LENGTHS, total_steps=WHOLE),
    st.builds(FixedRoot, **LENGTHS, total_steps=WHOLE, root_degree=POSITIVE),
    st.builds(FixedDiscrete, **LENGTHS, difficulties=st.just((8, 8)), max_steps=st.tuples(WHOLE)),
    st.builds(Mixed, **LENGTHS, total_steps=st.none() | WHOLE),
    st.builds(Adaptive, **LENGTHS, tolerance=st.floats(1, 9)),
    st.builds(Custom, **LENGTHS, function=st.just("recipes:by_loss")),
)
DIFFICULTY = st.builds(
    DifficultySchedule,
    kind=st.just("value"),
    start=st.integers(0, 9),
    full=st.integers(9, 99),
    total_steps=WHOLE,
    root_degree=POSITIVE,
)
CURRICULUM = st.builds(
    CurriculumSchedule,
    metrics=st.dictionaries(WORD, st.builds(MetricSchedule, difficulty=DIFFICULTY, index=WORD), max_size=2),
)
STANDING = st.builds(
    TrainingSettings,
    lr=st.none() | st.builds(LrSchedule, peak=POSITIVE, warmup=WHOLE, decay_end=WHOLE),
    seqlen=st.none() | SEQLEN,
    shorten=st.sampled_from((None, "truncate", "reshape", "truncate_keep")),
    batch_size=st.none()
    | st.builds(
        BatchSizeSchedule, start=st.just(8), full=st.just(64), increment=st.sampled_from((4, 8)), ramp_samples=WHOLE
    ),
    random_ltd=st.none()
    | st.builds(RandomLtdSchedule, **LENGTHS, total_steps=WHOLE, layers=st.sampled_from((None, (), (1, 2)))),
    curriculum=st.none() | CURRICULUM,
    adam_beta1=st.none() | SHARE,
    adam_beta2=st.none() | SHARE,
    weight_decay=st.none() | POSITIVE,
    clip_grad=st.none() | POSITIVE,
    skipped=st.lists(RANGES, max_size=3).map(tuple),
    free=st.none() | st.builds(Free, environment=st.dictionaries(WORD, st.text()), options=st.lists(WORD).map(tuple)),
)
ONCE = st.builds(
    Once,
    id=WORD,
    seed=st.none() | WHOLE,
    skip_samples=st.none() | st.integers(1, 10**9),
    reset_moments=st.booleans(),
    loss_scale=st.none() | POSITIVE,
)
OVERRIDES = st.builds(
    Overrides,
    incident=NAME,
    rollback=NAME,
    anchor=st.builds(Anchor, global_step=WHOLE, consumed_samples=st.none() | WHOLE, consumed_tokens=st.none() | WHOLE),
    standing=STANDING,
    once=st.none() | ONCE,
)


@given(OVERRIDES)
def test_every_decision_is_read_as_it_was_written(overrides: Overrides) -> None:
    text = encode_overrides(overrides)
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert decode_overrides(text) == overrides


def test_what_is_not_changed_is_not_in_the_file_for_trainers_that_would_not_know_it() -> None:
    bare = Overrides(
        incident="i", rollback="r", anchor=Anchor(global_step=0), standing=TrainingSettings(), once=Once(id="r")
    )
    document = json.loads(encode_overrides(bare))
    assert (document["standing"], document["once"]) == ({}, {"id": "r"})


@pytest.mark.parametrize(
    ("standing", "once", "says"),
    [
        ({"adam_beta2": 1.0}, {}, "adam_beta2 should be at least 0 and below 1, not 1"),
        ({"adam_beta1": "nan"}, {}, "adam_beta1 should be a finite number at least 0 and below 1"),
        ({"adam_beta2": "0.95"}, {}, "adam_beta2 should be a number"),
        ({"clip_grad": -1}, {}, "clip_grad should be at least 0"),
        ({"weight_decay": True}, {}, "weight_decay should be a number"),
        ({"beta2": 0.95}, {}, "standing has no key 'beta2'; the right ones are .*adam_beta2"),
        ({"free": {"flags": []}}, {}, "Free has no key 'flags'"),
        ({"free": {"options": "--a=b"}}, {}, "options should be a list"),
        ({"free": {"environment": {"A": 1}}}, {}, "environment.A should be a string"),
        ({"skipped": {}}, {}, "skipped should be a list"),
        ({"skipped": [{"begin": 4, "end": 4}]}, {}, "skipped range"),
        ({"skipped": [{"begin": 4, "end": 9.5}]}, {}, "SkippedRange.end should be a whole number"),
        ({"skipped": [{"begin": 4, "end": 9, "seed": 1}]}, {}, "SkippedRange has no key 'seed'"),
        ({}, {"id": "r", "skip_samples": 0}, "skip_samples should be above 0"),
        ({}, {"id": "r", "skip_samples": 1.5}, "skip_samples should be a whole number"),
        ({}, {"id": "r", "reset_moments": 1}, "reset_moments should be true or false"),
        ({}, {"id": "r", "loss_scale": 0}, "loss_scale should be above 0"),
        ({}, {"id": "r", "loss_scale": "inf"}, "loss_scale should be a finite number above 0"),
        ({}, {"id": "r", "reset_momentum": True}, "once has no key 'reset_momentum'"),
    ],
)
def test_a_wrong_value_is_refused_by_its_key(standing: dict[str, Any], once: dict[str, Any], says: str) -> None:
    bare = Overrides(incident="i", rollback="r", anchor=Anchor(global_step=0), standing=TrainingSettings())
    document = json.loads(encode_overrides(bare)) | {"standing": standing, "once": once}
    with pytest.raises(OverridesError, match=says):
        decode_overrides(dump_json(document))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3), st.lists, max_leaves=5))
def test_no_skipped_range_makes_anything_but_our_own_error(value: Any) -> None:
    for data in (value, {"begin": value, "end": 9}, {"begin": 1, "end": 9, "reseeds": value}):
        try:
            SkippedRange.from_json(data)
        except ConfigError:
            continue


def test_what_a_start_reports_is_read_as_it_was_written() -> None:
    part = SkippedRange(begin=640, end=1000, reseeds=((0, 3), (160, 4)))
    started = RunStarted(
        attempt=2,
        time_unix_s=1.5,
        adam_beta1=0.9,
        adam_beta2=0.95,
        weight_decay=0.1,
        gradient_clipping=0.3,
        precision="fp16",
        loss_scale=4096.0,
        skipped_samples=360,
        skipped_ranges=(part.to_json(),),
        moments_reset_steps=(40, 70),
        free=Free(environment={"A": "b"}, options=("--c=d",)).to_json(),
    )
    assert decode(encode(started)) == started
    assert SkippedRange.from_json(part.to_json()) == part
