"""Servers on loopback that do not keep to a protocol: each is a function of the connection that it spoils."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Spoils = Callable[[socket.socket, threading.Event], None]


@contextmanager
def deceiving(spoils: Spoils) -> Iterator[int]:
    """The port at which each connection is given to `spoils` in a thread of its own, until the block ends."""
    over, threads, taken = threading.Event(), list[threading.Thread](), list[socket.socket]()

    def one(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            spoils(client, over)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while not over.is_set():
                client, _ = listening.accept()
                taken.append(client)
                threads.append(threading.Thread(target=one, args=(client,), daemon=True))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield listening.getsockname()[1]
        finally:
            over.set()
            listening.shutdown(socket.SHUT_RDWR)
            for each in (accepting, *threads):
                each.join(30)


@dataclass(frozen=True)
class Drip:
    """Reads the request where it is one of HTTP, says `first`, and then one byte of `then` each 20 ms, for ever."""

    first: bytes
    then: bytes = b"a"
    listens: bool = True

    def __call__(self, client: socket.socket, over: threading.Event) -> None:
        if self.listens:
            client.recv(1 << 16)
        client.sendall(self.first)
        number = 0
        while not over.wait(0.02):
            client.sendall(self.then[number % len(self.then)].to_bytes())
            number += 1


@dataclass(frozen=True)
class Flood:
    """Says `first`, and then `again` as fast as it is taken, for ever."""

    first: bytes
    again: bytes = field(default=b"a" * (1 << 16))
    listens: bool = True

    def __call__(self, client: socket.socket, over: threading.Event) -> None:
        if self.listens:
            client.recv(1 << 16)
        client.sendall(self.first)
        while not over.is_set():
            client.sendall(self.again)


def silent(client: socket.socket, over: threading.Event) -> None:
    """Takes the connection and says nothing."""
    over.wait(60)
