"""One POST of a JSON document, to where it was sent and in the time it has."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime
from pathlib import Path
from time import time
from typing import Any
from urllib.parse import urlsplit

from sentinel.adapters.http_client import Unreachable, answer, trusting
from sentinel.adapters.paging.settings import split_address
from sentinel.vocabulary.errors import PagerError
from sentinel.vocabulary.numbers import dump_json

_LONGEST_ASKED_S = 3600.0  # Retry-After is heeded up to this: "next year" is tried again in an hour


def post(url: str, document: Any, *, token: str | None, ca_file: Path | None, timeout_s: float) -> None:
    """Returns when the server has said 2xx. PagerError names the host only: the rest of an address may be a secret."""
    host = split_address(url, "url").hostname
    request = urllib.request.Request(url, data=dump_json(document).encode(), method="POST")  # noqa: S310 - http(s) only: split_address
    request.add_header("Content-Type", "application/json")
    request.add_header("User-Agent", "sentinel")
    if token is not None:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with answer(request, trusting(ca_file), timeout_s):
            pass  # its text says no more
    except urllib.error.HTTPError as error:
        with error:
            raise _answered(host, error) from None
    except Unreachable as error:
        raise PagerError(f"{host} can't be reached: {error}") from None


def _answered(host: str | None, error: urllib.error.HTTPError) -> PagerError:
    if error.code in (301, 302, 303, 307, 308):
        to = urlsplit(error.headers.get("Location") or "")
        where = f"{to.scheme}://{to.hostname}" if to.scheme and to.hostname else "another path of its own"
        return PagerError(f"{host} redirects to {where}: a page is only sent to the address that is configured")
    phrase = http.client.responses.get(error.code, "?")
    asked_s = _asked_s(error.headers.get("Retry-After"))
    return PagerError(f"{host} answered {error.code} {phrase}", retry_after_s=asked_s)


def _asked_s(retry_after: str | None) -> float | None:
    """Retry-After, which is seconds or a date, in seconds; None where it is neither."""
    if retry_after is None:
        return None
    try:
        is_date = not retry_after.isdigit()
        asked_s = parsedate_to_datetime(retry_after).timestamp() - time() if is_date else float(retry_after)
    except ValueError:
        return None
    return min(max(asked_s, 0.0), _LONGEST_ASKED_S)
