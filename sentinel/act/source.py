"""Where the run's readings come from, as the observer sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from sentinel.vocabulary.sample import Record, Sample

__all__ = ["RereadSource", "Source", "StreamedSource", "read_all"]


class Source(Protocol):
    """The run's metrics journals, its trainer's log, or what Prometheus scraped of it."""

    @property
    def unreadable(self) -> int:
        """Lines or scrapes that could not be taken, so far."""
        ...

    def poll(self) -> list[Record]:
        """What is new since the last poll. OSError when it can't be read, ScrapeError when nobody answers."""
        ...


@runtime_checkable
class StreamedSource(Protocol):
    """A source of which not all that is new has to be in memory at once."""

    def new(self) -> Iterator[Record]:
        """What a poll gives, one record at a time."""
        ...


@runtime_checkable
class RereadSource(StreamedSource, Protocol):
    """A source whose samples need not be kept, since it tells them again."""

    def again(self, attempt: int) -> Iterator[Sample]:
        """The attempt's samples that it has given, from the first one, in order. TemporaryError when it can't now."""
        ...


def read_all(source: Source) -> Iterator[Record]:
    """All that is there now: a source may hold its newest step until a poll finds nothing new."""
    yield from source.poll()
    yield from source.poll()
