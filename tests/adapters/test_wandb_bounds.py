"""Lines of a W&B server that gives them late, without end, or not at all."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from sentinel.adapters.wandb.bounds import Endless, in_time


def test_lines_come_in_their_order_and_an_error_after_them() -> None:
    def rows() -> Iterator[int]:
        yield from range(10_000)
        raise ConnectionError("reset")

    read = in_time(rows(), 60.0)
    assert [next(read) for _ in range(10_000)] == list(range(10_000))
    with pytest.raises(ConnectionError, match="reset"):
        next(read)


def test_pages_without_a_line_are_given_up() -> None:
    over = threading.Event()

    def rows() -> Iterator[int]:
        yield 1
        over.wait(60)

    began_s = time.monotonic()
    with pytest.raises(TimeoutError, match="no line within"):
        list(in_time(rows(), 0.2))
    over.set()
    assert time.monotonic() - began_s < 30


def test_lines_without_end_are_read_up_to_a_number_and_the_reader_ends() -> None:
    read = itertools.count()
    with pytest.raises(Endless, match="more than 5000 lines"):
        list(in_time(read, 60.0, most=5000))
    until = time.monotonic() + 30
    while any(t.name == "sentinel-wandb-rows" for t in threading.enumerate()) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(t.name == "sentinel-wandb-rows" for t in threading.enumerate())


def test_the_memory_of_the_librarys_service_is_bounded_and_of_no_other_child() -> None:
    code = (
        "import resource, subprocess, time\n"
        "from sentinel.adapters.wandb.bounds import bound_service\n"
        "made = [subprocess.Popen([name, '60'], executable='/bin/sleep') for name in ('/x/wandb-core', 'sleep')]\n"
        "time.sleep(0.2)\n"
        "bound_service()\n"
        "print([resource.prlimit(each.pid, resource.RLIMIT_DATA)[0] for each in made])\n"
        "[each.kill() for each in made]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    bound, free = done.stdout.strip("[]\n").split(", ")
    assert int(bound) == 2 << 30
    assert int(free) != int(bound)
