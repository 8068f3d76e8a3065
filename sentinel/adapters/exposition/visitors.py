"""Who is at a server's door: how many at a time, for how long, and who goes when there is no room."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

ASKS_WITHIN_S = 5.0  # for TLS and the whole head of a request, however the bytes of it are spread
_PENDING_OF_AN_ADDRESS = 8  # connections that have not asked yet, of one address


@dataclass(slots=True, eq=False)
class _Visit:
    address: str
    descriptor: socket.socket  # a second one: TLS takes the first over
    until_s: float  # by the monotonic clock
    asked: bool = False


class Visitors:
    """The connections of one server, from its threads. A connection that has not asked goes, the oldest first, where
    there is no room for a new one: whoever holds sockets open keeps nobody else out. Each is ended at its deadline."""

    def __init__(
        self, most: int, *, answered_within_s: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`most` at a time. `answered_within_s`: for a request and its whole answer; None where answers do not end."""
        self._most = most
        self._answered_within_s = answered_within_s
        self._clock = clock
        self._visits: dict[Any, _Visit] = {}  # by address and port; the oldest first
        self._lock = threading.Lock()

    def comes(self, request: socket.socket, client: Any) -> bool:
        """Whether there is room for the connection."""
        address = _network(str(client[0]))
        with self._lock:
            pending = {key: visit for key, visit in self._visits.items() if not visit.asked}
            own = [key for key, visit in pending.items() if visit.address == address]
            if len(own) >= _PENDING_OF_AN_ADDRESS:
                self._end(own[0])
            elif len(self._visits) >= self._most:
                if not pending:
                    return False
                self._end(next(iter(pending)))
            self._visits[client] = _Visit(address, request.dup(), self._clock() + ASKS_WITHIN_S)
        return True

    def has_asked(self, client: Any) -> None:
        """The head of its request is there."""
        with self._lock:
            if (visit := self._visits.get(client)) is not None:
                more_s = self._answered_within_s
                visit.asked = True
                visit.until_s = float("inf") if more_s is None else self._clock() + more_s

    def goes(self, client: Any) -> None:
        with self._lock:
            if (visit := self._visits.pop(client, None)) is not None:
                visit.descriptor.close()

    def end_late(self) -> None:
        """Ends those whose time is over: to be called a few times a second."""
        with self._lock:
            now_s = self._clock()
            for key in [key for key, visit in self._visits.items() if now_s > visit.until_s]:
                self._end(key)

    def _end(self, key: Any) -> None:
        """Its thread finds the connection closed, and ends."""
        visit = self._visits.pop(key)
        with suppress(OSError):
            visit.descriptor.shutdown(socket.SHUT_RDWR)
        visit.descriptor.close()


def _network(address: str) -> str:
    """An address of IPv4; of IPv6 the network, of which one machine has all addresses."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
