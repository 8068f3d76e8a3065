"""The metrics journal as columns: the same samples and the same unreadable lines as `decode` has."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.judge.readings import COLUMNS, Readings
from sentinel.sources.journals import open_journal
from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.numbers import LATEST_UNIX_S
from sentinel.vocabulary.sample import (
    CheckpointSaved,
    Record,
    RunFinished,
    RunStarted,
    Sample,
    Validation,
    decode,
    encode,
)
from tests.sources.readings import column, only, told
from tests.support.there import there

FIRST = Sample(attempt=1, global_step=1, time_unix_s=0.0, loss=2.5)


def journal(path: Path, *records: Record) -> Path:
    path.write_text("".join(encode(record) + "\n" for record in records))
    return path


def as_told(sample: Sample) -> dict[str, Any]:
    (one,) = told([Readings.of([sample])])
    return one


def test_samples_come_as_columns_and_the_other_records_beside_them(tmp_path: Path) -> None:
    others = [
        RunStarted(attempt=1, time_unix_s=1.0, seed=5, settings={"lr": math.nan}),
        Validation(attempt=1, global_step=2, time_unix_s=2.0, loss=3.0),
        CheckpointSaved(attempt=1, global_step=2, time_unix_s=2.5, tag="global_step2"),
        RunFinished(attempt=1, global_step=2, time_unix_s=3.0, reason="finished"),
    ]
    second = Sample(
        attempt=1, global_step=2, time_unix_s=1.5, loss=math.nan, grad_norm=math.inf, seqlen=64, skipped=True, lr=1e-4
    )
    source = only(journal(tmp_path / "0001.jsonl", others[0], FIRST, second, *others[1:]))
    assert told(source) == [as_told(FIRST), as_told(second)]
    assert source.others[1:] == others[1:]
    assert isinstance(source.others[0], RunStarted)
    assert (source.format, source.samples, source.unreadable) == ("journal", 2, 0)


def test_a_state_folder_gives_its_attempts_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    attempts = tmp_path / "attempts"
    attempts.mkdir()
    for number in (2, 10000, 1):
        journal(
            attempts / f"{number:04}.jsonl",
            RunStarted(attempt=number, time_unix_s=0.0, resumed_from=number - 1),
            Sample(attempt=number, global_step=number, time_unix_s=0.0, loss=2.5),
        )
    with (attempts / "0002.jsonl").open("a") as file:
        file.write('{"kind": "sample", "atte')
    for path in (tmp_path, attempts):
        source = only(path)
        assert column(told(source), "attempt", "step") == [(1, 1), (2, 2), (10000, 10000)]
        assert [one.resumed_from for one in source.others if isinstance(one, RunStarted)] == [0, 1, 9999]
        ((line, why),) = source.first_unreadable
        assert line == 3
        assert why.startswith("0002.jsonl: not JSON")


def test_a_file_with_several_attempts_is_given_attempt_by_attempt(tmp_path: Path) -> None:
    samples = [Sample(attempt=a, global_step=s, time_unix_s=0.0, loss=1.0, lr=lr) for a, s, lr in
               ((1, 1, None), (1, 2, 0.5), (2, 2, None), (2, 3, None), (3, 3, 0.25))]  # fmt: skip
    chunks = list(only(journal(tmp_path / "a", *samples)))
    assert [chunk.attempt for chunk in chunks] == [1, 2, 3]
    assert told(chunks) == [as_told(sample) for sample in samples]
    assert "lr" not in chunks[1].columns
    assert "lr" not in chunks[2].measured


@pytest.mark.parametrize(
    ("line", "readable"),
    [
        ('{"kind": "sample", "attempt": 1, "global_step": 2, "time_unix_s": 1, "loss": NaN}', True),
        ('{"kind": "sample", "attempt": 1, "global_step": 2, "time_unix_s": 1, "loss": 1e400}', True),
        ('{"kind": "sample", "attempt": 1, "global_step": 2, "time_unix_s": 1, "loss": "nan", "newer": [1]}', True),
        ('{"kind": "sample", "attempt": 1, "global_step": 2, "time_unix_s": 1, "loss": "NaN"}', False),
        ('{"kind": "sample", "attempt": 1, "global_step": 2.0, "time_unix_s": 1, "loss": 1}', False),
        ('{"kind": "sample", "attempt": 1, "global_step": true, "time_unix_s": 1, "loss": 1}', False),
        ('{"kind": "sample", "attempt": 1, "global_step": 2, "time_unix_s": 1, "loss": null}', False),
        ('{"kind": "sample", "attempt": 1, "global_step": 2, "time_unix_s": 1}', False),
        ('{"kind": "sample", "attempt": 1, "global_step": 2, "time_unix_s": 1, "loss": 1, "seqlen": 8.5}', False),
        ('{"kind": "sample", "attempt": 1, "global_step": 2, "time_unix_s": 1, "loss": 1, "loss": 3}', True),
        ('{"kind": "sample", "attempt": 1, "global_step": 99999999999999999999, "time_unix_s": 1, "loss": 1}', False),
    ],
)
def test_a_line_is_read_where_decode_reads_it(tmp_path: Path, line: str, readable: bool) -> None:
    source = only(journal(tmp_path / "a.jsonl", FIRST))
    with source.path.open("a") as file:
        file.write(line + "\n")
    samples = told(source)
    assert (len(samples), source.unreadable) == ((2, 0) if readable else (1, 1))
    if readable:
        sample = decode(line)
        assert isinstance(sample, Sample)
        assert samples[1] == as_told(sample)


NUMBERS = st.floats() | st.integers(-(2**53), 2**53).map(float)
OPTIONAL_NUMBERS = st.none() | NUMBERS
COUNTS = st.none() | st.integers(0, 2**40)
WHOLE = ("seqlen", "kept_tokens", "global_batch_samples")
SAMPLES = st.builds(
    Sample,
    attempt=st.integers(1, 3),
    global_step=st.integers(0, 2**53 - 1),
    time_unix_s=st.just(math.nan) | st.floats(0, LATEST_UNIX_S, exclude_max=True),
    loss=NUMBERS,
    loss_ratio=OPTIONAL_NUMBERS,
    **{name: OPTIONAL_NUMBERS for name in COLUMNS if name not in ("loss", *WHOLE)},
    **dict.fromkeys(WHOLE, COUNTS),
    consumed_samples=COUNTS,
    consumed_tokens=COUNTS,
    lr_warmup_steps=COUNTS,
    skipped=st.booleans(),
    step_time_s=OPTIONAL_NUMBERS,
)
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["nan", "inf", "NaN", "", "x"])
KEYS = st.sampled_from(
    ["kind", "attempt", "global_step", "time_unix_s", "loss", "skipped", "seqlen", "lr", "epoch", "x"]
)


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    """A sample's line, with some keys changed, taken away or put in, or some bytes."""
    line = encode(draw(SAMPLES)).encode()
    match draw(st.integers(0, 3)):
        case 0:
            one = json.loads(line) | draw(st.dictionaries(KEYS, VALUES, max_size=3))
            for key in draw(st.lists(KEYS, max_size=2)):
                one.pop(key, None)
            return json.dumps(one).encode()
        case 1:
            at = draw(st.integers(0, len(line)))
            return line[:at] + draw(st.binary(max_size=3)).replace(b"\n", b"") + line[at + draw(st.integers(0, 2)) :]
    return line


