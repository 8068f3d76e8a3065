"""Where the run's readings come from, as the observer sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from sentinel.vocabulary.sample import Record

__all__ = ["Source", "read_all"]


class Source(Protocol):
    """The run's metrics journals, or its trainer's log."""

    @property
    def unreadable(self) -> int:
        """Lines that could not be read, so far."""
        ...

    def poll(self) -> list[Record]:
        """What is new since the last poll. OSError when what is there can't be read."""
        ...


def read_all(source: Source) -> Iterator[Record]:
    """All that is there now: a source may hold its newest step until a poll finds nothing new."""
    yield from source.poll()
    yield from source.poll()
