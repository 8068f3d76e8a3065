"""Prometheus's HTTP API, as far as a source needs it: the scraped values of a stretch of time, as they were scraped."""

from __future__ import annotations

import base64
import contextlib
import http.client
import math
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import msgspec

from sentinel import bounded
from sentinel.vocabulary.errors import ScrapeError

__all__ = ["Api", "Door", "NotUnderstood", "Point", "Series", "TooMuch", "series_in"]

_LONGEST_ANSWER_BYTES = 32 << 20
"""A quarter of a million values. More is asked for in smaller pieces."""

_CHUNK_BYTES = 1 << 16

_LONGEST_ADDRESS = 4000
"""Characters. A longer question is posted; a shorter one is not, for a proxy that lets us read may let us only GET."""

_TRUSTED_FOR_S = 3600.0
"""Reading the system's certificates takes 20 ms: they are read again each hour, and our own file's once it changes."""


class TooMuch(Exception):  # noqa: N818 - reads as what it says
    """The stretch holds more than one answer may: ask for a shorter one."""


class NotUnderstood(ScrapeError):  # noqa: N818 - reads as what it says
    """It answered to this question, and with nothing that can be used: another question may fare better."""


class Point(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one scrape found. Python's garbage collector passes over it: an answer holds a hundred thousand."""

    at: float
    """When it was scraped, Unix seconds."""

    value: float
    """nan and inf are readings. What went stale has none."""


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One series of a stretch."""

    labels: dict[str, str] = msgspec.field(name="metric")
    values: tuple[Point, ...] = ()
    """In the order of time."""


class _Matrix(msgspec.Struct, tag_field="resultType", tag="matrix"):
    result: list[Series]


class _Answer(msgspec.Struct, tag_field="status", tag="success"):
    data: _Matrix


class _Refusal(msgspec.Struct):
    error: str


_answer = msgspec.json.Decoder(_Answer, strict=False).decode
"""Not strict, because values are strings: "1.5", "NaN"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Where Prometheus is, and how it lets us in. Secrets are read from their files for each request, and not kept."""

    url: str
    token_file: Path | None = None
    user: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    timeout_s: float = 10.0
    """For one whole answer."""

    @property
    def host(self) -> str:
        """All of the address that errors name."""
        return urlsplit(self.url).hostname or "?"

    def headers(self) -> dict[str, str]:
        """What each request says of itself. ScrapeError names the file that can't be read."""
        headers = {"Accept": "application/json", "User-Agent": "sentinel"}
        if self.token_file is not None:
            headers["Authorization"] = f"Bearer {self._secret(self.token_file)}"
        elif self.user is not None and self.password_file is not None:
            pair = f"{self.user}:{self._secret(self.password_file)}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        return headers

    def _secret(self, path: Path) -> str:
        try:
            found = bounded.read_text(path, bounded.SECRET_BYTES).strip()
        except OSError as error:
            raise ScrapeError(self.host, f"{path} can't be read: {error.strerror}") from None
        if not found or not found.isascii() or not found.isprintable():  # http.client would quote it in its error
            raise ScrapeError(self.host, f"{path} should hold one line, of ASCII characters that can be seen")
        return found


class Api:
    """One Prometheus, or what speaks as one (Thanos, Mimir, VictoriaMetrics)."""

    def __init__(self, door: Door, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._door = door
        self._monotonic = monotonic
        self._trusting: tuple[tuple[float, float], ssl.SSLContext] | None = None

    @property
    def host(self) -> str:
        """Whom errors name."""
        return self._door.host

    def scraped(self, selector: str, since: float, until: float) -> list[Series]:
        """All that was scraped from `since` to `until`, Unix seconds; it may begin a little earlier.

        ScrapeError where there is no answer, NotUnderstood where there is another, TooMuch where it would be too long.
        """
        reach_s = math.ceil(until - since) + 1  # Prometheus 3 leaves the first moment out
        body = self._get("query", query=f"{selector}[{reach_s}s]", time=f"{until:.3f}")
        try:
            return series_in(body)
        except msgspec.MsgspecError:
            raise NotUnderstood(self._door.host, "it does not answer as a Prometheus") from None

    def _get(self, path: str, **parameters: str) -> bytes:
        door = self._door
        address, asked, posted = f"{door.url.rstrip('/')}/api/v1/{path}", urlencode(parameters), None
        if len(address) + len(asked) < _LONGEST_ADDRESS:
            address += f"?{asked}"
        else:
            posted = asked.encode()
        request = urllib.request.Request(address, posted, door.headers())  # noqa: S310 - http(s): the configuration's
        try:
            with self._opener().open(request, timeout=door.timeout_s) as answer:
                return b"".join(self._within_bounds(answer))
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ScrapeError(door.host, _reason(error)) from None

    def _opener(self) -> urllib.request.OpenerDirector:
        """http and https, and no redirects: a token is for the address that is configured."""
        opener = urllib.request.OpenerDirector()
        secured = urlsplit(self._door.url).scheme == "https"
        by_scheme = urllib.request.HTTPSHandler(context=self._trust()) if secured else urllib.request.HTTPHandler()
        for handler in (
            urllib.request.ProxyHandler(),
            by_scheme,
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
        ):
            opener.add_handler(handler)
        return opener

    def _trust(self) -> ssl.SSLContext:
        """What to trust, read again once an hour or once its file has changed."""
        file = self._door.ca_file
        try:
            changed = file.stat().st_mtime if file is not None else 0.0
        except OSError as error:
            raise _unreadable(self._door, error) from error
        read_as = (changed, self._monotonic() // _TRUSTED_FOR_S)
        if self._trusting is None or self._trusting[0] != read_as:
            self._trusting = (read_as, _trusting(self._door))
        return self._trusting[1]

    def _within_bounds(self, answer: http.client.HTTPResponse) -> Iterator[bytes]:
        ends, size = self._monotonic() + self._door.timeout_s, 0
        while chunk := answer.read1(_CHUNK_BYTES):
            size += len(chunk)
            if size > _LONGEST_ANSWER_BYTES:
                raise TooMuch
            if self._monotonic() > ends:
                raise ScrapeError(self._door.host, f"its answer was not whole after {self._door.timeout_s:g} s")
            yield chunk

    def _refused(self, error: urllib.error.HTTPError) -> Exception:
        """What Prometheus says of the query itself is worth telling: it quotes no secret, for none is in there."""
        said = ""
        with contextlib.suppress(OSError, http.client.HTTPException, msgspec.MsgspecError):
            said = msgspec.json.decode(error.read(_CHUNK_BYTES), type=_Refusal).error[:300]
        if error.code == 413 or (error.code == 422 and "too many samples" in said):
            return TooMuch()
        if error.code in (400, 422):
            return NotUnderstood(self._door.host, f"it answers {error.code}: {said or error.reason}")
        return ScrapeError(self._door.host, f"it answers {error.code}: {said or error.reason}")


def series_in(answer: bytes) -> list[Series]:
    """The matrix of an answer. Raises MsgspecError where it is none."""
    return _answer(answer.replace(b'"+Inf"]', b'"inf"]')).data.result  # the one spelling that msgspec does not know


def _trusting(door: Door) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if door.ca_file is not None:
        try:
            context.load_verify_locations(door.ca_file)
        except OSError as error:
            raise _unreadable(door, error) from error
    return context


def _unreadable(door: Door, error: OSError) -> ScrapeError:
    return ScrapeError(door.host, f"{door.ca_file} can't be read: {error.strerror or error}")


def _reason(error: Exception) -> str:
    """Only what the operating system or TLS says: other errors quote what was sent."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(cause) if isinstance(cause, OSError) else type(cause).__name__