@settings(deadline=None)  # files are written
@given(st.lists(lines(), max_size=12))
def test_the_same_samples_and_the_same_unreadable_lines_as_decode(
    tmp_path_factory: pytest.TempPathFactory, found: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("journal") / "0001.jsonl"
    path.write_bytes(b"\n".join([encode(FIRST).encode(), encode(FIRST).encode(), *[one + b"\n" for one in found]]))
    expected, unreadable = [FIRST, FIRST], 0
    for line in path.read_bytes().split(b"\n")[2:]:
        try:
            record = decode(line.decode("utf-8", "replace")) if line.strip() else None
        except LineError:
            unreadable += 1
            continue
        if isinstance(record, Sample):
            fits = all(-(2**63) <= value < 2**63 for value in (record.attempt, record.global_step))
            expected += [record] * fits
            unreadable += not fits
    source = there(open_journal(path.parent))  # by its folder: a head full of damage would be taken for something else
    assert told(source) == [as_told(sample) for sample in expected]
    assert source.unreadable == unreadable


@settings(deadline=None)  # files are written
@given(st.lists(SAMPLES, min_size=1, max_size=30))
def test_samples_that_are_written_and_read_are_the_readings_of_them(
    tmp_path_factory: pytest.TempPathFactory, samples: list[Sample]
) -> None:
    samples = sorted(samples, key=lambda sample: sample.attempt)
    path = journal(tmp_path_factory.mktemp("journal") / "0001.jsonl", *samples)
    for chunk in only(path):
        wanted = Readings.of([sample for sample in samples if sample.attempt == chunk.attempt])
        assert np.array_equal(chunk.steps, wanted.steps)
        assert chunk.columns.keys() == wanted.columns.keys()
        assert chunk.measured.keys() == wanted.measured.keys()
        assert all(np.array_equal(chunk.columns[name], wanted.columns[name], equal_nan=True) for name in chunk.columns)
        assert all(np.array_equal(chunk.measured[name], wanted.measured[name]) for name in chunk.measured)
        assert np.array_equal(there(chunk.skipped), np.array(wanted.skipped))
