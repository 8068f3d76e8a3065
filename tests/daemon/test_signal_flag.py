"""A flag that a signal rings."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from sentinel.daemon.scheduler import SignalFlag


@pytest.fixture
def often() -> Iterator[None]:
    """SIGVTALRM comes again and again, for as long as this process computes."""
    before = signal.getsignal(signal.SIGVTALRM)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


@pytest.mark.usefixtures("often")
@pytest.mark.timeout(60, method="thread")  # where it waits for good, no signal ends it
def test_a_signal_may_ring_it_whatever_the_thread_that_waits_is_just_doing() -> None:
    flag, rings = SignalFlag(), [0]

    def ring(*_: object) -> None:
        flag.set()
        rings[0] += 1

    signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.001, 0.001)
    while rings[0] < 100:
        flag.wait(0.0)
        flag.clear()


def test_it_stays_set_until_it_is_cleared() -> None:
    flag = SignalFlag()
    assert not flag.is_set()
    flag.wait(0.0)
    flag.set()
    flag.set()
    flag.wait(3600.0)
    assert flag.is_set()
    flag.clear()
    assert not flag.is_set()


def test_another_thread_wakes_who_waits() -> None:
    flag = SignalFlag()
    other = threading.Thread(target=flag.set)
    other.start()
    flag.wait(3600.0)
    other.join()
    assert flag.is_set()
