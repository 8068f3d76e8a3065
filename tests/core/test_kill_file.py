"""KILL: a person's stops every attempt, sentinel's those up to the one that it was written for."""

from __future__ import annotations

import pytest

from sentinel.vocabulary.kill_file import StopOrder, decode_stop_order, encode_stop_order, stops

ORDER = StopOrder(time_unix_s=7.5, attempt=3, job="33", reason="job 33_2 has to stop")


def test_what_was_written_is_read_again() -> None:
    assert decode_stop_order(encode_stop_order(ORDER)) == ORDER


@pytest.mark.parametrize(
    "text",
    ["", "stop, please", "{}", '{"by": "me"}', '{"by": "sentinel"}', "[1]", '{"by": "sentinel", "attempt": "x"}'],
)
def test_a_persons_file_stops_every_attempt_whatever_it_says(text: str) -> None:
    assert decode_stop_order(text) is None
    assert all(stops(text, attempt) for attempt in (0, 1, 99))


@pytest.mark.parametrize(("meant", "stopped"), [(3, [0, 1, 3]), (None, [0, 1, 3, 4])])
def test_an_attempt_that_began_after_the_one_meant_goes_on(meant: int | None, stopped: list[int]) -> None:
    text = encode_stop_order(StopOrder(time_unix_s=7.5, attempt=meant, job="33", reason="…"))
    assert [attempt for attempt in (0, 1, 3, 4) if stops(text, attempt)] == stopped
