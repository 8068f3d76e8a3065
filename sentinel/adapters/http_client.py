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
from email.message import Message
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from sentinel import bounded

_TRUSTED_FOR_S = 3600.0  # reading the system's certificates takes 20 ms: again each hour, and once our file changes
_REFUSAL_BYTES = 1 << 16  # of the body of an answer that is not 2xx
_CHUNK_BYTES = 1 << 16


T = TypeVar("T")


class Unreachable(Exception):  # noqa: N818 - reads as what it says
    """No answer, or not a whole one: why, without anything that was sent."""


class Refused(Exception):  # noqa: N818 - reads as what it says
    """An answer with another status than 2xx."""

    def __init__(self, code: int, reason: str, headers: Message, body: bytes) -> None:
        super().__init__(f"{code} {reason}")
        self.code, self.reason, self.headers = code, reason, headers
        self.body = body  # its first 64 KiB


class TooLong(Exception):  # noqa: N818 - reads as what it says
    """The body has more bytes than were asked for."""


def bearer(token: str) -> str:
    """The header's value, for urllib: it writes a character for a byte, and the token's bytes are UTF-8."""
    return f"Bearer {token}".encode().decode("latin-1")


@contextmanager
def answer(
    request: urllib.request.Request, context: ssl.SSLContext | None, timeout_s: float, *, direct: bool = False
) -> Iterator[http.client.HTTPResponse]:
    """The server's answer of 2xx, to be read within the block. Name lookup, connecting, TLS, the request and all of the
    answer take at most `timeout_s` together. `context`: what is trusted; None for http only. `direct`: past the
    environment's proxy. Refused for another status, a redirect's included; Unreachable."""
    with cut_after(timeout_s) as cut:
        try:
            with _opener(cut, context, direct=direct).open(request, timeout=timeout_s) as response:
                yield response
                if cut.why is not None:  # an answer that is cut off reads like one that has ended
                    raise Unreachable(cut.why)
        except urllib.error.HTTPError as error:
            raise _refused(error) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unreachable(cut.why or _reason(error)) from None


def body_of(response: http.client.HTTPResponse, most_bytes: int) -> bytes:
    """All of the answer's body. TooLong, and what reading raises."""
    data = bytearray()
    while chunk := response.read1(_CHUNK_BYTES):
        data += chunk
        if len(data) > most_bytes:
            raise TooLong
    return bytes(data)


def _refused(error: urllib.error.HTTPError) -> Refused:
    body = b""
    with error, suppress(OSError, http.client.HTTPException, ValueError):
        body = error.read(_REFUSAL_BYTES)
    return Refused(error.code, str(error.reason), error.headers, body)


def trusting(ca_file: Path | None) -> ssl.SSLContext:
    """The system's certificates, and those of the file as it is now. Unreachable names a file that can't be read."""
    written_ns = 0
    with suppress(OSError):
        written_ns = 0 if ca_file is None else ca_file.stat().st_mtime_ns
    return _trusting(ca_file, written_ns, time.monotonic() // _TRUSTED_FOR_S)


@lru_cache(maxsize=16)
def _trusting(ca_file: Path | None, written_ns: int, hour: float) -> ssl.SSLContext:  # noqa: ARG001 - read anew by these
    context = ssl.create_default_context()
    if ca_file is None:
        return context
    try:
        context.load_verify_locations(cadata=bounded.read_document(ca_file).decode("ascii", "ignore"))
    except (OSError, ValueError) as error:  # ValueError: an empty file
        why = getattr(error, "strerror", None) or error
        raise Unreachable(f"ca_file {ca_file} can't be read: {why}") from error
    return context


def _opener(cut: Cut, context: ssl.SSLContext | None, *, direct: bool) -> urllib.request.OpenerDirector:
    """No redirects: a POST that follows one arrives without its body, and a token is for the address that is
    configured."""

    def watched(kind: type[http.client.HTTPConnection], *args: Any, **options: Any) -> http.client.HTTPConnection:
        made: Any = kind(*args, **options)
        made._create_connection = cut.connect  # before TLS and a proxy's CONNECT, which may hang as well
        return made  # type: ignore[no-any-return]

    class Http(urllib.request.HTTPHandler):
        def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(partial(watched, http.client.HTTPConnection), req)

    class Https(urllib.request.HTTPSHandler):
        def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(partial(watched, http.client.HTTPSConnection), req, context=context)

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


def within(timeout_s: float, call: Callable[[], T]) -> T:
    """What the call returns or raises; TimeoutError where it takes longer. For a library whose timeouts begin anew with
    each byte: the call goes on in a thread that nobody waits for."""
    done: list[Callable[[], T]] = []

    def run() -> None:
        try:
            found = call()
        except Exception as error:  # noqa: BLE001 - the edge of a thread: it is raised in the caller's
            failed = error

            def again() -> T:
                raise failed

            done.append(again)
        else:
            done.append(lambda: found)

    thread = threading.Thread(target=run, name="sentinel-request", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not done:
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    return done[0]()


class Cut:
    """The deadline of a whole conversation: a socket's own timeout begins anew with each byte, and a server may
    dribble. It ends the connections that it made by a second descriptor of each, which stays valid whoever owns the
    first: TLS takes a socket over, and http.client hands it to the answer's body."""

    def __init__(self, after_s: float) -> None:
        self.why: str | None = None  # set when it was cut
        self._after_s = after_s
        self._until_s = time.monotonic() + after_s
        self._duplicates: list[socket.socket] = []
        self._lock = threading.Lock()

    def connect(self, address: tuple[str, int], *_: Any) -> socket.socket:
        """In place of socket.create_connection, whose timeout is for each address of a name. OSError."""
        error: OSError = TimeoutError(self._late())
        for family, kind, protocol, _name, place in self._found(*address):
            left_s = self._until_s - time.monotonic()
            if left_s <= 0:
                break
            made = socket.socket(family, kind, protocol)
            try:
                made.settimeout(left_s)
                self._watch(made)
                made.connect(place)
            except OSError as failed:
                made.close()
                error = failed
            else:
                return made
        raise error

    def now(self) -> None:
        with self._lock:
            self.why = self._late()
            for duplicate in self._duplicates:
                with suppress(OSError):  # it is gone already
                    duplicate.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._lock:
            for duplicate in self._duplicates:
                duplicate.close()
            self._duplicates.clear()

    def _watch(self, made: socket.socket) -> None:
        with self._lock:
            if self.why is not None:
                raise TimeoutError(self.why)
            self._duplicates.append(made.dup())

    def _found(self, host: str, port: int) -> list[Any]:
        """The addresses of the host. A name server keeps to nobody's timeout, so a thread asks it."""
        found: list[Any] = []

        def ask() -> None:
            try:
                found.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
            except (OSError, ValueError) as error:  # ValueError: a host that is no name
                found.append(error)

        asking = threading.Thread(target=ask, name="sentinel-name", daemon=True)
        asking.start()
        asking.join(max(0.0, self._until_s - time.monotonic()))
        if not found:
            raise TimeoutError(f"no answer of the name server within {self._after_s:g} s")
        if isinstance(found[0], Exception):
            raise found[0]
        return list(found[0])

    def _late(self) -> str:
        return f"no answer within {self._after_s:g} s"


@contextmanager
def cut_after(after_s: float) -> Iterator[Cut]:
    """For as long as the context lasts: the connections that the Cut makes are ended after so many seconds."""
    cut = Cut(after_s)
    timer = threading.Timer(after_s, cut.now)
    timer.daemon = True
    timer.start()
    try:
        yield cut
    finally:
        timer.cancel()
        cut.close()
