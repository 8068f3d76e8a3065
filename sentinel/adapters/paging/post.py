"""One POST of a JSON document, to where it was sent and in the time it has. Proxies are the environment's."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from time import time
from typing import Any
from urllib.parse import urlsplit

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
    with cut_after(timeout_s) as cut:
        opener = _opener(cut, trusting(ca_file))
        try:
            with opener.open(request, timeout=timeout_s):
                if cut.why is not None:  # a head that is cut off reads like one that has ended
                    raise PagerError(f"{host} can't be reached: {cut.why}")
        except urllib.error.HTTPError as error:
            with error:
                raise _answered(host, error) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise PagerError(f"{host} can't be reached: {cut.why or _reason(error)}") from None


def _opener(cut: Cut, context: ssl.SSLContext) -> urllib.request.OpenerDirector:
    """http and https, and no redirects: a POST that follows one arrives without its body, or where nobody named it."""

    def watched(kind: type[http.client.HTTPConnection]) -> Callable[..., http.client.HTTPConnection]:
        def connection(*args: Any, **options: Any) -> http.client.HTTPConnection:
            made = kind(*args, **options)
            cut.watch(made)
            return made

        return connection

    class Http(urllib.request.HTTPHandler):
        def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(watched(http.client.HTTPConnection), req)

    class Https(urllib.request.HTTPSHandler):
        def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(watched(http.client.HTTPSConnection), req, context=context)

    opener = urllib.request.OpenerDirector()
    handlers = (urllib.request.HTTPDefaultErrorHandler(), urllib.request.HTTPErrorProcessor())
    for handler in (urllib.request.ProxyHandler(), Http(), Https(context=context), *handlers):
        opener.add_handler(handler)
    return opener


def trusting(ca_file: Path | None) -> ssl.SSLContext:
    """The system's certificates, and those of the file. PagerError when it can't be read."""
    context = ssl.create_default_context()
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:
            raise PagerError(f"ca_file {ca_file} can't be read: {error.strerror or error}") from error
    return context


def _reason(error: Exception) -> str:
    """Only what the operating system or TLS says: other errors quote what was sent."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(cause) if isinstance(cause, OSError) else type(cause).__name__


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


class Cut:
    """Ends what hangs in a socket: its own timeout begins anew with each byte, and a server may dribble."""

    def __init__(self, after_s: float) -> None:
        self.why: str | None = None  # set when it was cut
        self._after_s = after_s
        self._holders: list[Any] = []

    def watch(self, holder: Any) -> None:
        """`holder.sock` is what is to be cut: a connection of http.client or smtplib."""
        self._holders.append(holder)

    def now(self) -> None:
        self.why = f"no answer within {self._after_s:g} s"
        for holder in self._holders:
            if (sock := getattr(holder, "sock", None)) is not None:
                with suppress(OSError):  # it is gone already
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)


@contextmanager
def cut_after(after_s: float) -> Iterator[Cut]:
    """For as long as the context lasts: what `watch` was given is cut after so many seconds."""
    cut = Cut(after_s)
    timer = threading.Timer(after_s, cut.now)
    timer.daemon = True
    timer.start()
    try:
        yield cut
    finally:
        timer.cancel()
