"""Following a journal reads each line as `decode` does, whatever stands on it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.adapters.journal import decode_line
from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.sample import Sample, Validation, decode, encode

NUMBERS = st.one_of(st.floats(), st.integers(-(10**30), 10**30).map(float), st.just(math.nan))
SAMPLES = st.builds(
    Sample,
    attempt=st.integers(1, 10**20),
    global_step=st.integers(0, 2**70),
    time_unix_s=st.floats(0, 2e9),
    loss=NUMBERS,
    grad_norm=st.none() | NUMBERS,
    seqlen=st.none() | st.integers(1, 2**20),
    skipped=st.booleans(),
)
PIECES = (
    '"x": 1, ', '"x": 01, ', '"x": 1., ', '"x": [1], ', '"x": {"kind": 2}, ', '"x": "\\u006b", ',
    '"\\u006bind": "no", ',
    '"kind": "validation", ', '"loss": null, ', '"loss": 1e999, ', '"loss": NaN, ', '"loss": 2, ', '"seqlen": 3.0, ',
    '"skipped": 1, ', '"attempt": true, ', "\t", " ", ",", "}", '"', "9" * 5000,
)  # fmt: skip
"""What may stand between two of a line's keys, and mostly should not."""


def said(line: bytes, by_the_grammar: bool) -> str:
    try:
        return repr(decode(line.decode("utf-8", "replace")) if by_the_grammar else decode_line(line))
    except LineError as error:
        return f"LineError: {error}"


@settings(max_examples=400, deadline=None)
@given(SAMPLES, st.lists(st.tuples(st.integers(0, 30), st.sampled_from(PIECES)), max_size=2), st.data())
def test_a_line_is_what_the_grammar_says_it_is(
    sample: Sample, added: list[tuple[int, str]], data: st.DataObject
) -> None:
    parts = encode(sample).split(", ")
    for at, piece in added:
        parts[at % len(parts)] = piece + parts[at % len(parts)]
    line = bytearray(", ".join(parts).encode())
    if data.draw(st.booleans(), "a byte of it is another"):
        line[data.draw(st.integers(0, len(line) - 1))] = data.draw(st.integers(0, 255))
    assert said(bytes(line), by_the_grammar=False) == said(bytes(line), by_the_grammar=True)


@pytest.mark.parametrize("loss", [2.5, math.nan, -math.inf])
def test_a_line_is_read_back_as_what_was_written(loss: float) -> None:
    sample = Sample(attempt=1, global_step=3, time_unix_s=1.5, loss=loss)
    validation = Validation(attempt=1, global_step=3, time_unix_s=1.5, loss=loss)
    assert repr(decode_line(encode(sample).encode())) == repr(sample)
    assert repr(decode_line(encode(validation).encode())) == repr(validation)
