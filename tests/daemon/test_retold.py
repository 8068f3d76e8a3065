"""What a log or Prometheus told is told again as it was, from little memory, and as far back as it is asked for."""

from __future__ import annotations

import math
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.act.source import SampleCache
from sentinel.vocabulary.sample import Record, RunStarted, Sample, ScrapedSample, Validation

NUMBERS = st.none() | st.floats() | st.sampled_from((math.nan, math.inf, -math.inf, -0.0, 5e-324))
COUNTS = st.none() | st.integers(0, 2**63) | st.just(10**40)


class Pieces:
    """A source that gives one piece at each poll."""

    unreadable = 3

    def __init__(self, *pieces: list[Record]) -> None:
        self._pieces = list(pieces)

    def poll(self) -> list[Record]:
        return self._pieces.pop(0) if self._pieces else []


def sample(step: int, attempt: int = 1) -> Sample:
    return Sample(attempt=attempt, global_step=step, time_unix_s=float(step), loss=1 / step)


@given(
    st.lists(
        st.builds(
            lambda attempt, step, loss, more, count, scraped: (ScrapedSample if scraped else Sample)(
                attempt=attempt,
                global_step=step,
                time_unix_s=float(step),
                loss=math.nan if loss is None else loss,
                lr=more,
                consumed_tokens=count,
            ),
            st.integers(1, 3),
            st.integers(0, 2**63),
            NUMBERS,
            NUMBERS,
            COUNTS,
            st.booleans(),
        ),
        max_size=40,
    ),
    st.integers(1, 7),
)
@settings(max_examples=150, deadline=None)
def test_every_sample_is_told_again_as_it_was(samples: list[Sample], size: int) -> None:
    source = SampleCache(Pieces(*(list(samples[i : i + size]) for i in range(0, len(samples), size))))
    told = [record for _ in range(len(samples) + 1) for record in source.new()]
    assert told == samples
    for attempt in (1, 2, 3):
        again = list(source.again(attempt))
        assert repr(again) == repr([s for s in samples if s.attempt == attempt])
    assert source.unreadable == 3


def test_thousands_of_samples_are_told_again_across_attempts_and_what_is_no_sample_is_not() -> None:
    others: list[Record] = [
        RunStarted(attempt=1, time_unix_s=0.0),
        Validation(attempt=1, global_step=1, time_unix_s=0.0, loss=1.0),
    ]
    first, second = [sample(s) for s in range(1, 1001)], [sample(s, 2) for s in range(400, 1500)]
    source = SampleCache(Pieces([*others, *first], list(second)))
    assert list(source.new()) == [*others, *first]
    assert list(source.new()) == second
    assert (list(source.again(1)), list(source.again(2)), list(source.again(3))) == (first, second, [])


def test_a_kept_sample_takes_a_hundred_bytes_at_most() -> None:
    tracemalloc.start()
    try:
        source = SampleCache(Pieces([sample(s) for s in range(1, 20_001)]))
        source.poll()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / 20_000 < 100
