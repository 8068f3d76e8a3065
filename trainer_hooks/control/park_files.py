"""Which PARK, RESUME and RELEASE are for this attempt. Called by the thread that watches them, on rank 0."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.parking import (
    FILES,
    ParkRequest,
    ReleaseRequest,
    Request,
    ResumeRequest,
    decode_request,
)

log = logging.getLogger(__name__)


class ParkFile:
    """PARK, as far as it asks this attempt to park."""

    def __init__(self, attempt: Callable[[], int]) -> None:
        """`attempt`: the number of the one under way; 0 while it is not minted."""
        self.request: ParkRequest | None = None  # The last one that was accepted
        self._attempt = attempt

    def accepts(self, text: str) -> bool | None:
        """Whether it is a new request for this attempt whose deadline is to come. Each that is not costs one sentence
        of the log. None while the attempt has no number."""
        attempt = self._attempt()
        if not attempt:
            return None
        request = decoded(ParkRequest, text)
        if request is None:
            return False
        if request.attempt != attempt:
            _ignored(ParkRequest, f"it is for attempt {request.attempt}, and this is attempt {attempt}")
            return False
        if self.request is not None and request.rollback == self.request.rollback:
            return False  # written again: the first one's deadline holds
        if time.time() >= request.deadline_unix_s:
            _ignored(ParkRequest, f"its deadline, {shown_time(request.deadline_unix_s)}, is past")
            return False
        self.request = request
        return True


class ParkedFiles:
    """RESUME and RELEASE, as far as they are for the park under way."""

    def __init__(self, park: ParkRequest, cannot: Callable[[ResumeRequest], str | None]) -> None:
        """`cannot`: why the trainer can't be resumed so; None where it can."""
        self.resume: ResumeRequest | None = None
        self._park, self._cannot = park, cannot

    def resumes(self, text: str) -> bool:
        """Whether RESUME is for this park."""
        request = decoded(ResumeRequest, text)
        if request is None or not self._is_of_park(request):
            return False
        if (why := self._cannot(request)) is not None:
            _ignored(ResumeRequest, why)
            return False
        self.resume = request
        return True

    def releases(self, text: str) -> bool:
        """Whether RELEASE is for this park."""
        request = decoded(ReleaseRequest, text)
        return request is not None and self._is_of_park(request)

    def _is_of_park(self, request: ResumeRequest | ReleaseRequest) -> bool:
        park = self._park
        if (request.rollback, request.attempt) == (park.rollback, park.attempt):
            return True
        told = f"it is for {request.rollback} and attempt {request.attempt}"
        _ignored(type(request), f"{told}, and attempt {park.attempt} is parked for {park.rollback}")
        return False


def decoded(kind: type[Request], text: str) -> Request | None:
    """What the text asks for; None, with a sentence in the log, where it makes no sense."""
    try:
        return decode_request(kind, text)
    except LineError as error:
        _ignored(kind, str(error))
        return None


def shown_time(unix_s: float) -> str:
    """In UTC, to the second."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _ignored(kind: type[Request], why: str) -> None:
    log.warning("sentinel: the file %s is ignored: %s", FILES[kind], why)
