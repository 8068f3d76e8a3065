"""Prometheus's HTTP API, as far as a source needs it: the scraped values of a stretch of time, as they were scraped."""

from __future__ import annotations

import base64
import contextlib
import math
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import msgspec

from sentinel import bounded
from sentinel.adapters.http_client import Refused, TooLong, Unreachable, answer, bearer, body_of, trusting
from sentinel.vocabulary.errors import ScrapeError

_LONGEST_ANSWER_BYTES = 32 << 20  # a quarter of a million values; more is asked for in smaller pieces
_BEYOND_S = 300.0  # that an answer may reach beyond what was asked about; Prometheus's own look-back
_LONGEST_ADDRESS = 4000  # characters; a longer query is posted, a shorter one not: a proxy may let us only GET


class TooMuch(Exception):  # noqa: N818 - reads as what it says
    """The stretch holds more than one answer may: ask for a shorter one."""


class NotUnderstood(ScrapeError):  # noqa: N818 - reads as what it says
    """It answered to this question, and with nothing that can be used: another question may fare better."""


class Point(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one scrape found. Python's garbage collector passes over it: an answer holds a hundred thousand."""

    at: float  # Unix seconds
    value: float  # nan and inf are readings; what went stale has none


class PromSeries(msgspec.Struct, frozen=True, kw_only=True):
    labels: dict[str, str] = msgspec.field(name="metric")
    values: tuple[Point, ...] = ()  # in the order of time


class _Matrix(msgspec.Struct, tag_field="resultType", tag="matrix"):
    result: list[PromSeries]


class _Answer(msgspec.Struct, tag_field="status", tag="success"):
    data: _Matrix


class _Refusal(msgspec.Struct):
    error: str


# What decoding raises: msgspec's own, UnicodeDecodeError for a text that is none, and of arrays in arrays without end.
_NO_DOCUMENT = (msgspec.MsgspecError, ValueError, RecursionError)

_answer = msgspec.json.Decoder(_Answer, strict=False).decode  # not strict: values are strings, "1.5", "NaN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Where Prometheus is, and how it lets us in. Secrets are read from their files for each request, and not kept."""

    url: str
    token_file: Path | None = None
    user: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    timeout_s: float = 10.0  # for one whole answer

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or "?"

    def headers(self) -> dict[str, str]:
        """What each request says of itself. ScrapeError names the file that can't be read."""
        headers = {"Accept": "application/json", "User-Agent": "sentinel"}
        if self.token_file is not None:
            headers["Authorization"] = bearer(self._secret(self.token_file))
        elif self.user is not None and self.password_file is not None:
            pair = f"{self.user}:{self._secret(self.password_file)}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        return headers

    def _secret(self, path: Path) -> str:
        try:
            return bounded.read_secret(path)
        except OSError as error:
            raise ScrapeError(self.host, f"{path} can't be read: {error.strerror}") from None


class Api:
    """One Prometheus, or what speaks as one (Thanos, Mimir, VictoriaMetrics)."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self.host = door.host

    def scraped(self, selector: str, since: float, until: float) -> list[PromSeries]:
        """All that was scraped from `since` to `until`, Unix seconds; it may begin a little earlier. ScrapeError where
        there is no answer, NotUnderstood where there is another, TooMuch where it would be too long."""
        reach_s = math.ceil(until - since) + 1  # Prometheus 3 leaves the first moment out
        body = self._query(query=f"{selector}[{reach_s}s]", time=f"{until:.3f}")
        try:
            return series_in(body, until - reach_s, until)
        except ValueError:
            raise NotUnderstood(self.host, "it does not answer as a Prometheus") from None

    def _query(self, **parameters: str) -> bytes:
        door = self._door
        address, asked, posted = f"{door.url.rstrip('/')}/api/v1/query", urlencode(parameters), None
        if len(address) + len(asked) < _LONGEST_ADDRESS:
            address += f"?{asked}"
        else:
            posted = asked.encode()
        request = urllib.request.Request(address, posted, door.headers())  # noqa: S310 - http(s): the configuration's
        try:
            context = trusting(door.ca_file) if urlsplit(door.url).scheme == "https" else None
            with answer(request, context, door.timeout_s) as response:
                return body_of(response, _LONGEST_ANSWER_BYTES)
        except TooLong:
            raise TooMuch from None
        except Refused as error:
            raise self._refused(error) from None
        except Unreachable as error:
            raise ScrapeError(door.host, str(error)) from None

    def _refused(self, error: Refused) -> Exception:
        """What Prometheus says of the query itself is worth telling: it quotes no secret, for none is in there."""
        said = ""
        with contextlib.suppress(*_NO_DOCUMENT):
            said = msgspec.json.decode(error.body, type=_Refusal).error[:300]
        if error.code == 413 or (error.code == 422 and "too many samples" in said):
            return TooMuch()
        if error.code in (400, 422):
            return NotUnderstood(self.host, f"it answers {error.code}: {said or error.reason}")
        return ScrapeError(self.host, f"it answers {error.code}: {said or error.reason}")


def series_in(answer: bytes, since: float, until: float) -> list[PromSeries]:
    """The matrix of an answer about `since` to `until`, Unix seconds. ValueError where it is none, or tells of other
    times: a reading from the year 5000 would be the newest one for ever."""
    try:
        found = _answer(
            answer.replace(b'"+Inf"]', b'"inf"]')
        ).data.result  # the one spelling that msgspec does not know
    except _NO_DOCUMENT as error:
        raise ValueError(str(error)[:300]) from None
    earliest, latest = since - _BEYOND_S, until + _BEYOND_S
    if not all(earliest <= point.at <= latest for one in found for point in one.values):
        raise ValueError("it holds a time that was not asked about")
    return found
