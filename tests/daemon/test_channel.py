"""Messages between two processes of a daemon: none is lost, none waits for the other side."""

from __future__ import annotations

import threading
from multiprocessing import Pipe
from typing import Any

from sentinel.daemon.channel import PipeChannel
from tests.adapters.pagers import until


def test_the_newest_message_of_each_key_arrives() -> None:
    ours, theirs = Pipe()
    received: list[tuple[Any, Any]] = []
    sender = PipeChannel(ours, lambda *_: None, lambda: None)
    receiver = PipeChannel(theirs, lambda key, message: received.append((key, message)), lambda: None)
    for number in range(5):
        sender.send("a", number)  # nothing is sent before the start
    sender.send("b", b"x" * 1_000_000)
    sender.start()
    receiver.start()
    sender.flush(60)
    until(lambda: len(received) == 2)
    assert received == [("a", 4), ("b", b"x" * 1_000_000)]


def test_a_side_that_is_gone_is_noticed_and_nothing_waits_for_it() -> None:
    ours, theirs = Pipe()
    gone = threading.Event()
    channel = PipeChannel(ours, lambda *_: None, gone.set)
    channel.start()
    theirs.close()
    assert gone.wait(60)
    channel.send("a", 1)
    channel.flush(60)
    channel.close()


def test_a_side_that_reads_nothing_holds_up_nobody_and_what_waits_is_bounded() -> None:
    ours, _theirs = Pipe()
    sender = PipeChannel(ours, lambda *_: None, lambda: None)
    sender.start()
    for number in range(200):
        sender.send(number % 3, b"x" * 1_000_000)
    assert len(sender._waiting) <= 3
    sender.flush(0.1)
