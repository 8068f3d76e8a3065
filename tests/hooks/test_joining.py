"""What joining asks of the store of the process group, which is one server for all ranks."""

from __future__ import annotations

import threading
import time
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from trainer_hooks.ranks import agreement
from trainer_hooks.ranks.agreement import Ballot, ConnectingStore, awaited
from trainer_hooks.ranks.groups import Levels


class Counted:
    """A store that counts what it is asked for by each thread."""

    def __init__(self) -> None:
        self._store = HashStore()
        self.asked: Counter[tuple[int, str]] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.asked[threading.get_ident(), name] += 1
        return getattr(self._store, name)


class OfARank:
    """A rank's own connection to it: a Python object, as PrefixStore takes no other than torch's."""

    def __init__(self, store: Any, prefix: str = "") -> None:
        self._store, self._prefix = store, prefix

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def set(self, key: str, value: Any) -> None:
        self._store.set(self._key(key), value)

    def check(self, keys: list[str]) -> bool:
        return bool(self._store.check([self._key(key) for key in keys]))

    def get(self, key: str) -> Any:
        return self._store.get(self._key(key))

    def multi_get(self, keys: list[str]) -> Any:
        return self._store.multi_get([self._key(key) for key in keys])

    def has_extended_api(self) -> bool:
        return bool(self._store.has_extended_api())


def test_the_addresses_of_a_group_are_asked_for_together() -> None:
    members = 64
    counted = Counted()
    for rank in range(members):
        counted.set(f"0/1/cpu//rank/{rank}", str(rank))
    connecting = ConnectingStore(OfARank(counted, "0/1"), range(100, 164), time.monotonic() + 10, lambda: False)
    counted.asked.clear()
    got = []
    for rank in range(members):  # as gloo does: it waits for each, and gets it
        connecting.wait([f"cpu//rank/{rank}"])
        got.append(connecting.get(f"cpu//rank/{rank}"))
    assert got == [str(rank).encode() for rank in range(members)]
    assert {name: n for (_, name), n in counted.asked.items()} == {"check": 1, "has_extended_api": 1, "multi_get": 1}


def test_the_rank_whose_address_does_not_come_is_named() -> None:
    counted = Counted()
    for rank in (0, 1, 3):
        counted.set(f"a/rank/{rank}", b"x")
    connecting = ConnectingStore(OfARank(counted, "a"), [4, 5, 6, 7], time.monotonic() + 0.2, lambda: False)
    with pytest.raises(TimeoutError, match="rank 6 has not made its group"):
        connecting.get("rank/0")


@pytest.mark.parametrize(("world", "polls_per_s"), [(8, 16), (1024, 2048), (16_384, 4096)])
def test_all_ranks_together_ask_a_bounded_number_of_times(
    world: int, polls_per_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a rank that comes after a minute. `polls_per_s`: of all ranks, in the second half of it."""
    now, asked_at = [0.0], list[float]()

    class Store:
        def check(self, _: list[str]) -> bool:
            asked_at.append(now[0])
            return False

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(agreement, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    with pytest.raises(TimeoutError):
        awaited(Store(), ["decided"], 60.0, world=world)
    late = [at for at in asked_at if at >= 30]
    assert world * len(late) / 30 <= 1.1 * polls_per_s
    assert len([at for at in asked_at if at < 30]) < 100
    assert max(b - a for a, b in pairwise(asked_at)) <= 4


@pytest.mark.parametrize("lazy", ["0", "1"])
def test_gloo_connects_ranks_with_few_questions(lazy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_GLOO_LAZY_INIT", lazy)
    world, store, why = 8, HashStore(), list[str]()
    asked: Counter[str] = Counter()

    def join(rank: int) -> None:
        deadline = time.monotonic() + 30
        ballot = Ballot(store, rank, world, deadline)
        Levels.connected(
            store,
            rank=rank,
            world=world,
            fan=4,
            deadline=deadline,
            given_up=ballot.decided,
            leaving=threading.Event(),
        )
        ballot.ready()
        why.append(ballot.why_not())

    get = ConnectingStore.get

    def counted(self: ConnectingStore, key: str) -> Any:
        asked["addresses"] += bool(self._addresses)
        return get(self, key)

    monkeypatch.setattr(ConnectingStore, "get", counted)
    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert why == [""] * world
    assert asked["addresses"] >= world  # gloo's keys are still of the kind that is asked for together
