"""PARK, RESUME and RELEASE: what is written is read again as it was, and what is wrong is named."""

from __future__ import annotations

import pytest

from sentinel.judge.history import History
from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.parking import ParkRequest, ReleaseRequest, ResumeRequest, decode_request, encode_request
from sentinel.vocabulary.sample import Parked, Record, Released, RunFinished, Sample, Validation

PARK = ParkRequest(rollback="incident-1-r1", attempt=3, deadline_unix_s=1795846361.0)


@pytest.mark.parametrize(
    "request_",
    [
        PARK,
        ResumeRequest(rollback="incident-1-r1", attempt=3, target="global_step40", global_step=40),
        ResumeRequest(rollback="incident-1-r1", attempt=3, target=None, global_step=0),
        ReleaseRequest(rollback="incident-1-r1", attempt=3),
    ],
)
def test_a_request_is_read_as_it_was_written(request_: ParkRequest | ResumeRequest | ReleaseRequest) -> None:
    assert decode_request(type(request_), encode_request(request_)) == request_


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        (encode_request(PARK).replace('"schema": 1', '"schema": 2'), "PARK has schema 2; this version reads 1"),
        (encode_request(PARK).replace("incident-1-r1", "../x"), "rollback"),
        (encode_request(PARK).replace("3,", "0,"), "attempt"),
        (encode_request(PARK).replace("1795846361.0", '"soon"'), "deadline_unix_s"),
        (encode_request(ReleaseRequest(rollback="incident-1-r1", attempt=3)), "needs the key 'deadline_unix_s'"),
    ],
)
def test_a_request_that_makes_no_sense_is_named(text: str, says: str) -> None:
    with pytest.raises(LineError, match=says):
        decode_request(ParkRequest, text)


@pytest.mark.parametrize(
    "later",
    [
        Released(attempt=3, global_step=40, time_unix_s=2.0, rollback="incident-1-r1"),
        RunFinished(attempt=3, global_step=40, time_unix_s=2.0, reason="parked too long"),
        Sample(attempt=3, global_step=41, time_unix_s=2.0, loss=1.0),
        Validation(attempt=3, global_step=40, time_unix_s=2.0, loss=1.0),
    ],
    ids=lambda record: type(record).__name__,
)
def test_an_attempt_is_parked_until_its_next_record(later: Record) -> None:
    parked = Parked(attempt=3, global_step=40, time_unix_s=1.0, rollback="incident-1-r1")
    history = History([Sample(attempt=3, global_step=40, time_unix_s=1.0, loss=1.0), parked])
    assert history.attempts[3].parked == parked
    history.push(later)
    assert history.attempts[3].parked is None
