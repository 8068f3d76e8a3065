"""Whose turn it is, with real threads: no two turns of one at once, and none waits for another's that hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest

from sentinel.daemon.scheduler import Fleet, SignalFlag, Workers
from tests.adapters.pagers import until
from tests.tiers import full


class Member:
    """Takes note of its turns."""

    def __init__(
        self,
        pace_s: float = 0.05,
        *,
        turns: int = 1 << 30,
        doing: Callable[[], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pace_s = pace_s
        self.began: list[float] = []
        self.late: list[float] = []
        self.left = 0
        self.most_at_once = 0
        self._turns = turns
        self._doing = doing or (lambda: None)
        self._clock = clock
        self._at_once = 0

    def turn(self, late_s: float) -> bool:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        self.began.append(self._clock())
        self.late.append(late_s)
        try:
            self._doing()
        finally:
            self._at_once -= 1
        return len(self.began) < self._turns

    def leave(self, within_s: float) -> None:
        assert self._at_once == 0
        assert within_s <= 5.0
        self.left += 1


@contextmanager
def followed(*members: Member) -> Iterator[tuple[Fleet, list[Callable[[], None]]]]:
    """A fleet in a thread of its own, and what that thread is to do between two rounds."""
    nap, over, orders = SignalFlag(), threading.Event(), list[Callable[[], None]]()
    fleet = Fleet(nap)
    for member in members:
        fleet.add(member)

    def loop() -> None:
        while len(fleet):
            while orders:
                orders.pop()()
            if over.is_set():
                fleet.end()
            fleet.round()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield fleet, orders
    finally:
        over.set()
        nap.set()
        thread.join(120)


def test_turns_come_at_each_ones_pace_and_are_never_two_at_once() -> None:
    quick, slow = Member(0.02, doing=lambda: time.sleep(0.03)), Member(0.4)
    with followed(quick, slow):
        until(lambda: len(slow.began) >= 3 and len(quick.began) > len(slow.began))
    assert quick.most_at_once == 1
    assert (quick.left, slow.left) == (1, 1)


def test_the_first_turns_come_at_once_and_the_next_are_spread_over_the_pace() -> None:
    now_s = [0.0]
    members = [Member(2.0, clock=lambda: now_s[0]) for _ in range(40)]
    fleet = Fleet(threading.Event(), lambda: now_s[0])
    for member in members:
        fleet.add(member)
    for tick in range(42):
        now_s[0] = 0.05 * tick
        fleet._begin()
        while fleet._under_way:  # all that is due by now
            until(lambda: not fleet._ended.empty())
            fleet._collect()
            fleet._begin()
    first, second = (sorted(member.began[turn] for member in members) for turn in (0, 1))
    assert set(first) == {0.0}
    assert second[-1] - second[0] > 1.0
    assert max(b - a for a, b in pairwise(second)) < 1.0


@pytest.mark.parametrize("hung", [3, *full([30])])
def test_those_that_hang_hold_up_no_other_however_many_they_are(hung: int) -> None:
    free = threading.Event()
    stuck = [Member(0.1, doing=free.wait) for _ in range(hung)]
    well = [Member(0.1) for _ in range(20)]
    with followed(*stuck, *well):
        until(lambda: all(len(m.began) >= 3 for m in well) and all(m.began for m in stuck))
        assert all(len(member.began) == 1 for member in stuck)
        free.set()
    assert all(member.left == 1 for member in (*stuck, *well))


def test_what_ends_is_not_asked_again_and_what_is_hurried_comes_at_once() -> None:
    brief, patient = Member(0.01, turns=2), Member(3600.0)
    with followed(brief, patient) as (fleet, orders):
        until(lambda: len(brief.began) == 2 and len(patient.began) == 1)
        until(lambda: brief not in list(fleet))
        orders.append(lambda: fleet.hurry(patient))
        fleet._wake.set()
        until(lambda: len(patient.began) == 2)
        orders.append(lambda: fleet.remove(patient))
        fleet._wake.set()
        until(lambda: patient.left == 1)
    assert (brief.left, len(brief.began)) == (0, 2)
    assert patient.left == 1


def test_one_that_raises_what_it_should_not_comes_again_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", seen.append)

    def breaks() -> None:
        raise RuntimeError("nobody foresaw it")

    broken, well = Member(0.02, doing=breaks), Member(0.02)
    with followed(broken, well):
        until(lambda: len(well.began) >= 5 and len(broken.began) >= 3)
    assert len(seen) == len(broken.began)
    assert (broken.left, well.left) == (1, 1)


def test_where_no_thread_can_be_started_the_turn_is_made_by_the_next_that_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, made, start = threading.Event(), list[str](), threading.Thread.start
    workers = Workers()
    workers.do(gate.wait, lambda: made.append("first"))

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    workers.do(lambda: made.append("second"), lambda: None)
    monkeypatch.setattr(threading.Thread, "start", start)
    assert made == []
    gate.set()
    until(lambda: made == ["first", "second"])
    workers.do(lambda: made.append("third"), lambda: None)
    until(lambda: made == ["first", "second", "third"])


def test_as_many_begin_at_once_beside_thirty_that_hang_as_beside_none() -> None:
    now_s, free = [0.0], threading.Event()
    stuck = [Member(1000.0, doing=free.wait) for _ in range(30)]
    fleet = Fleet(SignalFlag(), lambda: now_s[0])
    for member in stuck:
        fleet.add(member)
    for _ in range(30):
        now_s[0] += 60.0  # they come to hang one after the other
        fleet._begin()
    until(lambda: all(member.began for member in stuck))
    well = [Member(1000.0, doing=free.wait) for _ in range(8)]
    for member in well:
        fleet.add(member)
    fleet._begin()
    until(lambda: all(member.began for member in well))
    free.set()


def test_who_ends_is_told_whose_turns_are_still_under_way() -> None:
    now_s, free, nap = [0.0], threading.Event(), SignalFlag()
    stuck, well = Member(doing=free.wait), Member(3600.0)
    fleet = Fleet(nap, lambda: now_s[0])
    fleet.add(stuck)
    fleet.add(well)
    fleet._begin()
    until(lambda: stuck.began and well.began)
    fleet.end()
    assert fleet.hanging() == []  # they have a few seconds
    while well.left == 0:
        nap.set()
        fleet.round()
    now_s[0] = 7.0
    assert fleet.hanging() == [(stuck, 7.0)]
    free.set()
    while len(fleet):
        fleet.round()
    assert stuck.left == 1


def test_who_is_late_is_told_by_how_much() -> None:
    held = [Member(0.1, doing=lambda: time.sleep(0.2)) for _ in range(80)]
    with followed(*held):
        until(lambda: all(member.late for member in held))
    assert max(member.late[0] for member in held) > 0.1
    assert min(member.late[0] for member in held) >= 0.0
