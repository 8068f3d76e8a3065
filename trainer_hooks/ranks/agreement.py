"""Agreements through the store that the training's process group was made with: all ranks, or none, within a time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import HashStore, Store

_POLL_S, _LONGEST_POLL_S = 0.001, 0.5
_POLL_SHARE = 0.3  # of the time waited so far, until the next poll: all ranks ask one server
_MOST_POLLS_PER_S = 4096  # of all ranks together, once they wait long: the training needs that server as well


class NotAgreedError(RuntimeError):
    """Not every rank took part in time. It is raised on every rank, or on none."""


def longest_poll_s(world: int) -> float:
    """The longest time between two questions of one of so many ranks, seconds."""
    return max(_LONGEST_POLL_S, world / _MOST_POLLS_PER_S)


def awaited(
    store: Any, keys: list[str], deadline: float, ended: Callable[[], bool] = lambda: False, *, world: int = 1
) -> None:
    """Returns once the keys are there. TimeoutError past `deadline`, on the monotonic clock, or once `ended` is true.

    It asks again and again, ever more seldom, the more so the more ranks (`world`) do: a store has one connection, and
    `wait` would keep it from the other threads, which the training's own next group is made by."""
    started, longest_s = time.monotonic(), longest_poll_s(world)
    while not store.check(keys):
        now = time.monotonic()
        if now >= deadline or ended():
            raise TimeoutError(f"{keys[0]} did not come into the store of the process group")
        time.sleep(min(longest_s, max(_POLL_S, _POLL_SHARE * (now - started)), deadline - now))


class Ballot:
    """One decision of all ranks: yes once each of them is ready, no as soon as one is not or is late, or once `ended`
    is true on one that waits."""

    def __init__(
        self, store: Any, rank: int, world: int, deadline: float, *, ended: Callable[[], bool] = lambda: False
    ) -> None:
        self._store = store
        self._rank = rank
        self._world = world
        self._deadline = deadline
        self._ended = ended
        store.set(f"came/{rank}", b"1")

    def ready(self) -> None:
        if self._store.add("ready", 1) == self._world:
            self._decide("")

    def failed(self, why: str) -> None:
        self._decide(why)

    def decided(self) -> bool:
        """Whether it is: then nothing has to be waited for."""
        return bool(self._store.check(["decided"]))

    def why_not(self) -> str:
        """Why it is no, the same sentence on every rank; empty where it is yes."""
        try:
            awaited(self._store, ["decided"], self._deadline, self._ended, world=self._world)
        except TimeoutError:
            self._decide(f"{self._missing()} did not come in time")
        return str(json.loads(self._store.get("decided"))["why"])

    def _decide(self, why: str) -> None:
        """The first decision stands."""
        self._store.compare_set("decided", "", json.dumps({"why": why}))

    def _missing(self) -> str:
        """Names the first few ranks that are late."""
        late = []
        for rank in range(self._world):
            if not self._store.check([f"came/{rank}"]):
                late.append(rank)
            if len(late) > 3:
                break
        if not late:
            return "a rank"
        return (
            f"rank {late[0]}" if len(late) == 1 else "ranks " + ", ".join(map(str, late[:3])) + " …" * (len(late) > 3)
        )


def agreed(store: Any, rank: int, world: int, value: Any, timeout_s: float) -> Any:
    """The value of rank 0, a small one that JSON can carry, on every rank. NotAgreedError, on every rank, where one did
    not get it within timeout_s; ValueError on rank 0 (NotAgreedError elsewhere) where JSON cannot carry it."""
    deadline = time.monotonic() + timeout_s
    ballot = Ballot(store, rank, world, deadline)
    if rank == 0:
        try:
            store.set("value", json.dumps(value))
        except (TypeError, ValueError) as error:
            ballot.failed(f"rank 0 has no value that can be sent ({error})")
            raise ValueError(f"JSON cannot carry it: {error}") from error
    try:
        awaited(store, ["value"], deadline, world=world)
        value = json.loads(store.get("value"))
        ballot.ready()
    except TimeoutError:
        ballot.failed("rank 0 did not come in time")
    if why := ballot.why_not():
        raise NotAgreedError(why)
    return value


class ConnectingStore(Store):
    """The store as gloo needs it to connect a group. The addresses of all members are asked for together: gloo asks for
    one after the other, and thousands of ranks ask one server. It lets go of the real one afterwards: a group that
    lives on would keep the store's server, and its old keys, past the end of the training's process group."""

    def __init__(
        self, store: Any, members: Sequence[int], deadline: float, ended: Callable[[], bool], *, world: int = 1
    ) -> None:
        super().__init__()
        self._store = store
        self._members = members
        self._deadline = deadline
        self._ended = ended
        self._world = world
        self._addresses: dict[str, Any] = {}

    def set(self, key: str, value: Any) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> Any:
        self.wait([key])
        return self._addresses[key] if key in self._addresses else self._store.get(key)

    def add(self, key: str, amount: int) -> int:
        return int(self._store.add(key, amount))

    def check(self, keys: list[str]) -> bool:
        return bool(self._store.check(keys))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:  # noqa: ARG002 - the deadline holds
        if all(key in self._addresses for key in keys):
            return
        wanted = self._of_all(keys[0]) or keys
        try:
            awaited(self._store, wanted, self._deadline, self._ended, world=self._world)
        except TimeoutError as error:
            if wanted is keys:
                raise
            late = [rank for rank, key in zip(self._members, wanted, strict=True) if not self._store.check([key])]
            raise TimeoutError(f"rank {late[0] if late else '?'} has not made its group") from error
        if wanted is not keys and self._store.has_extended_api():
            self._addresses = dict(zip(wanted, self._store.multi_get(wanted), strict=True))

    def _of_all(self, key: str) -> list[str]:
        """The keys of all members' addresses, where this is one: gloo ends it with the rank's place in the group."""
        before, _, index = key.rpartition("/")
        known = index.isdecimal() and int(index) < len(self._members)
        return [f"{before}/{n}" if before else str(n) for n in range(len(self._members))] if known else []

    def let_go(self) -> None:
        self._store = HashStore()
        self._addresses = {}
