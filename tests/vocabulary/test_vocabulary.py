"""The vocabulary: what is written is read again as it was, and what is wrong is named."""

from __future__ import annotations

import json
import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.vocabulary import errors
from sentinel.vocabulary.errors import LineError, OverridesError
from sentinel.vocabulary.loss_ratio import LossMinimum, loss_ratio
from sentinel.vocabulary.metrics import SAMPLE_METRICS
from sentinel.vocabulary.overrides import Anchor, Once, Overrides, TrainingSettings, decode_overrides, encode_overrides
from sentinel.vocabulary.pacing import FixedLinear, LrSchedule
from sentinel.vocabulary.sample import (
    CheckpointSaved,
    Parked,
    Record,
    Released,
    RunFinished,
    RunStarted,
    Sample,
    Validation,
    decode,
    encode,
)
from tests.support.there import there

ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True)
SAMPLES = st.builds(
    Sample,
    attempt=st.integers(1, 9999),
    global_step=st.integers(0, 10**9),
    time_unix_s=st.floats(0, 1e10),
    loss=ANY_FLOAT,
    loss_ratio=st.none() | ANY_FLOAT,
    adam_variance_l1=st.none() | ANY_FLOAT,
    grad_norm=st.none() | ANY_FLOAT,
    skipped=st.booleans(),
    seqlen=st.none() | st.integers(1, 10**6),
    consumed_tokens=st.none() | st.integers(0, 10**15),
)


def same(a: Record | None, b: Record | None) -> bool:
    """Equal, with nan equal to itself."""
    return type(a) is type(b) and all(repr(getattr(a, f.name)) == repr(getattr(b, f.name)) for f in fields(a))  # type: ignore[arg-type]


@given(SAMPLES)
def test_a_sample_is_read_as_it_was_written(sample: Sample) -> None:
    line = encode(sample)
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert "\n" not in line
    assert same(decode(line), sample)


@pytest.mark.parametrize(
    "record",
    [
        RunStarted(attempt=2, time_unix_s=1.5, resumed_from=10, applied_once=("a", "b"), lr_schedule={"peak": 0.1}),
        Validation(attempt=2, global_step=20, time_unix_s=1.5, loss=3.25, seqlen=128),
        CheckpointSaved(attempt=2, global_step=20, time_unix_s=1.5, tag="global_step20"),
        RunStarted(attempt=3, time_unix_s=1.5, in_place=True, can_park=True),
        Parked(attempt=2, global_step=20, time_unix_s=1.5, rollback="incident-1-r1"),
        Released(attempt=2, global_step=20, time_unix_s=1.5, rollback="incident-1-r1"),
        Released(attempt=2, global_step=20, time_unix_s=1.5, rollback="incident-1-r2", not_parked="rank 1 was late"),
        RunFinished(attempt=2, global_step=20, time_unix_s=1.5, reason="sigterm"),
    ],
)
def test_every_kind_of_line_is_read_as_it_was_written(record: Record) -> None:
    assert same(decode(encode(record)), record)


def test_nan_is_a_reading_and_null_is_none() -> None:
    read = decode(
        '{"kind": "sample", "attempt": 1, "global_step": 3, "time_unix_s": 0, "loss": "nan", "grad_norm": null}'
    )
    assert isinstance(read, Sample)
    assert math.isnan(read.loss)
    assert read.grad_norm is None


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "not JSON"),
        ("[1]", "object"),
        ('{"attempt": 1}', "no kind"),
        ('{"kind": "sample", "attempt": 1, "global_step": 3, "time_unix_s": 0}', "needs the key 'loss'"),
        ('{"kind": "sample", "attempt": "1", "global_step": 3, "time_unix_s": 0, "loss": 1}', "attempt"),
        ('{"kind": "sample", "attempt": 1, "global_step": 3, "time_unix_s": 0, "loss": "high"}', "loss"),
        (
            '{"kind": "sample", "attempt": 1, "global_step": 3, "time_unix_s": 0, "loss": null}',
            "loss should be a number",
        ),
    ],
)
def test_a_line_that_makes_no_sense_is_named(line: str, says: str) -> None:
    with pytest.raises(LineError, match=says):
        decode(line)


@given(st.text())
def test_no_text_makes_decode_raise_anything_but_our_own(text: str) -> None:
    try:
        record = decode(text)
    except LineError:
        return
    assert record is None or encode(record)


def test_a_kind_of_a_newer_version_is_passed_over() -> None:
    assert decode('{"kind": "weather", "rain": true}') is None


@pytest.mark.parametrize(
    ("loss", "minimum", "ratio"),
    [(3.0, None, 1.0), (3.0, 2.0, 1.5), (1.0, 2.0, 0.5), (math.nan, 2.0, math.inf), (math.inf, None, math.inf)],
)
def test_the_loss_ratio_is_the_papers(loss: float, minimum: float | None, ratio: float) -> None:
    assert loss_ratio(loss, minimum) == ratio


def test_a_loss_that_is_not_finite_never_enters_the_minimum() -> None:
    minimum = LossMinimum()
    assert [minimum.push(loss, 128) for loss in (4.0, math.nan, -math.inf, 5.0)] == [1.0, math.inf, math.inf, 1.25]


def test_the_minimum_is_kept_for_each_length_and_survives_a_checkpoint() -> None:
    minimum = LossMinimum()
    minimum.push(4.0, 8)
    assert minimum.push(2.0, 128) == 1.0
    again = LossMinimum.load(minimum.state())
    assert again.push(5.0, 8) == 1.25
    assert again.push(3.0, 128) == 1.5


LR = LrSchedule(peak=1.5e-2, warmup=20, decay_start=20, decay_end=240, minimum=1e-3)


OVERRIDES = Overrides(
    incident="incident-1",
    rollback="incident-1-r2",
    anchor=Anchor(global_step=10, consumed_samples=160, consumed_tokens=20480),
    standing=TrainingSettings(lr=LR, seqlen=FixedLinear(start=8, full=128, total_steps=60, anchor_step=10)),
    once=Once(id="incident-1-r2", seed=4),
)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": 99}, "schema 99"),
        ({"standing": {"sequence": {}}}, "standing has no key 'sequence'"),
        ({"standing": {"lr": {"peak": 1.0}}}, "LrSchedule"),
        ({"anchor": {}}, "anchor needs the key 'global_step'"),
        ({"incident": ""}, "incident"),
        ({"once": {"seed": 3}}, "id"),
        ({"extra": 1}, "overrides.json has no key 'extra'"),
    ],
)
def test_an_override_that_is_not_understood_is_refused_never_ignored(change: dict[str, object], says: str) -> None:
    document = json.loads(encode_overrides(OVERRIDES)) | change
    with pytest.raises(OverridesError, match=says):
        decode_overrides(json.dumps(document))


def test_every_exported_metric_is_a_reading_of_a_sample() -> None:
    names = {f.name for f in fields(Sample)}
    assert {m.field for m in SAMPLE_METRICS} <= names
    assert len({m.name for m in SAMPLE_METRICS}) == len(SAMPLE_METRICS)


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    for name, kind in vars(errors).items():
        if isinstance(kind, type):
            assert name in there(errors.__doc__)
            assert issubclass(kind, errors.SentinelError)
