"""Requests by HTTP: to the address that is configured and to no other, whole within their time. Proxies are the
environment's."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

_TRUSTED_FOR_S = 3600.0  # reading the system's certificates takes 20 ms: again each hour, and once our file changes


class Unreachable(Exception):  # noqa: N818 - reads as what it says
    """No answer, or not a whole one: why, without anything that was sent."""


@contextmanager
def answer(
    request: urllib.request.Request, context: ssl.SSLContext | None, timeout_s: float, *, direct: bool = False
) -> Iterator[http.client.HTTPResponse]:
    """The server's answer of 2xx, to be read within the block; connecting and reading take at most `timeout_s`
    together. `context`: what is trusted; None for http only. `direct`: past the environment's proxy. urllib's HTTPError
    for another status, a redirect's included; Unreachable."""
    with cut_after(timeout_s) as cut:
        try:
            with _opener(cut, context, direct=direct).open(request, timeout=timeout_s) as response:
                yield response
                if cut.why is not None:  # an answer that is cut off reads like one that has ended
                    raise Unreachable(cut.why)
        except urllib.error.HTTPError:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unreachable(cut.why or _reason(error)) from None


def trusting(ca_file: Path | None) -> ssl.SSLContext:
    """The system's certificates, and those of the file as it is now. Unreachable names a file that can't be read."""
    written_ns = 0
    with suppress(OSError):
        written_ns = 0 if ca_file is None else ca_file.stat().st_mtime_ns
    return _trusting(ca_file, written_ns, time.monotonic() // _TRUSTED_FOR_S)


@lru_cache(maxsize=16)
def _trusting(ca_file: Path | None, written_ns: int, hour: float) -> ssl.SSLContext:  # noqa: ARG001 - read anew by these
    context = ssl.create_default_context()
    try:
        if ca_file is not None:
            context.load_verify_locations(ca_file)
    except OSError as error:
        raise Unreachable(f"ca_file {ca_file} can't be read: {error.strerror or error}") from error
    return context


def _opener(cut: Cut, context: ssl.SSLContext | None, *, direct: bool) -> urllib.request.OpenerDirector:
    """No redirects: a POST that follows one arrives without its body, and a token is for the address that is
    configured."""

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
    errors = (urllib.request.HTTPDefaultErrorHandler(), urllib.request.HTTPErrorProcessor())
    secured = () if context is None else (Https(context=context),)
    for handler in (urllib.request.ProxyHandler({} if direct else None), Http(), *secured, *errors):
        opener.add_handler(handler)
    return opener


def _reason(error: Exception) -> str:
    """Only what the operating system or TLS says: other errors quote what was sent."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(cause) if isinstance(cause, OSError) else type(cause).__name__


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
