"""Answers a scrape: the format that is asked for, compressed where that is, all series or some by `name[]`."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import parse_qs

from prometheus_client.exposition import choose_encoder, gzip_accepted

_FAST = 1  # zlib level: a page of 5 MB takes 30 ms and becomes 0.3 MB; the default level takes three times as long
_GZIP = zlib.MAX_WBITS | 16


class Text(Protocol):
    def text(self, *, openmetrics: bool = False, names: Collection[str] = ()) -> bytes: ...


def scrapes(of: Text) -> Callable[..., Iterable[bytes]]:
    """The WSGI application of /metrics, at any path."""

    def answer(environment: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        method = environment["REQUEST_METHOD"]
        if method != "GET":
            status = HTTPStatus.OK if method == "OPTIONS" else HTTPStatus.METHOD_NOT_ALLOWED
            start_response(f"{status.value} {status.phrase}", [("Allow", "OPTIONS,GET")])
            return [b""]
        _, content_type = choose_encoder(environment.get("HTTP_ACCEPT") or "")
        names = parse_qs(environment.get("QUERY_STRING", "")).get("name[]", ())
        text = of.text(openmetrics=content_type.startswith("application/openmetrics-text"), names=names)
        headers = [("Content-Type", content_type)]
        if gzip_accepted(environment.get("HTTP_ACCEPT_ENCODING") or ""):
            headers.append(("Content-Encoding", "gzip"))
            packing = zlib.compressobj(_FAST, wbits=_GZIP)
            text = packing.compress(text) + packing.flush()
        start_response("200 OK", headers)
        return [text]

    return answer
